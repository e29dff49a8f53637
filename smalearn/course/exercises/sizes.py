"""By which product of sizes a number is off."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from smalearn.course.exercises.agree import CLOSE

__all__ = ["excess"]

DIFFERENT = 3  # amounts by which a number is off: fewer agree by accident


def excess(
    names: Sequence[str], cases: Sequence[tuple], pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> str | None:
    """Say by which product of sizes a number is too large or small in every case; pairs are of answer and target."""
    if any(b.ndim or a.ndim or a.is_complex() or b.is_complex() or not torch.isfinite(a) for a, b in pairs):
        return None
    given, right = ([pair[k].item() for pair in pairs] for k in (0, 1))
    off = [a - b for a, b in zip(given, right, strict=True)]
    if len({round(x, 9) for x in off}) >= DIFFERENT:
        for words, values in _products(_sizes(names, cases)):
            for sign, said in ((1, "large"), (-1, "small")):
                if _equal(off, [sign * x for x in values]):
                    return f"your number is too {said} by {words}, in every case"
    if all(right) and len({round(a / b, 9) for a, b in zip(given, right, strict=True)}) >= DIFFERENT:
        for words, values in _products(_sizes(names, cases)):
            if _equal(given, [x * b for x, b in zip(values, right, strict=True)]):
                return f"your number is the right one times {words}, in every case"
            if _equal([a * x for a, x in zip(given, values, strict=True)], right):
                return f"your number is the right one divided by {words}, in every case"
    return None


def _equal(a, b):
    return all(math.isclose(x, y, rel_tol=CLOSE, abs_tol=CLOSE) for x, y in zip(a, b, strict=True))


def _sizes(names, cases) -> Mapping[str, list[int]]:
    """Whole numbers that are given and sizes of tensors, those that are not the same in every case."""
    found: dict[str, list[int]] = {}
    for name, *values in zip(names, *cases, strict=False):
        if all(type(x) is int for x in values):
            found[name] = values
        elif all(isinstance(x, tuple | list) and x and all(type(n) is int for n in x) for x in values):
            found |= {f"len({name})": [len(x) for x in values], f"{name}[0]": [x[0] for x in values]}
            found[f"{name}[-1]"] = [x[-1] for x in values]
        elif all(isinstance(x, torch.Tensor) and x.ndim == values[0].ndim for x in values):
            for axis in range(values[0].ndim):
                found[f"{name}.shape[{axis}]"] = [x.shape[axis] for x in values]
    different: dict[str, list[int]] = {}
    for name, values in found.items():
        if values not in different.values() and len(set(values)) > 1:
            different[name] = values
    return different


def _products(sizes) -> Iterator[tuple[str, list[float]]]:
    """One or two sizes multiplied, whole, half or doubled."""
    alone = list(sizes.items())
    for number in (1, 2):
        for chosen in itertools.combinations_with_replacement(alone, number):
            words = "·".join(name for name, _ in chosen)
            if number == 2 and chosen[0] is chosen[1]:
                words = f"{chosen[0][0]}²"
            values = [math.prod(column) for column in zip(*(values for _, values in chosen), strict=True)]
            yield words, values
            yield f"{words}/2", [x / 2 for x in values]
            yield f"2·{words}", [2 * x for x in values]
            yield f"{words} − 1", [x - 1 for x in values]
            yield f"{words} + 1", [x + 1 for x in values]
