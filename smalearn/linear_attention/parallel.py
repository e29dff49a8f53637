"""The parallel form: all scores at once, each with the decay between its two tokens."""

import torch

from smalearn._checks import broadcast_shapes
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.linear_attention.inputs import check_inputs, key_gate
from smalearn.masks.decay import decay_matrix, join_neighbours, since_start, until_end


def linear_attention_parallel(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, log_a: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal linear attention by its scores, equation (10) with a mask of decays.

    Y_t = Σ_{s ≤ t} (Σ_n Q[t, n] K[s, n] exp(Σ_{s < k ≤ t} log_a[k, n])) V_s. Without log_a: Y = (L ∘ Q K^T) V with the
    causal mask L. For the normaliser append a column of ones to V. A NaN or infinity in K or V, or an overflow, may
    reach all outputs, also those before it: 0·NaN is NaN.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token, or (..., T, N), one per key feature. May be
            float32 whatever the others are. It counts as a gate per key feature if it has as many axes as K.

    Returns:
        (..., T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs, log_a is a full gate, or log_a (on a CPU) is positive.

    Cost:
        T²·(N + P) multiply-adds, T² entries; a gate per key feature adds T·N·log2(T) exponentials.

    Source:
        Dao and Gu 2024 (Mamba-2), sections 4.1.4 and 5; Yang et al. 2023 (GLA), parallel form.

    Example:
        >>> one = torch.ones(3, 1)
        >>> linear_attention_parallel(one, one, one, torch.tensor([0.0, 0.5, 0.5]).log()).ravel()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_inputs("linear_attention_parallel", Q, K, V, log_a)
    q, k, v, gate = widen(Q, Q, K, V, key_gate(log_a, K))
    return contract("TS, SP -> TP", decayed_scores(q, k, gate), v).to(Q.dtype)


def decayed_scores(Q: torch.Tensor, K: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """Causal scores (..., T, T), each with the decay between its two tokens.

    scores[t, s] = Σ_n Q[t, n] K[s, n] exp(Σ_{s < k ≤ t} log_a[k, n]) for s ≤ t, else 0, for log_a (..., T, 1) or (...,
    T, N): T²·N multiply-adds, and T·log2(T) exponentials for each feature of log_a.
    """
    if log_a.shape[-1] == 1:
        return contract("TN, SN -> TS", Q, K) * decay_matrix(log_a[..., 0])
    return _join_neighbours(Q, K, log_a)


def _join_neighbours(Q, K, log_a):
    """`decayed_scores` for decays that differ between features, where Q K^T and the decay cannot be separated."""

    def across(earlier, later):
        (_, keys, before), (queries, _, after) = earlier, later
        return contract("TN, SN -> TS", queries * since_start(after).exp(), keys * until_end(before).exp())

    leading = broadcast_shapes(Q.shape[:-2], K.shape[:-2], log_a.shape[:-2])
    return join_neighbours((Q * K).sum(-1).expand(*leading, -1), [Q, K, log_a], across)
