"""Answers in another form than asked: another dtype, one item of a pair, a tuple for a tensor, no leading axes."""

import itertools
from collections.abc import Sequence

import torch

from smalearn.course.exercises.compare import alike
from smalearn.course.exercises.explain.asked import Asked

__all__ = ["changed_in_place", "item_alone", "leading_axes", "other_dtype", "other_order", "with_leading_axes"]

LEADING = (
    "your code is right without leading axes and fails with them: count axes from the end, with `[..., None]`, `.mT`, "
    "or `dim=-1`"
)


def changed_in_place(asked: Asked) -> str | None:
    """Say how not to change an argument."""
    place = next((call.modified[0] for call in asked.calls if call.modified), None)
    if place is None:
        return None
    name, given = asked.exercise.names[place], asked.cases[0][place]
    copy = f"a copy, `{name}.clone()`" if isinstance(given, torch.Tensor) else "copies of what is in it"
    return f"{name} is the caller's: work on {copy}"


def other_dtype(asked: Asked) -> str | None:
    """Say where another dtype may come from where the values are right."""
    found = next((verdict.dtype for verdict in asked.verdicts if verdict and verdict.dtype), None)
    arguments = asked.exercise.bind(asked.cases[asked.shown])
    like = (f"{n}.dtype" for n, v in arguments.items() if isinstance(v, torch.Tensor) and v.dtype == found)
    lost = f"is there a `.float()`, or a tensor that you make without `dtype={next(like, found)}`?"
    return lost if found else None


def leading_axes(asked: Asked) -> str | None:
    """Say that just the cases with leading axes are wrong, at least one, and those without are right, at least two."""
    leading = with_leading_axes(asked.cases)
    only = leading and leading == asked.wrong and len(asked.cases) - len(leading) >= 2
    return LEADING if only else None


def item_alone(asked: Asked) -> str | None:
    """Say that an answer is one item of the right tuple, or has the right answer as an item."""
    targets, answers = asked.targets, asked.answers
    inside, outside = (all(isinstance(x, tuple | list) for x in values or ()) for values in (targets, answers))
    if not answers or inside == outside:
        return None
    whole, alone = (targets, answers) if inside else (answers, targets)
    for item in range(min(map(len, whole))):
        if all(alike(x, y[item], asked.near) for x, y in zip(alone, whole, strict=True)):
            count = len(whole[0])
            return (
                f"this is item {item} of the answer alone: return {'both' if count == 2 else f'all {count} of them'}"
                if inside
                else f"item {item} of yours is the answer: return it alone"
            )
    return None


def other_order(asked: Asked) -> str | None:
    """Say that the items of a tuple are right and stand in another order, the same in every case."""
    targets, answers = asked.targets, asked.answers or [None]
    if not all(isinstance(x, tuple | list) and len(x) == len(targets[0]) for x in (*targets, *answers)):
        return None
    for order in list(itertools.permutations(range(len(targets[0]))))[1:]:  # the first is the order that is asked for
        pairs = list(zip(answers, targets, strict=True))
        if all(all(alike(a[k], b[place], asked.near) for k, place in enumerate(order)) for a, b in pairs):
            written = ", ".join(map(str, order))
            return f"the items of your answer are right, but not their order: they are items {written}"
    return None


def with_leading_axes(cases: Sequence[tuple]) -> list[int]:
    """The numbers of the cases whose tensors have more axes than those of the first."""
    axes = [sum(x.ndim for x in case if isinstance(x, torch.Tensor)) for case in cases]
    return [k for k, count in enumerate(axes) if count > axes[0]]
