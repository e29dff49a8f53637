"""Small exercises for tests of the engine that judges answers, and what is said of an attempt."""

import functools
import inspect
import math

import torch

from smalearn.course.exercises import Exercise, evaluate, report

NOBODY = {f"answer {k}": (lambda *arguments, k=k: f"answer {k}") for k in range(3)}  # wrong answers that nobody gives


def demo(solution, cases, **fields):
    """An exercise of a function, whose docstring gets hints where it has none."""
    if "Hint: " not in (solution.__doc__ or ""):
        solution.__doc__ = "What to write.\n\nHint: one\n\nHint: two"
    fields = {"id": "demo.0", "title": "a demo", "oracle": solution, "wrong": NOBODY} | fields
    return Exercise(claim="000:eq10", level=2, minutes=5, solution=solution, cases=cases, **fields)


def said(exercise, attempt, **options):
    """The text of a check, whose lines are never wider than a page."""
    text = report.render(evaluate(exercise, attempt, **options))
    assert max(map(len, text.split("\n"))) <= 104
    return text


def by(exercise, change):
    """An attempt that spoils the solution's answer."""
    return lambda *arguments: change(exercise.solution(*arguments))


def causal_product(Q, K, V):
    """Masked attention without softmax.

    Hint: Which scores may row t see?

    Hint: `tril` zeroes what lies above
    the diagonal.
    """
    return (Q @ K.mT).tril() @ V


def causal_cases(randn):
    for length in (1, 2, 4, 9):
        yield tuple(randn(length, size) for size in (2, 2, 3))


def causal_loop(Q, K, V):
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


NO_MASK = "the causal mask is missing: this is the unmasked product Q(KᵀV)"


def unmasked(Q, K, V):
    return Q @ (K.mT @ V)


CAUSAL = demo(
    causal_product,
    causal_cases,
    id="demo.1",
    title="causal attention",
    oracle=causal_loop,
    wrong={
        NO_MASK: unmasked,
        "this keeps the future and hides the past": lambda Q, K, V: (Q @ K.mT).triu() @ V,
        "each row sees itself alone, no past": lambda Q, K, V: (Q * K).sum(-1, keepdim=True) * V,
    },
)


def describe(spec, sizes, shift, flag):
    """The number of axes, their letters, their volume, and the flag turned round.

    Hint: Count.

    Hint: Sort.
    """
    letters = "".join(sorted(set(spec) & set(sizes)))
    return len(letters), letters, math.prod(sizes[letter] for letter in letters) * shift, not flag


def _describe_cases(randn):
    yield "t", {"t": 1}, 1.5, True
    yield "ts", {"t": 2, "s": 3}, 0.0, False
    yield "tsn", {"t": 2, "s": 3, "n": 5}, 1.5, True


PLAIN = demo(
    describe,
    _describe_cases,
    id="demo.2",
    title="plain values",
    oracle=lambda spec, sizes, shift, flag: (
        len(spec),
        "".join(sorted(spec)),
        functools.reduce(lambda product, letter: product * sizes[letter], spec, 1) * shift,
        not flag,
    ),
    wrong={
        "sort the letters": lambda s, z, h, f: (len(s), s, describe(s, z, h, f)[2], not f),
        "you added sizes": lambda s, z, h, f: (len(s), "".join(sorted(s)), sum(z.values()) * h, not f),
        "you stop at two axes": lambda s, z, h, f: (min(len(s), 2), *describe(s, z, h, f)[1:]),
    },
)


class Steps:
    """A causal matrix as a structured mask would hold it: an object with a shape and a tensor."""

    def __init__(self, rows):
        self.rows = rows
        self.shape = (len(rows), len(rows))

    def dense(self):
        return (self.rows[:, None] >= self.rows).double()


def masked_sum(mask, log, initial_state):
    """Rows of sums under a mask, the logarithm of the mask, and the last row.

    Hint: Multiply.

    Hint: Add.
    """
    rows = mask.dense() @ log + initial_state
    return rows, mask.dense().log(), {"last": rows[-1]}["last"]


STATE = demo(
    masked_sum,
    lambda randn: ((Steps(torch.arange(n)), randn(n, 2), torch.zeros(2, dtype=torch.float64)) for n in (1, 3, 8)),
    id="demo.3",
    title="sums and a state",
    oracle=lambda mask, log, initial_state: (
        log.cumsum(0) + initial_state,
        torch.stack([torch.where(torch.arange(len(log)) <= t, 0.0, -math.inf) for t in range(len(log))]).double(),
        log.sum(0) + initial_state,
    ),
    wrong={
        "do not divide": lambda m, x, s: (x.cumsum(0) / len(x) + s, m.dense().log(), x.sum(0) + s),
        "this is the first row": lambda m, x, s: (x.cumsum(0) + s, m.dense().log(), x[0] + s),
        "rows must add up": lambda m, x, s: (x + s, m.dense().log(), x.sum(0) + s),
    },
)

DEMOS = {exercise.id: exercise for exercise in (CAUSAL, PLAIN, STATE)}


def is_copy(function):
    """Whether it is a copy of the reference of `CAUSAL`, not the reference itself."""
    return function is not causal_product and inspect.unwrap(function) is causal_product
