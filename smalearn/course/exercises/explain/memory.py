"""Entries that nobody wrote: memory from `torch.empty`, and what the mask of a load leaves out."""

import torch
from torch.overrides import TorchFunctionMode

from smalearn.course.exercises.explain.asked import Asked
from smalearn.course.exercises.run import EMPTY, answers
from smalearn.fast.lanes import running

__all__ = ["unwritten"]

UNSTORED = "there are entries in which nothing is stored{}: they hold what `torch.empty` gave, shown as nan"
UNMASKED = "what a mask leaves out of a load is anything, shown as nan, unless it is given: `other=0.0`"


def unwritten(asked: Asked) -> str | None:
    """Say where an attempt's NaNs come from: memory that nobody wrote, or masked loads of a GPU kernel."""
    before = asked.answers
    if asked.in_form or not asked.attempt or before is None or all(map(_numbers, before)):
        return None
    for sentence, program in ((UNSTORED, _with_zeros(asked.attempt)), (UNMASKED, _with_others(asked.attempt))):
        after = answers(program, asked.cases)
        if after and all(map(_numbers, after)):
            return sentence.format(_which(before[asked.shown]))
    return None


def _which(answer):
    """Words for the NaNs of an answer, where they are its last rows, or its last columns; "" where they are not."""
    items = answer if isinstance(answer, tuple) else (answer,)
    empty = next((x.isnan() for x in items if isinstance(x, torch.Tensor) and x.isnan().any()), torch.zeros(0))
    names = {1: ("entry",), 2: ("row", "column")}.get(empty.ndim, ("index",) * empty.ndim)
    for axis, name in enumerate(names):
        lines = empty.movedim(axis, 0).flatten(1) if empty.ndim > 1 else empty[:, None]
        first = int(lines.any(1).int().argmax())
        if lines[first:].all() and first:
            alone = first == len(lines) - 1 and name != "index"
            axes = f" of axis {axis}" * (name == "index" and axis > 0)
            return f", the last {name}" if alone else f", all from {name} {first}{axes} on"
    return ", all of them" if empty.any() and empty.all() else ""


class _Zeros(TorchFunctionMode):
    """Makes `torch.empty` give zeros."""

    def __torch_function__(self, function, types, arguments=(), words=None):
        made = function(*arguments, **(words or {}))
        return made.zero_() if function in EMPTY else made


def _with_zeros(attempt):
    """The attempt where memory that nobody wrote holds zeros."""

    def program(*arguments):
        with _Zeros():
            return attempt(*arguments)

    return program


def _with_others(attempt):
    """The attempt where what a mask leaves out is 0."""

    def program(*arguments):
        running.fills = False
        try:
            return attempt(*arguments)
        finally:
            running.fills = True

    return program


def _numbers(answer):
    """Whether there is no NaN in an answer."""
    if isinstance(answer, tuple | list):
        return all(map(_numbers, answer))
    return not isinstance(answer, torch.Tensor) or not bool(answer.isnan().any())
