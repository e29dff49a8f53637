"""Three closed-book questions before chapter 07, on chapters 05 and 06."""

import torch

from smalearn.course.exercises.core import opener


def carry_in_factor():
    """The factor before what came in.

    A chunk has the decays 1/2, 1/3, 1/5 and 1/7, and a state H comes in. With which factor does the chunk's third token
    read H?

    Hint: Chapter 06, the four steps: does a token that reads the carry-in meet its own decay?

    Hint: H decays before each token is written, and a token reads after it is written.

    Too little: The fourth decay acts after the third token has read.

    Too much: H came in before the first token: it meets all decays until it is read, the reader's own as well.

    Insight: Reading counts the token's own decay, writing does not: at the chunk's end, what the third token has
    written is multiplied by 1/7 alone.
    """
    return 1 / 30


WRONG_A = {
    "the reader's own decay is missing: it acts on the state before the token reads": lambda: 1 / 6,
    "the first decay is missing: H came in before the chunk's first token": lambda: 1 / 15,
    "this is what the whole chunk leaves of H: the third token does not wait for the fourth": lambda: 1 / 210,
    "this is the factor of what the third token leaves, at the chunk's end": lambda: 1 / 7,
    "H meets all decays until now, not the reader's alone": lambda: 1 / 5,
}
opener(
    "7.a",
    "How a chunk reads what came in",
    claim="004:listing-step4",
    oracle=lambda: torch.tensor([1 / 2, 1 / 3, 1 / 5, 1 / 7]).cumprod(0)[2].item(),
    wrong=WRONG_A,
)(carry_in_factor)


def held_for_long():
    """What the state becomes.

    One number of state, h′ = −2 h + x. The input is held at x = 1, and the zero-order hold takes a very long step, Δ →
    ∞. What is the new state, whatever the old one was?

    Hint: Chapter 05, where A and B come from: Ā = e^(ΔA), B̄ = (e^(ΔA) − 1)/A · B. What is left of both?

    Hint: Or without a formula: after a long time h′ = 0.

    Too little: The input is held at 1, so the state does not die out: where is h′ = 0?

    Too much: The state decays faster than that: where is h′ = 0?

    Insight: A long step forgets all and settles at the input's own level, −B/A. Mamba's B̄ = Δ B would grow without
    end: there Δ itself weighs the token.
    """
    return 0.5


WRONG_B = {
    "the old state is forgotten, but the input is still there": lambda: 0.0,
    "the input is held at 1; the state settles where 2 h is as large as x": lambda: 1.0,
    "the sign: a positive input pushes the state up, and −B/A is positive here": lambda: -0.5,
    "this is upside down: the faster a state decays, the lower it settles": lambda: 2.0,
}
opener(
    "7.b",
    "A very long step",
    claim="001:ssm",
    oracle=lambda: -torch.expm1(torch.tensor(-2.0 * 1000)).item() / 2,
    wrong=WRONG_B,
)(held_for_long)


def rank_of_whole():
    """The rank of M.

    M = L ∘ CBᵀ has 1000 tokens, a state of N = 16, decays between 0 and 1, and C_t · B_t ≠ 0 for every token. What is
    the rank of the whole of M?

    Hint: Chapter 05: of which blocks is the rank at most N?

    Hint: M is triangular. What stands on its diagonal?

    Too little: Low rank is what blocks below the diagonal have; all of M is a triangle.

    Too much: A matrix has no larger rank than it has rows.

    Insight: It can be inverted: y tells x. The rank of at most N is that of blocks below the diagonal, which say what
    the past tells the future.
    """
    return 1000


def _whole_rank():
    """As many as stand on the diagonal of a triangle and are not 0, if all are."""
    C, B = torch.arange(1, 2 * 1000 * 16 + 1).view(2, 1000, 16)
    return int(((C * B).sum(1) != 0).sum())


WRONG_C = {
    "that holds for blocks that do not reach above the diagonal; all of M does": lambda: 16,
    "L has rank one below the diagonal only: as a whole it is a triangle with ones on its diagonal": lambda: 1,
    "M reaches above the diagonal: it is a triangle, whose diagonal decides": lambda: 17,
}
opener("7.c", "The rank of all of M", claim="004:semiseparable-rank", level=2, oracle=_whole_rank, wrong=WRONG_C)(
    rank_of_whole
)
