"""The generalized delta rule: one key to read with, one to erase along, one to write along.

    H'  = exp(log_a_t) ∘ H_(t-1)                    forget
    H_t = H' - (H' r_t) p_t^T + v_t k_t^T           erase along p what r reads, write v along k
    y_t = H_t q_t

The delta rule is r = k, p = β k with β k in the place of k: what a key reads is erased along the key that writes. With
⟨x, y⟩ the scores of linear attention, decays included, and ⟨x, y⟩₋ those below the diagonal, all outputs are Y = M V,

    M = ⟨q, k⟩ - ⟨q, p⟩ (I + ⟨r, p⟩₋)^-1 ⟨r, k⟩₋                 and  M = ⟨q, k⟩ (I + ⟨r, k⟩₋)^-1 where p = k.

Other models choose other keys: `catalogue.DELTA_MODELS` lists them.
"""

from itertools import repeat

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_count
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.linear_attention.inputs import check_inputs, key_gate
from smalearn.linear_attention.parallel import decayed_scores
from smalearn.masks.decay import join_chunks, since_start, split_chunks, until_end

Tensor = torch.Tensor


def generalized_delta_rule_recurrent(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    read: Tensor,
    erase: Tensor | None = None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The generalized delta rule, one token after the other: the oracle of all other forms.

    H_t = H' - (H' read_t) erase_t^T + V_t K_t^T with H' = exp(log_a_t) ∘ H_(t-1), and Y_t = H_t Q_t. A memory that is
    read before it decays is this one with the keys read / exp(log_a). A NaN or infinity in a token reaches no earlier
    output. The state stays bounded where erase is a multiple of read and 0 ≤ read·erase ≤ 2; nothing here normalises.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys along which values are written.
        V: (..., T, P) values.
        read: (..., T, N) keys with which the memory is read before it is written, dtype of Q or float32.
        erase: (..., T, N) keys along which what was read is taken away, dtype of Q or float32; K if None, as in the
            delta rule, which saves a write.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token, or (..., T, N), one per key feature. May be
            float32 whatever the others are. It counts as a gate per key feature if it has as many axes as K.
        initial_state: (..., P, N) state before the first token, dtype of Q or float32; zeros if None. log_a[0] decays
            it.

    Returns:
        Y (..., T, P), dtype of Q, and the state after the last token (..., P, N), float32 if Q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs or is complex, or (on a CPU) log_a is positive.

    Cost:
        3·T·N·P multiply-adds, T·N·P more with `erase` and T·N·P with a gate, in steps that follow one another; a state
        of N·P entries. Gradients by autograd store every state.

    Source:
        Peng et al. 2025 (RWKV-7), section 4, which calls it so; the matrix M above by one triangular solve, as for the
        delta rule.

    Example:
        >>> key, values = torch.ones(2, 1), torch.tensor([[3.0], [5.0]])
        >>> generalized_delta_rule_recurrent(key, key, values, read=0.5 * key)[0].ravel()
        tensor([3.0000, 6.5000])
    """
    check_generalized("generalized_delta_rule_recurrent", Q, K, V, read, erase, log_a, initial_state)
    return correct_by_token(Q, K, V, read, erase, key_gate(log_a, K), initial_state)


def generalized_delta_rule_step(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, erase: Tensor | None, log_a: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of `generalized_delta_rule_recurrent`, for decoding.

    Args:
        q: (..., N) query.
        k: (..., N) key that writes.
        v: (..., P) value.
        read: (..., N) key that reads, dtype of q or float32.
        erase: (..., N) key that erases, dtype of q or float32; k if None.
        log_a: log decay ≤ 0: (...), or (..., N) if it has as many axes as k; or None.
        state: (..., P, N) before this token, dtype of q or float32.

    Returns:
        y (..., P), dtype of q, and the new state (..., P, N), float32 if q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs or is complex, or (on a CPU) log_a is positive.

    Cost:
        3·N·P multiply-adds, N·P more with `erase` and N·P with a gate, whatever came before.

    Source:
        Peng et al. 2025 (RWKV-7), section 4.
    """
    check_generalized("generalized_delta_rule_step", q, k, v, read, erase, log_a, state, time="")
    y, state = correct_token(*widen(q, q, k, v, read, erase, gate_of_token(log_a, k), state))
    return y.to(q.dtype), state


def generalized_delta_rule_chunked(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    read: Tensor,
    erase: Tensor | None = None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
    chunk_len: int = 32,
) -> tuple[Tensor, Tensor]:
    """The generalized delta rule in chunks: a triangular solve inside, a state carried from chunk to chunk.

    In a chunk with carry-in H, with the decays e_t since its beginning and f_s until its end, and with scores(Q, K)
    those of linear attention, decays included,

        A   = scores(read, erase) below the diagonal             what a key reads of what the earlier ones erased
        -E  = (I + A)^-1 (scores(read, K)₋ V + (e ∘ read) H^T)   all that is read: one solve
        Y   = scores(Q, K) V + scores(Q, erase) E + (e ∘ Q) H^T
        H'  = e_last ∘ H + V^T (f ∘ K) + E^T (f ∘ erase)

    and with erase = K, where both writes are one, E' = V + E = (I + A)^-1 (V - (e ∘ read) H^T) alone is written. A NaN
    or infinity in K, V or read, or an overflow, may reach all outputs of its chunk, also those before it.

    Arguments, results and errors are those of `generalized_delta_rule_recurrent`; and chunk_len, an integer ≥ 1, is the
    length of a chunk, of which the last may be shorter.

    Cost:
        T·chunk_len·(2.5·N + 1.5·P) + 3·T·N·P multiply-adds, and T·chunk_len·(2·N + 2·P) + T·N·P more with `erase`;
        T·chunk_len + T·N·P / chunk_len entries. A gate per key feature adds 2·T·N·log2(chunk_len) exponentials.

    Source:
        Peng et al. 2025 (RWKV-7), appendix on the parallel form; Yang et al. 2024 (DeltaNet) where erase = K.
    """
    check_generalized("generalized_delta_rule_chunked", Q, K, V, read, erase, log_a, initial_state)
    check_count("generalized_delta_rule_chunked", "chunk_len", chunk_len)
    return correct_in_chunks(Q, K, V, read, erase, key_gate(log_a, K), initial_state, chunk_len)


def correct_by_token(Q, K, V, read, erase, gate, state):
    """`generalized_delta_rule_recurrent` of operands that are checked, with the gate from `key_gate`."""
    tokens = widen(Q, Q, K, V, read, erase, gate)
    state = _zeros_or(state, *tokens[1:])
    outputs = []
    for token in zip(*(repeat(None) if x is None else x.unbind(-2) for x in tokens), strict=False):
        y, state = correct_token(*token, state)
        outputs.append(y)
    Y = torch.stack(outputs, -2) if outputs else contract("TN, PN -> TP", tokens[0], state)
    return Y.to(Q.dtype), state


def correct_token(q, k, v, read, erase, gate, state):
    """One step; gate (..., 1) or (..., N)."""
    state = gate.exp()[..., None, :] * state
    found = (state * read[..., None, :]).sum(-1)
    if erase is None:
        state = state + (v - found)[..., :, None] * k[..., None, :]
    else:
        state = state + v[..., :, None] * k[..., None, :] - found[..., :, None] * erase[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


def correct_in_chunks(Q, K, V, read, erase, gate, state, chunk_len=32):
    """`generalized_delta_rule_chunked` of operands that are checked, with the gate from `key_gate`."""
    tokens = widen(Q, Q, K, V, read, erase, gate)
    q, k, v, r, p, gate = (None if x is None else split_chunks(x, chunk_len) for x in tokens)  # (..., C, chunk_len, ·)
    state = _zeros_or(state, *tokens[1:])
    e = since_start(gate).exp()
    f = until_end(gate).exp()
    if p is None:  # both writes are one, along k
        p, right = k, v
        inside = added = None
    else:
        right = -contract("TS, SP -> TP", decayed_scores(r, k, gate).tril(-1), v)
        inside = contract("TS, SP -> TP", decayed_scores(q, k, gate), v)
        added = contract("TP, TN -> PN", v, k * f)
    A = decayed_scores(r, p, gate)  # (..., C, chunk_len, chunk_len); its diagonal and above are not read
    carry_in, written, final = _pass_corrections(
        _solve(A, right), _solve(A, r * e), p * f, e[..., -1:, :], added, state
    )
    Y = contract("TS, SP -> TP", decayed_scores(q, p, gate), written) + contract("TN, PN -> TP", q * e, carry_in)
    return join_chunks(Y if inside is None else Y + inside, Q.shape[-2]).to(Q.dtype), final


def _pass_corrections(U, W, keys, decays, added, state):
    """Run the chunks: the state before each (..., C, P, N), what each writes (..., C, chunk_len, P), the last state.

    `added` (..., C, P, N) is what a chunk writes along other keys, whatever it reads, or None.
    """
    states, written = [], []
    added = repeat(None) if added is None else added.unbind(-3)
    for U_c, W_c, keys_c, decay, more in zip(*(x.unbind(-3) for x in (U, W, keys, decays)), added, strict=False):
        states.append(state)
        written.append(U_c - contract("TN, PN -> TP", W_c, state))
        state = decay * state + contract("TP, TN -> PN", written[-1], keys_c)
        state = state if more is None else state + more
    return torch.stack(states, -3), torch.stack(written, -3), state


def _solve(A, x):
    """(I + A)^-1 x for the part of A below its diagonal."""
    return torch.linalg.solve_triangular(A, x, upper=False, unitriangular=True)


def _zeros_or(state, k, v, *others):
    """The state, zeros if None, with the leading axes of all that writes it, in the dtype of v."""
    state = v.new_zeros(v.shape[-1], k.shape[-1]) if state is None else state.to(v.dtype)
    leading = broadcast_shapes(state.shape[:-2], *(x.shape[:-2] for x in (k, v, *others) if x is not None))
    return state.expand(*leading, *state.shape[-2:])


def gate_of_token(log_a, k):
    """log_a of one token as (..., 1) or (..., N)."""
    return k.new_zeros(1) if log_a is None else log_a if log_a.ndim == k.ndim else log_a[..., None]


def check_generalized(function, Q, K, V, read, erase, log_a, state, time="t"):
    """Check operands of the generalized delta rule, as `check_keys` does."""
    keys = {"read": (read, time + "n")} | ({} if erase is None else {"erase": (erase, time + "n")})
    check_keys(function, Q, K, V, keys, log_a=log_a, initial_state=state, time=time)


def check_keys(function, Q, K, V, more, *, log_a, initial_state, time="t"):
    """Check operands of a delta rule: those of linear attention, and more with their axes, of its dtype or float32.

    `time` is the letter of the time axis, empty for a single step. There is no full gate.
    """
    if isinstance(log_a, Tensor) and isinstance(K, Tensor) and log_a.ndim > K.ndim:
        axes = "(..., T), or (..., T, N)" if time else "(...), or (..., N)"
        raise ShapeError(f"{function}: log_a must have axes {axes}, got shape {tuple(log_a.shape)}")
    check_inputs(function, Q, K, V, log_a, initial_state, (time, time + "n"), more, real=True)
