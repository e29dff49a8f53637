"""What is said of answers that our program gives with one thing changed: true, and silent where nothing fits."""

import dataclasses

import pytest
import torch
from demos import NOBODY

from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.variants import variants

EXERCISES = registry()


def bare(id):
    """An exercise whose known wrong answers are three that nobody gives."""
    return dataclasses.replace(EXERCISES[id], wrong=NOBODY)


def known(id, beginning):
    return next(function for sentence, function in EXERCISES[id].wrong.items() if sentence.startswith(beginning))


@pytest.mark.parametrize(
    ("id", "attempt", "said"),
    [
        pytest.param(
            "1.5",
            lambda N, P: -(-3 * N * P // (N + P + 1)) + 1,
            "this is what comes out if a quotient is rounded up",
            marks=pytest.mark.full,
        ),
        ("1.5", lambda N, P: 3 * N * P // (N + P) + 1, "this is what comes out without a term (1)"),
        (
            "2.4",
            lambda x, W: EXERCISES["2.4"].solution(x, W) * x.square().sum(1, True).exp(),
            "sign is turned round (x)",
        ),
        ("5.1", known("5.1", "your product includes"), "a loop begins one earlier"),
        pytest.param(
            "7.3",
            lambda X, dt, A_log, B, C, D, H: EXERCISES["7.3"].solution(X, dt, A_log, B, C, 0 * D, H),
            "without a term",
            marks=pytest.mark.full,
        ),
        ("A.2", lambda A, B: EXERCISES["A.2"].solution(A, B)[::-1], "they are items 1, 0"),
    ],
)
def test_one_change_is_named(id, attempt, said):
    result = evaluate(bare(id), attempt)
    assert result.outcome == "failed"
    assert said in result.sign


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("3.1", lambda Q, K, V: torch.sin(Q @ (K.mT @ V))),
        pytest.param("1.5", lambda N, P: 3 * N % 7 + P % 5, marks=pytest.mark.full),
        ("4.1", lambda x, gamma: x.square()),
    ],
)
def test_where_nothing_fits_nothing_is_said(id, attempt):
    assert "what comes out" not in (evaluate(bare(id), attempt).sign or "")


def test_arguments_have_the_learners_names():
    """The oracle of 8.5 calls beta `b`: one change of one factor is named once."""
    result = evaluate(bare("8.5"), lambda W, K, k, beta: beta**2 * (k - W.mT @ (K @ k)))
    assert result.sign == "this is what comes out with a factor that counts twice (beta)"


@pytest.mark.parametrize("id", ["1.5", "4.1", "6.3", "11.4", "12.12"])
def test_variants_are_other_programs(id):
    exercise = EXERCISES[id]
    found = list(variants(exercise))
    assert len(found) >= 5
    for sentence, function in found:
        assert not sentence.endswith(".")
        assert function is not exercise.solution


def test_a_known_wrong_answer_comes_first():
    sentence, function = next(iter(EXERCISES["4.1"].wrong.items()))
    result = evaluate(EXERCISES["4.1"], function)
    assert (result.misconception, result.sign) == (sentence, None)


def test_an_exercise_without_source_has_no_variants():
    space = {"torch": torch}
    exec("def total(x):\n    '''Sum.\n\n    Hint: a\n\n    Hint: b\n    '''\n    return x.sum() + 1", space)
    exercise = dataclasses.replace(bare("3.1"), solution=space["total"], oracle=lambda x: x.sum() + 1)
    assert list(variants(exercise)) == []


def test_of_the_oracle_only_changes_are_told_that_name_something():
    """Nobody has seen it: "if a quotient is a product" would speak of a quotient of its own."""
    exercise = EXERCISES["A.5"]
    told = [sentence for sentence, made in variants(exercise) if made.__name__ == exercise.oracle.__name__]
    assert exercise.oracle.__name__ != exercise.solution.__name__
    assert told
    assert all("(" in sentence or "in the place of" in sentence for sentence in told)
