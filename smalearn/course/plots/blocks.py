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


def outlined(M: object, outlines: Mapping[str, tuple[Span, Span]], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Picture of a matrix, as `heatmap` draws it, with some of its blocks outlined and named.

    Args:
        M: (T, S) tensor or array of real numbers.
        outlines: name -> ((first row, end), (first column, end)), each end excluded as in a slice.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes; `ax.patches` are the outlines, in colours C0, C1, ..., those of `spectra`.

    Raises:
        ShapeError: M is not a matrix.
        ValueError: M is complex, or a block is empty or not within M.

    Example:
        >>> outlined(torch.eye(4), {"past to future": ((2, 4), (0, 2))})
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


def spectra(matrices: Mapping[str, object], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Singular values of some matrices on a logarithmic axis, each divided by its largest: a rank is a cliff.

    Args:
        matrices: name -> (T, S) tensor or array of real, finite numbers.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes: one line for each matrix, in colours C0, C1, ..., with a key; a dotted line marks the rounding error
        of double precision. Ratios below 1e-17 are drawn there.

    Raises:
        ShapeError: one of them is not a matrix.
        ValueError: there is no matrix, or one is complex, not finite or zero.

    Example:
        >>> spectra({"rank 1": torch.ones(4, 4), "rank 4": torch.eye(4)})
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
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Curves on a logarithmic axis over a linear one, where exponential growth is a straight line.

    Args:
        curves: name -> (x, y), as many of each; a y that is not finite or not above 0 is left out.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes: one line for each curve, in colours C0, C1, ..., with a key.

    Raises:
        ShapeError: a curve has not as many y as x.

    Example:
        >>> decades({"halved": ([0, 1, 2], [1.0, 0.5, 0.25])})
    """
    ax = own_axes(ax, 4.6, 3.4)
    for number, (name, (x, y)) in enumerate(curves.items()):
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        if x.ndim != 1 or x.shape != y.shape:
            raise ShapeError(f"decades: curve {name!r} needs one y for each x, got shapes {x.shape} and {y.shape}")
        visible = np.where(np.isfinite(y) & (y > 0), y, np.nan)
        style = {"marker": MARKERS[number % len(MARKERS)], "linestyle": DASHES[number % len(DASHES)]}
        ax.plot(x, visible, color=f"C{number}", linewidth=1, markevery=max(1, len(x) // 12), label=name, **style)
    ax.set(yscale="log", title=title)
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
