"""Judge an attempt: run it on every case, compare with the oracle, recognise known wrong answers."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

from smalearn.exercises.compare import KINDS, Difference, difference, elements, freeze, kind, same
from smalearn.exercises.core import Exercise, Mutant
from smalearn.exercises.run import Call, run

__all__ = ["Result", "evaluate", "verify"]

LIMIT = 10.0  # seconds that an attempt may take for all its cases


@dataclass(frozen=True)
class Result:
    """What came of a check.

    Args:
        exercise: what was attempted.
        outcome: "passed", "failed", "not started", "error" or "timeout".
        seed: of the random data.
        cases: how many there are.
        passed: how many are right.
        printed: the lines that the learner's code printed.
        problem: what is wrong with the attempt as a whole, or in the smallest failing case.
        case: number of that case, from 1.
        arguments: its arguments by name.
        misconception: the mutant that answers as the attempt does in every case, those where both are right included.
    """

    exercise: Exercise
    outcome: str
    seed: int
    cases: int
    passed: int = 0
    printed: tuple[str, ...] = ()
    problem: Difference | None = None
    case: int | None = None
    arguments: dict[str, object] = field(default_factory=dict)
    misconception: Mutant | None = None


def evaluate(exercise: Exercise, attempt: object, seed: int = 0, limit: float = LIMIT) -> Result:
    """Run an attempt on all cases of an exercise and say what is wrong with it; shows nothing.

    Args:
        exercise: what is attempted.
        attempt: the learner's function; whatever it does, nothing is raised.
        seed: of the cases' random data.
        limit: seconds for all cases together.

    Returns:
        The outcome, and for the smallest failing case why it fails.

    Raises:
        KeyboardInterrupt: the learner stopped the check.
    """
    cases = exercise.draw(seed)
    unusable = _unusable(exercise, attempt, cases)
    if unusable:
        return Result(exercise, "error", seed, len(cases), problem=Difference(unusable))
    targets = _targets(exercise, cases)
    ran = run(attempt, cases, seed, limit)
    if ran.calls and all(call.stub for call in ran.calls):
        return Result(exercise, "not started", seed, len(cases), printed=ran.printed)
    verdicts = [_verdict(exercise, *trio) for trio in zip(ran.calls, cases, targets, strict=False)]
    result = Result(exercise, "passed", seed, len(cases), verdicts.count(None), ran.printed)
    if result.passed == result.cases:
        return result
    if len(ran.calls) < len(cases):
        outcome, worst = "timeout", len(ran.calls)
        verdicts.append(Difference(f"Stopped after {limit:g} s: is there a loop that never ends?"))
    else:
        worst = min((i for i, verdict in enumerate(verdicts) if verdict), key=lambda i: elements(cases[i]))
        outcome = "error" if ran.calls[worst].error else "failed"
    return replace(
        result,
        outcome=outcome,
        problem=verdicts[worst],
        case=worst + 1,
        arguments=exercise.bind(cases[worst]),
        misconception=_recognise(exercise, ran.calls, _known(exercise, cases, seed)) if outcome == "failed" else None,
    )


def _targets(exercise: Exercise, cases: list[tuple]) -> list:
    return [freeze(exercise.oracle(*copy.deepcopy(case))) for case in cases]


def _parameters(function: Callable) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"


def _unusable(exercise: Exercise, attempt: object, cases: list[tuple]) -> str | None:
    """Why the attempt cannot be called with the cases' arguments at all."""
    name = exercise.solution.__name__
    if not callable(attempt):
        return f'check needs the function itself, got {kind(attempt)}: write check("{exercise.id}", {name})'
    try:
        signature = inspect.signature(attempt)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return None
    try:
        for case in cases:
            signature.bind(*case)
    except TypeError:
        expected, got = _parameters(exercise.solution), _parameters(attempt)
        return f"wrong parameters: expected {name}{expected}, got {got}"
    return None


def _verdict(exercise: Exercise, call: Call, case: tuple, target: object) -> Difference | None:
    """What is wrong with one call; None where it is right."""
    if call.error:
        return Difference("Your code raised an exception", lines=call.error)
    given = exercise.bind(case)
    names = [list(given)[index] for index in call.modified]
    changed = f"Your code changes its input {' and '.join(names)} in place: work on a copy" if names else ""
    found = difference(call.answer, target, exercise.tolerance)
    if found and found.dtype:
        like = (f"{n}.dtype" for n, v in given.items() if isinstance(v, torch.Tensor) and v.dtype == found.dtype)
        remedy = f"make your tensors with `dtype={next(like, found.dtype)}`"
        found = replace(found, sentence=f"{found.sentence}: {remedy}")
    if found:
        return replace(found, lines=(changed,) if changed else ())
    return Difference(changed) if changed else None


def _known(exercise: Exercise, cases: list[tuple], seed: int) -> Iterator[list[Call]]:
    """What each mutant answers."""
    return (run(mutant.function, cases, seed, LIMIT).calls for mutant in exercise.mutants)


def _recognise(exercise: Exercise, calls: list[Call], known: Iterable[list[Call]]) -> Mutant | None:
    """The mutant that answers as the attempt does in every case; none where the attempt raised.

    To agree where the mutant is wrong would be too little: two wrong answers often meet in one small case.
    """
    if any(call.error for call in calls):
        return None
    for mutant, wrong in zip(exercise.mutants, known, strict=True):
        pairs = zip(calls, wrong, strict=False)
        if len(wrong) == len(calls) and all(_agree(call, other, exercise.tolerance) for call, other in pairs):
            return mutant
    return None


def _agree(call: Call, known: Call, tolerance: float) -> bool:
    return not known.error and difference(call.answer, known.answer, tolerance) is None


def verify(exercise: Exercise, seeds: Iterable[int] = (0, 1, 2)) -> list[str]:
    """What is wrong with an exercise itself, for its author; an empty list where all is well.

    The cases are reproducible and begin with the smallest; the oracle's answers can be compared; the solution passes;
    an empty stub is not started; every mutant is finite, has the right form, is right at least once, and is recognised.

    Example:
        >>> from smalearn.exercises import registry, verify
        >>> assert verify(registry()["0.1"]) == []
    """
    problems = [f"seed {seed}: {problem}" for seed in seeds for problem in _problems(exercise, seed)]
    try:
        inspect.getsource(exercise.solution)
    except (OSError, TypeError):
        problems.append("the solution's source cannot be read: write it in a file or a cell")
    return problems


def _problems(exercise: Exercise, seed: int) -> Iterator[str]:
    def stub(*arguments):
        raise NotImplementedError

    cases = exercise.draw(seed)
    if not same(cases, exercise.draw(seed)):
        yield "the cases differ from one drawing to the next: draw from the given generator alone"
    if elements(cases[0]) > min(map(elements, cases)):
        yield "the first case is not the smallest"
    targets = _targets(exercise, cases)
    if not all(map(_comparable, targets)):
        yield "the oracle must return tensors, numbers, bools, strings or tuples of these, and no NaN"
    result = evaluate(exercise, exercise.solution, seed)
    if result.outcome != "passed":
        yield f"the solution has the outcome {result.outcome!r}: {result.problem and result.problem.sentence}"
    if evaluate(exercise, stub, seed).outcome != "not started":
        yield "an empty stub is not 'not started'"
    known = list(_known(exercise, cases, seed))
    for mutant, calls in zip(exercise.mutants, known, strict=True):
        verdicts = [_verdict(exercise, *trio) for trio in zip(calls, cases, targets, strict=False)]
        recognised = _recognise(exercise, calls, known)
        for problem in _mutant_problems(mutant, verdicts, recognised, len(cases)):
            yield f"mutant {mutant.name!r} {problem}"


def _mutant_problems(
    mutant: Mutant, verdicts: list[Difference | None], recognised: Mutant | None, cases: int
) -> Iterator[str]:
    for number, verdict in enumerate(verdicts, start=1):
        if verdict and not verdict.in_form:
            yield f"in case {number}: {' '.join([verdict.sentence, *verdict.lines])}"
    if len(verdicts) < cases:
        yield "does not return in time"
    elif None not in verdicts:
        yield "is right on no case"
    elif verdicts.count(None) == cases:
        yield "is right on every case"
    elif recognised is not mutant:
        yield f"is taken for {recognised.name!r}" if recognised else "is not recognised"


def _comparable(target: object) -> bool:
    """Whether `difference` knows what to do with a target."""
    if isinstance(target, tuple | list):
        return all(map(_comparable, target))
    if isinstance(target, torch.Tensor):
        return not target.isnan().any()
    return kind(target) in KINDS and target == target
