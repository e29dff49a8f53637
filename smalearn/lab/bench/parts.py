"""The parts that benchmarks share: races, growth with T, memory of the backward, targets, and how they are printed."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from smalearn.lab.bench.contestants import Contestant
from smalearn.lab.bench.problem import Problem, SSDProblem
from smalearn.lab.bench.timing import (
    contest,
    grown_bytes,
    interleaved,
    one_thread,
    process,
    saved_bytes,
    seconds,
    slope,
)

__all__ = [
    "contest_lines",
    "growth",
    "growth_line",
    "judged",
    "memory",
    "memory_lines",
    "memory_of",
    "race",
    "speedups",
    "target_lines",
]

WIDTH = 31  # of a contestant's name in a table


def race(
    problems: Sequence[Problem | SSDProblem], contestants: Sequence[Contestant], rounds: int
) -> list[dict[str, object]]:
    """One contest for each problem, every contestant in one process of its own.

    Returns:
        For each problem its `problem`, `sizes`, `contestants` (see `timing.contest`), and `speedups`: for each of
        ours and each peer, median(peer) / median(ours).
    """
    with contextlib.ExitStack() as stack:
        processes = {contestant.name: stack.enter_context(process()) for contestant in contestants}
        found = [contest(problem, contestants, processes, rounds) for problem in problems]
    ours = [contestant.name for contestant in contestants if contestant.ours]
    return [
        {"problem": str(problem), "sizes": asdict(problem), "contestants": entries, "speedups": speedups(entries, ours)}
        for problem, entries in zip(problems, found, strict=True)
    ]


def speedups(entries: Mapping[str, Mapping], ours: Sequence[str]) -> dict[str, dict[str, float]]:
    """The ratio median(peer) / median(ours) for each of ours and each peer that was timed."""
    medians = {name: statistics.median(entry["seconds"]) for name, entry in entries.items() if "seconds" in entry}
    peers = [name for name in medians if name not in ours]
    return {name: {peer: medians[peer] / medians[name] for peer in peers} for name in ours if name in medians}


def growth(contestant: Contestant, problems: Sequence[Problem | SSDProblem], rounds: int) -> dict[str, object]:
    """Time of the forward against T, beside that of a copy of its values: linear in T, whatever the caches make of it.

    Returns:
        `lengths`; `seconds` of both for each; and the exponents p: of time ∝ T^p for both, and of time ∝ clone^p.
    """
    turns, lengths = {}, [problem.length for problem in problems]
    for problem in problems:
        compute, values = contestant.job(problem), problem.inputs()[1]
        turns[contestant.name, problem.length] = lambda compute=compute: seconds(lambda: compute(False))
        turns["clone", problem.length] = lambda values=values: seconds(values.clone)
    with one_thread():
        interleaved(turns, 1)  # what is called for the first time takes longer
        samples = interleaved(turns, rounds)
    times = {name: [samples[name, length] for length in lengths] for name in (contestant.name, "clone")}
    ours, clone = ([statistics.median(one) for one in times[name]] for name in times)
    exponents = {
        "against T": slope(lengths, ours),
        "clone against T": slope(lengths, clone),
        "against clone": slope(clone, ours),
    }
    return {"lengths": lengths, "seconds": times, "exponents": exponents}


def memory(problem: Problem | SSDProblem, contestants: Sequence[Contestant]) -> dict[str, object]:
    """Of forward and backward: what autograd saves between them, and by how much the process grows.

    Returns:
        `length`; `unit`, the bytes of the values; and `bytes`, for each contestant that is there `saved` and `peak`,
        `peak` None where the system does not say.
    """
    found = {}
    for contestant in contestants:
        with process() as fresh:
            found[contestant.name] = fresh.submit(memory_of, contestant, problem).result()
    unit = 4 * problem.length * problem.heads * problem.head_dim
    return {"length": problem.length, "unit": unit, "bytes": {name: one for name, one in found.items() if one}}


def memory_of(contestant: Contestant, problem: Problem | SSDProblem) -> dict[str, int | None] | None:
    """In a fresh process: saved bytes, and growth of the peak by a forward and backward; None if it is absent."""
    with one_thread():
        try:
            contestant.job(replace(problem, length=64))(True)  # libraries load
        except ImportError:
            return None
        compute = contestant.job(problem)
        peak = grown_bytes(lambda: compute(True))
        return {"saved": saved_bytes(lambda: compute(True)), "peak": peak}


def judged(rows: Sequence[tuple[str, float, float | None, int]]) -> list[dict[str, object]]:
    """Targets with their verdict.

    Args:
        rows: what is aimed at, the target, what was measured (None if nothing was), 1 for at least or -1 for at most.

    Returns:
        For each row `what`, `target`, `measured`, `met`.
    """
    return [
        {"what": what, "target": target, "measured": value, "met": value is not None and sign * value >= sign * target}
        for what, target, value, sign in rows
    ]


def contest_lines(part: Mapping) -> Iterator[str]:
    """One line for each contestant: its median, its error, and how many times faster ours are."""
    for name, entry in part["contestants"].items():
        if "absent" in entry:
            yield f"  {name:{WIDTH}} absent: {entry['absent']}"
        elif "seconds" not in entry:
            yield f"  {name:{WIDTH}} not reported: error {entry['error']:.0e}"
        else:
            ratios = [f"{other[name]:.2f}" for other in part["speedups"].values() if name in other]
            faster = f"   ours are faster by {', '.join(ratios)}" if ratios else ""
            median = 1e3 * statistics.median(entry["seconds"])
            yield f"  {name:{WIDTH}} {median:8.2f} ms   error {entry['error']:.0e}{faster}"


def growth_line(part: Mapping) -> str:
    """The exponents of all clocks."""
    exponents = ", ".join(f"{value:.2f} {name}" for name, value in part["exponents"].items())
    return f"Exponent of the forward's time, T = {part['lengths']}: {exponents}"


def memory_lines(part: Mapping) -> Iterator[str]:
    """What each contestant saves, and its peak, in MiB and in units of the values."""
    yield f"Memory of forward + backward, T = {part['length']}; in brackets, in units of the values' bytes"
    for name, found in part["bytes"].items():
        saved, peak = (
            "unknown" if x is None else f"{x / 2**20:7.1f} MiB ({x / part['unit']:.1f})" for x in found.values()
        )
        yield f"  {name:{WIDTH}} saved {saved:21} peak {peak}"


def target_lines(rows: Sequence[Mapping]) -> Iterator[str]:
    """One line for each target."""
    yield "Targets"
    for row in rows:
        measured = "unknown" if row["measured"] is None else f"{row['measured']:.3g}"
        yield f"  {'met   ' if row['met'] else 'MISSED'} {row['what']} {row['target']:.3g}: {measured}"
