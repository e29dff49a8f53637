"""Three closed-book questions before chapter 02, on chapter 01."""

from smalearn.course.exercises.core import opener


def louder_row():
    """The factor by which the weights of the row change.

    In softmax attention 5 is added to all scores of one row. By which factor do the weights of that row change?

    Hint: Chapter 01, "where does the division go?": what is a row divided by?

    Hint: Each exponential becomes e⁵ times as large. What happens to their sum?

    Too little: The weights of a row add up to 1, before and after: they cannot all shrink.

    Too much: The weights of a row add up to 1, before and after: they cannot all grow.

    Insight: So a program may subtract a row's largest score first: no exponential overflows, and no weight changes.
    """
    return 1.0


WRONG_A = {
    "the exponentials grow by e⁵, and so does the sum by which they are divided": lambda: 148.4,
    "what is added to a score acts through its exponential, before the division": lambda: 5.0,
    "the sum alone does not grow: every exponential in it does, and so does what it divides": lambda: 0.0067,
    "the weights of a row always add up to 1, so they cannot all become 0": lambda: 0.0,
}
opener("2.a", "A louder row", claim="000:normaliser", oracle=lambda: 1, wrong=WRONG_A)(louder_row)


def twice_the_tokens():
    """How many times the multiply-adds.

    The linear order (15) multiplies its mask as a dense matrix. The text becomes twice as long, and it was long
    already. How many times the multiply-adds does it take?

    Hint: Chapter 01, on what makes it linear: the price of (15) is that of its middle step.

    Hint: The mask is T × T, and it is multiplied with N · P columns.

    Too little: A dense mask has T² entries, and each is met for all N · P columns.

    Too much: Only T grows, and no step takes more than T² products for each of the N · P columns.

    Insight: The order alone makes nothing linear: it makes a product with the mask possible, and the mask's structure
    makes that fast.
    """
    return 4.0


WRONG_B = {
    "that is right for a running sum: a dense mask has T² entries": lambda: 2.0,
    "a dense mask has T² entries, and each of them is met": lambda: 1.0,
    "two axes of the mask become longer; N and P stay": lambda: 8.0,
}
opener(
    "2.b", "Twice the tokens", claim="000:order-cost", oracle=lambda: (2 * 10**6) ** 2 / (10**6) ** 2, wrong=WRONG_B
)(twice_the_tokens)


def one_question():
    """The multiply-adds of keys with values first, divided by those of scores first.

    One new token asks a cache of S = 1000 keys and values, N = P = 64: T = 1. There is no mask. How many times dearer
    is it to sum up all outer products of value and key first, and to ask that matrix, than to take the scores first?
    (Within a tenth.)

    Hint: Chapter 01, the orders (13) and (15), with T = 1: an outer product takes N · P multiply-adds, a score N.

    Hint: S · N · P against S · (N + P), and what is left is small.

    Too little: For each key one side takes N · P multiply-adds, the other N + P.

    Too much: For each key one side takes N · P multiply-adds, the other N + P; what comes after is small.

    Insight: With T = 1 the scores win. The linear order pays in decoding only if the sum is kept and carried on from
    token to token.
    """
    return 32.0


WRONG_C = {
    "it is the other way round: a key and its value make N · P products": lambda: 1 / 32,
    "there is no mask, but there are values: a key takes N for its score, P for its value": lambda: 64.0,
    "a key and its value make N · P products; a score and its weight take N + P": lambda: 1.0,
    "S counts on both sides: each key is met once, whichever comes first": lambda: 1000.0,
    "this is N + P: divide N · P by it": lambda: 128.0,
}
opener(
    "2.c",
    "One question, a thousand keys",
    claim="000:order-cost",
    tolerance=0.1,
    oracle=lambda: (1000 * 64 * 64 + 64 * 64) / (1000 * (64 + 64)),
    wrong=WRONG_C,
)(one_question)
