"""The class of exercises, and the registry of the course's own."""

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Exercise", "Mutant", "find", "register", "registry"]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _holds(value: object, kind: type, minimum: int) -> bool:
    return isinstance(value, tuple) and len(value) >= minimum and all(isinstance(item, kind) for item in value)


def _validate(owner: str, rules: Iterable[tuple[bool, str]]) -> None:
    """Raise the message of the first rule that does not hold."""
    for holds, message in rules:
        if not holds:
            raise ValueError(f"{owner}: {message}")


@dataclass(frozen=True)
class Mutant:
    """Known wrong answer: a learner who gives it is told which misconception it comes from.

    Args:
        name: a few words, "no mask".
        function: the wrong solution; finite, of the right shape, and right on at least one case.
        message: the misconception, "the causal mask is missing: this is the unmasked product Q(KᵀV)".

    Raises:
        ValueError: naming the field, expected and got.
    """

    name: str
    function: Callable
    message: str

    def __post_init__(self):
        rules = [
            (_is_text(self.name), f"name must be a non-empty string, got {self.name!r}"),
            (callable(self.function), f"function must be callable, got {type(self.function).__name__}"),
            (_is_text(self.message), f"message must be a non-empty string, got {self.message!r}"),
        ]
        _validate(f"Mutant {self.name!r}", rules)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """Exercise: what to write, how it is judged, and what helps.

    Args:
        id: chapter and number, "1.2".
        title: a few words.
        statement: what to write, one or two sentences.
        oracle: the answer in the slowest obvious form. An answer is a tensor, a number, a bool, a string, or a tuple of
            these.
        cases: takes a `torch.Generator` and yields at least three tuples of arguments, the smallest first. Arguments
            are tensors, numbers, strings, containers of these, or objects that hold tensors (masks).
        solution: the answer as the learner should write it; its signature is the one that the stub has.
        hints: at least two, from a nudge to nearly the answer.
        mutants: at least three known wrong answers.
        claim: id of the claim that the exercise practises, "000:eq10".
        difficulty: 1, 2 or 3.
        minutes: how long a learner takes.
        lines: about how long the answer is.
        tolerance: largest relative RMS error of a right answer (absolute where the target is zero).

    Raises:
        ValueError: naming the field, expected and got.

    Example:
        >>> def total(x):
        ...     return x.sum(-1)
        >>> def cases(generator):
        ...     for shape in [(1, 1), (2, 3), (4, 4)]:
        ...         yield (torch.randn(shape, generator=generator, dtype=torch.float64),)
        >>> quiz = Exercise(
        ...     id="quiz.1",
        ...     title="Row sums",
        ...     statement="Return the sum of each row of x.",
        ...     oracle=lambda x: torch.stack([sum(row) for row in x]),
        ...     cases=cases,
        ...     solution=total,
        ...     hints=("Which axis goes away?", "`x.sum(-1)`"),
        ...     mutants=(
        ...         Mutant("mean", lambda x: x.mean(-1), "this is the mean of each row, not its sum"),
        ...         Mutant("first entry", lambda x: x[:, 0], "this is the first entry of each row"),
        ...         Mutant("absolute", lambda x: x.abs().sum(-1) * x[:, 0].sign(), "the entries keep their signs"),
        ...     ),
        ...     claim="000:normaliser",
        ...     difficulty=1,
        ...     minutes=2,
        ...     lines=1,
        ... )
        >>> quiz.label
        '●○○ · 2 min · about 1 line · claim 000:normaliser'
    """

    id: str
    title: str
    statement: str
    oracle: Callable
    cases: Callable[[torch.Generator], Iterable[tuple]]
    solution: Callable
    hints: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    claim: str
    difficulty: int
    minutes: int
    lines: int
    tolerance: float = 1e-9

    def __post_init__(self):
        words = {name: getattr(self, name) for name in ("title", "statement", "claim")}
        functions = {name: getattr(self, name) for name in ("oracle", "cases")}
        is_def = inspect.isfunction(self.solution) and self.solution.__name__ != "<lambda>"
        counts = {name: getattr(self, name) for name in ("minutes", "lines")}
        is_id = isinstance(self.id, str) and re.fullmatch(r"\w+(\.\w+)*", self.id)
        hints, mutants = self.hints, self.mutants
        rules = [
            (bool(is_id), "id must be letters and digits joined by dots, such as '1.2'"),
            *((_is_text(text), f"{name} must be a non-empty string, got {text!r}") for name, text in words.items()),
            *((callable(f), f"{name} must be callable, got {type(f).__name__}") for name, f in functions.items()),
            (is_def, f"solution must be a function written with `def`, got {self.solution!r}"),
            (_holds(hints, str, 2), f"hints must be a tuple of at least 2 strings, got {hints!r}"),
            (_holds(mutants, Mutant, 3), f"mutants must be a tuple of at least 3 Mutants, got {mutants!r}"),
            *((_is_count(n), f"{name} must be a positive integer, got {n!r}") for name, n in counts.items()),
            (self.difficulty in (1, 2, 3), f"difficulty must be 1, 2 or 3, got {self.difficulty!r}"),
            (0 < self.tolerance < 1, f"tolerance must lie between 0 and 1, got {self.tolerance!r}"),
        ]
        _validate(f"Exercise {self.id!r}", rules)
        for field in ("name", "message"):
            distinct = {getattr(mutant, field) for mutant in self.mutants}
            if len(distinct) < len(self.mutants):
                raise ValueError(f"Exercise {self.id!r}: two mutants have the same {field}")

    @property
    def label(self) -> str:
        """Difficulty, time, length and claim: "●○○ · 5 min · about 4 lines · claim 000:eq10"."""
        dots = "●" * self.difficulty + "○" * (3 - self.difficulty)
        plural = "" if self.lines == 1 else "s"
        return f"{dots} · {self.minutes} min · about {self.lines} line{plural} · claim {self.claim}"

    def draw(self, seed: int = 0) -> list[tuple]:
        """Draw the argument tuples of every case, the same on every machine for the same seed.

        Raises:
            ValueError: fewer than three cases, or a case that is not a tuple.
        """
        cases = list(self.cases(torch.Generator().manual_seed(seed)))
        if len(cases) < 3 or not all(isinstance(case, tuple) for case in cases):
            got = [type(case).__name__ for case in cases]
            raise ValueError(f"Exercise {self.id!r}: cases must yield at least 3 tuples of arguments, got {got}")
        return cases

    def bind(self, arguments: tuple) -> dict[str, object]:
        """Name a case's arguments as the solution does."""
        return inspect.signature(self.solution).bind(*arguments).arguments


_registry: dict[str, Exercise] = {}


def register(exercise: Exercise) -> Exercise:
    """Add an exercise to the registry; one with the same id and title (its cell is run twice) replaces the first.

    Raises:
        ValueError: the id belongs to an exercise with another title.
    """
    registered = _registry.get(exercise.id, exercise)
    if registered.title != exercise.title:  # not `registered != exercise`: a cell that is run again makes new functions
        raise ValueError(f"register: id {exercise.id!r} of {exercise.title!r} is taken by {registered.title!r}")
    _registry[exercise.id] = exercise
    return exercise


def registry() -> dict[str, Exercise]:
    """Return all exercises by id, in the order of the chapters; imports the modules `ch07_…`, `chA_…` on first use."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if re.match(r"ch(\d\d|[A-Z])", module.name):
            importlib.import_module(f"{__package__}.{module.name}")
    return {id: _registry[id] for id in sorted(_registry, key=_in_order)}


def _in_order(id: str) -> list[tuple[bool, int, str]]:
    """Sort key that puts "2.10" after "2.9", and words after numbers."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in id.split(".")]


def find(function: str, exercise: "str | Exercise") -> Exercise:
    """Return the exercise of an id, or the exercise itself.

    Raises:
        ValueError: an unknown id, with the known ids near it; neither a string nor an Exercise.
    """
    if isinstance(exercise, Exercise):
        return exercise
    if not isinstance(exercise, str):
        got = type(exercise).__name__
        raise ValueError(f"{function}: exercise must be an id such as '1.2' or an Exercise, got {got}")
    exercises = registry()
    if exercise not in exercises:
        nearest = ", ".join(difflib.get_close_matches(exercise, exercises, n=4, cutoff=0))
        raise ValueError(f"{function}: exercise {exercise!r} is unknown; the nearest ids are {nearest}")
    return exercises[exercise]
