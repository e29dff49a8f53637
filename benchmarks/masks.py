"""The benchmark `masks`: products by structured masks beside the dense product, and growth of their time with T."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from benchmarks.contest import checked, contest, growth, ratio, unchecked
from benchmarks.report import at_least, at_most, record
from smalearn.masks import CausalMask, DecayMask, FourierMask, Mask, SemiseparableMask, ToeplitzMask
from smalearn.testing import random_tensors


def _semiseparable(length: int) -> SemiseparableMask:
    """Decays that differ from token to token, a reset every 1000 tokens."""
    (log_a,) = random_tensors([(length,)], seed=1, dtype=torch.float32)
    log_a = -log_a.abs() / 8
    log_a[500::1000] = -torch.inf
    return SemiseparableMask(log_a)


def _toeplitz(length: int) -> ToeplitzMask:
    return ToeplitzMask(*random_tensors([(length,), (length,)], seed=2, dtype=torch.float32))


FAMILIES: dict[str, Callable[[int], Mask]] = {
    "causal": CausalMask,
    "decay": lambda length: DecayMask(length, 0.99),
    "1-semiseparable": _semiseparable,
    "Toeplitz": _toeplitz,
    "Fourier": FourierMask,
}
"""Masks of each family for a length, with parameters in float32."""

FASTER = {"causal": 20, "decay": 20, "1-semiseparable": 10, "Toeplitz": 5, "Fourier": 5}
EXPONENT = {"causal": 1.1, "decay": 1.1, "1-semiseparable": 1.1, "Toeplitz": 1.25, "Fourier": 1.25}
CUMSUM = 5


def benchmark(
    length: int = 4096, columns: int = 64, rounds: int = 31, keep: Callable | None = None
) -> dict[str, object]:
    """Run both parts, about a minute at the usual sizes: float32, one thread."""
    lengths = [length * 2**k for k in range(4)]

    def measure(finish):
        return {
            "contests": {name: finish(compare(name, length, columns, rounds)) for name in FAMILIES},
            "growth": {name: finish(sweeps(name, lengths, columns, rounds)) for name in FAMILIES},
        }

    return record("masks", rounds, measure, targets, keep)


def operand(mask: Mask, columns: int) -> torch.Tensor:
    """Seeded (S, columns), float32, or complex64 for a complex mask."""
    real, imaginary = random_tensors([(mask.shape[-1], columns)] * 2, dtype=torch.float32)
    return torch.complex(real, imaginary) if mask.is_complex else real


def compare(name: str, length: int, columns: int, rounds: int) -> dict[str, object]:
    """A mask's product beside a dense matrix that is already there, and beside torch's running sum."""
    mask = FAMILIES[name](length)
    x = operand(mask, columns)
    wide = torch.complex128 if mask.is_complex else torch.float64
    expected, L = [mask.dense(wide) @ x.to(wide)], mask.dense(x.dtype)
    entrants = {
        "structured": partial(checked, partial(mask.matmul, x), expected),
        "dense": partial(checked, partial(torch.matmul, L, x), expected),
        "cumsum": partial(unchecked, partial(x.cumsum, -2)),
    }
    part = contest(f"{name}, T = {length}, {columns} columns", entrants, rounds, ["structured"])
    return part | {"length": length, "columns": columns}


def sweeps(name: str, lengths: Sequence[int], columns: int, rounds: int) -> dict[str, object]:
    """Growth of the time of a mask's product, three times over, and the median of the exponents against clone."""
    masks = {length: FAMILIES[name](length) for length in lengths}
    operands = {length: operand(mask, columns) for length, mask in masks.items()}
    runs = {length: (partial(mask.matmul, operands[length]), operands[length]) for length, mask in masks.items()}
    parts = [growth(name, runs, max(1, rounds // 3)) for _ in range(3)]
    return {"sweeps": parts, "exponent": statistics.median(part["exponents"]["against clone"] for part in parts)}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on speedups and exponents."""
    contests = result["contests"]
    cumsum = ratio(contests["1-semiseparable"], "structured", "cumsum")
    return [
        *(
            at_least(f"{name}: times as fast as the dense product", FASTER[name], ratio(part, "structured", "dense"))
            for name, part in contests.items()
        ),
        at_most("1-semiseparable: time over that of torch.cumsum", CUMSUM, cumsum and 1 / cumsum),
        *(
            at_most(f"{name}: exponent of the time against clone", EXPONENT[name], part["exponent"])
            for name, part in result["growth"].items()
        ),
    ]
