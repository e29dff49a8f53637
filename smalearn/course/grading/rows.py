"""Grade submissions: ask each process for answers, judge them here, and put the outcomes into rows."""

import ast
import contextlib
import inspect
import os
import pickle
import secrets
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from smalearn.course.exercises import AnswerKey, Exercise, Result, evaluate, registry
from smalearn.course.exercises.card import card
from smalearn.course.exercises.compare import elements
from smalearn.course.grading import wire
from smalearn.course.grading.alike import alike
from smalearn.course.grading.process import GRACE, Child, Lost, end_all
from smalearn.course.grading.sandbox import Sandbox
from smalearn.course.grading.submission import Submission
from smalearn.fast.jit import Kernel

__all__ = ["PARTIAL", "Limits", "Row", "Stopped", "grade", "names_in", "reference", "seed_for"]

PARTIAL = 0.5  # of the points, for a right answer that was not found as asked
RIGHT = ("passed", "not as asked")
LONGEST = 300  # characters of a note
LARGEST = 100_000  # entries of an answer that a program of ours is run on
COPIED = 0.9  # of the passages of an answer are in our solution too
AS_OURS = "the same as our solution"
TO_READ = "to be read: the submission itself called the judge"


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
    """Outcomes of one file.

    Args:
        student: who handed it in.
        path: the file.
        outcomes: exercise id -> "passed", "not as asked", "failed", "not started", "error" or "timeout", as in `check`;
            "missing" where it is not in the notebook, "lost" where it ended the process, "not run" where the process
            was gone.
        notes: exercise id, or "" for the notebook as a whole -> why, in a few words.
        flags: exercise id -> what a teacher should look at before it counts.
        misconceptions: exercise id -> the one that the answer shows.
        cards: exercise id -> what `check` would show of it, as HTML.
        worth: exercise id -> points that it can bring.
        digest: of the file.
        time: when the file was changed last, in seconds since 1970.
        seed: of the cases' random data.
    """

    student: str
    path: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    misconceptions: dict[str, str] = field(default_factory=dict)
    cards: dict[str, str] = field(default_factory=dict)
    worth: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    time: float = 0.0
    seed: int = 0

    @property
    def ran(self) -> bool:
        """Whether anything in it was judged."""
        return any(outcome != "not run" for outcome in self.outcomes.values())

    def points(self, partial: float = PARTIAL, flagged: float = 0) -> dict[str, float]:
        """Map each exercise that counts to its points.

        Args:
            partial: part of the weight for what is right but not as asked.
            flagged: part of the points that counts for what has a flag.
        """
        parts = {"passed": 1, "not as asked": partial}
        shares = {id: flagged if id in self.flags else 1 for id in self.worth}
        return {id: worth * parts.get(self.outcomes.get(id), 0) * shares[id] for id, worth in self.worth.items()}


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """Error: grading was stopped from outside."""


def seed_for(exercises: Mapping[str, Exercise], first: int | None = None) -> int:
    """Find a seed, from `first` on or from one that nobody knows, with which all of our solutions pass.

    Raises:
        ValueError: none of ten does.
    """
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
    """Grade notebooks, each in a process of its own.

    Args:
        submissions: what `read` found in the files.
        exercises: id -> exercise, each after those whose functions it may call.
        box: in which they run; `opened` makes one.
        limits: of each notebook.
        jobs: notebooks at a time; where None four, or as many as there are cores if these are fewer.
        seed: of the cases' random data; `check` says that its own is 0.

    Yields:
        A row for each file, as they are finished. Closed before the end, it ends what still runs.

    Raises:
        ValueError: the arguments of an exercise cannot be sent to another process, or its oracle fails.
    """
    keys = {id: AnswerKey(exercise, seed) for id, exercise in exercises.items()}
    parts = {id: _part(key) for id, key in keys.items()}
    for key in keys.values():
        _prepare(key)
    ours = {id: _code(exercise) for id, exercise in exercises.items()}
    course = _Course(keys, parts, limits or Limits(), box, seed, ours)
    with ThreadPoolExecutor(jobs or min(4, os.cpu_count() or 1)) as pool:
        graders = [_Grader(submission, course) for submission in submissions]
        rows = [pool.submit(grader.grade) for grader in graders]
        try:
            for row in as_completed(rows):
                yield row.result()
        finally:
            course.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()


def _prepare(key: AnswerKey) -> None:
    """Compute the targets and the known wrong answers: once, and not in the threads, which only compare."""
    try:
        _ = key.targets, key.known
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"grade: the oracle of exercise {key.exercise.id} fails: {reason}") from error


def _code(exercise: Exercise) -> str:
    """Source of our solution; empty where it cannot be read."""
    try:
        return exercise.code
    except OSError:
        return ""


def _part(key: AnswerKey) -> dict:
    """Choose what a process gets to know of an exercise: its inputs."""
    exercise = key.exercise
    try:
        cases = wire.coded(key.cases)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"grade: the arguments of exercise {exercise.id} must be tensors, numbers, strings, containers of "
            f"these, or objects of an installed package: {error}"
        ) from None
    way = exercise.way and wire.coded((replace(exercise.way, case=None), exercise.names, exercise.lengths(key.seed)))
    part = {"name": exercise.solution.__name__, "cases": cases, "seed": key.seed}
    return part | {"gradient": exercise.places, "way": way}


def reference(exercise: Exercise) -> str | None:
    """Source of our solution, with the imports of its module and what it calls of other solutions.

    None for one that is not the course's: that stays here.
    """
    solution = inspect.unwrap(exercise.solution)
    if not solution.__module__.startswith("smalearn."):
        return None
    body = ast.parse(inspect.getsource(inspect.getmodule(solution))).body
    lines = [_there(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    if "__all__" in solution.__globals__:
        lines.append(f"from {solution.__module__} import *")
    others = {one: other for other in registry().values() for one in (other.solution, *other.kernels)}
    names = [name for one in (solution, *exercise.kernels) for name in names_in(inspect.unwrap(one).__code__)]
    called = [solution.__globals__.get(name) for name in names]
    owners = [others.get(one, exercise) for one in called if isinstance(one, types.FunctionType | Kernel)]
    sources = [reference(other) for id, other in {one.id: one for one in owners}.items() if id != exercise.id]
    return "\n".join([*lines, *sources, exercise.code])


def names_in(code: types.CodeType) -> list[str]:
    """List the global names in a function, those in functions inside it included."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in names_in(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def _there(node: ast.Import | ast.ImportFrom) -> str:
    """Write an import of what the package without solutions has, too; nothing if that is nothing."""
    module = sys.modules.get(getattr(node, "module", ""))
    if module is None or not module.__name__.startswith("smalearn.course.exercises.ch"):
        return ast.unparse(node)
    names = [ast.unparse(alias) for alias in node.names if alias.name in getattr(module, "__all__", ())]
    return f"from {module.__name__} import {', '.join(names)}" if names else ""


@dataclass
class _Course:
    """What the graders of all notebooks share."""

    keys: Mapping[str, AnswerKey]
    parts: Mapping[str, dict]
    limits: Limits
    sandbox: Sandbox
    seed: int
    ours: Mapping[str, str]
    stopped: bool = False


class _Grader:
    """Grader of one notebook: its row, and the process that runs it, replaced where an exercise ends it."""

    def __init__(self, submission: Submission, course: _Course):
        self.submission, self.course, self.limits = submission, course, course.limits
        self.row = Row(submission.student, submission.path, dict.fromkeys(course.keys, "not run"))
        self.row.digest, self.row.time, self.row.seed = submission.digest, submission.time, course.seed
        self.child, self.graded = None, []
        cells = {id: part | {"sources": submission.cells.get(id, [])} for id, part in course.parts.items()}
        self.task = {"setup": submission.setup, "exercises": cells, "limit": self.limits.exercise}
        self.task |= {"memory": self.limits.memory, "seconds": 2 * int(self.limits.notebook) + 1}

    def grade(self) -> Row:
        """Grade the notebook and return its row."""
        if self.submission.problem or not self.course.keys & self.submission.cells.keys():
            self.row.notes[""] = self.submission.problem or "none of the exercises is in it"
            return self.row
        self.until = time.monotonic() + self.limits.notebook
        try:
            for id in self.course.keys:
                self._exercise(id)
        except Lost as lost:
            self.row.notes[""] = f"not graded to the end: {lost}"
        except Exception as error:  # ours, but no reason to leave the others without a grade
            self.row.notes[""] = f"not graded to the end: the grader failed with {type(error).__name__}: {error}"
        finally:
            self._close()
        if self.course.stopped:
            raise Stopped
        return self.row

    def _close(self) -> None:
        if self.child:
            self.child.close()
        self.child = None

    def _ask(self, action: str, id: str = "", seconds: float | None = None, **more: str) -> dict:
        """Ask the process; it has as many seconds as an exercise may take, if the notebook has them left."""
        remaining = self.until - time.monotonic()
        if remaining <= 0 or self.course.stopped:
            raise Lost(f"its {self.limits.notebook:g} s are over")
        seconds = self.limits.exercise + GRACE if seconds is None else seconds
        return self.child.ask({"do": action, "id": id} | more, min(seconds, remaining))

    def _exercise(self, id: str) -> None:
        """Grade one exercise; a process that it ends is replaced when the next one needs it."""
        self._ready()
        try:
            self.row.outcomes[id], note = self._judge(id, self._ask("call", id, 2 * self.limits.exercise + GRACE))
        except (Lost, wire.WireError) as lost:
            self.row.outcomes[id], note = "lost", str(lost)
            self._close()
        self.graded.append(id)
        if note:
            self.row.notes[id] = note[:LONGEST]
        if self.child and self.row.outcomes[id] not in RIGHT:
            with contextlib.suppress(Lost):
                return self._stand_in(id)
            self._close()

    def _stand_in(self, id: str) -> None:
        """Let our solution stand for an answer that is judged."""
        exercise = self.course.keys[id].exercise
        if source := reference(exercise):
            self._ask("reference", id, name=exercise.solution.__name__, source=source)

    def _judge(self, id: str, message: dict) -> tuple[str, str]:
        """Turn what a process answered into outcome and note."""
        key = self.course.keys[id]
        if "calls" not in message:
            if not self.submission.cells.get(id):
                return "missing", "not in the notebook"
            return "error", str(message.get("error"))
        calls = wire.unpack(message["calls"], key.cases)
        if key.exercise.refuse and sum(elements(call.answer) for call in calls.calls) > LARGEST:
            return "failed", f"its answers have more than {LARGEST} entries"
        result = self._measured(key, key.judge(calls, self.limits.exercise))
        self.row.cards[id] = card(result, [])
        if result.misconception:
            self.row.misconceptions[id] = result.misconception
        if result.outcome in RIGHT and any(map(callable, key.cases[0])):
            self.row.flags[id] = TO_READ
        if result.outcome in RIGHT and alike(self.submission.answer(id), self.course.ours[id]) >= COPIED:
            self.row.flags[id] = AS_OURS
        return result.outcome, _say(result)

    def _measured(self, key: AnswerKey, result: Result) -> Result:
        """Judge the gradients and the way of an attempt whose answers are right; only its process can tell them."""
        seconds, exercise = 2 * self.limits.exercise + GRACE, key.exercise
        if result.outcome == "passed" and exercise.gradient:
            calls = self._ask("gradient", exercise.id, seconds).get("calls")
            result = key.judge_gradients(wire.unpack(calls, key.cases), result)
        if result.outcome == "passed" and exercise.way:
            said = self._ask("way", exercise.id, 2 * seconds).get("detours")
            if said and isinstance(said, list):
                result = replace(result, outcome="not as asked", detours=tuple(str(text)[:LONGEST] for text in said))
        return result

    def _ready(self) -> None:
        """Have a process in which the setup cells have run, and the exercises that are graded already.

        Raises:
            Lost: the time is over, or what has run before does not run again.
        """
        if self.child:
            return
        if self.until <= time.monotonic() or self.course.stopped:
            raise Lost(f"its {self.limits.notebook:g} s are over")
        self.child = Child(self.task, self.course.sandbox)
        if error := self._ask("setup").get("error"):
            self.row.notes[""] = f"setup: {error}"[:LONGEST]
        for id in self.graded:
            if self.row.outcomes[id] in RIGHT:
                self._ask("define", id)
            else:
                self._stand_in(id)


def _say(result: Result) -> str:
    """Turn a result into a note: the misconception, or what is wrong in the smallest failing case."""
    if result.outcome in ("passed", "not started"):
        return ""
    if result.misconception or result.detours:
        return result.misconception or "; ".join(result.detours)
    lines = result.problem.lines if result.outcome == "error" else ()
    return lines[-1] if lines else result.problem.sentence
