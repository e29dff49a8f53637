"""Grade one submission: ask its process for answers, judge them here, and put the outcomes into its row."""

import contextlib
import pickle
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from smalearn.course.exercises import AnswerKey, Exercise, Result
from smalearn.course.exercises.card import card
from smalearn.course.exercises.compare import elements
from smalearn.course.exercises.gradients import as_trained
from smalearn.course.grading import wire
from smalearn.course.grading.alike import alike
from smalearn.course.grading.gradebook import CUT, Row
from smalearn.course.grading.needed import ORDERS
from smalearn.course.grading.process import GRACE, Child, Lost
from smalearn.course.grading.reference import reference
from smalearn.course.grading.sandbox import Sandbox
from smalearn.course.grading.submission import RIGHT, Submission

__all__ = ["Course", "Limits", "Stopped"]

LONGEST = 300  # characters of a note
LARGEST = 100_000  # entries of an answer that a program of ours is run on
TEXTS, TEXT = 20, 5_000  # that a process says beside its answers, and their characters
COPIED = 0.9  # of the passages of an answer are in our solution too
AS_OURS = "the same as our solution"
SHOWN = "✓ in the saved output, but"
TO_READ = "to be read: the submission itself called the judge"


@dataclass(frozen=True)
class Limits:
    """Limits of time and memory for one notebook."""

    exercise: float = 10.0  # seconds for the cells of an exercise, and again for its cases, as in `check`
    notebook: float = 120.0  # seconds for everything
    memory: int = 2 * 2**30  # bytes on top of what Python and torch take; enforced on Linux


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """Error: grading was stopped from outside."""


class Course:
    """What the graders of all notebooks share: inputs, targets, and where and how long a submission runs."""

    def __init__(self, exercises: Mapping[str, Exercise], box: Sandbox, limits: Limits, seed: int):
        self.keys = {id: AnswerKey(exercise, seed) for id, exercise in exercises.items()}
        self.parts = {id: _part(key) for id, key in self.keys.items()}
        for key in self.keys.values():
            _prepare(key)
        self.ours = {id: _code(exercise) for id, exercise in exercises.items()}
        self.sandbox, self.limits, self.seed, self.stopped = box, limits, seed, False

    def grade(self, submission: Submission) -> Row:
        """Grade a notebook, in a process of its own."""
        return _Grader(submission, self).grade()


def _prepare(key: AnswerKey) -> None:
    """Compute the targets and the known wrong answers: once, and not in the threads, which only compare."""
    try:
        _ = key.targets, key.known, key.long_targets
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
    way = exercise.way and replace(exercise.way, case=None)
    way = wire.coded((way, exercise.names, exercise.lengths(key.seed), exercise.welcome))
    part = {"name": exercise.solution.__name__, "cases": cases, "seed": key.seed}
    return part | {"gradient": exercise.places, "way": way}


class _Judged(NamedTuple):
    """What came of an exercise, for the row; and if it is not right, what else went wrong before it was called."""

    outcome: str
    note: str
    card: str = ""
    misconception: str = ""
    flag: str = ""
    error: str = ""
    left: str = ""
    share: float = 0.0  # of the cases that are right, where it is wrong


class _Grader:
    """Grader of one notebook: its row, and the process that runs it, replaced where an exercise ends it."""

    def __init__(self, submission: Submission, course: Course):
        self.submission, self.course, self.limits = submission, course, course.limits
        self.row = Row(submission.student, submission.path, dict.fromkeys(course.keys, "not run"))
        self.row.digest, self.row.time, self.row.seed = submission.digest, submission.time, course.seed
        self.child, self.graded = None, {}  # exercise id -> the order in which its statements ran
        self.task = {"cells": submission.code, "exercises": course.parts, "limit": self.limits.exercise}
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
            self.row.notes[""] = f"{CUT}: {lost}"
        except Exception as error:  # ours, but no reason to leave the others without a grade
            self.row.notes[""] = f"{CUT}: the grader failed with {type(error).__name__}: {error}"
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
        """Grade one exercise, in other orders too where its saved output says ✓; a process that it ends is replaced."""
        first, orders = None, ORDERS if id in self.submission.right else ORDERS[:1]
        if not self.submission.cells.get(id):
            orders, self.graded[id] = (), ""
            self._enter(id, _Judged("missing", "not in the notebook"))
        for order in orders:
            self._ready()
            if (judged := self._tried(id, order)) is None:
                continue
            if first is None or judged.outcome in RIGHT:
                first, self.graded[id] = judged, order
            first = first._replace(left=first.left or judged.left)
            self._enter(id, first)
            if judged.outcome in (*RIGHT, "lost", "timeout"):
                break
        if self.child and self.row.outcomes[id] not in RIGHT:
            with contextlib.suppress(Lost):
                return self._stand_in(id)
            self._close()

    def _tried(self, id: str, order: str) -> "_Judged | None":
        """Run an exercise and judge it; None where another order has run the same statements."""
        try:
            message = self._ask("call", id, 2 * self.limits.exercise + GRACE, order=order)
            return None if message.get("same") else self._judge(id, message)
        except (Lost, wire.WireError) as lost:
            self._close()
            return _Judged("lost", str(lost))

    def _enter(self, id: str, judged: "_Judged") -> None:
        """Put what came of an exercise into the row."""
        self.row.outcomes[id], note = judged.outcome, judged.note
        if judged.outcome not in RIGHT and id in self.submission.right:
            note = f"{SHOWN} {_reason(judged)}"
            self.row.outcomes[id] = {"not started": "error"}.get(judged.outcome, judged.outcome)
        found = {"notes": note[:LONGEST], "cards": judged.card, "misconceptions": judged.misconception}
        for field, value in (found | {"flags": judged.flag, "shares": judged.share}).items():
            getattr(self.row, field).pop(id, None)
            if value:
                getattr(self.row, field)[id] = value

    def _stand_in(self, id: str) -> None:
        """Let our solution stand for an answer that is judged."""
        exercise = self.course.keys[id].exercise
        if source := reference(exercise):
            self._ask("reference", id, name=exercise.solution.__name__, source=source)

    def _judge(self, id: str, message: dict) -> "_Judged":
        """Turn what a process answered into outcome and note."""
        key, error = self.course.keys[id], str(message.get("error") or "")
        if "calls" not in message:
            return _Judged("error", error, left=", ".join(_texts(message, "left")))
        calls = wire.unpack(message["calls"], key.cases)
        if key.exercise.refuse and sum(elements(call.answer) for call in calls.calls) > LARGEST:
            return _Judged("failed", f"its answers have more than {LARGEST} entries")
        result, flag = self._measured(key, key.judge(calls, self.limits.exercise)), ""
        if result.outcome in RIGHT and any(map(callable, key.cases[0])):
            flag = TO_READ
        written = [self.submission.answer(id), *_texts(message, "helpers")]
        if result.outcome in RIGHT and any(alike(text, self.course.ours[id]) >= COPIED for text in written):
            flag = AS_OURS
        said = result.misconception or "", flag, error, ", ".join(_texts(message, "left"))
        share = result.passed / result.cases if result.outcome == "failed" else 0.0
        return _Judged(result.outcome, _say(result), card(result, []), *said, share)

    def _measured(self, key: AnswerKey, result: Result) -> Result:
        """Judge gradients, longer inputs and the way of a right attempt; only its process can tell them."""
        seconds, exercise = 2 * self.limits.exercise + GRACE, key.exercise
        if result.outcome == "passed" and exercise.gradient:
            calls = self._ask("gradient", exercise.id, seconds).get("calls")
            result = key.judge_gradients(wire.unpack(calls, as_trained(key.cases)), result)
        if result.outcome == "passed" and exercise.kind != "predict":
            reply = self._ask("way", exercise.id, 2 * seconds)
            said = reply["detours"] if isinstance(reply.get("detours"), list) else []
            calls = wire.unpack(reply.get("calls"), key.lengths).calls
            result = key.judge_way(calls, [str(text)[:LONGEST] for text in said], result)
        return result

    def _ready(self) -> None:
        """Have a process in which the setup cells have run, and the exercises that are graded already."""
        if self.child:
            return
        if self.until <= time.monotonic() or self.course.stopped:
            raise Lost(f"its {self.limits.notebook:g} s are over")
        self.child = Child(self.task, self.course.sandbox)
        if error := self._ask("setup").get("error"):
            self.row.notes[""] = f"setup: {error}"[:LONGEST]
        for id in self.graded:
            if self.row.outcomes[id] in RIGHT:
                self._ask("define", id, order=self.graded[id])
            else:
                self._stand_in(id)


def _texts(message: dict, name: str) -> list[str]:
    """Short list of texts in what a process said; empty where it is none."""
    said = message.get(name)
    return [str(text)[:TEXT] for text in said[:TEXTS]] if isinstance(said, list) else []


def _reason(judged: _Judged) -> str:
    """Why an answer is not right here that the notebook shows as right: what went wrong first, then the answer's."""
    why = [{"not started": "it is a stub", "timeout": "it took too long"}.get(judged.outcome, judged.note)]
    if judged.outcome == "error" and judged.error not in why[0]:
        why = [judged.error, *why]
    if judged.left:
        why.append(f"not run here: {judged.left}")
    return "; ".join(map(_plainly, why))


def _plainly(error: str) -> str:
    """Say an error that comes from where the notebook runs in plain words."""
    if found := re.search(r"\[Errno 2\] No such file or directory: ('[^']*')", error):
        return f"it needs a file that is not in the notebook: {found[1]}"
    return re.sub(r"^\w+Error: (?=it asks with input|shell commands do not run)", "", error)


def _say(result: Result) -> str:
    """Turn a result into a note: the misconception, or what is wrong in the smallest failing case."""
    if result.outcome in ("passed", "not started"):
        return ""
    if result.misconception or result.detours:
        return result.misconception or "; ".join(result.detours)
    lines = result.problem.lines if result.outcome == "error" else ()
    return lines[-1] if lines else result.problem.sentence
