"""Two factorisations of a semiseparable matrix: through the block-bidiagonal system, and as tril(U V^T)."""

from typing import Literal

import torch

from smalearn._checks import brief, check_type, holds
from smalearn.ssm.semiseparable import Semiseparable
from smalearn.ssm.transitions import full_transitions

Order = Literal["time", "state"]


def block_factors(M: Semiseparable, order: Order = "time") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three factors of M = C_blocks · bidiagonal^-1 · B_blocks.

    The recurrence for all steps at once is bidiagonal · h = B_blocks · x with identities on the diagonal and -A_1, ...,
    -A_(T-1) below them; then y = C_blocks · h. A_0 does not occur, because the state before the first step is 0.

    Args:
        M: (..., T, T), order N.
        order: how the T·N states are stacked. "time": all N states of step 0, then those of step 1, so that C_blocks
            and B_blocks are block diagonal; "state": state 0 at all times, then state 1, so that they are N diagonal
            matrices side by side. For a scalar A the bidiagonal is a ⊗ I_N and I_N ⊗ a.

    Returns:
        C_blocks (..., T, T·N), bidiagonal (..., T·N, T·N), B_blocks (..., T·N, T), dtype of B.

    Raises:
        TypeError: M is not a Semiseparable.
        ValueError: order is neither "time" nor "state".

    Cost:
        (T·N)² entries: a picture of the system, not a way to solve it. `M.matmul` is its forward substitution.

    Source:
        "Structured Masked Attention", the displays of the block-bidiagonal system and of M.
    """
    _check("block_factors", M, order)
    A = full_transitions(M.A, M.B).to(M.B.dtype)
    eye = torch.eye(M.length, dtype=M.B.dtype, device=M.B.device)
    identity = torch.eye(M.length * M.state, dtype=M.B.dtype, device=M.B.device)
    # Block (t, s) of the shift is A_t where s = t - 1: rows t of A, spread over the columns by the subdiagonal.
    shift = torch.einsum("...tnm,ts->...tnsm", A, eye.roll(-1, 1).tril(-1))
    bidiagonal = identity - shift.flatten(-2).flatten(-3, -2)
    C_blocks = torch.einsum("...tn,ts->...tsn", M.C, eye).flatten(-2)
    B_blocks = torch.einsum("...tn,ts->...tns", M.B, eye).flatten(-3, -2)
    positions = _positions(M, order)
    return C_blocks[..., positions], bidiagonal[..., positions, :][..., positions], B_blocks[..., positions, :]


def bidiagonal_inverse(M: Semiseparable, order: Order = "time") -> torch.Tensor:
    """The inverse of the block-bidiagonal matrix: block (t, s) is A_t ... A_(s+1) for s ≤ t, and 0 above.

    It exists whatever A is: a singular A_t only makes blocks singular. Blocks on the diagonal are identities, so the
    block-wise and the element-wise lower triangle are the same.

    Args:
        M: (..., T, T), order N.
        order: how the states are stacked, see `block_factors`.

    Returns:
        (..., T·N, T·N), dtype of B.

    Raises:
        TypeError: M is not a Semiseparable.
        ValueError: order is neither "time" nor "state".

    Cost:
        T² products of N × N matrices for (T·N)² entries: not linear in T. Only its products are, see `M.matmul`.

    Source:
        "Structured Masked Attention", the display of the inverse.
    """
    _check("bidiagonal_inverse", M, order)
    A = full_transitions(M.A, M.B).to(M.B.dtype)
    size = M.length * M.state
    identity = torch.eye(size, dtype=M.B.dtype, device=M.B.device)
    row, rows = A.new_zeros(M.state, size), [A.new_zeros(*A.shape[:-3], 0, size)]
    for t, a in enumerate(A.unbind(-3)):
        row = a @ row + identity[t * M.state : (t + 1) * M.state]
        rows.append(row)
    positions = _positions(M, order)
    return torch.cat(rows, -2)[..., positions, :][..., positions]


def product_generators(M: Semiseparable) -> tuple[torch.Tensor, torch.Tensor]:
    """The cumulative products U_t = A_t ... A_1 and their inverse transposes V_t = (A_t ... A_1)^-T.

    Block (t, s) of the bidiagonal inverse is U_t V_s^T for s ≤ t. The transpose matters as soon as the A_t do not
    commute or are not symmetric. Exact on paper only: U underflows and V overflows while the blocks are ordinary
    numbers, from t = 1024 on for a = 1/2 in double precision.

    Args:
        M: (..., T, T), order N, every A_t with t ≥ 1 invertible.

    Returns:
        U and V, each with the shape of A; entry 0 is the identity.

    Raises:
        TypeError: M is not a Semiseparable.
        ValueError: an A_t is singular (on a CPU): then no V exists.

    Cost:
        T products of the structure of A, and T inverses.

    Source:
        "Structured Masked Attention", the display of the inverse, with the transpose that V lacks there.
    """
    _check("product_generators", M)
    general = M.structure == "general"
    time = {"scalar": -1, "diagonal": -2, "general": -3}[M.structure]
    A = M.A.narrow(time, min(1, M.length), max(0, M.length - 1))
    if A.device.type == "cpu":
        singular = torch.linalg.inv_ex(A).info != 0 if general else A == 0
        if not holds(~singular):
            step = singular.nonzero()[0][time if not general else -1].item() + 1
            raise ValueError(f"product_generators: A must be invertible, but A_{step} is singular")
    if not general:
        first = torch.ones_like(M.A.narrow(time, 0, min(1, M.length)))
        U = torch.cat([first, A], time).cumprod(time)
        return U, 1 / U
    products = [torch.eye(M.state, dtype=A.dtype, device=A.device).expand(*A.shape[:-3], M.state, M.state)]
    for a in A.unbind(-3):
        products.append(a @ products[-1])
    U = torch.stack(products[: M.length], -3) if M.length else M.A
    return U, torch.linalg.inv_ex(U).inverse.mT


def tril_factors(M: Semiseparable) -> tuple[torch.Tensor, torch.Tensor]:
    """U and V with M = tril(U V^T): U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s.

    Args:
        M: (..., T, T), order N, every A_t with t ≥ 1 invertible.

    Returns:
        U and V, (..., T, N) each. Their entries under- and overflow like those of `product_generators`.

    Raises:
        TypeError: M is not a Semiseparable.
        ValueError: an A_t is singular (on a CPU): then no V exists.

    Cost:
        That of `product_generators`, and 2·T products with a vector.

    Source:
        Andersen and Chen 2020 for tril(U V^T).
    """
    _check("tril_factors", M)
    U, V = product_generators(M)
    if M.structure == "general":
        return (U.mT @ M.C[..., None])[..., 0], (V.mT @ M.B[..., None])[..., 0]
    if M.structure == "scalar":
        U, V = U[..., None], V[..., None]
    return U * M.C, V * M.B


def _positions(M, order):
    """Positions of the T·N states when they are stacked by time."""
    index = torch.arange(M.length * M.state, device=M.B.device)
    return index if order == "time" else index.reshape(M.length, M.state).mT.flatten()


def _check(function, M, order="time"):
    """Check that M is semiseparable, and the name of an order."""
    check_type(function, "M", M, Semiseparable)
    if not isinstance(order, str) or order not in ("time", "state"):
        raise ValueError(f"{function}: order must be 'time' or 'state', got {brief(order)}")
