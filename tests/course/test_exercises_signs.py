"""Signs of wrong answers: what is said of a transformed right answer, and that nothing is said by accident."""

import dataclasses

import pytest
import torch
from demos import demo

from smalearn.course.exercises import evaluate
from smalearn.course.exercises.forms import LEADING


def weigh(Q, K, gamma):
    time = torch.arange(len(Q), dtype=torch.float64)
    weights = ((Q @ K.mT).exp() * (gamma ** (time[:, None] - time).abs())).tril()
    return weights / weights.sum(-1, keepdim=True)


def rows(Q, K):
    """Sums of the rows, a running sum, and whether the first is positive."""
    return (Q + K).sum(-1), (Q + 2 * K).cumsum(0), bool(Q[0, 0] > 0)


def both(*shapes):
    """Cases of two tensors of one shape."""
    return lambda randn: ((randn(*shape), randn(*shape)) for shape in shapes)


LENGTHS = [(1, 0.5), (2, 0.25), (4, 0.5), (5, 0.8), (7, 0.9)]
WEIGHTS = demo(weigh, lambda randn: ((randn(length, 3), randn(length, 3), gamma) for length, gamma in LENGTHS))
ROWS = demo(rows, both((2, 3), (4, 3), (5, 3), (7, 3)))


def late(L):
    return torch.cat([torch.zeros_like(L[:1]), L[:-1]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda L, *_: 2 * L, "your answer is 2 times the right one, in every wrong case"),
        (lambda L, *_: -L, "your answer is the right one with its sign changed, in every wrong case"),
        (lambda L, Q, *_: L * len(Q), "your answer is Q.shape[0] times the right one"),
        (lambda L, Q, *_: L / len(Q) ** 0.5, "your answer is 1/√Q.shape[0] times the right one"),
        (lambda L, *_: L * L.diagonal()[:, None], "each row of your answer is the right one times a number of its own"),
        (lambda L, *_: L * L.diagonal(), "each column of your answer is the right one times a number of its own"),
        (lambda L, *_: L.mT, "your answer is the transpose of the right one"),
        (lambda L, *_: L.log(), "the exponential of your answer is right"),
        (lambda L, *_: L.softmax(-1), "your answer is the softmax of the right one along its last axis"),
        (lambda L, *_: L.sqrt(), "the square of your answer is right"),
        (lambda L, *_: L.float().double(), "your answer is right to about seven digits"),
        (lambda L, *_: L + 1e-8 * L.triu().tril(), "your answer is nearly right: digits are lost"),
        (lambda L, *_: L.flatten(), "your answer has the right entries in another shape"),
        (lambda L, *_: torch.cat([L, L]), "your answer is right as far as it is needed, and goes on after that"),
        (lambda L, *_: L[:-1], "the end is missing: your answer is right as far as it goes"),
        (lambda L, *_: torch.stack([L / 3, 2 * L / 3]), "your answer has an axis too many: its sum over that axis"),
        (lambda L, *_: L.sum(0), "an axis of the right answer is missing: yours is its sum"),
        (lambda L, *_: L.flip(0), "your answer is the right one in reverse order along axis 0"),
        (lambda L, *_: late(L), "your answer is one place late along axis 0"),
        (lambda L, *_: torch.cat([L[1:], L[:1]]), "your answer is one place early along axis 0"),
        (lambda L, *_: L.cumsum(0), "your answer is summed up once too often along axis 0"),
        (lambda L, *_: L.diff(dim=0, prepend=L.new_zeros(1, len(L))), "its running sum is right"),
        (lambda L, *_: torch.cat([L[:1], 0 * L[1:]]), "only the first place along axis 0 is filled in your answer"),
        (lambda L, *_: 1 / L, "1 divided by your answer is right"),
        (lambda L, *_: torch.tanh(L) / torch.tanh(L).sum(-1, keepdim=True), None),
        (lambda L, *_: L * (2 if len(L) > 3 else 1), "your answer is 2 times the right one, in every wrong case"),
        (lambda L, Q, *_: (Q, L), "item 1 of yours is the answer: return it alone"),
        (lambda L, *_: 2 * L if len(L) < 7 else L[99], None),  # of what raises nothing is said
    ],
)
def test_what_is_said(change, said):
    result = evaluate(WEIGHTS, lambda Q, K, gamma: change(weigh(Q, K, gamma), Q, K, gamma))
    assert result.outcome in ("failed", "error")
    assert said in result.sign if said else result.sign is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, b, c: (3 * a, b, c), "in item 0, your answer is 3 times the right one, in every wrong case"),
        (lambda a, b, c: (a, b.flip(0), c), "in item 1, your answer is the right one in reverse order along axis 0"),
        (lambda a, b, c: (a, b, not c), "in item 2, your answer is always the opposite of the right one"),
        (lambda a, b, c: (a, b, True), "in item 2, your answer is True in every case"),
        (lambda a, b, c: (a, b), None),
        (lambda a, b, c: b, "this is item 1 of the answer alone: return all 3 of them"),
        (lambda a, b, c: b + 1, None),
        # the item that is wrong in the case that is shown
        (lambda a, b, c: (a if len(a) == 2 else 2 * a, b.flip(0), c), "in item 1, your answer is the right one in rev"),
    ],
)
def test_what_is_said_of_an_item(change, said):
    sign = evaluate(ROWS, lambda Q, K: change(*rows(Q, K))).sign
    assert sign.startswith(said) if said else sign is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n: n + 3, "your number is 3 too large, in every wrong case"),
        (lambda n: n - 1.0, "your number is 1 too small, in every wrong case"),
        (lambda n: max(n - 20, 0), None),
        (lambda n: n + (-1) ** n, None),
    ],
)
def test_what_is_said_of_counts(change, said):
    counts = dataclasses.replace(ROWS, oracle=lambda Q, K: len(Q) ** 2)
    assert evaluate(counts, lambda Q, K: change(len(Q) ** 2)).sign == said


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda Q, K: Q @ K.T, LEADING),  # raises where there are two axes before the last ones
        (lambda Q, K: Q @ K.mT + (Q.ndim > 2), LEADING),
        (lambda Q, K: (Q @ K.mT).sin() if Q.ndim > 3 else Q @ K.mT, ""),  # right with one leading axis
        (lambda Q, K: (Q @ K.mT).sin(), ""),
    ],
)
def test_leading_axes(attempt, said):
    stacked = dataclasses.replace(
        ROWS,
        cases=both((2, 3), (4, 2), (3, 4, 2), (2, 5, 4, 2)),
        oracle=lambda Q, K: torch.einsum("...tn,...sn->...ts", Q, K),
    )
    sign = evaluate(stacked, attempt).sign
    assert sign == said if said else sign != LEADING


def test_nothing_is_guessed_of_answers_that_change_their_arguments():
    def attempt(Q, K, gamma):
        Q += 0 * Q + 1
        return 2 * weigh(Q - 1, K, gamma)

    result = evaluate(WEIGHTS, attempt)
    assert "in place" in result.problem.lines[0]
    assert result.sign is None


def test_another_question_that_has_no_end():
    """With one number less the oracle would never end."""

    def halvings(t, s):
        return 0 if t == s else 1 + halvings(t // 2, s // 2)

    def steps(t, s):
        level = 0
        while t != s:
            t, s, level = t // 2, s // 2, level + 1
        return level

    meet = dataclasses.replace(ROWS, cases=lambda randn: [(0, 0), (1, 0), (4, 3), (9, 2)], oracle=steps)
    assert "would be right" not in evaluate(meet, lambda t, s: (t - s) ** 2).sign
    assert evaluate(meet, halvings).outcome == "passed"


SIZES = dataclasses.replace(ROWS, oracle=lambda Q, K: len(Q))


@pytest.mark.parametrize("odd", [10**400, float("nan"), torch.tensor([]), torch.ones(2, 0, 3), "a", [1, "b"], {}, True])
@pytest.mark.parametrize(("exercise", "count"), [(WEIGHTS, 0), (ROWS, 3), (SIZES, 0)])
def test_odd_answers_have_no_sign(exercise, count, odd):
    assert evaluate(exercise, lambda *_: (odd,) * count if count else odd).sign is None


def test_an_accident_in_a_small_case_is_no_sign():
    """One case may look transposed; where another does not, that is not said."""

    def attempt(Q, K, gamma):
        L = weigh(Q, K, gamma)
        return L.mT if len(Q) < 5 else L.tanh() / L.tanh().sum(-1, keepdim=True)

    assert "transpose" not in evaluate(WEIGHTS, attempt).sign
