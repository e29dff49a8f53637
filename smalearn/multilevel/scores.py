"""The scores of multi-level attention: pair by pair, and block by block.

Every level cuts the sequence into blocks, each level finer than the one before, and has some of the columns of Q and K.
A level counts in the score of two tokens if one of its blocks holds both.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from smalearn._checks import check_dtypes, check_shapes
from smalearn.contractions import contract
from smalearn.multilevel.levels import Blocks, check_levels, check_ranks, same_blocks


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
            follow the meaning: paragraphs, say.

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
    masks = same_blocks(name, Q.shape[-2], block_lens)
    S = 0
    for mask, Q_l, K_l in zip(masks, Q.split(list(ranks), -1), K.split(list(ranks), -1), strict=True):
        S = S + contract("TN, SN -> TS", Q_l, K_l) * mask.to(Q)
    return S


def batched_scores(Q: torch.Tensor, K: torch.Tensor, ranks: Sequence[int], block_lens: Sequence[int]) -> torch.Tensor:
    """The same scores block by block: S = Σ_l ⊕_k Q_lk K_lk^T, a batched product of all blocks of a level.

    That both are equal is Lemma D.1. A last block that is not full is filled with zeros. Arguments, results and errors
    are those of `multilevel_scores`, but that every level has a block length b_l, each a multiple of the next and the
    first at least T; a ValueError says where they are not.

    Cost:
        T Σ_l b_l r_l multiply-adds, with p_l = 2^(l-1) equal blocks T² Σ_l r_l / 2^(l-1); and T² entries a level.

    Source:
        Kuang et al. 2025, section 3.4, equation (26) and Lemma D.1.
    """
    name = "batched_scores"
    _check_pair(name, Q, K)
    length = Q.shape[-2]
    check_levels(name, ranks, block_lens, features=Q.shape[-1], length=length)
    S = 0
    for size, Q_l, K_l in zip(block_lens, Q.split(list(ranks), -1), K.split(list(ranks), -1), strict=True):
        size = min(size, max(1, length))
        padding = (0, 0, 0, -length % size)
        blocks = contract("KTN, KSN -> KTS", *(F.pad(x, padding).unflatten(-2, (-1, size)) for x in (Q_l, K_l)))
        S = S + _direct_sum(blocks)[..., :length, :length]
    return S


def _check_pair(function, Q, K):
    """Check that queries and keys have one length."""
    check_dtypes(function, {"Q": Q, "K": K})
    check_shapes(function, {"Q": (Q, "tn"), "K": (K, "tn")})


def _direct_sum(blocks):
    """⊕_k of blocks (..., K, b, b): (..., K·b, K·b), zero outside of them."""
    cells = torch.diag_embed(blocks.movedim(-3, -1), dim1=-4, dim2=-2)
    return cells.flatten(-4, -3).flatten(-2)
