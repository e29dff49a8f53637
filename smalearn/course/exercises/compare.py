"""Compare an answer with its target, and say in one sentence how they differ."""

import cmath
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from smalearn._torch import plain_calls
from smalearn.testing import relative_rms

KINDS = {
    "a tensor": torch.Tensor,
    "a bool": bool | np.bool_,
    "a number": numbers.Number,
    "a string": str,
    "a tuple": tuple,
    "a list": list,
}
OTHERS = {"a NumPy array": np.ndarray, "a set": set | frozenset, "a dict": dict}  # not answers, but they have a name
RIGHT = "The values are right"
CLOSE = 1e-7  # relative error up to which answers are the same, to whoever looks for a reason
EXACT = 1e-13  # a tolerance below this leaves nothing where 0 should be
ROUNDING = 32  # units in the last place that an answer of another dtype may differ by


@dataclass(frozen=True)
class Difference:
    """Reason why an answer is wrong: a sentence, and where it helps the two values to show, or an error's lines."""

    sentence: str
    target: object = None
    answer: object = None
    in_form: bool = False  # type, shape and dtype are right and all is finite: only the values differ
    dtype: torch.dtype | None = None  # the one that is expected, where nothing else is wrong
    lines: tuple[str, ...] = ()


def sentence_case(text: str) -> str:
    """Begin with a capital, unless the beginning is a name or a formula: "q·k", "a_j", "exp(x)", "dt"."""
    return text[0].upper() + text[1:] if re.match(r"(a|(?!dt )[a-z]{2,})[ ,:']", text) else text


def kind(value: object) -> str:
    """Name the value as a learner does: "a tensor", "a number", "None"."""
    for name, types in (KINDS | OTHERS).items():
        if isinstance(value, types):
            return name
    return "None" if value is None else f"an object of type {type(value).__name__}"


def freeze(value: object) -> object:
    """Copy a value so that later edits cannot reach it: tensors plain, detached, dense and on the CPU."""
    if isinstance(value, torch.Tensor):
        with plain_calls():  # a learner's subclass may answer for itself
            return _plain(value)
    if isinstance(value, tuple | list):
        return (list if isinstance(value, list) else tuple)(freeze(item) for item in value)
    if isinstance(value, numbers.Number) and not isinstance(value, numbers.Complex):
        return float(value)  # a Decimal, which adds up with no float
    return value


def _plain(x: torch.Tensor) -> torch.Tensor:
    if x.is_nested or x.is_quantized or x.is_meta:
        raise TypeError("the answer is nested, quantised or on the device meta: return a dense tensor")
    return x.detach().to_dense().as_subclass(torch.Tensor).cpu().clone()


def elements(value: object) -> int:
    """Count the tensor entries inside an argument: a tensor, a container, or an object that holds tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, tuple | list):
        return sum(map(elements, value))
    if isinstance(value, dict):
        return elements(list(value.values()))
    return elements(vars(value)) if hasattr(value, "__dict__") and not isinstance(value, type) else 0


def same(before: object, after: object) -> bool:
    """Say whether an argument still holds exactly the values it held; what an object caches may be new."""
    if type(before) is not type(after):
        return False
    if isinstance(before, torch.Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        return bool(((before == after) | ((before != before) & (after != after))).all())
    if isinstance(before, tuple | list):
        return len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, dict):
        return list(before) == list(after) and all(map(same, before.values(), after.values()))
    if hasattr(before, "__dict__") and not isinstance(before, type):
        return all(same(value, vars(after).get(name)) for name, value in vars(before).items())
    return kind(before) not in KINDS or before is after or before == after


def distance(answer: object, target: object) -> float:
    """Largest relative error of an answer in the form of its target; infinite if it has another form."""
    if isinstance(target, tuple | list):
        alike = isinstance(answer, tuple | list) and len(answer) == len(target)
        return max(map(distance, answer, target), default=0.0) if alike else math.inf
    if not all(isinstance(x, torch.Tensor | numbers.Number) for x in (answer, target)):
        return 0.0 if answer == target else math.inf
    a, b = (torch.as_tensor(x).to(torch.complex128) for x in (answer, target))
    if a.shape != b.shape:
        return math.inf
    finite = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[finite], b[finite]
    return relative_rms(a, b) if b.any() else math.inf


def alike(answer: object, other: object, tolerance: float) -> bool:
    """Whether two frozen answers are the same up to a relative error; NaN equals NaN."""
    if isinstance(other, tuple | list) and isinstance(answer, tuple | list):
        return len(answer) == len(other) and all(alike(*pair, tolerance) for pair in zip(answer, other, strict=True))
    if "a number" in (kind(answer), kind(other)):
        answer, other = (x.item() if isinstance(x, torch.Tensor) and not x.ndim else x for x in (answer, other))
    if kind(answer) == kind(other) == "a number":
        return _same_number(answer, other, tolerance)
    if not all(isinstance(x, torch.Tensor) for x in (answer, other)):
        return type(answer) is type(other) and answer == other
    if (answer.shape, answer.dtype) != (other.shape, other.dtype) or not torch.equal(answer.isnan(), other.isnan()):
        return False
    return _close(answer[~answer.isnan()], other[~other.isnan()], tolerance)


def numeric(pair: Sequence) -> tuple[torch.Tensor, ...] | None:
    """Answer and target as tensors of float64, or complex128; None if they are no numbers or no tensors."""
    made = []
    for value in pair:
        if isinstance(value, bool) or not isinstance(value, torch.Tensor | numbers.Number):
            return None
        real = not value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, numbers.Real)
        made.append(torch.as_tensor(value, dtype=torch.float64 if real else torch.complex128))
    return tuple(made)


def _same_number(answer: complex, other: complex, tolerance: float) -> bool:
    """Whether two numbers are the same up to a relative error, be they whole or not; NaN equals NaN."""
    if answer == other or (answer != answer and other != other):
        return True
    try:
        return abs(answer - other) <= tolerance * (abs(other) or 1)
    except OverflowError:  # a whole number that no float holds
        return False


def difference(answer: object, target: object, tolerance: float) -> Difference | None:
    """Describe the first way in which a frozen answer differs from the target; None where it is right.

    Types come first, then shapes, dtypes, entries that are not finite, and values: floating tensors by relative RMS,
    numbers by relative error, both absolute where the target is zero; integers, bools and strings must be equal.
    """
    if answer is None and target is not None:
        return Difference("The answer is None: did you forget `return`?")
    return _difference(answer, target, tolerance)


def _difference(answer: object, target: object, tolerance: float) -> Difference | None:
    if isinstance(target, tuple | list) and isinstance(answer, tuple | list):
        return _items(answer, target, tolerance)
    expected, got = kind(target), kind(answer)
    if expected in ("a number", "a bool") and isinstance(answer, torch.Tensor) and not answer.ndim:
        answer = answer.item()
        got = kind(answer)
    if expected != got:
        return Difference(f"Wrong type: expected {expected}, got {got}{_remedy(target, answer)}")
    if expected == "a tensor":
        return _tensors(answer, target, tolerance)
    if expected == "a number":
        return _numbers(answer, target, tolerance)
    return None if answer == target else Difference("Wrong answer", target, answer, in_form=True)


def _remedy(target: object, answer: object) -> str:
    """Name the call that turns an answer of another kind into the expected one, where one call does."""
    expected, items = kind(target), answer if isinstance(answer, list | tuple) else ()
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    strings = len(items) > 0 and all(isinstance(item, str) for item in items)
    rows = expected == "a tensor" and len(items) == len(tensors) > 0
    remedies = {
        "torch.stack(...)": rows and all((len(items), *item.shape) == target.shape for item in tensors),
        "torch.tensor(...)": expected == "a tensor" and len(items) > 0 and not tensors,
        "torch.from_numpy(...)": expected == "a tensor" and isinstance(answer, np.ndarray),
        '"".join(...)': expected == "a string" and strings,
        ".item()": expected in ("a number", "a bool") and isinstance(answer, torch.Tensor) and answer.numel() == 1,
    }
    return "".join(f": `{call}` makes {expected} of it" for call, helps in remedies.items() if helps)


def _items(answer: tuple | list, target: tuple | list, tolerance: float) -> Difference | None:
    if len(answer) != len(target):
        return Difference(f"Wrong length: expected a tuple of {len(target)}, got {len(answer)}")
    for index, pair in enumerate(zip(answer, target, strict=True)):
        problem = _difference(*pair, tolerance)
        if problem:
            sentence = f"In item {index} of the answer: {problem.sentence[0].lower()}{problem.sentence[1:]}"
            return replace(problem, sentence=sentence)
    return None


def _numbers(answer: complex, target: complex, tolerance: float) -> Difference | None:
    if answer == target or (_same_number(answer, target, tolerance) and not isinstance(target, numbers.Integral)):
        return None
    if isinstance(target, numbers.Real) and not isinstance(answer, numbers.Real):
        return Difference("Wrong type: expected a real number, got a complex one")
    try:
        finite = cmath.isfinite(answer)
    except OverflowError:  # a whole number that no float holds
        finite = True
    if not finite:
        return Difference(f"Not finite: the answer is {answer}", target, answer)
    return Difference("Wrong answer", target, answer, in_form=True)


def _tensors(answer: torch.Tensor, target: torch.Tensor, tolerance: float) -> Difference | None:
    swapped = target.ndim >= 2 and answer.ndim >= 2 and answer.mT.shape == target.shape
    if answer.shape != target.shape:
        hint = ": that is the transpose" if swapped else ""
        return Difference(f"Wrong shape: expected {tuple(target.shape)}, got {tuple(answer.shape)}{hint}")
    if answer.dtype != target.dtype:
        if _close_but_for_rounding(answer, target, tolerance):
            name = str(answer.dtype).removeprefix("torch.")
            if answer.is_complex() and not target.is_complex():
                return Difference(f"{RIGHT}, but in {name}: take `.real`, or use `irfft`")
            return Difference(f"{RIGHT}, but in {name}", dtype=target.dtype)
        floating = answer.is_floating_point() and target.is_floating_point()
        hint = ": does a tensor that you make lack `dtype=`?" if floating else ""
        return Difference(f"Wrong dtype: expected {target.dtype}, got {answer.dtype}{hint}")
    wild = ~torch.isfinite(answer) & (answer != target)  # a target may hold -inf; NaN equals nothing
    if wild.any():
        first = wild.nonzero()[0].tolist()
        count = f"{wild.sum().item()} of {answer.numel()} entries are"
        value = answer[tuple(first)].item()
        return Difference(f"Not finite: {count} NaN or infinite, the first is {value} at {first}", target, answer)
    if _close(answer, target, tolerance):
        return None
    hint = ": they are right after a transpose" if swapped and _close(answer.mT, target, tolerance) else ""
    return Difference(f"Wrong values{hint}", target, answer, in_form=True)


def _close_but_for_rounding(answer: torch.Tensor, target: torch.Tensor, tolerance: float) -> bool:
    """Say whether an answer of another dtype has the right values, as well as its dtype can hold them."""
    if answer.dtype.is_floating_point and answer.dtype.itemsize == 1:  # float8 is promoted to nothing
        answer = answer.float()
    wide = torch.promote_types(answer.dtype, target.dtype)
    exact = not (answer.is_floating_point() or answer.is_complex())
    rounding = 0.0 if exact else ROUNDING * torch.finfo(answer.dtype).eps
    return _close(answer.to(wide), target.to(wide), max(tolerance, rounding))


def _close(answer: torch.Tensor, target: torch.Tensor, tolerance: float) -> bool:
    if not (target.is_floating_point() or target.is_complex()):
        return torch.equal(answer, target)
    finite = torch.isfinite(target)
    if not torch.equal(answer[~finite], target[~finite]):
        return False
    answer, target = answer[finite], target[finite]
    if not target.any():
        return bool((answer.abs() <= tolerance).all())
    if tolerance < EXACT and answer[target == 0].any():
        return False
    return relative_rms(answer, target) <= tolerance
