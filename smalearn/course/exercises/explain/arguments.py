"""Which argument an answer ignores: whatever its value, the answer stays, and the right one does not."""

import copy
import functools

import torch

from smalearn.course.exercises.compare import alike
from smalearn.course.exercises.explain.asked import Asked
from smalearn.course.exercises.run import answers

__all__ = ["ignored"]

SMALLER = (lambda x: x / 2, lambda x: x.flip(tuple(range(x.ndim))[:1]), lambda x: x.flip(tuple(range(x.ndim))[-1:]))
OTHER = (lambda n: n + 1, lambda n: 2 * n, lambda n: n // 2, lambda n: 1)


def ignored(asked: Asked) -> str | None:
    """Name the first argument that the answer ignores."""
    if not (asked.attempt and asked.answers and asked.in_form):
        return None
    for place, x in enumerate(asked.cases[0]):
        changes = SMALLER if isinstance(x, torch.Tensor) and x.is_floating_point() else OTHER if type(x) is int else ()
        if _ignored(asked, place, changes):
            return f"your answer does not depend on {asked.exercise.names[place]}"
    return None


def _ignored(asked, place, changes):
    """Whether no change of an argument, of at least two that are allowed, matters in the answer, and one should."""
    matters, seen = False, 0
    equal = functools.partial(alike, tolerance=asked.near)
    for change in changes:
        changed = [(*case[:place], change(case[place]), *case[place + 1 :]) for case in copy.deepcopy(asked.cases)]
        right, yours = answers(asked.exercise.oracle, changed), answers(asked.attempt, changed)
        if right is None or yours is None:  # a change that is not allowed
            continue
        if not all(map(equal, asked.answers, yours)):
            return False
        matters, seen = matters or not all(map(equal, asked.targets, right)), seen + 1
    return matters and seen >= 2
