"""What chapter 00 asks, and which answers pass."""

import math

import pytest

from smalearn.course.exercises import evaluate, registry

E4 = math.exp(4)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (E4 / (4 * E4 + 24), "passed"),
        (55 / (4 * 55 + 24), "passed"),
        (0.225, "passed"),
        (E4 / (4 * E4 + 28), "failed"),  # 28 others: they are 28 with the four
        (0.228, "failed"),
        (0.23, "failed"),
    ],
)
def test_a_share_is_told_from_one_with_other_numbers_of_words(answer, outcome):
    assert evaluate(registry()["0.2"], lambda: answer).outcome == outcome
