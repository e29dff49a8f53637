"""Three closed-book questions before appendix B, on chapters 06 and 07."""

import torch

from smalearn.course.exercises.core import opener
from smalearn.ssd import ssd_recurrent


def left_of_a_write():
    """What is left of a write.

    A chunk has the decays 1/2, 1/3, 1/5 and 1/7. With which factor does what its second token has written stand in the
    state at the chunk's end?

    Hint: Chapter 06, step 2: does a token's own decay act on what it writes?

    Hint: The state decays, and then the token is written. Which decays come after that?

    Too little: Its own decay acts on what was there before it, not on what it writes.

    Too much: Every decay after the second token acts on it, to the chunk's end.

    Insight: This is the chunk's last row of L. With the whole chunk's decay for the old state, it is all that a
    checkpoint needs to catch up.
    """
    return 1 / 35


def _written():
    one, log_a = torch.ones(4, 1).double(), torch.tensor([1 / 2, 1 / 3, 1 / 5, 1 / 7]).double().log()
    X = torch.tensor([0.0, 1, 0, 0]).double()[:, None]
    return ssd_recurrent(X, log_a, one, one)[1].item()


opener(
    "B.a",
    "What is left of a write",
    claim="004:listing-step2",
    oracle=_written,
    wrong={
        "its own decay is not met: it acts on the state before the token is written": lambda: 1 / 105,
        "the last decay alone: the third token's acts on it, too": lambda: 1 / 7,
        "this stops before the chunk's end: the last decay is missing": lambda: 1 / 5,
        "this is the whole chunk's decay, which an older state meets": lambda: 1 / 210,
        "this is what stands before it, the way a token reads: writing looks to the chunk's end": lambda: 1 / 6,
    },
)(left_of_a_write)


def tokens_of_a_state():
    """How many tokens.

    A layer has 8 heads of P = 32 channels with N = 32 numbers of state each. Attention with 4 heads of 32, none of them
    shared, keeps keys and values. After how many tokens does it keep as many numbers as the state has?

    Hint: Chapter 07, which memory is the smaller one: 8 · 32 · 32 numbers, however long the text.

    Hint: Attention keeps a key and a value of 32 numbers for each of 4 heads and each token.

    Too little: So few tokens take fewer numbers than the state.

    Too much: So many tokens take more numbers than the state.

    Insight: This is the layer whose state you are about to serve. A copy of its state costs as much as 32 tokens.
    """
    return 32


opener(
    "B.b",
    "A state in tokens",
    claim="004:hybrid",
    oracle=lambda: 8 * 32 * 32 / (2 * 4 * 32),
    wrong={
        "a token has a key AND a value": lambda: 64,
        "this is the number of states' entries: divide by what a token takes": lambda: 8192,
        "this is one head of attention: it has four": lambda: 128,
        "this is the state of one head: there are eight": lambda: 4,
    },
)(tokens_of_a_state)


def after_a_pad():
    """The state after it.

    A head has one number of state, 3. A token comes with X = 5 under the key B = 1, and its step is Δ = 0; A = −2. What
    is the state after it?

    Hint: Chapter 07: Δ acts twice, as forgetting and as writing.

    Hint: e^(ΔA) · 3 + Δ · X · B.

    Too little: With Δ = 0 nothing is forgotten.

    Too much: With Δ = 0 nothing is written.

    Insight: A token of length 0 passes by: log a = 0 and a write of 0. That is how a batch is padded.
    """
    return 3


opener(
    "B.c",
    "A token of no length",
    claim="004:fig-mamba2-block",
    oracle=lambda: torch.tensor(0.0).mul(-2).exp().item() * 3 + 0 * 5,
    wrong={
        "nothing is written: the block writes ΔX, and Δ = 0": lambda: 8,
        "nothing is forgotten: e^0 is 1, not 0": lambda: 0,
        "both the wrong way round: with Δ = 0 the old state stays, and the token leaves no trace": lambda: 5,
    },
)(after_a_pad)
