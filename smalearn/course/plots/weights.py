"""Pictures of structured weights: entries, permutations of features, inclusions of families, errors of fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn._checks import ShapeError
from smalearn.course.plots.curves import DASHES, MARKERS
from smalearn.course.plots.matrices import DIVERGING, real_matrix
from smalearn.course.plots.style import GREY, INK, PALE, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fits", "gallery", "inclusion", "wires"]


def gallery(matrices: Mapping[str, object], captions: Sequence[str] = (), axes: Sequence[Axes] | None = None):
    """Matrices side by side, one panel each: negative red, positive blue, exact zeros grey.

    Args:
        matrices: title -> (m, n) tensor or array of real numbers, or anything with `dense()`, such as a weight.
        captions: a line under each, or none.
        axes: one for each matrix; a new figure if None.

    Returns:
        Array of the axes; `axes[i].images[0]` holds a matrix, its zeros masked.

    Raises:
        ShapeError: something is not a matrix, or the number of captions or of axes differs from that of the matrices.
        ValueError: there is no matrix, or one is complex.

    Example:
        >>> from smalearn.weights import BlockDiagonal
        >>> gallery({"blocks": BlockDiagonal.random(8, 8, 2, seed=0)}, ["32 numbers"])
    """
    count = len(matrices)
    if not count:
        raise ValueError("gallery: matrices, expected at least one, got none")
    values = [real_matrix("gallery", M.dense().detach() if hasattr(M, "dense") else M) for M in matrices.values()]
    for name, items in (("captions", captions or None), ("axes", axes)):
        if items is not None and len(items) != count:
            raise ShapeError(f"gallery: {name}, expected {count}, one for each matrix, got {len(items)}")
    if axes is None:
        import matplotlib.pyplot as plt

        _, axes = plt.subplots(1, count, figsize=(0.3 + 2.1 * count, 2.7), squeeze=False, layout="constrained")
        axes = axes[0]
    for ax, title, caption, M in zip(axes, matrices, captions or [""] * count, values, strict=True):
        limit = np.abs(M).max() or 1
        ax.set_facecolor(PALE)
        ax.imshow(np.ma.masked_equal(M, 0), DIVERGING, vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
        ax.set_title(title, fontsize=10, loc="center")
        ax.set_xlabel(caption, fontsize=9)
        ax.spines[:].set_visible(False)
    return np.asarray(axes, dtype=object)


def wires(
    order: Sequence[int], blocks: tuple[int, int], names: tuple[str, str], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Permutation as wires, from places in the blocks on the right to places in those on the left.

    As in a product of matrices, the right comes first. Wires have the colour of the block they come from.

    Args:
        order: place i on the left is fed by place order[i] on the right.
        blocks: how many equal blocks there are on the left and on the right.
        names: of the left and the right side.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes; `ax.lines` are the wires, from the top of the left side.

    Raises:
        ValueError: order is not a permutation, or a number of blocks does not divide its length.

    Example:
        >>> wires([0, 2, 1, 3], (2, 2), ("b", "c"))
    """
    from matplotlib.patches import FancyBboxPatch

    size = len(order)
    if sorted(map(int, order)) != list(range(size)):
        raise ValueError(f"wires: order must be a permutation of {size} numbers, got {list(order)}")
    for count in blocks:
        if count < 1 or size % count:
            raise ValueError(f"wires: blocks must divide {size}, got {count}")
    ax = own_axes(ax, 3.2, 0.9 + 0.19 * size)
    for i, source in enumerate(map(int, order)):
        start = source * blocks[1] // size
        ax.plot([0, 1], [i, source], DASHES[start % 4], color=f"C{start % 7}", linewidth=1.3, solid_capstyle="round")
    for side, count, name in zip((-0.16, 1.04), blocks, names, strict=True):
        height = size // count
        for block in range(count):
            corner = side, block * height - 0.36
            style = {"boxstyle": "round,pad=0,rounding_size=0.04", "facecolor": PALE, "edgecolor": "none"}
            ax.add_patch(FancyBboxPatch(corner, 0.12, height - 0.28, **style))
        ax.text(side + 0.06, -0.75, name, ha="center", va="bottom", color=INK, fontsize=9)
    ax.set(xlim=(-0.3, 1.3), ylim=(size - 0.4, -1.6))
    ax.set_title(title, loc="center")
    ax.axis("off")
    return ax


def inclusion(edges: Sequence[tuple[str, str]], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Diagram of inclusions: families as boxes, the larger ones higher, a line from each up to those that hold it.

    Args:
        edges: (smaller, larger) pairs of names.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes; `ax.texts` are the families, `ax.lines` the pairs in the given order.

    Raises:
        ValueError: there is no pair, or two families contain each other.

    Example:
        >>> inclusion([("Monarch", "BTT"), ("BTT", "contraction")])
    """
    rows = _rows(edges)
    ax = own_axes(ax, 8.2, 0.4 + 1.0 * len(rows))
    places = {}
    for height, row in enumerate(rows):
        for number, name in enumerate(row):
            places[name] = ((number + 0.5) / len(row), height)
    for smaller, larger in edges:
        (x, y), (u, v) = places[smaller], places[larger]
        ax.plot([x, u], [y, v], color=GREY, linewidth=1.2, zorder=1)
    for name, (x, y) in places.items():
        box = {"facecolor": "white", "edgecolor": f"C{y % 7}", "boxstyle": "round,pad=0.35", "linewidth": 1.5}
        ax.text(x, y, name, ha="center", va="center", color=INK, fontsize=9, bbox=box)
    ax.set(xlim=(0, 1), ylim=(-0.45, len(rows) - 0.55), title=title)
    ax.axis("off")
    return ax


def _rows(edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Families by the longest way down from each, the lowest first; a row in the order of first mention."""
    if not edges:
        raise ValueError("inclusion: edges, expected at least one pair, got none")
    names = dict.fromkeys(name for pair in edges for name in pair)
    height = dict.fromkeys(names, 0)
    for _ in names:
        for smaller, larger in edges:
            height[larger] = max(height[larger], height[smaller] + 1)
    if max(height.values()) >= len(names):
        raise ValueError("inclusion: edges, expected no circle of families that contain each other")
    return [[name for name in names if height[name] == level] for level in range(max(height.values()) + 1)]


def fits(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    ax: Axes | None = None,
    *,
    title: str = "",
    legend: bool = True,
) -> Axes:
    """Curves of the relative error of approximations, 0 to 1, over the numbers that they hold, on a logarithmic axis.

    Args:
        curves: label -> (numbers stored as a part of those of the dense matrix, relative errors); lines differ in
            colour, dashes and marker.
        ax: where to draw; a new figure if None.
        title: of the axes.
        legend: whether to name the curves; of several panels one is enough.

    Returns:
        The axes; `ax.lines` are the curves, then a thin line at the size of the dense matrix.

    Raises:
        ShapeError: a curve has not as many errors as sizes.
        ValueError: there is no curve, a size is not above 0, or an error is negative or not finite.

    Example:
        >>> fits({"low rank": ([0.25, 0.5], [0.8, 0.6])})
    """
    if not curves:
        raise ValueError("fits: curves, expected at least one, got none")
    for label, (sizes, errors) in curves.items():
        if len(sizes) != len(errors):
            raise ShapeError(f"fits: {label!r} has {len(sizes)} sizes but {len(errors)} errors")
        if not (np.asarray(sizes) > 0).all() or not (np.isfinite(errors) & (np.asarray(errors) >= 0)).all():
            raise ValueError(f"fits: {label!r} needs sizes above 0 and finite errors ≥ 0")
    ax = own_axes(ax, 4.2, 3.2)
    for number, (label, (sizes, errors)) in enumerate(curves.items()):
        dash, marker = DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]
        ax.plot(sizes, errors, dash, marker=marker, color=f"C{number % 7}", label=label, clip_on=False)
    ax.axvline(1, color=GREY, linewidth=1, zorder=0)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"1/{1 / x:g}" if x < 1 else f"{x:g}")
    ax.set(xlabel="numbers stored / dense", ylabel="relative error", ylim=(0, 1.02), title=title)
    ax.grid(True)
    if legend:
        ax.legend()
    return ax
