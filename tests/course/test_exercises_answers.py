"""Answers that students would write: wrong ones that passed once are rejected. attempts.json has those of readers."""

import inspect

import pytest
import torch

from smalearn.course.exercises import evaluate, registry

EXERCISES = registry()


@pytest.mark.parametrize("id", ["11.1", "11.2", "11.4", "11.7"])
def test_levels_are_such_as_the_chapter_allows(id):
    for tokens, *operands, block_lens in EXERCISES[id].draw():
        assert (tokens if isinstance(tokens, int) else len(tokens)) <= block_lens[0]
        assert id == "11.1" or min(operands[-1]) > 0


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
    ("id", "attempt", "reason"),
    [
        ("1.2", divided_late, "look at the terms with Q"),
        ("6.2", lambda X, a, B: ((a.sum(0) - a.cumsum(0)).exp()[..., None] * X).mT @ B, "column 0"),
    ],
)
def test_a_reason_that_is_none_is_not_told(id, attempt, reason):
    result = evaluate(EXERCISES[id], attempt)
    assert (result.outcome, reason in (result.sign or "")) == ("failed", False)


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


def one_einsum_a_chunk(Q, K, V, log_a, chunk_len):
    """Sums inside of a chunk in one `einsum`, which makes (c, c, N) where it goes from left to right."""
    state, rows = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, a in zip(*(x.split(chunk_len) for x in (Q, K, V, log_a)), strict=True):
        L, since = a[:, None].expand(len(a), len(a)).tril(-1).cumsum(0).exp().tril(), a.cumsum(0).exp()
        rows.append(torch.einsum("ts,tn,sn,sp->tp", L, q, k, v) + since[:, None] * (q @ state))
        state = since[-1] * state + torch.einsum("s,sn,sp->np", L[-1], k, v)
    return torch.cat(rows)


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("3.5", one_einsum_a_chunk),
        ("3.a", lambda row, K, V: torch.einsum("s,sp,sn->pn", row, V, K)),
        ("6.a", lambda A, B, C: (C[3] @ A[3] @ A[2] @ B[1]).item()),
    ],
)
def test_a_right_answer_in_another_style(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome == "passed"
