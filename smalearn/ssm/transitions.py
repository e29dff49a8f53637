"""The recurrence behind every product with a semiseparable matrix, and the check of its generators."""

from collections.abc import Callable, Iterator

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_operands, check_tensor
from smalearn._structured import widen

SHAPES = {-1: "(..., T)", 0: "(..., T, N)", 1: "(..., T, N, N)"}


def check_generators(function: str, A: torch.Tensor, B: torch.Tensor, **others: tuple[torch.Tensor, str]) -> None:
    """Check that A, B (..., T, N) and the other operands of a recurrence fit together.

    A has one axis less than B, as many, or one more. `others` are tensors with their trailing axes, by name; those with
    a time axis have the dtype of B.
    """

    def axes():
        if A.ndim - B.ndim not in SHAPES:
            expected = ", ".join(f"{B.ndim + extra} for {shape}" for extra, shape in SHAPES.items())
            raise ShapeError(f"{function}: A has {A.ndim} axes, expected {expected}")
        return {-1: "t", 0: "tn", 1: "tnn"}[A.ndim - B.ndim]

    check_tensor(function, "A", A)
    tokens = {name: pair for name, pair in others.items() if "t" in pair[1]}
    alone = {name: pair for name, pair in others.items() if name not in tokens}
    check_operands(function, {"B": (B, "tn")} | tokens, {"A": (A, axes)} | alone)


def transitions(A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, Callable, Callable]:
    """A with time as its third last axis, and what its structure, which its number of axes says, makes of two products.

    A comes as (..., T, 1, 1), (..., T, 1, N) or (..., T, N, N), then `act(A_t, state)`, A_t times the state (..., P, N)
    of every channel, and `compose(A_t, A_s)`, the product A_t A_s.
    """
    if A.ndim > B.ndim:
        return A, lambda a, state: state @ a.mT, torch.matmul
    return A[..., None, :] if A.ndim == B.ndim else A[..., None, None], torch.mul, torch.mul


def full_transitions(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A as (..., T, N, N) matrices, whatever its structure."""
    if A.ndim > B.ndim:
        return A
    diagonal = A if A.ndim == B.ndim else A[..., None].expand(*A.shape, B.shape[-1])
    return torch.diag_embed(diagonal)


def states(A: torch.Tensor, B: torch.Tensor, x: torch.Tensor, state: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield h_t = A_t h_(t-1) + B_t x_t for each channel of x (..., T, P), as (..., P, N), from t = 0 on."""
    A, act, _ = transitions(A, B)
    for a, b, u in zip(A.unbind(-3), B.unbind(-2), x.unbind(-2), strict=True):
        state = act(a, state) + u[..., :, None] * b[..., None, :]
        yield state


def recur(
    A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, x: torch.Tensor, state: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y_t = C_t^T h_t for all t, and the last state; inputs already checked, half precision runs in float32."""
    A, B, C, u, state = widen(x, A, B, C, x, state)
    state = start(A, B, u, state)
    outputs = []
    for h, c in zip(states(A, B, u, state), C.unbind(-2), strict=True):
        outputs.append((h * c[..., None, :]).sum(-1))
        state = h
    if not outputs:
        leading = broadcast_shapes(state.shape[:-2], C.shape[:-2])
        return x.new_zeros(*leading, *x.shape[-2:]), state
    return torch.stack(outputs, -2).to(x.dtype), state


def start(A: torch.Tensor, B: torch.Tensor, x: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
    """The state before the first step, zeros if None, with all leading axes that it will ever have."""
    if state is None:
        state = x.new_zeros(x.shape[-1], B.shape[-1])
    # A has exactly the leading axes of B: its number of axes names its structure.
    leading = [A.shape[: B.ndim - 2], B.shape[:-2], x.shape[:-2], state.shape[:-2]]
    return state.expand(*broadcast_shapes(*leading), *state.shape[-2:])
