"""Exercises that check themselves: `attempt = check("1.1", attempt)`, `hint("1.1")`, `solution("1.1")`.

Teachers write their own with the same object: `check(Exercise(...), attempt)` works without registering it, and
`verify(exercise)` lists what is wrong with an exercise before a learner meets it.
"""

from smalearn.course.exercises.commands import CheckFailed, check, hint, solution
from smalearn.course.exercises.core import Exercise, Mutant, register, registry
from smalearn.course.exercises.judge import AnswerKey, Result, evaluate, verify

__all__ = [
    "AnswerKey",
    "CheckFailed",
    "Exercise",
    "Mutant",
    "Result",
    "check",
    "evaluate",
    "hint",
    "register",
    "registry",
    "solution",
    "verify",
]
