"""The parallel form: all scores at once, each with the decay between its two tokens."""

import torch
import torch.nn.functional as F

from smalearn.contractions import contract
from smalearn.linear_attention._inputs import check_inputs, key_gate, widen

__all__ = ["decay_matrix", "decayed_scores", "linear_attention_parallel", "since_start", "until_end"]


def linear_attention_parallel(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, log_a: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal linear attention by its scores, equation (10) with a mask of decays.

    Y_t = Σ_{s ≤ t} (Σ_n Q[t, n] K[s, n] exp(Σ_{s < k ≤ t} log_a[k, n])) V_s. Without log_a: Y = (L ∘ Q K^T) V with the
    causal mask L. For the normaliser append a column of ones to V.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token, or (..., T, N), one per key feature. May be
            float32 whatever the others are. It counts as a gate per key feature if it has as many axes as K.

    Returns:
        (..., T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, or log_a has a number of axes that is no gate.
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
    """Causal scores, each with the decay between its two tokens.

    scores[t, s] = Σ_n Q[t, n] K[s, n] exp(Σ_{s < k ≤ t} log_a[k, n]) for s ≤ t, else 0.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        log_a: (..., T, 1) for one decay per token, or (..., T, N).

    Returns:
        (..., T, T).

    Cost:
        T²·N multiply-adds; T·log2(T) exponentials for each feature of log_a.
    """
    if log_a.shape[-1] == 1:
        return contract("TN, SN -> TS", Q, K) * decay_matrix(log_a)
    return _join_neighbours(Q, K, log_a)


def decay_matrix(log_a: torch.Tensor) -> torch.Tensor:
    """The 1-semiseparable matrix L[t, s] = exp(Σ_{s < k ≤ t} log_a[k]) for s ≤ t, else 0.

    Args:
        log_a: (..., T, 1) log decays.

    Returns:
        (..., T, T).

    Cost:
        T² entries, T·log2(T) exponentials.
    """
    one = torch.ones_like(log_a)
    return _join_neighbours(one, one, log_a)


def since_start(log_a: torch.Tensor) -> torch.Tensor:
    """Σ_{k ≤ t} log_a[k] along axis -2: the log decay from before the first token to t."""
    return log_a.cumsum(-2)


def until_end(log_a: torch.Tensor) -> torch.Tensor:
    """Σ_{k > s} log_a[k] along axis -2: the log decay from s to the last token."""
    after = torch.cat([log_a[..., 1:, :], torch.zeros_like(log_a[..., :1, :])], -2)
    return after.flip(-2).cumsum(-2).flip(-2)


def _join_neighbours(Q, K, log_a):
    """`decayed_scores` from blocks of one token, joined in pairs until one block is left.

    Where two blocks meet there is a border between every s of the first and t of the second, so the decay from s to t
    is that until the border times that since the border. Both exponents are sums of log_a's own entries, hence ≤ 0:
    there is no quotient to overflow, and no difference of sums in which a reset would drown what follows it.
    """
    length = Q.shape[-2]
    Q, K, log_a = map(_pad_to_power_of_two, (Q, K, log_a))
    leading = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2], log_a.shape[:-2])
    scores = (Q * K).sum(-1).expand(*leading, -1)[..., None, None]
    while (block := scores.shape[-1]) < length:
        (_, later), (earlier, _), (before, after) = (x.unflatten(-2, (-1, 2, block)).unbind(-3) for x in (Q, K, log_a))
        across = contract("TN, SN -> TS", later * since_start(after).exp(), earlier * until_end(before).exp())
        first, second = scores.unflatten(-3, (-1, 2)).unbind(-3)
        above, below = torch.cat([first, torch.zeros_like(first)], -1), torch.cat([across, second], -1)
        scores = torch.cat([above, below], -2)
    return scores[..., 0, :length, :length]


def _pad_to_power_of_two(x):
    """Append rows of zeros along axis -2: tokens that decay nothing and say nothing."""
    missing = (1 << max(x.shape[-2] - 1, 0).bit_length()) - x.shape[-2]
    return F.pad(x, (0, 0, 0, missing)) if missing else x
