"""The contract of a structured mask, the table that shows one, and the rules of entrywise products.

A family's file adds its own `RULES`, and in `PROMOTIONS` what else can be written as a member of it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from smalearn._checks import check_dtypes, check_shapes, check_tensor, check_type
from smalearn._structured import Structured, View, check_operand, html_table, widen

RULES: list[tuple[type["Mask"], type["Mask"], Callable]] = []
"""Entrywise products that are fast again: two families, and what makes the product of a member of each."""
PROMOTIONS: dict[tuple[type["Mask"], type["Mask"]], Callable] = {}
"""(family, another) -> a function that takes a mask of the one to the same mask as one of the other, or to None."""


class Mask(Structured, ABC):
    """A (T, S) matrix over time with a product that is faster than its T·S entries.

    A subclass states its `shape`, its entries (`dense`) and its fast products. `dense` is the definition; that the
    products agree with it is tested for every mask. A mask may have leading axes, those of its parameters, such as one
    decay for each head: they broadcast against the operand's.
    """

    shape: tuple[int, ...]
    shown: tuple[str, ...] = ()
    """Attributes that `repr` shows besides the shape, by their names."""
    parameters: tuple[str, ...] = ()
    """Attributes that hold tensors, by their names; they are all that the mask stores and has gradients for."""

    @property
    def is_complex(self) -> bool:
        """True if the entries are complex; then the operands of a product must be."""
        return any(getattr(self, name).is_complex() for name in self.parameters)

    @property
    def stored(self) -> int:
        """Count the numbers that the mask stores, in place of its T·S entries for each leading index."""
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

        A NaN or infinity in x, or an overflow, may reach all rows, also where L is 0; under `CausalMask` and the sparse
        masks it does not.

        Args:
            x: (..., S, columns), any number of columns.

        Returns:
            (..., T, columns), dtype and device of x. Cost: `cost(columns)` operations for each leading index.

        Raises:
            ShapeError: x has fewer than two axes, its axis -2 is not S, or leading axes do not broadcast.
            TypeError: x is not a tensor.
            ValueError: the mask is complex and x is not, or it has parameters and x holds integers.
        """
        self._check("matmul", x, axis="S", size=self.shape[-1])
        return self._product(*widen(x, x)).to(x.dtype)

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """L^T y, without forming L: (..., S, columns), dtype and device of y, for y (..., T, columns).

        Errors are those of `matmul`, for y and T in place of x and S.
        """
        self._check("transpose_matmul", y, axis="T", size=self.shape[-2])
        return self._transpose_product(*widen(y, y)).to(y.dtype)

    def __mul__(self, other: "Mask | float | torch.Tensor") -> "Mask":
        """The entrywise product L1 ∘ L2, see `hadamard`; or c·L for a number c."""
        return hadamard(self, other) if isinstance(other, Mask) else super().__mul__(other)

    def _view(self, factor, transposed):
        return _MaskView(self, factor, transposed)

    def _check(self, method: str, x: torch.Tensor, axis: str, size: int) -> None:
        where = f"{type(self).__name__}.{method}"
        check_operand(where, "the mask", self.shape, x, axis, size)
        if self.stored:  # masks of zeros and ones count integers too
            check_dtypes(where, {"the operand": x})
        if self.is_complex and not x.is_complex():
            raise ValueError(f"{where}: the mask is complex but the operand is {x.dtype}; make it complex")

    def _dense_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        """The dtype that `dense(dtype)` is to have, checked."""
        if dtype is not None:
            check_type(f"{type(self).__name__}.dense", "dtype", dtype, torch.dtype)
        else:
            default = torch.get_default_dtype()
            dtype = default.to_complex() if self.is_complex else default
        if self.is_complex and not dtype.is_complex:
            name = type(self).__name__
            raise ValueError(f"{name}.dense: the mask is complex but the dtype is {dtype}; make Q, K and V complex")
        return dtype

    def __repr__(self) -> str:
        details = [*map(str, self.shape), *self._details("=")]
        return f"{type(self).__name__}({', '.join(details)})"

    def _repr_html_(self) -> str:
        """A table: family, shape, parameters, numbers stored and operations of a product, each next to the dense."""
        target, source = self.shape[-2:]
        heads = math.prod(self.shape[:-2])
        rows = {
            "family": type(self).__name__,
            "shape": " × ".join(map(str, self.shape)),
            "parameters": ", ".join(self._details(" = ")) or "none",
            "numbers stored": f"{self.stored:,} (dense: {heads * target * source:,})",
            "operations for one column": f"{heads * self.cost():,} (dense: {heads * target * (2 * source - 1):,})",
        }
        return html_table(rows)

    def _details(self, equals: str) -> list[str]:
        """What the mask is made of: its numbers by their values, larger parameters by their shapes."""
        details = [f"{name}{equals}{getattr(self, name)}" for name in self.shown]
        for name in self.parameters:
            parameter = getattr(self, name)
            number = f"{equals}{parameter.item():.4g}" if parameter.ndim == 0 else f": {tuple(parameter.shape)}"
            details.append(f"{name}{number}")
        return details


def hadamard(L1: Mask, L2: Mask) -> Mask:
    """The entrywise product L1 ∘ L2, as a mask with a fast product; also written L1 * L2.

    | families | product |
    |---|---|
    | low rank, any | R products with the other mask |
    | decay, decay | decay γ1·γ2 |
    | 1-semiseparable, 1-semiseparable or decay | 1-semiseparable, the log_a add |
    | hierarchical, 1-semiseparable or decay | hierarchical, the log_a add |
    | Toeplitz, Toeplitz or decay | Toeplitz, the α multiply |
    | sparse, sparse or causal | sparse |

    A causal mask with as many targets as sources is a decay of γ = 1. A decay γ = 0 has no gradient once it is a log_a.

    Args:
        L1: (..., T, S) mask.
        L2: (..., T, S) mask; leading axes broadcast.

    Returns:
        (..., T, S) mask.

    Raises:
        ShapeError: the shapes differ.
        TypeError: an argument is not a mask, or no rule makes the product fast.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.3, for the families.
    """
    for name, L in (("L1", L1), ("L2", L2)):
        check_type("hadamard", name, L, Mask)
    check_shapes("hadamard", {"L1": (L1, "ts"), "L2": (L2, "ts")})
    for first_family, second_family, product in RULES:
        for one, other in ((L1, L2), (L2, L1)):
            first = _as_member(one, first_family)
            second = _as_member(other, second_family)
            if first and second:
                return product(first, second)
    names = f"{type(L1).__name__} ∘ {type(L2).__name__}"
    raise TypeError(f"hadamard: no fast product is known for {names}; multiply L1.dense() * L2.dense()")


def dense_mask(L: "Mask | torch.Tensor", like: torch.Tensor) -> torch.Tensor:
    """The mask as a tensor with the dtype and device of `like`; a tensor is passed through, booleans become 0 and 1.

    Args:
        L: (..., T, S) mask or tensor.
        like: tensor whose dtype and device the result takes.

    Returns:
        (..., T, S) tensor.

    Raises:
        TypeError: L is neither a mask nor a tensor, or like is not a tensor.
    """
    check_type("dense_mask", "L", L, Mask, torch.Tensor)
    check_tensor("dense_mask", "like", like)
    if isinstance(L, Mask):
        return L.dense(like.dtype, like.device)
    check_tensor("dense_mask", "L", L)
    return L.to(like.dtype) if L.dtype == torch.bool else L


def _as_member(mask: Mask, family: type[Mask]) -> Mask | None:
    """The mask as a member of a family to which it belongs, else None."""
    if isinstance(mask, family):
        return mask
    promote = PROMOTIONS.get((type(mask), family))
    return promote(mask) if promote else None


class _MaskView(View, Mask):
    """c·L or c·L^T of a mask L, which is a mask again."""

    @property
    def is_complex(self) -> bool:
        """True if L is complex."""
        return self.matrix.is_complex

    @property
    def stored(self) -> int:
        """The numbers of L."""
        return self.matrix.stored

    _product, _transpose_product = View.matmul, View.transpose_matmul

    def cost(self, columns: int = 1) -> int:
        """The operations of L, and those of the factor: one for each entry of the product."""
        return self.matrix.cost(columns) + (0 if self._unscaled() else self.shape[-2] * columns)
