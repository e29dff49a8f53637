"""Where the wrong entries of an answer are: in its last row, above the diagonal, in half of its columns."""

from collections.abc import Sequence

import torch

from smalearn.course.exercises.agree import CLOSE, has_content

__all__ = ["region"]

FIRST = "at index 0 of its first axis, and wrong at the others"
FIRST_COLUMN = "in its first column, and wrong in the others"
ALONE = {FIRST: 0, FIRST_COLUMN: -1}  # axes along which the first line alone is right
LINES = {f"but for the {name} {kind}": line for kind in ("row", "entry") for name, line in (("first", 0), ("last", -1))}


def region(pairs: Sequence[tuple]) -> str | None:
    """Say where the wrong entries are, from answer and target of each wrong case."""
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs):
        return None
    if len(pairs) >= 3 and (found := _part(pairs)):
        return found
    sums = all(b.ndim >= 2 and torch.allclose(b.sum(-1), torch.ones((), dtype=torch.float64)) for _, b in pairs)
    if sums and any(len(b) > 1 for _, b in pairs) and all((a.sum(-1) - 1).abs().max() > 1e-3 for a, _ in pairs):
        return "the rows of the right answer sum to 1, yours do not"
    return None


def _part(pairs):
    """The part in which all wrong entries are."""
    differ = [~torch.isclose(a, b, rtol=CLOSE, atol=CLOSE * _scale(b), equal_nan=True) for a, b in pairs]
    regions = [dict(_regions(x.shape)) for x in differ]
    for name in regions[-1]:
        inside = [found.get(name) for found in regions]
        if all(r is None or not (x & ~r).any() for x, r in zip(differ, inside, strict=True)):
            if name in ALONE and not all(x.movedim(ALONE[name], 0).flatten(1).any(1)[1:].all() for x in differ):
                continue
            known = [b for (_, b), r in zip(pairs, inside, strict=True) if r is not None and has_content(b[~r])]
            if len(known) >= 2 and inside[0] is not None:
                zeros = name in LINES and all(_empty(a, b, LINES[name]) for a, b in pairs)
                return f"your answer is right {name}{', which it leaves at 0' if zeros else ''}"
    return None


def _empty(answer, target, line):
    """Whether a line of the answer is 0 where that of the target is not; nothing is said of one entry."""
    return not answer[line].any() and bool(target[line].any())


def _scale(target):
    finite = target[torch.isfinite(target)].abs()
    return finite.max().item() if finite.numel() else 1.0


def _regions(shape):
    """Names of parts of a tensor, and where they are."""
    rows = torch.zeros(shape, dtype=torch.bool)
    if len(shape) >= 1:
        for name, index in (("first", 0), ("last", -1)):
            part = rows.clone()
            part[index] = True
            yield f"but for the {name} {'row' if len(shape) > 1 else 'entry'}", part
        part = ~rows
        part[0] = False
        yield FIRST, part
    if len(shape) >= 2:
        for name, index in (("first", 0), ("last", -1)):
            part = rows.clone()
            part[..., index] = True
            yield f"but for the {name} column", part
        if shape[-1] % 2 == 0:
            for name, half in (("first", slice(None, shape[-1] // 2)), ("second", slice(shape[-1] // 2, None))):
                part = rows.clone()
                part[..., half] = True
                yield f"but for the {name} half of its columns", part
        if shape[-1] == shape[-2]:
            yield "but for the diagonal", (~rows).triu() & (~rows).tril()
            yield "but for what lies above the diagonal", (~rows).triu(1)
            yield "but for what lies below the diagonal", (~rows).tril(-1)
        part = ~rows
        part[..., 0] = False
        yield FIRST_COLUMN, part
