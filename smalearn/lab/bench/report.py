"""The frame of every benchmark: what its record says besides the times, its targets, and one table for a terminal."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from smalearn.lab.bench.timing import machine, one_thread

__all__ = ["at_least", "at_most", "medians", "milliseconds", "outcome", "record", "render", "speedups"]

Rows = Iterable[Sequence[str]]


def record(
    name: str, rounds: int, measure: Callable[[], Mapping], targets: Callable[[Mapping], list]
) -> dict[str, object]:
    """Measure on one thread.

    Args:
        name: of the benchmark.
        rounds: samples of each time.
        measure: returns the parts of the result.
        targets: from the result to rows of `at_least` and `at_most`.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, the parts, `load_at_the_end`, `targets`.
    """
    result = {"command": f"smalearn bench {name}", "machine": machine(), "rounds": rounds}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result |= measure()
    result["load_at_the_end"] = machine()["load"]
    return result | {"targets": targets(result)}


def at_least(what: str, target: float, measured: float | None) -> dict[str, object]:
    """A lower bound on what was measured, None if it was not: `what`, `target`, `measured`, `met`."""
    met = measured is not None and measured >= target
    return {"what": f"{what}, at least", "target": target, "measured": measured, "met": met}


def at_most(what: str, target: float, measured: float | None) -> dict[str, object]:
    """An upper bound, as `at_least`."""
    met = measured is not None and measured <= target
    return {"what": f"{what}, at most", "target": target, "measured": measured, "met": met}


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of every list of samples."""
    return {name: statistics.median(samples) for name, samples in seconds.items()}


def speedups(entries: Mapping[str, Mapping], ours: Iterable[str]) -> dict[str, dict[str, float]]:
    """The ratio median(peer) / median(ours) for each of ours and each peer that was timed."""
    middle = medians({name: entry["seconds"] for name, entry in entries.items() if "seconds" in entry})
    peers = [name for name in middle if name not in ours]
    return {name: {peer: middle[peer] / middle[name] for peer in peers} for name in ours if name in middle}


def milliseconds(samples: Sequence[float], of: Callable = statistics.median) -> str:
    """The median of samples in seconds, for a reader."""
    return f"{1e3 * of(samples):.2f} ms"


def outcome(entry: Mapping) -> str:
    """Reason why an implementation has no times."""
    return f"absent: {entry['absent']}" if "absent" in entry else f"not reported: error {entry['error']:.0e}"


def render(result: Mapping, sections: Iterable[tuple[str, Rows]]) -> str:
    """A result for a terminal: machine, sections, targets.

    Args:
        result: of a benchmark.
        sections: title and rows of cells of each.
    """
    facts = result["machine"] | result.get("device", {})
    lines = [f"{key}: {value}" for key, value in facts.items()]
    targets = [
        ("met" if row["met"] else "MISSED", f"{row['what']} {row['target']:.3g}: {_number(row['measured'])}")
        for row in result["targets"]
    ]
    for title, rows in [*sections, *[("Targets", targets)] * bool(targets)]:
        lines += ["", title, *_columns(rows)]
    return "\n".join(lines)


def _number(value):
    return "unknown" if value is None else f"{value:.3g}"


def _columns(rows: Rows) -> Iterator[str]:
    """Rows with their cells below each other; the last cell of a row does not widen its column."""
    rows = [list(row) for row in rows]
    count = max(map(len, rows), default=0)
    widths = [max((len(row[k]) for row in rows if len(row) > k + 1), default=0) for k in range(count)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  " + "   ".join(cells).rstrip()
