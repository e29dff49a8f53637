"""The judge of exercise 5.3, which models have the matrix, and what is said of slips in 5.3 and 5.8."""

import pytest
import torch

from smalearn.course.exercises import evaluate, registry

EXERCISES = registry()
MODEL = EXERCISES["5.3"]


def from_left(M, order):
    """The future's directions carry the state: what each block does, in coordinates of its outputs."""
    A, (B, C) = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order)
    before = None
    for k in range(len(M)):
        basis = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[0][:, :order]
        n = basis.shape[1]
        B[k, :n], C[k, :n] = basis.mT @ M[k:, k], basis[0]
        if k:
            A[k, :n, : before.shape[1]] = basis.mT @ before[1:]
        before = basis
    return A, B, C


def in_other_coordinates(M, order):
    A, B, C = MODEL.solution(M, order)
    return A, 2 * B, C / 2


@pytest.mark.parametrize("attempt", [from_left, in_other_coordinates])
def test_a_model_in_other_coordinates_is_right(attempt):
    assert evaluate(MODEL, attempt).outcome == "passed"


def with_fault(fault):
    return lambda M, order: fault(*MODEL.solution(M, order))


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (with_fault(lambda A, B, C: (A, B)), "three tensors, A, B and C"),
        (with_fault(lambda A, B, C: (A[:, 0], B, C)), "A must have the shape (1, 1, 1), and has (1, 1)"),
        (with_fault(lambda A, B, C: (A, B / 0, C)), "not finite"),
        (with_fault(lambda A, B, C: (2 * A, B, C)), "Its diagonal, C_t^T B_t, is right; what is wrong is in A"),
        (with_fault(lambda A, B, C: (A, 2 * B, C)), "Its diagonal is wrong: there stands C_t^T B_t"),
    ],
)
def test_a_model_with_another_matrix_is_told_where(attempt, reason):
    result = evaluate(MODEL, attempt)
    assert result.outcome == "failed"
    assert reason.lower() in result.problem.sentence.lower()


def rows_as_they_come(M, order):
    """No zeros in place of the directions that a small block lacks."""
    A, (B, C) = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order)
    before = None
    for k in range(len(M)):
        R = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[2][:order]
        if k:
            A[k] = R[:, :-1] @ before.T
        B[k], C[k] = R[:, -1], R @ M[k, : k + 1]
        before = R
    return A, B, C


def rows_of_the_outputs(M, order):
    A, (B, C) = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order)
    before = None
    for k in range(len(M)):
        R = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[0][:, :order].T
        C[k, : len(R)] = R @ M[k, : k + 1]
        B[k, : len(R)] = R[:, -1]
        if k:
            A[k, : len(R), : len(before)] = R[:, :-1] @ before.T
        before = R
    return A, B, C


def away_from_zero(dt, A, B):
    z = dt[:, None] * A
    return z.exp(), torch.expm1(z) / A.clamp(max=-1e-12) * B


def short_series(dt, A, B):
    z = dt[:, None] * A
    phi = torch.where(z.abs() < 1e-2, 1 + z / 2, torch.expm1(z) / z)
    return z.exp(), dt[:, None] * phi * B


@pytest.mark.parametrize(
    ("id", "attempt", "reason"),
    [
        ("5.3", rows_as_they_come, "its one row was broadcast"),
        ("5.3", rows_of_the_outputs, "left singular vectors"),
        ("5.8", away_from_zero, "where the rate is 0 your B_bar is 0"),
        ("5.8", short_series, "second term"),
    ],
)
def test_a_slip_is_called_by_its_name(id, attempt, reason):
    assert reason in evaluate(EXERCISES[id], attempt).misconception
