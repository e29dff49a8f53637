"""Programs as pictures: boxes for what is computed, arrows for what passes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from smalearn.course.plots.style import INK, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["flow"]

FILLS = {"plain": "#e3eef7", "mixes time": "#fbe3d3"}


def flow(
    boxes: Mapping[str, tuple[float, float]],
    arrows: Sequence[tuple[str, str, str]],
    ax: Axes | None = None,
    *,
    mixing: Sequence[str] = (),
    title: str | None = None,
) -> Axes:
    """Picture of a program: a box for each step, and what passes from one to the next written on its arrow.

    `boxes` is text -> place (x, y), a unit about an inch; an arrow is (from, to, text). Boxes that are `mixing` tokens
    over time have another colour.

    Example:
        >>> flow({"x": (0, 0), "W": (2, 0)}, [("x", "W", "(T, D)")])
    """
    if not boxes:
        raise ValueError("flow: boxes, expected at least one, got none")
    if missing := {name for start, end, _ in arrows for name in (start, end)} - boxes.keys():
        raise ValueError(f"flow: arrows, expected a box for {min(missing)!r}, got {', '.join(boxes)}")
    xs, ys = zip(*boxes.values(), strict=True)
    ax = own_axes("flow", ax, (max(xs) - min(xs) + 1.6, max(ys) - min(ys) + 1.2), title)
    drawn = {}
    for name, place in boxes.items():
        style = {"boxstyle": "round,pad=0.35", "edgecolor": "none"}
        style["facecolor"] = FILLS["mixes time" if name in mixing else "plain"]
        drawn[name] = ax.text(*place, name, ha="center", va="center", bbox=style, color="black")
    for start, end, label in arrows:
        line = {"arrowstyle": "-|>", "color": INK}
        patches = {"patchA": drawn[start].get_bbox_patch(), "patchB": drawn[end].get_bbox_patch()}
        ax.annotate("", boxes[end], boxes[start], arrowprops=line | patches)
        (x0, y0), (x1, y1) = boxes[start], boxes[end]
        level = y0 == y1  # its label stands above the arrow; on a slanting one it interrupts the line
        box = {} if level else {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
        where = {"xytext": (0, 3 * level), "textcoords": "offset points"}
        align = {"ha": "center", "va": "bottom" if level else "center", "fontsize": 9}
        ax.annotate(label, ((x0 + x1) / 2, (y0 + y1) / 2), **where, **align, **box)
    ax.set(xlim=(min(xs) - 0.8, max(xs) + 0.8), ylim=(min(ys) - 0.6, max(ys) + 0.6))
    ax.axis("off")
    return ax
