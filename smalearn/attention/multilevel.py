"""Multi-level attention (structured attention paper, section 3.4): closer tokens compare more columns.

Every level cuts the sequence into blocks, each level finer than the one before, and has some of the columns of Q and K.
A level counts in the score of two tokens if one of its blocks holds both.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from smalearn._checks import check_companion, check_count, check_dtypes, check_shapes
from smalearn.attention._layout import Layout
from smalearn.attention._levels import (
    Blocks,
    check_levels,
    check_ranks,
    halving_blocks,
    key_numbers,
    level_counts,
    live_key_numbers,
    parse_ranks,
    same_blocks,
    score_macs,
)
from smalearn.attention._plan import Plan
from smalearn.attention._squares import LOG2E, Attention, _laid
from smalearn.contractions import contract
from smalearn.kernels.multilevel import multilevel_forward, multilevel_handles

__all__ = [
    "batched_scores",
    "executed_macs",
    "halving_blocks",
    "key_numbers",
    "level_counts",
    "live_key_numbers",
    "multilevel_attention",
    "multilevel_scores",
    "parse_ranks",
    "score_macs",
]


def multilevel_scores(
    Q: torch.Tensor, K: torch.Tensor, ranks: Sequence[int], block_lens: Sequence[Blocks]
) -> torch.Tensor:
    """Scores of equation (9), pair by pair: S[i, j] = Σ over l ≤ d(i, j) of Q_l[i] · K_l[j].

    d(i, j) is that of `level_counts`. Nothing is saved here: every level is computed for all pairs, and then dropped
    where it does not count. With all ranks in the first level S = Q K^T.

    Args:
        Q: (..., T, N) queries, N = Σ_l r_l, the columns of the coarsest level first.
        K: (..., T, N) keys.
        ranks: r_l ≥ 0 of every level.
        block_lens: of every level the block length, or a (T,) tensor with the number of each token's block, if blocks
            follow the text: its paragraphs, say.

    Returns:
        (..., T, T), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, the ranks do not sum to N, or a tensor of blocks is not (T,).
        ValueError: dtypes or devices differ, a level lacks a rank or blocks, one has a wrong value, blocks do not nest,
            or the first level has more than one block.

    Cost:
        T²·N multiply-adds.

    Source:
        Kuang et al. 2025, section 3.4 and footnote 1.
    """
    name = "multilevel_scores"
    _check_pair(name, Q, K)
    check_ranks(name, ranks, block_lens, Q.shape[-1])
    together = same_blocks(name, Q.shape[-2], block_lens)
    S = 0
    for same, Q_l, K_l in zip(together, Q.split(list(ranks), -1), K.split(list(ranks), -1), strict=True):
        S = S + contract("TN, SN -> TS", Q_l, K_l) * same.to(Q)
    return S


def batched_scores(Q: torch.Tensor, K: torch.Tensor, ranks: Sequence[int], block_lens: Sequence[int]) -> torch.Tensor:
    """The same scores block by block: S = Σ_l ⊕_k Q_lk K_lk^T, a batched product of all blocks of a level.

    That both are equal is Lemma D.1. A last block that is not full is filled with zeros.

    Args:
        Q: (..., T, N) queries, N = Σ_l r_l, the columns of the coarsest level first.
        K: (..., T, N) keys.
        ranks: r_l ≥ 0 of every level.
        block_lens: b_l of every level, each a multiple of the next, the first at least T.

    Returns:
        (..., T, T), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, or the ranks do not sum to N.
        ValueError: dtypes or devices differ, or ranks and block lengths are no allocation for T.

    Cost:
        T Σ_l b_l r_l multiply-adds, with p_l = 2^(l-1) equal blocks T² Σ_l r_l / 2^(l-1); and T² entries a level.

    Source:
        Kuang et al. 2025, section 3.4, equation (26) and Lemma D.1.
    """
    name, length = "batched_scores", Q.shape[-2]
    _check_pair(name, Q, K)
    check_levels(name, ranks, block_lens, features=Q.shape[-1], length=length)
    S = 0
    for size, Q_l, K_l in zip(block_lens, Q.split(list(ranks), -1), K.split(list(ranks), -1), strict=True):
        size = min(size, max(1, length))
        padding = (0, 0, 0, -length % size)
        blocks = contract("KTN, KSN -> KTS", *(F.pad(x, padding).unflatten(-2, (-1, size)) for x in (Q_l, K_l)))
        S = S + _direct_sum(blocks)[..., :length, :length]
    return S


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
    keeps a running denominator and numerator, so that all squares may be summed in any order.

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
        (..., T, P), dtype of Q; half precision is computed in float32, or multiplied as it is and summed in float32 on
        a GPU. A row whose bias leaves it no key is zero.

    Raises:
        ShapeError: an axis has two sizes, or the ranks do not sum to N. Queries and keys of two lengths have no levels.
        ValueError: dtypes or devices differ, or ranks and block lengths are no allocation for T.
        RuntimeError: the gradient is differentiated a second time.

    Cost:
        The scores need `executed_macs`, little more than `score_macs`; the values T²·P, half of it if causal. Memory is
        O(T·(N + P)) and a few MiB for a tile; gradients of a bias are as large as it is. On a GPU with Triton the
        forward without bias is one program, if causal: see `kernels.multilevel`.

    Source:
        Kuang et al. 2025, section 3.4, whose code builds (T, T) scores for every level.
    """
    name = "multilevel_attention"
    check_dtypes(name, {"Q": Q, "K": K, "V": V})
    operands = {"Q": (Q, "tn"), "K": (K, "tn"), "V": (V, "tp")}
    check_shapes(name, operands)
    length = Q.shape[-2]
    if bias is not None:
        bias = _whole_bias(name, bias, Q)
        check_shapes(name, operands | {"bias": (bias, "tt")})
    ranks, block_lens = check_levels(name, ranks, block_lens, Q.shape[-1], length)
    leading = torch.broadcast_shapes(*(x.shape[:-2] for x in (Q, K, V, bias) if x is not None))
    empty = 0 in (length, *leading)
    if causal and bias is None and not empty and multilevel_handles(Q, V):
        return _OnGPU.apply(Q, K, V, ranks, block_lens)
    wide = torch.promote_types(Q.dtype, torch.float32)
    operands = [None if x is None else x.to(wide) for x in (Q, K, V, bias)]
    if empty:
        S = batched_scores(*operands[:2], ranks, block_lens)  # nothing to do, but gradients have shapes
        return ((S if bias is None else S + operands[3]) @ operands[2]).to(Q.dtype)
    return Attention.apply(*operands, ranks, block_lens, causal).to(Q.dtype)


def executed_macs(length: int, ranks: Sequence[int], block_lens: Sequence[int], causal: bool = True) -> int:
    """Multiply-adds that `multilevel_attention` spends on the scores of one head, where `score_macs` are needed.

    There are more by the padding of blocks, the upper halves of squares on the diagonal, and a column that holds a
    constant of each query (two where padding must be masked).

    Args:
        length: T.
        ranks: r_l of every level.
        block_lens: b_l of every level.
        causal: query i meets the keys j ≤ i, or all.

    Returns:
        The count.

    Raises:
        ValueError: the length is no integer ≥ 0, or ranks and block lengths are no allocation for it.
    """
    check_count("executed_macs", "length", length, least=0)
    check_levels("executed_macs", ranks, block_lens, length=length)
    return Plan(length, ranks, block_lens, causal).macs() if length else 0


class _OnGPU(torch.autograd.Function):
    """Y by the program of a GPU; the backward is that of the squares, from the program's log Σ exp S."""

    @staticmethod
    def forward(ctx, Q, K, V, ranks, block_lens):
        Y, log_sum = multilevel_forward(Q, K, V, ranks, block_lens)
        ctx.levels = ranks, block_lens
        ctx.save_for_backward(Q, K, V, Y, log_sum)
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx, dY):
        *operands, Y, log_sum = ctx.saved_tensors
        operands = [x.float() for x in operands]
        layout = Layout(*operands, None)
        plan = Plan(Y.shape[-2], *ctx.levels, True, layout.heads, layout.members)
        anchors = layout.lay(log_sum[..., None] * LOG2E, plan)
        saved = *_laid(layout, plan, *operands), Y.float(), None, torch.stack([anchors, torch.ones_like(anchors)])
        squares = SimpleNamespace(
            layout=layout, plan=plan, saved_tensors=saved, needs_input_grad=(True, True, True, False)
        )
        return *Attention.backward(squares, dY.float())[:3], None, None


def _check_pair(function, Q, K):
    """Queries and keys of one length."""
    check_dtypes(function, {"Q": Q, "K": K})
    check_shapes(function, {"Q": (Q, "tn"), "K": (K, "tn")})


def _whole_bias(function, bias, Q):
    """The bias with an axis of size 1 for queries or keys expanded to T, a view."""
    check_dtypes(function, {"bias": bias})
    check_companion(function, "bias", bias, "Q", Q)
    check_shapes(function, {"bias": (bias, "ts")})
    sizes = (Q.shape[-2] if size == 1 else size for size in bias.shape[-2:])
    return bias.expand(*bias.shape[:-2], *sizes)


def _direct_sum(blocks):
    """⊕_k of blocks (..., K, b, b): (..., K·b, K·b), zero outside of them."""
    cells = torch.diag_embed(blocks.movedim(-3, -1), dim1=-4, dim2=-2)
    return cells.flatten(-4, -3).flatten(-2)
