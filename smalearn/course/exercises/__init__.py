"""Exercises that check themselves: `attempt = check("1.1", attempt)`, `hint("1.1")`, `solution("1.1")`.

Teachers write their own with `exercise`; `verify(id)` lists what is wrong with one before a learner meets
it.
"""

from smalearn.course.exercises.author import verify
from smalearn.course.exercises.commands import CheckFailed, case, check, follow, hint, solution
from smalearn.course.exercises.core import Exercise, Randn, exercise, register, registry
from smalearn.course.exercises.judge import AnswerKey, Result, evaluate
from smalearn.course.exercises.way import Way

__all__ = [
    "AnswerKey",
    "CheckFailed",
    "Exercise",
    "Randn",
    "Result",
    "Way",
    "case",
    "check",
    "evaluate",
    "exercise",
    "follow",
    "hint",
    "register",
    "registry",
    "solution",
    "verify",
]
