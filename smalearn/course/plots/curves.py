"""Costs as pictures: curves on two logarithmic axes, and the bars of all orders of a contraction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn._checks import ShapeError
from smalearn.course.plots.style import GREY, PALE, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from smalearn.contractions import Order

__all__ = ["costs", "order_costs"]

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

    Args:
        curves: label -> (sizes, costs), numbers above 0; lines differ in colour, dashes and marker.
        ax: where to draw; a new figure if None.
        title: of the axes.
        slopes: exponents k of thin reference lines, which start at the smallest size and half of the smallest cost.

    Returns:
        The axes: one line for each curve, then one for each slope, each named at its right end.

    Raises:
        ShapeError: a curve has not as many costs as sizes, or none.
        ValueError: there is no curve, or a number is not finite or not above 0.

    Example:
        >>> costs({"quadratic": ([64, 128], [4096, 16384])}, slopes=[2])
    """
    points = {label: _points(label, *curve) for label, curve in curves.items()}
    if not points:
        raise ValueError("costs: curves, expected at least one, got none")
    ax = own_axes(ax, 5.5, 3.6)
    ax.set(yscale="log", xlabel="length T", ylabel="cost", title=title or "")
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


def order_costs(
    orders: Sequence[Order], ax: Axes | None = None, *, title: str | None = None, highlight: Collection[str] = ()
) -> Axes:
    """Multiply-accumulates of all orders of a contraction as bars on a logarithmic axis, in the given order.

    Args:
        orders: as `contractions.orders` returns them, cheapest first.
        ax: where to draw; a new figure if None.
        title: of the axes.
        highlight: names of orders to draw in colour, bold.

    Returns:
        The axes; `ax.patches` are the bars, the first order's on top.

    Raises:
        ValueError: there is no order, or none of a highlighted name.
    """
    names = [order.name for order in orders]
    if not names:
        raise ValueError("order_costs: orders, expected at least one, got none")
    for name in highlight:
        if name not in names:
            raise ValueError(f"order_costs: highlight, expected some of {', '.join(names)}, got {name!r}")
    ax = own_axes(ax, 5.5, 0.9 + 0.24 * len(names))
    macs = [order.macs for order in orders]
    colours = {name: f"C{number}" for number, name in enumerate(highlight)}
    bars = ax.barh(range(len(names)), macs, height=0.7, color=[colours.get(name, PALE) for name in names])
    ax.bar_label(bars, [f"{cost:,}" for cost in macs], padding=4, fontsize=9)
    ax.set(xscale="log", xlabel="multiply-accumulates", title=title or "")
    ax.set_yticks(range(len(names)), names)
    # A bar on a logarithmic axis has no natural start: the power of ten below half the smallest.
    ax.set_xlim(10 ** np.floor(np.log10(min(macs) / 2)), None)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in highlight else "normal")
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
