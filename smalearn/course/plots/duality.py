"""Pictures of the duality: the chunks of a semiseparable matrix, and two families of models that overlap."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import torch

from smalearn._checks import check_count
from smalearn.course.plots.matrices import heatmap, remove_key
from smalearn.course.plots.style import INK, PALE, own_axes
from smalearn.masks import decay_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["border", "chunk_map", "venn"]


def border(log_a: torch.Tensor, start: int) -> Figure:
    """Picture of a decay mask cut at a border, with the two factors of the block below it along its sides.

    Above the columns before the border stands the decay of each token until there, right of the rows after it the
    decay since: an entry of the outlined block is the product of both.

    Args:
        log_a: (T,) log of one gate per token.
        start: number of the token with which the second chunk begins.

    Returns:
        The figure.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    L = decay_matrix(log_a.double())
    grid = {"width_ratios": [4, 1], "height_ratios": [1, 4]}
    figure, ((above, corner), (mask, beside)) = plt.subplots(2, 2, figsize=(5, 5), gridspec_kw=grid)
    corner.axis("off")
    heatmap(L, mask).set_aspect("auto")
    remove_key(mask)
    above.spines[["left", "bottom"]].set_visible(False)
    beside.spines[["left", "bottom"]].set_visible(False)
    mask.add_patch(Rectangle((-0.5, start - 0.5), start, len(L) - start, fill=False, edgecolor="C1", linewidth=2.5))
    above.bar(range(start), L[start - 1, :start].tolist(), color="C1")
    beside.barh(range(start, len(L)), log_a[start:].double().cumsum(0).exp().tolist(), color="C0")
    above.set(xlim=mask.get_xlim(), ylim=(0, 1.05), xticks=[], title="decay until the border")
    beside.set(ylim=mask.get_ylim(), xlim=(0, 1.05), yticks=[])
    beside.set_title("decay since")
    return figure


def chunk_map(length: int, chunk_len: int, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Map of a lower triangular matrix: which step of the chunked algorithm computes which block.

    Blocks on the diagonal are computed as they are, step 1. A block below is a product of thin factors: 2 writes the
    state at the end of the source's chunk, 3 passes it across each chunk between, 4 reads it in the target's chunk.

    Args:
        length: T, number of tokens.
        chunk_len: length of a chunk; the last one may be shorter.
        ax: where to draw; a new figure if None.
        title: of the axes.

    Returns:
        The axes; `ax.texts` are the factors of the blocks, row by row: "1", "4·2", "4·3·2", ...

    Raises:
        ValueError: a size is not an integer ≥ 1, or there are more than 12 chunks.

    Example:
        >>> chunk_map(16, 4)
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    check_count("chunk_map", "length", length)
    check_count("chunk_map", "chunk_len", chunk_len)
    starts = np.arange(0, length, chunk_len)
    if len(starts) > 12:
        raise ValueError(f"chunk_map: expected at most 12 chunks, got {len(starts)}; pass a larger chunk_len")
    time = np.arange(length)
    between = time[:, None] // chunk_len - time // chunk_len
    shades = colormaps["YlGnBu"](np.linspace(0.2, 0.55, max(len(starts) - 1, 1)))
    colours = ListedColormap([PALE, colormaps["YlOrBr"](0.35), *shades])
    ax = own_axes(ax, 4.6, 4.2)
    ax.imshow(np.where(time[:, None] >= time, between + 1, 0), colours, vmin=-0.5, vmax=colours.N - 0.5)
    for start in starts[1:]:
        for draw in (ax.axhline, ax.axvline):
            draw(start - 0.5, color="white", linewidth=1.5)
    middles = (starts + np.minimum(starts + chunk_len, length) - 1) / 2
    for row, y in enumerate(middles):
        for column, x in enumerate(middles[: row + 1]):
            text = "·".join(["4", *["3"] * (row - column - 1), "2"]) if row > column else "1"
            inside = 0 if row > column else (length - starts[row] if row + 1 == len(starts) else chunk_len) / 6
            ax.text(x - inside, y + inside, text, ha="center", va="center", color=INK, fontsize=9)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="source s", ylabel="target t", title=title or "", xticks=starts, yticks=starts)
    return ax


def venn(
    left: Collection[str], right: Collection[str], titles: tuple[str, str], ax: Axes | None = None, *, both: str = ""
) -> Axes:
    """Two families as overlapping circles; a name that is in both stands in the overlap.

    Args:
        left: names of the members of the left family, in the order from top to bottom.
        right: those of the right family.
        titles: of the two circles.
        ax: where to draw; a new figure if None.
        both: what the overlap is called.

    Returns:
        The axes; `ax.texts` are the two titles, the name of the overlap, and the members: left, both, right.

    Raises:
        ValueError: a name occurs twice in a family.

    Example:
        >>> venn(["S6", "SSD"], ["SSD", "softmax"], ("recurrences", "attention"))
    """
    from matplotlib.patches import Circle

    for names in (left, right):
        if len(set(names)) < len(names):
            raise ValueError(f"venn: names of a family must differ, got {', '.join(names)}")
    ax = own_axes(ax, 7.5, 4.4)
    for number, x in enumerate((-0.62, 0.62)):
        ax.add_patch(Circle((x, 0), 1.1, facecolor=f"C{number}", alpha=0.22, edgecolor="none"))
        ax.add_patch(Circle((x, 0), 1.1, fill=False, edgecolor=f"C{number}", linewidth=2))
        ax.text(x, 1.18, titles[number], ha="center", color=INK, fontweight="bold")
    ax.text(0, 0.62, both, ha="center", color=INK, fontweight="bold")
    regions = {
        -1.12: [name for name in left if name not in right],
        0.0: [name for name in left if name in right],
        1.12: [name for name in right if name not in left],
    }
    for x, names in regions.items():
        for row, name in enumerate(names):
            ax.text(x, 0.17 * ((len(names) - 1) / 2 - row), name, ha="center", va="center", color=INK, fontsize=9)
    ax.set(xlim=(-2, 2), ylim=(-1.2, 1.4), aspect="equal")
    ax.axis("off")
    return ax
