"""The exercises of chapter 00: how check, hint and solution work, and what a guess is."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.data import ngram_features, zen_of_python


def _oracle(V):
    return torch.stack([V[: t + 1].mean(0) for t in range(len(V))])


def _cases(randn):
    for length, head_dim in [(1, 2), (3, 1), (4, 2), (9, 3)]:
        yield (randn(length, head_dim),)


def _past_only(V):
    return torch.cat([V[:1], _oracle(V)[:-1]])


def _half_and_half(V):
    """The mean of the mean so far and the new row."""
    rows = [V[0]]
    for v in V[1:]:
        rows.append((rows[-1] + v) / 2)
    return torch.stack(rows)


@exercise(
    "0.1",
    "Look back with equal weights",
    claim="000:causal-mask",
    level=1,
    minutes=5,
    cases=_cases,
    oracle=_oracle,
    wrong={
        "this is the running sum: row t is not yet divided by t + 1": lambda V: V.cumsum(0),
        "every row is the mean over the whole sequence: the rows after t must not count": lambda V: V.mean(
            0, keepdim=True
        ).expand(V.shape),
        "every row is divided by the length T: row t has only t + 1 rows behind it": lambda V: V.cumsum(0) / len(V),
        "this is the mean of rows t and later: look back, at rows 0 to t": lambda V: torch.stack(
            [V[t:].mean(0) for t in range(len(V))]
        ),
        "this is the mean along each row, over its entries: time is axis 0": lambda V: (
            V.cumsum(1) / torch.arange(1, V.shape[1] + 1, dtype=V.dtype)
        ),
        "you take the mean of the mean so far and of the new row: then the new row counts half": _half_and_half,
        "hidden rows keep a weight: a softmax of zeros and ones gives exp(0) = 1 to the future": lambda V: (
            torch.ones(len(V), len(V), dtype=V.dtype).tril().softmax(-1) @ V
        ),
        "you average the last two rows only: row t has t + 1 rows to look back on": lambda V: torch.cat(
            [V[:1], (V[1:] + V[:-1]) / 2]
        ),
        "the columns of your weights sum to 1: it is the rows that must": lambda V: (
            (torch.ones(len(V), len(V), dtype=V.dtype).tril() / torch.arange(len(V), 0, -1, dtype=V.dtype)) @ V
        ),
        "the numbers of rows run along the columns: give them a second axis, `[:, None]`": lambda V: (
            V.cumsum(0) / torch.arange(1, V.shape[1] + 1, dtype=V.dtype)
        ),
        "you divide by t, not by t + 1: row 0 has one row, itself": lambda V: (
            V.cumsum(0) / torch.arange(len(V), dtype=V.dtype)[:, None]
        ),
        "this is the median: the mean is asked for": lambda V: torch.stack(
            [V[: t + 1].median(0).values for t in range(len(V))]
        ),
        "row t itself is left out: the mean runs over rows 0 to t, t included": _past_only,
    },
)
def running_mean(V):
    """Attention with equal weights: row t of the result is the mean of rows 0..t of V. (T, P) -> (T, P).

    Row t of the result is the mean of rows 0 to t of V, row t included.

    Hint: Write it with a loop first: for each t, take `V[: t + 1]` and its mean over the first axis.

    Hint: Without a loop: the sums of rows 0..t are `V.cumsum(0)`. How many rows went into sum number t?

    Hint: Dividing (T, P) by (T,) does not broadcast as you want: give the counts a second axis with `[:, None]`.

    Insight: The matrix of these weights is lower triangular with rows that sum to 1: all causal attention is such a
    mean, with weights that depend on the tokens.
    """
    count = torch.arange(1, len(V) + 1, dtype=V.dtype)
    return V.cumsum(0) / count[:, None]


# ------------------------------------------------------------------------------------------ 0.2 what attention weighs


def _weights():
    """The row of softmax weights of "better" in "flat is better", over the words before it."""
    words = zen_of_python().lower().split()
    X = ngram_features(words, order=3).double()
    t = words.index("flat") + 2
    return (4 * X[:t] @ X[t]).softmax(0)


@exercise(
    "0.2",
    "Where will it look?",
    claim="000:softmax-attention",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=0.01,
    oracle=lambda: _weights().max().item(),
    wrong={
        "this gives all the weight to one place: equal scores get equal weights": lambda: 1.0,
        "the word looks at itself, too: it looks only at words before it": lambda: (
            math.exp(12) / (math.exp(12) + 4 * math.exp(8))
        ),
        "this is the sum of the four largest: one of them is asked for": lambda: 0.99,
        "this counts the line of “flat” itself, too: the word looks only at words before it": lambda: 0.2,
        "this is the weight before a row is divided by its sum": lambda: math.exp(8),
        "this is the score, times 4: the softmax makes weights of the scores": lambda: 8.0,
        "weights are shares of 1, not percents": lambda: 25.0,
        "the factor 4 is missing: the scores are 8 and 0, not 2 and 0": lambda: round(
            (4 * math.exp(2) / (4 * math.exp(2) + 25)) / 4, 3
        ),
        "two lines are not all: count those before “flat is better” that have “is better” in them": lambda: 0.5,
        "this is a score, the number of words that agree: the softmax makes weights of the scores": lambda: 2.0,
        "this spreads the weight over all the words before: four of them get nearly all of it": lambda: 1 / 29,
        "count again: how many of the lines before “flat is better” have “is better” in them?": lambda: 1 / 3,
    },
)
def largest_weight():
    """The largest weight in the row of “better”, in the line “flat is better than nested.”, to two digits.

    The words before it are those of the Zen. At four of them two words agree, so that the score, times 4, is 8; at all
    others it is 0, and e⁰ is small beside e⁸.

    Hint: Equal scores get equal weights, and a row sums to 1.

    Hint: Which earlier lines have “is better” in them? Only these places count.

    Too little: Only words whose score is 8 count: e⁸ is some three thousand, and the others are too few to make up for
    it.

    Too much: More than one word has this score, and the weights of a row sum to 1.

    Insight: A softmax divides its weight among equals: it cannot tell which of the four lines was meant, and answers
    with their mean.
    """
    return 0.25
