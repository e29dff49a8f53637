"""A state space model one step at a time, and the matrix that it is."""

import torch

from smalearn._structured import widen
from smalearn.ssm.semiseparable import Semiseparable
from smalearn.ssm.transitions import check_generators, recur, start, states


def ssm_recurrent(
    X: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A selective state space model as a recurrence, one state vector for each channel of X.

    h_t = A_t h_(t-1) + B_t x_t, y_t = C_t^T h_t. The structure of A follows from its number of axes: one less than B is
    a scalar a_t·I (Mamba-2), as many a diagonal matrix (S4D, S5, Mamba), one more any matrix.

    Args:
        X: (..., T, P) input, P channels that run through the same model.
        A: (..., T), (..., T, N) or (..., T, N, N), dtype of X or float32. A_0 acts on the initial state.
        B: (..., T, N).
        C: (..., T, N).
        initial_state: (..., P, N) state before the first step, dtype of X or float32; zeros if None.

    Returns:
        Y (..., T, P), dtype of X, and the state after the last step (..., P, N), float32 if X is half precision.

    Raises:
        ShapeError: an axis has two sizes, or A.ndim matches none of the layouts.
        ValueError: a dtype or device differs.

    Cost:
        `ssm_matrix(A, B, C).cost(P)` multiply-adds: T·P·(N² + 2·N) for a general A, 3·T·P·N for a structured one, in
        steps that follow one another; a state of N·P numbers.

    Source:
        "State Space Duality (Mamba-2) Part 1", Eq. (ssm) and (ssm-transformation).
    """
    check_ssm("ssm_recurrent", X, A, B, initial_state, C=(C, "tn"))
    return recur(A, B, C, X, initial_state)


def ssm_states(
    X: torch.Tensor, A: torch.Tensor, B: torch.Tensor, initial_state: torch.Tensor | None = None
) -> torch.Tensor:
    """All states h_t = A_t h_(t-1) + B_t x_t of a state space model, (..., T, P, N) for T steps and P channels.

    Their dtype is that of X, float32 if X is half precision. Arguments and errors are those of `ssm_recurrent`,
    without C.

    Cost:
        That of `ssm_recurrent` without the products with C; T·P·N entries.

    Source:
        "Structured Masked Attention", the display of the hidden states: forward substitution on the block-bidiagonal
        system of `smalearn.ssm.block_factors`.
    """
    check_ssm("ssm_states", X, A, B, initial_state)
    A, B, X, initial_state = widen(X, A, B, X, initial_state)
    state = start(A, B, X, initial_state)
    rows = list(states(A, B, X, state))
    return torch.stack(rows, -3) if rows else state.new_zeros(*state.shape[:-2], 0, *state.shape[-2:])


def ssm_matrix(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> Semiseparable:
    """The matrix of a state space model: Y = M X with M[t, s] = C_t^T A_t ... A_(s+1) B_s for s ≤ t.

    It is (..., T, T), held by its generators; `.dense()` has its entries, `.matmul(X)` is the recurrence. Arguments and
    errors are those of `Semiseparable`.

    Cost:
        Constant: no tensor is made.

    Source:
        "State Space Duality (Mamba-2) Part 1.5", Eq. (semiseparable).
    """
    return Semiseparable(A, B, C)


def check_ssm(function, X, A, B, state, **others):
    """Check shapes (T, P), (T, ...), (T, N), (P, N), dtypes and devices; A and the state, if any, may be float32."""
    given = {} if state is None else {"initial_state": (state, "pn")}
    check_generators(function, A, B, **others, X=(X, "tp"), **given)
