"""Plan of the fast multi-level attention: which squares of the (T, T) scores are computed, with how many columns.

Blocks nest, so the levels that two tokens share are the first d, and their score is the product of the first
r_1 + ... + r_d columns. A chain of sizes, each a multiple of the one before, cuts the scores: small squares on the
diagonal, the only ones in which d differs between pairs; then, for each step of the chain from size n to period p, the
pairs that share a block of p but not one of n. All these pairs have the same d.

Sequences are padded: every block to a length that can be halved down to a square.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

DIAGONAL = 64
"""Least size of the squares on the diagonal, where T is as large: one product takes many levels of tiny blocks.

Of this and the sizes below half and double take 0.97 to 1.09 times as long (T = 4096, one thread of an AMD EPYC).
"""
ROWS, KEYS = 256, 512
"""Sizes of a tile: its scores stay in a cache between the product, the exponential and the next product."""
SCORES = 2**18
"""Number of scores that exist at once, all heads together."""


class Square(NamedTuple):
    """Tiles that meet the same keys. Sequences are cut into segments of `period` positions; `batch` says which of them.

    `keys` and each of `rows` are (first, end) positions inside a segment; `columns` is the width of the prefix.
    """

    columns: int
    period: int
    batch: slice
    keys: tuple[int, int]
    rows: list[tuple[int, int]]

    def tiles(self) -> Iterator["Square"]:
        """Split into one tile for each entry of `rows`."""
        return (self._replace(rows=[rows]) for rows in self.rows)


class Tiling:
    """Squares of all heads.

    Args:
        length: T ≥ 1.
        ranks: r_l of every level.
        block_lens: b_l of every level, nested, the first at least T.
        causal: whether only the keys j ≤ i count.
        heads: number of KV heads.
        queries: query heads for each KV head.

    Attributes:
        padded_len: length of a sequence after padding.
        masked: whether a token could meet a key that is padding.
        extra: columns in front of the features: a constant of each query, and a mask if there is one.
        features: N.
        size: of a square on the diagonal.
        local: for the levels with smaller blocks than that, their columns, and how many blocks a square holds.
    """

    def __init__(
        self,
        length: int,
        ranks: Sequence[int],
        block_lens: Sequence[int],
        causal: bool,
        heads: int = 1,
        queries: int = 1,
    ):
        self.causal, self.heads, self.queries = causal, heads, queries
        coarse = [size for size in block_lens if DIAGONAL <= size < length]
        fine = [size for size in block_lens if size < min(DIAGONAL, length)]
        # The finest of the coarse blocks is padded to squares, each of which holds whole fine blocks.
        block, unit = coarse[-1] if coarse else length, fine[0] if fine else 1
        halvings = max(0, (block // DIAGONAL).bit_length() - 1)
        self.size = -(-block // (unit << halvings)) * unit
        padded = self.size << halvings
        self._block, self._padded, self._length = block, padded, length
        last = self._position(length - 1)
        self._coarse = [size // block * padded for size in coarse]
        self._chain = _chain(self.size, [*self._coarse[::-1], padded], last)
        # The end is padded to a larger segment, if that costs little: its small squares are then computed together.
        segments = [size for size in self._chain[1:] if size <= ROWS and 8 * (-(last + 1) % size) <= length]
        self._segment = max(segments, default=self.size)
        self.padded_len = (last // self._segment + 1) * self._segment
        self._apart = last != length - 1
        self.masked = self.padded_len != length and (self._apart or not causal)  # no token sees what follows it
        self.extra = 1 + self.masked
        self.features = sum(ranks)
        self._ends = list(accumulate(ranks, initial=0))
        self._outer = len(ranks) - len(coarse) - len(fine)
        local = range(len(ranks) - len(fine), len(ranks))
        self.local = [(slice(*self._ends[level : level + 2]), self.size // block_lens[level]) for level in local]

    @cached_property
    def where(self) -> torch.Tensor | slice:
        """Padded position of each token."""
        return self._position(torch.arange(self._length, device="cpu")) if self._apart else slice(0, self._length)

    def diagonal(self) -> Iterator[Square]:
        """Squares on the diagonal, with the columns of the levels that are one block there."""
        span, columns = (0, self.size), self._columns(self.size)
        step = max(1, SCORES // (self.size**2 * self.queries))
        for first in range(0, self.heads * self.padded_len // self.size, step):
            yield Square(columns, self.size, slice(first, first + step), span, [span])

    def squares(self) -> Iterator[Square]:
        """Squares off the diagonal, from there outwards."""
        for size, period in pairwise(self._chain):
            # Small periods: many segments in one call.
            segment = period if self._segment % period == 0 else self.padded_len
            for start in range(0, segment, period):
                stop = min(start + period, segment)
                for child in range(start, stop, size):
                    rows = child, min(child + size, stop)
                    for keys in [(start, child)] if self.causal else [(start, child), (rows[1], stop)]:
                        yield from self._cut(self._columns(period), segment, keys, rows)

    def scratch(self) -> int:
        """Largest number of scores in one product."""
        return max(SCORES, self.queries * max(self.size**2, ROWS * KEYS))

    def macs(self) -> int:
        """Multiply-adds of the scores of one head, with padding, the columns in front and whole diagonal squares."""
        on = self.padded_len * self.size * (self.extra + self._columns(self.size))
        on += sum(
            self.padded_len * self.size // blocks * (columns.stop - columns.start) for columns, blocks in self.local
        )
        off = 0
        for columns, period, segments, keys, rows in self.squares():
            count = len(range(self.padded_len // period)[segments])
            off += count * (self.extra + columns) * (keys[1] - keys[0]) * sum(last - first for first, last in rows)
        return on + off

    def _position(self, token):
        """Padded position of a token."""
        return token // self._block * self._padded + token % self._block

    def _columns(self, period):
        """Number of columns of the levels whose blocks hold `period` positions."""
        return self._ends[self._outer + sum(size >= period for size in self._coarse)]

    def _cut(self, columns, segment, keys, rows):
        """Tiles of a rectangle, as many segments at once as `SCORES` allows."""
        height = min(ROWS, rows[1] - rows[0])
        tiles = [(row, min(row + height, rows[1])) for row in range(*rows, height)]
        for key in range(*keys, KEYS):
            last = min(key + KEYS, keys[1])
            step = max(1, SCORES // (height * (last - key) * self.queries))
            for first in range(0, self.heads * self.padded_len // segment, step):
                yield Square(columns, segment, slice(first, first + step), (key, last), tiles)


def _chain(size, targets, last):
    """Sizes from `size` through all targets until position `last` is inside, doubling where that divides the next."""
    chain = [size]
    for target in sorted(targets):
        while target % (2 * chain[-1]) == 0:
            chain.append(2 * chain[-1])
        if chain[-1] != target:
            chain.append(target)
    while chain[-1] <= last:
        chain.append(2 * chain[-1])
    return chain
