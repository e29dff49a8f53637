"""The benchmark `masks`: products by structured masks beside the dense product, and growth of their time with T."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.report import at_least, at_most, medians, milliseconds, outcome, record
from smalearn.lab.bench.timing import interleaved, slope, warm_seconds
from smalearn.masks import CausalMask, DecayMask, FourierMask, Mask, SemiseparableMask, ToeplitzMask
from smalearn.testing import random_tensors

__all__ = ["FAMILIES", "benchmark", "compare", "growth", "operand", "sections", "targets"]


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


def benchmark(length: int = 4096, columns: int = 64, rounds: int = 31) -> dict[str, object]:
    """Run both parts, about a minute at the usual sizes: float32, one thread.

    Args:
        length: T of the comparison; the growth is measured from it to eight times as much.
        columns: of the operand.
        rounds: samples of each time.

    Returns:
        See `record`, with the parts `contests` and `growth`.
    """
    lengths = [length * 2**k for k in range(4)]

    def measure():
        return {
            "contests": {name: compare(build, length, columns, rounds) for name, build in FAMILIES.items()},
            "growth": {name: growth(build, lengths, columns, rounds) for name, build in FAMILIES.items()},
        }

    return record("masks", rounds, measure, targets)


def operand(mask: Mask, columns: int) -> torch.Tensor:
    """Seeded (S, columns), float32, or complex64 for a complex mask."""
    real, imaginary = random_tensors([(mask.shape[-1], columns)] * 2, dtype=torch.float32)
    return torch.complex(real, imaginary) if mask.is_complex else real


def compare(build: Callable[[int], Mask], length: int, columns: int, rounds: int) -> dict[str, object]:
    """A mask's product beside a dense matrix that is already there, and beside torch's running sum.

    Returns:
        `length`, `columns`; `error` against float64 and whether it is `tolerated`. If so, `seconds` of `structured`,
        `dense` and `cumsum`, and `speedups`, by how many times the first is faster than either of the others.
    """
    mask = build(length)
    x = operand(mask, columns)
    wide = torch.complex128 if mask.is_complex else torch.float64
    error, passed = judge([mask.matmul(x)], [mask.dense(wide) @ x.to(wide)])
    result = {"length": length, "columns": columns, "error": error, "tolerated": passed}
    if not passed:
        return result
    L = mask.dense(x.dtype)
    runs = {"structured": lambda: mask.matmul(x), "dense": lambda: L @ x, "cumsum": lambda: x.cumsum(-2)}
    samples = interleaved({name: partial(warm_seconds, run) for name, run in runs.items()}, rounds)
    middle = medians(samples)
    speedups = {name: middle[name] / middle["structured"] for name in ("dense", "cumsum")}
    return result | {"seconds": samples, "speedups": speedups}


def growth(build: Callable[[int], Mask], lengths: Sequence[int], columns: int, rounds: int) -> dict[str, object]:
    """Time of a mask's product against that of `clone`, which is linear in T whatever the caches make of it.

    Returns:
        `lengths`; `sweeps`, for each of three the `seconds` of `structured` and `clone` at each length and the
        `exponent` p of time ∝ clone^p; and `exponent`, their median.
    """
    samplers, sweeps = {}, []
    for length in lengths:
        mask = build(length)
        x = operand(mask, columns)
        samplers["structured", length] = partial(warm_seconds, partial(mask.matmul, x))
        samplers["clone", length] = partial(warm_seconds, x.clone)
    for _ in range(3):
        samples = interleaved(samplers, max(1, rounds // 3))
        times = {name: [samples[name, length] for length in lengths] for name in ("structured", "clone")}
        structured, clone = (list(map(statistics.median, one)) for one in times.values())
        sweeps.append({"seconds": times, "exponent": slope(clone, structured)})
    exponent = statistics.median(sweep["exponent"] for sweep in sweeps)
    return {"lengths": list(lengths), "sweeps": sweeps, "exponent": exponent}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on speedups and exponents."""
    ratios = {name: part.get("speedups", {}) for name, part in result["contests"].items()}
    cumsum = ratios["1-semiseparable"].get("cumsum")
    return [
        *(
            at_least(f"{name}: times as fast as the dense product", FASTER[name], one.get("dense"))
            for name, one in ratios.items()
        ),
        at_most("1-semiseparable: time over that of torch.cumsum", CUMSUM, cumsum and 1 / cumsum),
        *(
            at_most(f"{name}: exponent of the time against clone", EXPONENT[name], part["exponent"])
            for name, part in result["growth"].items()
        ),
    ]


def sections(result: Mapping) -> Iterator[tuple[str, list]]:
    """Titles and rows for `render`."""
    rows = []
    for name, part in result["contests"].items():
        sizes = f"T = {part['length']}, {part['columns']} columns"
        if "seconds" not in part:
            rows.append((name, sizes, outcome(part)))
            continue
        times = [f"{key} {milliseconds(samples)}" for key, samples in part["seconds"].items()]
        faster = f"faster than dense by {part['speedups']['dense']:.1f}"
        rows.append((name, sizes, f"error {part['error']:.0e}", *times, faster))
    yield "Products", rows
    rows = []
    for name, part in result["growth"].items():
        exponents = ", ".join(f"{sweep['exponent']:.2f}" for sweep in part["sweeps"])
        rows.append((name, f"time ∝ clone^p, T = {part['lengths'][0]} to {part['lengths'][-1]}: p = {exponents}"))
    yield "Growth", rows
