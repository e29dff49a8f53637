"""The benchmark `delta-rule`: times beside peers, growth of the time with T, memory of forward and backward."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.contest import best, growth
from benchmarks.implementation import Run, compare, memory
from benchmarks.peers import DELTA_RULE
from benchmarks.problem import Problem
from benchmarks.report import at_least, at_most, record

FAST, _, *PEERS = (one.name for one in DELTA_RULE)
PROBLEMS = (
    Problem(length=2048, heads=8, state=64, head_dim=64, shared=False),
    Problem(length=2048, heads=16, state=128, head_dim=128, shared=False),
    Problem(length=8192, heads=8, state=64, head_dim=64, shared=False),
)
SPEEDUPS = {False: 2.0, True: 2.5}


def benchmark(
    problems: Sequence[Problem] = PROBLEMS, rounds: int = 15, keep: Callable | None = None
) -> dict[str, object]:
    """Run all parts, about ten minutes at the usual sizes."""
    both = [replace(one, backward=backward) for one in problems for backward in (False, True)]
    longer = [replace(problems[0], length=problems[0].length * 2**k) for k in range(5)]

    def measure(finish):
        runs = {one.length: (Run(DELTA_RULE[0], one).once, one.inputs()[1]) for one in longer}
        return {
            "contests": list(map(finish, compare(both, DELTA_RULE, rounds))),
            "growth": finish(growth(FAST, runs, max(1, rounds // 3))),
            "memory": [finish(memory(one, DELTA_RULE)) for one in both if one.backward],
        }

    return record("delta-rule", rounds, measure, targets, keep)


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds for the fast one, beside its fastest peer and the one that takes the least memory."""
    rows = []
    for part in result["contests"]:
        problem, bound = part["problem"], SPEEDUPS[part["sizes"]["backward"]]
        rows.append(at_least(f"{problem}: times as fast as the best peer", bound, best(part, FAST)))
    for part in result["memory"]:
        peaks = {name: sizes["peak"] for name, sizes in part["bytes"].items()}
        least = min((peak for name, peak in peaks.items() if name in PEERS and peak), default=None)
        what = f"{part['problem']}: peak over that of the best peer"
        rows.append(at_most(what, 1 / 3, least and peaks[FAST] and peaks[FAST] / least))
    for clock in ("against T", "against clone"):
        rows.append(at_most(f"exponent of the forward's time {clock}", 1.05, result["growth"]["exponents"][clock]))
    return rows
