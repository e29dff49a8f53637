"""Three closed-book questions before chapter 08, on chapters 03 to 07."""

import math

import torch

from smalearn.course.exercises.core import opener


def half_life():
    """The number of tokens.

    A head's decay is e^(−Δ · rate). Before training the slowest heads have Δ = 0.001 and rate 1. After how many tokens
    is half of a token's writing left? (Within a fiftieth.)

    Hint: Chapter 07: after n tokens e^(−n Δ · rate) is left.

    Hint: ln 2 is 0.69.

    Too little: More than half is left then.

    Too much: Less than half is left then.

    Insight: The fastest heads, Δ = 0.1 and rate 16, keep a fifth from one token to the next. A model starts with all of
    these; then Δ depends on the token.
    """
    return 693.0


WRONG_A = {
    "then 1/e is left, 37 %: half is reached earlier": lambda: 1000.0,
    "it does not lose a thousandth of the start each time, but of what is left": lambda: 500.0,
    "this is the number of tokens after which a thousandth is left": lambda: 6908.0,
}
opener(
    "8.a",
    "Half of it is gone",
    claim="004:s6-vs-ssd",
    tolerance=0.02,
    oracle=lambda: math.log(2) / 0.001,
    wrong=WRONG_A,
)(half_life)


def layer_numbers():
    """How many numbers a decoder keeps.

    A Mamba-2 layer has 24 heads of P = 64 channels and one B and C of N = 128 for all heads. Its convolution, of width
    4, runs over all channels and B and C. How many numbers does it keep from one token to the next?

    Hint: Chapter 07, "one token more": a window and a state.

    Hint: The state has (P, N) for each head. The window has 24 · 64 + 2 · 128 columns; how many rows before the token?

    Too little: It keeps a state (P, N) for each head, and rows of the window for all columns.

    Too much: It keeps one state for each head and, of the window, only the rows before the token.

    Insight: Nearly all of it is state; and it is as many at token 10 as at token 100,000.
    """
    return 24 * 64 * 128 + 3 * (24 * 64 + 2 * 128)


WRONG_B = {
    "this is the state; the convolution looks back, too": lambda: 24 * 64 * 128,
    "the new token is the fourth row of the window: three are kept": lambda: 24 * 64 * 128 + 4 * 1792,
    "B and C go through the convolution, too": lambda: 24 * 64 * 128 + 3 * 24 * 64,
    "this is the state of one head: each has its own": lambda: 64 * 128,
    "heads share B and C, but each has a state of its own": lambda: 64 * 128 + 3 * 1792,
}
opener(
    "8.b",
    "What a decoder keeps",
    tolerance=1e-3,
    claim="004:inference-speed",
    oracle=lambda: sum(torch.empty(shape, device="meta").numel() for shape in ((24, 64, 128), (3, 1792))),
    wrong=WRONG_B,
)(layer_numbers)


def mixed_answer():
    """What the memory answers.

    A memory that only adds, H ← H + v kᵀ, with two keys of norm 1 at an angle of 60°. The value 4 is written under the
    first key, then 10 under the second. What does it answer when it is asked with the first key?

    Hint: Chapter 03: H q = Σ_s v_s (k_s · q).

    Hint: The cosine of 60° is a half.

    Too little: Both writings add up, the second with the cosine of 60°.

    Too much: The second writing reaches the first key with the cosine of 60° only.

    Insight: Each other key answers with its cosine, and only N keys can be orthogonal: a state that only adds can
    answer for N pairs without error, not for more.
    """
    return 9.0


WRONG_C = {
    "the second key is not orthogonal to the first: it answers, too": lambda: 4.0,
    "the second key answers with its cosine only, a half": lambda: 14.0,
    "a memory that only adds overwrites nothing": lambda: 10.0,
    "the first key answers with all of its value, the second with half: here it is exchanged": lambda: 12.0,
    "nothing divides the sum: there is no softmax": lambda: 6.0,
}
opener(
    "8.c",
    "Two keys that are alike",
    claim="002:rnn-form",
    oracle=lambda: 4.0 + 10 * math.cos(math.pi / 3),
    wrong=WRONG_C,
)(mixed_answer)
