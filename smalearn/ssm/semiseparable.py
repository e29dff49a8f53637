"""The semiseparable matrix: its generators, its entries, and its products and solves in linear time."""

from dataclasses import dataclass

import torch

from smalearn._checks import broadcast_shapes, check_dtypes, check_shapes, check_type, holds
from smalearn._structured import Structured, check_operand, widen
from smalearn.ssm.transitions import check_generators, recur, start, transitions


@dataclass(frozen=True, eq=False, repr=False)
class Semiseparable(Structured):
    """M[t, s] = C_t^T A_t ... A_(s+1) B_s for s ≤ t, and 0 above the diagonal.

    The structure of A follows from its number of axes: one axis less than B is a scalar a_t·I, as many is a diagonal
    matrix, one more is any matrix, singular ones included. So A has as many leading axes as B, of size 1 where it is
    shared. A_0 occurs in no entry. A constant A is passed as `A.expand(T, N, N)`, which copies nothing; tril(U V^T) is
    `Semiseparable(torch.ones(T), V, U)`, its product a running sum.

    Args:
        A: (..., T), (..., T, N) or (..., T, N, N) transitions, dtype of B or float32.
        B: (..., T, N) input vectors.
        C: (..., T, N) output vectors, dtype of B.

    Raises:
        ShapeError: A.ndim matches none of the layouts, or an axis has two sizes.
        ValueError: a dtype or device differs.

    Source:
        Dao and Gu 2024 (Mamba-2), section 3.2.1; Andersen and Chen 2020.

    Example:
        >>> one = torch.ones(3, 1)
        >>> Semiseparable(torch.tensor([0.5, 0.5, 0.0]), one, one).dense()
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 1.0000, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """

    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor

    def __post_init__(self):
        check_generators("Semiseparable", self.A, self.B, C=(self.C, "tn"))

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., T, T), the shape of `dense()`."""
        leading = broadcast_shapes(self.A.shape[: self.B.ndim - 2], self.B.shape[:-2], self.C.shape[:-2])
        return (*leading, self.length, self.length)

    @property
    def length(self) -> int:
        """T, the number of rows and of columns."""
        return self.B.shape[-2]

    @property
    def state(self) -> int:
        """N, the order: no block on or below the diagonal has a higher rank."""
        return self.B.shape[-1]

    @property
    def structure(self) -> str:
        """Structure of A: "scalar", "diagonal" or "general"."""
        return {-1: "scalar", 0: "diagonal", 1: "general"}[self.A.ndim - self.B.ndim]

    def dense(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> torch.Tensor:
        """The matrix itself, column s being the response to an impulse at time s.

        Args:
            dtype: of the result; that of B if None.
            device: of the result; that of B if None.

        Returns:
            (..., T, T) tensor. Cost: T products with a vector, `cost(T)` multiply-adds.

        Raises:
            ValueError: the matrix is complex and dtype is not.
        """
        if dtype is not None:
            check_type("Semiseparable.dense", "dtype", dtype, torch.dtype)
            if self.B.is_complex() and not dtype.is_complex:
                raise ValueError(f"Semiseparable.dense: the matrix is complex but the dtype is {dtype}")
        M = self.matmul(torch.eye(self.length, dtype=self.B.dtype, device=self.B.device))
        return M.to(device=device, dtype=dtype)

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """M x, by the recurrence h_t = A_t h_(t-1) + B_t x_t, (M x)_t = C_t^T h_t.

        Args:
            x: (..., T, columns), dtype of B.

        Returns:
            (..., T, columns), dtype of B.

        Raises:
            ShapeError: x has fewer than two axes, or its axis -2 is not T.
            ValueError: dtype or device of x differ.

        Cost:
            `cost(columns)` multiply-adds, linear in T, in steps that follow one another.
        """
        self._check("matmul", x)
        return recur(self.A, self.B, self.C, x)[0]

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """M^T y, by the same recurrence run backwards in time.

        Argument, result, errors and cost are those of `matmul`.
        """
        self._check("transpose_matmul", y)
        return self.flipped().matmul(y.flip(-2)).flip(-2)

    def flipped(self) -> "Semiseparable":
        """J M^T J, where J reverses time: (t, s) holds M[T-1-s, T-1-t].

        It is semiseparable with the same structure: B and C change places, and step t undoes A_(T-t)^T.

        Returns:
            A Semiseparable of the same shape. Cost: a copy of the generators.
        """
        time = {"scalar": -1, "diagonal": -2, "general": -3}[self.structure]
        A = self.A.flip(time).roll(1, time)
        A = A.mT if self.structure == "general" else A
        # C is to be a B, which has as many leading axes as A.
        axes = max(self.B.ndim, self.C.ndim)
        A, B = (x[(None,) * (axes - self.B.ndim)] for x in (A, self.B))
        return Semiseparable(A, self.C[(None,) * (axes - self.C.ndim)].flip(-2), B.flip(-2))

    def solve(self, y: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor:
        """The x with (M + diag(diagonal)) x = y, by forward substitution through the state.

        x_t = (y_t - C_t^T A_t h_(t-1)) / (diagonal_t + C_t^T B_t), h_t = A_t h_(t-1) + B_t x_t.

        Args:
            y: (..., T, columns), dtype of B.
            diagonal: (..., T), dtype of B; zeros if None.

        Returns:
            x (..., T, columns), dtype of B.

        Raises:
            ShapeError: y has fewer than two axes, or an axis -2 or the diagonal is not T long.
            ValueError: a dtype or device differs, or (on a CPU) an entry of the diagonal of the sum is 0.

        Cost:
            `cost(columns)` multiply-adds and T·columns divisions, in steps that follow one another.

        Source:
            Andersen and Chen 2020, for tril(U V^T).
        """
        self._check("solve", y, diagonal)
        A, B, C, u, diagonal = widen(y, self.A, self.B, self.C, y, diagonal)
        pivots = (C * B).sum(-1) if diagonal is None else (C * B).sum(-1) + diagonal
        if pivots.device.type == "cpu" and not holds(pivots != 0):
            step = (pivots == 0).nonzero()[0, -1].item()
            raise ValueError(f"Semiseparable.solve: the matrix is singular, entry {step} of its diagonal is 0")
        A, act, _ = transitions(A, B)
        state = start(self.A, self.B, u, None)
        columns = []
        steps = (A.unbind(-3), B.unbind(-2), C.unbind(-2), u.unbind(-2), pivots.unbind(-1))
        for a, b, c, right, pivot in zip(*steps, strict=True):
            past = act(a, state)
            columns.append((right - (past * c[..., None, :]).sum(-1)) / pivot[..., None])
            state = past + columns[-1][..., :, None] * b[..., None, :]
        return (torch.stack(columns, -2) if columns else u + pivots[..., None]).to(y.dtype)

    def cost(self, columns: int = 1) -> int:
        """Multiply-adds of `matmul` for each leading index: T·columns·(a + 2·N).

        A transition has a = N of them if A is scalar or diagonal, a = N² if it is general.
        """
        transition = self.state**2 if self.structure == "general" else self.state
        return self.length * columns * (transition + 2 * self.state)

    def _check(self, method: str, x: torch.Tensor, diagonal: torch.Tensor | None = None) -> None:
        where = f"Semiseparable.{method}"
        check_operand(where, "the matrix", self.shape, x, "T", self.length)
        extra = {} if diagonal is None else {"diagonal": diagonal}
        check_dtypes(where, {"B": self.B, "the operand": x} | extra)
        operands = {"the matrix": (self, "ts"), "the operand": (x, "tp")}
        check_shapes(where, operands | {name: (x, "t") for name, x in extra.items()})

    def __repr__(self) -> str:
        return f"Semiseparable({', '.join(map(str, self.shape))}, state={self.state}, structure={self.structure!r})"
