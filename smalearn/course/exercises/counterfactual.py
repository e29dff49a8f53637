"""Other questions that a wrong answer would be right for: two arguments exchanged, one of them a step late."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from smalearn.course.exercises.agree import equal, informative
from smalearn.course.exercises.limit import Stopwatch
from smalearn.course.exercises.run import SECONDS, answers

__all__ = ["counterfactual"]


def counterfactual(names, oracle, cases, targets, given, wrong):
    """The right answer to another question, if there is only one such."""
    if len(wrong) < 2:
        return None
    stopwatch, found = Stopwatch(), []
    for words, change in _changes(names, cases[0]):
        if stopwatch() > SECONDS:
            break
        others = _asked(oracle, change, cases)
        if others and all(map(equal, given, others)) and any(informative(targets[k]) for k in wrong):
            found.append(words)
    return f"your answer would be right if {found[0]}" if len(found) == 1 else None


def _asked(oracle, change, cases):
    """The right answers to the other question; None where there are none, or not soon."""
    try:
        changed = [change(*copy.deepcopy(case)) for case in cases]
    except Exception:  # a case need not have what is changed
        return None
    return answers(oracle, changed)


def _changes(names: Sequence[str], case: tuple) -> Iterator[tuple[str, Callable]]:
    """Other arguments in place of those that are given."""

    def put(i, change):
        return lambda *case: (*case[:i], change(case[i]), *case[i + 1 :])

    for i, j in itertools.combinations(range(len(case)), 2):
        a, b = case[i], case[j]
        if type(a) is type(b) and getattr(a, "ndim", 0) == getattr(b, "ndim", 0):
            yield (
                f"{names[i]} and {names[j]} were exchanged",
                lambda *case, i=i, j=j: tuple(case[j if k == i else i if k == j else k] for k in range(len(case))),
            )
    for i, value in enumerate(case):
        name = names[i]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield f"{name} were -{name}", put(i, torch.neg)
            yield f"{name} were exp({name})", put(i, torch.exp)
            if value.ndim:
                yield f"{name} came one place later", put(i, lambda x: torch.cat([torch.zeros_like(x[:1]), x[:-1]]))
                yield f"{name} came one place earlier", put(i, lambda x: torch.cat([x[1:], torch.zeros_like(x[:1])]))
                yield f"{name} were reversed along axis 0", put(i, lambda x: x.flip(0))
                first = put(i, lambda x: x[:1].expand_as(x).clone())
                yield f"{name} were at every place what it is at the first", first
            if value.ndim >= 2 and value.shape[-1] == value.shape[-2]:
                yield f"{name} were transposed", put(i, lambda x: x.mT.contiguous())
            if value.ndim >= 2:
                yield f"{name} were divided by √{name}.shape[-1]", put(i, lambda x: x / x.shape[-1] ** 0.5)
        elif type(value) is int:
            yield f"{name} were one more", put(i, lambda n: n + 1)
            yield f"{name} were one less", put(i, lambda n: n - 1)
            yield f"{name} were half as large", put(i, lambda n: n // 2)
            yield f"{name} were twice as much", put(i, lambda n: 2 * n)
        elif isinstance(value, float):
            yield f"{name} were -{name}", put(i, lambda x: -x)
            yield f"{name} were squared", put(i, lambda x: x * x)
