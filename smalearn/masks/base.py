"""The contract of a structured mask, and the two checks that all masks share."""

from abc import ABC, abstractmethod

import torch

from smalearn._checks import ShapeError

__all__ = ["Mask", "dense_mask"]


class Mask(ABC):
    """A (T, S) matrix over time with a product that is faster than its T·S entries.

    A subclass states its `shape`, its entries (`dense`) and its fast products. `dense` is the definition; that the
    products agree with it is tested for every mask.
    """

    shape: tuple[int, ...]
    shown: tuple[str, ...] = ()
    """Names of the attributes, beside the shape, that `repr` shows."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
        """The matrix itself.

        Args:
            dtype: of the result; torch's default dtype if None.
            device: of the result.

        Returns:
            (..., T, S) tensor. Cost: T·S entries.
        """

    @abstractmethod
    def _product(self, x: torch.Tensor) -> torch.Tensor:
        """L x for x of shape (..., S, columns), already checked."""

    @abstractmethod
    def _transpose_product(self, y: torch.Tensor) -> torch.Tensor:
        """L^T y for y of shape (..., T, columns), already checked."""

    @abstractmethod
    def cost(self, columns: int = 1) -> int:
        """Additions and multiplications of `matmul` on an operand with that many columns."""

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """L x, without forming L.

        Args:
            x: (..., S, columns), any number of columns.

        Returns:
            (..., T, columns), dtype and device of x. Cost: `cost(columns)` operations for each leading index.

        Raises:
            ShapeError: x has fewer than two axes, or its axis -2 is not S.
        """
        self._check("matmul", x, axis="S", size=self.shape[-1])
        return self._product(x)

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """L^T y, without forming L.

        Args:
            y: (..., T, columns), any number of columns.

        Returns:
            (..., S, columns), dtype and device of y.

        Raises:
            ShapeError: y has fewer than two axes, or its axis -2 is not T.
        """
        self._check("transpose_matmul", y, axis="T", size=self.shape[-2])
        return self._transpose_product(y)

    def _check(self, method: str, x: torch.Tensor, axis: str, size: int) -> None:
        where = f"{type(self).__name__}.{method}"
        if x.ndim < 2:
            raise ShapeError(f"{where}: operand needs axes (..., {axis}, columns), got shape {tuple(x.shape)}")
        if x.shape[-2] != size:
            raise ShapeError(f"{where}: axis {axis} is {size} in the mask but {x.shape[-2]} in the operand")

    def __repr__(self) -> str:
        details = [f"{name}={getattr(self, name)}" for name in self.shown]
        return f"{type(self).__name__}({', '.join([*map(str, self.shape), *details])})"


def dense_mask(L: "Mask | torch.Tensor", like: torch.Tensor) -> torch.Tensor:
    """The mask as a tensor with the dtype and device of `like`; a tensor is passed through, booleans become 0 and 1.

    Args:
        L: (..., T, S) mask or tensor.
        like: tensor whose dtype and device the result takes.

    Returns:
        (..., T, S) tensor.
    """
    if isinstance(L, Mask):
        return L.dense(like.dtype, like.device)
    return L.to(like.dtype) if L.dtype == torch.bool else L
