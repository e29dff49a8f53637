"""Commands of a chapter: check, hint, solution, case."""

import copy
import functools
import inspect
import math
import os
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from smalearn.course import timing
from smalearn.course.exercises.buttons import answering
from smalearn.course.exercises.card import SYMBOLS, card, note
from smalearn.course.exercises.compare import Difference
from smalearn.course.exercises.core import Exercise, count_lines, find, registry
from smalearn.course.exercises.judge import LIMIT, Result, evaluate
from smalearn.course.exercises.report import WIDTH, arguments, record, render, show, show_code
from smalearn.course.exercises.run import run


@dataclass
class _Session:
    """Record of what the learner has seen and tried since the kernel was started, by exercise."""

    hints: Counter[str] = field(default_factory=Counter)  # shown so far
    wrong: Counter[str] = field(default_factory=Counter)  # attempts since the last hint
    attempts: dict[str, tuple[Callable, Result]] = field(default_factory=dict)  # the latest one and its result
    road: tuple[str, ...] = ()  # the exercises of a notebook that is no chapter


_session = _Session()  # global, as a cell calls `hint("1.2")` and hands over nothing that could hold it
SLOWER = 3  # times as long as our solution
OURS = "this is our solution, which an earlier check handed back; run the cell with your function first"


def follow(*ids: str) -> None:
    """Let `check` count, and name the next of, these exercises in place of the chapter's: a road through chapters."""
    _session.road = ids


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
    used, after = result.outcome == "passed", []
    if used:
        after = [exercise.insight, " · ".join(filter(None, [_measures(exercise, attempt), ", ".join(_next(exercise))]))]
    elif result.outcome == "not as asked":
        arguments = exercise.lengths()[1] if exercise.way else exercise.draw()[-1]  # the longest that it got
        ours, yours = _seconds(exercise.solution, attempt, arguments)
        used = yours <= SLOWER * ours
        slow = f"It takes more than {SLOWER} times as long as our solution, which later cells use."
        after = ["Later cells use yours." if used else slow]
    lines = [line for text in after for line in textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")]
    text = "\n".join([render(result), *lines])
    calls = _calls(result)
    page = card(result, after, _dots(exercise), [f'{name}("{exercise.id}")' for name in calls])
    show(text, record(result), page, functools.partial(answering, calls=calls))
    if used:
        return attempt
    if os.environ.get("SMALEARN_STRICT") == "1":
        raise CheckFailed(text)
    return _reference(exercise)


def _calls(result: Result) -> dict[str, Callable[[], object]]:
    """What helps after a result, each as a function of nothing that shows, or returns, a text."""
    id, wrong = result.exercise.id, result.outcome != "passed"
    calls = {"hint": lambda: hint(id)} if wrong else {}
    if result.case is not None:
        calls["case"] = lambda: "\n".join(arguments(result))
    return calls | {"solution": lambda: solution(id)}


def _seconds(ours: Callable, yours: Callable, arguments: tuple) -> list[float]:
    """Least seconds of work in seven calls of each, in turns: a busy machine slows both. Infinite if none returns."""
    functions, seconds = (ours, yours), ([], [])

    def timed(number):
        given = copy.deepcopy(arguments)
        seconds[number].append(timing.seconds(lambda: functions[number](*given)))

    run(timed, [(0,), (1,)] * 7, 0, LIMIT)
    return [min(found, default=math.inf) for found in seconds]


def _chapter(exercise: Exercise) -> dict[str, str]:
    """The outcome in this session of each exercise, or opener, of road or chapter; nothing for one in no chapter."""
    chapter = exercise.id.partition(".")[0]
    tried = {id: result.outcome for id, (_, result) in _session.attempts.items()}
    ids = [id for id, one in registry().items() if id.partition(".")[0] == chapter and one.opener == exercise.opener]
    ids = _session.road if exercise.id in _session.road else ids
    return {id: tried.get(id, "not started") for id in ids}


def _next(exercise: Exercise) -> list[str]:
    """How many exercises or openers of the chapter pass, and which is next."""
    if not (outcomes := _chapter(exercise)):
        return []
    following = [f"next {id} {registry()[id].title}" for id, outcome in outcomes.items() if outcome != "passed"]
    passed = list(outcomes.values()).count("passed")
    where = "openers" if exercise.opener else "in this chapter"
    where = "on this road" if exercise.id in _session.road else where
    return [f"{where} {passed} of {len(outcomes)}", *(following[:1] or ["all done"])]


def _dots(exercise: Exercise) -> str:
    """A mark for each exercise of the chapter."""
    return "".join(SYMBOLS.get(outcome, "✗") for outcome in _chapter(exercise).values())


def _measures(exercise: Exercise, attempt: Callable) -> str:
    """What an attempt and ours reach, or their lines and milliseconds; nothing where that cannot be said."""
    if exercise.reached:
        case = exercise.draw()[-1]
        both = [run(function, [case], 0, LIMIT).calls for function in (attempt, exercise.solution)]
        if any(not calls or calls[0].error for calls in both):
            return ""
        yours, ours = (exercise.reached(calls[0].answer, *case) for calls in both)
        return f"yours reaches {yours}; ours {ours}"
    if exercise.kind in ("predict", "break"):
        return ""
    try:
        lines = count_lines(exercise.solution), count_lines(attempt)
    except Exception:  # no source, or none that stands alone
        return ""
    arguments = exercise.draw()[-1]
    times = _seconds(exercise.solution, attempt, arguments)
    if not all(map(math.isfinite, times)):
        return ""
    ours, yours = (f"{n} line{'' if n == 1 else 's'}, {1e3 * s:.2g} ms" for n, s in zip(lines, times, strict=True))
    return f"yours {yours}; ours {ours}"


def _judge(exercise: Exercise, attempt: Callable, seed: int) -> tuple[Callable, Result]:
    """Judge the attempt; in place of a copy of the reference, judge the learner's latest attempt."""
    if inspect.isfunction(attempt) and getattr(attempt, "__smalearn_reference__", None) == exercise.id:
        if exercise.id not in _session.attempts:
            return attempt, Result(exercise, "not started", seed, len(exercise.draw(seed)), problem=Difference(OURS))
        attempt, result = _session.attempts[exercise.id]
        if result.exercise is exercise and result.seed == seed:
            return attempt, result  # not run again: if it calls itself by its name, that is our solution by now
    result = evaluate(exercise, attempt, seed)
    _session.wrong[exercise.id] += result.outcome not in ("passed", "not started")
    _session.attempts[exercise.id] = attempt, result
    return _session.attempts[exercise.id]


def _reference(exercise: Exercise) -> Callable:
    """Copy the reference solution, so that `check` can tell it from what a learner wrote."""

    @functools.wraps(exercise.solution)
    def reference(*args, **kwargs):
        return exercise.solution(*args, **kwargs)

    reference.__smalearn_reference__ = exercise.id  # on the function, since decorators such as `no_grad` copy it
    return reference


def hint(exercise: str | Exercise) -> None:
    """Show the hints of an exercise: the first at once, one more after each further attempt that is wrong."""
    exercise = find("hint", exercise)
    id, total = exercise.id, len(exercise.hints)
    if not _session.hints[id] or _session.wrong[id]:
        _session.hints[id] = min(total, _session.hints[id] + 1)
        _session.wrong[id] = 0
    shown = _session.hints[id]
    lines = [f"Hint {number} of {total}: {text}" for number, text in enumerate(exercise.hints[:shown], start=1)]
    more = "The next one comes after another attempt."
    lines.append(more if shown < total else f'There are no more: solution("{id}") shows one way to write it.')
    show("\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in lines), html=note(lines))


class Case(NamedTuple):
    """A case that an attempt got wrong: its arguments by name, the right answer, and the attempt's."""

    arguments: dict[str, object]
    expected: object
    got: object


def case(exercise: str | Exercise) -> Case | None:
    """The smallest case that your latest attempt got wrong, to look at and to try again.

    Where there is none, a sentence says so, and None is returned.

    Example:
        >>> _ = check("0.1", lambda V: V)  # doctest: +ELLIPSIS
        ✗ 0.1 ...
        >>> sorted(case("0.1").arguments)
        ['V']
    """
    exercise = find("case", exercise)
    result = _session.attempts.get(exercise.id, (None, None))[1]
    if not result or result.case is None:
        last = "your last attempt got no case wrong" if result else "you have not checked an attempt yet"
        last = "a prediction has none" if exercise.kind == "predict" else last
        text = f"There is no case of {exercise.id} to look at: {last}."
        show(text, html=note([text]))
        return None
    if strided := [line for line in arguments(result) if "  # strides " in line]:
        show("\n".join(strided), html=note(strided))  # Python does not print strides
    return Case(*copy.deepcopy((result.arguments, result.expected, result.got)))


def solution(exercise: str | Exercise) -> None:
    """Show the source of the reference solution, the one that the tests run, and what it is good for."""
    exercise = find("solution", exercise)
    try:
        source = exercise.code
    except OSError:
        show(f"The source of {exercise.id} cannot be read: its solution was not written in a file or a cell.")
        return
    show("Our solution:")
    show_code(source)
    if exercise.insight:
        show(textwrap.fill(exercise.insight, WIDTH), html=note([exercise.insight]))
