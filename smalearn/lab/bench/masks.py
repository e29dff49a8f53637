"""The benchmark `masks`: products by structured masks beside the dense product, and growth of their time with T."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.timing import interleaved, machine, one_thread, seconds, slope
from smalearn.masks import CausalMask, DecayMask, FourierMask, Mask, SemiseparableMask, ToeplitzMask
from smalearn.testing import random_tensors

__all__ = ["FAMILIES", "benchmark", "growth", "operand", "race", "table", "targets"]


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
"""The mask of each contest for a given length, with parameters in float32."""

FASTER = {"causal": 20, "decay": 20, "1-semiseparable": 10, "Toeplitz": 5, "Fourier": 5}
EXPONENT = {"causal": 1.1, "decay": 1.1, "1-semiseparable": 1.1, "Toeplitz": 1.25, "Fourier": 1.25}
CUMSUM = 5


def benchmark(length: int = 4096, columns: int = 64, rounds: int = 31) -> dict[str, object]:
    """Run both parts, about a minute at the usual sizes: float32, one thread.

    Args:
        length: T of the contests; the growth is measured from it to eight times as much.
        columns: of the operand.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `contests`, `growth`, `targets`.
    """
    result = {"command": "smalearn bench masks", "machine": machine(), "rounds": rounds}
    lengths = [length * 2**k for k in range(4)]
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result["contests"] = {name: race(build, length, columns, rounds) for name, build in FAMILIES.items()}
        result["growth"] = {name: growth(build, lengths, columns, rounds) for name, build in FAMILIES.items()}
    result["load_at_the_end"] = machine()["load"]
    return result | {"targets": targets(result)}


def operand(mask: Mask, columns: int) -> torch.Tensor:
    """Seeded (S, columns), float32, or complex64 for a complex mask."""
    real, imaginary = random_tensors([(mask.shape[-1], columns)] * 2, dtype=torch.float32)
    return torch.complex(real, imaginary) if mask.is_complex else real


def race(build: Callable[[int], Mask], length: int, columns: int, rounds: int) -> dict[str, object]:
    """A mask's product beside a dense matrix that is already there, and beside torch's running sum.

    Returns:
        `length`, `columns`; `error` against float64 and whether it is `tolerated`. If so, `seconds` of `structured`,
        `dense` and `cumsum`, and `speedups`, by how many times the first is faster than either of the others.
    """
    mask = build(length)
    x = operand(mask, columns)
    wide = torch.complex128 if mask.is_complex else torch.float64
    error, passed = judge([mask.matmul(x)], [mask.dense(wide) @ x.to(wide)])
    found = {"length": length, "columns": columns, "error": error, "tolerated": passed}
    if not passed:
        return found
    L = mask.dense(x.dtype)
    turns = _turns(structured=lambda: mask.matmul(x), dense=lambda: L @ x, cumsum=lambda: x.cumsum(-2))
    samples = interleaved(turns, rounds)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    speedups = {name: medians[name] / medians["structured"] for name in ("dense", "cumsum")}
    return found | {"seconds": samples, "speedups": speedups}


def growth(build: Callable[[int], Mask], lengths: Sequence[int], columns: int, rounds: int) -> dict[str, object]:
    """Time of a mask's product against that of `clone`, which is linear in T whatever the caches make of it.

    Returns:
        `lengths`; `sweeps`, for each of three the `seconds` of `structured` and `clone` at each length and the
        `exponent` p of time ∝ clone^p; and `exponent`, their median.
    """
    turns = {}
    for length in lengths:
        mask = build(length)
        x = operand(mask, columns)
        turns |= {
            (name, length): turn
            for name, turn in _turns(structured=lambda mask=mask, x=x: mask.matmul(x), clone=x.clone).items()
        }
    sweeps = []
    for _ in range(3):
        samples = interleaved(turns, max(1, rounds // 3))
        times = {name: [samples[name, length] for length in lengths] for name in ("structured", "clone")}
        ours, clone = ([statistics.median(one) for one in times[name]] for name in times)
        sweeps.append({"seconds": times, "exponent": slope(clone, ours)})
    exponent = statistics.median(sweep["exponent"] for sweep in sweeps)
    return {"lengths": list(lengths), "sweeps": sweeps, "exponent": exponent}


def _turns(**runs):
    """For each run a turn that measures it, right after the same run once unmeasured.

    Otherwise a short run would be measured by how much of the caches the turn before it has left.
    """
    return {name: lambda run=run: (run(), seconds(run))[1] for name, run in runs.items()}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None if not timed), `met`."""
    rows = []
    for name, contest in result["contests"].items():
        measured = contest.get("speedups", {}).get("dense")
        rows.append((f"{name}: times as fast as the dense product, at least", FASTER[name], measured, 1))
    contest = result["contests"]["1-semiseparable"]
    measured = 1 / contest["speedups"]["cumsum"] if "speedups" in contest else None
    rows.append(("1-semiseparable: time over that of torch.cumsum, at most", CUMSUM, measured, -1))
    for name, part in result["growth"].items():
        rows.append((f"{name}: exponent of the time against clone, at most", EXPONENT[name], part["exponent"], -1))
    return [
        {"what": what, "target": target, "measured": value, "met": value is not None and sign * value >= sign * target}
        for what, target, value, sign in rows
    ]


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()] + [""]
    for name, contest in result["contests"].items():
        start = f"{name:16} T = {contest['length']}, {contest['columns']} columns   error {contest['error']:.0e}   "
        if "seconds" not in contest:
            lines.append(f"{start}not reported")
            continue
        times = {key: 1e3 * statistics.median(value) for key, value in contest["seconds"].items()}
        shown = ", ".join(f"{key} {value:.2f} ms" for key, value in times.items())
        lines.append(f"{start}{shown}   faster than dense by {contest['speedups']['dense']:.1f}")
    lines += [""]
    for name, part in result["growth"].items():
        sweeps = ", ".join(f"{sweep['exponent']:.2f}" for sweep in part["sweeps"])
        lines.append(f"{name:16} time ∝ clone^p, T = {part['lengths'][0]} to {part['lengths'][-1]}: p = {sweeps}")
    lines += ["", "Targets"]
    for row in result["targets"]:
        measured = "unknown" if row["measured"] is None else f"{row['measured']:.2f}"
        lines.append(f"  {'met   ' if row['met'] else 'MISSED'} {row['what']} {row['target']:.3g}: {measured}")
    return "\n".join(lines)
