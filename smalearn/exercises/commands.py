"""The three commands of a chapter: check, hint, solution."""

import inspect
import os
import textwrap
from collections.abc import Callable

from smalearn.exercises.core import Exercise, find
from smalearn.exercises.judge import evaluate
from smalearn.exercises.report import WIDTH, record, render, show, show_code

__all__ = ["CheckFailed", "check", "hint", "solution"]

_given: dict[str, int] = {}  # hints shown so far, by exercise


class CheckFailed(AssertionError):  # noqa: N818 - it reports an attempt, not a fault of the program
    """An attempt did not pass, and SMALEARN_STRICT=1 asked for an error."""


def check(exercise: str | Exercise, attempt: Callable, seed: int = 0) -> Callable:
    """Check an attempt on random cases and say how it went.

    Args:
        exercise: an id such as "1.2", or an Exercise of your own.
        attempt: your function, not called.
        seed: of the random data.

    Returns:
        The attempt if it passes, else the reference solution, so that later cells work for everybody.

    Raises:
        ValueError: the id is unknown.
        CheckFailed: the attempt does not pass and SMALEARN_STRICT=1 is set in the environment.
        KeyboardInterrupt: you stopped it.

    Example:
        >>> def running_mean(V):
        ...     return V.cumsum(0)
        >>> running_mean = check("0.1", running_mean)  # doctest: +ELLIPSIS
        ✗ 0.1 Look back with equal weights: 1 of 4 cases passed (seed 0)...
    """
    exercise = find("check", exercise)
    result = evaluate(exercise, attempt, seed)
    text = render(result)
    show(text, record(result))
    if result.outcome == "passed":
        return attempt
    if os.environ.get("SMALEARN_STRICT") == "1":
        raise CheckFailed(text)
    return exercise.solution


def hint(exercise: str | Exercise) -> None:
    """Show the next hint of an exercise, one more at each call.

    Raises:
        ValueError: the id is unknown.
    """
    exercise = find("hint", exercise)
    total, number = len(exercise.hints), _given.get(exercise.id, 0) + 1
    if number > total:
        show(f'{exercise.id} has no more hints: solution("{exercise.id}") shows one way to write it.')
        return
    _given[exercise.id] = number
    show(textwrap.fill(f"Hint {number} of {total}: {exercise.hints[number - 1]}", WIDTH, subsequent_indent="  "))


def solution(exercise: str | Exercise) -> None:
    """Show the source of the reference solution, the one that the tests run.

    Raises:
        ValueError: the id is unknown.
    """
    exercise = find("solution", exercise)
    try:
        source = inspect.getsource(exercise.solution)
    except (OSError, TypeError):
        show(f"The source of {exercise.id} cannot be read: its solution was not written in a file or a cell.")
        return
    show_code(textwrap.dedent(source).rstrip())
