"""What a wrong program does with other arguments: true of the program, and silent where nothing can be told."""

import dataclasses

import pytest
import torch
from demos import demo

from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.probes import probe, zero


def scores(Q, K, beta):
    return torch.einsum("tn,sn->ts", Q, K) + beta[:, None]


def cases(randn):
    for length in (2, 3, 5, 6):
        yield randn(length, 2), randn(length, 2), randn(length)


SCORES = demo(scores, cases)


def product(Q, K, beta):
    return torch.einsum("tn,sn->ts", Q, K) * beta[:, None] ** 2


def swapped(Q, K, beta):
    """Right where Q and K are the same."""
    return Q @ Q.mT + (Q @ K.mT).sin() - (Q @ Q.mT).sin() + beta[:, None]


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda Q, K, beta: (Q @ K.mT).sin(), "your answer does not depend on beta"),
        (lambda Q, K, beta: Q @ K.mT + beta[:, None] ** 3 * beta.exp()[:, None] / torch.e, "where beta is 1 throug"),
        (lambda Q, K, beta: Q @ K.mT + (beta * (1.5 - beta))[:, None], "right where beta is 0.5 throughout"),
        (lambda Q, K, beta: Q @ K.mT + beta.sin()[:, None], "right where beta is 0 throughout"),
        (swapped, "right where Q and K are the same"),
        (lambda Q, K, beta: (Q @ K.mT + beta[:, None]).cos(), None),
        (lambda Q, K, beta: (Q @ K.mT + beta.sin()[:, None]) / bool(beta.all()), None),  # raises with a beta of 0
    ],
)
def test_what_a_probe_tells(attempt, said):
    found = probe(SCORES, attempt) or zero(SCORES, attempt)
    assert said in found if said else found is None
    assert evaluate(SCORES, attempt).sign == found


def test_where_the_wrong_part_is_empty_nothing_is_told():
    """With K = 0 the first item is 0 for any attempt; the second, which is right, has content."""

    def both(Q, K, beta):
        return Q @ K.mT, (beta + 1)[:, None] + Q

    exercise = dataclasses.replace(SCORES, oracle=both, solution=scores)
    assert probe(exercise, lambda Q, K, beta: ((Q @ K.mT).sin() * 3 + (Q @ K.mT) ** 2, both(Q, K, beta)[1])) is None


def test_no_logarithm_of_a_decay_is_taken_to_be_above_0():
    exercise = dataclasses.replace(SCORES, cases=lambda randn: ((Q, K, -b.abs()) for Q, K, b in cases(randn)))
    attempt = lambda Q, K, beta: Q @ K.mT + (beta**3 * beta.exp())[:, None] / torch.e  # noqa: E731
    assert probe(exercise, attempt) is None  # and not 1, at which it is right
    assert "right where beta is 0 throughout" in zero(exercise, attempt)


def test_weights_that_sum_to_1_do_not_tell_a_constant():
    """Averages of equal rows are right whatever the weights."""
    exercise = dataclasses.replace(SCORES, oracle=lambda Q, K, beta: (Q @ K.mT).softmax(-1) @ beta)
    assert "throughout" not in str(probe(exercise, lambda Q, K, beta: (2 * Q @ K.mT).softmax(-1) @ beta))


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda Q, K, beta: product(Q, K, beta) + 1, "where Q is halved the right answer is halved, yours is not"),
        (lambda Q, K, beta: product(Q, K, beta.exp()), "where beta is halved the right answer becomes a quarter"),
        (lambda Q, K, beta: product(Q, K, beta) + product(Q.abs(), K.square(), beta), "where K is halved"),
    ],
)
def test_how_an_answer_grows(attempt, said):
    assert said in probe(dataclasses.replace(SCORES, oracle=product), attempt)


def test_a_number_that_is_ignored():
    def powers(Q, K, n):
        return (Q + K) ** n

    exercise = demo(powers, lambda randn: ((randn(3, 2), randn(3, 2), n) for n in (1, 2, 3)))
    assert probe(exercise, lambda Q, K, n: Q.sin() + K) == "your answer does not depend on n"


def test_a_loop_that_has_no_end_with_other_arguments():
    def attempt(Q, K, beta):
        while not beta.any():
            pass
        return (Q @ K.mT + beta[:, None]).cos()

    assert probe(SCORES, attempt) is None


def test_no_probe_of_answers_in_another_form():
    """A list is not probed: it would be found to change otherwise than a tensor."""
    linear = dataclasses.replace(SCORES, oracle=product)
    assert evaluate(linear, lambda Q, K, beta: list(product(Q, K, beta) + 1)).sign is None


def test_what_holds_by_chance_is_not_told():
    """Exact where Q and K are the same and A is well conditioned, as it is in the exercise's own cases."""

    def cut_off(Q, K, V, landmarks):
        q, k = (x.unflatten(0, (landmarks, -1)).mean(1) for x in (Q, K))
        inverse = torch.linalg.pinv((q @ k.mT).softmax(-1), rtol=0.1)
        return (Q @ k.mT).softmax(-1) @ (inverse @ ((q @ K.mT).softmax(-1) @ V))

    assert "are the same" not in (probe(registry()["2.7"], cut_off) or "")


def test_how_an_answer_grows_is_said_of_the_case_that_is_shown():
    """There it grows too fast with n alone, in most of the others with m alone."""

    def area(n, m):
        return n * m

    def attempt(n, m):
        return n * m + (100 * n if n <= 3 and m <= 4 else 100 * m)

    found = evaluate(demo(area, lambda randn: ((n, n + 1) for n in (2, 3, 4, 5))), attempt)
    assert found.case == 1
    assert found.sign.startswith("from case 1, one more in n adds 3 to the right number, and adds 103 to yours")


def test_a_row_that_a_gate_has_cleared_says_nothing_of_the_others():
    """From row 9 on gates are e^-800: there no row depends on its own gate, in the short cases every row does."""

    def kept(V, g):
        return (V * g.exp()[:, None]).cumsum(0)

    def gated(randn):
        for length in (2, 3, 4):
            yield randn(length, 2), -randn(length).abs()
        yield randn(17, 2), torch.cat([-randn(9).abs(), torch.full((8,), -800.0)])

    def attempt(V, g):
        return kept(V, g) if len(g) < 17 else kept(V, g) + (V * g[:, None] * (g < -700)[:, None]).cumsum(0)

    found = evaluate(demo(kept, gated), attempt)
    assert found.outcome == "failed"
    assert "and must not" not in (found.sign or "")
