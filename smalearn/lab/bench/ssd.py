"""The benchmark `ssd`: times beside peers, accuracy under strong decays, growth, memory, and what a step costs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from smalearn.fast import ssd_step_
from smalearn.lab.bench.implementation import (
    Implementation,
    Run,
    compare,
    comparison_rows,
    growth,
    growth_line,
    memory,
    memory_section,
    processes,
)
from smalearn.lab.bench.peers import SSD
from smalearn.lab.bench.problem import DECAYS, Problem, judge
from smalearn.lab.bench.report import at_least, at_most, medians, milliseconds, record
from smalearn.lab.bench.timing import interleaved, one_thread, seconds
from smalearn.testing import random_tensors, relative_rms

__all__ = [
    "PROBLEMS",
    "accuracy",
    "benchmark",
    "decode",
    "efficiency",
    "layouts",
    "multiply_adds",
    "sections",
    "targets",
]

PROBLEMS = (
    Problem(),
    Problem(length=3008, heads=8, head_dim=32, state=64),
    Problem(length=16384, heads=8, head_dim=64, state=64),
)
LENGTHS = tuple(2**k for k in range(12, 17))
GEMM = 2048
SPEEDUPS = (1.8, 2.1, 2.2, 2.3, 2.4, 4.0)  # of each problem: forward, forward + backward
FAST = SSD[0].name
PARTS = ("Y", "dX", "dlog_a", "dB", "dC")


def benchmark(
    problems: Sequence[Problem] = PROBLEMS, lengths: Sequence[int] = LENGTHS, rounds: int = 31
) -> dict[str, object]:
    """Run all parts, about ten minutes at the usual sizes.

    Args:
        problems: three sizes to compare. The first one's are also those of the efficiency, the decoding and the
            layouts, and the memory is measured at the first and the last.
        lengths: where the growth is measured.
        rounds: samples of each time.

    Returns:
        See `record`, with the parts `contests`, `accuracy`, `growth`, `memory`, `efficiency`, `decode`, `layouts`.
    """
    first, last = problems[0], problems[-1]
    short = replace(last, heads=max(1, last.heads // 2))
    both = [replace(one, backward=way) for one in problems for way in (False, True)]

    def measure():
        return {
            "contests": compare(both, SSD, rounds),
            "accuracy": accuracy(replace(short, length=min(512, short.length)), SSD),
            "growth": growth(SSD[0], [replace(short, length=length) for length in lengths], max(1, rounds // 3)),
            "memory": [memory(problem, SSD) for problem in (first, last)],
            "efficiency": efficiency(first, rounds),
            "decode": [decode(first, batch, rounds) for batch in (1, 8)],
            "layouts": [layouts(replace(first, backward=way), rounds) for way in (False, True)],
        }

    return record("ssd", rounds, measure, targets)


def accuracy(problem: Problem, implementations: Sequence[Implementation]) -> dict[str, object]:
    """Relative RMS errors against the recurrence in float64, for every kind of decay.

    Returns:
        `length`, and `errors`: decay -> implementation -> error of Y, dX, dlog_a, dB and dC, None if not finite.
    """
    errors = {}
    with processes([one.name for one in implementations]) as start:
        for decay in DECAYS:
            decayed = replace(problem, decay=decay, backward=True)
            expected, errors[decay] = decayed.oracle(), {}
            for one in implementations:
                try:
                    answers = map(torch.from_numpy, start[one.name](one, decayed).answers())
                except ImportError:
                    continue
                distances = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
                finite = [error if math.isfinite(error) else None for error in distances]
                errors[decay][one.name] = dict(zip(PARTS, finite, strict=True))
    return {"length": problem.length, "errors": errors}


def multiply_adds(problem: Problem) -> int:
    """Multiply-adds of a forward in chunks of 32, all heads with the same B and C; see `fast.cpu.ssd_cpu`."""
    heads = problem.heads * (32 * problem.head_dim + 2 * problem.state * problem.head_dim)
    return problem.length * (heads + 32 * problem.state)


def efficiency(problem: Problem, rounds: int) -> dict[str, object]:
    """Multiply-adds a second of the forward and of a square matrix product.

    Returns:
        `problem`, `gemm`, the size of the square matrices, `seconds` of both, and `fraction`, the rate of the first
        over that of the second.
    """
    left, right = random_tensors([(GEMM, GEMM)] * 2, dtype=torch.float32)
    times = _timed({FAST: Run(SSD[0], problem).once, "product": lambda: left @ right}, rounds)
    spent = medians(times)
    fraction = multiply_adds(problem) / spent[FAST] * spent["product"] / GEMM**3
    return {"problem": str(problem), "gemm": GEMM, "seconds": times, "fraction": fraction}


def decode(problem: Problem, batch: int, rounds: int) -> dict[str, object]:
    """One step of decoding in place, beside the same step as two einsums.

    Returns:
        `batch`; the larger `error` of y and the state of both, and whether it is `tolerated`. If so, `seconds` of 20
        steps of both, and `ratio`, ours over that of the einsums.
    """
    step, state = (batch, problem.heads), (problem.head_dim, problem.state)
    shapes = [(*step, state[0]), step, (batch, 1, state[1]), (batch, 1, state[1]), (*step, *state)]
    x, z, B, C, H = random_tensors(shapes, dtype=torch.float32)
    inputs = x, DECAYS["gate"](z), B, C
    expected = _einsum_step(*(one.double() for one in (*inputs, H)))
    overwritten = H.clone()
    y = ssd_step_(*inputs, overwritten)
    error, passed = judge([y, overwritten, *_einsum_step(*inputs, H)], [*expected, *expected])
    result = {"batch": batch, "error": error, "tolerated": passed}
    if not passed:
        return result

    def einsum_steps():
        state = H
        for _ in range(20):
            state = _einsum_step(*inputs, state)[1]

    def steps_in_place():
        for _ in range(20):
            ssd_step_(*inputs, overwritten)

    return result | _pair({"ssd_step_": steps_in_place, "einsum": einsum_steps}, rounds)


def _einsum_step(x, log_a, B, C, state):
    """The output and the new state, as one would write them."""
    state = log_a.exp()[..., None, None] * state + torch.einsum("...p,...n->...pn", x, B.expand(*x.shape[:-1], -1))
    return torch.einsum("...pn,...n->...p", state, C.expand(*x.shape[:-1], -1)), state


def layouts(problem: Problem, rounds: int) -> dict[str, object]:
    """Views of tensors (batch, T, heads, ...), as projections give them, beside contiguous ones with heads first.

    Returns:
        `problem`, `seconds` of both, and `ratio`, that of the views over that of the contiguous.
    """
    runs = {"views": Run(SSD[0], replace(problem, views=True)).once, "contiguous": Run(SSD[0], problem).once}
    return {"problem": str(problem)} | _pair(runs, rounds)


def _pair(runs, rounds):
    """The `seconds` of two runs, and their `ratio`."""
    times = _timed(runs, rounds)
    first, second = medians(times).values()
    return {"seconds": times, "ratio": first / second}


def _timed(runs, rounds):
    """Samples of each run, interleaved, in this process; the first of each does not count."""
    samplers = {name: partial(seconds, run) for name, run in runs.items()}
    with one_thread():
        interleaved(samplers, 1)
        return interleaved(samplers, rounds)


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds for the fast one, beside its fastest peer."""
    rows = []
    for part, target in zip(result["contests"], SPEEDUPS, strict=True):
        best = min(part["speedups"].get(FAST, {}).values(), default=None)
        rows.append(at_least(f"{part['problem']}: times as fast as the best peer", target, best))
    errors = [error for one in result["accuracy"]["errors"].values() for error in one[FAST].values()]
    rows.append(at_most("largest error under any decay", 2e-6, None if None in errors else max(errors)))
    for clock in ("against T", "against clone"):
        rows.append(at_most(f"exponent of the forward's time {clock}", 1.1, result["growth"]["exponents"][clock]))
    for part in result["memory"]:
        peak = part["bytes"][FAST]["peak"]
        what = f"peak of forward + backward over the bytes of X, T = {part['length']}"
        rows.append(at_most(what, 6, None if peak is None else peak / part["unit"]))
    part = result["efficiency"]
    rows.append(at_least(f"rate over that of a product of size {part['gemm']}", 0.55, part["fraction"]))
    for part in result["decode"]:
        rows.append(at_most(f"step over einsum step, batch {part['batch']}", 0.6, part.get("ratio")))
    for part in result["layouts"]:
        rows.append(at_most(f"time-first views over heads first, {part['problem']}", 1.1, part["ratio"]))
    return rows


def sections(result: Mapping) -> Iterator[tuple[str, list]]:
    """Titles and rows for `render`."""
    for part in result["contests"]:
        yield part["problem"], comparison_rows(part)
    part = result["accuracy"]
    yield f"Relative errors against float64, T = {part['length']}", _accuracy_rows(part["errors"])
    yield growth_line(result["growth"]), []
    yield from map(memory_section, result["memory"])
    pairs = [result["efficiency"], *result["decode"], *result["layouts"]]
    yield "Medians, both in one process", [_pair_row(part) for part in pairs]


def _accuracy_rows(errors):
    """One row for each decay and implementation."""
    yield "", "", *PARTS
    for decay, by_name in errors.items():
        for name, parts in by_name.items():
            yield decay, name, *("NaN" if error is None else f"{error:.1e}" for error in parts.values())


def _pair_row(part):
    """The two medians."""
    what = part.get("problem", f"20 steps of decoding, batch {part.get('batch')}")
    times = [f"{name} {milliseconds(samples)}" for name, samples in part.get("seconds", {}).items()]
    return what, ", ".join(times) or "not reported"
