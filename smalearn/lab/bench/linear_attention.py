"""The benchmark `linear-attention`: contests with peers, growth of the time with T, and memory of the backward."""

from collections.abc import Mapping
from dataclasses import replace

from smalearn.lab.bench.contestants import BACKWARDS, CONTESTANTS
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
from smalearn.lab.bench.problem import Problem
from smalearn.lab.bench.timing import machine

__all__ = ["benchmark", "table", "targets"]

FAST = CONTESTANTS[0].name


def benchmark(problem: Problem | None = None, rounds: int = 31) -> dict[str, object]:
    """Run all parts, several minutes at the usual sizes.

    Args:
        problem: sizes of the contests; the growth is measured from twice its length on, the memory at four times.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `contests`, `growth`, `memory`, `targets`.
    """
    problem = Problem() if problem is None else problem
    cases = [replace(problem, decay=decay, backward=backward) for backward in (False, True) for decay in (False, True)]
    longer = [replace(problem, length=problem.length * 2**k) for k in range(1, 5)]
    result = {
        "command": "smalearn bench linear-attention",
        "machine": machine(),
        "rounds": rounds,
        "contests": race(cases, CONTESTANTS, rounds),
        "growth": growth(CONTESTANTS[0], longer, max(1, rounds // 3)),
        "memory": memory(replace(problem, length=4 * problem.length), BACKWARDS),
        "load_at_the_end": machine()["load"],
    }
    return result | {"targets": targets(result)}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None without a peer), `met`.

    The fast one counts, in a contest against its fastest peer.
    """
    rows = []
    for part in result["contests"]:
        best = min(part["speedups"].get(FAST, {}).values(), default=None)
        target = 2.0 if part["sizes"]["backward"] else 1.8
        rows.append((f"{part['problem']}: times as fast as the best peer, at least", target, best, 1))
    for clock in ("against T", "against clone"):
        exponent = result["growth"]["exponents"][clock]
        rows.append((f"exponent of the forward's time {clock}, at most", 1.1, exponent, -1))
    saved = {name: found["saved"] for name, found in result["memory"]["bytes"].items()}
    for name in (FAST, "linear_attention_recomputed"):
        fraction = saved[name] / saved["linear_attention_recurrent"]
        rows.append((f"{name}: saved bytes over those of the recurrence, at most", 1 / 8, fraction, -1))
    return judged(rows)


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    for part in result["contests"]:
        lines += ["", part["problem"], *contest_lines(part)]
    lines += ["", growth_line(result["growth"]), ""]
    return "\n".join([*lines, *memory_lines(result["memory"]), "", *target_lines(result["targets"])])
