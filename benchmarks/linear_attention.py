"""The benchmark `linear-attention`: times beside peers, growth of the time with T, and memory of the backward."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.contest import best, growth, ratio
from benchmarks.implementation import Run, compare, memory
from benchmarks.peers import BACKWARDS, LINEAR_ATTENTION
from benchmarks.problem import Problem
from benchmarks.report import at_least, at_most, record

FAST, READABLE, _, FLOOR = (one.name for one in LINEAR_ATTENTION[:4])
PROBLEM = Problem(length=2048, heads=8, state=64, head_dim=64, shared=False)


def benchmark(problem: Problem = PROBLEM, rounds: int = 31, keep: Callable | None = None) -> dict[str, object]:
    """Run all parts, about ten minutes at the usual sizes, half of it a compiler's, which no time counts."""
    ways = [(decay, backward) for backward in (False, True) for decay in (None, "gate")]
    longer = [replace(problem, length=problem.length * 2**k) for k in range(1, 5)]
    fourfold = replace(problem, length=4 * problem.length, backward=True)

    def measure(finish):
        runs = {one.length: (Run(LINEAR_ATTENTION[0], one).once, one.inputs()[1]) for one in longer}
        problems = [replace(problem, decay=decay, backward=backward) for decay, backward in ways]
        return {
            "contests": list(map(finish, compare(problems, LINEAR_ATTENTION, rounds))),
            "growth": finish(growth(FAST, runs, max(1, rounds // 3))),
            "memory": finish(memory(fourfold, BACKWARDS)),
        }

    return record("linear-attention", rounds, measure, targets, keep)


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds for the fast one, beside its products alone, its fastest peer, and the readable form."""
    rows = []
    for part in result["contests"]:
        problem = part["problem"]
        over, readable = (ratio(part, FLOOR, name) for name in (FAST, READABLE))  # times, in units of the floor's
        rows.append(at_most(f"{problem}: time over that of its products alone", 1 / 0.85, over))
        rows.append(at_least(f"{problem}: times as fast as the best peer", 1.0, best(part, FAST)))
        rows.append(
            at_least(f"{problem}: times as fast as the readable form", 1.0, over and readable and readable / over)
        )
    for clock in ("against T", "against clone"):
        rows.append(at_most(f"exponent of the forward's time {clock}", 1.1, result["growth"]["exponents"][clock]))
    saved = {name: sizes["saved"] for name, sizes in result["memory"]["bytes"].items()}
    for name in (FAST, "linear_attention_recomputed"):
        what = f"{name}: saved bytes over those of the recurrence"
        rows.append(at_most(what, 1 / 8, saved[name] / saved["linear_attention_recurrent"]))
    return rows
