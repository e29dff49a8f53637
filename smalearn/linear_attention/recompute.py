"""Gradients of linear attention that keep the inputs and compute the states again."""

import torch

from smalearn._checks import check_count
from smalearn._operator import of_batches
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.linear_attention.chunked import in_chunks, pass_states
from smalearn.linear_attention.inputs import check_inputs, key_gate
from smalearn.masks.decay import decay_matrix, join_chunks, since_start, split_chunks, until_end

TOGETHER = 16
"""Chunks whose gradients are computed at once: enough for large matrix products, few enough to need little memory.

Half takes 0.99, double 0.95 times as long (one thread of an AMD EPYC).
"""


def linear_attention_recomputed(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    chunk_len: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_attention_chunked` with a backward of its own: it saves Q, K, V and log_a, and no state.

    The gradients are linear attentions themselves. With the gradient dY of Y, and L the decays between two tokens,

        dQ = (L ∘ dY V^T) K      reads the states H_t = Σ_{s ≤ t} L[t, s] V_s K_s^T     forwards in time
        dK = (L ∘ dY V^T)^T Q    reads the states R_s = Σ_{t ≥ s} L[t, s] dY_t Q_t^T    backwards in time
        dV = (L ∘ Q K^T)^T dY    the same
        dlog_a_t = Σ_{s < t ≤ i} L[i, s] (Q_i · K_s)(dY_i · V_s): all that flows across t, from before it to t or later

    Arguments, results and errors are those of `linear_attention_chunked`, but that log_a is one decay per token,
    (..., T), or None.

    Cost:
        Saved for the backward: T·(2N + P + 1) + N·P entries, where autograd through the recurrence saves T·N·P.
        The backward takes about 2.5 times the forward's multiply-adds.

    Source:
        Katharopoulos et al. 2020, section 3.3.1 and equations (13) to (15), without decay.
    """
    check_inputs("linear_attention_recomputed", Q, K, V, log_a, initial_state, gates=("t",))
    check_count("linear_attention_recomputed", "chunk_len", chunk_len)
    return _Recomputed.apply(Q, K, V, log_a, initial_state, chunk_len)


class _Recomputed(torch.autograd.Function):
    """Forward: the chunked form. Backward: its states once more, and those of the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(Q, K, V, log_a, initial_state, chunk_len):
        return in_chunks(Q, K, V, log_a, initial_state, chunk_len)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *operands, ctx.chunk_len = inputs
        ctx.save_for_backward(*operands)

    @staticmethod
    @of_batches
    def backward(ctx, dY, dstate):
        Q, K, V, log_a, initial_state = saved = ctx.saved_tensors
        *rows, state, dstate = widen(Q, Q, K, V, key_gate(log_a, K), dY, initial_state, dstate)
        *grads, dinitial = _gradients(*(split_chunks(x, ctx.chunk_len) for x in rows), state, dstate)
        dQ, dK, dV, dgate = (join_chunks(x, Q.shape[-2]) for x in grads)
        pairs = zip((dQ, dK, dV, dgate[..., 0], dinitial), saved, strict=True)
        # Autograd itself casts each to its input's dtype and sums it over axes along which the input was broadcast.
        return *(None if x is None else grad for grad, x in pairs), None


def _gradients(Q, K, V, gate, dY, state, dstate):
    """Gradients of Q, K, V, gate, chunk by chunk, and of the initial state.

    S are the carry-ins of the chunks, R the gradients of their carry-outs.
    """
    read, write = since_start(gate).exp(), until_end(gate).exp()
    total = read[..., -1:, :]
    S, _ = pass_states(total, contract("TP, TN -> PN", V, K * write), state)
    updates = _summed(contract("TP, TN -> PN", dY, Q * read), like=S)
    R, dinitial = pass_states(total.flip(-3), updates.flip(-3), dstate)
    operands = (Q, K, V, gate, dY, S, R.flip(-3))
    blocks = zip(*(x.split(TOGETHER, -3) for x in operands), strict=True)
    grads = zip(*(_gradients_inside(*block) for block in blocks), strict=True)
    return *(torch.cat(parts, -3) for parts in grads), dinitial


def _gradients_inside(Q, K, V, gate, dY, S, R):
    """Gradients of Q, K, V and gate in chunks between which S and R are known."""
    L, read, write = decay_matrix(gate[..., 0]), since_start(gate).exp(), until_end(gate).exp()
    A, W = contract("TN, SN -> TS", Q, K), L * contract("TP, SP -> TS", dY, V)
    from_past, from_future = read * contract("TP, PN -> TN", dY, S), write * contract("TP, PN -> TN", V, R)
    dQ = contract("TS, SN -> TN", W, K) + from_past
    dK = _summed(contract("TS, TN -> SN", W, Q), like=K) + _summed(from_future, like=K)
    dV = _summed(contract("TS, TP -> SP", L * A, dY), like=V) + _summed(write * contract("TN, PN -> TP", K, R), like=V)
    past, future = (Q * from_past).sum(-1, keepdim=True), (K * from_future).sum(-1, keepdim=True)
    through = read[..., -1:, :] * (S * R).sum((-2, -1), keepdim=True)
    return dQ, dK, dV, _flow(*(_summed(x, like=gate) for x in (W * A, past, future, through)))


def _summed(x, like):
    """A gradient (..., C, rows, columns) summed over the leading axes along which the operand `like` was broadcast."""
    return x.sum_to_size(*like.shape[:-3], *x.shape[-3:])


def _flow(inside, past, future, through):
    """Sum, for every t of a chunk, what flows from before t to t or later: the gradient of log_a.

    Rows are where a flow ends, columns where it begins: one column in front for what comes from the past, one row
    below for what goes to the future. Only terms that cross t are added and nothing is subtracted, so that small
    gradients between strong decays keep their digits.
    """
    flow = torch.cat([torch.cat([past, inside], -1), torch.cat([through, future.mT], -1)], -2)
    ending_later = flow.flip(-2).cumsum(-2).flip(-2)
    return ending_later.tril().sum(-1, keepdim=True)[..., :-1, :]
