"""The judge of exercise 5.3: which models have the matrix, and what is said of those that have not."""

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


def by_the_next_rows(M, order):
    """An orthonormal basis of what the next outputs see."""
    A, (B, C) = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order)
    before = M.new_zeros(0, 0)
    for k in range(len(M)):
        basis = torch.linalg.qr(M[k : k + order, : k + 1].mT)[0].mT
        n = len(basis)
        A[k, :n, : len(before)], B[k, :n], C[k, :n] = basis[:, :-1] @ before.mT, basis[:, -1], basis @ M[k, : k + 1]
        before = basis
    return A, B, C


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (with_fault(lambda A, B, C: (A, B)), "three tensors, A, B and C"),
        (with_fault(lambda A, B, C: (A[:, 0], B, C)), "A must have the shape (1, 1, 1), and has (1, 1)"),
        (with_fault(lambda A, B, C: (A, B / 0, C)), "not finite"),
        (with_fault(lambda A, B, C: (2 * A, B, C)), "Its diagonal, C_t^T B_t, is right; what is wrong is in A"),
        (with_fault(lambda A, B, C: (A, 2 * B, C)), "Its diagonal is wrong: there stands C_t^T B_t"),
        (by_the_next_rows, "the matrix of your model differs most at"),
    ],
)
def test_a_model_with_another_matrix_is_told_where(attempt, reason):
    result = evaluate(MODEL, attempt)
    assert result.outcome == "failed"
    assert reason.lower() in result.problem.sentence.lower()


@pytest.mark.parametrize(
    ("id", "attempt", "reason"),
    [
        (
            "5.6",  # what is found never enters the state, so that nothing is taken away
            lambda A, B, C, y: torch.stack([(y[t] - C[t] @ A[t] @ (0 * B[t])) / (C[t] @ B[t]) for t in range(len(y))]),
            "has to be taken away first",
        ),
        (
            "5.1",  # diagonals alone, not products of entries of whole matrices
            lambda A, B, C: EXERCISES["5.1"].solution(torch.diag_embed(A.diagonal(dim1=-2, dim2=-1)), B, C),
            "only the diagonals of the transitions count",
        ),
    ],
)
def test_a_reason_is_true_of_every_code_with_these_values(id, attempt, reason):
    assert reason in evaluate(EXERCISES[id], attempt).misconception
