"""What a wrong answer looks like beside the right one: twice as large, transposed, in reverse order.

A relation is said only where it holds in every case that is wrong, and where the right answers of enough of them have
content: four different numbers, so that agreement is no accident.
"""

import functools
import math

import torch

from smalearn.course.exercises.compare import CLOSE, alike, numeric

NEARLY = 1e-6  # relative error of a short computation in float32, at most
ROUNDED = "your answer is right to about seven digits: is one of your tensors float32, or a small number added?"
LOST = (
    "your answer is nearly right: digits are lost, in float32, in a difference of two nearly equal numbers, or in a "
    "series that ends early; or a small number is added"
)


def values(asked):
    """Say the first relation to the right answers that holds of an attempt's."""
    if asked.answers is None or any(answer is None for answer in asked.answers):
        return None
    item, items = asked.item(asked.shown), list(zip(asked.answers, asked.targets, strict=True))
    if item is None or any(isinstance(right, tuple | list) and len(right) != len(yours) for yours, right in items):
        return None
    where, items = ("", items) if item < 0 else (f"in item {item}, ", [(a[item], b[item]) for a, b in items])
    pairs = [numeric(pair) for pair in items]
    if None in pairs:
        return None
    wrong = [k for k, pair in enumerate(pairs) if not alike(*pair, asked.exercise.tolerance)]
    if not wrong:
        return None
    chosen = [pairs[k] for k in wrong]
    if not any(a.any() for a, _ in chosen) and _all(chosen, lambda a, b: a.shape == b.shape):
        return where + "your answer is 0 everywhere"
    some = any(b.any() for _, b in chosen)  # 1e-9 for 0 is no matter of digits
    if some and all(alike(a, b, NEARLY) for a, b in chosen):
        return where + (ROUNDED if _all(chosen, _rounded) else LOST)
    found = _factor(chosen, asked.near) or _relation(chosen, asked.near)
    return found and where + found


def _all(pairs, holds, least=1):
    """Whether something holds of all pairs, at least so many of them with content."""
    content = sum(b.numel() >= 4 and len(b.unique()) >= 4 for _, b in pairs)
    return content >= least and all(holds(a, b) for a, b in pairs)


def _rounded(answer, target):
    """Whether most entries have errors as float32 makes them."""
    held = (target != 0) & torch.isfinite(target)
    error = ((answer - target).abs() / target.abs())[held]
    return (error > 1e-10).double().mean() > 0.5


def _factor(pairs, near):
    """A constant factor, or one for each row or column."""
    if any(a.shape != b.shape or a.is_complex() or b.is_complex() or not torch.isfinite(a).all() for a, b in pairs):
        return None
    factors = [_ratio(a, b) for a, b in pairs]
    if None not in factors:
        entries = sum(b.count_nonzero().item() for _, b in pairs)
        if not factors[0] or entries < 3 or not all(math.isclose(f, factors[0], rel_tol=CLOSE) for f in factors):
            return None
        inverted = math.isclose(factors[0], -1)
        named = "the right one with its sign changed" if inverted else f"{factors[0]:.6g} times the right one"
        return f"your answer is {named}, in every wrong case"
    for axis, line in ((-1, "row"), (-2, "column")):
        long = sum(b.ndim >= 2 and b.shape[axis] >= 2 for _, b in pairs)  # a line of one number is a multiple of any
        scaled = functools.partial(_lines_scaled, axis=axis, near=near)
        if len(pairs) >= 3 and long >= 2 and _all(pairs, scaled, 2):
            return f"each {line} of your answer is the right one times a number of its own"
    return None


def _ratio(answer, target):
    """Answer / target if that is one number."""
    if not target.numel() or not torch.isfinite(target).all():
        return None
    held, made = (x.abs() > 1e-12 * x.abs().max() for x in (target, answer))  # the others are 0 but for rounding
    if not held.any() or (made & ~held).any():
        return None
    ratio = answer[held] / target[held]
    return ratio.mean().item() if (ratio - ratio[0]).abs().max() <= CLOSE * max(ratio[0].abs(), CLOSE) else None


def _lines_scaled(answer, target, axis, near):
    """Whether each line along an axis is the right one times a number."""
    if not 2 <= answer.ndim <= 3 or not answer.shape[axis]:
        return False
    size = (target * target).sum(axis, keepdim=True)
    factor = (answer * target).sum(axis, keepdim=True) / size.clamp(min=1e-300)
    filled = bool((factor.abs() > CLOSE)[size > 0].all())  # a line of zeros is 0 times anything
    return filled and alike(factor * target, answer, near) and not alike(answer, target, near)


def _relation(pairs, near):
    """One transformation that makes the right answer of each wrong one."""
    for words, turn, least in _relations(pairs[0][1].ndim):

        def holds(a, b, turn=turn):
            try:
                return alike(*turn(a, b), near)
            except (RuntimeError, IndexError, ValueError):  # it cannot be made
                return False

        if _all(pairs, holds, least):
            return words
    return None


def _relations(axes):
    """What is said, a pair of answer and target that must agree then, and how many cases with content it takes."""
    yield "your answer is the transpose of the right one", lambda a, b: (a.mT, b), 1
    yield "your answer has the right entries in another shape", lambda a, b: (a.reshape(b.shape), b), 1
    yield (
        "your answer is right as far as it is needed, and goes on after that",
        lambda a, b: (a[tuple(map(slice, b.shape))], b),
        2,
    )
    for d in range(axes):
        yield f"your answer is the right one in reverse order along axis {d}", lambda a, b, d=d: (a.flip(d), b), 1
        first = lambda a, b, d=d: (a, torch.cat([b.narrow(d, 0, 1), 0 * b.narrow(d, 1, b.shape[d] - 1)], d))  # noqa: E731
        yield f"only the first place along axis {d} is filled in your answer, the others are 0", first, 1
    for axis, line in ((-1, "columns"), (-2, "rows")):
        yield f"the {line} of your answer are right, their order is not", functools.partial(_sorted, axis=axis), 1


def _sorted(answer, target, axis):
    """Both with their lines across an axis in one order, whatever the order was."""
    weights = torch.arange(1.0, answer.numel() // answer.shape[axis] + 1, dtype=torch.float64).sin()
    lines = [x.movedim(axis, 0).flatten(1) for x in (answer, target)]
    return [x[(x * weights).sum(1).abs().argsort()] for x in lines]
