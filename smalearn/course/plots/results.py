"""Picture of what `smalearn bench` has measured: the times of all implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from smalearn.course.plots.style import INK, PALE, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["times"]


def times(contest: Mapping, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Median times of a benchmark as bars, the fastest on top; ours are coloured.

    The thin line on a bar is the middle half of the samples. A peer is labelled with its time over that of the first
    of ours. An implementation that was absent, or wrong, has no bar. `contest` is a member of `contests` in a result of
    `smalearn bench linear-attention` or `smalearn bench ssd`.
    """
    samples = {name: entry["seconds"] for name, entry in contest["contestants"].items() if "seconds" in entry}
    if not samples:
        raise ValueError("times: contest, expected a contestant that was timed, got none")
    quartiles = {name: 1e3 * np.percentile(seconds, [25, 50, 75]) for name, seconds in samples.items()}
    names = sorted(samples, key=lambda name: quartiles[name][1])
    ours = [name for name in samples if name in contest["speedups"]]
    colours = {name: f"C{number}" for number, name in enumerate(ours)}
    low, medians, high = np.array([quartiles[name] for name in names]).T
    title = contest["problem"].replace(": ", "\n") if title is None else title
    ax = own_axes("times", ax, (6.5, 1 + 0.32 * len(names)), title)
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
    ax.set(xlabel="milliseconds")
    ax.set_yticks(range(len(names)), names)
    ax.set_xlim(0, 1.3 * high.max())  # room for the numbers behind the bars
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if name in ours else "normal")
    return ax


def _short(number: float, digits: int) -> str:
    """Write a number with so many digits, and zeros."""
    return f"{float(f'{number:.{digits}g}'):,.10g}"
