"""The gradient of an attempt whose values are right: computed, compared, and where there is none, why."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from smalearn.course.exercises.compare import Difference, difference
from smalearn.course.exercises.run import MIXED, Call

NARROW = 1e-3  # relative error that a gradient in float32 may have
WHY = {  # what torch, or `gradient_of`, says → why there is no gradient
    "in-?place operation": "you change in place (`+=`, `y[t] = …`) a tensor that it still needs; make a new one",
    r"numpy\(\)": "NumPy knows no gradients, stay in torch",
    r"its answer is in torch\.(\w+)": r"your answer is in \1; is there a `.double()`, or a tensor without `dtype=`?",
    r"dtype|scalar type|\b(Float|Double)\b": MIXED,
}


def as_trained(cases: Sequence[tuple]) -> list[tuple]:
    """The cases in which gradients are compared: all, and the last one again in float32, as a model has it."""
    last = (x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in cases[-1])
    return [*cases, tuple(last)]


def gradient_of(function: Callable, places: Sequence[int]) -> Callable:
    """Make the function of a function's gradients at some places: of the sum of its entries, each with its weight."""

    def gradient(*arguments):
        held = [arguments[place].requires_grad_() for place in places]
        with torch.enable_grad():
            answer = function(*arguments)
            answer = torch.cat([x.flatten() for x in (answer if isinstance(answer, tuple) else (answer,))])
            if answer.dtype != held[0].dtype:
                raise TypeError(f"its answer is in {answer.dtype}")
            weights = torch.arange(1.0, answer.numel() + 1).sin()
            total = (answer * weights.to(answer)).sum()
            made = torch.autograd.grad(total, held, allow_unused=True) if total.requires_grad else [None] * len(held)
        return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(held, made, strict=True))

    gradient.__wrapped__ = function  # so that of the lines of an error the learner's are shown, and none of these
    return gradient


def gradient_problem(names: Sequence[str], call: Call, target: tuple, tolerance: float) -> Difference | None:
    """Say what is wrong with a call of what `gradient_of` made, in a case of `as_trained`; None where it is right."""
    narrow = target[0].dtype == torch.float32
    right = "All is right in float64; in float32, as in a model" if narrow else "The values are right"
    tolerance = max(NARROW, tolerance) if narrow else tolerance
    if call.error:
        where = f"{right}, the gradient by {' and '.join(names)} is not"
        where = "All is right in float64, but not in float32, as in a model" if narrow else where
        own = tuple(line for line in call.error if re.match(r"line \d+ of ", line))
        text = " ".join(line for line in call.error if line not in own)
        said = ((re.search(pattern, text), why) for pattern, why in WHY.items())
        why = next((found.expand(why) for found, why in said if found), "")
        sentence = f"{where}: {why or ('your code stops' if narrow else 'there is none')}"
        return Difference(sentence, lines=own if why else call.error)
    if difference(call.answer, target, tolerance) is None:
        return None
    answers = call.answer if isinstance(call.answer, tuple) else ()  # from another process anything may come
    for name, answer, one in itertools.zip_longest(names, answers[: len(names)], target):
        if problem := difference(answer, one, tolerance):
            cut = isinstance(answer, torch.Tensor) and one.any() and not answer.any()
            how = "it is 0, as behind `.detach()`" if cut else problem.sentence[0].lower() + problem.sentence[1:]
            return replace(problem, sentence=f"{right}, the gradient by {name} is not: {how}")
    return None
