"""The frame of every benchmark: what its record says besides the times, its targets, and one table for a terminal."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from benchmarks.contest import Finish, gathered
from smalearn.course.timing import machine, one_thread, quartiles

Rows = Iterable[Sequence[str]]


class Row(NamedTuple):
    """What a contest comes to."""

    problem: str  # its name
    ours: str  # the first base that is no floor
    milliseconds: float  # the median of its times
    times_as_fast: dict[str, float]  # by how many times it is faster than each peer, by their names
    of_floor: float | None  # the time of the floor over its own, None where there is no floor


def record(
    name: str,
    rounds: int,
    measure: Callable[[Finish], Mapping],
    targets: Callable[[Mapping], list],
    keep: Callable[[Mapping], object] | None = None,
) -> dict[str, object]:
    """Measure on one thread; return what is written as JSON, or what `gathered` returns if it was stopped.

    That is `command`, `machine`, `rounds`, the parts that `measure` returns, `load_at_the_end`, and `targets`, rows of
    `at_least` and `at_most`.
    """
    facts = {"command": f"smalearn bench {name}", "machine": machine(), "rounds": rounds}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result = gathered(facts, measure, keep)
    if "finished" in result:
        return result
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


def number(value: object) -> str:
    """A number for a reader."""
    return "unknown" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


def _mebibytes(value):
    return "unknown" if value is None else f"{value / 2**20:.1f} MiB"


def sections(part: object) -> Iterator[tuple[str, Rows]]:
    """Title and rows of each part of a result that is a contest, a growth or a comparison of memory."""
    if isinstance(part, list):
        for one in part:
            yield from sections(one)
    elif isinstance(part, Mapping) and "contestants" in part:
        facts = [f"{key} {number(value)}" for key, value in part.items() if isinstance(value, float)]
        facts += [f"{key} {_mebibytes(value)}" for key, value in part.items() if key.endswith("bytes")]
        yield "; ".join([part["problem"], *facts]), [_row(part, name) for name in part["contestants"]]
    elif isinstance(part, Mapping) and "exponents" in part:
        exponents = ", ".join(f"{value:.2f} {clocks}" for clocks, value in part["exponents"].items())
        yield f"Exponent of the time of {next(iter(part['seconds']))}, T = {part['lengths']}: {exponents}", []
    elif isinstance(part, Mapping) and "unit" in part:
        rows = [[name, *_memory(sizes, part["unit"])] for name, sizes in part["bytes"].items()]
        yield f"{part['problem']}; in brackets, in units of the bytes of X", rows
    elif isinstance(part, Mapping):
        for one in part.values():
            yield from sections(one)


def summary(result: object) -> Iterator[Row]:
    """A row for each contest of a record in which ours has a time, whole or stopped."""
    if isinstance(result, Mapping) and "contestants" in result:
        ratios, entries = result["speedups"], result["contestants"]
        floor = next((ratios[base] for base in ratios if "error" not in entries[base]), {})
        for ours in [base for base in ratios if "error" in entries[base]][:1]:
            slower = floor.get(ours)
            milliseconds = 1e3 * statistics.median(entries[ours]["seconds"])
            yield Row(result["problem"], ours, milliseconds, ratios[ours], slower and 1 / slower)
    elif isinstance(result, Mapping | list):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from summary(part)


def _short(row):
    """A row of `summary` in cells."""
    floor = "" if row.of_floor is None else f"{row.of_floor:.0%} of the floor"
    peers = ", ".join(f"{ratio:.2f} × {name}" for name, ratio in row.times_as_fast.items())
    return row.problem, row.ours, f"{row.milliseconds:.3f} ms", floor, peers


def _row(part, name):
    """An entrant of a contest: median, quartiles and least time, error, whatever else it has, ratios, all errors."""
    entry = part["contestants"][name]
    if "absent" in entry:
        return name, f"absent: {entry['absent']}"
    cells = [] if entry.get("tolerated", True) else ["not reported"]
    if "seconds" in entry:
        low, middle, high = (f"{1e3 * seconds:.3f}" for seconds in quartiles(entry["seconds"]))
        cells += [f"{middle} ms", f"{low} to {high}", f"least {1e3 * min(entry['seconds']):.3f}"]
    cells += [f"{key} {number(entry[key])}" for key in entry if key not in ("errors", "seconds", "tolerated")]
    ratios = {base: others[name] for base, others in part["speedups"].items() if name in others}
    cells.append(", ".join(f"{ratio:.2f} × {base}" for base, ratio in ratios.items()))
    return name, *cells, " ".join(map(number, entry.get("errors", [])[:6]))


def _memory(sizes, unit):
    """Bytes in MiB and in units."""
    for key, size in sizes.items():
        yield f"{key} {_mebibytes(size)}" + ("" if size is None else f" ({size / unit:.1f})")


def table(result: Mapping, records: Mapping[str, Mapping]) -> str:
    """A result for a terminal: machine, sections, of a device their summary, targets."""
    facts = result["machine"] | result.get("device", {}) | result.get("rates", {})
    lines = [f"{key}: {value}" for key, value in facts.items()]
    targets = [("", "recorded on", *records)] * bool(records)
    for row in result["targets"]:
        shown = f"{row['what']} {number(row['target'])}: {number(row['measured'])}"
        elsewhere = (number(one.get(row["what"])) for one in records.values())
        targets.append(("met" if row["met"] else "MISSED", shown, *elsewhere))
    ours = [("Ours, and how many times as fast as its peers", map(_short, summary(result)))] * ("device" in result)
    for title, rows in [*sections(dict(result)), *ours, *[("Targets", targets)] * bool(result["targets"])]:
        lines += ["", title, *_columns(rows)]
    return "\n".join([*lines, *["", result.get("note")] * bool(result.get("note"))])


def _columns(rows: Rows) -> Iterator[str]:
    """Rows with their cells below each other; the last cell of a row does not widen its column."""
    rows = [list(row) for row in rows]
    count = max(map(len, rows), default=0)
    widths = [max((len(row[k]) for row in rows if len(row) > k + 1), default=0) for k in range(count)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  " + "   ".join(cells).rstrip()
