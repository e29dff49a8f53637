"""The exercises of chapter 00: how check, hint and solution work, and what a guess is."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.data import ngram_features, zen_of_python


def running_mean(V):
    """Attention with equal weights: row t of the result is the mean of rows 0..t of V. (T, P) -> (T, P).

    Row t of the result is the mean of rows 0 to t of V, row t included.

    Hint: Write it with a loop first: for each t, take `V[: t + 1]` and its mean over the first axis.

    Hint: Without a loop: the sums of rows 0..t are `V.cumsum(0)`. How many rows went into sum number t?

    Hint: Dividing (T, P) by (T,) does not broadcast as you want: give the counts a second axis with `[:, None]`.

    Insight: As a matrix, these weights are lower triangular, with rows that sum to 1. So are those that a softmax gives
    in chapter 01, but they depend on the words.
    """
    count = torch.arange(1, len(V) + 1, dtype=V.dtype)
    return V.cumsum(0) / count[:, None]


def _oracle(V):
    return torch.stack([V[: t + 1].mean(0) for t in range(len(V))])


def _cases(randn):
    for length, head_dim in [(1, 2), (3, 1), (4, 2), (9, 3)]:
        yield (randn(length, head_dim),)


MEAN = "V.cumsum(0) / count[:, None]"

exercise(
    "0.1",
    "Look back with equal weights",
    claim="000:causal-mask",
    level=1,
    minutes=5,
    cases=_cases,
    oracle=_oracle,
    wrong={
        "this is the running sum: row t is not yet divided by t + 1": " / count[:, None] → ",
        "every row is divided by the length T: row t has only t + 1 rows behind it": "count[:, None] → len(V)",
        "this is the mean along each row, over its entries: "
        "time is axis 0": f"len(V) → V.shape[1] ; {MEAN} → V.cumsum(1) / count",
        "you take the mean of the mean so far and of the new row: "
        "then the new row counts half": f"{MEAN} → (0.5 ** (count[:, None] - count + (count > 1))).tril() @ V",
        "the new row counts half, and you begin with zeros, "
        "which are no row of V": f"{MEAN} → (0.5 ** (count[:, None] - count + 1)).tril() @ V",
        "the columns of your weights sum to 1: "
        "it is the rows that must": f"{MEAN} → (V / count.flip(0)[:, None]).cumsum(0)",
        "the numbers of rows run along the columns: "
        "give them a second axis, `[:, None]`": "len(V) → V.shape[1] ; [:, None] → ",
        "counts of shape (T,) meet the columns of V: give them a second axis, `[:, None]`": "[:, None] → ",
        "you divide by t, not by t + 1: row 0 has one row, itself": "1, len(V) + 1 → len(V)",
        "this is the median: "
        "the mean is asked for": f"{MEAN} → torch.stack([V[: t + 1].median(0).values for t in range(len(V))])",
        "this is one number for each row: "
        "the mean of each column apart, `mean(0)`": f"{MEAN} → V.cumsum(0).mean(1) / count",
    },
)(running_mean)


def largest_weight():
    """The largest weight in the row of “is”, in the line “flat is better than nested.”, to three decimal places.

    The words before it are those of the Zen. At four of them one word agrees, so that the score, times 4, is 4; at the
    24 others it is 0.

    Hint: Which earlier words are “is”? They have equal scores, and equal scores get equal weights.

    Hint: e⁴ is about 55, and e⁰ is 1. A row is divided by the sum of all its exponentials.

    Too little: Only words before it count, and e⁴ is some 55: the 24 others together weigh less than half of one such
    word.

    Too much: More than one word has this score, the 24 others have a weight too, and the weights of a row sum to 1.

    Insight: A softmax divides its weight among equals: it cannot tell which of the four was meant, and answers with
    their mean. The 24 words that do not match keep a tenth of the weight.
    """
    return 0.225


def _weights():
    """The row of softmax weights of "is", in the line of "flat", over the words before it."""
    words = zen_of_python().lower().split()
    X = ngram_features(words, order=3).double()
    t = words.index("flat") + 1
    return (4 * X[:t] @ X[t]).softmax(0)


exercise(
    "0.2",
    "Where will it look?",
    claim="000:softmax-attention",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=0.003,  # three decimal places, rounded; with 28 others it would be 0.222
    oracle=lambda: _weights().max().item(),
    wrong={
        "this gives all the weight to one place: of the words before it equal ones get equal weights": lambda: 1.0,
        "the 24 other words have a weight, too: e⁰ is 1, and e⁴ no more than 55": lambda: 0.25,
        "this is the sum of the four largest: one of them is asked for": lambda: 0.901,
        "this is the weight before a row is divided by its sum": lambda: math.exp(4),
        "this is the score, times 4: the softmax makes weights of the scores": lambda: 4.0,
        "weights are shares of 1, not percents": lambda: 22.5,
        "the factor 4 is missing: the scores are 4 and 0, not 1 and 0": lambda: 0.078,
        "this would be right for five words: count the “is” before this one": lambda: 0.184,
        "you take 2⁴ for e⁴: it is e⁴, about 55": lambda: 0.182,
        "this would be right for six words: they must agree in the same place, and only earlier “is” do": lambda: 0.156,
        "you add 28 others: they are 28 with the four": lambda: 0.222,
        "three decimal places are asked for": lambda: 0.23,
        "this would be right for three words: count the “is” before this one again": lambda: 0.289,
        "the “is” before this one are not five, and each of the other words weighs e⁰ = 1": lambda: 0.2,
        "the “is” before this one are not three, and each of the other words weighs e⁰ = 1": lambda: 1 / 3,
        "the “is” before this one are not two, and each of the other words weighs e⁰ = 1": lambda: 0.5,
        "this spreads the weight over all the words before: e⁴ is 55 times as much as e⁰": lambda: 0.04,
    },
)(largest_weight)
