"""A wrong attempt, and all that is known of it before anybody explains it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from smalearn.course.exercises.compare import CLOSE, Difference, alike, elements
from smalearn.course.exercises.core import Exercise
from smalearn.course.exercises.limit import Stopwatch
from smalearn.course.exercises.run import Call

__all__ = ["Asked"]

SECONDS = 4.0  # for all explainers together: nobody waits long for a reason


@dataclass
class Asked:
    """Wrong attempt with its calls, fewer than the cases where time ran out; `attempt` is None if it ran elsewhere."""

    exercise: Exercise
    cases: list[tuple]
    targets: list
    calls: list[Call]
    verdicts: list[Difference | None]
    shown: int  # index of the case that is shown: an explainer that speaks of another puts that here
    attempt: Callable | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)  # of all explainers together

    @property
    def late(self) -> bool:
        """Whether their time is over."""
        return self.stopwatch() > SECONDS

    @property
    def wrong(self) -> list[int]:
        """Indices of the cases that are wrong."""
        return [k for k, verdict in enumerate(self.verdicts) if verdict]

    @property
    def failing(self) -> list[tuple[int, tuple]]:
        """The wrong cases, the smallest first, each with its number from 1."""
        return sorted(((k + 1, self.cases[k]) for k in self.wrong), key=lambda pair: elements(pair[1]))

    @property
    def answers(self) -> list | None:
        """The attempt's answers; None where it raised, or was too slow, in some case."""
        complete = len(self.calls) == len(self.cases) and not any(call.error for call in self.calls)
        return [call.answer for call in self.calls] if complete else None

    @property
    def near(self) -> float:
        """Relative error up to which answers are the same."""
        return max(self.exercise.tolerance, CLOSE)

    def item(self, number: int) -> int | None:
        """Index of the first wrong item in a case, -1 of an answer without items; None where none is to be compared."""
        right, yours = self.targets[number], self.answers[number]
        if not isinstance(right, tuple | list):
            return -1
        if not isinstance(yours, tuple | list) or len(yours) != len(right):
            return None
        pairs = enumerate(zip(yours, right, strict=True))
        return next((k for k, pair in pairs if not alike(*pair, self.exercise.tolerance)), None)

    @property
    def in_form(self) -> bool:
        """Whether the answer that is shown is wrong by its values alone."""
        return self.verdicts[self.shown].in_form
