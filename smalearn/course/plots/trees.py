"""Nested blocks of tokens as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from smalearn.course.plots.style import GREY, own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["block_tree"]


def block_tree(
    length: int, block_lens: Sequence[int], pairs: Sequence[tuple[int, int]] = (), ax: Axes | None = None
) -> Axes:
    """Nested blocks of tokens as a tree, the first block at the top, and the way from one token to another.

    `block_lens` are the tokens of a block at each level, each a multiple of the next; the way of each of the `pairs`
    goes up to the smallest block that holds both.
    """
    from matplotlib.collections import LineCollection

    sizes = [*block_lens, 1]
    if any(large % small for large, small in pairwise(sizes)):
        raise ValueError(f"block_tree: each of block_lens must be a multiple of the next, got {tuple(block_lens)}")
    for token in (token for pair in pairs for token in pair):
        if not 0 <= token < length:
            raise ValueError(f"block_tree: tokens of pairs must be in 0 … {length - 1}, got {token}")

    def node(level, token):
        first = token // sizes[level] * sizes[level]
        return (first + min(first + sizes[level], length) - 1) / 2, len(block_lens) - level

    ax = own_axes("block_tree", ax, (6, 3.4))
    branches = [(node(level, t), node(level + 1, t)) for level in range(len(block_lens)) for t in range(length)]
    ax.add_collection(LineCollection(branches, colors=GREY, linewidths=1))
    for number, (i, j) in enumerate(pairs):
        meet = sum(i // size == j // size for size in block_lens) - 1
        way = [node(level, i) for level in range(len(block_lens), meet, -1)]
        way += [node(level, j) for level in range(meet, len(block_lens) + 1)]
        ax.plot(*zip(*way, strict=True), "o-", color=f"C{number}", linewidth=2.5, markersize=4)
    ax.set(xlim=(-0.6, length - 0.4), ylim=(-0.35, len(block_lens) + 0.35), xlabel="token")
    ax.set_yticks(range(len(block_lens), 0, -1), [f"blocks of {size}" for size in block_lens])
    ax.tick_params(left=False)
    ax.spines[["left", "top", "right"]].set_visible(False)
    return ax
