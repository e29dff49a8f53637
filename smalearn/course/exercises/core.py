"""The class of exercises, and the registry of the course's own."""

import ast
import difflib
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import smalearn.course
from smalearn.course.exercises.edits import Edited
from smalearn.course.exercises.way import LENGTHS, Way, names_in
from smalearn.fast.jit import Kernel

HINT, INSIGHT, LESS, MORE = "Hint: ", "Insight: ", "Too little: ", "Too much: "
KINDS = ("write", "predict", "prove", "break", "open")


class Randn:
    """Draws for the cases of an exercise: `randn(T, N)` are standard normal numbers in float64, of `generator`."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        """Return a tensor of that shape."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """Exercise: what to write, how it is judged, and what helps. `exercise` makes one of a function.

    Args:
        id: chapter and number, "1.2".
        title: a few words.
        claim: id of the claim that it practises, "000:eq10".
        level: difficulty, 1, 2 or 3.
        minutes: how long a learner takes.
        cases: takes `randn`, a `Randn`, and yields at least three tuples of arguments, the smallest first. Arguments
            are tensors, numbers, strings, containers of these, or objects that hold tensors (masks).
        oracle: the answer in the slowest obvious form. An answer is a tensor, a number, a bool, a string, or a tuple of
            these.
        refuse: in place of an oracle, where more than one answer is good: takes the answer and a case's arguments and
            says in a sentence why it is not good, or returns "".
        solution: the answer as the learner should write it; its signature is the one that the stub has. Its docstring
            is the statement, followed by paragraphs "Hint: ...", at least two, from a nudge to half of the answer, and
            "Insight: ...", which is told with the ✓.
        wrong: at least three known wrong answers by the misconception that a learner who gives one is told: "the causal
            mask is missing". Each is a function, which may raise, or edits of the solution, "old → new ; old → new",
            which replace a text wherever it stands.
        kind: "write" a function; "predict" what a later cell will show, with a function that takes no arguments and
            returns a number or a word; "prove" a line, which is checked on random instances; "break" a program, by an
            input on which it fails; "open", for anything that reaches a goal. The last two have `refuse`.
        reached: for an open exercise, what a good answer has reached: takes the answer and a case's arguments and
            returns a few words, "96 multiply-adds".
        gradient: arguments by which the gradient of the answer, a tensor, must be right too.
        way: what is asked of the way to the answer, measured once all answers are right, at two lengths, at which the
            answers must be the solution's too; None for nothing.
        tolerance: largest relative RMS error of a right answer (absolute where the target is zero). Below 1e-13
            what should be 0 must be 0.

    Raises:
        ValueError: naming the field, expected and got.
    """

    id: str
    title: str
    claim: str
    level: int
    minutes: int
    solution: Callable
    wrong: Mapping[str, Callable | str]
    cases: Callable[[Randn], Iterable[tuple]] = lambda randn: [()]
    oracle: Callable | None = None
    refuse: Callable[..., str] | None = None
    kind: str = "write"
    reached: Callable[..., str] | None = None
    gradient: tuple[str, ...] = ()
    way: Way | None = None
    tolerance: float = 1e-9

    def __post_init__(self):
        words = {name: getattr(self, name) for name in ("title", "claim")}
        functions = {name: getattr(self, name) for name in ("refuse" if self.refuse else "oracle", "cases")}
        is_def = inspect.isfunction(self.solution) and self.solution.__name__ != "<lambda>"
        is_id = isinstance(self.id, str) and re.fullmatch(r"\w+(\.\w+)*", self.id)
        minutes, wrong = self.minutes, self.wrong
        least = 2 if self.kind == "predict" else 3  # of three words to choose from two are wrong
        is_count = isinstance(minutes, int) and not isinstance(minutes, bool) and minutes >= 1
        rules = [
            (bool(is_id), "id must be letters and digits joined by dots, such as '1.2'"),
            *((_is_text(text), f"{name} must be a non-empty string, got {text!r}") for name, text in words.items()),
            *((callable(f), f"{name} must be callable, got {type(f).__name__}") for name, f in functions.items()),
            (is_def, f"solution must be a function written with `def`, got {self.solution!r}"),
            (is_def and len(self.hints) >= 2, "the solution's docstring must have at least 2 paragraphs 'Hint: ...'"),
            (is_def and _is_text(self.statement), "the solution's docstring must say what to write"),
            (
                isinstance(wrong, Mapping) and len(wrong) >= least,
                f"wrong must have at least {least} answers, got {wrong!r}",
            ),
            (self.kind in KINDS, f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}"),
            (not (self.refuse and self.oracle), "there must be oracle or refuse, not both"),
            (self.refuse or self.kind not in ("break", "open"), f"one of the kind {self.kind!r} needs refuse"),
            (is_count, f"minutes must be a positive integer, got {minutes!r}"),
            (self.level in (1, 2, 3), f"level must be 1, 2 or 3, got {self.level!r}"),
            (0 < self.tolerance < 1, f"tolerance must lie between 0 and 1, got {self.tolerance!r}"),
        ]
        for holds, message in rules:
            if not holds:
                raise ValueError(f"Exercise {self.id!r}: {message}")
        held = dict(wrong)
        for sentence, answer in wrong.items():
            if not (_is_text(sentence) and (callable(answer) or _is_text(answer))):
                got = f"{sentence!r}: {type(answer).__name__}"
                raise ValueError(f"Exercise {self.id!r}: wrong must map sentences to functions or edits, got {got}")
            if _is_text(answer):
                held[sentence] = Edited(self.solution, self.kernels, answer)
        object.__setattr__(self, "wrong", held)

    @property
    def statement(self) -> str:
        """What to write: the paragraphs of the solution's docstring that begin with no such word as "Hint: "."""
        return "\n\n".join(text for text in self._paragraphs if not text.startswith((HINT, INSIGHT, LESS, MORE)))

    @property
    def hints(self) -> list[str]:
        """The hints, each in one line."""
        return self._after(HINT)

    @property
    def insight(self) -> str:
        """What the answer is good for beyond itself, in one line; empty if there is no such paragraph."""
        return " ".join(self._after(INSIGHT))

    def bound(self, *, above: bool) -> str:
        """Why a predicted number that is too large, or too small, cannot be; empty if there is no such paragraph."""
        return " ".join(self._after(MORE if above else LESS))

    def _after(self, word):
        return [" ".join(text.split())[len(word) :] for text in self._paragraphs if text.startswith(word)]

    @property
    def _paragraphs(self) -> list[str]:
        return (inspect.getdoc(self.solution) or "").split("\n\n")

    @property
    def code(self) -> str:
        """Source of the solution as a learner would write it: its docstring is the statement."""
        source = textwrap.dedent(inspect.getsource(self.solution))
        function = ast.parse(source).body[0]
        lines, first = source.splitlines(), function.body[0]
        kept = [x for x in function.decorator_list if not (isinstance(x, ast.Call) and _name(x.func) == "exercise")]
        head = [f"@{ast.unparse(x)}" for x in kept] + lines[function.lineno - 1 : first.lineno - 1]
        quotes = 'r"""' if "\\" in self.statement else '"""'
        end = "\n" + quotes[-3:] if "\n" in self.statement else quotes[-3:]
        doc = textwrap.indent(f"{quotes}{self.statement}{end}", "    ", lambda line: line.strip()).splitlines()
        written = "\n".join([*head, *doc, *lines[first.end_lineno : function.end_lineno]])
        return "\n\n\n".join([*(_source(kernel) for kernel in self.kernels), written])

    @property
    def kernels(self) -> list[Kernel]:
        """The GPU kernels that the solution launches itself, which are half of what was written."""
        return _kernels(self.solution)

    @property
    def label(self) -> str:
        """Difficulty, time, and length or kind: "●○○ · 5 min · about 4 lines"."""
        dots = "●" * self.level + "○" * (3 - self.level)
        count = count_lines(self.solution)
        lines = f"about {count} line{'' if count == 1 else 's'}"
        return f"{dots} · {self.minutes} min · {lines if self.kind == 'write' else self.kind}"

    def draw(self, seed: int = 0) -> list[tuple]:
        """Draw the argument tuples of every case, the same on every machine for the same seed."""
        cases = list(self.cases(Randn(seed)))
        if len(cases) < (1 if self.kind == "predict" else 3) or not all(isinstance(case, tuple) for case in cases):
            got = [type(case).__name__ for case in cases]
            raise ValueError(f"Exercise {self.id!r}: cases must yield at least 3 tuples of arguments, got {got}")
        return cases

    @property
    def opener(self) -> bool:
        """Whether it is one of the closed-book questions that open a chapter, "6.a": they are worth no points."""
        return bool(re.fullmatch(r"(\d+|[A-Z])\.[a-z]", self.id))

    @property
    def names(self) -> list[str]:
        """Names of the arguments."""
        return list(inspect.signature(self.solution).parameters)

    @property
    def places(self) -> list[int]:
        """Places of the arguments by which the gradient must be right."""
        return [self.names.index(name) for name in self.gradient]

    def lengths(self, seed: int = 0) -> list[tuple]:
        """Draw the arguments of both lengths at which the way is measured."""
        return [self.way.case(Randn(seed), length) for length in LENGTHS] if self.way else []

    @property
    def welcome(self) -> set[str]:
        """Names that an answer may take from the library: of the statement, the solution, and other exercises."""
        own = {*re.findall(r"`(?:\w+\.)*(\w+)", self.statement), *names_in(self.solution.__code__)}
        exercises = {one.solution.__name__ for one in _registry.values()}  # the learner's by now, or what stands in
        return own | {f".{name}" for name in own} | (exercises - {self.solution.__name__})

    def bind(self, arguments: tuple) -> dict[str, object]:
        """Name a case's arguments as the solution does."""
        return inspect.signature(self.solution).bind(*arguments).arguments


def count_lines(function: Callable) -> int:
    """Count the lines of a function and the kernels that it launches, but for docstrings, comments and empty ones."""
    total = 0
    for source in map(_source, [*_kernels(function), function]):
        definition = ast.parse(source).body[0]
        first = definition.body[1 if ast.get_docstring(definition) and len(definition.body) > 1 else 0]
        written = source.splitlines()[first.lineno - 1 : definition.end_lineno]
        total += sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in written)
    return total


def _source(function: Callable) -> str:
    return textwrap.dedent(inspect.getsource(function)).rstrip()


def _kernels(function: Callable) -> list[Kernel]:
    code, space = function.__code__, function.__globals__
    return [space[name] for name in code.co_names if isinstance(space.get(name), Kernel)]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return ast.unparse(node).rpartition(".")[2]


def exercise(id: str, title: str, **fields: object) -> Callable[[Callable], Callable]:
    """Make the decorated function the solution of a new exercise, and register it; TEACHING.md shows one.

    The other fields are those of `Exercise`. The function stays as it is. A ValueError tells a field that is wrong, or
    an id that belongs to an exercise with another title.
    """

    def make(solution: Callable) -> Callable:
        register(Exercise(id=id, title=title, solution=solution, **fields))
        return solution

    return make


opener = functools.partial(exercise, kind="predict", level=1, minutes=2, tolerance=0.01)
"""Makes one of the three closed-book questions with which a chapter opens."""

_registry: dict[str, Exercise] = {}


def register(exercise: Exercise) -> Exercise:
    """Add an exercise to the registry; one with the same id and title (its cell is run twice) replaces the first."""
    registered = _registry.get(exercise.id, exercise)
    if registered.title != exercise.title:  # not `registered != exercise`: a cell that is run again makes new functions
        raise ValueError(f"register: id {exercise.id!r} of {exercise.title!r} is taken by {registered.title!r}")
    _registry[exercise.id] = exercise
    return exercise


@contextmanager
def borrowed() -> Iterator[None]:
    """Take out of the registry, when the `with` ends, what was added or replaced in it."""
    before = registry()
    try:
        yield
    finally:
        _registry.clear()
        _registry.update(before)


def registry() -> dict[str, Exercise]:
    """Return all exercises by id, in the order of the chapters; imports the folders `ch07`, `chA`, … on first use."""
    for chapter in pkgutil.iter_modules(smalearn.course.__path__):
        if of_a_chapter(f"smalearn.course.{chapter.name}"):
            folder = importlib.import_module(f"smalearn.course.{chapter.name}")
            for module in pkgutil.iter_modules(folder.__path__):
                importlib.import_module(f"{folder.__name__}.{module.name}")
    return {id: _registry[id] for id in sorted(_registry, key=_in_order)}


def of_a_chapter(module: str) -> bool:
    """Say whether a module, by its dotted name, is the folder of a chapter or in it."""
    return bool(re.match(r"smalearn\.course\.ch(\d\d|[A-Z])(\.|$)", module))


def _in_order(id: str) -> list[tuple[bool, int, str]]:
    """Sort key that puts "2.10" after "2.9", "2.a" before "2.1", and a chapter called by a word after the numbers."""
    return [
        (part.isdigit() == (place > 0), int(part) if part.isdigit() else 0, part)
        for place, part in enumerate(id.split("."))
    ]


def find(function: str, exercise: str | Exercise) -> Exercise:
    """Return the exercise of an id, or the exercise itself; an unknown id is a ValueError with the ids near it."""
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
