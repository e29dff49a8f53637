"""Answers in another form than asked: one item of a pair, a tuple for a tensor, code that knows no leading axes."""

import itertools
from collections.abc import Sequence

import torch

from smalearn.course.exercises.agree import equal

__all__ = ["item_alone", "leading_axes", "other_order", "with_leading_axes"]

LEADING = (
    "your code is right without leading axes and fails with them: count axes from the end, with `[..., None]`, `.mT`, "
    "or `dim=-1`"
)


def item_alone(targets: Sequence, answers: Sequence) -> str | None:
    """Say that an answer is one item of the right tuple, or has the right answer as an item."""
    inside, outside = (all(isinstance(x, tuple | list) for x in values) for values in (targets, answers))
    if inside == outside:
        return None
    whole, alone = (targets, answers) if inside else (answers, targets)
    for item in range(min(map(len, whole))):
        if all(equal(x, y[item]) for x, y in zip(alone, whole, strict=True)):
            count = len(whole[0])
            return (
                f"this is item {item} of the answer alone: return {'both' if count == 2 else f'all {count} of them'}"
                if inside
                else f"item {item} of yours is the answer: return it alone"
            )
    return None


def other_order(targets: Sequence, answers: Sequence) -> str | None:
    """Say that the items of a tuple are right and stand in another order, the same in every case."""
    if not all(isinstance(x, tuple | list) and len(x) == len(targets[0]) for x in (*targets, *answers)):
        return None
    for order in list(itertools.permutations(range(len(targets[0]))))[1:]:  # the first is the order that is asked for
        pairs = list(zip(answers, targets, strict=True))
        if all(all(equal(a[k], b[place]) for k, place in enumerate(order)) for a, b in pairs):
            written = ", ".join(map(str, order))
            return f"the items of your answer are right, but not their order: they are items {written}"
    return None


def with_leading_axes(cases: Sequence[tuple]) -> list[int]:
    """The numbers of the cases whose tensors have more axes than those of the first."""
    axes = [sum(x.ndim for x in case if isinstance(x, torch.Tensor)) for case in cases]
    return [k for k, count in enumerate(axes) if count > axes[0]]


def leading_axes(cases: Sequence[tuple], wrong: Sequence[int]) -> str | None:
    """Say that just the cases with leading axes are wrong, at least one, and those without are right, at least two."""
    leading = with_leading_axes(cases)
    return LEADING if leading and leading == list(wrong) and len(cases) - len(leading) >= 2 else None
