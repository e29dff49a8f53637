"""Ranks of the blocks of a lower triangular matrix, and the generators that they promise."""

import torch

from smalearn._checks import (
    ShapeError,
    brief,
    check_dtypes,
    check_finite,
    check_number,
    check_shapes,
    check_values,
    holds,
)
from smalearn.ssm.semiseparable import Semiseparable
from smalearn.testing import TOLERANCE


def block_ranks(M: torch.Tensor, tolerance: float | None = None, diagonal: int = 0) -> torch.Tensor:
    """The rank of every largest block of the lower triangle: entry k is the rank of M[k:, :k+1].

    A lower triangular matrix is semiseparable of order N exactly if none of them exceeds N.

    Args:
        M: (..., T, T).
        tolerance: singular values at most tolerance·‖M‖ (Frobenius) count as 0; if None 1e-12, in single precision
            1e-5.
        diagonal: the highest diagonal in the blocks, as in `torch.tril`: 0 with the main diagonal, -1 for the blocks
            M[k:, :k] strictly below it.

    Returns:
        (..., T) int64.

    Raises:
        ShapeError: M is not square.
        ValueError: M has no floating dtype, or the tolerance is not in [0, 1).

    Cost:
        T singular value decompositions, of order T⁴: for looking, not for computing.

    Source:
        Dao and Gu 2024 (Mamba-2), section 3.2.
    """
    cut = _cut("block_ranks", M, tolerance)
    if isinstance(diagonal, bool) or not isinstance(diagonal, int):
        raise ValueError(f"block_ranks: diagonal must be an integer, got {brief(diagonal)}")
    ranks = [(torch.linalg.svdvals(M[..., k:, : max(0, k + 1 + diagonal)]) > cut).sum(-1) for k in range(M.shape[-1])]
    return torch.stack(ranks, -1) if ranks else torch.zeros(M.shape[:-1], dtype=torch.int64, device=M.device)


def from_dense(M: torch.Tensor, tolerance: float | None = None) -> Semiseparable:
    """Generators of the smallest order for a lower triangular matrix, by one singular value decomposition per step.

    At time t the past reaches the future through the block M[t:, :t+1], from inputs until t to outputs from t on. Its
    rank is the number of states needed at t. An orthonormal basis O_t of its columns is what the states do to the
    outputs, and the generators are read off: C_t is the first row of O_t, A_t = O_t^T O_(t-1)[1:] and
    B_t = O_t^T M[t:, t].

    Only thin matrices are decomposed: the block is [O_(t-1)[1:] Σ_(t-1), M[t:, t]] up to an orthonormal factor. No A_t
    has a norm above 1, so nothing overflows.

    Args:
        M: (..., T, T), zero above the diagonal.
        tolerance: singular values at most tolerance·‖M‖ (Frobenius) are dropped; if None 1e-12, in single precision
            1e-5. The result differs from M by at most T·tolerance·‖M‖.

    Returns:
        A `Semiseparable` with general A. Its order is the largest rank that was kept; steps that need fewer states have
        zeros in the rest.

    Raises:
        ShapeError: M is not square.
        ValueError: M has no floating dtype, no values (on meta), an entry above the diagonal (on a CPU), or the
            tolerance is not in [0, 1).

    Cost:
        T decompositions of T × (N + 1) matrices: of order T²·N².

    Source:
        Dewilde and van der Veen 1998, "Time-Varying Systems and Computations", chapter 3; Dao and Gu 2024
        (Mamba-2), section 3.2.
    """
    cut = _cut("from_dense", M, tolerance)
    check_values("from_dense", "M", M)
    if M.device.type == "cpu" and not holds(M.triu(1) == 0):
        raise ValueError("from_dense: M must be 0 above the diagonal; decompose M.triu(1).mT by itself")
    length, leading = M.shape[-1], M.shape[:-2]
    basis, sizes = M.new_zeros(*leading, length + 1, 0), cut.new_zeros(*leading, 0)
    A, B, C = [], [], []
    for t in range(length):
        future = basis[..., 1:, :]
        block = torch.cat([future * sizes[..., None, :], M[..., t:, t : t + 1]], -1)
        basis, sizes, _ = torch.linalg.svd(block, full_matrices=False)
        kept = int((sizes > cut).reshape(-1, sizes.shape[-1]).any(0).sum())
        basis, sizes = basis[..., :kept], sizes[..., :kept]
        A.append(basis.mH @ future)
        B.append((basis.mH @ M[..., t:, t : t + 1])[..., 0])
        C.append(basis[..., 0, :])
    return _stack(A, B, C, M)


def _stack(A, B, C, M):
    """Generators of different orders as one Semiseparable of the highest, padded with zeros."""
    state = max((x.shape[-1] for x in B), default=0)
    A_all = M.new_zeros(*M.shape[:-1], state, state)
    B_all, C_all = M.new_zeros(*M.shape[:-1], state), M.new_zeros(*M.shape[:-1], state)
    for t, (a, b, c) in enumerate(zip(A, B, C, strict=True)):
        A_all[..., t, : a.shape[-2], : a.shape[-1]] = a
        B_all[..., t, : b.shape[-1]] = b
        C_all[..., t, : c.shape[-1]] = c
    return Semiseparable(A_all, B_all, C_all)


def _cut(function, M, tolerance):
    """The size at and below which singular values count as zero, (..., 1); checks both arguments."""
    check_dtypes(function, {"M": M})
    check_shapes(function, {"M": (M, "ts")})
    if M.dtype not in TOLERANCE:
        raise ValueError(f"{function}: M is {M.dtype}, expected {' or '.join(map(str, TOLERANCE))}, which have an SVD")
    if M.shape[-1] != M.shape[-2]:
        raise ShapeError(f"{function}: M must be square, got shape {tuple(M.shape)}")
    tolerance = TOLERANCE[M.dtype] if tolerance is None else tolerance
    check_finite(function, "M", M)
    if not 0 <= check_number(function, "tolerance", tolerance) < 1:
        raise ValueError(f"{function}: tolerance must be in [0, 1), got {tolerance}")
    return tolerance * torch.linalg.matrix_norm(M)[..., None]
