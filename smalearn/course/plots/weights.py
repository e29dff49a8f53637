"""Pictures of structured weights: entries, the way through a train, inclusions of families, errors of fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn._checks import ShapeError
from smalearn.course.plots.curves import DASHES, MARKERS
from smalearn.course.plots.matrices import real_matrix
from smalearn.course.plots.style import GREY, INK, PALE, own_axes, show_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fits", "gallery", "inclusion", "train_path"]


def gallery(
    matrices: Mapping[str, object], captions: Sequence[str] = (), axes: Sequence[Axes] | None = None, *, title: str = ""
):
    """Matrices side by side, one panel each: positive blue, negative orange, exact zeros dotted.

    Each has a scale of its own, which ends at thrice the root mean square of its entries. What has `dense()`, such as a
    weight, is drawn as that.
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
    for ax, name, caption, M in zip(axes, matrices, captions or [""] * count, values, strict=True):
        held = np.abs(M[M != 0])  # one large entry would leave all others pale: colours end at thrice their size
        limit = min(held.max(), 3 * np.sqrt(np.square(held).mean())) if held.size else 1
        show_numbers(ax, M, limit)
        ax.set(xticks=[], yticks=[])
        ax.set_title(name, fontsize=10, loc="center")
        ax.set_xlabel(caption, fontsize=9)
        ax.spines[:].set_visible(False)
    if title:
        axes[0].figure.suptitle(title)
    return np.asarray(axes, dtype=object)


def train_path(sizes: tuple[int, int, int, int], column: int, row: int, ax: Axes | None = None) -> Axes:
    """A block tensor train from input to output, and the one path from a feature of the one to a feature of the other.

    Features go from left to right, through the blocks R_k, a regrouping, the blocks L_j and another regrouping. Above
    stand the same features as tables: the first blocks mix rows, the second ones columns. `sizes` is (a, b, c, d); the
    input feature `column` is k·d + e, the output feature `row` i·b + j.
    """
    if min(sizes) < 1:
        raise ValueError(f"train_path: sizes must be at least 1, got {sizes}")
    a, b, c, d = sizes
    for name, feature, count in (("column", column, c * d), ("row", row, a * b)):
        if not 0 <= feature < count:
            raise ValueError(f"train_path: {name} must be in 0 … {count - 1}, got {feature}")
    (k, h), (i, j) = divmod(column, d), divmod(row, b)
    ax = own_axes("train_path", ax, (8.4, 5))
    groups = [(c, d), (c, b), (b, c), (b, a), (a, b)]
    _wires(ax, groups)
    path = zip([(k, h), (k, j), (j, k), (j, i), (i, j)], groups, strict=True)
    ax.plot(range(5), [_height(*place, *size) for place, size in path], "o-", color="C0", linewidth=2.5, zorder=3)
    _table(ax, 0, np.arange(c * d).reshape(c, d), "features, in rows", (k, h), lit=(k, None))
    _table(ax, 1.5, np.full((c, b), -1), "each row mixed", (k, j), lit=(k, None))
    _table(ax, 3, np.arange(a * b).reshape(a, b), "each column mixed", (i, j), lit=(None, j))
    ax.set(xlim=(-0.2, 4.2), ylim=(-0.15, 2))
    ax.axis("off")
    return ax


def _height(group: int, member: int, count: int, size: int) -> float:
    """Where a feature stands, the first at the top, in groups with a gap between them."""
    return 1 - (group * (size + 0.6) + member + 0.5) / (count * (size + 0.6) - 0.6)


def _wires(ax: Axes, groups: list[tuple[int, int]]) -> None:
    """All that a feature may go along: within blocks, or to another group; and the names of these stages."""
    from matplotlib.collections import LineCollection

    for stage, name in enumerate(("$R_k$: rows", "$P_R$", "$L_j$: columns", "$P_L$")):
        (count, size), (_, following) = now, then = groups[stage : stage + 2]
        wires = []
        for group, member in np.ndindex(count, size):
            targets = [(member, group)] if stage % 2 else [(group, one) for one in range(following)]
            start = stage, _height(group, member, *now)
            wires += [(start, (stage + 1, _height(*target, *then))) for target in targets]
        ax.add_collection(LineCollection(wires, colors=PALE if stage % 2 else GREY, linewidths=0.8))
        ax.text(stage + 0.5, -0.12, name, ha="center", color=INK, fontsize=10)


def _table(ax, left, numbers, title, cell, lit):
    """Features as a table, one row, one column and their cell in colour."""
    from matplotlib.colors import ListedColormap

    shade = np.zeros(numbers.shape)
    for axis, line in enumerate(lit):
        if line is not None:
            shade[(slice(None),) * axis + (line,)] = 1
    shade[cell] = 2
    table = ax.inset_axes((left, 1.2, 1, 0.62), transform=ax.transData)
    table.pcolormesh(
        shade, cmap=ListedColormap(["white", "#bcd9f2", "C0"]), edgecolors=GREY, linewidth=0.8, vmin=0, vmax=2
    )
    for (y, x), number in np.ndenumerate(numbers):
        if number >= 0:
            colour = "white" if (y, x) == cell else INK
            table.text(x + 0.5, y + 0.5, number, ha="center", va="center", color=colour, fontsize=8)
    table.invert_yaxis()
    table.set_title(title, fontsize=10, loc="center")
    table.set(xticks=[], yticks=[], aspect="equal")
    table.spines[:].set_visible(False)


def inclusion(edges: Sequence[tuple[str, str]], ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Diagram of inclusions: families as boxes, the larger ones higher, a line from each up to those that hold it.

    `edges` are pairs of names, (smaller, larger).
    """
    rows = _rows(edges)
    ax = own_axes("inclusion", ax, (8.2, 0.4 + 1.0 * len(rows)), title)
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
    ax.set(xlim=(0, 1), ylim=(-0.45, len(rows) - 0.55))
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
    title: str | None = None,
    legend: bool = True,
) -> Axes:
    """Curves, label -> (numbers stored as a part of the dense matrix, relative errors), of approximations."""
    if not curves:
        raise ValueError("fits: curves, expected at least one, got none")
    for label, (sizes, errors) in curves.items():
        if len(sizes) != len(errors):
            raise ShapeError(f"fits: {label!r} has {len(sizes)} sizes but {len(errors)} errors")
        if not (np.asarray(sizes) > 0).all() or not (np.isfinite(errors) & (np.asarray(errors) >= 0)).all():
            raise ValueError(f"fits: {label!r} needs sizes above 0 and finite errors ≥ 0")
    ax = own_axes("fits", ax, (4.2, 3.2), title)
    for number, (label, (sizes, errors)) in enumerate(curves.items()):
        dash, marker = DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]
        ax.plot(sizes, errors, dash, marker=marker, color=f"C{number % 7}", label=label, clip_on=False)
    ax.axvline(1, color=GREY, linewidth=1, zorder=0)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda x, _: f"1/{1 / x:g}" if x < 1 else f"{x:g}")
    ax.set(xlabel="numbers stored / dense", ylabel="relative error", ylim=(0, 1.02))
    ax.grid(True)
    if legend:
        ax.legend()
    return ax
