"""How sure is a difference? Runs differ by their seeds, so a difference has an interval, and a sign that is said."""

import math
import statistics
from collections.abc import Sequence

__all__ = ["interval", "relative_change", "slope_interval"]

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""The 97.5 % quantiles of Student's t for 1, 2, 3, … degrees of freedom."""


def relative_change(errors: Sequence[float], standard: Sequence[float]) -> list[float]:
    """(e - e_standard) / e_standard for each seed: negative is better, as an error is.

    Args:
        errors: of one seed after the other.
        standard: of the same seeds.

    Returns:
        One number for each seed.

    Raises:
        ValueError: there are not as many of one as of the other, or an error of the standard is not positive.

    Source:
        Kuang et al. 2025, appendix J, who call it relative improvement.
    """
    if len(errors) != len(standard):
        raise ValueError(f"relative_change: {len(errors)} errors need as many of the standard, got {len(standard)}")
    if not all(value > 0 for value in standard):
        raise ValueError(f"relative_change: errors of the standard must be positive, got {min(standard)}")
    return [(error - value) / value for error, value in zip(errors, standard, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean, by Student's t.

    Args:
        values: at least two, such as one for each seed; from the 17th on, the quantile of 16 is used.

    Returns:
        Its ends.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(values) < 2:
        raise ValueError(f"interval: values must be at least two, got {len(values)}")
    half = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def slope_interval(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the slope of the line of least squares.

    Args:
        x: at least three, not all equal, such as the horizon of each run.
        y: as many.

    Returns:
        Its ends.

    Raises:
        ValueError: there are fewer than three, or x and y do not fit, or all x are equal.
    """
    if len(x) < 3 or len(x) != len(y) or len(set(x)) < 2:
        raise ValueError(f"slope_interval: expected three or more points, not all at one x, got {len(x)} and {len(y)}")
    slope, offset = statistics.linear_regression(x, y)
    rest = sum((b - slope * a - offset) ** 2 for a, b in zip(x, y, strict=True)) / (len(x) - 2)
    centre = statistics.fmean(x)
    half = _student(len(x) - 2) * math.sqrt(rest / sum((a - centre) ** 2 for a in x))
    return slope - half, slope + half


def _student(freedom):
    """The quantile; a little too large beyond the table."""
    return STUDENT[min(freedom, len(STUDENT)) - 1]
