"""Blocks of a matrix over time, their singular values, and other curves that fall or rise by decades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn._checks import ShapeError
from smalearn.course.plots.curves import DASHES, MARKERS
from smalearn.course.plots.matrices import heatmap, real_matrix
from smalearn.course.plots.style import GREY, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["decades", "outlined", "spectra"]

Span = tuple[int, int]
FLOOR = 1e-17  # smaller singular values are drawn here, zero among them


def outlined(
    M: object, outlines: Mapping[str, tuple[Span, Span]], ax: Axes | None = None, *, title: str | None = None
) -> Axes:
    """Picture of a matrix, as `heatmap` draws it, with some of its blocks outlined and named.

    `outlines` is name -> ((first row, end), (first column, end)), each end excluded as in a slice; their colours are
    those of `spectra`.
    """
    from matplotlib.patches import Rectangle

    shape = real_matrix("outlined", M).shape
    for name, spans in outlines.items():
        if not all(0 <= first < end <= size for (first, end), size in zip(spans, shape, strict=True)):
            raise ValueError(f"outlined: block {name!r} must be a part of {shape}, not empty, got {spans}")
    ax = heatmap(M, ax, title=title)
    for number, (name, ((top, bottom), (left, right))) in enumerate(outlines.items()):
        corner, width, height = (left - 0.5, top - 0.5), right - left, bottom - top
        ax.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=f"C{number}", linewidth=2.5, label=name))
        middle = left - 0.5 + width / 2, top - 0.5 + height / 2
        box = {"facecolor": "white", "edgecolor": f"C{number}", "boxstyle": "round,pad=0.2"}
        ax.text(*middle, name, ha="center", va="center", fontsize=9, bbox=box)
    return ax


def spectra(matrices: Mapping[str, object], ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Singular values of some matrices on a logarithmic axis, each divided by its largest: a rank is a cliff.

    A dotted line marks the rounding error of double precision; ratios below 1e-17 are drawn there.
    """
    from matplotlib.ticker import MaxNLocator

    if not matrices:
        raise ValueError("spectra: matrices, expected at least one, got none")
    ratios = {name: _ratios(name, M) for name, M in matrices.items()}
    ax = decades({name: (range(1, len(y) + 1), y) for name, y in ratios.items()}, ax, title=title)
    ax.set(xlabel="singular value number", ylabel="size, largest = 1", ylim=(FLOOR / 3, 5))
    ax.axhline(np.finfo(float).eps, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return ax


def decades(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], ax: Axes | None = None, *, title: str | None = None
) -> Axes:
    """Curves name -> (x, y) on a logarithmic axis over a linear one, where exponential growth is a straight line.

    A y that is not finite or not above 0 is left out.
    """
    for name, (x, y) in curves.items():
        if len(x) != len(y):
            raise ShapeError(f"decades: curve {name!r} needs one y for each x, got {len(x)} and {len(y)}")
    ax = own_axes("decades", ax, (4.6, 3.4), title)
    for number, (name, (x, y)) in enumerate(curves.items()):
        y = np.asarray(y, dtype=float)
        visible = np.where(np.isfinite(y) & (y > 0), y, np.nan)
        style = {"marker": MARKERS[number % len(MARKERS)], "linestyle": DASHES[number % len(DASHES)]}
        ax.plot(x, visible, color=f"C{number}", linewidth=1, markevery=max(1, len(x) // 12), label=name, **style)
    ax.set(yscale="log")
    ax.grid(True)
    ax.legend(fontsize=9)
    return ax


def _ratios(name: str, M: object) -> np.ndarray:
    """Singular values over the largest, at least FLOOR."""
    values = real_matrix("spectra", M)
    if not np.isfinite(values).all() or not values.any():
        raise ValueError(f"spectra: matrix {name!r} must be finite and not zero")
    sizes = np.linalg.svd(values, compute_uv=False)
    return np.maximum(sizes / sizes[0], FLOOR)
