"""Times beside peers: a time is reported only for an implementation whose numbers are right.

Implementations on a CPU run in a process of their own each, on one thread, in interleaved rounds, and all samples are
kept. Our GPU programs and their peers, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Mapping

from smalearn.lab.bench import (
    bilinear,
    constants,
    contest,
    delta_rule,
    device,
    linear_attention,
    masks,
    multilevel,
    records,
    report,
    ssd,
    training,
    weights,
)
from smalearn.lab.bench.records import place_of
from smalearn.lab.bench.timing import machine

__all__ = ["BENCHMARKS", "device", "place_of", "run", "table"]

BENCHMARKS = {
    "bilinear": bilinear.benchmark,
    "constants": constants.benchmark,
    "delta-rule": delta_rule.benchmark,
    "linear-attention": linear_attention.benchmark,
    "masks": masks.benchmark,
    "multilevel": multilevel.benchmark,
    "ssd": ssd.benchmark,
    "training": training.benchmark,
    "weights": weights.benchmark,
}


def run(name: str, on: str | None = None, tuning: bool = False) -> dict[str, object]:
    """Run a benchmark to its end, or until Ctrl-C.

    Args:
        name: one of `BENCHMARKS`.
        on: of "ssd", the device of our GPU programs; None for the CPU's form.
        tuning: see `device.benchmark`.

    Returns:
        Its result. Of one that was stopped, `command`, `machine`, `finished` (its parts so far), no `targets`.

    Raises:
        KeyboardInterrupt: it was stopped before any part was finished.
    """
    contest.FINISHED.clear()
    try:
        return device.benchmark(on, tuning=tuning) if on else BENCHMARKS[name]()
    except KeyboardInterrupt:
        if not contest.FINISHED:
            raise
    command = f"smalearn bench {name}" + (f" --device {on}" if on else "")
    return {"command": command, "machine": machine(), "finished": list(contest.FINISHED), "targets": []}


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal, beside those recorded on every CPU."""
    return report.table(result, records.beside(result["command"].removeprefix("smalearn bench ")))
