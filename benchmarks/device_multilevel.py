"""The benchmark `multilevel --device`: multi-level attention on a device, forward, beside attention of one level.

In bfloat16, in which `fast.multilevel_attention` does not take the program: at these sizes it is right, and judged.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from benchmarks.contest import ratio
from benchmarks.device import floor, measure, record
from benchmarks.implementation import Implementation
from benchmarks.multilevel import EQUAL, STANDARD, definition, standard, with_levels
from benchmarks.problem import Problem
from benchmarks.report import at_most
from smalearn.fast.triton.multilevel import multilevel_forward
from smalearn.multilevel import halving_blocks, parse_ranks, score_macs

_problem = partial(Problem, decay=None, shared=False, views=True)
PROBLEMS = tuple(
    _problem(batch=batch, heads=16, length=length, head_dim=64, state=64, dtype=torch.bfloat16, device="cuda")
    for batch, length in ((4, 4096), (1, 16384))
)
TINY = (_problem(batch=2, heads=2, length=130, head_dim=16, state=64),)
RANKS = parse_ranks(EQUAL)


def _forward(*arguments):
    return multilevel_forward(*arguments)[0]


def _attention(name, load, ranks, **options):
    return Implementation(name, load, exact=partial(definition, ranks), **options)


def _ours(name, ranks, **options):
    return _attention(
        name, partial(with_levels, _forward, ranks), ranks, at_length=partial(definition, ranks), **options
    )


OURS, ONE = f"multilevel_forward, {EQUAL}", "multilevel_forward, one level of 64"
ATTENTIONS = (
    _ours(OURS, RANKS, base=True),
    _ours(ONE, (sum(RANKS),)),
    _attention(STANDARD, standard, (sum(RANKS),)),  # computes one level: to compare with, it is another function
)


def benchmark(
    device: str = "cuda", problems: Sequence[Problem] | None = None, rounds: int = 15, keep: Callable | None = None
) -> dict[str, object]:
    """Run all parts, in less than a minute."""
    sizes = problems or (PROBLEMS if device == "cuda" else TINY)

    def parts(rates, finish):
        bounds = {one: floor(work(one), rates) for one in sizes}
        return {"contests": [finish(part) for one in sizes for part in measure(one, ATTENTIONS, bounds[one], rounds)]}

    return record("multilevel", device, rounds, parts, targets, keep)


def work(problem: Problem) -> dict[str, tuple[float, float]]:
    """Bytes and flops that no program of the eight levels can do without.

    Operands are read once and results are written once, log Σ exp S in float32. For each head the scores take
    2·Σ_l r_l · (pairs of tokens j ≤ i that share a block of level l) flops, and the values 2·P·T·(T + 1)/2.
    Exponentials are not counted.
    """
    heads, length = problem.batch * problem.heads, problem.length
    P, N = problem.head_dim, problem.state
    scores = score_macs(length, RANKS, halving_blocks(length, len(RANKS)))
    size = heads * length * (problem.dtype.itemsize * 2 * (N + P) + 4)
    return {"forward": (size, heads * (2 * scores + P * length * (length + 1)))}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on the time of eight levels over that of one."""
    rows = []
    for part in result["contests"]:
        for name, most in ((ONE, 0.8), (STANDARD, 1.0)):
            faster = ratio(part, OURS, name)
            what = f"{part['problem']}: time of eight levels over {name}"
            rows.append(at_most(what, most, faster and 1 / faster))
    return rows
