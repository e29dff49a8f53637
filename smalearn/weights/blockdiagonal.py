"""Block diagonal matrices, with full blocks or blocks of low rank (structured attention paper, section 3.1)."""

import torch

from smalearn._checks import check_count, seeded
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, split, truncated


class BlockDiagonal(Weight):
    """M = ⊕_k W_k: p blocks on the diagonal, each full; features of different blocks never meet.

    Parameters m·n/p, as many multiply-adds, rank at most min(m, n).

    Args:
        W: (p, m/p, n/p), the blocks.

    Raises:
        ShapeError: W does not have three axes.
        ValueError: W has no floating dtype.
    """

    def __init__(self, W: torch.Tensor):
        super().__init__()
        sizes = check_factors("BlockDiagonal", {"W": (W, "pmn")})
        self.blocks = sizes["p"]
        self.shape = (self.blocks * sizes["m"], self.blocks * sizes["n"])
        self.W = parameter(W)

    @classmethod
    def random(cls, m: int, n: int, blocks: int, seed: int, dtype: torch.dtype | None = None) -> "BlockDiagonal":
        """A seeded draw from N(0, p/n), by the fan-in of a block.

        Args:
            m: rows.
            n: columns.
            blocks: p, a divisor of both.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a size is not an integer ≥ 1, or blocks does not divide m and n.
        """
        _check_sizes("BlockDiagonal.random", m, n, blocks)
        generator = seeded("BlockDiagonal.random", seed, dtype)
        return cls(normal((blocks, m // blocks, n // blocks), n // blocks, generator, dtype))

    @classmethod
    def from_dense(cls, M: torch.Tensor, blocks: int) -> "BlockDiagonal":
        """The nearest block diagonal matrix: the blocks of M on the diagonal.

        Args:
            M: (m, n).
            blocks: p, a divisor of both.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares outside the blocks.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, or blocks does not divide m and n.
        """
        return cls(_diagonal_blocks("BlockDiagonal.from_dense", M, blocks).clone())

    @property
    def macs(self) -> int:
        """m·n/p."""
        return self.W.numel()

    @property
    def rank_bound(self) -> int:
        """min(m, n)."""
        return min(self.shape)

    def dense(self):
        """The blocks on the diagonal of zeros, (m, n)."""
        return torch.block_diag(*self.W)

    def _product(self, X):
        return torch.bmm(self.W, X.unflatten(0, (self.blocks, -1))).flatten(0, 1)


class BlockLowRank(Weight):
    """M = ⊕_k L_k R_k^T: p blocks of rank r, between low rank (p = 1) and diagonal (p = m = n, r = 1).

    Parameters r·(m + n) whatever p is, as many multiply-adds, rank at most min(m, n, p·r).

    Args:
        L: (p, m/p, r).
        R: (p, n/p, r), dtype and device of L.

    Raises:
        ShapeError: a factor does not have three axes, or p or r differs.
        ValueError: a factor has no floating dtype, or another dtype or device.
    """

    def __init__(self, L: torch.Tensor, R: torch.Tensor):
        super().__init__()
        sizes = check_factors("BlockLowRank", {"L": (L, "pmr"), "R": (R, "pnr")})
        self.blocks, self.rank = sizes["p"], sizes["r"]
        self.shape = (self.blocks * sizes["m"], self.blocks * sizes["n"])
        self.L, self.R = parameter(L), parameter(R)

    @classmethod
    def random(
        cls, m: int, n: int, blocks: int, rank: int, seed: int, dtype: torch.dtype | None = None
    ) -> "BlockLowRank":
        """A seeded draw, L from N(0, p/m) and R from N(0, p/n): the paper's variances for a level of blocks.

        The rank r is that of each block. All other arguments and the errors are those of `BlockDiagonal.random`.
        """
        _check_sizes("BlockLowRank.random", m, n, blocks)
        check_count("BlockLowRank.random", "rank", rank)
        generator = seeded("BlockLowRank.random", seed, dtype)
        return cls(*(normal((blocks, size // blocks, rank), size // blocks, generator, dtype) for size in (m, n)))

    @classmethod
    def from_dense(cls, M: torch.Tensor, blocks: int, rank: int) -> "BlockLowRank":
        """The nearest such matrix: each block of M on the diagonal, cut to rank r.

        Args:
            M: (m, n).
            blocks: p, a divisor of both.
            rank: r of each block.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares outside the blocks and of all singular values of the
            blocks after the r-th.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, blocks does not divide m and n, or rank is not an integer ≥ 1.
        """
        function = "BlockLowRank.from_dense"
        return cls(*truncated(_diagonal_blocks(function, M, blocks), check_count(function, "rank", rank)))

    @property
    def macs(self) -> int:
        """r·(m + n)."""
        return self.rank * sum(self.shape)

    @property
    def rank_bound(self) -> int:
        """p·min(r, m/p, n/p)."""
        return min(self.blocks * self.rank, *self.shape)

    def dense(self):
        """The blocks L_k R_k^T on the diagonal of zeros, (m, n)."""
        return torch.block_diag(*(self.L @ self.R.mT))

    def _product(self, X):
        Z = torch.bmm(self.R.mT, X.unflatten(0, (self.blocks, -1)))
        return torch.bmm(self.L, Z).flatten(0, 1)


def _check_sizes(function: str, m: int, n: int, blocks: int) -> None:
    check_count(function, "m", m)
    check_count(function, "n", n)
    split(function, "blocks", blocks, m=m, n=n)


def _diagonal_blocks(function: str, M: torch.Tensor, blocks: int) -> torch.Tensor:
    """The p blocks of M on its diagonal, (p, m/p, n/p)."""
    M = matrix(function, M)
    split(function, "blocks", blocks, m=M.shape[0], n=M.shape[1])
    tiles = M.unflatten(1, (blocks, -1)).unflatten(0, (blocks, -1))
    return tiles.diagonal(dim1=0, dim2=2).movedim(-1, 0)
