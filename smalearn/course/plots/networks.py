"""Contractions as pictures: the network of tensors and axes, and what an order of steps makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalearn.contractions import parse_spec
from smalearn.course.plots.style import INK, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smalearn.contractions import Order

__all__ = ["contraction", "filmstrip"]

FILL = "#e3eef7"


def contraction(
    spec: str,
    sizes: Mapping[str, int] | None = None,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> Axes:
    """Picture of a contraction as a tensor network: a node for each operand, a wire for each axis.

    A wire between two nodes is an axis that both have and that is summed. A loose end is an axis of the output. An axis
    with any other number of ends, counting the output's, is drawn through a dot.

    Example:
        >>> contraction("TN, SN, SP, TS -> TP", dict(T=128, S=128, N=16, P=16), names="QKVL")
    """
    terms, output = parse_spec("contraction", spec)
    names = terms if names is None else names
    if len(names) != len(terms):
        raise ValueError(f"contraction: names, expected {len(terms)} ({', '.join(terms)}), got {len(names)}")
    members = {axis: tuple(i for i, term in enumerate(terms) if axis in term) for axis in "".join(terms)}
    missing = [axis for axis in members if sizes is not None and axis not in sizes]
    if missing:
        raise ValueError(f"contraction: sizes, expected a size for axis '{missing[0]}', got {', '.join(sizes)}")
    ax = own_axes("contraction", ax, (4.6, 2.8), title)
    texts = {axis: axis if sizes is None else f"{axis} = {sizes[axis]:,}" for axis in members}
    colours = {axis: f"C{number}" for number, axis in enumerate(members)}
    _draw_network(ax, names, _ring(len(terms)), members, output, texts, colours)
    return ax


def _draw_network(
    ax: Axes,
    names: Sequence[str],
    nodes: np.ndarray,
    members: Mapping[str, tuple[int, ...]],
    output: str,
    texts: Mapping[str, str],
    colours: Mapping[str, str],
) -> None:
    """Draw named nodes at their places, and the axes that join them."""
    for axis, hub in _hubs(nodes, members).items():
        ends = [nodes[i] for i in members[axis]]
        _draw_axis(ax, ends, hub, axis in output, texts[axis], label=axis, color=colours[axis])
    for (x, y), name in zip(nodes, names, strict=True):
        ax.scatter(x, y, (26 + 5 * len(name)) ** 2, color=FILL, edgecolor=INK, linewidth=1.2, zorder=3)
        ax.text(x, y, name, ha="center", va="center", fontsize=12, weight="bold", zorder=4)
    # At least this wide and high, or a small network would be drawn with long wires.
    (left, low), (right, high) = np.minimum(ax.dataLim.min, (-1.5, -0.8)), np.maximum(ax.dataLim.max, (1.5, 0.8))
    ax.set(aspect="equal", xlim=(left - 0.35, right + 0.35), ylim=(low - 0.35, high + 0.35))
    ax.axis("off")


def filmstrip(order: Order, axes: Sequence[Axes] | None = None, *, names: Sequence[str] = "") -> Sequence[Axes]:
    """Picture of an order of contraction, step by step: the network before the first step and after each.

    Two tensors that meet become one node, between the places where they stood. An axis keeps its colour. `names` are
    those of what the steps make, such as "GMY".
    """
    terms, output = parse_spec("filmstrip", order.spec)
    colours = {axis: f"C{number}" for number, axis in enumerate(dict.fromkeys("".join(terms)))}
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.subplots(1, len(order.steps) + 1, figsize=(11, 2.6))[1]
    shapes = dict(zip(order.operands, terms, strict=True))
    nodes = dict(zip(order.operands, _ring(len(terms)), strict=True))
    called = dict(zip([step.result for step in order.steps], names, strict=False))
    for ax, step in zip(axes, [None, *order.steps], strict=True):
        if step:
            places = [nodes.pop(name) for name in step.operands]
            shapes = {name: axes_of for name, axes_of in shapes.items() if name in nodes}
            nodes[step.result] = np.mean(places, axis=0)
            shapes[step.result] = step.spec.partition("->")[2].strip()
        members = {axis: [i for i, name in enumerate(nodes) if axis in shapes[name]] for axis in colours}
        members = {axis: tuple(group) for axis, group in members.items() if group}
        shown = [called.get(name, name) for name in nodes]
        _draw_network(ax, shown, np.stack(list(nodes.values())), members, output, {x: x for x in members}, colours)
        ax.set(xlim=(-2.6, 2.6), ylim=(-2, 2))
        ax.set_title(f"{step.spec}\n{step.macs:,} MACs" if step else "four tensors\n", fontsize=9)
    return axes


def _ring(count: int) -> np.ndarray:
    """Places of the operands: clockwise on an ellipse from the upper left, one operand in the middle."""
    angles = np.pi / 2 + np.pi / count - 2 * np.pi * np.arange(count) / count
    return np.stack([1.5 * np.cos(angles), 1.1 * np.sin(angles)], axis=1) * (count > 1)


def _hubs(nodes: np.ndarray, members: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Place each axis in the middle of its operands, or next to its only one; axes of the same operands fan out."""
    hubs = {}
    for axis, group in members.items():
        twins = [other for other in members if members[other] == group]
        rank = twins.index(axis) - (len(twins) - 1) / 2
        middle = nodes[list(group)].mean(axis=0)
        if len(group) == 1:
            x, y = _outward(middle)
            angle = math.radians(60) * rank
            hubs[axis] = middle + 0.95 * np.array(
                [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
            )
        else:
            x, y = nodes[group[1]] - nodes[group[0]]
            hubs[axis] = middle + 0.7 * rank * np.array([-y, x]) / math.hypot(x, y)
    return hubs


def _outward(point: np.ndarray) -> np.ndarray:
    """The direction, left, right, up or down, that leads out of the picture."""
    x, y = point
    if abs(x) > 0.4:
        return np.array([math.copysign(1, x), 0])
    return np.array([0, 1 if y > 0.2 else -1])


def _draw_axis(ax: Axes, ends: list[np.ndarray], hub: np.ndarray, is_open: bool, text: str, **line: str) -> None:
    """Draw the wires of one axis from its operands to their hub, its loose end, its dot and its text."""
    if len(ends) == 2 and not is_open:
        (a, b), t = ends, np.linspace(0, 1, 41)[:, None]
        bow = (1 - t) ** 2 * a + 2 * t * (1 - t) * (2 * hub - (a + b) / 2) + t**2 * b
        ax.plot(*bow.T, **line)
        ax.text(*hub, text, ha="center", va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})
        return
    if is_open and len(ends) > 1:
        tip = hub + 0.75 * _outward(hub)
        ends, towards = [*ends, tip], tip - hub
    elif is_open:
        tip, towards = hub, hub - ends[0]
    else:
        tip, towards = hub, _widest_gap([end - hub for end in ends])
    for end in ends:
        ax.plot(*np.stack([hub, end]).T, **line)
    if len(ends) > 1 or not is_open:
        ax.plot(*hub, "o", ms=7, **line)
    _write_next_to(ax, text, tip, towards)


def _widest_gap(directions: list[np.ndarray]) -> np.ndarray:
    """The direction furthest from all the given ones."""
    angles = sorted(math.atan2(y, x) for x, y in directions)
    gaps = [
        (next_angle - angle) % math.tau or math.tau
        for angle, next_angle in zip(angles, angles[1:] + angles[:1], strict=True)
    ]
    best = max(range(len(gaps)), key=gaps.__getitem__)
    middle = angles[best] + gaps[best] / 2
    return np.array([math.cos(middle), math.sin(middle)])


def _write_next_to(ax: Axes, text: str, point: np.ndarray, towards: np.ndarray) -> None:
    """Write text a few points away from a place, on the side of the given direction."""
    x, y = towards / np.hypot(*towards)
    ha = "left" if x > 0.4 else "right" if x < -0.4 else "center"
    va = "bottom" if y > 0.4 else "top" if y < -0.4 else "center"
    ax.annotate(text, point, (6 * x, 6 * y), textcoords="offset points", ha=ha, va=va)
