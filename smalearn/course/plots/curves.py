"""Costs as pictures: curves on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn._checks import ShapeError
from smalearn.course.plots.style import GREY, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = ["costs"]

MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")


def costs(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ax: Axes | None = None,
    *,
    title: str | None = None,
    slopes: Sequence[float] = (),
) -> Axes:
    """Cost against size on two logarithmic axes, where cost = c · size^k is a line of slope k.

    `curves` is label -> (sizes, costs), each named at its right end; `slopes` are exponents k of thin reference lines,
    which start at the smallest size and half of the smallest cost.
    """
    points = {label: _points(label, *curve) for label, curve in curves.items()}
    if not points:
        raise ValueError("costs: curves, expected at least one, got none")
    ax = own_axes("costs", ax, (5.5, 3.6), title)
    ax.set(yscale="log", xlabel="length T", ylabel="cost")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:,.10g}")
    ax.grid(True)
    lines = []
    for number, (label, (sizes, values)) in enumerate(points.items()):
        dash, marker = DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]
        lines += ax.plot(sizes, values, dash, marker=marker, color=f"C{number}", label=label)
    ends = np.array(
        [min(sizes.min() for sizes, _ in points.values()), max(sizes.max() for sizes, _ in points.values())]
    )
    lowest = min(values.min() for _, values in points.values()) / 2
    for slope in slopes:
        guide = lowest * (ends / ends[0]) ** slope
        lines += ax.plot(ends, guide, color=GREY, linewidth=1, label=f"slope {slope:g}", zorder=1)
    _name_ends(ax, lines)
    return ax


def _points(label: str, sizes: Sequence[float], values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """A checked curve as two arrays."""
    sizes, values = np.asarray(sizes, dtype=float), np.asarray(values, dtype=float)
    if sizes.ndim != 1 or sizes.shape != values.shape or not sizes.size:
        raise ShapeError(f"costs: curve {label!r} needs one cost a size, got shapes {sizes.shape} and {values.shape}")
    for numbers in (sizes, values):
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if wrong.size:
            raise ValueError(f"costs: curve {label!r} needs finite numbers above 0 on a log scale, got {wrong[0]:g}")
    return sizes, values


def _name_ends(ax: Axes, lines: list[Line2D]) -> None:
    """Write each line's label right of its last point, apart from its neighbours and joined to the point."""
    ax.autoscale_view()
    lines = sorted(lines, key=lambda line: line.get_ydata()[-1])
    ends = [line.get_xydata()[-1] for line in lines]
    heights = ax.transData.transform(ends)[:, 1] * 72 / ax.figure.dpi
    # Labels pushed up by those below, and down by those above: halfway between is as far apart, and nearer.
    ranks = 13 * np.arange(len(lines))
    raised, lowered = np.maximum.accumulate(heights - ranks), np.minimum.accumulate((heights - ranks)[::-1])[::-1]
    for line, end, shift in zip(lines, ends, ranks + (raised + lowered) / 2 - heights, strict=True):
        leader = {"arrowstyle": "-", "color": line.get_color(), "shrinkA": 0, "shrinkB": 4}
        ax.annotate(
            line.get_label(), end, (18, shift), textcoords="offset points", va="center", fontsize=9, arrowprops=leader
        )
