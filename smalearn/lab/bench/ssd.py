"""The benchmark `ssd`: contests with peers, accuracy under strong decays, growth, memory, and what a step costs."""

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from smalearn import fast
from smalearn.fast import ssd_step_
from smalearn.lab.bench.contestants import Contestant
from smalearn.lab.bench.parts import (
    contest_lines,
    growth,
    growth_line,
    judged,
    memory,
    memory_lines,
    race,
    target_lines,
)
from smalearn.lab.bench.problem import DECAYS, SSDProblem, job, judge
from smalearn.lab.bench.ssd_contestants import CONTESTANTS
from smalearn.lab.bench.timing import answers_of, interleaved, machine, one_thread, process, seconds
from smalearn.testing import random_tensors, relative_rms

__all__ = ["PROBLEMS", "accuracy", "benchmark", "decode", "efficiency", "layouts", "multiply_adds", "table", "targets"]

PROBLEMS = (
    SSDProblem(),
    SSDProblem(length=3008, heads=8, head_dim=32, state=64),
    SSDProblem(length=16384, heads=8, head_dim=64, state=64),
)
LENGTHS = tuple(2**k for k in range(12, 17))
GEMM = 2048
SPEEDUPS = ((1.8, 2.1), (2.2, 2.3), (2.4, 4.0))  # of each problem: forward, forward + backward
FAST = CONTESTANTS[0].name
PARTS = ("Y", "dX", "dlog_a", "dB", "dC")


def benchmark(
    problems: Sequence[SSDProblem] = PROBLEMS, lengths: Sequence[int] = LENGTHS, rounds: int = 31
) -> dict[str, object]:
    """Run all parts, about ten minutes at the usual sizes.

    Args:
        problems: three sizes of the contests. The first one's are also those of the efficiency, the decoding and the
            layouts, and the memory is measured at the first and the last.
        lengths: where the growth is measured.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `contests`, `accuracy`, `growth`, `memory`,
        `efficiency`, `decode`, `layouts`, `targets`.
    """
    first, last = problems[0], problems[-1]
    short = replace(last, heads=max(1, last.heads // 2))
    result = {
        "command": "smalearn bench ssd",
        "machine": machine(),
        "rounds": rounds,
        "contests": race(
            [replace(one, backward=way) for one in problems for way in (False, True)], CONTESTANTS, rounds
        ),
        "accuracy": accuracy(replace(short, length=min(512, short.length), backward=True), CONTESTANTS),
        "growth": growth(CONTESTANTS[0], [replace(short, length=length) for length in lengths], max(1, rounds // 3)),
        "memory": [memory(problem, CONTESTANTS) for problem in (first, last)],
        "efficiency": efficiency(first, rounds),
        "decode": [decode(first, batch, rounds) for batch in (1, 8)],
        "layouts": [layouts(replace(first, backward=way), rounds) for way in (False, True)],
        "load_at_the_end": machine()["load"],
    }
    return result | {"targets": targets(result)}


def accuracy(problem: SSDProblem, contestants: Sequence[Contestant]) -> dict[str, object]:
    """Relative RMS errors against the recurrence in float64, for every kind of decay.

    Returns:
        `length`, and `errors`: decay -> contestant -> error of Y, dX, dlog_a, dB and dC, None for NaN or infinity.
    """
    errors = {}
    with contextlib.ExitStack() as stack:
        processes = {contestant.name: stack.enter_context(process()) for contestant in contestants}
        for decay in DECAYS:
            asked = replace(problem, decay=decay, backward=True)
            expected, errors[decay] = asked.oracle(), {}
            for contestant in contestants:
                answers = answers_of(contestant, asked, processes[contestant.name])
                if not isinstance(answers, str):
                    found = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
                    finite = [error if math.isfinite(error) else None for error in found]
                    errors[decay][contestant.name] = dict(zip(PARTS, finite, strict=True))
    return {"length": problem.length, "errors": errors}


def multiply_adds(problem: SSDProblem) -> int:
    """Of a forward in chunks of 32, all heads with the same B and C; see `fast.cpu.ssd_cpu`."""
    heads = problem.heads * (32 * problem.head_dim + 2 * problem.state * problem.head_dim)
    return problem.length * (heads + 32 * problem.state)


def efficiency(problem: SSDProblem, rounds: int) -> dict[str, object]:
    """The multiply-adds a second of the forward, beside those of a square matrix product.

    Returns:
        `problem`, `gemm`, the size of the square matrices, `seconds` of both, and `fraction`, the rate of the first
        over that of the second.
    """
    forward = CONTESTANTS[0].job(problem)
    left, right = random_tensors([(GEMM, GEMM)] * 2, dtype=torch.float32)
    times = _race_in_place({FAST: lambda: forward(False), "product": lambda: left @ right}, rounds)
    spent = {name: statistics.median(one) for name, one in times.items()}
    fraction = multiply_adds(problem) / spent[FAST] * spent["product"] / GEMM**3
    return {"problem": str(problem), "gemm": GEMM, "seconds": times, "fraction": fraction}


def decode(problem: SSDProblem, batch: int, rounds: int) -> dict[str, object]:
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
    mine, theirs = H.clone(), _einsum_step(*inputs, H)
    error, passed = judge([ssd_step_(*inputs, mine), mine, *theirs], [*expected, *expected])
    found = {"batch": batch, "error": error, "tolerated": passed}
    if not passed:
        return found

    def einsum_steps():
        state = H
        for _ in range(20):
            state = _einsum_step(*inputs, state)[1]

    def steps_in_place():
        for _ in range(20):
            ssd_step_(*inputs, mine)

    times = _race_in_place({"ssd_step_": steps_in_place, "einsum": einsum_steps}, rounds)
    ours, others = (statistics.median(one) for one in times.values())
    return found | {"seconds": times, "ratio": ours / others}


def _einsum_step(x, log_a, B, C, state):
    """The output and the new state, as one would write them."""
    state = log_a.exp()[..., None, None] * state + torch.einsum("...p,...n->...pn", x, B.expand(*x.shape[:-1], -1))
    return torch.einsum("...pn,...n->...p", state, C.expand(*x.shape[:-1], -1)), state


def layouts(problem: SSDProblem, rounds: int) -> dict[str, object]:
    """Views of tensors (batch, T, heads, ...), as projections give them, beside contiguous ones with heads first.

    Returns:
        `problem`, `seconds` of both, and `ratio`, that of the views over that of the contiguous.
    """
    arguments, dY = problem.inputs()
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (*arguments, dY)]
    heads_first = job(lambda *x: fast.ssd(*x)[0], arguments, dY)
    time_first = job(lambda *x: fast.ssd(*x)[0], views[:-1], views[-1])
    runs = {"views": lambda: time_first(problem.backward), "contiguous": lambda: heads_first(problem.backward)}
    times = _race_in_place(runs, rounds)
    ratio = statistics.median(times["views"]) / statistics.median(times["contiguous"])
    return {"problem": str(problem), "seconds": times, "ratio": ratio}


def _race_in_place(runs, rounds):
    """Samples of each run, interleaved, in this process; the first of each is not counted."""
    turns = {name: lambda run=run: seconds(run) for name, run in runs.items()}
    with one_thread():
        interleaved(turns, 1)
        return interleaved(turns, rounds)


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None if nothing was), `met`.

    The fast one counts, in a contest against its fastest peer.
    """
    rows = []
    for part, target in zip(result["contests"], sum(SPEEDUPS, ()), strict=True):
        best = min(part["speedups"].get(FAST, {}).values(), default=None)
        rows.append((f"{part['problem']}: times as fast as the best peer, at least", target, best, 1))
    errors = [error for found in result["accuracy"]["errors"].values() for error in found[FAST].values()]
    rows.append(("largest error under any decay, at most", 2e-6, None if None in errors else max(errors), -1))
    for clock in ("against T", "against clone"):
        exponent = result["growth"]["exponents"][clock]
        rows.append((f"exponent of the forward's time {clock}, at most", 1.1, exponent, -1))
    for part in result["memory"]:
        peak = part["bytes"][FAST]["peak"]
        share = None if peak is None else peak / part["unit"]
        rows.append((f"peak of forward + backward over the bytes of X, T = {part['length']}, at most", 6, share, -1))
    part = result["efficiency"]
    rows.append((f"rate over that of a product of size {part['gemm']}, at least", 0.55, part["fraction"], 1))
    for part in result["decode"]:
        rows.append((f"step over einsum step, batch {part['batch']}, at most", 0.6, part.get("ratio"), -1))
    for part in result["layouts"]:
        rows.append((f"time-first views over heads first, {part['problem']}, at most", 1.1, part["ratio"], -1))
    return judged(rows)


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    for part in result["contests"]:
        lines += ["", part["problem"], *contest_lines(part)]
    lines += ["", *_accuracy_lines(result["accuracy"]), "", growth_line(result["growth"])]
    for part in result["memory"]:
        lines += ["", *memory_lines(part)]
    lines += ["", *map(_pair_line, [result["efficiency"], *result["decode"], *result["layouts"]])]
    return "\n".join([*lines, "", *target_lines(result["targets"])])


def _pair_line(part):
    """The two medians of a comparison."""
    what = part.get("problem", f"20 steps of decoding, batch {part.get('batch')}")
    times = [f"{name} {1e3 * statistics.median(one):.2f} ms" for name, one in part.get("seconds", {}).items()]
    return f"{what}: {', '.join(times) or 'not reported'}"


def _accuracy_lines(part):
    """One line for each decay and contestant."""
    yield f"Relative errors against float64, T = {part['length']}{''.join(f'{name:>10}' for name in PARTS)}"
    for decay, found in part["errors"].items():
        for name, errors in found.items():
            shown = "".join(f"{'NaN' if error is None else f'{error:.1e}':>10}" for error in errors.values())
            yield f"  {decay:27}{name:31}{shown}"
