"""What is said of a wrong answer that no list knows: one list of explainers, in one order, under one budget of time.

Here are those of its form: another dtype or order, no leading axes, entries that nobody wrote.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode

from smalearn.course.exercises.compare import CLOSE, Difference, alike, elements
from smalearn.course.exercises.core import Exercise
from smalearn.course.exercises.limit import Stopwatch
from smalearn.course.exercises.rows import changed_rows
from smalearn.course.exercises.run import Call, answers
from smalearn.course.exercises.values import values
from smalearn.fast.lanes import running

SECONDS = 4.0  # for all explainers together: nobody waits long for a reason
EMPTY = (torch.empty, torch.empty_like, torch.Tensor.new_empty, torch.empty_strided)
UNSTORED = "there are entries in which nothing is stored: they hold what `torch.empty` gave, shown as nan"
UNMASKED = "what a mask leaves out of a load is anything, shown as nan, unless it is given: `other=0.0`"

LEADING = (
    "your code is right without leading axes and fails with them: count axes from the end, with `[..., None]`, `.mT`, "
    "or `dim=-1`"
)


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


def changed_in_place(asked: Asked) -> str | None:
    """Say how not to change an argument."""
    place = next((call.modified[0] for call in asked.calls if call.modified), None)
    if place is None:
        return None
    name, given = asked.exercise.names[place], asked.cases[0][place]
    copy = f"a copy, `{name}.clone()`" if isinstance(given, torch.Tensor) else "copies of what is in it"
    return f"{name} is the caller's: work on {copy}"


def other_dtype(asked: Asked) -> str | None:
    """Say where another dtype may come from where the values are right."""
    found = next((verdict.dtype for verdict in asked.verdicts if verdict and verdict.dtype), None)
    arguments = asked.exercise.bind(asked.cases[asked.shown])
    like = (f"{n}.dtype" for n, v in arguments.items() if isinstance(v, torch.Tensor) and v.dtype == found)
    lost = f"is there a `.float()`, or a tensor that you make without `dtype={next(like, found)}`?"
    return lost if found else None


def leading_axes(asked: Asked) -> str | None:
    """Say that just the cases with leading axes are wrong, at least one, and those without are right, at least two."""
    leading = with_leading_axes(asked.cases)
    only = leading and leading == asked.wrong and len(asked.cases) - len(leading) >= 2
    return LEADING if only else None


def other_order(asked: Asked) -> str | None:
    """Say that the items of a tuple are right and stand in another order, the same in every case."""
    targets, answers = asked.targets, asked.answers or [None]
    if not all(isinstance(x, tuple | list) and len(x) == len(targets[0]) for x in (*targets, *answers)):
        return None
    for order in list(itertools.permutations(range(len(targets[0]))))[1:]:  # the first is the order that is asked for
        pairs = list(zip(answers, targets, strict=True))
        if all(all(alike(a[k], b[place], asked.near) for k, place in enumerate(order)) for a, b in pairs):
            return (
                f"the items of your answer are right, but not their order: they are items {', '.join(map(str, order))}"
            )
    return None


class _Zeros(TorchFunctionMode):
    """Makes `torch.empty` give zeros."""

    def __torch_function__(self, function, types, arguments=(), words=None):
        made = function(*arguments, **(words or {}))
        return made.zero_() if function in EMPTY else made


def unwritten(asked: Asked) -> str | None:
    """Say where an attempt's NaNs come from: memory that nobody wrote, or masked loads of a GPU kernel."""
    if asked.in_form or not asked.attempt or asked.answers is None or all(map(_numbers, asked.answers)):
        return None
    for sentence, fills, mode in ((UNSTORED, True, _Zeros()), (UNMASKED, False, contextlib.nullcontext())):

        def program(*arguments, fills=fills, mode=mode):
            running.fills = fills
            try:
                with mode:
                    return asked.attempt(*arguments)
            finally:
                running.fills = True

        after = answers(program, asked.cases)
        if after and all(map(_numbers, after)):
            return sentence
    return None


def _numbers(answer):
    """Whether there is no NaN in an answer."""
    if isinstance(answer, tuple | list):
        return all(map(_numbers, answer))
    return not isinstance(answer, torch.Tensor) or not bool(answer.isnan().any())


def with_leading_axes(cases: Sequence[tuple]) -> list[int]:
    """The numbers of the cases whose tensors have more axes than those of the first."""
    axes = [sum(x.ndim for x in case if isinstance(x, torch.Tensor)) for case in cases]
    return [k for k, count in enumerate(axes) if count > axes[0]]


ORDER = (changed_in_place, other_dtype, leading_axes, unwritten, other_order, values, changed_rows)


def explain(asked: Asked) -> str | None:
    """Return the first sentence that holds of an attempt; None where nothing is known to be true."""
    if asked.exercise.refuse:  # which says itself why
        return None
    for look in ORDER:
        try:
            if said := look(asked):
                return said
        except Exception:  # an answer may be anything, 10**400 say: then nothing more is said of it
            continue
        if asked.late:
            return None
    return None
