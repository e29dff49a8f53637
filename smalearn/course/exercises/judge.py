"""Judge an attempt: run it on every case, compare with the oracle, recognise known wrong answers."""

import copy
import inspect
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from smalearn.course.exercises.compare import (
    Difference,
    alike,
    difference,
    distance,
    elements,
    freeze,
    kind,
    sentence_case,
)
from smalearn.course.exercises.core import Exercise
from smalearn.course.exercises.explain import Asked, explain, with_leading_axes
from smalearn.course.exercises.gradients import as_trained, gradient_of, gradient_problem
from smalearn.course.exercises.run import Call, Run, run
from smalearn.course.exercises.way import LENGTHS, measure

LIMIT = 10.0  # seconds that an attempt may take for all its cases
NEAR = 1e-5  # relative error up to which two wrong answers are the same


@dataclass(frozen=True)
class Result:
    """Outcome of a check."""

    exercise: Exercise
    outcome: str  # "passed", "not as asked" (all answers are right), "failed", "not started", "error" or "timeout"
    seed: int  # of the random data
    cases: int  # how many there are
    passed: int = 0  # how many are right
    printed: tuple[str, ...] = ()  # lines
    problem: Difference | None = None  # what is wrong with the attempt as a whole, or in the smallest failing case
    case: int | None = None  # the number of that case, from 1; then what it is about
    smallest: bool = True  # of all that fail: not where the reason is of another
    arguments: dict[str, object] = field(default_factory=dict)
    expected: object = None
    got: object = None
    misconception: str | None = None  # of the known wrong answer that is the attempt's in every case
    sign: str | None = None  # what is true of it beside, where there is no misconception
    detours: tuple[str, ...] = ()  # what in the way to right answers is not as asked


def evaluate(exercise: Exercise, attempt: object, seed: int = 0, limit: float = LIMIT) -> Result:
    """Run an attempt on all cases of an exercise and say what is wrong with it; shows nothing.

    Whatever the attempt does, nothing is raised but the learner's own KeyboardInterrupt. All cases, of random data with
    the `seed`, have `limit` seconds together.
    """
    key = AnswerKey(exercise, seed)
    unusable = _unusable(exercise, attempt, key.cases)
    if unusable:
        return Result(exercise, "error", seed, len(key.cases), problem=Difference(unusable))
    result = key.judge(run(attempt, key.cases, seed, limit), limit, attempt)
    if result.outcome == "passed" and exercise.gradient:
        gradient = gradient_of(attempt, exercise.places)
        result = key.judge_gradients(run(gradient, as_trained(key.cases), seed, limit), result)
    if result.outcome == "passed" and exercise.kind != "predict":
        measured = measure(exercise.way, attempt, exercise.names, key.lengths, exercise.welcome)
        result = key.judge_way(*measured, result)
    return result


@dataclass(frozen=True)
class AnswerKey:
    """Key that attempts are compared with: the cases of an exercise, the right answers, and the known wrong ones.

    It calls no attempt: one that was run elsewhere, in another process, is judged by what came back.
    """

    exercise: Exercise
    seed: int = 0

    @cached_property
    def cases(self) -> list[tuple]:
        """The argument tuples of the exercise."""
        return self.exercise.draw(self.seed)

    @cached_property
    def targets(self) -> list:
        """The oracle's answer in each case; None where there is none."""
        oracle = self.exercise.oracle or (lambda *arguments: None)
        return [freeze(oracle(*copy.deepcopy(case))) for case in self.cases]

    @cached_property
    def lengths(self) -> list[tuple]:
        """The arguments at which the way is measured, longer than those of the cases."""
        return self.exercise.lengths(self.seed)

    @cached_property
    def long_targets(self) -> list:
        """The solution's answers at those lengths, for which many an oracle is too slow."""
        return [freeze(self.exercise.solution(*copy.deepcopy(case))) for case in self.lengths]

    @cached_property
    def known(self) -> dict[str, list[Call]]:
        """What each known wrong answer gives, by its sentence."""
        wrong = self.exercise.wrong
        return {sentence: run(function, self.cases, self.seed, LIMIT).calls for sentence, function in wrong.items()}

    def judge(self, answers: Run, limit: float = LIMIT, attempt: Callable | None = None) -> Result:
        """Judge an attempt by its calls, fewer than the cases where time, `limit`, ran out; call it again to explain.

        Without the attempt, which may have run elsewhere, only its answers explain what is wrong.
        """
        exercise, cases = self.exercise, self.cases
        if answers.calls and all(call.stub for call in answers.calls):
            return Result(exercise, "not started", self.seed, len(cases), printed=answers.printed)
        verdicts = self.verdicts(answers.calls)
        result = Result(exercise, "passed", self.seed, len(cases), verdicts.count(None), answers.printed)
        if result.passed == result.cases:
            return result
        if len(answers.calls) < len(cases):
            outcome, worst = "timeout", len(answers.calls)
            verdicts.append(Difference(f"Stopped after {limit:g} s: is there a loop that never ends?"))
        else:
            worst = min((i for i, verdict in enumerate(verdicts) if verdict), key=lambda i: elements(cases[i]))
            outcome = "error" if answers.calls[worst].error else "failed"
        misconception = self.recognise(answers.calls)
        if exercise.kind == "predict":
            problem = verdicts[worst]
            if misconception and problem.in_form:  # one reason is enough
                problem = replace(problem, sentence=problem.sentence.partition(": ")[0])
            return replace(result, outcome=outcome, problem=problem, misconception=misconception)
        asked = Asked(exercise, cases, self.targets, answers.calls, verdicts, worst, attempt)
        found = None if misconception else explain(asked)
        shown = asked.shown  # the case of which that is said
        return replace(
            result,
            outcome=outcome,
            problem=verdicts[shown],
            case=shown + 1,
            smallest=shown == worst,
            arguments=exercise.bind(cases[shown]),
            expected=self.targets[shown],
            got=answers.calls[shown].answer if shown < len(answers.calls) else None,
            misconception=misconception,
            sign=found,
        )

    def judge_gradients(self, answers: Run, result: Result) -> Result:
        """Judge the gradients of an attempt whose values are right; return `result` if they are right too."""
        gradient = gradient_of(self.exercise.oracle, self.exercise.places)
        late = Call(error=("it is not there in time",))
        trained = as_trained(self.cases)
        for number, (call, case) in enumerate(itertools.zip_longest(answers.calls, trained, fillvalue=late), start=1):
            target = freeze(gradient(*copy.deepcopy(case)))
            if problem := gradient_problem(self.exercise.gradient, call, target, self.exercise.tolerance):
                arguments = self.exercise.bind(case)
                place = number if number <= len(self.cases) else None  # None: a case of the gradient alone
                return replace(
                    result, outcome="failed", passed=number - 1, problem=problem, case=place, arguments=arguments
                )
        return result

    def judge_way(self, calls: list[Call], detours: Sequence[str], result: Result) -> Result:
        """Judge what a right attempt answers at longer lengths, and its detours; return `result` if all is well."""
        for call, case, target, length in zip(calls, self.lengths, self.long_targets, LENGTHS, strict=False):
            if problem := _verdict(self.exercise, call, case, target):
                small = f"All {result.cases} cases are right, but not one with {self.exercise.way.axis} = {length}"
                problem = replace(problem, sentence=f"{small}: {problem.sentence[0].lower()}{problem.sentence[1:]}")
                outcome, arguments = "error" if call.error else "failed", self.exercise.bind(case)
                return replace(
                    result, outcome=outcome, problem=problem, arguments=arguments, expected=target, got=call.answer
                )
        return replace(result, outcome="not as asked", detours=tuple(detours)) if detours else result

    def verdicts(self, calls: list[Call]) -> list[Difference | None]:
        """Describe what is wrong with each call; None where it is right."""
        return [_verdict(self.exercise, *trio) for trio in zip(calls, self.cases, self.targets, strict=False)]

    def recognise(self, calls: list[Call]) -> str | None:
        """Find the known wrong answer that the attempt gives in every case.

        To agree where it is wrong would be too little: two wrong answers often meet in one small case. But who counts
        axes from the front is wrong in all cases with leading axes, whatever else is wrong: then the others decide.
        """
        wrong, leading = [k for k, verdict in enumerate(self.verdicts(calls)) if verdict], with_leading_axes(self.cases)
        ways, others = [range(len(calls))], [k for k in range(len(calls)) if k not in leading]
        if set(leading) < set(wrong) and any(k in wrong and not calls[k].modified for k in others):
            ways.append(others)
        for numbers in ways:
            for sentence, known in self.known.items():
                trios = ((calls[k], known[k], self.targets[k]) for k in numbers)
                if len(known) == len(calls) and all(_agree(*trio, self.exercise.tolerance) for trio in trios):
                    return sentence
        return None


def _unusable(exercise: Exercise, attempt: object, cases: list[tuple]) -> str | None:
    """Say why the attempt cannot be called with the cases' arguments at all; None where it can."""
    name = exercise.solution.__name__
    if not callable(attempt):
        return f'check needs the function itself, got {kind(attempt)}: write check("{exercise.id}", {name})'
    try:
        signature = inspect.signature(attempt)
    except Exception:  # some built-in functions do not tell; other objects may do anything
        return None
    try:
        for case in cases:
            signature.bind(*case)
    except TypeError:
        expected, got = ", ".join(exercise.names), ", ".join(signature.parameters)
        return f"wrong parameters: expected {name}({expected}), got ({got})"
    return None


def _verdict(exercise: Exercise, call: Call, case: tuple, target: object) -> Difference | None:
    """Describe what is wrong with one call; None where it is right."""
    if call.error:
        return Difference("Your code raised an exception", lines=call.error)
    arguments = exercise.bind(case)
    names = [list(arguments)[index] for index in call.modified]
    changed = f"Your code changes its input {' and '.join(names)} in place" if names else ""
    if exercise.refuse:
        problem = _refused(exercise.refuse, call.answer, case)
    else:
        problem = difference(call.answer, target, exercise.tolerance)
    if problem and exercise.kind == "predict" and (problem.in_form or problem.answer in (math.inf, -math.inf)):
        # without the number that is asked for
        return Difference(_direction(exercise, call.answer, target), in_form=True)
    if problem:
        return replace(problem, lines=(changed,) if changed else ())
    return Difference(changed) if changed else None


def _refused(refuse: Callable[..., str], answer: object, case: tuple) -> Difference | None:
    """Say why an answer is not good; None where it is."""
    try:
        reason = refuse(copy.deepcopy(answer), *copy.deepcopy(case))
    except (Exception, SystemExit) as error:  # an answer may be anything
        return Difference(f"The answer has not the form that is asked for: {type(error).__name__}: {error}")
    return Difference(sentence_case(reason)) if reason else None


def _direction(exercise: Exercise, guess: object, target: object) -> str:
    if kind(target) != "a number":
        return "It is another"
    above = bool(guess > target)
    why = exercise.bound(above=above).rstrip(".")
    return f"That is too {'much' if above else 'little'}{why and ': '}{why[:1].lower()}{why[1:]}"


def _message(call: Call) -> str:
    """What an exception says; of a kernel that leaves an array, not which kernel it is, nor how far it goes."""
    return re.sub(r"^IndexError: .*(load|store) of \w+ at offset.*", r"\1 outside", "".join(call.error[-1:]))


def _agree(call: Call, known: Call, target: object, tolerance: float) -> bool:
    """Whether an attempt answers as a known wrong answer does: much closer to it than that is to the right answer."""
    if call.error or known.error:
        return _message(call) == _message(known)
    return alike(call.answer, known.answer, max(tolerance, min(NEAR, distance(known.answer, target) / 100)))
