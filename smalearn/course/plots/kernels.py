"""Pictures of a kernel: where its data lives, what limits its speed, one access, and who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smalearn.course.plots.style import GREY, INK, PALE, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smalearn.fast.tile import Event

__all__ = ["Design", "Level", "Span", "hierarchy", "offsets", "roofline", "timeline"]

MARKERS = "osD^vPX"


class Level(NamedTuple):
    """Kind of memory: its name, its size in bytes, and bytes per second, None where nobody publishes them."""

    name: str
    size: float
    bandwidth: float | None


class Design(NamedTuple):
    """Way to compute something: its work, its traffic, and the roof it works under."""

    flops: float
    bytes: float
    roof: str


class Span(NamedTuple):
    """Piece of work: what it is, when it begins and when it ends."""

    work: str
    begin: float
    end: float


def hierarchy(levels: Sequence[Level], ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Kinds of memory as boxes, the nearest to the arithmetic on top: the wider, the more fits in, logarithmically."""
    from matplotlib.patches import FancyBboxPatch

    sizes = [level.size for level in levels]
    ax = own_axes("hierarchy", ax, (6.5, 0.4 + 0.62 * len(levels)), title)
    logs = np.log(np.divide(sizes, sizes[0]))
    widths = 0.44 + 0.56 * logs / (logs[-1] or 1.0)  # the narrowest holds a name
    for number, (level, width) in enumerate(zip(levels, widths, strict=True)):
        box = (-width / 2, -number - 0.38), width, 0.76
        style = {"boxstyle": "round,pad=0,rounding_size=0.05", "alpha": 0.25, "edgecolor": "none"}
        ax.add_patch(FancyBboxPatch(*box, facecolor=f"C{number}", **style))
        ax.text(0, -number, level.name, ha="center", va="center", color=INK)
        ax.text(-0.56, -number, _amount(level.size, 1024, "B"), ha="right", va="center", color=INK)
        if level.bandwidth is not None:
            ax.text(0.56, -number, _amount(level.bandwidth, 1000, "B/s"), ha="left", va="center", color=INK)
    ax.set(xlim=(-0.85, 0.95), ylim=(-len(levels) + 0.5, 0.5))
    ax.axis("off")
    return ax


def roofline(
    designs: Mapping[str, Design],
    bandwidth: float,
    roofs: Mapping[str, float],
    ax: Axes | None = None,
    *,
    title: str | None = None,
) -> Axes:
    """Rate against intensity: rate = min(roof, bandwidth · flops / bytes), the most that a machine allows.

    A marker is that bound for a design whose work and traffic were counted. `bandwidth` is in bytes a second, `roofs`
    names operations a second of arithmetic units.
    """
    ax = own_axes("roofline", ax, (7.5, 4.4), title)
    places = {name: design.flops / design.bytes for name, design in designs.items()}
    ends = min(places.values()) / 3, max(*places.values(), max(roofs.values()) / bandwidth) * 8
    for name, roof in roofs.items():
        x = np.array([ends[0], roof / bandwidth, ends[1]])
        ax.plot(x, np.minimum(x * bandwidth, roof), color=GREY, linewidth=1, label=name, zorder=1)
        ax.annotate(name, (ends[1], roof), (0, 4), textcoords="offset points", ha="right", fontsize=9, color=GREY)
    for number, (name, design) in enumerate(designs.items()):
        style = {"marker": MARKERS[number % len(MARKERS)], "color": f"C{number % 7}", "linestyle": "none"}
        bound = min(places[name] * bandwidth, roofs[design.roof])
        ax.plot([places[name]], [bound], label=name, markersize=8, **style)
    ax.legend(handles=ax.lines[len(roofs) :], loc="upper left")
    ax.set(xscale="log", yscale="log", xlabel="flops for each byte moved", ylabel="flops per second")
    ax.grid(True)
    return ax


def offsets(event: Event, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """One access of a tile of two axes: the offset of each of its entries, grey where a mask is off."""
    from matplotlib.patches import Rectangle

    tile = event.offsets
    ax = own_axes("offsets", ax, (0.8 + 0.36 * tile.shape[1], 0.8 + 0.3 * tile.shape[0]), title)
    for (row, column), offset in np.ndenumerate(tile):
        reached = offset >= 0
        style = {"facecolor": "C0" if reached else PALE, "alpha": 0.25 if reached else 1, "edgecolor": "white"}
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **style))
        if reached:
            ax.text(column, row, str(offset), ha="center", va="center", fontsize=7, color=INK)
    ax.set(xlim=(-0.5, tile.shape[1] - 0.5), ylim=(tile.shape[0] - 0.5, -0.5))
    ax.set(xlabel="columns of the tile", ylabel="rows of the tile")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


def timeline(rows: Mapping[str, Sequence[Span]], ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Work over time: a row for each worker, a bar for each piece of work, pale where a worker waits for one."""
    kinds = dict.fromkeys(span.work for spans in rows.values() for span in spans)
    colours = {work: f"C{k}" for k, work in enumerate(kinds)}
    ax = own_axes("timeline", ax, (7.5, 1.2 + 0.32 * len(rows)), title)
    for row, spans in enumerate(rows.values()):
        last_end = 0.0
        for work, begin, end in spans:
            if begin > last_end:
                ax.barh(row, begin - last_end, left=last_end, height=0.2, color=PALE, label="waits")
            ax.barh(row, end - begin, left=begin, height=0.7, color=colours[work], label=work)
            last_end = end
    handles = {patch.get_label(): patch for patch in ax.containers}
    ax.legend(handles.values(), handles, loc="upper left", bbox_to_anchor=(1, 1))
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, None))
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(axis="y", length=0)
    return ax


def _amount(number, step, unit):
    """Write three digits with a prefix: 33792·1024 in steps of 1024 is "33 MB"."""
    prefix = 0
    while number >= step and prefix < 4:
        number, prefix = number / step, prefix + 1
    return f"{number:.3g} {['', 'k', 'M', 'G', 'T'][prefix]}{unit}"
