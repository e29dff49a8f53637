"""Multi-level block tensor contraction, which holds all other families (structured attention paper, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from smalearn._checks import ShapeError, check_counts, check_type, seeded
from smalearn.weights.base import Weight, check_factors, normal, parameter
from smalearn.weights.blocks import direct_sum, expand, project
from smalearn.weights.btt import BlockTensorTrain
from smalearn.weights.mlr import MultiLevelLowRank

NAME = "MultiLevelBlockTensorContraction"


@dataclass(frozen=True)
class Level:
    """The fixed part of a level: how the factors are cut into blocks, and in which order numbers are passed on.

    Attributes:
        rows: m_1, …, m_p', sizes of the blocks of L.
        columns: n_1, …, n_p, sizes of the blocks of R.
        left: P_L as an order of the m rows: row i of P_L Z is row left[i] of Z; None for the identity.
        right: P_R as an order of the r·p numbers between the factors, likewise.
        alpha: the coefficient of the level.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    left: torch.Tensor | None = None
    right: torch.Tensor | None = None
    alpha: float = 1.0


class MultiLevelBlockTensorContraction(Weight):
    """M = Σ_l α_l P_L,l (⊕_k' L_lk') P_R,l (⊕_k R_lk^T), equation (8), with p'_l blocks L_lk' and p_l blocks R_lk.

    Blocks on either side need not be the same; the permutations say how they meet. With p' = p, r' = r and no
    permutation it is multi-level low rank; one level with p' = b, p = c, r' = c·s, r = b·s is a block tensor train. See
    `as_mlbtc`. The paper's P_L and P_R have to depend on l, as here. Parameters Σ_l (m·r'_l + n·r_l), as many
    multiply-adds (α_l, a scaling of L_l, counts as none), rank at most the least of m, n and the sum over levels of
    min(Σ_k' min(r'_l, m_lk'), Σ_k min(r_l, n_lk)).

    Args:
        L: for every level (m, r'_l), its blocks below each other.
        R: for every level (n, r_l), likewise; dtype and device of L.
        levels: for every level its blocks and permutations.

    Raises:
        ShapeError: a factor does not have two axes, m or n differs between levels, or sizes do not sum to m and n.
        ValueError: a factor has no floating dtype, or another dtype or device; the three lists differ in length or are
            empty; r'_l·p'_l is not r_l·p_l; or an order is not a permutation of that many numbers.
    """

    shown = ("blocks",)

    def __init__(self, L: Sequence[torch.Tensor], R: Sequence[torch.Tensor], levels: Sequence[Level]):
        super().__init__()
        _check_factors(L, R, levels)
        self.shape = (len(L[0]), len(R[0]))
        self.L, self.R = nn.ParameterList(map(parameter, L)), nn.ParameterList(map(parameter, R))
        self.rows, self.columns = [level.rows for level in levels], [level.columns for level in levels]
        self.alpha = [level.alpha for level in levels]
        for i, level in enumerate(levels):  # as buffers they follow the factors to any device
            for side, order in (("left", level.left), ("right", level.right)):
                self.register_buffer(f"{side}_{i}", None if order is None else order.to(self.L[0].device))

    @classmethod
    def random(
        cls, ranks: Sequence[tuple[int, int]], levels: Sequence[Level], seed: int, dtype: torch.dtype | None = None
    ) -> "MultiLevelBlockTensorContraction":
        """A seeded draw, L_lk' from N(0, 1/r'_l) and R_lk from N(0, p_l/n), by the fan-in of a block.

        Args:
            ranks: (r'_l, r_l) of every level.
            levels: for every level its blocks and permutations.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ShapeError: m or n differs between levels.
            ValueError: the two lists differ in length, r'_l·p'_l is not r_l·p_l, or an order is not a permutation of
                that many numbers.
        """
        check_type(f"{NAME}.random", "ranks", ranks, Sequence)
        _check_levels(f"{NAME}.random", levels)
        for i, pair in enumerate(ranks):
            check_counts(f"{NAME}.random", f"ranks[{i}]", pair, count=2)
        if len(ranks) != len(levels):
            counts = f"{len(ranks)} and {len(levels)}"
            raise ValueError(f"{NAME}.random: ranks and levels need one entry for every level, got {counts}")
        generator, L, R = seeded(f"{NAME}.random", seed, dtype), [], []
        for (left, right), level in zip(ranks, levels, strict=True):
            m, n = sum(level.rows), sum(level.columns)
            L.append(normal((m, left), left, generator, dtype))
            R.append(normal((n, right), n // len(level.columns), generator, dtype))
        return cls(L, R, levels)

    @classmethod
    def from_dense(
        cls, M: torch.Tensor, sizes: tuple[int, int, int, int], rank: int
    ) -> "MultiLevelBlockTensorContraction":
        """One level, the block tensor train nearest to M: with rank min(a, d) it is M.

        Args:
            M: (m, n).
            sizes: (a, b, c, d) with a·b = m and c·d = n.
            rank: s.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, a size is not an integer ≥ 1, or the sizes do not multiply to (m, n).
        """
        return cls.from_btt(BlockTensorTrain.from_dense(M, sizes, rank))

    @classmethod
    def from_mlr(cls, weight: MultiLevelLowRank) -> "MultiLevelBlockTensorContraction":
        """Multi-level low rank as one: the same blocks on both sides, all α_l = 1, nothing permuted (appendix C)."""
        L, R = (factor.detach().clone().split(weight.ranks, 1) for factor in (weight.L, weight.R))
        return cls(L, R, [Level(*sizes) for sizes in zip(weight.rows, weight.columns, strict=True)])

    @classmethod
    def from_btt(cls, weight: BlockTensorTrain) -> "MultiLevelBlockTensorContraction":
        """A block tensor train as one: a single level with p' = b, p = c, r' = c·s, r = b·s (appendix C)."""
        a, b, c, d = weight.sizes
        left = torch.arange(b * a).view(b, a).mT.flatten()
        right = torch.arange(c * b * weight.rank).view(c, b, -1).transpose(0, 1).flatten()
        L, R = weight.L.detach().clone().view(b * a, -1), weight.R.detach().clone().view(c * d, -1)
        return cls([L], [R], [Level((a,) * b, (d,) * c, left, right)])

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """(p'_l, p_l) of every level."""
        return [(len(rows), len(columns)) for rows, columns in zip(self.rows, self.columns, strict=True)]

    @property
    def macs(self) -> int:
        """Σ_l (m·r'_l + n·r_l)."""
        return self.num_parameters

    @property
    def rank_bound(self) -> int:
        """The least of m, n and Σ_l min(Σ_k' min(r'_l, m_lk'), Σ_k min(r_l, n_lk))."""
        levels = zip((*self.L,), self.rows, (*self.R,), self.columns, strict=True)
        sides = [[sum(min(F.shape[1], k) for k in sizes) for F, sizes in ((L, p), (R, q))] for L, p, R, q in levels]
        return min(*self.shape, sum(map(min, sides)))

    def dense(self):
        """Its formula, with direct sums in full, (m, n)."""
        M = 0
        for i, alpha in enumerate(self.alpha):
            left, right = self._orders(i)
            inner = direct_sum(self.R[i], self.columns[i]).mT
            term = direct_sum(self.L[i], self.rows[i]) @ (inner if right is None else inner[right])
            M = M + alpha * (term if left is None else term[left])
        return M

    def _product(self, X):
        Y = 0
        for i, alpha in enumerate(self.alpha):
            left, right = self._orders(i)
            Z = project(self.R[i], self.columns[i], X).flatten(0, 1)
            Z = Z if right is None else Z[right]
            Z = expand(self.L[i], self.rows[i], Z.unflatten(0, (len(self.rows[i]), -1)))
            Z = Z if left is None else Z[left]
            Y = Y + (Z if alpha == 1 else alpha * Z)
        return Y

    def _orders(self, i):
        """P_L and P_R of a level."""
        return getattr(self, f"left_{i}"), getattr(self, f"right_{i}")


def _check_levels(function, levels):
    """Check that levels are a list of `Level`, with blocks that are lists of sizes."""
    check_type(function, "levels", levels, Sequence)
    for i, level in enumerate(levels):
        check_type(function, f"levels[{i}]", level, Level)
        for side in ("rows", "columns"):
            check_counts(function, f"{side} of levels[{i}]", getattr(level, side), 0)


def _check_factors(L, R, levels):
    """Check that factors and levels fit together."""
    for name, factors in (("L", L), ("R", R)):
        check_type(NAME, name, factors, Sequence)
    _check_levels(NAME, levels)
    if not len(L) == len(R) == len(levels) or not levels:
        counts = f"{len(L)}, {len(R)} and {len(levels)}"
        raise ValueError(f"{NAME}: L, R and levels need one entry for every level, got {counts}")
    for i, level in enumerate(levels):
        first = {"L[0]": (L[0], "mq"), "R[0]": (R[0], "nr")}
        check_factors(NAME, first | {f"L[{i}]": (L[i], "mj"), f"R[{i}]": (R[i], "nk")})
        m, n = len(L[0]), len(R[0])
        for side, sizes, total in (("rows", level.rows, m), ("columns", level.columns, n)):
            if sum(sizes) != total or min(sizes) < 1:
                raise ShapeError(f"{NAME}: {side} of levels[{i}] must sum to {total}, got {sizes}")
        inner = [(F.shape[1], len(sizes)) for F, sizes in ((L[i], level.rows), (R[i], level.columns))]
        if prod(inner[0]) != prod(inner[1]):
            got = " and ".join(f"{rank}·{blocks}" for rank, blocks in inner)
            raise ValueError(f"{NAME}: r'·p' of levels[{i}] must be r·p, got {got}")
        for side, order, size in (("left", level.left, m), ("right", level.right, prod(inner[0]))):
            if order is not None and order.sort().values.tolist() != list(range(size)):
                raise ValueError(f"{NAME}: {side} of levels[{i}] must be a permutation of {size} numbers")
