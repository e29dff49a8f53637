"""Answers that students would write: wrong ones that passed once are rejected, right ones in other styles pass."""

import pytest
import torch
import torch.nn.functional as F

from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.report import render

EXERCISES = registry()


def macs(length, chunk_len, state, head_dim):
    chunks = -(-length // chunk_len)
    inside = chunk_len * (state + head_dim) + 2 * state * head_dim
    return chunks * (chunk_len * inside + state * head_dim)


def rectified_late(x, horizon):
    angles = torch.pi * torch.arange(len(x), dtype=x.dtype)[:, None] / (2 * horizon)
    return torch.cat([x * angles.cos(), x * angles.sin()], 1).relu()


def landmarks_inverted(Q, K, q, k):
    return (Q @ k.mT).softmax(-1) @ torch.linalg.inv((q @ k.mT).softmax(-1)) @ (q @ K.mT).softmax(-1)


def held_crudely(dt, A, B):
    z = dt[:, None] * A
    phi = torch.where(z.abs() < 1e-6, 1.0, torch.expm1(z) / torch.where(z == 0, 1.0, z))
    return z.exp(), dt[:, None] * phi * B


def masked_after_the_exponential(log_a):
    s = log_a.double().clamp(min=-1000).cumsum(-1)
    return (s[..., :, None] - s[..., None, :]).exp().tril().to(log_a.dtype)


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("1.5", lambda n, p: next((T for T in range(1, 100) if 3 * T * n * p < T * T * (n + p + 1)), None)),
        ("2.6", rectified_late),
        ("2.7", landmarks_inverted),
        ("4.6", lambda judge: "structured"),
        ("5.8", held_crudely),
        ("6.1", masked_after_the_exponential),
        ("6.1", lambda log_a: EXERCISES["6.1"].solution(log_a.detach())),
        ("6.6", lambda T, n, p: min((q for q in range(1, T + 1) if T % q == 0), key=lambda q: macs(T, q, n, p))),
        ("6.6", lambda T, n, p: min(range(1, max(T, 2)), key=lambda q: macs(T, q, n, p))),
    ],
)
def test_a_wrong_answer_that_passed_once(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome in ("failed", "error")


def test_a_gradient_that_is_not_there_is_told():
    def without(log_a):
        return torch.from_numpy(EXERCISES["6.1"].solution(torch.from_numpy(log_a.numpy())).numpy())

    result = evaluate(EXERCISES["6.1"], without)
    assert result.problem.sentence.startswith("The values are right, the gradient by log_a is not: NumPy knows no grad")
    assert "line 2 of without: " in result.problem.lines[-1]


def test_a_wrong_gradient_is_told():
    result = evaluate(EXERCISES["6.1"], masked_after_the_exponential)
    assert result.problem.sentence.startswith("The values are right, the gradient by log_a is not: not finite")
    assert (result.passed, result.case) == (3, 4)


def in_place(Q, K, V, log_a, chunk_len):
    """Token by token, in a state that is overwritten."""
    H, rows = V.new_zeros(V.shape[1], K.shape[1]), []
    for q, k, v, a in zip(Q, K, V, log_a.exp(), strict=True):
        H *= a
        H += torch.outer(v, k)
        rows.append(H @ q)
    return torch.stack(rows)


def in_float64(Q, K, V, log_a, chunk_len):
    H, rows = torch.zeros(V.shape[1], K.shape[1], dtype=torch.float64), []
    for q, k, v, a in zip(Q, K, V, log_a.exp(), strict=True):
        H = a * H + torch.outer(v, k)
        rows.append(H @ q)
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("attempt", "said", "case"),
    [
        (in_place, "The values are right, the gradient by Q and K and V is not: you change in place (`+=`, ", 2),
        (
            in_float64,
            "All is right in float64; in float32, as in a model, the gradient by Q and K and V is not: two tensors",
            None,
        ),
    ],
)
def test_what_a_model_cannot_train_is_told(attempt, said, case):
    result = evaluate(EXERCISES["3.5"], attempt)
    assert (result.outcome, result.case) == ("failed", case)
    assert result.problem.sentence.startswith(said)
    assert not any("Error" in line or "gradient" in line for line in result.problem.lines)
    assert result.problem.sentence in " ".join(render(result).split())


def row_by_row(log_a):
    """The mask without sums: each row is the one above, times a_t, and a 1."""
    rows = [F.one_hot(torch.tensor(0), log_a.shape[-1]).to(log_a).expand(log_a.shape)]
    for t in range(1, log_a.shape[-1]):
        now = F.one_hot(torch.tensor(t), log_a.shape[-1]).to(log_a)
        rows.append(rows[-1] * log_a[..., t : t + 1].exp() + now)
    return torch.stack(rows, -2)


def two_that_look_alike(L, R):
    """A query in sight, and points that differ only where R does not look."""
    hidden = torch.linalg.svd(R.mT).Vh[-1]
    x = F.normalize(L[:, 0] + (1 if L[:, 0] @ hidden >= 0 else -1) * hidden, dim=0)
    return x, torch.stack([x, x - 2 * (x @ hidden) * hidden])


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("1.4", lambda sizes: tuple(step.replace(" ", "") for step in EXERCISES["1.4"].solution(sizes))),
        ("1.5", lambda N, P: next(T for T in range(1, 99_999) if 3 * N * P < T * (N + P + 1))),
        (
            "4.2",
            lambda form, least, length: torch.tensor(
                [least] + [max(least, -2.0) * (0.15 if form == "difference" else 0.99)] * (length - 1),
                dtype=torch.float64,
            ),
        ),
        ("6.1", row_by_row),
        ("7.4", lambda: 129.0),
        ("10.1", two_that_look_alike),
        ("6.6", lambda T, n, p: min(range(1, T + 1), key=lambda q: macs(T, q, n, p))),
    ],
)
def test_a_right_answer_in_another_style(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome == "passed"
