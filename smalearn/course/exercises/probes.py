"""What a wrong program does with other arguments: which one it ignores, and where it is right after all.

Unlike a sign, which looks at answers, a probe calls the program again. What is said of it is what it does.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from smalearn.course.exercises.agree import equal, informative, up_to
from smalearn.course.exercises.core import Exercise
from smalearn.course.exercises.limit import Stopwatch
from smalearn.course.exercises.run import EMPTY, SECONDS, answers
from smalearn.fast.lanes import running

__all__ = ["hole", "probe", "zero"]

UNSTORED = "there are entries in which nothing is stored{}: they hold what `torch.empty` gave, shown as nan"
UNMASKED = "what a mask leaves out of a load is anything, shown as nan, unless it is given: `other=0.0`"
SMALLER = (lambda x: x / 2, lambda x: x.flip(tuple(range(x.ndim))[:1]), lambda x: x.flip(tuple(range(x.ndim))[-1:]))
OTHER = (lambda n: n + 1, lambda n: 2 * n, lambda n: n // 2, lambda n: 1)
MORE = range(1, 6)  # draws besides the first, in which an answer may be right by chance
HALVES = {0: "stays as it is", 1: "is halved", 2: "becomes a quarter"}


def probe(exercise: Exercise, attempt: Callable, seed: int = 0, looks: Sequence[Callable] = ()) -> str | None:
    """Say what an attempt, whose answers have the right form, does with other arguments and the oracle does not."""
    try:
        with up_to(exercise.tolerance):
            return next(filter(None, _looked(exercise, attempt, seed, looks)), None)
    except Exception:  # an answer may be anything, 10**400 say: then nothing is said of it
        return None


def zero(exercise: Exercise, attempt: Callable, seed: int = 0) -> str | None:
    """Say that an attempt is right where an argument is 0 throughout: its error lies in the terms with it."""
    return probe(exercise, attempt, seed, looks=(_right_with_zeros,))


def hole(exercise: Exercise, attempt: Callable, seed: int = 0, shown: int = 0) -> str | None:
    """Say where an attempt's NaNs come from: memory that nobody wrote, or masked loads of a GPU kernel."""
    cases = exercise.draw(seed)
    before = answers(attempt, cases) or ()
    if _numbers(before):
        return None
    for sentence, program in ((UNSTORED, _with_zeros(attempt)), (UNMASKED, _with_others(attempt))):
        if _numbers(answers(program, cases) or (torch.tensor(torch.nan),)):
            return sentence.format(_which(before[shown]) if before else "")
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


def _looked(exercise, attempt, seed, looks):
    """The sentence of each probe, or None, until time is over."""
    stopwatch, cases = Stopwatch(), exercise.draw(seed)
    before, target = answers(attempt, cases), answers(exercise.oracle, cases)
    if before is None:
        return
    if not looks:
        yield from _ignored(exercise, attempt, cases, before, target)
    for look in looks or (_right_with_equal, _right_with, _not_halved):
        for name, change, say in look(exercise.names, cases):
            after, other = _both(exercise, attempt, cases, change)
            told = None if after is None or other is None else say(name, before, after, target, other)
            told = told if look is _not_halved or _tells(before, target, other) else None
            told = None if look is _right_with_zeros and told and not _rests(exercise, cases, change) else told
            maybe = told and look in (_right_with_equal, _right_with_zeros)
            yield None if maybe and not _holds(exercise, attempt, seed, change) else told
            if stopwatch() > SECONDS:
                return


def _both(exercise, attempt, cases, change):
    """What an attempt and the oracle answer to changed arguments."""
    changed = [change(*copy.deepcopy(case)) for case in cases]
    return answers(attempt, changed), answers(exercise.oracle, changed)


def _rests(exercise, cases, change):
    """Whether some other argument still matters in the right answer after a change: else nothing is left of it."""
    changed = [change(*copy.deepcopy(case)) for case in cases]
    start = answers(exercise.oracle, changed)
    for k in _floats(cases):
        other = answers(exercise.oracle, [_put(k, SMALLER[0])(*copy.deepcopy(case)) for case in changed])
        if start and other and not all(map(equal, start, other)):
            return True
    return False


def _holds(exercise, attempt, seed, change):
    """Whether an attempt is right with changed arguments where the numbers are others, too."""
    pairs = (_both(exercise, attempt, exercise.draw(seed + more), change) for more in MORE)
    return all(after is not None and other is not None and _agree(after, other) for after, other in pairs)


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


def _put(place: int, change: Callable) -> Callable:
    return lambda *case: (*case[:place], change(case[place]), *case[place + 1 :])


def _floats(cases: Sequence[tuple]) -> Iterator[int]:
    """Places of the arguments that are tensors of floating point numbers."""
    return (k for k, x in enumerate(cases[0]) if isinstance(x, torch.Tensor) and x.is_floating_point())


def _ignored(exercise, attempt, cases, before, target):
    """Name the first argument whatever value of which leaves the answers alone, but not the right ones."""
    for k, x in enumerate(cases[0]):
        changes = SMALLER if isinstance(x, torch.Tensor) and x.is_floating_point() else OTHER if type(x) is int else ()
        matters, seen = False, 0
        for change in changes:
            changed = [_put(k, change)(*copy.deepcopy(case)) for case in cases]
            other, after = answers(exercise.oracle, changed), answers(attempt, changed)
            if other is None or after is None:  # a change that is not allowed
                continue
            if not all(map(equal, before, after)):
                break
            matters, seen = matters or not all(map(equal, target, other)), seen + 1
        else:
            if matters and seen >= 2:
                yield f"your answer does not depend on {exercise.names[k]}"


def _tells(before, target, other):
    """Whether what was wrong at first has content with the other arguments: where it is 0, every answer is right."""
    if isinstance(target[0], tuple | list):
        wrong = [
            k for k in range(len(target[0])) if not all(equal(a[k], b[k]) for a, b in zip(before, target, strict=True))
        ]
        other = [answer[wrong[0]] for answer in other] if wrong else other
    return sum(map(informative, other)) >= 2


def _right_with(names, cases):
    for k in _floats(cases):  # the identity, where there are square matrices that may be it
        if all(case[k].ndim >= 2 and case[k].shape[-1] == case[k].shape[-2] for case in cases) and any(
            case[k].diagonal(dim1=-2, dim2=-1).any() for case in cases
        ):
            yield names[k], _put(k, _identity), _where_identity
    for k in _floats(cases):
        if all((case[k] <= 0).all() for case in cases):
            continue  # a logarithm of a decay is never above 0
        right = {}

        def say(name, before, after, target, other, value, right):
            right[value] = _agree(after, other)
            one = [x for x in right if right[x]]  # right for any constant: that says nothing of a factor or a power
            if len(right) < 2 or len(one) != 1:
                return None
            return f"your answer is right where {name} is {one[0]} throughout: look at where {name} enters"

        for value in (1, 0.5):
            yield names[k], _put(k, _constant(value)), partial(say, value=value, right=right)


def _right_with_zeros(names, cases):
    def say(name, before, after, target, other):
        right = _agree(after, other) and _numbers(other)  # 0/0 says nothing of the rest
        return f"your answer is right where {name} is 0 throughout: look at the terms with {name}" if right else None

    for k in _floats(cases):
        yield names[k], _put(k, torch.zeros_like), say


def _constant(value):
    return lambda x: torch.full_like(x, value)


def _identity(x):
    return torch.eye(x.shape[-1], dtype=x.dtype).expand_as(x).clone()


def _where_identity(name, before, after, target, other):
    if not _agree(after, other):
        return None
    return f"your answer is right where {name} is the identity: look at how {name} is multiplied, and with what"


def _right_with_equal(names, cases):
    def say(pair, before, after, target, other, i, j):
        if not _agree(after, other) or all(map(_handed_back, other, (case[i] for case in cases))):
            return None  # any mean of two that are the same is right
        for case, yours, right in zip(cases, before, target, strict=True):
            if informative(right) and equal(yours, right) and not torch.equal(case[i], case[j]):
                return None  # what is mixed up is wrong wherever the two differ
        return f"your answer is right where {pair} are the same: look at where it matters which is which"

    for i, j in itertools.combinations(_floats(cases), 2):
        if all(case[i].shape == case[j].shape for case in cases):
            yield (
                f"{names[i]} and {names[j]}",
                lambda *case, i=i, j=j: (*case[:j], case[i].clone(), *case[j + 1 :]),
                partial(say, i=i, j=j),
            )


def _handed_back(answer, given):
    """Whether an answer, or a part of it, is what was given."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    return any(isinstance(x, torch.Tensor) and x.shape == given.shape and torch.allclose(x, given) for x in parts)


def _not_halved(names, cases):
    def say(name, before, after, target, other):
        right, yours = _degree(target, other), _degree(before, after)
        if right is None or right == yours or not all(map(_finite, (*before, *after))):
            return None
        other = HALVES.get(yours, "is not" if right == 1 else "does not")
        return f"where {name} is halved the right answer {HALVES[right]}, yours {other}"

    for k in _floats(cases):
        yield names[k], _put(k, lambda x: x / 2), say


def _degree(before, after):
    """The power of 1/2 by which every answer changes; None if there is none."""
    if not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (*before, *after)):
        return None
    if not all(map(_finite, (*before, *after))):
        return None
    fits = (p for p in HALVES if all(equal(x / 2**p, y) for x, y in zip(before, after, strict=True)))
    return next(fits, None)


def _finite(answer):
    return isinstance(answer, torch.Tensor) and bool(answer.isfinite().all())


def _agree(answers: Sequence, targets: Sequence) -> bool:
    """Whether answers are right in all cases, two of which have content."""
    return all(map(equal, answers, targets)) and sum(map(informative, targets)) >= 2
