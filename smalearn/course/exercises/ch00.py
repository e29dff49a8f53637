"""The exercise of chapter 00: how check, hint and solution work."""

import torch

from smalearn.course.exercises.core import exercise


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
