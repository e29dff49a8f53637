"""A question has the answer that its record allows, and none beyond: thresholds, intervals, reported seeds."""

import math
import statistics

import pytest

from experiments import charlm, icl_regression, recall, recall_stream
from experiments.grid import grid
from experiments.icl_regression_questions import QUESTIONS as ICL
from experiments.recall_stream_questions import QUESTIONS as STREAM
from smalearn.course.ch07.recall_questions import QUESTIONS as RECALL
from smalearn.course.ch11.charlm_questions import QUESTIONS as CHARLM
from smalearn.course.results import (
    STUDENT,
    UNDECIDED,
    Question,
    answer,
    answers,
    interval,
    relative_change,
    slope_interval,
)

ASKED = Question("A, new", "A, old", "lower", "the same", "higher")


def runs(new, old):
    """Records of a model and of another, seed 1 and so on; seed 0, which chose the rate, says something else."""
    found = {}
    for model, values in (("A, new", new), ("A, old", old)):
        for seed, value in enumerate([100.0 if model == "A, new" else -100.0, *values]):
            found[f"{model}, lr 0.01, seed {seed}"] = {"seed": seed, "loss": value}
    return found


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ([1.9, 1.91, 1.89], "lower"),
        ([2.1, 2.11, 2.09], "higher"),
        ([2.0, 2.001, 1.999], "the same"),
        ([1.99, 1.991, 1.989], "the same"),  # lower with every seed, by less than the margin
        ([1.96, 1.961, 2.03], UNDECIDED),  # the interval has 0
        ([1.98, 1.985, 1.976], UNDECIDED),  # lower for sure, but the mean is within the margin and the interval is not
    ],
)
def test_the_sentence_is_that_of_the_interval(new, sentence):
    found = answer(ASKED, runs(new, [2.0, 2.0, 2.0]), "loss", margin=0.02)
    assert found.sentence == sentence
    assert found.mean == pytest.approx(sum(new) / 3 - 2)
    assert found.seeds == 3


def test_models_are_compared_seed_by_seed():
    """Seeds differ by 1, the models by 0.1 with each: told apart by pairs, not by means."""
    found = answer(ASKED, runs([1.0, 2.0, 3.0], [1.1, 2.1, 3.1001]), "loss", margin=0.02)
    assert found.sentence == "lower"
    assert found.ends[1] < -0.099


def test_other_seeds_are_no_comparison():
    with pytest.raises(ValueError, match=r"answer: seeds of A, new \[1, 2\] and of A, old \[1, 2, 3\] differ"):
        answer(ASKED, runs([1.0, 2.0], [1.0, 2.0, 3.0]), "loss", margin=0.02)
    with pytest.raises(ValueError, match="interval: values must be at least two, got 1"):
        answer(ASKED, runs([1.0], [1.0]), "loss", margin=0.02)


def test_answers_are_lines_and_wait_for_their_models():
    other = Question("A, new", "B, not yet", "", "", "")
    assert answers([ASKED, other], runs([1.9, 1.91, 1.89], [2.0] * 3), "loss", margin=0.02).splitlines() == [
        "A, new, against A, old:",
        "  -0.100 (-0.125 to -0.075, 3 seeds). lower",
    ]


@pytest.mark.parametrize(
    ("experiment", "questions"), [(charlm, CHARLM), (icl_regression, ICL), (recall, RECALL), (recall_stream, STREAM)]
)
def test_what_is_asked_is_run(experiment, questions):
    models = {name.partition(", lr ")[0] for name in grid(experiment.FULL)}
    for question in questions:
        assert {question.model, question.against} <= models
        assert len({question.less, question.same, question.more}) == 3


def test_the_quantiles_are_those_of_student():
    """P(|t| ≤ q) = 0.95, by summing the density; with one degree of freedom q = tan(0.475 π)."""
    assert STUDENT[0] == pytest.approx(math.tan(0.475 * math.pi), abs=5e-4)
    for freedom, quantile in enumerate(STUDENT, 1):
        scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        width = 2 * quantile / 20_000
        places = (-quantile + (k + 0.5) * width for k in range(20_000))
        inside = sum(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * width for x in places)
        assert inside == pytest.approx(0.95, abs=6e-5)  # three decimals; one more in the last is 1e-4


def test_intervals_of_few_points_and_of_many():
    """What they are of three, a claim of chapter 11 says."""
    assert interval([3.0, 3.0]) == (3.0, 3.0)
    _, high = interval([0.0, 1.0] * 20)  # more than the table has: a little too wide, never too narrow
    assert high - 0.5 > 2.02 * statistics.stdev([0.0, 1.0] * 20) / math.sqrt(40)
    with pytest.raises(ValueError, match="relative_change: 1 errors need as many of the standard, got 2"):
        relative_change([1.0], [1.0, 2.0])
    assert slope_interval([1, 2, 3], [2, 4, 6]) == pytest.approx((2, 2))
    for x, y in (([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 1, 1], [1, 2, 3])):
        with pytest.raises(ValueError, match="slope_interval: expected three or more points, not all at one x, got "):
            slope_interval(x, y)
