"""Three closed-book questions before chapter 11, on chapters 01 and 10."""

import torch

from smalearn.course.exercises.core import Randn, opener


def rank_of_four_levels():
    """The largest rank.

    A multi-level matrix (MLR) of 64 × 64 has levels of rank 8, 4, 2 and 2; level l has 1, 2, 4 and 8 blocks, and every
    block has the level's rank. Which rank can the matrix have at most?

    Hint: Chapter 10, on levels: a block-diagonal matrix has the sum of the ranks of its blocks.

    Hint: 1 · 8 + 2 · 4 + …

    Too little: Blocks of one level add up their ranks, and so do the levels.

    Too much: Each level has the ranks of its blocks and no more.

    Insight: 40 directions for 16 numbers a token and side: finer levels give more rank for the same numbers, but only
    to tokens of one block.
    """
    return 40


def _levels():
    randn = Randn(0)
    total = 0
    for rank, blocks in ((8, 1), (4, 2), (2, 4), (2, 8)):
        size = 64 // blocks
        L, R = randn(2, blocks, size, rank)
        total = total + torch.block_diag(*(L @ R.mT))
    return int(torch.linalg.matrix_rank(total))


WRONG_A = {
    "this adds the ranks of single blocks: each level has that for every block": lambda: 16,
    "this is the coarsest level alone: the others add directions": lambda: 8,
    "the bound is not D: the levels together have fewer directions": lambda: 64,
    "this counts blocks, not their ranks": lambda: 15,
}
opener("11.a", "A rank of four levels", claim="003:eq4", oracle=_levels, wrong=WRONG_A)(rank_of_four_levels)


def where_to_add():
    """A word: scores, weights or outputs.

    Eight narrow heads have matrices M_h that add up to the identity, and yet they miss the nearest point. To find it,
    what must be added over the heads: their "scores", their "weights" after the softmax, or their "outputs"?

    Hint: Chapter 10: a head alone chooses by its own few directions.

    Hint: Where is Σ_h xᵀ M_h x′ = xᵀ x′ formed?

    Insight: Weights and outputs come to the same when all heads have the same values: each head has chosen by then.
    Without a softmax all three would be one.
    """
    return "scores"


WRONG_B = {
    "each head has chosen by then: the mean of eight blurred choices is no sharp one": lambda: "weights",
    "that is what heads do anyway; each has chosen by its own few directions": lambda: "outputs",
}
opener("11.b", "Where eight heads meet", claim="003:nearest-neighbour", oracle=lambda: "scores", wrong=WRONG_B)(
    where_to_add
)


def two_halves():
    """What the whole row answers.

    A row of softmax attention is computed in two halves. The first half answers 2, and its exponentials add up to 3;
    the second answers 6, and its exponentials add up to 1. What is the answer of the whole row?

    Hint: Chapter 01: the normaliser is attention on ones. Numerators add up, and so do denominators.

    Hint: The first half's numerator is 2 · 3.

    Too little: The second half has a part of the weight, and it answers 6.

    Too much: The first half has most of the weight, and it answers 2.

    Insight: An answer and its normaliser are all that a part must hand on. So softmax needs no T × T matrix in memory;
    FlashAttention is this, in many parts.
    """
    return 3.0


def _whole_row():
    weights, values = torch.tensor([1.0, 2.0, 1.0]), torch.tensor([2.0, 2.0, 6.0])
    return (weights @ values / weights.sum()).item()


WRONG_C = {
    "the first half has three times the weight": lambda: 4.0,
    "this is the whole numerator: divide it by the sum of all exponentials": lambda: 12.0,
    "the halves are weighed the wrong way round": lambda: 5.0,
    "both answers are divided already: they are averaged, not added": lambda: 8.0,
}
opener("11.c", "Two halves of a row", claim="000:normaliser", oracle=_whole_row, wrong=WRONG_C)(two_halves)
