"""What a wrong answer looks like beside the right one: twice as large, transposed, one step late.

A relation is said only where it holds in every case that is wrong, and where the right answers of enough of them have
content: four different numbers, so that agreement is no accident.
"""

import math

import torch

from smalearn.course.exercises.compare import CLOSE, alike, numeric
from smalearn.course.exercises.explain.asked import Asked

__all__ = ["values"]

NEARLY = 1e-6  # relative error of a short computation in float32, at most
ROUNDED = "your answer is right to about seven digits: is one of your tensors float32, or a small number added?"
LOST = (
    "your answer is nearly right: digits are lost, in float32, in a difference of two nearly equal numbers, or in a "
    "series that ends early; or a small number is added"
)
POWERS = {1.0: "{} times", -1.0: "1/{} times", 0.5: "√{} times", -0.5: "1/√{} times"}


def values(asked: Asked) -> str | None:
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
    if all(alike(a, b, NEARLY) for a, b in chosen) and any(
        b.any() for _, b in chosen
    ):  # 1e-9 for 0 is no matter of digits
        return where + (ROUNDED if _all(chosen, _rounded) else LOST)
    cases = [asked.cases[k] for k in wrong]
    found = _factor(asked.exercise.names, cases, chosen, asked.near) or _relation(chosen, asked.near)
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


# ------------------------------------------------------------------------------------------------------------ factors


def _factor(names, cases, pairs, near):
    """A constant factor, one that depends on a size, or one for each row or column."""
    if any(a.shape != b.shape or a.is_complex() or b.is_complex() or not torch.isfinite(a).all() for a, b in pairs):
        return None
    factors = [_ratio(a, b) for a, b in pairs]
    if None not in factors:
        entries = sum(b.count_nonzero().item() for _, b in pairs)
        if all(math.isclose(f, factors[0], rel_tol=CLOSE) for f in factors):
            named = "the right one with its sign changed" if math.isclose(factors[0], -1) else None
            named = named or f"{factors[0]:.6g} times the right one"
            return f"your answer is {named}, in every wrong case" if factors[0] and entries >= 3 else None
        return _size(names, cases, factors)
    for axis, line in ((-1, "row"), (-2, "column")):

        def scaled(a, b, axis=axis):
            return 2 <= a.ndim <= 3 and b.shape[axis] >= 1 and _lines_scaled(a, b, axis, near)

        long = sum(b.ndim >= 2 and b.shape[axis] >= 2 for _, b in pairs)  # a line of one number is a multiple of any
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


def _size(names, cases, factors):
    """Factors that are a power of the size of an argument's axis, or of a whole number that is given."""
    sizes = []
    for name, *values in zip(names, *cases, strict=False):
        if all(isinstance(x, torch.Tensor) and x.ndim == values[0].ndim for x in values):
            sizes += [(f"{name}.shape[{axis}]", [x.shape[axis] for x in values]) for axis in range(values[0].ndim)]
        elif all(type(x) is int for x in values):
            sizes.append((name, values))
    for name, numbers_ in sizes:
        for power, words in POWERS.items():
            if min(numbers_) > 0 and all(
                math.isclose(f, n**power, rel_tol=CLOSE) for f, n in zip(factors, numbers_, strict=True)
            ):
                return f"your answer is {words.format(name)} the right one"
    return None


def _lines_scaled(answer, target, axis, near):
    """Whether each line along an axis is the right one times a number."""
    size = (target * target).sum(axis, keepdim=True)
    factor = (answer * target).sum(axis, keepdim=True) / size.clamp(min=1e-300)
    filled = bool((factor.abs() > CLOSE)[size > 0].all())  # a line of zeros is 0 times anything
    return filled and alike(factor * target, answer, near) and not alike(answer, target, near)


# ---------------------------------------------------------------------------------------------------------- relations


def _relation(pairs, near):
    """One transformation that makes the right answer of each wrong one."""

    def holds(turn, *axis):
        return lambda a, b: any(alike(*pair, near) for pair in _tried(turn, a, b, *axis))

    for words, turn, least in _RELATIONS:
        if _all(pairs, holds(turn), least):
            return words
    for axis in range(pairs[0][1].ndim):
        long = [(a, b) for a, b in pairs if b.ndim > axis and b.shape[axis] > 1]  # along one entry all is trivially so
        if not _all(long, lambda a, b: a.shape == b.shape):
            continue
        for words, turn in _ALONG.items():
            if all(a.shape == b.shape and holds(turn, axis)(a, b) for a, b in pairs):
                return words.format(axis)
    for axis, line in ((-1, "columns"), (-2, "rows")):
        if _all(pairs, lambda a, b: a.shape == b.shape and b.ndim >= 2) and _all(pairs, holds(_sorted, axis)):
            return f"the {line} of your answer are right, their order is not"
    return None


def _tried(turn, answer, target, *axis):
    """What a transformation gives, with what that should be; nothing where it cannot be made."""
    try:
        return list(turn(answer, target, *axis))
    except (RuntimeError, IndexError, ValueError):
        return []


def _corner(x, other):
    """The part of a tensor that has the shape of another."""
    return x[tuple(slice(0, n) for n in other.shape)] if x.ndim == other.ndim else x


def _sorted(answer, target, axis):
    """Both with their lines across an axis in one order, whatever the order was."""
    weights = torch.arange(1.0, answer.numel() // answer.shape[axis] + 1, dtype=torch.float64).sin()
    keys = [(x.movedim(axis, 0).flatten(1) * weights).sum(1).abs() for x in (answer, target)]
    yield tuple(x.movedim(axis, 0)[key.argsort()] for x, key in zip((answer, target), keys, strict=True))


_RELATIONS = [  # what is said, pairs of which one must agree, how many cases with content it takes
    ("your answer is the transpose of the right one", lambda a, b: [(a.mT, b)] if a.ndim >= 2 else [], 1),
    (
        "your answer has the right entries with some signs changed",
        lambda a, b: [(a.abs() * b.sign(), b)] if torch.equal(a != 0, b != 0) else [],
        1,
    ),
    ("the exponential of your answer is right", lambda a, b: [(a.exp(), b)], 1),
    (
        "the exponential of your answer is right, but for its zeros, which must be put in after it",
        lambda a, b: [(a.exp().masked_fill((a == 0) & (b == 0), 0), b)],
        1,
    ),
    ("1 divided by your answer is right", lambda a, b: [(a.reciprocal(), b)] if (a != 0).all() else [], 1),
    ("your answer has the right entries in another shape", lambda a, b: [(a.reshape(b.shape), b)], 1),
    ("your answer is right as far as it is needed, and goes on after that", lambda a, b: [(_corner(a, b), b)], 2),
    (
        "the end is missing: your answer is right as far as it goes",
        lambda a, b: [(a, _corner(b, a))] if a.numel() or len(b) == 1 else [],
        2,
    ),
]


def _moved(answer, target, axis, late):
    """The answer's lines along an axis but for one, and the right ones a place away, unless they are right in place."""
    size = target.shape[axis] - 1
    part, place, other = (x.narrow(axis, k, size) for x, k in ((answer, late), (target, late), (target, 1 - late)))
    if not size or not alike(part, place, CLOSE):
        yield part, other


_ALONG = {
    "your answer is the right one in reverse order along axis {}": lambda a, b, d: [(a.flip(d), b)],
    "your answer is one place late along axis {}": lambda a, b, d: _moved(a, b, d, 1),
    "your answer is one place early along axis {}": lambda a, b, d: _moved(a, b, d, 0),
    "only the first place along axis {} is filled in your answer, the others are 0": lambda a, b, d: [
        (a, torch.cat([b.narrow(d, 0, 1), 0 * b.narrow(d, 1, b.shape[d] - 1)], d))
    ],
}
