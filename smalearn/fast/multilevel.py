"""Multi-level attention at its fastest: squares of scores on a CPU, one program on a GPU, never a (T, T) matrix."""

from collections.abc import Sequence

import torch

from smalearn._checks import broadcast_shapes, check_count, check_dtypes, check_float32_or, check_shapes, check_type
from smalearn._operator import Operator
from smalearn.fast.cpu import squares
from smalearn.fast.cpu.tiling import Tiling
from smalearn.fast.triton.multilevel import multilevel_forward, multilevel_handles
from smalearn.multilevel.levels import check_levels
from smalearn.multilevel.scores import batched_scores


def multilevel_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    ranks: Sequence[int],
    block_lens: Sequence[int],
    causal: bool = True,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multi-level attention Y = softmax(S + bias) V with S = `multilevel_scores`, and no (T, T) matrix.

    Level l joins i and j where i // block_lens[l] = j // block_lens[l]: positions alone decide, so more tokens leave
    earlier causal outputs as they are. One level is standard attention. No hidden scale: for 1/√N pass Q / √N.

    A pair costs only the columns of the levels it shares. Squares of pairs with the same d are one product each; a row
    keeps a running denominator and numerator, so that all squares may be summed in any order. A NaN or infinity in K or
    V, or an overflow, may reach all outputs of its square on the diagonal, of less than 192 tokens, also those before
    it.

    Args:
        Q: (..., T, N) queries, N = Σ_l r_l, the columns of the coarsest level first; any floating dtype.
        K: (..., T, N) keys.
        V: (..., T, P) values. Where K and V both lack a leading axis or have size 1 there, a group of queries shares
            them, and they are not copied for each.
        ranks: r_l ≥ 0 of every level.
        block_lens: b_l of every level, each a multiple of the next, the first at least T.
        causal: query i meets the keys j ≤ i, or all.
        bias: (..., T, T) added to the scores, dtype of Q or float32; either T may be 1. -inf removes a pair.

    Returns:
        (..., T, P), dtype of Q; half precision is computed in float32. A row whose bias hides every key is zero.

    Raises:
        ShapeError: an axis has two sizes, or the ranks do not sum to N. Queries and keys of two lengths have no levels.
        TypeError: causal is not a bool.
        ValueError: dtypes or devices differ, or ranks and block lengths are not an allocation for T.

    Cost:
        The scores need `executed_macs`, little more than `score_macs`; the values T²·P, half of it if causal. Memory is
        O(T·(N + P)) and a few MiB for a tile; gradients of a bias are as large as it is. On a GPU with Triton the
        forward without bias is one program, if causal: see `fast.triton.multilevel`, also for half precision.

    Source:
        Kuang et al. 2025, section 3.4, whose code builds (T, T) scores for every level.
    """
    name = "multilevel_attention"
    check_dtypes(name, {"Q": Q, "K": K, "V": V}, real=True)
    check_type(name, "causal", causal, bool)
    operands = {"Q": (Q, "tn"), "K": (K, "tn"), "V": (V, "tp")}
    check_shapes(name, operands)
    length = Q.shape[-2]
    if bias is not None:
        bias = _whole_bias(name, bias, Q)
        check_shapes(name, operands | {"bias": (bias, "tt")})
    ranks, block_lens = check_levels(name, ranks, block_lens, Q.shape[-1], length)
    leading = broadcast_shapes(*(x.shape[:-2] for x in (Q, K, V, bias) if x is not None))
    settings = (causal, *ranks, *block_lens)
    aligned = [None if x is None else x[(None,) * (len(leading) + 3 - x.ndim)] for x in (Q, K, V, bias)]
    if 0 in (length, *leading):
        (Y,) = _readable(aligned, settings)  # nothing to do, but gradients have shapes
    elif causal and bias is None and multilevel_handles(Q, V):
        (Y,) = ON_GPU(*aligned, settings=settings)
    else:
        wide = torch.promote_types(Q.dtype, torch.float32)
        (Y,) = ON_CPU(*(None if x is None else x.to(wide) for x in aligned), settings=settings)
    return Y[0].to(Q.dtype)


def executed_macs(length: int, ranks: Sequence[int], block_lens: Sequence[int], causal: bool = True) -> int:
    """Multiply-adds that `multilevel_attention` spends on the scores of one head, where `score_macs` are needed.

    There are more by the padding of blocks, the upper halves of squares on the diagonal, and a column that holds a
    constant of each query (two where padding must be masked).

    Args:
        length: T.
        ranks: r_l of every level.
        block_lens: b_l of every level.
        causal: query i meets the keys j ≤ i, or all.

    Raises:
        ValueError: the length is not an integer ≥ 0, or ranks and block lengths are not an allocation for it.
    """
    check_count("executed_macs", "length", length, least=0)
    check_type("executed_macs", "causal", causal, bool)
    check_levels("executed_macs", ranks, block_lens, length=length)
    return Tiling(length, ranks, block_lens, causal).macs() if length else 0


def _levels(settings):
    """Ranks, block lengths and whether causal, from the settings of the operators."""
    causal, *levels = map(int, settings)
    return levels[: len(levels) // 2], levels[len(levels) // 2 :], bool(causal)


def _readable(tensors, settings):
    """Y with a (T, T) matrix."""
    Q, K, V, bias = tensors
    ranks, block_lens, causal = _levels(settings)
    S = batched_scores(Q, K, ranks, block_lens)
    S = S if bias is None else S + bias
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1), -torch.inf)
    visible = S.isfinite().any(-1, keepdim=True)  # a row that sees no key is 0
    return (torch.where(visible, S, 0.0).softmax(-1).where(visible, 0.0) @ V,)


def _squares_forward(tensors, settings, keep):
    """Y, and what the squares keep."""
    return squares.forward(tensors, *_levels(settings), keep)


def _squares_shapes(tensors, settings, keep):
    """Their shapes."""
    return squares.shapes(tensors, *_levels(settings), keep)


def _squares_backward(gradients, tensors, kept, settings, needs):
    """Gradients by the squares."""
    Y, q, k, v, sums, rescaled = kept
    saved = q, k, v, Y, tensors[3], sums if rescaled else None
    return squares.gradients(*squares.layout_and_tiling(tensors, *_levels(settings)), saved, gradients[0], needs[3])


def _program_forward(tensors, settings, keep):
    """Y by the program of a GPU, and log Σ exp S of every row."""
    return list(multilevel_forward(*tensors[:3], *_levels(settings)[:2]))


def _program_shapes(tensors, settings, keep):
    """Their shapes."""
    Q, K, V, _ = tensors
    leading = broadcast_shapes(*(x.shape[:-2] for x in (Q, K, V)))
    rows = (*leading, Q.shape[-2])
    return [Q.new_empty(*rows, V.shape[-1]), Q.new_empty(rows, dtype=torch.float32)]


def _program_backward(gradients, tensors, kept, settings, needs):
    """Gradients by the squares, from the program's log Σ exp S."""
    Y, log_sum = kept
    operands = [x.float() for x in tensors[:3]]
    layout, tiling = squares.layout_and_tiling([*operands, None], *_levels(settings))
    maxima = layout.lay(log_sum[..., None] * squares.LOG2E, tiling)
    sums = torch.stack([maxima, torch.ones_like(maxima)])
    saved = *squares.lay_out(layout, tiling, *operands), Y.float(), None, sums
    return squares.gradients(layout, tiling, saved, gradients[0].float())


INSTEAD = "softmax of smalearn.multilevel.multilevel_scores"
ON_CPU = Operator(
    "multilevel_attention",
    _squares_forward,
    _squares_backward,
    _squares_shapes,
    _readable,
    counts=(4, 1),
    kept_from=0,
    instead=INSTEAD,
)
ON_GPU = Operator(
    "multilevel_attention_on_gpu",
    _program_forward,
    _program_backward,
    _program_shapes,
    _readable,
    counts=(4, 1),
    kept_from=0,
    instead=INSTEAD,
)


def _whole_bias(function, bias, Q):
    """The bias with an axis of size 1 for queries or keys expanded to T, a view."""
    check_dtypes(function, {"bias": bias})
    check_float32_or(function, "bias", bias, "Q", Q)
    check_shapes(function, {"bias": (bias, "ts")})
    sizes = (Q.shape[-2] if size == 1 else size for size in bias.shape[-2:])
    return bias.expand(*bias.shape[:-2], *sizes)
