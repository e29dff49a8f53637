"""What is found by calling a wrong program again: what it depends on, where its NaNs come from, when it is right."""

import dataclasses

import pytest
import torch
from demos import demo

from smalearn.course.exercises import evaluate
from smalearn.course.exercises.core import registry
from smalearn.course.exercises.origin import origin
from smalearn.course.exercises.probes import probe, zero
from smalearn.course.exercises.responses import growth, response
from smalearn.course.exercises.sizes import excess


def fading(x, a):
    """A sum that fades."""
    return torch.stack([sum((a[s + 1 : t + 1].prod() * x[s] for s in range(t)), x[t]) for t in range(len(x))])


FADING = demo(fading, lambda randn: ((randn(length, 3), randn(length).sigmoid()) for length in (2, 4, 5)))


def _failing(attempt):
    cases = FADING.draw(0)
    return {k: case for k, case in enumerate(cases, start=1) if not torch.allclose(attempt(*case), fading(*case))}


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda x, a: fading(x.flip(0), a).flip(0), "x[1]: in the right answer it depends on nothing"),
        (lambda x, a: fading(x, a) - x, "no row of your answer depends on x[t] of its own place t"),
        (lambda x, a: fading(x, torch.ones_like(a)), "is right, what it does to all others is not"),
        (lambda x, a: fading(x, a) + x, "is wrong, what it does to all others is right"),
        (lambda x, a: x, "row 1 of your answer does not change with x[0], and must"),
        (lambda x, a: fading(x.flip(1), a), "column 0 of your answer changes with x[..., 2], which it must not, and"),
    ],
)
def test_dependence(attempt, said):
    assert said in response(FADING, attempt, _failing(attempt))


def test_dependence_says_nothing_of_a_factor():
    assert response(FADING, lambda x, a: 2 * fading(x, a), _failing(lambda x, a: 2 * fading(x, a))) is None


def test_dependence_on_one_case_is_true_there():
    """What is said of a row and a cause holds if they are tried by hand."""

    def ahead(x, a):
        return fading(x, a) + x.roll(-1, 0) * 0.1

    found = response(FADING, ahead, _failing(ahead))
    x, a = FADING.draw(0)[1]
    other = x.clone()
    other[1] *= 0.5
    assert "row 0 of your answer changes with x[1]" in found
    assert not torch.equal(ahead(x, a)[0], ahead(other, a)[0])
    assert torch.equal(fading(x, a)[0], fading(other, a)[0])


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda x: x / (x - x), "the first NaN comes from"),
        (lambda x: (x * 0 + torch.inf) * 0, ": 0 · ∞"),
        (lambda x: x.cumsum(0) - x * torch.inf + x * torch.inf, ": ∞ − ∞"),
        (lambda x: torch.full_like(x, -torch.inf).softmax(0), ": a softmax over −∞ alone"),
        (lambda x: torch.full_like(x, torch.inf).softmax(0), ": a softmax over numbers with +∞ among them"),
        (lambda x: (x - 9).log(), ": log of a number below 0"),
        (lambda x: (1000 * x.abs()).exp(), ": e to the power of "),
        (lambda x: 1 / (x * 0), ": a division by 0"),
    ],
)
def test_origin(attempt, said):
    assert said in origin(attempt, (torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),))


def test_origin_is_the_first_line():
    """A NaN is passed on by many lines: the one that made it is named."""

    def attempt(x):
        zero = x - x
        share = x / zero * 0
        return (share + 1) * x

    assert origin(attempt, (torch.ones(3),)) == "the first NaN comes from `share = x / zero * 0`: 0 · ∞"
    assert origin(lambda x: x + 1, (torch.ones(3),)) is None
    assert origin(lambda x: torch.empty_like(x) + x, (torch.ones(3),)) is None  # nothing is stored: see `hole`


def pairs(length, block):
    return sum(s // block == t // block for t in range(length) for s in range(t + 1))


PAIRS = demo(pairs, lambda randn: [(4, 2), (5, 2), (6, 3), (7, 3), (9, 3), (8, 4)])


def test_growth():
    """By how much one more changes the right number, and the attempt's."""

    def square(length, block):
        return block * length

    found = growth(PAIRS, square, {1: (8, 4)})
    assert found == "from case 1, one more in length adds 1 to the right number, and adds 4 to yours"
    assert growth(PAIRS, lambda length, block: pairs(length, block) + 1, {1: (4, 2)}) is None
    rounded = registry()["1.5"]  # 4 for 2 and 3 features, and 7 for 10
    assert growth(rounded, lambda features, head_dim: features + head_dim, {3: (2, 3)}) is None


def test_excess():
    """By which product of sizes a number is off in every case."""
    cases = [(2, 3), (4, 3), (5, 7), (3, 2)]
    numbers = [
        (torch.tensor(n + t * d), torch.tensor(n)) for n, (t, d) in zip((9.0, 8.0, 5.0, 4.0), cases, strict=True)
    ]
    assert excess(("T", "N"), cases, numbers) == "your number is too large by T·N, in every case"
    shares = [(b / t, b) for (t, _), (_, b) in zip(cases, numbers, strict=True)]
    assert excess(("T", "N"), cases, shares) == "your number is the right one divided by T, in every case"
    assert excess(("T", "N"), cases, [(b + 1, b) for _, b in numbers]) is None


def test_ignored_is_not_coarse():
    """An argument that counts in steps, or by its sign, is not ignored."""
    assert "does not depend" not in str(probe(PAIRS, lambda length, block: (1 << length.bit_length()) + block))
    assert "does not depend on x" not in str(probe(FADING, lambda x, a: fading(x.sign(), a)))
    assert probe(PAIRS, lambda length, block: length) == "your answer does not depend on block"


def test_a_number_in_a_tensor_can_be_ignored():
    """A tensor without axes has nothing to flip, and is halved all the same."""
    exercise = dataclasses.replace(
        FADING,
        cases=lambda randn: [(randn(n, 2), torch.tensor(0.5, dtype=torch.float64)) for n in (2, 3, 4)],
        oracle=lambda x, a: a * x.sin(),
    )
    assert probe(exercise, lambda x, a: x.cos()) == "your answer does not depend on a"


def test_numbers_of_python_keep_their_digits():
    """A pair of floats whose first is exact: what is said is said of the second, and not of their order."""
    halves = registry()["3.4"]
    late = evaluate(halves, lambda log_a, s, border, t: (halves.solution(log_a, s, border, t)[0], log_a.sum().exp()))
    assert "item 0" not in (late.sign or "")
    narrow = evaluate(halves, lambda log_a, *ends: tuple(float(x) for x in halves.solution(log_a.float(), *ends)))
    assert narrow.outcome == "failed"
    assert "order" not in narrow.sign
    bounded = evaluate(halves, lambda log_a, *ends: halves.solution(log_a.clamp(min=-20), *ends))
    assert "digits" not in (bounded.sign or "")


def test_nothing_is_said_of_zeros_where_the_right_answer_is_none():
    """Where Q is 0 throughout the weights are 0/0, whatever is wrong with the keys; v matters all the same."""

    def weights(Q, K, v):
        return torch.cat([Q @ K.mT / (Q @ K.sum(0))[:, None], v.expand(len(Q), -1)], 1)

    exercise = demo(weights, lambda randn: ((randn(n, 2), randn(n, 2), randn(5)) for n in (2, 3, 4)))
    assert zero(exercise, lambda Q, K, v: weights(Q, K.abs(), v)) is None


def test_items_in_another_order():

    def both(x):
        return x.sum(0), x.prod(0), len(x)

    exercise = demo(both, lambda randn: [(randn(n, 5),) for n in (2, 3, 4)])
    said = "the items of your answer are right, but not their order: they are items 1, 0, 2"
    assert evaluate(exercise, lambda x: (x.prod(0), x.sum(0), len(x))).sign == said


@pytest.mark.parametrize("exercise", [e for e in registry().values() if e.kind == "predict"], ids=lambda e: e.id)
def test_a_wrong_prediction_gets_a_reason(exercise):
    """Numbers that nobody foresaw are told why they are too small or too large; words have all their sentences."""
    right = exercise.oracle()
    if isinstance(right, str):
        return
    for factor, word in ((0.87, "Too little: "), (1.17, "Too much: ")):
        found = evaluate(exercise, lambda guess=factor * right: guess)
        (why,) = (text for text in exercise._paragraphs if text.startswith(word))
        why = " ".join(why.split())[len(word) + 1 :].rstrip(".")
        told = found.problem.sentence
        assert found.misconception or (told.startswith(f"That is {word.lower()}") and told.endswith(why))
    assert "Too " not in exercise.statement


def test_what_another_case_denies_is_not_said():
    """Where all keys of a column are negative, ReLU lets no query matter; the right answer is not blind in general."""

    def relu(Q, K):
        return (Q @ K.relu().mT)[:, :1] * Q.sin()

    def cases(randn):
        yield randn(4, 3), -randn(4, 3).abs()
        for _ in range(2):
            yield randn(5, 3), randn(5, 3).abs()

    exercise = demo(relu, cases)
    attempt = lambda Q, K: (Q @ K.mT)[:, :1] * Q.sin()  # noqa: E731
    assert response(exercise, attempt, {1: exercise.draw(0)[0]}) is None
    alone = dataclasses.replace(exercise, cases=lambda randn: [next(cases(randn)) for _ in range(3)])
    assert "must not" in response(alone, attempt, {1: alone.draw(0)[0]})


def test_a_row_that_may_have_any_length_matters_all_the_same():
    """Entries shrink by different factors: the right answer changes with the direction of B[0]."""

    def unit(x, B):
        return x * torch.nn.functional.normalize(B, dim=1)[0]

    exercise = demo(unit, lambda randn: [(randn(4, 3), randn(4, 3)) for _ in range(3)])
    cases = dict(enumerate(exercise.draw(0), start=1))
    assert "must not" not in str(response(exercise, lambda x, B: x * B[0], cases))
    assert "must" in response(exercise, lambda x, B: x * B[1], cases)


def test_of_answers_that_are_not_finite_no_power_is_told():
    def oracle(x, a):
        return x * (1 + a[0])

    exercise = demo(oracle, lambda randn: [(randn(4, 3), torch.full((4,), a)) for a in (0.5, 0.0)])
    assert "halved" not in str(probe(exercise, lambda x, a: x * a[0].log()))


def test_what_has_zeros_on_its_diagonal_is_never_the_identity():
    def oracle(A, R):
        return torch.linalg.solve(torch.eye(len(A)) + A.tril(-1), R)

    exercise = demo(oracle, lambda randn: ((randn(n, n).tril(-1), randn(n, 2)) for n in (3, 4, 5)))
    assert "identity" not in str(probe(exercise, lambda A, R: R - A @ R))

    def square(A, R):
        return A @ A @ R

    whole = demo(square, lambda randn: ((randn(n, n), randn(n, 2)) for n in (3, 4, 5)))
    assert "identity" in probe(whole, lambda A, R: A @ A.mT @ R)


def test_an_answer_much_smaller_than_the_right_one_depends_on_what_it_reads():
    def oracle(x, a):
        return x * a[:, None]

    exercise = demo(oracle, lambda randn: [(randn(4, 3), randn(4)) for _ in range(3)])
    tiny = lambda x, a: 1e-30 * (x + a[:, None] ** 3)  # noqa: E731
    assert "does not change" not in str(response(exercise, tiny, dict(enumerate(exercise.draw(0), start=1))))


def test_of_several_items_the_wrong_one_is_named():
    def oracle(x, a):
        return x, x.cumsum(0)

    exercise = demo(oracle, lambda randn: [(randn(4, 3), randn(4)) for _ in range(3)])
    found = response(exercise, lambda x, a: (x, x.flip(0).cumsum(0).flip(0)), {1: exercise.draw(0)[0]})
    assert "of item 1 of your answer changes with x[" in found
