"""Sliding window attention: the score of tokens more than w apart is -∞, so nothing computes it."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.nn import functional

from smalearn._checks import ShapeError, check_count, check_dtypes, check_shapes, check_tensor, check_type, holds
from smalearn.contractions import contract

BLOCK = 64  # queries that are computed together see this many keys more than one query alone


def window_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    window: int,
    causal: bool = False,
    since: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention to the keys at most `window` tokens away.

        Y_i = Σ_j p_ij V_j,   p_ij ∝ exp(Q_i · K_j) where |i - j| ≤ window, and j ≤ i if causal; 0 elsewhere

    An inner row has 2·window + 1 keys, a causal one window + 1. No hidden scale: for the usual 1/√N pass Q / √N. The
    window alone looks both ways: causality is composed with it, never implied. A NaN or infinity in V may reach, of the
    outputs before a causal window, those of its block of min(w, S, 64) queries.

    Args:
        Q: (..., S, N) queries of the last S ≤ T tokens: all of them in training, one in decoding.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        window: w ≥ 0; from T - 1 on, this is full attention.
        causal: whether a token sees only itself and those before it.
        since: (..., S) integers, the number of the first key that each query sees, not above its own; 0 if None.

    Returns:
        (..., S, P), dtype of Q. Leading axes broadcast, and keys shared by a group of heads (an axis of size 1) are
        not copied for them.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands, or there are more queries than keys.
        ValueError: the dtypes or devices differ, window is not an integer ≥ 0, or since (on a CPU) is above a query.

    Cost:
        S·(2·w + c)·(N + P) multiply-adds, S·(w + c)·(N + P) if causal, with c = min(w, S, 64) for queries that share
        their keys' block; as many scores. No T×T.

    Source:
        Child et al. 2019 (Sparse Transformer); Kuang et al. 2025, section 2.3. The published code of the latter counts
        2·w keys a row, future ones included, for a causal window of w + 1.
    """
    check_dtypes("window_attention", {"Q": Q, "K": K, "V": V}, real=True)
    check_type("window_attention", "causal", causal, bool)
    sizes = check_shapes("window_attention", {"Q": (Q, "sn"), "K": (K, "tn"), "V": (V, "tp")})
    window, (queries, keys) = check_count("window_attention", "window", window, 0), (sizes["s"], sizes["t"])
    if queries > keys:
        raise ShapeError(f"window_attention: axis 's' is {queries} in Q, expected at most the {keys} tokens of K")
    if since is not None:
        _check_since(since, Q, K, V)
    if not queries:
        return contract("SN, TN -> ST", Q, K) @ V
    before, after = min(window, keys), 0 if causal else min(window, keys)
    block = max(1, min(window, queries, BLOCK))
    blocks = -(-queries // block)
    padding = blocks * block - queries
    Q = functional.pad(Q, (0, 0, 0, padding)).unflatten(-2, (blocks, block))
    # Block k holds the queries from keys - queries + k·block on, and the keys from `before` earlier to `after` later.
    past = keys - queries
    K, V = (
        functional.pad(x, (0, 0, before - past, after + padding)).unfold(-2, before + block + after, block).mT
        for x in (K, V)
    )
    first = torch.arange(blocks, device=Q.device)[:, None, None] * block + past
    seen = _seen(first, block, before, after, keys)
    if since is not None:
        least = functional.pad(since, (0, padding)).unflatten(-1, (blocks, block))[..., None]
        seen = seen & (first - before + torch.arange(seen.shape[-1], device=Q.device) >= least)
    scores = contract("KLN, KSN -> KLS", Q, K).masked_fill(~seen, -math.inf)
    return contract("KLS, KSP -> KLP", scores.softmax(-1), V).flatten(-3, -2)[..., :queries, :]


def receptive_field(windows: Iterable[int | None], length: int) -> int:
    """How many tokens, itself included, can reach the last of `length` tokens through a stack of causal layers.

    A window layer adds w tokens to what the layers below it bring; a global layer brings all.

    Args:
        windows: w ≥ 0 of each layer, None for a global one; the order does not matter.
        length: T ≥ 1.

    Returns:
        min(T, 1 + Σ w), or T where a layer is global.

    Raises:
        ValueError: a window or the length is not an integer in its range.

    Example:
        >>> receptive_field([4, 4, 4], 100)
        13
        >>> receptive_field([None, 4, 4], 100)
        100
    """
    check_count("receptive_field", "length", length)
    check_type("receptive_field", "windows", windows, Sequence, Iterator)  # no tensor, which is an Iterable too
    reach = [length if w is None else check_count("receptive_field", "window", w, 0) for w in windows]
    return min(length, 1 + sum(reach))


def _check_since(since, Q, K, V):
    """Check that each query has a number from which on it sees keys, and sees itself."""
    check_tensor("window_attention", "since", since)
    if since.dtype not in (torch.int64, torch.int32) or since.device != Q.device:
        got = f"{since.dtype} on {since.device}"
        raise ValueError(f"window_attention: since must be int64 or int32 on {Q.device}, got {got}")
    check_shapes("window_attention", {"Q": (Q, "sn"), "K": (K, "tn"), "V": (V, "tp"), "since": (since, "s")})
    own = torch.arange(K.shape[-2] - Q.shape[-2], K.shape[-2], device=Q.device)
    if since.device.type == "cpu" and not holds(since <= own):
        raise ValueError("window_attention: since must be at most the number of the query's own key, got more")


def _seen(first, block, before, after, keys):
    """Mask (blocks, block, keys of a block) of keys that each query sees; `first` is the first query of each block."""
    query = torch.arange(block, device=first.device)[:, None]
    key = torch.arange(before + block + after, device=first.device) - before
    in_window = (key >= query - before) & (key <= query + after)
    in_sequence = (first + key >= 0) & (first + key < keys)
    return in_window & in_sequence  # no row is empty: there is less padding than there are keys before
