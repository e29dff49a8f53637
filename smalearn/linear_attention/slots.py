"""Gated slot attention: two linear attentions with a gate per slot, and a softmax over the slots between them."""

import torch
from einops import rearrange

from smalearn._checks import check_operands, check_pair, check_tensor
from smalearn.linear_attention.chunked import linear_attention_chunked


def gated_slot_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor,
    initial_state: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Softmax attention over M slots that are written with a gate.

    With α_t = exp(log_a_t), each slot m keeps a key and a value,

        key_m ← α_t[m] key_m + (1 − α_t[m]) K_t,    value_m ← α_t[m] value_m + (1 − α_t[m]) V_t,

    and Y_t = Σ_m w_t[m] value_m with w_t = softmax_m(key_m · Q_t). No hidden scale: scale Q. A NaN or infinity in K or
    V, or an overflow, may reach all outputs of its chunk of 64 tokens, also those before it.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: (..., T, M) log decay ≤ 0 of each slot, −inf to overwrite it.
        initial_state: the slots before the first token, keys (..., M, N) and values (..., P, M); zeros if None.

    Returns:
        Y (..., T, P), dtype of Q, and the slots after the last token, keys (..., M, N) and values (..., P, M).

    Raises:
        ShapeError: an axis has two sizes.
        TypeError: initial_state is not a pair.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive.

    Cost:
        2·T·M·(N + P) multiply-adds between chunks; a state of M·(N + P) entries, whatever T is.

    Source:
        Zhang et al. 2024 (Gated Slot Attention), section 3.
    """
    keys = values = None
    if initial_state is not None:
        keys, values = check_pair("gated_slot_attention", "initial_state", initial_state, "keys", "values")
    _check(
        "gated_slot_attention", Q, K, log_a, {"initial_state[0]": (keys, "mn"), "initial_state[1]": (values, "pm")}, V
    )
    weights, keys = slot_weights(Q, K, log_a, keys)
    Y, values = linear_attention_chunked(weights, _written(log_a, weights), V, log_a, values)
    return Y, (keys, values)


def slot_weights(
    Q: torch.Tensor, K: torch.Tensor, log_a: torch.Tensor, initial_state: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each token to each slot of `gated_slot_attention`: the first of its two linear attentions.

    w_t = softmax_m(key_m · Q_t). Here the gate belongs to the value axis, that of the slots: a head for each slot, with
    one value and one decay per token, all heads sharing Q and K.

    The initial state has only the keys (..., M, N) in the slots before the first token; zeros if None. All other
    arguments and the errors are those of `gated_slot_attention`.

    Returns:
        Weights (..., T, M), dtype of Q, rows that sum to 1, and the keys in the slots after the last token (..., M, N).

    Cost:
        T·M·N multiply-adds between chunks and T·M entries for each token of a chunk inside.

    Source:
        Zhang et al. 2024 (Gated Slot Attention), section 3.
    """
    _check("slot_weights", Q, K, log_a, {"initial_state": (initial_state, "mn")})
    queries, keys = (rearrange(x, "... t n -> ... 1 t n") for x in (Q, K))
    values = rearrange(_written(log_a, Q), "... t m -> ... m t 1")
    state = None if initial_state is None else rearrange(initial_state, "... m n -> ... m 1 n")
    scores, state = linear_attention_chunked(queries, keys, values, log_a.mT, state)
    return rearrange(scores, "... m t 1 -> ... t m").softmax(-1), rearrange(state, "... m 1 n -> ... m n")


def _check(function, Q, K, log_a, states, V=None):
    """Check shapes with one axis of slots, dtypes, and the sign of log_a."""
    check_tensor(function, "log_a", log_a)
    operands = {"Q": (Q, "tn"), "K": (K, "tn")} | ({} if V is None else {"V": (V, "tp")})
    check_operands(function, operands, {"log_a": (log_a, "tm")} | states, real=True)


def _written(log_a, like):
    """1 − α, without cancellation for α near 1."""
    return -torch.expm1(log_a).to(like.dtype)
