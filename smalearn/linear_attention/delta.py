"""The delta rule: a memory that is read before it is written, and stores the difference alone.

    H' = exp(log_a_t) ∘ H_(t-1)        forget
    u_t = β_t (v_t - H' k_t)           read with the key, compare with the value
    H_t = H' + u_t k_t^T               write the difference
    y_t = H_t q_t

β = 0 leaves the memory as it is. With a key of norm 1, β = 1 makes it answer v_t exactly, and β = 2 reflects it along
k_t. The state stays bounded for ‖k‖² β ≤ 2; no function here normalises keys, `l2norm` does.
"""

import torch

from smalearn._checks import check_count, check_dtypes, check_eps, check_shapes, holds
from smalearn._structured import widen
from smalearn.linear_attention.generalized_delta import (
    check_keys,
    correct_by_token,
    correct_in_chunks,
    correct_token,
    gate_of_token,
)
from smalearn.linear_attention.inputs import key_gate


def delta_rule_recurrent(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule, one token after the other: the oracle of all other forms.

    A NaN or infinity in a token reaches no earlier output. Several corrections for each token (DeltaProduct) are
    several tokens: repeat the token, each time with another key and value, and keep every last output.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys, of norm 1 as a rule.
        V: (..., T, P) values.
        beta: (..., T) strength of the correction, from 0 to 2; dtype of Q or float32.
        log_a: log decay ≤ 0, −inf for a reset: (..., T), one per token, or (..., T, N), one per key feature. May be
            float32 whatever the others are. It counts as a gate per key feature if it has as many axes as K.
        initial_state: (..., P, N) state before the first token, dtype of Q or float32; zeros if None. log_a[0] decays
            it.

    Returns:
        Y (..., T, P), dtype of Q, and the state after the last token (..., P, N), float32 if Q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs or is complex, or (on a CPU) log_a is positive or beta not in [0, 2].

    Cost:
        3·T·N·P multiply-adds (4·T·N·P with a gate), in steps that follow one another; a state of N·P entries.
        Gradients by autograd store every state.

    Source:
        Widrow and Hoff 1960; Schlag, Irie and Schmidhuber 2021; Yang, Kautz and Hatamizadeh 2024 (Gated DeltaNet);
        Kimi Team 2025 (Kimi Linear) for a gate per key feature.

    Example:
        >>> key, values = torch.ones(2, 1), torch.tensor([[3.0], [5.0]])
        >>> delta_rule_recurrent(key, key, values, torch.ones(2))[0].ravel()
        tensor([3., 5.])
    """
    check_delta("delta_rule_recurrent", Q, K, V, beta, log_a, initial_state)
    return correct_by_token(Q, weigh_keys(Q, K, beta), V, K, None, key_gate(log_a, K), initial_state)


def delta_rule_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of `delta_rule_recurrent`, for decoding.

    Args:
        q: (..., N) query.
        k: (..., N) key.
        v: (..., P) value.
        beta: (...) strength of the correction, from 0 to 2; dtype of q or float32.
        log_a: log decay ≤ 0: (...), or (..., N) if it has as many axes as k; or None.
        state: (..., P, N) before this token, dtype of q or float32.

    Returns:
        y (..., P), dtype of q, and the new state (..., P, N), float32 if q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or log_a.ndim matches no supported gate shape.
        ValueError: a dtype or device differs or is complex, or (on a CPU) log_a is positive or beta not in [0, 2].

    Cost:
        3·N·P multiply-adds (4·N·P with a gate), whatever came before.

    Source:
        Schlag, Irie and Schmidhuber 2021, section 4.2.
    """
    check_delta("delta_rule_step", q, k, v, beta, log_a, state, time="")
    y, state = correct_token(*widen(q, q, weigh_keys(q, k, beta), v, k, None, gate_of_token(log_a, k), state))
    return y.to(q.dtype), state


def delta_rule_chunked(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    chunk_len: int = 32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule in chunks: a triangular solve inside, a state carried from chunk to chunk.

    In a chunk with carry-in H, with the decays e_t since its beginning and f_s until its end, and with scores(Q, K)
    those of linear attention, decays included,

        A   = scores(K, β K) below the diagonal                     how each key meets the earlier ones
        E   = (I + A)^-1 V - (I + A)^-1 (e ∘ K) H^T                 what the memory lacks of the values: one solve
        Y   = scores(Q, β K) E + (e ∘ Q) H^T                        linear attention of them
        H'  = e_last ∘ H + E^T (f ∘ β K)

    So the whole matrix is scores(Q, β K) (I + A)^-1: an attention times the inverse of an attention. A NaN or
    infinity in K, V or beta, or an overflow, may reach all outputs of its chunk, also those before it. In float32 it
    rounds as the loop does, up to about twice as much; but where keys are alike and β is above 1 more, at β = 2 up to
    some 16 times as much (`fast.delta_rule`: 5).

    Arguments, results and errors are those of `delta_rule_recurrent`; and chunk_len, an integer ≥ 1, is the length of a
    chunk, of which the last may be shorter.

    Cost:
        T·chunk_len·(2.5·N + 1.5·P) + 3·T·N·P multiply-adds; T·chunk_len + T·N·P / chunk_len entries. A gate per key
        feature adds 2·T·N·log2(chunk_len) exponentials.

    Source:
        Yang et al. 2024 (DeltaNet, the parallel form; Gated DeltaNet); Bischof and Van Loan 1987 for the product of
        the factors I - β k k^T as I - W^T K.
    """
    check_delta("delta_rule_chunked", Q, K, V, beta, log_a, initial_state)
    check_count("delta_rule_chunked", "chunk_len", chunk_len)
    return delta_in_chunks(Q, K, V, beta, log_a, initial_state, chunk_len)


def delta_in_chunks(Q, K, V, beta, log_a, initial_state=None, chunk_len=32):
    """`delta_rule_chunked` of operands that are checked."""
    return correct_in_chunks(Q, weigh_keys(Q, K, beta), V, K, None, key_gate(log_a, K), initial_state, chunk_len)


def weigh_keys(Q, K, beta):
    """β K, with which the delta rule erases and writes, in the dtype of all arithmetic."""
    keys, strength = widen(Q, K, beta[..., None])
    return strength * keys


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Vectors of norm 1, as keys and queries of a delta rule usually are.

    Args:
        x: (..., N).
        eps: added to the squared norm, so that a vector of zeros stays one.

    Returns:
        x / sqrt(‖x‖² + eps), (..., N).

    Raises:
        ShapeError: x has no axis.
        TypeError: x is not a tensor, or eps not a number.
        ValueError: x has no floating dtype, or is complex; eps is negative or not finite.

    Cost:
        2·N multiplications for each vector.

    Source:
        Yang et al. 2024 (DeltaNet), section 3.3.
    """
    check_dtypes("l2norm", {"x": x}, real=True)
    check_shapes("l2norm", {"x": (x, "n")})
    check_eps("l2norm", eps)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def check_delta(function, Q, K, V, beta, log_a, state, time="t"):
    """Check operands of the delta rule: those of linear attention with a decay per token or key feature, and beta.

    `time` is the letter of the time axis, empty for a single step.
    """
    check_keys(function, Q, K, V, {"beta": (beta, time)}, log_a=log_a, initial_state=state, time=time)
    if beta.device.type == "cpu" and beta.numel():
        low, high = beta.detach().aminmax()
        if not (holds(low >= 0) and holds(high <= 2)):
            raise ValueError(f"{function}: beta must be from 0 to 2, got {low.item():.3g} to {high.item():.3g}")
