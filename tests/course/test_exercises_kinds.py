"""Exercises that ask for something else than a function of tensors: predictions, lines of proofs, breaks, goals."""

import dataclasses
import re
from decimal import Decimal

import pytest
import torch

from smalearn.course.exercises import case, check, evaluate, registry, report
from smalearn.course.exercises.card import card

EXERCISES = registry()
PREDICT, OPEN, BREAK, PROVE = (EXERCISES[id] for id in ("11.b", "8.6", "11.5", "3.a"))


@pytest.mark.parametrize(
    ("exercise", "text"),
    [
        (PREDICT, "as you predicted"),
        (PROVE, "4 instances hold (seed 0)"),
        (BREAK, "3 counterexamples hold (seed 0)"),
        (OPEN, "4 goals reached (seed 0)"),
    ],
)
def test_the_label_names_the_kind_and_a_success_is_said_in_its_words(exercise, text):
    assert report.render(evaluate(exercise, exercise.solution)) == f"✓ {exercise.id} {exercise.title}: {text}"
    assert exercise.label.endswith(f" min · {exercise.kind}")


@pytest.mark.parametrize(
    ("guess", "sentence", "misconception"),
    [("weights", "It is another", "each head has chosen"), ("z", "It is another", ""), (3, "Wrong type: ", "")],
)
def test_a_wrong_prediction_is_not_told_the_answer(guess, sentence, misconception):
    result = evaluate(PREDICT, lambda: guess)
    assert (result.outcome, result.sign) == ("failed", None)
    assert (result.misconception or "").startswith(misconception)
    assert bool(result.misconception) == bool(misconception)
    assert result.problem.sentence.startswith(sentence)
    for text in (report.render(result), card(result, [], "")):
        assert not re.search(r"['\"]scores", text)
        assert "expected a string" in text or "expected" not in text
        assert misconception[1:] in text


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
    result = evaluate(EXERCISES["7.4"], lambda: guess)
    assert (result.problem and result.problem.sentence.partition(": ")[0]) == said


def test_what_an_open_answer_reaches_stands_beside_ours(capsys):
    check(
        OPEN, lambda cups, i, j: [x.tolist() if isinstance(x, torch.Tensor) else x for x in OPEN.solution(cups, i, j)]
    )
    assert "yours reaches a swap of cups 1 and 4 among 5; ours" in " ".join(capsys.readouterr().out.split())


def test_an_answer_that_ends_the_program_is_refused():
    class Sneaky(str):
        def __deepcopy__(self, memory):
            raise SystemExit

    result = evaluate(OPEN, lambda *cups: Sneaky())
    assert result.outcome == "failed"
    assert result.problem.sentence.startswith("The answer has not the form that is asked for: SystemExit")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "guess"}, "kind must be one of write, predict, prove, break, open, got 'guess'"),
        ({"refuse": None}, "oracle must be callable, got NoneType"),
        ({"refuse": None, "oracle": print}, "one of the kind 'open' needs refuse"),
        ({"oracle": print}, "there must be oracle or refuse, not both"),
    ],
)
def test_a_kind_without_its_parts_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(OPEN, **changed)


def test_a_refused_answer_is_a_case_to_look_at(capsys):
    check(OPEN, lambda *cups: cups)
    assert case(OPEN).arguments == {"cups": 2, "i": 0, "j": 1}


def test_a_cheapest_order_is_cheapest_among_all_orders():
    from smalearn.contractions import orders

    exercise = EXERCISES["1.4"]
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
        ("1.4", order("TN, NP -> TP"), "there is no operand NP at that time"),
        ("1.4", order("TN, SN -> S"), "must keep the axes ST"),
        ("1.4", order(), "more than one operand is left"),
        ("10.1", lambda L, R: (axes(L, 0)[0], axes(L, 0)), "and X (2, 2), one point in a row; got (2,)"),
        ("10.1", lambda L, R: (axes(L, 0)[0], axes(L, 1, 1)), "the two points are the same"),
        ("10.1", lambda L, R: ("x", "X"), "the query x and the points X must be tensors"),
        ("10.1", lambda L, R: torch.eye(len(L)), "return two tensors"),
        ("11.5", scores(1e30), "between -1000 and 1000"),
        ("11.5", scores(torch.inf), "finite"),
        ("11.5", lambda length: torch.tensor([80.0, 80.0, 0.5]).repeat(3)[-length:], "only 79.5 above the anchor"),
        ("8.6", lambda cups, i, j: _key(cups, {i: 1, j: -3}), "one cup has more weight than the other"),
        ("8.6", lambda cups, i, j: _key(cups, {j: 1}), "a key along one cup changes that cup alone"),
        ("8.6", lambda cups, i, j: _key(cups, {0: 1, 1: -1}), "the key has a weight on cup 1, counted from 0"),
        ("8.6", lambda cups, i, j: (torch.eye(cups), 2.0), "this is a matrix"),
        ("8.6", lambda cups, i, j: (torch.zeros(cups), 2.0), "it is 0 everywhere"),
        ("8.6", lambda cups, i, j: torch.ones(cups), "the answer must be a pair"),
        ("8.6", lambda cups, i, j: ("key", 2.0), "the answer must be a pair"),
    ],
)
def test_what_breaks_nothing_or_reaches_no_goal_is_told_why(id, answer, reason):
    assert reason.lower() in evaluate(EXERCISES[id], answer).problem.sentence.lower()


@pytest.mark.parametrize("guess", [7, 7.0, torch.tensor(7), torch.tensor(7.0)])
def test_a_known_number_is_known_in_any_dtype(guess):
    """The known answer is 7.0, the typed one may be 7."""
    assert evaluate(EXERCISES["8.1"], lambda: guess).misconception.startswith("this is 4 + 3")


@pytest.mark.parametrize("guess", [True, 10**400, -(10**400), float("nan"), float("inf"), "7", [7]])
def test_other_guesses_are_not_taken_for_numbers(guess):
    assert evaluate(EXERCISES["8.1"], lambda: guess).misconception is None


def test_an_answer_that_once_passed_is_wrong():
    def merged(Y_1, a, Y_2, b):
        return Y_1 + (Y_2 - Y_1) / (1 + (a - b).exp())[:, None], a + (b - a).exp().log1p()

    assert evaluate(EXERCISES["11.6"], merged).outcome == "failed"
