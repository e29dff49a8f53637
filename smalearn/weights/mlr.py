"""Multi-level low rank (structured attention paper, equations (4) and (10); Parshakova et al. 2023)."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from smalearn._checks import ShapeError, check_count, check_counts, check_type, seeded
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, split, truncated
from smalearn.weights.blocks import direct_sum, expand, project

Blocks = int | tuple[Sequence[int], Sequence[int]]


class MultiLevelLowRank(Weight):
    """M = Σ_l ⊕_k L_lk R_lk^T: at level l, p_l blocks of rank r_l; coarse levels couple all, fine ones neighbours.

    The factors of all levels stand side by side, those of the blocks of a level below each other: L = [L_1 | L_2 | …],
    so that a multi-level matrix holds just the numbers of one of low rank r = Σ_l r_l. Parameters (m + n)·Σ_l r_l, as
    many multiply-adds, rank at most min(m, n, Σ_lk min(r_l, m_lk, n_lk)), where Table 1 has Σ_l p_l·r_l.

    Args:
        L: (m, r).
        R: (n, r), dtype and device of L.
        ranks: r_l of every level, summing to r.
        blocks: of every level either p_l, for blocks of equal sizes, or the two lists (m_l1, m_l2, …) and
            (n_l1, n_l2, …), which sum to m and n.

    Raises:
        ShapeError: a factor does not have two axes, their r differs, or it is not the sum of the ranks.
        ValueError: a factor has no floating dtype, or another dtype or device; a level lacks a rank or blocks; p_l does
            not divide m and n; or sizes do not sum to m and n.
    """

    shown = ("ranks", "blocks")

    def __init__(self, L: torch.Tensor, R: torch.Tensor, ranks: Sequence[int], blocks: Sequence[Blocks]):
        super().__init__()
        name = "MultiLevelLowRank"
        sizes = check_factors(name, {"L": (L, "mr"), "R": (R, "nr")})
        self.shape = (sizes["m"], sizes["n"])
        self.rows, self.columns = _block_sizes(name, *self.shape, ranks, blocks)
        self.ranks, self.blocks = tuple(ranks), tuple(map(len, self.rows))
        if sum(ranks) != sizes["r"]:
            raise ShapeError(f"{name}: axis 'r' of L and R must be the sum of ranks = {sum(ranks)}, got {sizes['r']}")
        self.L, self.R = parameter(L), parameter(R)

    @classmethod
    def random(
        cls, shape: tuple[int, int], ranks: Sequence[int], blocks: Sequence[Blocks], seed: int, dtype=None
    ) -> "MultiLevelLowRank":
        """A seeded draw, L_lk from N(0, 1/m_lk) and R_lk from N(0, 1/n_lk): the paper's p_l/D where blocks are equal.

        Args:
            shape: (m, n).
            ranks: r_l of every level.
            blocks: of every level p_l, or two lists of sizes.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a level lacks a rank or blocks, p_l does not divide m and n, or sizes do not sum to m and n.
        """
        check_type("MultiLevelLowRank.random", "shape", shape, Sequence)
        if len(shape) != 2:
            raise ValueError(f"MultiLevelLowRank.random: shape must be (m, n), got {shape!r}")
        rows, columns = _block_sizes("MultiLevelLowRank.random", *shape, ranks, blocks)
        generator = seeded("MultiLevelLowRank.random", seed, dtype)
        L, R = (
            torch.cat([_draw(level, rank, generator, dtype) for level, rank in zip(sizes, ranks, strict=True)], 1)
            for sizes in (rows, columns)
        )
        return cls(L, R, ranks, blocks)

    @classmethod
    def from_dense(
        cls, M: torch.Tensor, ranks: Sequence[int], blocks: Sequence[Blocks], sweeps: int = 10
    ) -> "MultiLevelLowRank":
        """A multi-level matrix near M, level by level: the error never grows, but may stop short of the least.

        From zero on, each sweep replaces each level by the best one for what the others leave of M, a truncated
        singular value decomposition of every block. One level is fitted in one sweep, exactly as `LowRank` is.

        Args:
            M: (m, n).
            ranks: r_l of every level.
            blocks: of every level p_l, or two lists of sizes.
            sweeps: over all levels.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, sweeps is not an integer ≥ 1, or ranks and blocks do not fit M.
        """
        function = "MultiLevelLowRank.from_dense"
        M = matrix(function, M)
        rows, columns = _block_sizes(function, *M.shape, ranks, blocks)
        levels = [torch.zeros_like(M) for _ in ranks]
        factors = [()] * len(ranks)
        rest = M.clone()
        for _ in range(check_count(function, "sweeps", sweeps)):
            for i, rank in enumerate(ranks):
                rest += levels[i]
                factors[i] = _fit_level(rest, rows[i], columns[i], rank)
                levels[i] = direct_sum(factors[i][0], rows[i]) @ direct_sum(factors[i][1], columns[i]).mT
                rest -= levels[i]
        L, R = (torch.cat(side, 1) for side in zip(*factors, strict=True))
        return cls(L, R, ranks, blocks)

    @property
    def macs(self) -> int:
        """(m + n)·Σ_l r_l."""
        return self.num_parameters

    @property
    def rank_bound(self) -> int:
        """min(m, n, Σ_lk min(r_l, m_lk, n_lk))."""
        levels = zip(self.rows, self.columns, self.ranks, strict=True)
        return min(*self.shape, sum(min(rank, *pair) for *both, rank in levels for pair in zip(*both, strict=True)))

    def level(self, i: int) -> torch.Tensor:
        """One level of the sum.

        Args:
            i: from 0.

        Returns:
            (m, n), zero outside the blocks of that level.
        """
        start = sum(self.ranks[:i])
        L, R = (factor[:, start : start + self.ranks[i]] for factor in (self.L, self.R))
        return direct_sum(L, self.rows[i]) @ direct_sum(R, self.columns[i]).mT

    def dense(self):
        """The sum of the levels, (m, n)."""
        return sum(self.level(i) for i in range(len(self.ranks)))

    def _product(self, X):
        start, Y = 0, None
        for levels in self._groups():
            first, last = levels[0], levels[-1]
            stop = start + sum(self.ranks[i] for i in levels)
            Z = project(self.R[:, start:stop], self.columns[last], X)
            if first != last:
                Z = self._shared(Z, levels)
            term = expand(self.L[:, start:stop], self.rows[last], Z)
            Y, start = term if Y is None else Y + term, stop
        return Y

    def _shared(self, Z, levels):
        """Add up, for each level, the projections of the finest blocks that lie in one block of the level."""
        p, parts = len(Z), []
        for i, part in zip(levels, Z.split([self.ranks[i] for i in levels], 1), strict=True):
            grouped = part.unflatten(0, (self.blocks[i], -1))
            parts.append(grouped.sum(1, keepdim=True).expand_as(grouped).reshape(p, *part.shape[1:]))
        return torch.cat(parts, 1)

    def _groups(self):
        """Neighbouring levels that are computed together, in blocks of their last level.

        Each level would pass over all of X and Y for a few ranks. Levels whose blocks nest may share a pass, at the
        price of p·Σ r_l numbers in between, which are to stay fewer than half of those that go in and out.
        """
        groups = []
        for i, p in enumerate(self.blocks):
            group = [*groups[-1], i] if groups else [i]
            nested = all(self._equal(k) and p % self.blocks[k] == 0 for k in group)
            if groups and nested and 2 * p * sum(self.ranks[k] for k in group) <= min(self.shape):
                groups[-1] = group
            else:
                groups.append([i])
        return groups

    def _equal(self, i):
        """Whether the blocks of a level have equal sizes."""
        return len(set(self.rows[i])) == len(set(self.columns[i])) == 1


def _block_sizes(function, m, n, ranks, blocks):
    """The row sizes and column sizes of the blocks of every level, checked."""
    check_count(function, "m", m)
    check_count(function, "n", n)
    check_counts(function, "ranks", ranks)
    check_type(function, "blocks", blocks, Sequence)
    if len(ranks) != len(blocks) or not ranks:
        raise ValueError(f"{function}: every level has a rank and blocks, got {len(ranks)} ranks, {len(blocks)} blocks")
    rows, columns = [], []
    for i, level in enumerate(blocks):
        if isinstance(level, int):
            split(function, f"blocks[{i}]", level, m=m, n=n)
            level = [m // level] * level, [n // level] * level
        check_type(function, f"blocks[{i}]", level, Sequence)
        if len(level) != 2:
            raise ValueError(f"{function}: blocks[{i}] must be a count or two lists of sizes, got {level!r}")
        level = [check_counts(function, f"blocks[{i}]", sizes, 0) for sizes in level]
        if len(level[0]) != len(level[1]) or (sum(level[0]), sum(level[1])) != (m, n) or min(*level[0], *level[1]) < 1:
            got = f"{list(level[0])} and {list(level[1])}"
            raise ValueError(
                f"{function}: blocks[{i}] needs sizes ≥ 1 of as many rows as columns, in all {m} and {n}, got {got}"
            )
        rows.append(tuple(level[0]))
        columns.append(tuple(level[1]))
    return rows, columns


def _draw(sizes, rank, generator, dtype):
    """The factors of one level below each other, each with the variance of its own size."""
    return torch.cat([normal((size, rank), size, generator, dtype) for size in sizes])


def _fit_level(M, rows, columns, rank):
    """Factors of the level nearest to M, each block's below the one before."""
    tiles = zip(M.split(rows), columns, accumulate(columns, initial=0), strict=False)
    factors = [truncated(strip[:, start : start + width], rank) for strip, width, start in tiles]
    return tuple(torch.cat(side) for side in zip(*factors, strict=True))
