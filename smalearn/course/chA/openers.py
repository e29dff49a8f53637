"""Three closed-book questions before appendix A, on chapter 10."""

import torch

from smalearn.course.exercises.core import opener


def numbers_of_a_train():
    """How many numbers.

    A block tensor train for 64 × 64 matrices with m = ab = 64, n = cd = 64, a = b = c = d = 8 and s = 1. How many
    numbers do its two factors hold?

    Hint: Chapter 10, "mix, regroup, mix again": L holds b matrices of a × cs, R holds c matrices of d × bs.

    Hint: s (m c + n b).

    Too little: Each factor has three axes here, and there are two factors.

    Too much: Each factor has three axes here, and there are only two factors.

    Insight: A quarter of 64², and the full rank is within reach: everything passes through b c s = 64 numbers.
    """
    return 1024


WRONG_A = {
    "this is one factor: there are two": lambda: 512,
    "this is the dense matrix": lambda: 4096,
    "this is a matrix of rank 1: each factor of a train has an axis more": lambda: 128,
}
opener(
    "A.a",
    "What a train holds",
    claim="003:eq5",
    oracle=lambda: torch.empty(8, 8, 8, 1).numel() + torch.empty(8, 8, 8, 1).numel(),
    wrong=WRONG_A,
)(numbers_of_a_train)


def distance_to_identity():
    """The distance.

    How near can a matrix of rank 28 come to the identity of 64 × 64? Give the smallest distance, the root of the sum of
    all squared differences.

    Hint: Chapter 10, "what can a score say?": all singular values of the identity are 1. How many are lost?

    Hint: √(D − r).

    Too little: More directions are lost than that.

    Too much: Not all directions are lost: some are kept.

    Insight: No training helps: 36 directions are lost, whichever they are. A structured matrix of full rank can be the
    identity with fewer numbers.
    """
    return 6.0


def _nearest():
    U, S, Vh = torch.linalg.svd(torch.eye(64))
    return torch.linalg.norm(torch.eye(64) - (U[:, :28] * S[:28]) @ Vh[:28]).item()


WRONG_B = {
    "this is the sum of the squares: take its root": lambda: 36.0,
    "this counts the directions that are kept: those that are lost make the distance": lambda: 28**0.5,
    "this is relative to the identity's own size, 8": lambda: 0.75,
    "this is the identity's own size, where all directions are lost": lambda: 8.0,
    "this is the largest singular value of what is lost, another norm": lambda: 1.0,
}
opener("A.b", "How near to the identity", claim="003:lowrank-identity", oracle=_nearest, wrong=WRONG_B)(
    distance_to_identity
)


def rank_of_blocks():
    """The largest rank.

    A block-diagonal matrix has four blocks of 16 × 16, so a quarter of the numbers of a dense one. Which rank can it
    have at most?

    Hint: Chapter 10, on blocks: whose directions can cancel, and whose cannot?

    Hint: The ranks of the blocks add up.

    Too little: Directions of different blocks cannot cancel.

    Too much: A matrix has no larger rank than it has rows.

    Insight: Full rank for a quarter of the numbers; and yet most matrices are out of reach, for the groups never meet.
    Rank is not all.
    """
    return 64


WRONG_C = {
    "this is the rank of one block: those of the blocks add up": lambda: 16,
    "this counts the blocks: each has up to 16 directions": lambda: 4,
}
opener(
    "A.c",
    "Full rank for a quarter",
    claim="003:block-diagonal",
    oracle=lambda: int(torch.linalg.matrix_rank(torch.block_diag(*[torch.eye(16)] * 4))),
    wrong=WRONG_C,
)(rank_of_blocks)
