"""Three closed-book questions before chapter 04, on chapters 01 to 03."""

from fractions import Fraction

import torch

from smalearn.course.exercises.core import opener


def what_is_left():
    """What is left of token 2 at token 4.

    A gated state: H_t = a_t H_{t−1} + v_t k_tᵀ. The gates are a_2 = 1/2, a_3 = 1/3 and a_4 = 1/5. With which factor
    does token 4 read what token 2 has written?

    Hint: Chapter 03, on forgetting: the gate multiplies the old state, and the token is written afterwards.

    Hint: Which gates act on v_2 k_2ᵀ after it has been written? Token 4 reads H_4.

    Too little: Token 2's own gate acts before it is written, and no gate acts twice.

    Too much: Each gate after token 2 multiplies once, the reader's own as well.

    Insight: A token meets every gate after it, its reader's own included; its own has acted before it is written.
    """
    return 1 / 15


def _left_of_it():
    state = Fraction(0)
    for gate, written in [(Fraction(1, 2), 1), (Fraction(1, 3), 0), (Fraction(1, 5), 0)]:
        state = gate * state + written
    return float(state)


WRONG_A = {
    "token 2's own gate acts on what came before it: token 2 is written after it": lambda: 1 / 30,
    "the reader's own gate acts, too: it multiplies the old state before token 4 is written": lambda: 1 / 3,
    "the gate of token 3 acts, too: nothing passes it by": lambda: 1 / 5,
    "gates act one after the other, so they are multiplied, not added": lambda: 1 / 3 + 1 / 5,
    "this is the one gate that token 2 does not meet: it has acted before token 2 is written": lambda: 1 / 2,
}
opener("4.a", "What two gates leave", claim="002:gla-recurrent", oracle=_left_of_it, wrong=WRONG_A)(what_is_left)


def even_chunk():
    """The chunk length at which both parts cost the same.

    Linear attention in chunks of c tokens, N = 32, P = 96: inside the chunks scores and weights, between them states.
    For which c do the two parts take the same number of multiply-adds?

    Hint: Chapter 03, on chunks: for each token, scores cost c · N. What do the weights cost, and what the state?

    Hint: Inside c(N + P) a token. Through the state each token writes N · P and reads N · P.

    Too little: In chunks so short the states take more than the insides: the state is written and read.

    Too much: In chunks so long the insides take more than the states.

    Insight: Below this length the states take more, and a longer chunk adds little; above it the chunk's own square
    takes over.
    """
    return 48.0


WRONG_B = {
    "a state is written and read: 2 N P for each token": lambda: 24.0,
    "this is √(N P), where the fewest numbers are stored: the question is about work": lambda: 3072**0.5,
    "c (N + P) counts scores and weights; you left one of the two out, the weights": lambda: 192.0,
    "c (N + P) counts scores and weights; you left one of the two out, the scores": lambda: 64.0,
}
opener(
    "4.b",
    "A chunk in balance",
    claim="002:chunkwise",
    oracle=lambda: next(c for c in range(1, 999) if c * (32 + 96) >= 2 * 32 * 96),
    wrong=WRONG_B,
)(even_chunk)


def vanished():
    """The number of tokens.

    All gates are 1/2. A program in float32 multiplies them up, g_t = a_1 ⋯ a_t, and takes the decay from s to t as g_t
    / g_s. From about how many tokens on is g_t exactly 0? (Within a tenth.)

    Hint: Chapter 03: "never form a decay as a quotient". Why not?

    Hint: float32 goes down to about 10⁻⁴⁵: what is smaller becomes 0.

    Too little: float32 still holds 2⁻ᵗ there: its numbers go down to about 10⁻⁴⁵.

    Too much: g_t is 0 before that: the smallest number of float32 is about 10⁻⁴⁵.

    Insight: Beyond that, the decay from one token to the next, which is 1/2, is computed as 0/0. Cut it at a border,
    and add up logarithms.
    """
    return 150.0


FLOAT32 = torch.finfo(torch.float32)
WRONG_C = {
    "the exponent runs out there; then a number loses its digits one by one, but is not yet 0": lambda: 126.0,
    "this counts the digits of float32, 24 bits: a small number keeps them, since its exponent falls": lambda: 24.0,
    "this is float64's limit: float32 has fewer bits for the exponent": lambda: 1075.0,
    "10⁻⁴⁵ is the limit, and 1/2 is not 1/10: how many halves make 10⁻⁴⁵?": lambda: 45.0,
    "e⁻¹⁰³ is the limit, and 1/2 is e^−0.69: more of them fit": lambda: 103.3,
}
opener(
    "4.c",
    "When a product vanishes",
    claim="002:gla-chunkwise",
    tolerance=0.1,
    oracle=lambda: next(float(t) for t in range(1, 999) if 0.5**t < FLOAT32.tiny * FLOAT32.eps),
    wrong=WRONG_C,
)(vanished)
