"""Which rows of an answer change with which row of an argument: what looks ahead, and what is overlooked.

Each row of an argument is made smaller in turn, for the attempt and for the oracle. What is said is what was seen, and
that a row of the right answer depends on nothing else is said only where no other case denies it.
"""

import itertools
from dataclasses import dataclass

import torch

from smalearn.course.exercises.compare import numeric
from smalearn.course.exercises.run import answers

NOTHING = 1e-12  # what rounding alone changes, in parts of the largest entry
MOST = 8  # rows of an argument that are halved
OF_ALL = "your answer does not change with "  # a single case may have nothing but ones, or chunks of one
LEAST = 3  # rows that an argument must have: fewer show no pattern
WORDS = {0: ("row", "{}[{}]"), -1: ("column", "{}[..., {}]")}  # by axis


def changed_rows(asked):
    """Say on which rows of its arguments an attempt's answer depends and must not, or must and does not."""
    if not (asked.attempt and asked.answers and asked.in_form):
        return None
    exercise, attempt = asked.exercise, asked.attempt
    cases = sorted(asked.failing, key=lambda numbered: not _plain(numbered[1]))
    for axis, (number, case) in itertools.product(WORDS, cases):
        if (item := asked.item(number - 1)) is None:
            continue
        for place, x in enumerate(case):
            if not (isinstance(x, torch.Tensor) and x.is_floating_point() and _long(x, axis)):
                continue
            if asked.late:
                return None
            where = place, axis, item
            seen = _seen(exercise, attempt, case, where)
            if seen and _denied(exercise, seen, where):
                continue
            said = seen and _said(seen, exercise.names[place], axis)
            if said and (not said.startswith(OF_ALL) or _said_of_all(asked, where, said)):
                whose = "your answer" if item < 0 else f"item {item} of your answer"
                asked.shown = number - 1
                return said.replace("your answer", whose)
    return None


def _long(x, axis):
    """Whether a tensor has rows, or columns beside rows, and enough of them."""
    return x.ndim > (axis < 0) and x.shape[axis] >= LEAST


def _said_of_all(asked, where, said):
    """Whether a sentence about all rows holds in every wrong case that has enough of them."""
    place, axis, _ = where
    long = [case for _, case in asked.failing if _long(case[place], axis)]
    every = [_seen(asked.exercise, asked.attempt, case, where) for case in long]
    return all(_said(seen, asked.exercise.names[place], axis) == said for seen in every if seen)


def _plain(case):
    """Whether one sees much: no argument has zeros, ones, infinities or an axis of one entry, and no two are equal."""
    numbers = [torch.as_tensor(x) for x in case if isinstance(x, torch.Tensor | float)]
    different = not any(torch.equal(a, b) for a, b in itertools.combinations(numbers, 2))
    return different and all(1 not in x.shape and bool((x.isfinite() & (x != 0) & (x != 1)).all()) for x in numbers)


@dataclass(frozen=True)
class _Seen:
    """By rows of the answer and of the argument: which change."""

    rows: list[int]  # of the argument
    must: torch.Tensor  # the right answer changes
    extra: torch.Tensor  # yours changes clearly, the right one not at all
    missing: torch.Tensor  # the other way round


def _smaller(x, axis, row):
    """The same with one row made smaller, no two of its entries by the same factor; None where that changes nothing."""
    other = x.clone()
    part = other.select(axis, row)
    part.mul_(torch.linspace(0.5, 0.8, part.numel(), dtype=part.dtype).view(part.shape))
    return None if torch.equal(other, x) else other  # zeros and infinities stay what they are


def _denied(exercise, seen, where):
    """Whether in another case the right answer does change where yours changes and must not."""
    (place, axis, _), extra = where, seen.extra.nonzero()
    if not len(extra):
        return False
    line, row = extra[0, 0].item(), seen.rows[extra[0, 1]]
    return any(
        _changes(exercise, case, where, line - row, k)
        for case in exercise.draw(0)
        for k in ([row] if row < case[place].shape[axis] else range(min(case[place].shape[axis], MOST)))
    )


def _changes(exercise, case, where, later, row):
    """Whether the right answer changes, so many rows later, with this row of an argument."""
    place, axis, item = where
    other = _smaller(case[place], axis, row)
    pair = None if other is None else _pair(item, [exercise.oracle] * 2, [case, _with(case, place, other)])
    if pair is None:
        return False
    change = _lines(pair[1] - pair[0], axis)
    inside = 0 <= row + later < len(change)
    return bool(inside and change[row + later].abs().max() > NOTHING * pair[0].abs().max())


def _seen(exercise, attempt, case, where):
    place, axis, item = where
    x, columns = case[place], []
    rows = [round(k) for k in torch.linspace(0, x.shape[axis] - 1, min(MOST, x.shape[axis])).tolist()]
    start = _pair(item, [attempt, exercise.oracle], [case] * 2)
    if start is None:
        return None
    for row in rows:
        if (other := _smaller(x, axis, row)) is None:
            return None
        found = _pair(item, [attempt, exercise.oracle], [_with(case, place, other)] * 2)
        if found is None:
            return None
        columns.append([new - old for new, old in zip(found, start, strict=True)])
    size = start[1].abs().max()
    near = max(exercise.tolerance, 1e-9) * size
    lines = [[_lines(change, axis) for change in column] for column in columns]
    yours, right = (torch.stack([column[k].abs().amax(1) for column in lines], 1) for k in (0, 1))
    does, must = yours > near, right > near
    least = NOTHING * start[0].abs().max()  # yours may be much smaller than the right answer
    return _Seen(rows, must, does & (right <= NOTHING * size), must & (yours <= least))


def _with(case, place, value):
    """A case with another argument."""
    return (*case[:place], value, *case[place + 1 :])


def _pair(item, functions, cases):
    """What two calls answer, or an item of it, as finite numbers of one shape; None where it is not."""
    found = [answers(function, [case]) for function, case in zip(functions, cases, strict=True)]
    if any(x is None or x[0] is None for x in found):
        return None
    pair = numeric([x if item < 0 else x[item] for (x,) in found])
    fits = pair and pair[0].shape == pair[1].shape and pair[0].numel() and all(x.isfinite().all() for x in pair)
    return pair if fits else None


def _lines(change, axis):
    """The rows of a change along an axis, each flat."""
    return change.reshape(1, 1) if change.ndim == 0 else change.movedim(axis, 0).reshape(change.shape[axis], -1)


def _said(seen: _Seen, name: str, axis: int) -> str | None:
    of, written = WORDS[axis]
    extra, missing = seen.extra, seen.missing
    count, own = len(seen.must), torch.tensor(seen.rows)
    line = torch.arange(count)[:, None]

    def at(mask):
        t, k = mask.nonzero()[0].tolist()
        whole = bool(mask[:, k].all())  # then nothing is special about the first row
        return "your answer" if whole else f"{of} {t} of your answer", written.format(name, seen.rows[k])

    if missing.any() and torch.equal(missing, seen.must) and not extra.any():
        return f"your answer does not change with {name}, and must"
    if extra.any():
        row, cause = at(extra)
        later = own > line
        ahead = count > 1 and not (seen.must & later).any() and not (extra & ~later).any()
        if ahead:
            return f"{row} changes with {cause}: in the right answer it depends on nothing that comes later in {name}"
        if missing.any() and (lacking := missing & extra.any(1, keepdim=True)).any():
            row, lost = at(lacking)
            _, cause = at(extra & (line == lacking.nonzero()[0, 0]))
            return f"{row} changes with {cause}, which it must not, and does not change with {lost}, which it must"
        return f"{row} changes with {cause}, and must not"
    if missing.any():
        row, lost = at(missing)
        return f"{row} does not change with {lost}, and must"
    return None
