"""The matrix of two directions: semiseparable below the diagonal, semiseparable above it, and any diagonal."""

from dataclasses import dataclass

import torch

from smalearn._checks import broadcast_shapes, check_dtypes, check_shapes, check_type, holds
from smalearn._structured import Structured, check_operand, widen
from smalearn.ssm.semiseparable import Semiseparable
from smalearn.ssm.transitions import transitions


@dataclass(frozen=True, eq=False, repr=False)
class Quasiseparable(Structured):
    """M[t, s] = lower[t, s] for s < t, diagonal[t] for s = t, upper[s, t] for s > t.

    Two recurrences make its product, one forwards and one backwards in time. Band matrices are of this kind, and so is
    the inverse of each that has one, of the same orders.

    Args:
        lower: (..., T, T), of which the part below the diagonal is taken.
        diagonal: (..., T), dtype of the generators.
        upper: (..., T, T), of which the part below the diagonal is taken and transposed. It may have another order.

    Raises:
        ShapeError: T differs, or leading axes do not broadcast.
        TypeError: lower or upper is no `Semiseparable`.
        ValueError: a dtype or device differs.

    Source:
        Hwang et al. 2024 (Hydra), definition 3; Chandrasekaran and Gu 2003 for the solve.

    Example:
        >>> half = Semiseparable(torch.full((3,), 0.5), torch.ones(3, 1), torch.ones(3, 1))
        >>> Quasiseparable(half, torch.full((3,), 2.0), half).dense()
        tensor([[2.0000, 0.5000, 0.2500],
                [0.5000, 2.0000, 0.5000],
                [0.2500, 0.5000, 2.0000]])
    """

    lower: Semiseparable
    diagonal: torch.Tensor
    upper: Semiseparable

    def __post_init__(self):
        for name in ("lower", "upper"):
            check_type("Quasiseparable", name, getattr(self, name), Semiseparable)
        parts = {"lower.B": self.lower.B, "diagonal": self.diagonal, "upper.B": self.upper.B}
        check_dtypes("Quasiseparable", parts)
        operands = {"lower": (self.lower, "ts"), "diagonal": (self.diagonal, "t"), "upper": (self.upper, "ts")}
        check_shapes("Quasiseparable", operands)

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., T, T), the shape of `dense()`."""
        leading = broadcast_shapes(self.lower.shape[:-2], self.diagonal.shape[:-1], self.upper.shape[:-2])
        return (*leading, *self.lower.shape[-2:])

    def dense(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
        """The matrix itself, (..., T, T); errors and cost are those of `Semiseparable.dense`."""
        below, above = (part.dense(dtype, device).tril(-1) for part in (self.lower, self.upper))
        diagonal = torch.diag_embed(self.diagonal.to(device=device, dtype=below.dtype))
        return below + diagonal + above.mT

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """M x, by a recurrence forwards and another backwards.

        Args:
            x: (..., T, columns), dtype of the generators.

        Returns:
            (..., T, columns), dtype of x.

        Raises:
            ShapeError: x has fewer than two axes, or its axis -2 is not T.
            ValueError: dtype or device of x differ.

        Cost:
            `cost(columns)` multiply-adds, linear in T.
        """
        return self._product("matmul", x, self.lower, self.upper)

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y; argument, result, errors and cost are those of `matmul`."""
        return self._product("transpose_matmul", y, self.upper, self.lower)

    def _product(self, method, x, below, above):
        self._check(method, x)
        # each product has its own diagonal, which this matrix has not
        own = sum((part.C * part.B).sum(-1) for part in (below, above))
        return below.matmul(x) + above.transpose_matmul(x) + (self.diagonal - own)[..., None] * x

    def solve(self, y: torch.Tensor) -> torch.Tensor:
        """The x with M x = y: an elimination forwards in time, and a substitution backwards.

        What reaches step t from the past, h, is affine in what reaches it from the future, f: h = R f + r. Forwards,
        each step finds x_t as a function of f, and from it the next R and r. Backwards from the end, where f = 0, all
        is known. There is no pivoting: all leading blocks of M need an inverse, as they have if the diagonal dominates.

        Args:
            y: (..., T, columns), dtype of the generators.

        Returns:
            x (..., T, columns), dtype of y.

        Raises:
            ShapeError: y has fewer than two axes, or its axis -2 is not T.
            ValueError: dtype or device of y differ, or (on a CPU) a pivot is 0.

        Cost:
            T·(6·N² + 6·N·columns) multiply-adds for parts of order N with a scalar or diagonal A, T·2·N³ more for a
            general one, in 2·T steps that follow one another; T·(N + columns) numbers kept.

        Source:
            Chandrasekaran and Gu 2003, "Fast and stable algorithms for banded plus semiseparable systems".
        """
        self._check("solve", y)
        below, act = _steps(y, self.lower)
        above, act_up = _steps(y, self.upper)
        diagonal, right = widen(y, self.diagonal, y)
        leading = broadcast_shapes(self.shape[:-2], y.shape[:-2])
        R = right.new_zeros(*leading, self.lower.state, self.upper.state)
        r = right.new_zeros(*leading, y.shape[-1], self.lower.state)
        known, slopes = [], []
        for d, u, (a, b, c), (a_up, b_up, c_up) in zip(
            diagonal.unbind(-1), right.unbind(-2), below, above, strict=True
        ):
            R, r = act_up(a_up, act(a, R.mT).mT), act(a, r)
            sent = (R * c_up[..., None, :]).sum(-1)  # what x_t sends back in time, as it returns
            pivot = (d + (c * sent).sum(-1))[..., None]
            if pivot.device.type == "cpu" and not holds(pivot != 0):
                raise ValueError(f"Quasiseparable.solve: pivot {len(known)} is 0, and there is no pivoting")
            known.append((u - (r * c[..., None, :]).sum(-1)) / pivot)
            slopes.append(-((c[..., None] * R).sum(-2) + b_up) / pivot)
            write = sent + b
            R, r = R + write[..., None] * slopes[-1][..., None, :], r + known[-1][..., None] * write[..., None, :]
        if not known:
            return y.expand(*leading, *y.shape[-2:])
        return torch.stack(_substitute(known, slopes, above), -2).to(y.dtype)

    def cost(self, columns: int = 1) -> int:
        """Multiply-adds of `matmul` for each leading index: those of both parts, and one a row for the diagonal."""
        return self.lower.cost(columns) + self.upper.cost(columns) + self.shape[-1] * columns

    def _check(self, method: str, x: torch.Tensor) -> None:
        where = f"Quasiseparable.{method}"
        check_operand(where, "the matrix", self.shape, x, "T", self.shape[-1])
        check_dtypes(where, {"the generators": self.diagonal, "the operand": x})
        check_shapes(where, {"the matrix": (self, "ts"), "the operand": (x, "tp")})

    def __repr__(self) -> str:
        return f"Quasiseparable({', '.join(map(str, self.shape))}, states={self.lower.state, self.upper.state})"


def _steps(y, part):
    """A_t, B_t and C_t of each step, wide enough for y, and how A_t acts on a state."""
    A, B, C = widen(y, part.A, part.B, part.C)
    A, act, _ = transitions(A, B)
    return list(zip(A.unbind(-3), B.unbind(-2), C.unbind(-2), strict=True)), act


def _substitute(known, slopes, above):
    """Backwards in time: x_t = known_t + slope_t f, and f = A_t^T (f + C_t x_t) for the step before."""
    f, columns = 0, []
    for rest, slope, (a, _, c) in zip(known[::-1], slopes[::-1], above[::-1], strict=True):
        columns.append(rest + (f * slope[..., None, :]).sum(-1))
        f = f + columns[-1][..., None] * c[..., None, :]
        f = f @ a if a.shape[-2] > 1 else f * a  # a general A, or a scalar or diagonal one (N = 1 is all three)
    return columns[::-1]
