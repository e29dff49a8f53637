"""Commands of a chapter: check, hint, solution."""

import copy
import functools
import os
import textwrap
import timeit
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from smalearn.course.exercises.compare import Difference
from smalearn.course.exercises.core import Exercise, Randn, find
from smalearn.course.exercises.judge import Result, evaluate
from smalearn.course.exercises.report import WIDTH, record, render, show, show_code
from smalearn.course.exercises.way import LENGTHS

__all__ = ["CheckFailed", "check", "hint", "solution"]


@dataclass
class _Session:
    """Record of what the learner has seen and tried since the kernel was started, by exercise."""

    hints: Counter[str] = field(default_factory=Counter)  # shown so far
    attempts: dict[str, tuple[Callable, Result]] = field(default_factory=dict)  # the latest one and its result


_session = _Session()  # global, as a cell calls `hint("1.2")` and hands over nothing that could hold it
SLOWER = 3  # times as long as our solution
OURS = "this is our solution, which an earlier check handed back; run the cell with your function first"


class CheckFailed(AssertionError):  # noqa: N818 - it reports an attempt, not a fault of the program
    """An attempt did not pass, and SMALEARN_STRICT=1 asked for an error."""


def check(exercise: str | Exercise, attempt: Callable = ..., seed: int = 0) -> Callable:
    """Check an attempt on random cases and say how it went.

    Where the attempt is what an earlier check of the exercise handed back, as when its cell is run twice, the verdict
    on the attempt of that earlier check is given again.

    Args:
        exercise: an id such as "1.2", or an Exercise of your own.
        attempt: your function, not called.
        seed: of the random data.

    Returns:
        The attempt if it passes, or is right but not as asked and nearly as fast as ours; else a copy of the reference
        solution, so that later cells work for everybody.

    Raises:
        ValueError: the id is unknown, or no attempt is given.
        CheckFailed: the attempt does not pass and SMALEARN_STRICT=1 is set in the environment.
        KeyboardInterrupt: you stopped it.

    Example:
        >>> def running_mean(V):
        ...     return V.cumsum(0)
        >>> running_mean = check("0.1", running_mean)  # doctest: +ELLIPSIS
        ✗ 0.1 Look back with equal weights: 1 of 4 cases passed (seed 0)...
    """
    exercise = find("check", exercise)
    if attempt is ...:
        name = exercise.solution.__name__
        raise ValueError(f'check: attempt is missing; write {name} = check("{exercise.id}", {name})')
    attempt, result = _judge(exercise, attempt, seed)
    text, used = render(result), result.outcome == "passed"
    if result.outcome == "not as asked":
        used = _as_fast(exercise, attempt)
        slow = f"It takes more than {SLOWER} times as long as our solution, which later cells use."
        text += f"\n  {'Later cells use yours.' if used else slow}"
    show(text, record(result))
    if used:
        return attempt
    if os.environ.get("SMALEARN_STRICT") == "1":
        raise CheckFailed(text)
    return _reference(exercise)


def _as_fast(exercise: Exercise, attempt: Callable) -> bool:
    """Whether an attempt is fast enough for later cells, on the longer of the lengths at which its way was measured."""
    case = exercise.way.case(Randn(0), LENGTHS[1])

    def seconds(function):
        return min(timeit.repeat(lambda: function(*copy.deepcopy(case)), number=1, repeat=3))

    return seconds(attempt) <= SLOWER * seconds(exercise.solution)


def _judge(exercise: Exercise, attempt: Callable, seed: int) -> tuple[Callable, Result]:
    """Judge the attempt; in place of a copy of the reference, judge the learner's latest attempt."""
    if getattr(attempt, "__smalearn_reference__", None) == exercise.id:
        if exercise.id not in _session.attempts:
            return attempt, Result(exercise, "not started", seed, len(exercise.draw(seed)), problem=Difference(OURS))
        attempt, result = _session.attempts[exercise.id]
        if result.exercise is exercise and result.seed == seed:
            return attempt, result  # not run again: if it calls itself by its name, that is our solution by now
    _session.attempts[exercise.id] = attempt, evaluate(exercise, attempt, seed)
    return _session.attempts[exercise.id]


def _reference(exercise: Exercise) -> Callable:
    """Copy the reference solution, so that `check` can tell it from what a learner wrote."""

    @functools.wraps(exercise.solution)
    def reference(*args, **kwargs):
        return exercise.solution(*args, **kwargs)

    reference.__smalearn_reference__ = exercise.id  # on the function, since decorators such as `no_grad` copy it
    return reference


def hint(exercise: str | Exercise) -> None:
    """Show the hints of an exercise, one more at each call.

    Raises:
        ValueError: the id is unknown.
    """
    exercise = find("hint", exercise)
    _session.hints[exercise.id] += 1
    total, shown = len(exercise.hints), _session.hints[exercise.id]
    lines = [f"Hint {number} of {total}: {text}" for number, text in enumerate(exercise.hints[:shown], start=1)]
    if shown > total:
        lines.append(f'{exercise.id} has no more hints: solution("{exercise.id}") shows one way to write it.')
    show("\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines))


def solution(exercise: str | Exercise) -> None:
    """Show the source of the reference solution, the one that the tests run.

    Raises:
        ValueError: the id is unknown.
    """
    exercise = find("solution", exercise)
    try:
        source = exercise.code
    except OSError:
        show(f"The source of {exercise.id} cannot be read: its solution was not written in a file or a cell.")
        return
    show("Our solution:")
    show_code(source)
