"""Answers that students would write: wrong ones that passed once are rejected, right ones in other styles pass."""

import math

import pytest
import torch
import torch.nn.functional as F

from smalearn.course.ch01.orders import MEASURES, OPERANDS, _all_orders, _neighbours, _step
from smalearn.course.exercises import evaluate, registry

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


@pytest.mark.parametrize(("id", "lengths"), [("11.2", lambda Q, *_: len(Q)), ("11.7", lambda tokens, *_: tokens)])
def test_levels_are_such_as_the_library_takes(id, lengths):
    assert all(case[-1][0] >= lengths(*case) and min(case[-2][:1]) >= 0 for case in EXERCISES[id].draw())
    assert id == "11.7" or all(min(case[-2]) > 0 for case in EXERCISES[id].draw())


def test_what_is_broken_in_another_dtype_hears_which():
    result = evaluate(EXERCISES["10.1"], lambda L, R: EXERCISES["10.1"].solution(L.float(), R.float()))
    assert result.problem.sentence.startswith("x and X must be in torch.float64, as L and R are: yours are in torch.fl")


def hidden_by(number):
    def causal_weights(Q, K):
        future = torch.ones(len(Q), len(Q), dtype=torch.bool).triu(1)
        return (Q @ K.mT).masked_fill(future, number).softmax(-1)

    return causal_weights


def points(**of):
    """Points for one function, ours for the others."""
    return lambda name, count: of[name](count) if name in of else EXERCISES["2.2"].solution(name, count)


def copies_of_the_last(name, count):
    few = EXERCISES["2.2"].solution(name, {"tanh": 2, "relu": 4}[name])
    return torch.cat([few, few[-1:].repeat(count - len(few), 1)])


def quotient(x, gamma):
    """Handles γ = 0 apart."""
    powers = (gamma or 1.0) ** torch.arange(len(x), dtype=x.dtype)[:, None]
    return powers * (x / powers).cumsum(0) if gamma else x.clone()


def clamped_quotient(x, gamma):
    powers = (torch.arange(len(x), dtype=x.dtype) * math.log(max(gamma, 1e-30))).exp()[:, None]
    return powers * (x / powers).cumsum(0)


def short_memory(tokens):
    return lambda x, gamma: torch.stack(
        [sum(gamma ** (t - s) * x[s] for s in range(max(t - tokens, -1) + 1, t + 1)) for t in range(len(x))]
    )


def on_a_circle_of(size):
    def toeplitz_product(column, row, x):
        circle = torch.zeros(size, dtype=x.dtype)
        circle[: len(column)] = column[:size]
        circle[size - len(row) + 1 :] = row[1:].flip(0)[:size]
        spectra = torch.fft.rfft(circle)[:, None] * torch.fft.rfft(x, size, dim=0)
        return torch.fft.irfft(spectra, size, dim=0)[: len(x)]

    return toeplitz_product


def band_over(rest):
    """A band, which alone is in the product, and a number elsewhere."""

    def dense(length):
        distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
        return torch.where(distance <= 1, 1.0, rest).double()

    def matmul(x):
        y = x.clone()
        y[1:] += x[:-1]
        y[:-1] += x[1:]
        return y

    return lambda judge: judge(dense, matmul)


def held_by_the_rate(dt, A, B):
    z = dt[:, None] * A
    return z.exp(), dt[:, None] * torch.where(A == 0, 1.0, torch.expm1(z) / z) * B


def with_rest(rest):
    return lambda log_a: EXERCISES["6.1"].solution((log_a.exp() + rest).log())


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("1.2", hidden_by(-1e6)),
        ("2.2", points(minus=lambda count: torch.ones(1, 1).double())),
        ("2.2", points(minus=lambda count: -torch.ones(1, count).double())),
        ("2.2", points(relu=lambda count: copies_of_the_last("relu", count))),
        ("2.2", points(tanh=lambda count: copies_of_the_last("tanh", count))),
        ("2.5", lambda: 310_000),
        ("2.5", lambda: 290_000),
        ("4.1", quotient),
        ("4.1", clamped_quotient),
        ("4.1", short_memory(100)),
        ("4.3", on_a_circle_of(512)),
        ("4.6", band_over(1e-30)),
        ("5.8", held_by_the_rate),
        ("6.1", with_rest(1e-12)),
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


def divided_late(Q, K):
    """A row whose visible weights are all 0 stays 0."""
    weights = (Q @ K.mT).softmax(-1).tril()
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num()


def holes_of_ones(X, log_a, B):
    """The decays until the end by a difference, NaN filled with 0 before the exponential."""
    sums = log_a.cumsum(-1)
    return ((sums[..., -1:] - sums).nan_to_num().exp()[..., None] * X).mT @ B


def mask(log_a, fill=0.0, running=torch.cumsum, last=torch.exp):
    later = torch.ones(log_a.shape[-1], log_a.shape[-1], dtype=torch.bool).tril(-1)
    return last(running(torch.where(later, log_a[..., :, None], fill), -2)).tril()


def between(first, last, term=lambda decays: decays.sum().exp()):
    """W by the log decays of chunks j + first to i + last."""

    def between_chunks(log_d):
        chunks = range(len(log_d) + 1)
        rows = [[term(log_d[j + first : max(i + last, 0)]).item() * (j <= i) for j in chunks] for i in chunks]
        return torch.tensor(rows, dtype=log_d.dtype)

    return between_chunks


def nystrom(inverse, softmax=lambda scores: scores.softmax(-1)):
    def attention(Q, K, V, landmarks):
        q, k = (x.unflatten(0, (landmarks, -1)).mean(1) for x in (Q, K))
        return softmax(Q @ k.mT) @ (inverse(softmax(q @ k.mT)) @ (softmax(q @ K.mT) @ V))

    return attention


def spectral(there=0, back=0, **words):
    """By circles of 2T − 1 places, or more, and transforms with other words."""

    def toeplitz_product(column, row, x):
        circle, size = torch.cat([column, column.new_zeros(there), row[1:].flip(0)]), 2 * len(x) - 1
        spectra = torch.fft.rfft(circle)[:, None] * torch.fft.rfft(x, size + there, dim=0)
        return torch.fft.irfft(spectra, size + back, dim=0, **words)[: len(x)]

    return toeplitz_product


def by_v(M, order):
    """Rows of V in the place of those of Vᵀ, padded with zeros."""
    A, (B, C), before = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order), None
    for k in range(len(M)):
        V = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[2].mT
        R = M.new_zeros(order, k + 1)
        R[: min(order, len(M) - k, k + 1), : V.shape[1]] = V[: min(order, len(M) - k, k + 1)]
        A[k], B[k], C[k] = R[:, :k] @ before.mT if k else A[k], R[:, -1], R @ M[k, : k + 1]
        before = R
    return A, B, C


def gates_for_logarithms(Q, K, V, log_a, chunk_len):
    H, rows = V.new_zeros(V.shape[1], K.shape[1]), []
    for q, k, v, a in zip(Q, K, V, log_a, strict=True):
        H = a * H + torch.outer(v, k)
        rows.append(H @ q)
    return torch.stack(rows)


def cut_short(X, log_a, B, C, state, chunk_len):
    n = len(X) // chunk_len * chunk_len
    return EXERCISES["6.5"].solution(X[:n], log_a[:n], B[:n], C[:n], state, chunk_len) if n else (X[:0], state)


@pytest.mark.parametrize(
    ("id", "attempt", "reason"),
    [
        ("1.2", hidden_by(-1e4), "the number that hides is not low enough"),
        ("1.2", lambda Q, K: EXERCISES["1.2"].solution(Q, K) * (Q @ K.mT > 0), "rows of the right answer sum to 1"),
        ("1.5", lambda n, p: 5 * n * p // (2 * n + 2 * p + 1) + 1, "flops"),
        ("1.5", lambda n, p: 6 * n * p // (2 * n + 2 * p + 1) + 1, "flops"),
        ("2.6", lambda Q, K, V, horizon: EXERCISES["2.6"].solution(Q, K, V, 1e12), "the positions are missing"),
        ("2.7", nystrom(lambda A: torch.linalg.pinv(A, rtol=1e-2)), "small singular values"),
        ("2.7", nystrom(torch.linalg.pinv, lambda scores: scores.softmax(0)), "dim=0"),
        ("3.5", gates_for_logarithms, "the gate is its exponential"),
        ("4.1", quotient, "you divide by γ^s"),
        ("4.3", spectral(norm="forward"), "you multiply by the size"),
        ("4.3", spectral(there=1), "give it the size"),
        ("4.3", spectral(back=1), "give it the size"),
        ("4.4", lambda U, V, B, x: U * B.matmul(V * x), "column r of x alone"),
        ("5.3", by_v, "V for Vh"),
        ("5.8", held_by_the_rate, "where a step is 0"),
        ("6.1", with_rest(1e-8), "a small number is added"),
        ("6.1", lambda log_a: mask(log_a, last=lambda sums: sums), "the exponential of your answer is right"),
        ("6.1", lambda log_a: mask(log_a, 1.0, torch.cumprod, lambda sums: sums), "you multiply logarithms"),
        ("6.1", lambda log_a: mask(log_a.exp(), 0.0, torch.cumsum, lambda sums: sums), "they multiply"),
        ("6.2", holes_of_ones, "fill the holes"),
        ("6.4", lambda C, log_a, H: log_a.cumprod(-1)[..., None] * (C @ H.mT), "you multiply logarithms"),
        ("6.5", cut_short, "the last, shorter chunk is dropped"),
        ("6.7", between(0, 0, torch.sum), "the exponential of your answer is right"),
        ("6.7", between(1, 0), "each column lacks its first decay"),
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
def test_a_reason_is_told(id, attempt, reason):
    result = evaluate(EXERCISES[id], attempt)
    assert reason in (result.misconception or result.sign)


@pytest.mark.parametrize(
    ("id", "attempt", "false"),
    [
        ("1.2", divided_late, "look at the terms with Q"),
        ("2.7", nystrom(lambda A: torch.linalg.pinv(A, rtol=0.03)), "which is which"),
        ("6.2", holes_of_ones, "its own place"),
        ("6.2", lambda X, log_a, B: ((log_a.sum(0) - log_a.cumsum(0)).exp()[..., None] * X).mT @ B, "column 0"),
    ],
)
def test_what_is_no_reason_is_not_told(id, attempt, false):
    result = evaluate(EXERCISES[id], attempt)
    assert result.outcome == "failed"
    assert false not in (result.misconception or result.sign or "")


def search(measure, among=lambda order: True):
    """The order that is the best of something else than its cost."""

    def cheapest_order(sizes):
        best = min(filter(among, _all_orders(OPERANDS)), key=lambda order: measure(order, sizes))
        return [f"{left}, {right} -> {result}" for left, right, result in best]

    return cheapest_order


@pytest.mark.parametrize(
    ("measure", "among", "said"),
    [
        (MEASURES["the order that writes the fewest entries"], lambda order: True, "writes the fewest entries"),
        (MEASURES["the order whose largest step is smallest"], lambda order: True, "whose largest step is smallest"),
        (lambda order, sizes: sum(_step(*step, sizes) for step in order), _neighbours, "only neighbours"),
        (
            MEASURES["the order whose largest result is smallest"],
            lambda order: True,
            "whose largest result is smallest",
        ),
    ],
)
def test_what_an_order_is_the_best_of_is_told_as_a_fact(measure, among, said):
    sentence = evaluate(EXERCISES["1.4"], search(measure, among)).problem.sentence
    assert said in sentence
    assert "(13)" not in sentence


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
