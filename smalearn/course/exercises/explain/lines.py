"""Where in a program the first NaN comes from, or the first infinity: the line, and what met there."""

import linecache
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from smalearn.course.exercises.core import of_a_chapter
from smalearn.course.exercises.explain.asked import Asked
from smalearn.course.exercises.run import EMPTY, LIBRARIES, answers

__all__ = ["first_line"]

SHOWN = 60  # letters of a line
DIFFERENCE = {"add", "sub", "rsub", "sum", "cumsum", "logcumsumexp", "mean", "diff", "logaddexp"}
PRODUCT = {"mul", "multiply", "prod", "cumprod"}
PRODUCTS = {"matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "einsum", "linear", "tensordot"}
ROOTS = {"log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow"}
WHERE_NUMPY = {"invalid": "NaN", "overflow": "infinity", "divide by zero": "infinity"}


def first_line(asked: Asked) -> str | None:
    """Say which line of an attempt makes NaN, or else infinity, of numbers; None where no line is found."""
    if asked.in_form or not (asked.attempt and asked.answers):
        return None
    return origin(asked.attempt, asked.cases[asked.shown])


def origin(attempt: Callable, case: tuple) -> str | None:
    """Say which line of a program makes NaN, or else infinity, of the numbers of a case."""
    found: dict[str, str] = {}

    def tell(kind, *flags):
        kind = WHERE_NUMPY.get(kind)
        if kind and kind not in found and (line := _line()):
            found[kind] = line

    def program(*arguments):
        with _Watch(found), np.errstate(invalid="call", over="call", divide="call", call=tell):
            return attempt(*arguments)

    given = answers(program, [case])
    if given and _finite(given[0]):  # an infinity on the way, such as a mask's, is no fault
        return None
    kind = next((kind for kind in ("NaN", "infinity") if kind in found), None)
    return f"the first {kind} comes from {found[kind]}" if kind else None


def _finite(answer):
    """Whether there are tensors in an answer, and only finite numbers in them."""
    tensors = list(_tensors([answer]))
    return bool(tensors) and all(bool(x.isfinite().all()) for x in tensors)


class _Watch(TorchFunctionMode):
    """Writes into `found` the first line that makes NaN of numbers, and the first that makes infinity."""

    def __init__(self, found: dict[str, str]):
        super().__init__()
        self.found = found

    def __torch_function__(self, function, types, arguments=(), words=None):
        words = words or {}
        given = list(_tensors([arguments, words]))
        before = [(bool(x.isnan().any()), bool(x.isinf().any())) for x in given]
        known = [x.clone() for x in given] if given and sum(x.numel() for x in given) < 1e5 else given
        made = function(*arguments, **words)
        after = list(_tensors([made])) or given[:1]  # x[i] = y makes nothing
        name = function.__name__.strip("_").removeprefix("i").replace("truediv", "div")
        nan, infinite = (any(x) for x in zip(*before, strict=True)) if before else (False, False)
        if function in EMPTY:  # NaN stands there for what nobody has written
            return made
        if not nan and any(x.isnan().any() for x in after):
            self._write("NaN", _met(name, known))
        elif not nan and not infinite and any(x.isinf().any() for x in after):
            self._write("infinity", _grown(name, known))
        return made

    def _write(self, kind, reason):
        if kind not in self.found and (line := _line()):
            self.found[kind] = line + (f": {reason}" if reason else "")


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and not value.is_meta:  # which has no numbers, and takes seconds to say so
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _met(name, given):
    """What makes NaN in an operation."""
    if name in PRODUCT:
        return "0 · ∞"
    if name in DIFFERENCE:
        return "∞ − ∞"
    if name in ("div", "divide", "rdiv"):
        return "0 / 0" if all((x == 0).any() for x in given) else "∞ / ∞"
    if name in PRODUCTS:
        return "0 · ∞, or ∞ − ∞, in a sum of products"
    if "softmax" in name:
        above = any((x == torch.inf).any() for x in given)
        return "a softmax over numbers with +∞ among them" if above else "a softmax over −∞ alone"
    if name in ROOTS:
        return f"{name} of a number below 0"
    return None


def _grown(name, given):
    """What makes infinity in an operation."""
    if name in ("exp", "exp2") and given:
        return f"{'2' if name == 'exp2' else 'e'} to the power of {given[0].max().item():.4g}"
    if name in ("div", "divide", "rdiv", "reciprocal"):
        return "a division by 0"
    return "the logarithm of 0" if name in ROOTS and name != "pow" else None


def _line():
    """The learner's line that is running, as "`code`"; None where it is not on record."""
    frame = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in LIBRARIES or of_a_chapter(module):
            code = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
            return f"`{code if len(code) <= SHOWN else code[:SHOWN] + '…'}`" if code else None
        frame = frame.f_back
    return None
