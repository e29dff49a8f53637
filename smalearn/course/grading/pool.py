"""Grade many submissions, on threads of this process or on the workers of somebody else's executor."""

import atexit
import contextlib
import functools
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.exercises import Exercise, evaluate, registry
from smalearn.course.exercises.core import borrowed
from smalearn.course.grading import choice
from smalearn.course.grading.gradebook import CUT, Row
from smalearn.course.grading.grader import Course, Limits
from smalearn.course.grading.process import end_all
from smalearn.course.grading.sandbox import Sandbox, opened
from smalearn.course.grading.submission import Submission

__all__ = ["Order", "grade", "grade_elsewhere", "seed_for"]


def seed_for(exercises: Mapping[str, Exercise], first: int | None = None) -> int:
    """Find a seed, from `first` on or from one that nobody knows, with which all of our solutions pass."""
    first = 1 + secrets.randbelow(10**6) if first is None else first
    for seed in range(first, first + 10):
        results = (evaluate(exercise, exercise.solution, seed).outcome for exercise in exercises.values())
        if all(outcome == "passed" for outcome in results):
            return seed
    raise ValueError(f"grade: with no seed from {first} to {first + 9} do the solutions of all exercises pass")


def grade(
    submissions: Sequence[Submission],
    exercises: Mapping[str, Exercise],
    box: Sandbox,
    limits: Limits | None = None,
    jobs: int | None = None,
    seed: int = 1,
) -> Iterator[Row]:
    """Grade notebooks, each in a process of its own; yield a row for each file as they are finished.

    Exercises stand after those whose functions they may call. Without `jobs` there are four notebooks at a time, or as
    many as there are cores if these are fewer. The `seed` of `check` is 0. Closed before the end, it ends what still
    runs. A ValueError says that arguments of an exercise cannot be sent to another process, or that its oracle fails.
    """
    course = Course(exercises, box, limits or Limits(), seed)
    with ThreadPoolExecutor(jobs or min(4, os.cpu_count() or 1)) as pool:
        try:
            yield from _finished(pool, course.grade, submissions)
        finally:
            course.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()


def _finished(pool: Executor, work: Callable[[Submission], Row], submissions: Sequence[Submission]) -> Iterator[Row]:
    """Have each submission graded, and yield the rows as they are finished; a lost process has a second chance.

    Submissions share memory and cores: where one takes all, another may lose its process. So whose process was lost is
    graded once more, alone, after the others.
    """
    futures, lost = {pool.submit(work, submission): submission for submission in submissions}, []
    for future in as_completed(futures):
        row = _row(future, futures[future])
        if row.broke_off:
            lost.append(futures[future])
        else:
            yield row
    for submission in lost:
        yield _row(pool.submit(work, submission), submission)


def _row(future: Future, submission: Submission) -> Row:
    """The row of a submission, or where its worker is gone, on whatever cluster, one that says so."""
    try:
        return future.result()
    except ValueError:  # what is missing on a worker is missing for all
        raise
    except Exception as error:
        why = f"{CUT}: its worker is gone: {str(error).partition(chr(10))[0] or type(error).__name__}"
        return Row(submission.student, submission.path, notes={"": why}, digest=submission.digest, time=submission.time)


@dataclass(frozen=True)
class Order:
    """What a worker needs to know, so that a row does not depend on who made it."""

    ids: tuple[str, ...]  # of the exercises, each after those whose functions it may call
    limits: Limits
    seed: int
    own: str = ""  # source of a teacher's own exercises


def grade_elsewhere(pool: Executor, submissions: Sequence[Submission], order: Order) -> Iterator[Row]:
    """Grade notebooks on workers of one thread that have bubblewrap; yield rows as they are finished."""
    return _finished(pool, functools.partial(_graded, order), submissions)


def _graded(order: Order, submission: Submission) -> Row:
    """Grade a submission on a worker."""
    return _course(order).grade(submission)


@functools.lru_cache(maxsize=1)
def _course(order: Order) -> Course:
    """Inputs and targets, made once on each worker; the next order may have other exercises of the same names."""
    with tempfile.TemporaryDirectory() as folder, borrowed():
        if order.own:
            path = Path(folder) / "exercises.py"
            path.write_text(order.own, encoding="utf-8")
            choice.load(path)
        known = registry()
        return Course({id: known[id] for id in order.ids}, _box(), order.limits, order.seed)


@functools.cache
def _box() -> Sandbox:
    """The sandbox of this worker, until its process ends: without one, submissions would run as the teacher."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    box = stack.enter_context(opened())
    if box.weakness:
        raise ValueError(f"grade: on {socket.gethostname()} {box.weakness}")
    return box
