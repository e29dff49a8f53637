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


def by_powers(Q, K, V, beta, state):
    A, U = (beta[..., None] * (K @ K.mT)).tril(-1), beta[..., None] * (V - K @ state.mT)
    for _ in range(6):
        U, A = U - A @ U, -A @ A
    return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K


def carried_once(states, block, length):
    states, b = states.clone(), 0
    if length & 1:
        block, states[0], b = block + states[0], 0, 1
    states[b] = block
    return states


def times_a_diagonal(Q, K, beta, L, W):
    A = (beta[:, None] * L * (K @ K.mT)).tril(-1)
    return L * W * (Q @ K.mT) @ torch.linalg.inv(torch.eye(len(Q), dtype=Q.dtype) + A) * torch.diag(beta)


def of_doubling_blocks(L, R, ranks, blocks, x):
    return EXERCISES["10.2"].solution(L, R, ranks, [1 << level for level in range(len(ranks))], x)


def by_parts(length, block_lens):
    i = torch.arange(length)
    return sum((i[:, None] * b // length == i * b // length).long() for b in block_lens)


def in_chunks(Q, K, ranks, block_lens):
    i, parts = torch.arange(len(Q)), [F.chunk(len(ranks), 1) for F in (Q, K)]
    return sum(q @ k.mT * (i[:, None] // b == i // b) for q, k, b in zip(*parts, block_lens, strict=False))


def by_finer_levels(Q, K, ranks, block_lens):
    d, parts = EXERCISES["11.1"].solution(len(Q), block_lens), [F.split(ranks, 1) for F in (Q, K)]
    return sum(q @ k.mT * (n >= d) for n, (q, k) in enumerate(zip(*parts, strict=True), start=1))


def raised_again(decays, ends):
    return EXERCISES["12.12"].solution(decays.exp2(), ends)


@pytest.mark.parametrize(
    ("id", "attempt", "said"),
    [
        ("8.4", by_powers, "you add up powers of A"),
        ("9.6", carried_once, "`while` the bit is 1, not `if`"),
        ("9.7", times_a_diagonal, "it is a matrix, `@`"),
        ("10.2", of_doubling_blocks, "double from level to level"),
        ("10.7", lambda H, r, d, N: 1 - min(H * r, d) * N // (d * (N + d + 1)), "does a `//` round"),
        ("11.1", by_parts, "block_lens[l] is how long a block is"),
        ("11.2", in_chunks, "`split(ranks, 1)`"),
        ("11.2", by_finer_levels, "you turn l ≤ d round"),
        ("12.12", raised_again, "they are no logarithms"),
    ],
)
def test_a_likely_slip_is_named(id, attempt, said):
    assert said in (evaluate(EXERCISES[id], attempt).misconception or "")


@pytest.mark.parametrize(("id", "lengths"), [("11.2", lambda Q, *_: len(Q)), ("11.7", lambda tokens, *_: tokens)])
def test_levels_are_such_as_the_library_takes(id, lengths):
    assert all(case[-1][0] >= lengths(*case) and min(case[-2][:1]) >= 0 for case in EXERCISES[id].draw())
    assert id == "11.7" or all(min(case[-2]) > 0 for case in EXERCISES[id].draw())


def test_what_is_broken_in_another_dtype_hears_which():
    result = evaluate(EXERCISES["10.1"], lambda L, R: EXERCISES["10.1"].solution(L.float(), R.float()))
    assert result.problem.sentence.startswith("x and X must be in torch.float64, as L and R are: yours are in torch.fl")


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


def test_tensors_of_two_dtypes_are_told_in_plain_words():
    def mixed(Q, K, V, beta, state):
        one = torch.eye(K.shape[-2], dtype=torch.float64)
        A = (beta[..., None] * (K @ K.mT)).tril(-1)
        U = torch.linalg.solve(one + A, beta[..., None] * (V - K @ state.mT))
        return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K

    result = evaluate(EXERCISES["8.4"], mixed)
    assert result.problem.lines[-1].startswith("two tensors that meet differ in dtype")


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
