"""Answers that students would write: wrong ones that passed once are rejected, right ones in other styles pass."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from smalearn.course.ch01.orders import MEASURES, OPERANDS, _all_orders
from smalearn.course.exercises import evaluate, registry
from smalearn.masks import segsum

EXERCISES = registry()


def macs(length, chunk_len, state, head_dim):
    chunks = -(-length // chunk_len)
    inside = chunk_len * (state + head_dim) + 2 * state * head_dim
    return chunks * (chunk_len * inside + state * head_dim)


@pytest.mark.parametrize("id", ["11.1", "11.2", "11.4", "11.7"])
def test_levels_are_such_as_the_chapter_allows(id):
    """Every level has columns, and the first block holds all tokens."""
    for tokens, *operands, block_lens in EXERCISES[id].draw():
        assert (tokens if isinstance(tokens, int) else len(tokens)) <= block_lens[0]
        assert id == "11.1" or min(operands[-1]) > 0


def test_what_is_broken_in_another_dtype_hears_which():
    result = evaluate(EXERCISES["10.1"], lambda L, R: EXERCISES["10.1"].solution(L.float(), R.float()))
    assert result.problem.sentence.startswith("x and X must be in torch.float64, as L and R are: yours are in torch.fl")


def points(**of):
    """Points for one function, ours for the others."""
    return lambda name, count: of[name](count) if name in of else EXERCISES["2.2"].solution(name, count)


def copies_of_the_last(name, count):
    few = EXERCISES["2.2"].solution(name, {"tanh": 2, "relu": 4}[name])
    return torch.cat([few, few[-1:].repeat(count - len(few), 1)])


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


def with_gates(id, changed):
    """Our solution under other gates."""
    place = list(inspect.signature(EXERCISES[id].solution).parameters).index("log_a")
    return lambda *given: EXERCISES[id].solution(*given[:place], changed(given[place]), *given[place + 1 :])


def with_rest(rest):
    return lambda log_a: EXERCISES["6.1"].solution((log_a.exp() + rest).log())


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("2.2", points(minus=lambda count: torch.ones(1, 1).double())),
        ("2.2", points(minus=lambda count: -torch.ones(1, count).double())),
        ("2.2", points(relu=lambda count: copies_of_the_last("relu", count))),
        ("2.2", points(tanh=lambda count: copies_of_the_last("tanh", count))),
        ("3.4", with_gates("3.4", lambda log_a: log_a.clamp(min=-100))),
        ("3.5", with_gates("3.5", lambda log_a: (log_a.exp() + 1e-12).log())),
        ("3.5", with_gates("3.5", lambda log_a: log_a.clamp(min=-50))),
        ("4.1", short_memory(100)),
        ("4.3", on_a_circle_of(512)),
        ("4.6", band_over(1e-30)),
        ("6.1", with_rest(1e-20)),
        ("6.1", with_gates("6.1", lambda log_a: log_a.clamp(min=-700))),
    ],
)
def test_a_wrong_answer_that_passed_once(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome in ("failed", "error")


def divided_late(Q, K):
    """A row whose visible weights are all 0 stays 0."""
    weights = (Q @ K.mT).softmax(-1).tril()
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num()


@pytest.mark.parametrize(
    ("id", "attempt", "said", "reason"),
    [
        ("6.1", lambda log_a: segsum(log_a).tril(), True, "the exponential of your answer is right"),
        ("1.2", divided_late, False, "look at the terms with Q"),
        ("6.2", lambda X, a, B: ((a.sum(0) - a.cumsum(0)).exp()[..., None] * X).mT @ B, False, "column 0"),
    ],
)
def test_a_reason_is_told_where_it_is_one(id, attempt, said, reason):
    result = evaluate(EXERCISES[id], attempt)
    assert (result.outcome, reason in (result.sign or "")) == ("failed", said)


def test_a_number_is_asked_where_a_number_is_promised():
    assert evaluate(EXERCISES["6.a"], lambda A, B, C: (C[3] @ A[3] @ A[2] @ B[1]).item()).outcome == "passed"


def from_the_front(entering, decay, updates, state):
    """Exercise 6.3 with chunks on axis 0: the states that enter the chunks, or those after them."""
    states = [state]
    for a, update in zip(decay, updates, strict=True):
        states.append(a * states[-1] + update)
    return torch.stack(states[:-1] if entering else states[1:]), states[-1]


def test_who_counts_axes_from_the_front_hears_first_what_else_is_wrong():
    right = evaluate(EXERCISES["6.3"], lambda decay, updates, state: from_the_front(True, decay, updates, state))
    wrong = evaluate(EXERCISES["6.3"], lambda decay, updates, state: from_the_front(False, decay, updates, state))
    assert right.misconception is None
    assert "leading axes" in right.sign
    assert wrong.misconception.startswith("these are the states AFTER the chunks")


TOLD = [
    "the order that writes the fewest entries",
    "the order whose largest step is smallest",
    "the cheapest of those where only neighbours in the list meet",
    "the order whose largest result is smallest",
]


@pytest.mark.parametrize("name", TOLD)
def test_what_an_order_is_the_best_of_is_told_as_a_fact(name):
    def cheapest_order(sizes):
        best = min(_all_orders(OPERANDS), key=lambda order: MEASURES[name](order, sizes))
        return [f"{left}, {right} -> {result}" for left, right, result in best]

    sentence = evaluate(EXERCISES["1.4"], cheapest_order).problem.sentence
    assert name in sentence
    assert "(13)" not in sentence


def row_by_row(log_a):
    """The mask without sums: each row is the one above, times a_t, and a 1."""
    rows = [F.one_hot(torch.tensor(0), log_a.shape[-1]).to(log_a).expand(log_a.shape)]
    for t in range(1, log_a.shape[-1]):
        now = F.one_hot(torch.tensor(t), log_a.shape[-1]).to(log_a)
        rows.append(rows[-1] * log_a[..., t : t + 1].exp() + now)
    return torch.stack(rows, -2)


def one_strong_decay(form, least, length):
    others = max(least, -2.0) * (0.15 if form == "difference" else 0.99)
    return torch.tensor([least] + [others] * (length - 1), dtype=torch.float64)


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
        ("4.2", one_strong_decay),
        ("3.a", lambda row, K, V: torch.einsum("s,sp,sn->pn", row, V, K)),
        ("6.1", row_by_row),
        ("7.4", lambda: 520.0),
        ("12.b", lambda: 45),
        ("10.1", two_that_look_alike),
        ("6.6", lambda T, n, p: min(range(1, T + 1), key=lambda q: macs(T, q, n, p))),
    ],
)
def test_a_right_answer_in_another_style(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome == "passed"
