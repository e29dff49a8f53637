"""Attention as a kernel on queries and keys, normalised over the sources."""

import torch

from smalearn._checks import check_dtypes, check_shapes
from smalearn.contractions import contract
from smalearn.masks import Mask, dense_mask
from smalearn.sma import check_sma

__all__ = ["softmax_attention", "softmax_weights"]


def softmax_weights(Q: torch.Tensor, K: torch.Tensor, L: Mask | torch.Tensor | None = None) -> torch.Tensor:
    """The matrix M of softmax attention: M[t, s] = L[t, s]·exp(Q_t · K_s), each row divided by its sum.

    There is no hidden scale: for the usual 1/√N, pass Q / √N. The mask multiplies the exponential, so a zero removes
    a source and a decay weighs it down. (Multiplying the scores inside the softmax would not: exp(0) = 1.) An exact
    zero of L is structure: no gradient reaches it.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        L: (..., T, S) non-negative mask, a tensor or a structured mask; all ones if None.

    Returns:
        (..., T, S), dtype of Q: every row is non-negative and sums to 1. A row whose mask has no source left is zero.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ, or L (on a CPU) has a negative entry.

    Cost:
        T·S·N multiply-adds, T·S exponentials and entries.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.1.3.
    """
    _check("softmax_weights", Q, K, K, L)
    return _weights("softmax_weights", Q, K, L)


def softmax_attention(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: Mask | torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention Y = M V, equation (9) with f = softmax, masked as in equation (10).

    Y_t = Σ_s L[t, s]·exp(Q_t · K_s)·V_s / Σ_s L[t, s]·exp(Q_t · K_s). No hidden scale: for the usual 1/√N pass Q / √N.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        V: (..., S, P) values.
        L: (..., T, S) non-negative mask, a tensor or a structured mask; all ones if None.

    Returns:
        (..., T, P), dtype of Q. A row whose mask has no source left is zero.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ, or L (on a CPU) has a negative entry.

    Cost:
        T·S·(N + P) multiply-adds; T·S entries.

    Source:
        Dao and Gu 2024 (Mamba-2), sections 4.1.1 and 4.1.3.
    """
    _check("softmax_attention", Q, K, V, L)
    return _weights("softmax_attention", Q, K, L) @ V


def _check(function, Q, K, V, L):
    """As `check_sma`; without a mask there is only its lengths' absence to allow."""
    if L is not None:
        return check_sma(function, Q, K, V, L)
    check_shapes(function, {"Q": (Q, "tn"), "K": (K, "sn"), "V": (V, "sp")})
    check_dtypes(function, {"Q": Q, "K": K, "V": V})


def _weights(function, Q, K, L):
    """softmax(Q K^T + log L), with the two places treated where log L = -inf would give NaN."""
    scores = contract("TN, SN -> TS", Q, K)
    if L is None:
        return scores.softmax(-1)
    L = dense_mask(L, like=Q)
    if L.device.type == "cpu" and (L < 0).any():
        raise ValueError(f"{function}: L must be non-negative, because each row of M is a distribution")
    zero = L == 0
    empty = zero.all(-1, keepdim=True)
    # A gradient through log(0) or through a row of -inf would be NaN even where it is multiplied by zero.
    scores = scores + L.masked_fill(zero, 1).log()
    M = scores.masked_fill(zero & ~empty, -torch.inf).softmax(-1)
    return M.masked_fill(empty, 0)
