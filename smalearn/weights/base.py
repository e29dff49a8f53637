"""The contract of a structured weight matrix, the checks that all families share, and the table that shows one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import nn

from smalearn._checks import ShapeError, brief, check_dtypes, check_finite, check_shapes
from smalearn._structured import Structured, check_operand, html_table


class Weight(Structured, nn.Module, ABC):
    """An (m, n) matrix over features, held by fewer numbers than its m·n entries.

    A subclass takes its factors, states its entries (`dense`) and its fast product. `dense` is the definition; that
    product and definition agree is tested for every family. Factors given as plain tensors become parameters, so a
    weight is trained like an `nn.Linear` without a bias.

    Attributes:
        shape: (m, n), the sizes of what comes out and of what goes in.
    """

    shape: tuple[int, int]
    shown: tuple[str, ...] = ()
    """Attributes that `repr` shows besides the shape, by their names."""

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """The matrix itself.

        Returns:
            (m, n) tensor, dtype and device of the factors, with gradients for them.
        """

    @abstractmethod
    def _product(self, X: torch.Tensor) -> torch.Tensor:
        """M X for X of shape (n, columns), already checked; any strides in, any strides out."""

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-adds of `forward` for one vector."""

    @property
    @abstractmethod
    def rank_bound(self) -> int:
        """Bound on the rank for all factors of these sizes; where blocks are equal, almost all reach it."""

    @property
    def num_parameters(self) -> int:
        """How many numbers the factors hold, in place of m·n."""
        return sum(factor.numel() for factor in self.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """M x for every vector x, without forming M.

        Args:
            x: (..., n), dtype and device of the factors.

        Returns:
            (..., m), contiguous, dtype and device of x. Cost: `macs` multiply-adds for each vector.

        Raises:
            ShapeError: the last axis of x is not n.
            ValueError: x has another dtype or device than the factors.
        """
        self._check("forward", "x", x, 1)
        return self._apply_to(x)

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """M x for vectors that are columns, also written `M @ x`; `forward` takes them as rows.

        Args:
            x: (..., n, columns), dtype and device of the factors.

        Returns:
            (..., m, columns), dtype and device of x. Cost: `macs` multiply-adds for each column.

        Raises:
            ShapeError: x has fewer than two axes, or its axis -2 is not n.
            ValueError: x has another dtype or device than the factors.
        """
        self._check_columns("matmul", x, 1)
        return self._apply_to(x.mT).mT

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y, (..., n, columns) for y (..., m, columns): the gradient of Σ y ∘ (M x), which is linear in x.

        Errors are those of `matmul`, for y and m in place of x and n. Cost: twice `macs` multiply-adds for each column.
        """
        self._check_columns("transpose_matmul", y, 0)
        rows = y.mT
        _, gradient = torch.func.vjp(self._apply_to, rows.new_zeros(*rows.shape[:-1], self.shape[1]))
        (x,) = gradient(rows.conj())
        return x.conj().mT

    def bilinear(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x^T M y for every pair of vectors, without forming M.

        Nothing is conjugated where the numbers are complex. For all pairs of two lists use `X @ weight(Y).mT`.

        Args:
            x: (..., m), dtype and device of the factors.
            y: (..., n), likewise; leading axes broadcast with those of x.

        Returns:
            (...), dtype and device of x. Cost: `macs` + m multiply-adds for each pair.

        Raises:
            ShapeError: a last axis has the wrong size, or leading axes do not broadcast.
            ValueError: an argument has another dtype or device than the factors.
        """
        self._check("bilinear", "x", x, 0)
        self._check("bilinear", "y", y, 1)
        check_shapes(f"{type(self).__name__}.bilinear", {"x": (x, "m"), "y": (y, "n")})
        return torch.linalg.vecdot(x.conj(), self._apply_to(y))

    def _apply_to(self, x):
        """The product with all vectors as columns: what the formulas say, and what needs the fewest copies."""
        Y = self._product(x.reshape(-1, x.shape[-1]).mT)
        rows = Y.mT if Y.mT.is_contiguous() else _Rows.apply(Y)
        return rows.view(*x.shape[:-1], self.shape[0])

    def _check_columns(self, method: str, x: torch.Tensor, axis: int) -> None:
        where = f"{type(self).__name__}.{method}"
        check_operand(where, "the weight", self.shape, x, "mn"[axis], self.shape[axis])
        self._check_dtype(where, "the operand", x)

    def _check_dtype(self, where: str, name: str, x: torch.Tensor) -> None:
        first = next(self.named_parameters(), None)
        check_dtypes(where, {first[0]: first[1], name: x} if first else {name: x})

    def _check(self, method: str, name: str, x: torch.Tensor, axis: int) -> None:
        where, letter, size = f"{type(self).__name__}.{method}", "mn"[axis], self.shape[axis]
        self._check_dtype(where, name, x)
        if x.ndim < 1 or x.shape[-1] != size:
            raise ShapeError(f"{where}: {name} needs axes (..., {letter}) with {letter} = {size}, got {tuple(x.shape)}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([*map(str, self.shape), *self._details('=')])})"

    def _repr_html_(self) -> str:
        """A table: family, shape, factors; numbers stored, multiply-adds and rank, each next to the dense."""
        m, n = self.shape
        rows = {
            "family": type(self).__name__,
            "shape": f"{m} × {n}",
            "factors": ", ".join(self._details(" = ")) or "none",
            "numbers stored": f"{self.num_parameters:,} (dense: {m * n:,})",
            "multiply-adds for one vector": f"{self.macs:,} (dense: {m * n:,})",
            "rank, at most": f"{self.rank_bound:,} (dense: {min(m, n):,})",
        }
        return html_table(rows)

    def _details(self, equals: str) -> list[str]:
        """Settings with their values and factors with their shapes, as `repr` and the table show them."""
        settings = [f"{name}{equals}{getattr(self, name)}" for name in self.shown]
        return settings + [f"{name}: {tuple(factor.shape)}" for name, factor in self.named_parameters()]


class _Rows(torch.autograd.Function):
    """Y^T laid out row by row; its gradient is laid out as Y, so that the products behind it can read it as it is."""

    generate_vmap_rule = True

    @staticmethod
    def forward(Y):
        return Y.mT.contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, dY):
        return dY.mT.contiguous()


def check_factors(function: str, factors: Mapping[str, tuple[torch.Tensor, str]]) -> dict[str, int]:
    """Check that factors share dtype and device, have just the named axes, and agree on their sizes; return these."""
    check_dtypes(function, {name: factor for name, (factor, _) in factors.items()})
    for name, (factor, axes) in factors.items():
        if factor.ndim != len(axes):
            raise ShapeError(f"{function}: {name} needs axes ({', '.join(axes)}), got shape {tuple(factor.shape)}")
    return check_shapes(function, factors)


def normal(shape: tuple[int, ...], fan_in: int, generator: torch.Generator, dtype: torch.dtype | None) -> torch.Tensor:
    """A seeded draw from N(0, 1 / fan_in), rounded from float64, so that all precisions start from the same point."""
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) / max(fan_in, 1) ** 0.5
    return drawn.to(dtype or torch.get_default_dtype())


def parameter(factor: torch.Tensor) -> nn.Parameter:
    """A factor to be trained, laid out in the order of its axes."""
    return nn.Parameter(factor.detach().contiguous())


def matrix(function: str, M: torch.Tensor) -> torch.Tensor:
    """The matrix (m, n) that a weight is fitted to, checked to be finite, without gradients."""
    check_dtypes(function, {"M": M})
    if M.ndim != 2:
        raise ShapeError(f"{function}: M needs axes (m, n), got shape {tuple(M.shape)}")
    check_finite(function, "M", M)
    return M.detach()


def split(function: str, argument: str, count: int, **sizes: int) -> None:
    """Check that a count divides every named size; the message names all counts that do."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or any(n % count for n in sizes.values()):
        fitting = [k for k in range(1, min(sizes.values()) + 1) if not any(n % k for n in sizes.values())]
        named = " and ".join(f"{name} = {size}" for name, size in sizes.items())
        choices = ", ".join(map(str, fitting)) or "nothing"
        raise ValueError(f"{function}: {argument} must divide {named}, got {brief(count)}; what fits: {choices}")


def truncated(M: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors L (..., m, r), R (..., n, r) of the matrix of rank ≤ r nearest to each of M (Eckart, Young): M ≈ L R^T.

    Both get the square root of each singular value; columns of zeros fill up where `rank` exceeds that of any such
    matrix. Computed in float64, then rounded.
    """
    U, S, Vh = torch.linalg.svd(M.to(torch.promote_types(M.dtype, torch.float64)), full_matrices=False)
    kept = min(rank, S.shape[-1])
    root = S[..., None, :kept].sqrt()
    L, R = U[..., :kept] * root, Vh.mT[..., :kept] * root
    return tuple(nn.functional.pad(factor, (0, rank - kept)).to(M.dtype) for factor in (L, R))
