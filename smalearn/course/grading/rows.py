"""Grade submissions: ask each process for answers, judge them here, and put the outcomes into rows."""

import contextlib
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from smalearn.course.exercises import AnswerKey, Exercise, Result
from smalearn.course.grading import wire
from smalearn.course.grading.process import GRACE, Child, Lost
from smalearn.course.grading.submission import Submission, borrows, fingerprint

__all__ = ["PARTIAL", "Limits", "Row", "grade"]

SEED = 1
PARTIAL = 0.5  # of the points, for a right answer that was not found as asked
RIGHT = ("passed", "not as asked")
LONGEST = 300  # characters of a note


@dataclass(frozen=True)
class Limits:
    """Limits of time and memory for one notebook.

    Args:
        exercise: seconds for the cells of an exercise, and again for its cases, as in `check`.
        notebook: seconds for everything.
        memory: bytes on top of what Python and torch take; enforced on Linux.
    """

    exercise: float = 10.0
    notebook: float = 120.0
    memory: int = 2 * 2**30


@dataclass
class Row:
    """Row of the table: the outcomes of one file.

    Args:
        student: who handed it in.
        path: the file.
        outcomes: exercise id -> "passed", "not as asked", "failed", "not started", "error" or "timeout", as in `check`;
            "missing" where it is not in the notebook, "lost" where it ended the process, "not run" where the process
            was gone.
        notes: exercise id, or "" for the notebook as a whole -> why, in a few words.
        marks: exercise id -> what a teacher should look at: with whose answer this one is the same.
    """

    student: str
    path: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)

    def points(self, weights: Mapping[str, float], partial: float = PARTIAL) -> dict[str, float]:
        """Map each exercise id to its weight if it is passed, to a part of it if it is right but not as asked."""
        parts = {"passed": 1, "not as asked": partial}
        return {id: weight * parts.get(self.outcomes.get(id), 0) for id, weight in weights.items()}


def grade(
    submissions: Sequence[Submission],
    exercises: Mapping[str, Exercise],
    limits: Limits | None = None,
    jobs: int | None = None,
    seed: int = SEED,
) -> list[Row]:
    """Grade notebooks, each in a process of its own, and mark the answers that are the same.

    Args:
        submissions: what `read` found in the files.
        exercises: id -> exercise, each after those whose functions it may call.
        limits: of each notebook.
        jobs: notebooks at a time; where None four, or as many as there are cores if these are fewer.
        seed: of the cases' random data; `check` says that its own is 0.

    Returns:
        A row for each file, in their order. Whatever a submission does, it costs its own row alone.

    Raises:
        ValueError: the arguments of an exercise cannot be sent to another process, or its oracle fails.
    """
    limits = limits or Limits()
    keys = {id: AnswerKey(exercise, seed) for id, exercise in exercises.items()}
    parts = {id: _part(key) for id, key in keys.items()}
    for key in keys.values():
        _prepare(key)
    with ThreadPoolExecutor(jobs or min(4, os.cpu_count() or 1)) as pool:
        rows = list(pool.map(lambda submission: _Grader(submission, keys, parts, limits).grade(), submissions))
    _mark(rows, submissions, keys)
    return rows


def _prepare(key: AnswerKey) -> None:
    """Compute the targets and the known wrong answers: once, and not in the threads, which only compare."""
    try:
        _ = key.targets, key.known
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"grade: the oracle of exercise {key.exercise.id} fails: {reason}") from error


def _part(key: AnswerKey) -> dict:
    """Choose what a process gets to know of an exercise. A solution that is not the course's stays here."""
    try:
        cases = pickle.dumps(key.cases)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"grade: the arguments of exercise {key.exercise.id} must be tensors, numbers, strings, containers of "
            f"these, or objects of an installed package: {error}"
        ) from None
    solution = key.exercise.solution
    reference = pickle.dumps(solution) if solution.__module__.startswith("smalearn.") else None
    part = {"name": solution.__name__, "cases": cases, "seed": key.seed, "reference": reference}
    return part | {"gradient": key.exercise.places, "way": _way(key.exercise, key.seed)}


def _way(exercise: Exercise, seed: int) -> bytes | None:
    """What a process needs to measure the way of an attempt; None where nothing is asked of it."""
    if exercise.way is None:
        return None
    return pickle.dumps((replace(exercise.way, case=None), exercise.names, exercise.lengths(seed)))


class _Grader:
    """Grader of one notebook: its row, and the process that runs it, replaced where an exercise ends it."""

    def __init__(
        self, submission: Submission, keys: Mapping[str, AnswerKey], parts: Mapping[str, dict], limits: Limits
    ):
        self.submission, self.keys, self.limits = submission, keys, limits
        self.row = Row(submission.student, submission.path, dict.fromkeys(keys, "not run"))
        self.child, self.graded = None, []
        self.until = time.monotonic() + limits.notebook
        cells = {id: part | {"sources": submission.cells.get(id, [])} for id, part in parts.items()}
        self.task = {"setup": submission.setup, "exercises": cells, "limit": limits.exercise}
        self.task |= {"memory": limits.memory, "seconds": 2 * int(limits.notebook) + 1}

    def grade(self) -> Row:
        """Grade the notebook and return its row."""
        if self.submission.problem or not self.keys & self.submission.cells.keys():
            self.row.notes[""] = self.submission.problem or "none of the exercises is in it"
            return self.row
        try:
            for id in self.keys:
                self._exercise(id)
        except Lost as lost:
            self.row.notes[""] = f"not graded to the end: {lost}"
        except Exception as error:  # ours, but no reason to leave the others without a grade
            self.row.notes[""] = f"not graded to the end: the grader failed with {type(error).__name__}: {error}"
        finally:
            self._close()
        return self.row

    def _close(self) -> None:
        if self.child:
            self.child.close()
        self.child = None

    def _exercise(self, id: str) -> None:
        """Grade one exercise; a process that it ends is replaced when the next one needs it."""
        self._ready()
        try:
            message, blob = self.child.ask(f"call {id}", self._seconds(2 * self.limits.exercise + GRACE))
            outcome, note = self._judge(id, message, blob)
        except (Lost, wire.WireError) as lost:
            outcome, note = "lost", str(lost)
            self._close()
        self.row.outcomes[id] = outcome
        self.graded.append(id)
        if note:
            self.row.notes[id] = note[:LONGEST]
        if self.child and outcome not in RIGHT:
            with contextlib.suppress(Lost):
                self.child.ask(f"reference {id}", self._seconds(self.limits.exercise))
                return
            self._close()

    def _judge(self, id: str, message: dict, blob: bytes) -> tuple[str, str]:
        """Turn what a process answered into outcome and note."""
        if "calls" in message:
            key = self.keys[id]
            result = key.judge(wire.decode(message, blob, key.cases), self.limits.exercise)
            return _say(key, self._measured(key, result))
        if not self.submission.cells.get(id):
            return "missing", "not in the notebook"
        return "error", str(message.get("error"))

    def _measured(self, key: AnswerKey, result: Result) -> Result:
        """Judge the gradients and the way of an attempt whose answers are right; only its process can tell them."""
        seconds, exercise = 2 * self.limits.exercise + GRACE, key.exercise
        if result.outcome == "passed" and exercise.gradient:
            message, blob = self.child.ask(f"gradient {exercise.id}", self._seconds(seconds))
            result = key.judge_gradients(wire.decode(message, blob, key.cases), result)
        if result.outcome == "passed" and exercise.way:
            message, _ = self.child.ask(f"way {exercise.id}", self._seconds(2 * seconds))
            said = tuple(map(str, message.get("detours") or ()))
            result = replace(result, outcome="not as asked", detours=said) if said else result
        return result

    def _ready(self) -> None:
        """Have a process in which the setup cells have run, and the exercises that are graded already.

        Raises:
            Lost: the time is over, or what has run before does not run again.
        """
        if self.child:
            return
        self._seconds(0)
        self.child = Child(self.task)
        message, _ = self.child.ask("setup", self._seconds(self.limits.exercise + GRACE))
        if message.get("error"):
            self.row.notes[""] = f"setup: {message['error']}"[:LONGEST]
        for id in self.graded:
            action = "define" if self.row.outcomes[id] in RIGHT else "reference"
            self.child.ask(f"{action} {id}", self._seconds(self.limits.exercise + GRACE))

    def _seconds(self, seconds: float) -> float:
        """Return so many seconds, or those that the notebook has left if these are fewer."""
        remaining = self.until - time.monotonic()
        if remaining <= 0:
            raise Lost(f"its {self.limits.notebook:g} s are over")
        return min(seconds, remaining)


def _say(key: AnswerKey, result: Result) -> tuple[str, str]:
    """Turn a result into outcome and note: the misconception, or what is wrong in the smallest failing case."""
    if result.outcome == "passed" and any(map(callable, key.cases[0])):
        return "passed", "passes, and is to be read: the submission itself called the judge"
    if result.outcome in ("passed", "not started"):
        return result.outcome, ""
    if result.misconception or result.detours:
        return result.outcome, result.misconception or "; ".join(result.detours)
    lines = result.problem.lines if result.outcome == "error" else ()
    return result.outcome, lines[-1] if lines else result.problem.sentence


def _mark(rows: Sequence[Row], submissions: Sequence[Submission], keys: Mapping[str, AnswerKey]) -> None:
    """Note in every row which answers say the same as others, or as our solution."""
    for id, key in keys.items():
        name, groups = key.exercise.solution.__name__, defaultdict(list)
        ours = _ours(key)
        for row, submission in zip(rows, submissions, strict=True):
            answer = submission.answer(id)
            if row.outcomes[id] in ("not started", "missing", "not run") or not answer.strip():
                continue
            if borrows(answer):
                row.marks[id] = "names the course's solutions"
            elif code := fingerprint(answer, name):
                groups[code].append(row)
        for code, group in groups.items():
            for row in group:
                names = ["our solution"] * (code == ours) + [other.student for other in group if other is not row]
                others = f" and {len(names) - 2} more" if len(names) > 2 else ""
                if names:
                    row.marks[id] = f"same as {', '.join(names[:2])}{others}"


def _ours(key: AnswerKey) -> str | None:
    """Return the fingerprint of our solution; None where its source cannot be read."""
    try:
        return fingerprint(key.exercise.code, key.exercise.solution.__name__)
    except OSError:
        return None
