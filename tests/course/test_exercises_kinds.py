"""Exercises that ask for something else than a function of tensors: predictions, lines of proofs, breaks, goals."""

import dataclasses
from decimal import Decimal

import pytest
import torch

from smalearn.course.exercises import Exercise, case, check, evaluate, registry, report, verify
from smalearn.course.exercises.card import card


def letters():
    """Which of a, b and c it is: "b".

    Hint: Not the first.

    Hint: Not the last.
    """
    return "b"


def sevens(least):
    """A multiple of seven from `least` on.

    Hint: There are many.

    Hint: One in seven.
    """
    return least + -least % 7


def half_square(x):
    """The line between Σ_i Σ_(j ≤ i) x_i x_j and ((Σ x)² + Σ x²) / 2, by a running sum.

    Hint: Sum over j first.

    Hint: The inner sum is a running sum.
    """
    return x @ x.cumsum(0)


def no_seven(answer, least):
    if answer % 7:
        return "this is no multiple of seven"
    return "" if answer >= least else f"this is below {least}"


COMMON = {"claim": "lecture 1", "level": 1, "minutes": 3}
PREDICT = Exercise(
    id="kinds.predict",
    title="Which letter",
    solution=letters,
    oracle=lambda: "b",
    kind="predict",
    wrong={"a comes before it": lambda: "a", "c comes after it": lambda: "c"},
    **COMMON,
)
OPEN = Exercise(
    id="kinds.open",
    title="Sevens",
    solution=sevens,
    cases=lambda randn: [(1,), (14,), (300,)],
    refuse=no_seven,
    kind="open",
    reached=lambda answer, least: f"{answer - least} too many",
    wrong={"the number itself": lambda n: n + 1, "zero": lambda n: 0, "below": lambda n: n - n % 7 - 7},
    **COMMON,
)
BREAK = dataclasses.replace(OPEN, id="kinds.break", kind="break", reached=None)
PROVE = Exercise(
    id="kinds.prove",
    title="A line",
    solution=half_square,
    cases=lambda randn: [(randn(n),) for n in (1, 2, 5)],
    oracle=lambda x: sum(x[i] * x[j] for i in range(len(x)) for j in range(i + 1)),
    kind="prove",
    wrong={
        "the diagonal is counted once more": lambda x: x @ x.cumsum(0) + x @ x,
        "this is the whole square": lambda x: x.sum() ** 2,
        "this is half of the square": lambda x: x.sum() ** 2 / 2,
    },
    **COMMON,
)


@pytest.mark.parametrize("exercise", [PREDICT, OPEN, BREAK, PROVE], ids=lambda exercise: exercise.kind)
def test_each_kind_can_be_told_and_its_label_names_it(exercise):
    assert verify(exercise) == []
    assert exercise.label == f"●○○ · 3 min · {exercise.kind}"


@pytest.mark.parametrize(
    ("exercise", "attempt", "text"),
    [
        (PREDICT, lambda: "b", "✓ kinds.predict Which letter: as you predicted"),
        (PROVE, lambda x: (x * x.cumsum(0)).sum(), "✓ kinds.prove A line: 3 instances hold (seed 0)"),
        (BREAK, sevens, "✓ kinds.break Sevens: 3 counterexamples hold (seed 0)"),
        (OPEN, sevens, "✓ kinds.open Sevens: 3 goals reached (seed 0)"),
    ],
)
def test_a_success_is_said_in_the_words_of_its_kind(exercise, attempt, text):
    assert report.render(evaluate(exercise, attempt)) == text


@pytest.mark.parametrize(
    ("guess", "sentence", "misconception"),
    [("c", "It is another", "c comes after it"), ("z", "It is another", None), (3, "Wrong type: ", None)],
)
def test_a_wrong_prediction_is_not_told_the_answer(guess, sentence, misconception):
    result = evaluate(PREDICT, lambda: guess)
    assert (result.outcome, result.misconception, result.sign) == ("failed", misconception, None)
    assert result.problem.sentence.startswith(sentence)
    for text in (report.render(result), card(result, [], "")):
        assert "'b'" not in text
        assert '"b"' not in text
        assert "expected a string" in text or "expected" not in text
        assert misconception is None or misconception[1:] in text


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (100, "That is too little"),
        (1000, "That is too much"),
        (float("inf"), "That is too much"),
        (570, "That is too much"),  # a tenth of what is right, not of what is guessed
        (560, None),
        (100 + 0j, "Wrong type"),
        (complex("inf"), "Wrong type"),
        (torch.tensor(1j), "Wrong type"),
        (torch.tensor([520.0, 1.0]), "Wrong type"),
        (Decimal(520), None),
    ],
)
def test_a_number_is_predicted_within_its_tolerance(guess, said):
    result = evaluate(registry()["7.4"], lambda: guess)
    assert (result.problem and result.problem.sentence.partition(": ")[0]) == said


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (lambda n: n, "This is no multiple of seven"),
        (lambda n: 7, "This is below 14"),
        (lambda n: "seven", "The answer has not the form that is asked for: TypeError: "),
    ],
)
def test_what_reaches_no_goal_is_told_why(attempt, reason):
    result = evaluate(OPEN, attempt)
    assert result.outcome == "failed"
    assert result.problem.sentence.startswith(reason)


def test_what_an_open_answer_reaches_stands_beside_ours(capsys):
    check(OPEN, lambda least: 301)
    assert "yours reaches 1 too many; ours 1 too many" in capsys.readouterr().out


def test_an_answer_that_ends_the_program_is_refused():
    class Sneaky(int):
        def __mod__(self, other):
            raise SystemExit

    assert evaluate(OPEN, lambda n: Sneaky(n)).outcome == "failed"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "guess"}, "kind must be one of write, predict, prove, break, open, got 'guess'"),
        ({"refuse": None}, "oracle must be callable, got NoneType"),
        ({"refuse": None, "oracle": sevens}, "one of the kind 'open' needs refuse"),
        ({"oracle": sevens}, "there must be oracle or refuse, not both"),
    ],
)
def test_a_kind_without_its_parts_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(OPEN, **changed)


def test_a_refused_answer_is_a_case_to_look_at(capsys):
    check(OPEN, lambda n: n)
    assert case(OPEN).arguments == {"least": 1}


def test_a_cheapest_order_is_cheapest_among_all_orders():
    from smalearn.contractions import orders

    exercise = registry()["1.4"]
    for (sizes,) in exercise.draw():
        macs = orders("TN, SN, TS, SP -> TP", sizes)[0].macs
        assert exercise.reached(exercise.solution(sizes), sizes) == f"{macs:,} multiply-adds"


def _key(cups, weights, beta=2.0):
    k = torch.zeros(cups, dtype=torch.float64)
    for cup, weight in weights.items():
        k[cup] = weight
    return k / k.norm(), beta


def order(*steps):
    return lambda sizes: list(steps)


def scores(number):
    return lambda length: torch.full((length,), number)


def axes(L, *rows):
    """Rows of the identity, in the place of points."""
    return torch.eye(len(L)).double()[list(rows)]


@pytest.mark.parametrize(
    ("id", "answer", "reason"),
    [
        ("1.4", order("TN, SN, TS -> TS"), "A step has the form"),
        ("1.4", order("TN, NP -> TP"), "there is no operand NP at that time"),
        ("1.4", order("TN, SN -> S"), "must keep the axes ST"),
        ("1.4", order(), "more than one operand is left"),
        ("1.4", lambda sizes: torch.ones(2), "must be a list of steps"),
        ("10.1", lambda L, R: (axes(L, 0)[0], axes(L, 0)), "and X (2, 2), one point in a row; got (2,)"),
        ("10.1", lambda L, R: (2 * L[:, 0], axes(L, 0, 1)), "must have length 1: yours have 2, 1, 1"),
        ("10.1", lambda L, R: (axes(L, 0)[0], axes(L, 1, 1)), "the two points are the same"),
        ("10.1", lambda L, R: ("x", "X"), "the query x and the points X must be tensors"),
        ("10.1", lambda L, R: (L[:, 0], torch.stack([R[:, 0], -R[:, 0]])), "since L^T x is not 0 but has length 1"),
        ("10.1", lambda L, R: torch.eye(len(L)), "return two tensors"),
        ("11.5", scores(0.0), "right on these scores"),
        ("11.5", lambda length: torch.zeros(length).double(), "float32 tensor"),
        ("11.5", scores(1e30), "between -1000 and 1000"),
        ("11.5", scores(torch.inf), "finite"),
        ("11.5", lambda length: torch.tensor([0.0, 0.0, 3.0]).repeat(3)[-length:], "no score is above the anchor"),
        ("11.5", lambda length: torch.tensor([80.0, 80.0, 0.5]).repeat(3)[-length:], "only 79.5 above the anchor"),
        ("8.6", lambda cups, i, j: _key(cups, {i: 1, j: -1}, 0.5), "β = 0.5 takes each cup only 25.0% of the way"),
        ("8.6", lambda cups, i, j: _key(cups, {i: 1, j: 1}), "two equal weights leave x_i − x_j alone"),
        ("8.6", lambda cups, i, j: _key(cups, {i: 1, j: -3}), "one cup has more weight than the other"),
        ("8.6", lambda cups, i, j: _key(cups, {j: 1}), "a key along one cup changes that cup alone"),
        ("8.6", lambda cups, i, j: _key(cups, {0: 1, 1: -1}), "the key has a weight on cup 1, counted from 0"),
        ("8.6", lambda cups, i, j: (torch.eye(cups), 2.0), "this is a matrix"),
        ("8.6", lambda cups, i, j: (torch.zeros(cups), 2.0), "it is 0 everywhere"),
        ("8.6", lambda cups, i, j: (2 * _key(cups, {i: 1, j: -1})[0], 2.0), "has norm 2: divide it by its norm"),
        ("8.6", lambda cups, i, j: _key(cups, {i: 1, j: -1}, -2.0), "beta must be from 0 to 2, got -2"),
        ("8.6", lambda cups, i, j: torch.ones(cups), "the answer must be a pair"),
        ("8.6", lambda cups, i, j: ("key", 2.0), "the answer must be a pair"),
    ],
)
def test_what_breaks_nothing_or_reaches_no_goal_is_told_why(id, answer, reason):
    assert reason.lower() in evaluate(registry()[id], answer).problem.sentence.lower()


@pytest.mark.parametrize("guess", [7, 7.0, torch.tensor(7), torch.tensor(7.0)])
def test_a_known_number_is_known_in_any_dtype(guess):
    """The known answer is 7.0, the typed one may be 7."""
    assert evaluate(registry()["8.1"], lambda: guess).misconception.startswith("this is 4 + 3")


@pytest.mark.parametrize("guess", [True, 10**400, -(10**400), float("nan"), float("inf"), "7", [7]])
def test_other_guesses_are_not_taken_for_numbers(guess):
    assert evaluate(registry()["8.1"], lambda: guess).misconception is None


def test_an_answer_that_once_passed_is_wrong():
    def merged(Y_1, a, Y_2, b):
        return Y_1 + (Y_2 - Y_1) / (1 + (a - b).exp())[:, None], a + (b - a).exp().log1p()

    assert evaluate(registry()["11.6"], merged).outcome == "failed"


def test_a_key_may_be_a_list():
    def swap(cups, i, j):
        k, beta = _key(cups, {i: 1, j: -1})
        return [k.tolist(), int(beta)]

    assert evaluate(registry()["8.6"], swap).outcome == "passed"
