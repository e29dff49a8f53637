"""The exercise of chapter 00: how check, hint and solution work."""

import torch

from smalearn.course.exercises.core import Exercise, Mutant, register


def running_mean(V):
    """Attention with equal weights: row t of the result is the mean of rows 0..t of V. (T, P) -> (T, P)."""
    count = torch.arange(1, len(V) + 1, dtype=V.dtype)
    return V.cumsum(0) / count[:, None]


def _oracle(V):
    return torch.stack([V[: t + 1].mean(0) for t in range(len(V))])


def _cases(generator):
    for length, head_dim in [(1, 2), (3, 1), (4, 2), (9, 3)]:
        yield (torch.randn(length, head_dim, generator=generator, dtype=torch.float64),)


def _past_only(V):
    return torch.cat([V[:1], _oracle(V)[:-1]])


register(
    Exercise(
        id="0.1",
        title="Look back with equal weights",
        statement="Row t of the result is the mean of rows 0 to t of V, row t included.",
        oracle=_oracle,
        cases=_cases,
        solution=running_mean,
        hints=(
            "Write it with a loop first: for each t, take `V[: t + 1]` and its mean over the first axis.",
            "Without a loop: the sums of rows 0..t are `V.cumsum(0)`. How many rows went into sum number t?",
            "Dividing (T, P) by (T,) does not broadcast as you want: give the counts a second axis with `[:, None]`.",
        ),
        mutants=(
            Mutant("running sum", lambda V: V.cumsum(0), "this is the running sum: row t is not yet divided by t + 1"),
            Mutant(
                "mean of everything",
                lambda V: V.mean(0, keepdim=True).expand(V.shape),
                "every row is the mean over the whole sequence: the rows after t must not count",
            ),
            Mutant(
                "divided by the length",
                lambda V: V.cumsum(0) / len(V),
                "every row is divided by the length T: row t has only t + 1 rows behind it",
            ),
            Mutant(
                "future",
                lambda V: torch.stack([V[t:].mean(0) for t in range(len(V))]),
                "this is the mean of rows t and later: look back, at rows 0 to t",
            ),
            Mutant("past only", _past_only, "row t itself is left out: the mean runs over rows 0 to t, t included"),
        ),
        claim="000:causal-mask",
        difficulty=1,
        minutes=5,
        lines=2,
    )
)
