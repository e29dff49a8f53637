"""The chunked form: quadratic inside chunks of constant length, a state carried from chunk to chunk."""

import torch

from smalearn._checks import broadcast_shapes, check_count
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.linear_attention.inputs import check_inputs, key_gate
from smalearn.linear_attention.parallel import decayed_scores
from smalearn.masks.decay import join_chunks, since_start, split_chunks, until_end


def linear_attention_chunked(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    chunk_len: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal linear attention in chunks: almost all work is matrix products, and linear in T.

    In a chunk with carry-in H, and with the decays e_t since its beginning and f_s until its end,

        Y_t = Σ_{s ≤ t} scores[t, s] V_s + H (e_t ∘ Q_t)          the parallel form, and what the past says
        H'  = e_last ∘ H + Σ_s V_s (f_s ∘ K_s)^T                  the state for the next chunk

    chunk_len = 1 is the recurrent form, chunk_len ≥ T the parallel form. For the normaliser append a column of ones to
    V. Keys and queries shared by a group of heads have an axis of size 1 for these heads. A NaN or infinity in K or V,
    or an overflow, may reach all outputs of its chunk, also those before it.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token, or (..., T, N), one per key feature. May be
            float32 whatever the others are. It counts as a gate per key feature if it has as many axes as K.
        initial_state: (..., P, N) state before the first token, dtype of Q or float32; zeros if None. log_a[0] decays
            it.
        chunk_len: length ≥ 1 of a chunk; the last one may be shorter. Powers of two waste nothing.

    Returns:
        Y (..., T, P), dtype of Q, and the state after the last token (..., P, N), float32 if Q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs, log_a is a full gate or (on a CPU) positive, chunk_len is not an integer
            ≥ 1.

    Cost:
        T·chunk_len·(N + P) + 2·T·N·P multiply-adds; T·chunk_len + T·N·P / chunk_len entries. The only loop runs over
        T / chunk_len states. A gate per key feature adds T·N·log2(chunk_len) exponentials.

    Source:
        Hua et al. 2022; Yang et al. 2023 (GLA), chunkwise form; Dao and Gu 2024 (Mamba-2), section 6.
    """
    check_inputs("linear_attention_chunked", Q, K, V, log_a, initial_state)
    check_count("linear_attention_chunked", "chunk_len", chunk_len)
    return in_chunks(Q, K, V, log_a, initial_state, chunk_len)


def in_chunks(Q, K, V, log_a, initial_state=None, chunk_len=64):
    """`linear_attention_chunked` of operands that are checked."""
    q, k, v, gate, state = widen(Q, Q, K, V, key_gate(log_a, K), initial_state)
    q, k, v, gate = (split_chunks(x, chunk_len) for x in (q, k, v, gate))  # (..., C, chunk_len, ·)
    e = since_start(gate).exp()
    f = until_end(gate).exp()
    updates = contract("TP, TN -> PN", v, k * f)  # (..., C, P, N), what each chunk adds to the state
    carry_in, final = pass_states(e[..., -1:, :], updates, state)
    inside = contract("TS, SP -> TP", decayed_scores(q, k, gate), v)
    past = contract("TN, PN -> TP", q * e, carry_in)
    return join_chunks(inside + past, Q.shape[-2]).to(Q.dtype), final


def pass_states(decays, updates, state):
    """Run state = decays[c] ∘ state + updates[c] over the chunks c: 2·C·N·P operations.

    For decays (..., C, 1, 1) or (..., C, 1, N) and updates (..., C, P, N) it returns the carry-in (..., C, P, N) of
    every chunk, and the last state; the first is zeros if None. (As a matrix over chunks it would cost C²·N·P.)
    """
    state = torch.zeros_like(updates[..., 0, :, :]) if state is None else state
    state = state.expand(*broadcast_shapes(updates.shape[:-3], state.shape[:-2]), *state.shape[-2:])
    carry_in = []
    # unbind, not indexing: the gradient of x[c] would fill a tensor of the size of x for every chunk.
    for decay, update in zip(decays.unbind(-3), updates.unbind(-3), strict=True):
        carry_in.append(state)
        state = decay * state + update
    return torch.stack(carry_in, -3), state
