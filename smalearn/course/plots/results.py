"""Pictures of what `smalearn bench` has measured: times of all implementations, and growth with the length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from smalearn.course.plots.curves import costs
from smalearn.course.plots.style import INK, PALE, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["growth", "times"]


def times(contest: Mapping, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Median times of a benchmark as bars, the fastest on top; ours are coloured.

    The thin line on a bar is the middle half of the samples. A peer is labelled with its time over that of the first
    of ours. An implementation that was absent, or wrong, has no bar.

    Args:
        contest: a member of `contests` in a result of `smalearn bench linear-attention` or `smalearn bench ssd`.
        ax: where to draw; a new figure if None.
        title: of the axes; the benchmark's problem if None.

    Returns:
        The axes; `ax.patches` are the bars, from top to bottom.

    Raises:
        ValueError: nothing was timed.

    Example:
        >>> times({"problem": "p", "speedups": {}, "contestants": {"a": {"seconds": [0.1, 0.2, 0.4]}}})
    """
    samples = {name: entry["seconds"] for name, entry in contest["contestants"].items() if "seconds" in entry}
    if not samples:
        raise ValueError("times: contest, expected a contestant that was timed, got none")
    quartiles = {name: 1e3 * np.percentile(seconds, [25, 50, 75]) for name, seconds in samples.items()}
    names = sorted(samples, key=lambda name: quartiles[name][1])
    ours = [name for name in samples if name in contest["speedups"]]
    colours = {name: f"C{number}" for number, name in enumerate(ours)}
    low, medians, high = np.array([quartiles[name] for name in names]).T
    ax = own_axes(ax, 6.5, 1 + 0.32 * len(names))
    ax.barh(range(len(names)), medians, height=0.7, color=[colours.get(name, PALE) for name in names])
    ax.hlines(range(len(names)), low, high, colors=INK, linewidth=1)
    labels = [_short(median, 3) + " ms" for median in medians]
    if ours:
        ratios = medians / quartiles[ours[0]][1]
        labels = [
            text if name in ours else f"{text}, {_short(ratio, 2)} ×"
            for name, text, ratio in zip(names, labels, ratios, strict=True)
        ]
    for place, (end, text) in enumerate(zip(high, labels, strict=True)):
        ax.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    title = contest["problem"].replace(": ", "\n") if title is None else title
    ax.set(xlabel="milliseconds", title=title)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlim(0, 1.3 * high.max())  # room for the numbers behind the bars
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in ours else "normal")
    return ax


def growth(part: Mapping, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Median times against the length T on two logarithmic axes, over a thin line of slope 1.

    Args:
        part: `growth` in a result of `smalearn bench linear-attention` or `smalearn bench ssd`.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes: one line for each of those timed, then the line of slope 1, each named at its right end.

    Example:
        >>> growth({"lengths": [1, 2], "seconds": {"clone": [[0.1, 0.2, 0.3], [0.4]]}})
    """
    medians = {name: [np.median(seconds) for seconds in samples] for name, samples in part["seconds"].items()}
    ax = costs({name: (part["lengths"], seconds) for name, seconds in medians.items()}, ax, title=title, slopes=[1])
    ax.set_ylabel("seconds")
    return ax


def _short(number: float, digits: int) -> str:
    """Write a number with so many digits, and zeros."""
    return f"{float(f'{number:.{digits}g}'):,.10g}"
