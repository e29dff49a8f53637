"""Intervals are those of the textbook, and negative is better."""

import math
import statistics

import pytest

from smalearn.course.results import STUDENT, interval, relative_change, slope_interval

HEIGHTS = [1.0, 2.0, 4.0, 4.5, 7.0]


def test_negative_is_better():
    assert relative_change([0.9, 2.2], [1.0, 2.0]) == pytest.approx([-0.1, 0.1])
    with pytest.raises(ValueError, match="relative_change: 1 errors need as many of the standard, got 2"):
        relative_change([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"relative_change: errors of the standard must be positive, got 0\.0"):
        relative_change([1.0], [0.0])


def test_the_quantiles_are_those_of_student():
    """P(|t| ≤ q) = 0.95, by summing the density; with one degree of freedom q = tan(0.475 π)."""
    assert STUDENT[0] == pytest.approx(math.tan(0.475 * math.pi), abs=5e-4)
    for freedom, quantile in enumerate(STUDENT, 1):
        scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        width = 2 * quantile / 20_000
        places = (-quantile + (k + 0.5) * width for k in range(20_000))
        inside = sum(scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2) * width for x in places)
        assert inside == pytest.approx(0.95, abs=6e-5)  # three decimals; one more in the last is 1e-4


def test_the_interval_of_a_mean():
    low, high = interval(HEIGHTS)
    assert (low + high) / 2 == pytest.approx(3.7)
    assert high - low == pytest.approx(2 * 2.776 * statistics.stdev(HEIGHTS) / math.sqrt(5))
    assert interval([3.0, 3.0]) == (3.0, 3.0)
    low, high = interval([0.0, 1.0] * 20)  # more than the table has: a little too wide, never too narrow
    assert high - 0.5 > 2.02 * statistics.stdev([0.0, 1.0] * 20) / math.sqrt(40)
    with pytest.raises(ValueError, match="interval: values must be at least two, got 1"):
        interval([1.0])


def test_the_interval_of_a_slope():
    x = [0.0, 1.0, 2.0, 3.0, 4.0]
    low, high = slope_interval(x, HEIGHTS)
    assert (low + high) / 2 == pytest.approx(1.45)  # Σ (x - 2) y / Σ (x - 2)²
    rest = sum((y - 3.7 - 1.45 * (a - 2)) ** 2 for a, y in zip(x, HEIGHTS, strict=True))
    assert high - low == pytest.approx(2 * 3.182 * math.sqrt(rest / 3 / 10))
    assert slope_interval([1, 2, 3], [2, 4, 6]) == pytest.approx((2, 2))
    for x, y in (([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 1, 1], [1, 2, 3])):
        with pytest.raises(ValueError, match="slope_interval: expected three or more points, not all at one x, got "):
            slope_interval(x, y)
