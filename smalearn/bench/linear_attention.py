"""The benchmark `linear-attention`: contests with peers, growth of the time with T, and memory of the backward."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from smalearn.bench.contestants import CONTESTANTS, Contestant
from smalearn.bench.problem import Problem, job
from smalearn.bench.timing import (
    contest,
    interleaved,
    machine,
    one_thread,
    peak_bytes,
    process,
    saved_bytes,
    seconds,
    slope,
)
from smalearn.linear_attention import (
    linear_attention_chunked,
    linear_attention_recomputed,
    linear_attention_recurrent,
)

__all__ = ["benchmark", "growth", "memory", "race", "table", "targets"]

BACKWARDS = {
    "linear_attention_recomputed": linear_attention_recomputed,
    "linear_attention_chunked": linear_attention_chunked,
    "linear_attention_recurrent": linear_attention_recurrent,
}


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
    result = {
        "command": "smalearn bench linear-attention",
        "machine": machine(),
        "rounds": rounds,
        "contests": race(cases, CONTESTANTS, rounds),
        "growth": growth(problem, [problem.length * 2**k for k in range(1, 5)], max(1, rounds // 3)),
        "memory": memory(replace(problem, length=4 * problem.length)),
        "load_at_the_end": machine()["load"],
    }
    return result | {"targets": targets(result)}


def race(problems: Sequence[Problem], contestants: Sequence[Contestant], rounds: int) -> list[dict[str, object]]:
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


def growth(problem: Problem, lengths: Sequence[int], rounds: int) -> dict[str, object]:
    """Time of the forward against T, beside `V.clone()`: that is linear in T, whatever the caches make of it.

    Returns:
        `lengths`; `seconds` of both for each; and the exponents p: of time ∝ T^p for both, and of time ∝ clone^p.
    """
    turns = {}
    for length in lengths:
        inputs = replace(problem, length=length, decay=True).inputs()
        compute = job(lambda *x: linear_attention_chunked(*x)[0], inputs)
        turns["linear_attention_chunked", length] = lambda compute=compute: seconds(lambda: compute(False))
        turns["clone", length] = lambda V=inputs[2]: seconds(V.clone)
    with one_thread():
        interleaved(turns, 1)  # what is called for the first time takes longer
        samples = interleaved(turns, rounds)
    times = {name: [samples[name, length] for length in lengths] for name in ("linear_attention_chunked", "clone")}
    ours, clone = ([statistics.median(one) for one in times[name]] for name in times)
    exponents = {
        "against T": slope(lengths, ours),
        "clone against T": slope(lengths, clone),
        "against clone": slope(clone, ours),
    }
    return {"lengths": list(lengths), "seconds": times, "exponents": exponents}


def memory(problem: Problem) -> dict[str, object]:
    """Of forward and backward: what autograd saves between them, and by how much the process grows.

    Returns:
        `length`; for each of our forms `saved` and `peak` in bytes, `peak` None where the system does not say; and
        `fractions`, both of the recomputing form over those of autograd through the recurrence.
    """
    found = {}
    for name in BACKWARDS:
        with process() as fresh:
            found[name] = fresh.submit(memory_of, name, problem).result()
    ours, naive = found["linear_attention_recomputed"], found["linear_attention_recurrent"]
    fractions = {kind: ours[kind] / naive[kind] for kind in ours if naive[kind]}
    return {"length": problem.length, "bytes": found, "fractions": fractions}


def memory_of(name: str, problem: Problem) -> dict[str, int | None]:
    """In a fresh process: saved bytes of a forward, and growth of the peak by a forward and backward."""
    compute = job(lambda *x: BACKWARDS[name](*x)[0], problem.inputs())
    with one_thread():
        job(lambda *x: BACKWARDS[name](*x)[0], replace(problem, length=64).inputs())(True)  # libraries load
        before = peak_bytes()
        compute(True)
        peak = None if before is None else peak_bytes() - before
        return {"saved": saved_bytes(lambda: compute(True)), "peak": peak}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None without a peer), `met`.

    A contest counts by the fastest of ours over the fastest of its peers.
    """
    rows = []
    for part in result["contests"]:
        best = max((min(peers.values()) for peers in part["speedups"].values() if peers), default=None)
        target = 2.0 if part["sizes"]["backward"] else 1.8
        rows.append((f"{part['problem']}: times as fast as the best peer, at least", target, best, 1))
    for clock in ("against T", "against clone"):
        exponent = result["growth"]["exponents"][clock]
        rows.append((f"exponent of the forward's time {clock}, at most", 1.1, exponent, -1))
    saved = result["memory"]["fractions"]["saved"]
    rows.append(("saved bytes over those of the recurrence, at most", 1 / 8, saved, -1))
    return [
        {"what": what, "target": target, "measured": value, "met": value is not None and sign * value >= sign * target}
        for what, target, value, sign in rows
    ]


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    for part in result["contests"]:
        lines += ["", part["problem"], *map(str.rstrip, _rows(part))]
    exponents = ", ".join(f"{value:.2f} {name}" for name, value in result["growth"]["exponents"].items())
    lines += ["", f"Exponent of the forward's time, T = {result['growth']['lengths']}: {exponents}", ""]
    lines += [f"Memory of forward + backward, T = {result['memory']['length']}"]
    for name, found in result["memory"]["bytes"].items():
        peak = "unknown" if found["peak"] is None else f"{found['peak'] / 2**20:.0f} MiB"
        lines.append(f"  {name:30} saved {found['saved'] / 2**20:7.0f} MiB   peak {peak}")
    lines += ["", "Targets"]
    for row in result["targets"]:
        measured = "unknown" if row["measured"] is None else f"{row['measured']:.2f}"
        lines.append(f"  {'met   ' if row['met'] else 'MISSED'} {row['what']} {row['target']:.3g}: {measured}")
    return "\n".join(lines)


def _rows(part):
    """One line for each contestant: its median, its error, and how many times faster ours are."""
    for name, entry in part["contestants"].items():
        if "absent" in entry:
            yield f"  {name:30} absent: {entry['absent']}"
        elif "seconds" not in entry:
            yield f"  {name:30} not reported: error {entry['error']:.0e}"
        else:
            ratios = [f"{other[name]:.2f}" for other in part["speedups"].values() if name in other]
            faster = f"   ours are faster by {', '.join(ratios)}" if ratios else ""
            median = 1e3 * statistics.median(entry["seconds"])
            yield f"  {name:30} {median:8.2f} ms   error {entry['error']:.0e}{faster}"
