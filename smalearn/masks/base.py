"""The contract of a structured mask, the checks that all masks share, and the table that shows one."""

import html
import math
from abc import ABC, abstractmethod

import torch

from smalearn._checks import ShapeError

__all__ = ["Mask", "dense_mask", "widened"]


class Mask(ABC):
    """A (T, S) matrix over time with a product that is faster than its T·S entries.

    A subclass states its `shape`, its entries (`dense`) and its fast products. `dense` is the definition; that the
    products agree with it is tested for every mask. A mask may have leading axes, those of its parameters, such as one
    decay for each head: they broadcast against the operand's.
    """

    shape: tuple[int, ...]
    shown: tuple[str, ...] = ()
    """Names of the attributes, beside the shape, that `repr` shows."""
    parameters: tuple[str, ...] = ()
    """Names of the attributes that hold tensors: all numbers that the mask stores, and what it has gradients for."""

    @property
    def is_complex(self) -> bool:
        """Whether the entries are complex; then the operands of a product must be."""
        return any(getattr(self, name).is_complex() for name in self.parameters)

    @property
    def stored(self) -> int:
        """How many numbers the mask stores, in place of its T·S entries for each leading index."""
        return sum(getattr(self, name).numel() for name in self.parameters)

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
        """The matrix itself.

        Args:
            dtype: of the result; torch's default dtype if None, or the complex one of that precision.
            device: of the result; that of the parameters if None, or torch's default without any.

        Returns:
            (..., T, S) tensor. Cost: T·S entries.

        Raises:
            ValueError: the mask is complex and dtype is not.
        """

    @abstractmethod
    def _product(self, x: torch.Tensor) -> torch.Tensor:
        """L x for x of shape (..., S, columns), already checked."""

    @abstractmethod
    def _transpose_product(self, y: torch.Tensor) -> torch.Tensor:
        """L^T y for y of shape (..., T, columns), already checked."""

    @abstractmethod
    def cost(self, columns: int = 1) -> int:
        """Additions and multiplications that a product with so many columns takes, for each leading index.

        The fewest we know. `matmul` may do a few times more where that takes less time.
        """

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """L x, without forming L.

        Args:
            x: (..., S, columns), any number of columns.

        Returns:
            (..., T, columns), dtype and device of x. Cost: `cost(columns)` operations for each leading index.

        Raises:
            ShapeError: x has fewer than two axes, its axis -2 is not S, or leading axes do not broadcast.
            ValueError: the mask is complex and x is not.
        """
        self._check("matmul", x, axis="S", size=self.shape[-1])
        return self._product(widened(x)).to(x.dtype)

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """L^T y, without forming L.

        Args:
            y: (..., T, columns), any number of columns.

        Returns:
            (..., S, columns), dtype and device of y.

        Raises:
            ShapeError: y has fewer than two axes, its axis -2 is not T, or leading axes do not broadcast.
            ValueError: the mask is complex and y is not.
        """
        self._check("transpose_matmul", y, axis="T", size=self.shape[-2])
        return self._transpose_product(widened(y)).to(y.dtype)

    def __mul__(self, other: "Mask") -> "Mask":
        """The entrywise product L1 ∘ L2; see `hadamard`."""
        if not isinstance(other, Mask):
            return NotImplemented
        from smalearn.masks.hadamard import hadamard

        return hadamard(self, other)

    def _check(self, method: str, x: torch.Tensor, axis: str, size: int) -> None:
        where = f"{type(self).__name__}.{method}"
        if x.ndim < 2:
            raise ShapeError(f"{where}: operand needs axes (..., {axis}, columns), got shape {tuple(x.shape)}")
        if x.shape[-2] != size:
            raise ShapeError(f"{where}: axis {axis} is {size} in the mask but {x.shape[-2]} in the operand")
        ours, theirs = self.shape[:-2], tuple(x.shape[:-2])
        if any(a != b and 1 not in (a, b) for a, b in zip(reversed(ours), reversed(theirs), strict=False)):
            raise ShapeError(f"{where}: leading axes {ours} of the mask do not broadcast with {theirs} of the operand")
        if self.is_complex and not x.is_complex():
            raise ValueError(f"{where}: the mask is complex but the operand is {x.dtype}; make it complex")

    def _dense_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """The dtype that `dense(dtype)` is to have, checked."""
        dtype = torch.get_default_dtype() if dtype is None and not self.is_complex else dtype
        dtype = torch.get_default_dtype().to_complex() if dtype is None else dtype
        if self.is_complex and not dtype.is_complex:
            name = type(self).__name__
            raise ValueError(f"{name}.dense: the mask is complex but the dtype is {dtype}; make Q, K and V complex")
        return dtype

    def __repr__(self) -> str:
        details = [f"{name}={getattr(self, name)}" for name in self.shown]
        details += [_brief(name, getattr(self, name), "=") for name in self.parameters]
        return f"{type(self).__name__}({', '.join([*map(str, self.shape), *details])})"

    def _repr_html_(self) -> str:
        """A table: family, shape, parameters, numbers stored and operations of a product, both beside the dense."""
        target, source = self.shape[-2:]
        heads = math.prod(self.shape[:-2])
        given = [f"{name} = {getattr(self, name)}" for name in self.shown]
        given += [_brief(name, getattr(self, name), " = ") for name in self.parameters]
        rows = {
            "family": type(self).__name__,
            "shape": " × ".join(map(str, self.shape)),
            "parameters": ", ".join(given) or "none",
            "numbers stored": f"{self.stored:,} (dense: {heads * target * source:,})",
            "operations for one column": f"{heads * self.cost():,} (dense: {heads * target * (2 * source - 1):,})",
        }
        cells = (
            f'<tr><th style="text-align: left">{html.escape(key)}</th>'
            f'<td style="text-align: left">{html.escape(value)}</td></tr>'
            for key, value in rows.items()
        )
        return "\n".join(["<table>", "<tbody>", *cells, "</tbody>", "</table>"])


def widened(x: torch.Tensor) -> torch.Tensor:
    """An operand in the dtype of all arithmetic: float32 for half precision, else its own."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def _brief(name: str, parameter: torch.Tensor, equals: str) -> str:
    """The value of a scalar, the shape of anything else."""
    return f"{name}{equals}{parameter.item():.4g}" if parameter.ndim == 0 else f"{name}: {tuple(parameter.shape)}"


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
