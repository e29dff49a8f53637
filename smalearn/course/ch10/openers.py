"""Three closed-book questions before chapter 10, on chapters 01, 02 and 04."""

import torch

from smalearn.course.exercises.core import Randn, opener


def added_first():
    """The weight of the second token.

    A query sees two tokens. Two heads score them alike, 0 for the first and ln 3 for the second. The scores of both
    heads are added, and then there is one softmax. Which weight has the second token?

    Hint: Chapter 01: exponentials of sums are products.

    Hint: In each head alone the odds are 3 to 1. What are they together?

    Too little: Both heads prefer the second token, and together they prefer it more.

    Too much: The first token keeps e⁰ of the sum.

    Insight: Each head alone gives 3/4, and so does any mean of both. To add before the softmax multiplies the odds:
    weak votes become a decision.
    """
    return 0.9


WRONG_A = {
    "this is each head's own weight: added scores multiply the odds": lambda: 0.75,
    "weights of one query never exceed 1": lambda: 1.5,
    "the odds are multiplied, 3 · 3 to 1, not added": lambda: 6 / 7,
    "the first token keeps e⁰ = 1 of 1 + 9": lambda: 1.0,
    "a token is preferred by both heads": lambda: 0.5,
}
opener(
    "10.a",
    "Add, then choose",
    claim="000:softmax-attention",
    oracle=lambda: (2 * torch.tensor([1.0, 3.0]).log()).softmax(0)[1].item(),
    wrong=WRONG_A,
)(added_first)


def half_the_error():
    """How many times as many features.

    F positive random features estimate e^(q·k). To halve the relative error, with the same q and k, how many times as
    many does one need?

    Hint: Chapter 02: the relative error is √((e^(|q+k|²) − 1)/F).

    Hint: F stands under a root.

    Too little: F stands under a root.

    Too much: The error falls as the root of F, not more slowly.

    Insight: And to lengthen q and k costs far more: F enters with a root, norms in an exponent.
    """
    return 4.0


WRONG_B = {
    "the error of a mean falls as the root of how many are averaged": lambda: 2.0,
    "the root is the other way round: twice the accuracy needs more than twice the draws": lambda: 2**0.5,
    "this would make the error a quarter": lambda: 16.0,
}
opener(
    "10.b",
    "Half the error",
    claim="000:performer-prf",
    oracle=lambda: next(n for n in range(1, 99) if n**0.5 >= 2),
    wrong=WRONG_B,
)(half_the_error)


def entrywise_rank():
    """The largest rank.

    G is a matrix of rank 2, W one of rank 3, both 100 × 100. Which rank can their entrywise product G ∘ W have at most?

    Hint: Chapter 04, mask times mask: write an entry of each as a sum over its rank.

    Hint: (Σ_i u_ti v_si)(Σ_j w_tj z_sj): how many terms, each a product of a row with a column?

    Too little: Every term of one sum meets every term of the other.

    Too much: Multiply both sums out: each term is a product of a column with a row. How many are there?

    Insight: Of a sum the ranks add up, of an entrywise product they multiply. So the entrywise product of two scanned
    masks is scanned with n · m numbers of state.
    """
    return 6


def _product_rank():
    randn = Randn(0)
    U, V = randn(2, 100, 2)
    W, Z = randn(2, 100, 3)
    return int(torch.linalg.matrix_rank((U @ V.mT) * (W @ Z.mT)))


WRONG_C = {
    "this holds for a sum: of an entrywise product the ranks multiply": lambda: 5,
    "this holds for the matrix product: what has passed 2 directions stays there": lambda: 2,
    "the larger of the two is no bound: every term of one meets every term of the other": lambda: 3,
}
opener("10.c", "A product, entry by entry", claim="001:id-lowrank-mask", oracle=_product_rank, wrong=WRONG_C)(
    entrywise_rank
)
