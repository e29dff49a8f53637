"""What is wrong with an exercise itself, for its author."""

import copy
import inspect
from collections.abc import Iterable, Iterator

import torch

from smalearn.course.exercises.compare import KINDS, difference, elements, freeze, kind, same
from smalearn.course.exercises.core import Exercise, find
from smalearn.course.exercises.edits import Edited
from smalearn.course.exercises.judge import AnswerKey, evaluate


def verify(exercise: str | Exercise, seeds: Iterable[int] = (0, 1, 2)) -> list[str]:
    """List what is wrong with an exercise itself, for its author; an empty list where all is well.

    The cases are reproducible and begin with the smallest; the oracle's answers can be compared; the solution passes;
    an empty stub is not started; every wrong answer is wrong, and recognised.

    Example:
        >>> from smalearn.course.exercises import verify
        >>> verify("0.1")
        []
    """
    exercise = find("verify", exercise)
    problems = [f"seed {seed}: {problem}" for seed in seeds for problem in _problems(exercise, seed)]
    try:
        inspect.getsource(exercise.solution)
    except (OSError, TypeError):
        problems.append("the solution's source cannot be read: write it in a file or a cell")
    return problems


def _problems(exercise: Exercise, seed: int) -> Iterator[str]:
    def stub(*arguments):
        raise NotImplementedError

    edits = [answer for answer in exercise.wrong.values() if isinstance(answer, Edited)]
    if missed := [str(error) for error in map(_cannot_be_made, edits) if error]:
        yield from missed
        return
    key = AnswerKey(exercise, seed)
    if not same(key.cases, exercise.draw(seed)):
        yield "the cases differ from one drawing to the next: draw from the given generator alone"
    if elements(key.cases[0]) > min(map(elements, key.cases)):
        yield "the first case is not the smallest"
    if not exercise.refuse and not all(map(_comparable, key.targets)):
        yield "the oracle must return tensors, numbers, bools, strings or tuples of these, and no NaN"
    slow = [freeze(exercise.oracle(*copy.deepcopy(case))) for case in key.lengths if exercise.oracle]
    if any(difference(*pair, exercise.tolerance) for pair in zip(key.long_targets, slow, strict=False)):
        yield "the solution is wrong at the lengths of the way"
    result = evaluate(exercise, exercise.solution, seed)
    if result.outcome != "passed":
        why = result.problem.sentence if result.problem else "; ".join(result.detours)
        yield f"the solution has the outcome {result.outcome!r}: {why}"
    if evaluate(exercise, stub, seed).outcome != "not started":
        yield "an empty stub is not 'not started'"
    for sentence, calls in key.known.items():
        verdicts = key.verdicts(calls)
        if len(verdicts) < len(key.cases):
            yield f"wrong answer {sentence!r} does not return in time"
        elif not any(verdicts):
            yield f"wrong answer {sentence!r} is right on every case"
        elif (recognised := key.recognise(calls)) != sentence:
            yield f"wrong answer {sentence!r} is taken for {recognised!r}"


def _cannot_be_made(edited: Edited) -> ValueError | None:
    """Say which text does not stand in the solution."""
    try:
        edited.function  # noqa: B018
    except ValueError as error:
        return error
    return None


def _comparable(target: object) -> bool:
    """Say whether `difference` knows what to do with a target."""
    if isinstance(target, tuple | list):
        return all(map(_comparable, target))
    if isinstance(target, torch.Tensor):
        return not target.isnan().any()
    return kind(target) in KINDS and target == target
