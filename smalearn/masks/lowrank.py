"""Masks of low rank, and their entrywise product with any other mask."""

import torch

from smalearn._checks import broadcast_shapes, check_dtypes, check_shapes, check_type
from smalearn.masks.base import RULES, Mask


class LowRankMask(Mask):
    """L = U V^T: L[t, s] = Σ_r U[t, r] V[s, r].

    Args:
        U: (..., T, R), real or complex.
        V: (..., S, R), dtype and device of U.

    Raises:
        ShapeError: an argument has too few axes, R differs, or leading axes do not broadcast.
        ValueError: U is not a floating tensor, or V has another dtype or device.

    Example:
        >>> LowRankMask(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])).dense()
        tensor([[3., 4.],
                [6., 8.]])
    """

    parameters = ("U", "V")

    def __init__(self, U: torch.Tensor, V: torch.Tensor):
        check_dtypes("LowRankMask", {"U": U, "V": V})
        sizes = check_shapes("LowRankMask", {"U": (U, "tr"), "V": (V, "sr")})
        self.U, self.V = U, V
        self.shape = (*broadcast_shapes(U.shape[:-2], V.shape[:-2]), sizes["t"], sizes["s"])

    @property
    def rank(self) -> int:
        """R, the number of columns of U and V."""
        return self.U.shape[-1]

    def dense(self, dtype=None, device=None):
        """The product of the factors, (..., T, S)."""
        return (self.U.to(device) @ self.V.to(device).mT).to(self._dense_dtype(dtype))

    def _product(self, x):
        return self.U.to(x) @ (self.V.to(x).mT @ x)

    def _transpose_product(self, y):
        return self.V.to(y) @ (self.U.to(y).mT @ y)

    def cost(self, columns: int = 1) -> int:
        """Two products: 2·R·(T + S)·columns, less one addition for each number they write."""
        target, source = self.shape[-2:]
        if not target * source * self.rank:
            return 0
        return (self.rank * (2 * source - 1) + target * (2 * self.rank - 1)) * columns


class HadamardMask(Mask):
    """L = (U V^T) ∘ M = Σ_r diag(U_r) M diag(V_r): R products with M, each between two scalings.

    Made by `LowRankMask(U, V) * M`.

    Args:
        factor: (..., T, S) mask of low rank.
        mask: (..., T, S) any mask M.

    Raises:
        ShapeError: the shapes differ, or leading axes do not broadcast.
        TypeError: an argument is not such a mask.
    """

    def __init__(self, factor: LowRankMask, mask: Mask):
        check_type("HadamardMask", "factor", factor, LowRankMask)
        check_type("HadamardMask", "mask", mask, Mask)
        check_shapes("HadamardMask", {"factor": (factor, "ts"), "mask": (mask, "ts")})
        self.factor, self.mask = factor, mask
        self.shape = (*broadcast_shapes(factor.shape[:-2], mask.shape[:-2]), *factor.shape[-2:])

    @property
    def is_complex(self) -> bool:
        """True if either mask is complex."""
        return self.factor.is_complex or self.mask.is_complex

    @property
    def stored(self) -> int:
        """The numbers of both masks."""
        return self.factor.stored + self.mask.stored

    def dense(self, dtype=None, device=None):
        """The entrywise product, (..., T, S)."""
        dtype = self._dense_dtype(dtype)
        return self.factor.dense(dtype, device) * self.mask.dense(dtype, device)

    def _product(self, x):
        return self._sandwich(x, self.factor.V, self.factor.U, self.mask.matmul)

    def _transpose_product(self, y):
        return self._sandwich(y, self.factor.U, self.factor.V, self.mask.transpose_matmul)

    def _sandwich(self, x, right, left, product):
        """Σ_r diag(left_r) product(diag(right_r) x), all r as columns of one product."""
        scaled = x[..., None] * right.to(x)[..., None, :]
        products = product(scaled.flatten(-2)).unflatten(-1, scaled.shape[-2:])
        return (products * left.to(x)[..., None, :]).sum(-1)

    def cost(self, columns: int = 1) -> int:
        """R products with the other mask, R scalings on either side, and the sum of R terms."""
        target, source = self.shape[-2:]
        rank = self.factor.rank
        return self.mask.cost(rank * columns) + (rank * (target + source) + max(rank - 1, 0) * target) * columns

    def __repr__(self) -> str:
        return f"{self.factor!r} * {self.mask!r}"


RULES.append((LowRankMask, Mask, HadamardMask))
