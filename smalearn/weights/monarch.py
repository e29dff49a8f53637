"""Monarch matrices (Dao et al. 2022): the block tensor train of rank 1."""

import torch

from smalearn._checks import ShapeError
from smalearn.weights.btt import BlockTensorTrain


class Monarch(BlockTensorTrain):
    """M = P_L (⊕_b L_b) P_R (⊕_c R_c^T) with s = 1: two block diagonal matrices, features regrouped between and after.

    Parameters m·c + n·b, as many multiply-adds, rank at most min(m, n, b·c). A discrete Fourier transform with
    reordered columns is one.

    Args:
        L: (b, a, c, 1); Dao et al. call it w2, without the last axis.
        R: (c, d, b, 1), dtype and device of L; their w1 is (c, b, d).

    Raises:
        ShapeError: a factor does not have four axes, b, c or s differs, or s is not 1.
        ValueError: a factor has no floating dtype, or another dtype or device.
    """

    shown = ()

    def __init__(self, L: torch.Tensor, R: torch.Tensor):
        super().__init__(L, R)
        if self.rank != 1:
            raise ShapeError(f"Monarch: axis 's' must be 1, got {self.rank}; use BlockTensorTrain")

    @classmethod
    def random(cls, sizes: tuple[int, int, int, int], seed: int, dtype: torch.dtype | None = None) -> "Monarch":
        """A seeded draw, L from N(0, 1/c) and R from N(0, 1/d), by the fan-in of a block.

        Args:
            sizes: (a, b, c, d), such as `balanced_sizes(m, n)`.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a size is not an integer ≥ 1.
        """
        return super().random(sizes, 1, seed, dtype)

    @classmethod
    def from_dense(cls, M: torch.Tensor, sizes: tuple[int, int, int, int]) -> "Monarch":
        """The nearest Monarch matrix: every slice M[(:, b), (c, :)] cut to rank 1.

        Args:
            M: (m, n).
            sizes: (a, b, c, d) with a·b = m and c·d = n.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares of all but the first singular value of every slice.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, a size is not an integer ≥ 1, or the sizes do not multiply to (m, n).
        """
        return super().from_dense(M, sizes, 1)
