"""SSD on a CPU at the speed of its matrix products: plain PyTorch, with a backward of its own.

The mathematics is that of `ssd_chunked`. In a chunk, with s the running sums of its log_a and H (N, P) the state before
it, transposed,

    Y  = (L ∘ C B^T) X + e ∘ (C H)            L[i, j] = exp(s_i - s_j) for j ≤ i, e = exp(s)
    H' = exp(s_last) H + B^T (f ∘ X)          f = exp(s_last - s)

Unlike `masks.decay` this subtracts running sums. That is safe because log_a is clamped at −1000, whose exponential is 0
as that of a reset is, and the sums are float64. What is above the diagonal of L may overflow; it is overwritten by 0.
What makes it fast:

- Chunks are handled in blocks that fit the cache, with the same scratch memory for every block. What needs no state is
  one product for all chunks and heads of a block; only the state goes through a loop, three calls a chunk.
- The state is kept as (N, heads·P): heads that share B and C are columns of one matrix product.
- Where decays are mild no L is made, and heads that share B and C have longer chunks: see `fast.cpu.folded`.
- X, B, C and Y keep their memory layout: the product with e or f writes its result transposed, which saves a copy.
- The backward keeps one state for each block, and computes the others of the block again. With dH' the gradient of the
  state after a chunk, W = L ∘ dY X^T and G = W ∘ C B^T,

    dX = (L ∘ C B^T)^T dY + f ∘ (B dH')         dC = W B + (e ∘ dY) H^T
    dH = exp(s_last) dH' + C^T (e ∘ dY)         dB = W^T C + (f ∘ X) dH'^T
    dlog_a_t = Σ of all that passes from before t to t or later: inside the chunk (G[i, j], i ≥ t > j), from the state
    before it, into the state after it, and straight through it
"""

import torch

from smalearn._checks import check_ssd
from smalearn._operator import Operator
from smalearn.fast.cpu.folded import FoldedScan
from smalearn.fast.cpu.memory import empty_like
from smalearn.fast.cpu.scan import batch_parts, block_len, states_of_blocks
from smalearn.fast.groups import grouped
from smalearn.linear_attention.chunked import in_chunks


def ssd_cpu(
    X: torch.Tensor,
    log_a: torch.Tensor | None,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scalar state space model, chunked: the same function as `smalearn.ssd.ssd_chunked`, faster on a CPU.

    H_t = exp(log_a_t) H_{t-1} + X_t B_t^T, Y_t = H_t C_t. Two calls give the same bits, and a reset (log_a_t = -inf)
    makes all later outputs independent of finite earlier inputs to the last bit. A NaN or infinity in X or B, or an
    overflow, may reach all outputs of its chunk of 64 tokens, also those before it.

    Args:
        X: (..., T, P) inputs, float64, float32, bfloat16 or float16.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of X or float32; None for no decay.
        B: (..., T, N) input maps, dtype of X. Heads that share B and C have an axis of size 1 there.
        C: (..., T, N) output maps, dtype of X.
        initial_state: (..., P, N) state before the first token, dtype of X or float32; zeros if None.

    Returns:
        Y (..., T, P), dtype and, without broadcasting, memory layout of X, and the state after the last token
        (..., P, N), float32 if X is half precision.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs, or log_a is positive or NaN.

    Cost:
        T·Q·(N + P) + 2·T·N·P multiply-adds for each head, where T·Q·N, of C B^T in chunks of Q tokens, is spent once
        for heads that share B and C: Q = 64 for them where decays are mild, else 32; the backward 2.9 times that.
        A few MiB of scratch memory; for the backward the inputs and one state for each block.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.
    """
    check_ssd("ssd_cpu", X, log_a, B, C, initial_state)
    return ssd_cpu_unchecked(X, log_a, B, C, initial_state)


def ssd_cpu_unchecked(
    X: torch.Tensor,
    log_a: torch.Tensor | None,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ssd_cpu` of tensors that have been checked."""
    operands, restore = grouped(X, log_a, B, C, initial_state)
    return restore(*OPERATOR(*operands))


def _forward(tensors, settings, keep):
    """Y, the last state and, if `keep`, the state before every block."""
    _, _, B, _, initial_state = tensors
    Y, state, *kept = _allocate(empty_like, tensors, keep)
    for part, scan in _scans(tensors):
        H = None if initial_state is None else initial_state[part]
        states = kept[0][:, _rows(part, B)] if keep else None
        state[part] = scan.forward(H, Y[part], states)
    return [Y, state, *kept]


def _backward(gradients, tensors, kept, settings, needs):
    """Gradients, from one state for each block."""
    (dY, dstate), (X, _, B, _, initial_state), (states,) = gradients, tensors, kept
    dY = X.new_zeros(()).expand(X.shape) if dY is None else dY
    grads = [None if x is None else empty_like(x) for x in tensors]
    for part, scan in _scans(tensors):
        dH = None if dstate is None else dstate[part]
        dinitial = scan.backward(dY[part], dH, states[:, _rows(part, B)], _slice(grads[:4], part))
        if initial_state is not None:
            grads[4][part] = dinitial
    return grads


def _shapes(tensors, settings, keep):
    """Empty results, for tracing."""
    return _allocate(torch.empty_like, tensors, keep)


def _readable(tensors, settings):
    """The same function in plain PyTorch: chunked linear attention with Q = C, K = B, V = X."""
    X, log_a, B, C, initial_state = tensors
    return in_chunks(C, B, X, log_a, initial_state)


def _allocate(new_like, tensors, keep):
    """Memory for Y, the last state and, if `keep`, the state before every block."""
    X, _, B, _, _ = tensors
    state = X.new_empty(*X.shape[:3], X.shape[-1], B.shape[-1], dtype=torch.promote_types(X.dtype, torch.float32))
    return [new_like(X), state, *([states_of_blocks(X, B)] if keep else [])]


def _scans(tensors):
    """Each part of the batch and its scan."""
    X, log_a, B, C, _ = tensors
    block = block_len(X, B)
    return ((part, FoldedScan(*_slice((X, log_a, B, C), part), block)) for part in batch_parts(X, B))


def _rows(part, B):
    """The same part as a slice of the merged axis b·g."""
    groups = B.shape[1]
    return part if part == slice(None) else slice(part.start * groups, part.stop * groups)


def _slice(tensors, part):
    """Slice the batch of all tensors."""
    return [None if x is None else x[part] for x in tensors]


OPERATOR = Operator(
    "ssd_cpu", _forward, _backward, _shapes, _readable, counts=(5, 2), kept_from=2, instead="smalearn.ssd.ssd_chunked"
)
