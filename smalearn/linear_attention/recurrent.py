"""The recurrent form: one token at a time, with a state of constant size."""

import torch

from smalearn._checks import broadcast_shapes
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.linear_attention.inputs import check_inputs


def linear_attention_recurrent(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal linear attention as a recurrence (Proposition 4.1), with any elementwise gate.

    H_t = exp(log_a_t) ∘ H_(t-1) + V_t K_t^T, Y_t = H_t Q_t. For the normaliser append a column of ones to V. A NaN or
    infinity in a token reaches no earlier output.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token; (..., T, N), one per key feature, if it has as
            many axes as K; or the full gate (..., T, P, N). May be float32 whatever the others are.
        initial_state: (..., P, N) state before the first token, dtype of Q or float32; zeros if None. log_a[0] decays
            it.

    Returns:
        Y (..., T, P), dtype of Q, and the state after the last token (..., P, N), float32 if Q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive.

    Cost:
        2·T·N·P multiply-adds (3·T·N·P with a gate), in steps that follow one another; a state of N·P entries.
        Gradients by autograd store every state: T·N·P entries.

    Source:
        Katharopoulos et al. 2020; Dao and Gu 2024 (Mamba-2), Proposition 4.1; Yang et al. 2023 (GLA).
    """
    check_inputs("linear_attention_recurrent", Q, K, V, log_a, initial_state, gates=("t", "tn", "tpn"))
    q, k, v, gate, state = widen(Q, Q, K, V, _state_gate(log_a, K), initial_state)
    if state is None:
        state = v.new_zeros(v.shape[-1], k.shape[-1])
    leading = [x.shape[:-2] for x in (k, v, state)] + ([] if gate is None else [gate.shape[:-3]])
    state = state.expand(*broadcast_shapes(*leading), *state.shape[-2:])
    gates = [None] * Q.shape[-2] if gate is None else gate.unbind(-3)
    outputs = []
    for q_t, k_t, v_t, gate_t in zip(q.unbind(-2), k.unbind(-2), v.unbind(-2), gates, strict=True):
        y, state = step_unchecked(q_t, k_t, v_t, gate_t, state)
        outputs.append(y)
    Y = torch.stack(outputs, -2) if outputs else contract("TN, PN -> TP", q, state)
    return Y.to(Q.dtype), state


def linear_attention_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_a: torch.Tensor | None, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of `linear_attention_recurrent`, for decoding.

    S = exp(log_a) ∘ state + v k^T, y = S q.

    Args:
        q: (..., N) query.
        k: (..., N) key.
        v: (..., P) value.
        log_a: log decay ≤ 0: (...), (..., N) or (..., P, N), one axis less than k, as many, or one more; or None.
        state: (..., P, N) before this token, dtype of q or float32.

    Returns:
        y (..., P), dtype of q, and the new state (..., P, N), float32 if q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive.

    Cost:
        2·N·P multiply-adds (3·N·P with a gate), whatever came before.

    Source:
        Katharopoulos et al. 2020, section 3.4.
    """
    check_inputs("linear_attention_step", q, k, v, log_a, state, gates=("", "n", "pn"))
    y, state = step_unchecked(*widen(q, q, k, v, _state_gate(log_a, k), state))
    return y.to(q.dtype), state


def step_unchecked(q, k, v, log_a, state):
    """One step of operands that are checked and of one dtype, log_a broadcasting against the state."""
    if log_a is not None:
        state = log_a.exp() * state
    state = torch.addcmul(state, v[..., :, None], k[..., None, :])
    return (state * q[..., None, :]).sum(-1), state


def _state_gate(log_a, K):
    """log_a with the two axes of a state at its end, of size one where the gate does not vary."""
    if log_a is None or log_a.ndim > K.ndim:
        return log_a
    return log_a[..., None, :] if log_a.ndim == K.ndim else log_a[..., None, None]
