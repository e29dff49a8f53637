"""Low rank: the matrix of standard attention's scoring function (structured attention paper, section 3.1, Table 1)."""

import torch

from smalearn._checks import check_count, seeded
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, truncated


class LowRank(Weight):
    """M = L R^T: everything passes through r numbers.

    Parameters r·(m + n), as many multiply-adds, rank at most min(r, m, n). As a scoring function L is W_Q and R is W_K.

    Args:
        L: (m, r).
        R: (n, r), dtype and device of L.

    Raises:
        ShapeError: a factor does not have two axes, or r differs.
        ValueError: a factor has no floating dtype, or another dtype or device.

    Example:
        >>> LowRank(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])).dense()
        tensor([[3., 4.],
                [6., 8.]], grad_fn=<MmBackward0>)
    """

    def __init__(self, L: torch.Tensor, R: torch.Tensor):
        super().__init__()
        sizes = check_factors("LowRank", {"L": (L, "mr"), "R": (R, "nr")})
        self.shape, self.rank = (sizes["m"], sizes["n"]), sizes["r"]
        self.L, self.R = parameter(L), parameter(R)

    @classmethod
    def random(cls, m: int, n: int, rank: int, seed: int, dtype: torch.dtype | None = None) -> "LowRank":
        """A seeded draw, L from N(0, 1/m) and R from N(0, 1/n): as a scoring function, W_Q and W_K by their fan-in.

        Args:
            m: rows.
            n: columns.
            rank: r.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a size is not an integer ≥ 1.
        """
        for name, size in (("m", m), ("n", n), ("rank", rank)):
            check_count("LowRank.random", name, size)
        generator = seeded("LowRank.random", seed, dtype)
        return cls(normal((m, rank), m, generator, dtype), normal((n, rank), n, generator, dtype))

    @classmethod
    def from_dense(cls, M: torch.Tensor, rank: int) -> "LowRank":
        """The nearest matrix of rank at most r (Eckart, Young), by a truncated singular value decomposition.

        Args:
            M: (m, n).
            rank: r.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares of all singular values after the r-th.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, or rank is not an integer ≥ 1.
        """
        return cls(*truncated(matrix("LowRank.from_dense", M), check_count("LowRank.from_dense", "rank", rank)))

    @property
    def macs(self) -> int:
        """r·(m + n)."""
        return self.rank * sum(self.shape)

    @property
    def rank_bound(self) -> int:
        """min(r, m, n)."""
        return min(self.rank, *self.shape)

    def dense(self):
        """The product L R^T, (m, n)."""
        return self.L @ self.R.mT

    def _product(self, X):
        return (X.mT @ self.R @ self.L.mT).mT  # rows first: the result is then laid out as `forward` returns it
