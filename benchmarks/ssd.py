"""The benchmark `ssd`: times beside peers, accuracy under strong decays, growth, memory, and what a step costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.contest import checked, contest, growth, judge, ratio, unchecked
from benchmarks.implementation import Run, compare, memory
from benchmarks.peers import COMPILED_SSD, SSD
from benchmarks.problem import DECAYS, Problem
from benchmarks.report import at_least, at_most, record
from smalearn.course.timing import warm_seconds
from smalearn.fast import ssd_step_
from smalearn.testing import random_tensors

PROBLEMS = (
    Problem(),
    Problem(length=3008, heads=8, head_dim=32, state=64),
    Problem(length=16384, heads=8, head_dim=64, state=64),
)
LENGTHS = tuple(2**k for k in range(12, 17))
GEMM = 2048
SPEEDUPS = (1.8, 2.1, 2.2, 2.3, 2.4, 4.0)  # of each problem: forward, forward + backward
FAST = SSD[0].name


def benchmark(
    problems: Sequence[Problem] = PROBLEMS,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = 31,
    keep: Callable | None = None,
) -> dict[str, object]:
    """Run all parts, about twenty minutes at the usual sizes, half of it a compiler's, which no time counts."""
    first, last = problems[0], problems[-1]
    short = replace(last, heads=max(1, last.heads // 2))
    both = [replace(one, backward=way) for one in problems for way in (False, True)]

    def measure(finish):
        brief = replace(short, length=min(512, short.length), backward=True)
        decayed = [replace(brief, decay=decay) for decay in DECAYS]
        growing = [replace(short, length=length) for length in lengths]
        runs = {one.length: (Run(SSD[0], one).once, one.inputs()[1]) for one in growing}
        return {
            "contests": list(map(finish, compare(both, (*SSD, COMPILED_SSD), rounds))),
            "accuracy": list(map(finish, compare(decayed, SSD, max(1, rounds // 10)))),
            "growth": finish(growth(FAST, runs, max(1, rounds // 3))),
            "memory": [finish(memory(replace(problem, backward=True), SSD)) for problem in (first, last)],
            "efficiency": finish(efficiency(first, rounds)),
            "decode": [finish(decode(first, batch, rounds)) for batch in (1, 8)],
            "layouts": [finish(layouts(replace(first, backward=way), rounds)) for way in (False, True)],
        }

    return record("ssd", rounds, measure, targets, keep)


def multiply_adds(problem: Problem) -> int:
    """Multiply-adds of a forward in chunks of 32, all heads with the same B and C; see `fast.cpu.ssd_cpu`."""
    heads = problem.heads * (32 * problem.head_dim + 2 * problem.state * problem.head_dim)
    return problem.length * (heads + 32 * problem.state)


def efficiency(problem: Problem, rounds: int) -> dict[str, object]:
    """Multiply-adds a second of the forward and of a square matrix product; `fraction` is the first over the second."""
    left, right = random_tensors([(GEMM, GEMM)] * 2, dtype=torch.float32)
    entrants = {
        FAST: partial(checked, Run(SSD[0], problem).once, problem.oracle()),
        "product": partial(unchecked, partial(torch.matmul, left, right)),
    }
    part = contest(f"{problem}, beside a product of {GEMM} × {GEMM}", entrants, rounds, ["product"])
    slower = ratio(part, "product", FAST)
    return part | {"gemm": GEMM, "fraction": slower and multiply_adds(problem) / slower / GEMM**3}


def decode(problem: Problem, batch: int, rounds: int) -> dict[str, object]:
    """Steps of decoding in place, beside the same steps as two einsums."""
    step, state = (batch, problem.heads), (problem.head_dim, problem.state)
    shapes = [(*step, state[0]), step, (batch, 1, state[1]), (batch, 1, state[1]), (*step, *state)]
    x, z, B, C, H = random_tensors(shapes, dtype=torch.float32)
    inputs = x, DECAYS["gate"](z), B, C

    forms = {
        "ssd_step_": lambda inputs, state: (ssd_step_(*inputs, state), state),
        "einsum": lambda inputs, state: _einsum_step(*inputs, state),
    }

    def steps(form, inputs, state):
        for _ in range(20):
            y, state = form(inputs, state)
        return y, state

    expected = steps(forms["einsum"], [one.double() for one in inputs], H.double())

    def enter(form):
        errors, tolerated = judge(steps(form, inputs, H.clone()), expected)
        return errors, tolerated, partial(warm_seconds, partial(steps, form, inputs, H.clone()))

    entrants = {name: partial(enter, form) for name, form in forms.items()}
    return contest(f"20 steps of decoding, batch {batch}", entrants, rounds, ["einsum"]) | {"batch": batch}


def _einsum_step(x, log_a, B, C, state):
    """The output and the new state, as one would write them."""
    state = log_a.exp()[..., None, None] * state + torch.einsum("...p,...n->...pn", x, B.expand(*x.shape[:-1], -1))
    return torch.einsum("...pn,...n->...p", state, C.expand(*x.shape[:-1], -1)), state


def layouts(problem: Problem, rounds: int) -> dict[str, object]:
    """Views of tensors (batch, T, heads, ...), as projections give them, beside contiguous ones with heads first."""
    runs = {"views": Run(SSD[0], replace(problem, views=True)), "contiguous": Run(SSD[0], problem)}
    expected = problem.oracle()
    entrants = {name: partial(checked, run.once, expected) for name, run in runs.items()}
    return contest(str(problem), entrants, rounds, ["contiguous"])


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds for the fast one, beside the fastest of others' programs, and beside our readable form, compiled."""
    rows = []
    for part, target in zip(result["contests"], SPEEDUPS, strict=True):
        faster = dict(part["speedups"].get(FAST, {}))
        compiled = faster.pop(COMPILED_SSD.name, None)
        peer = min(faster.values(), default=None)
        rows.append(at_least(f"{part['problem']}: times as fast as the best peer", target, peer))
        rows.append(at_least(f"beside the readable form, compiled, {part['problem']}: times as fast", 1, compiled))
    errors = [one["contestants"][FAST]["error"] for one in result["accuracy"]]
    rows.append(at_most("largest error under any decay", 2e-6, None if None in errors else max(errors)))
    for clock in ("against T", "against clone"):
        rows.append(at_most(f"exponent of the forward's time {clock}", 1.1, result["growth"]["exponents"][clock]))
    for part in result["memory"]:
        peak = part["bytes"][FAST]["peak"]
        what = f"peak of forward + backward over the bytes of X, T = {part['length']}"
        rows.append(at_most(what, 6, peak and peak / part["unit"]))
    part = result["efficiency"]
    rows.append(at_least(f"rate over that of a product of size {part['gemm']}", 0.55, part["fraction"]))
    for part in result["decode"]:
        what = f"step over einsum step, batch {part['batch']}"
        rows.append(at_most(what, 0.6, ratio(part, "einsum", "ssd_step_")))
    for part in result["layouts"]:
        what = f"time-first views over heads first, {part['problem']}"
        rows.append(at_most(what, 1.1, ratio(part, "contiguous", "views")))
    return rows
