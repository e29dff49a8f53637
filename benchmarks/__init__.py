"""Times beside peers: a time is reported only for an implementation whose numbers are right.

Implementations on a CPU run in a process of their own each, on one thread, in interleaved rounds, and all samples are
kept. Our GPU programs and their peers, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Callable, Mapping

from benchmarks import (
    bilinear,
    contest,
    delta_rule,
    device,
    device_delta_rule,
    device_multilevel,
    device_ssd,
    linear_attention,
    masks,
    multilevel,
    records,
    report,
    ssd,
    training,
    weights,
)
from benchmarks.records import place_of
from smalearn.course.timing import machine

__all__ = ["BENCHMARKS", "DEVICE_BENCHMARKS", "device", "place_of", "run", "table"]

BENCHMARKS = {
    "bilinear": bilinear.benchmark,
    "delta-rule": delta_rule.benchmark,
    "linear-attention": linear_attention.benchmark,
    "masks": masks.benchmark,
    "multilevel": multilevel.benchmark,
    "ssd": ssd.benchmark,
    "training": training.benchmark,
    "weights": weights.benchmark,
}
DEVICE_BENCHMARKS = {
    "delta-rule": device_delta_rule.benchmark,
    "multilevel": device_multilevel.benchmark,
    "ssd": device_ssd.benchmark,
}


def run(name: str, on: str | None = None, keep: Callable[[Mapping], object] | None = None) -> dict[str, object]:
    """Run a benchmark to its end, or until Ctrl-C.

    Args:
        name: one of `BENCHMARKS`.
        on: the device of our GPU programs, for one of `DEVICE_BENCHMARKS`; None for the CPU's form.
        keep: is called with what is finished whenever a part is: as the result of one that was stopped.

    Returns:
        Its result. Of one that was stopped, `command`, `machine`, `finished` (its parts so far), no `targets`; of a
        device also what `device.record` says of it.

    Raises:
        KeyboardInterrupt: it was stopped before any part was finished.
    """
    contest.FINISHED.clear()
    contest.FACTS.clear()
    contest.FACTS.update(command=f"smalearn bench {name}" + (f" --device {on}" if on else ""), machine=machine())
    contest.LISTENERS[:] = [lambda: keep(_unfinished())] if keep else []
    try:
        return DEVICE_BENCHMARKS[name](on) if on else BENCHMARKS[name]()
    except KeyboardInterrupt:
        if not contest.FINISHED:
            raise
    finally:
        contest.LISTENERS.clear()
    return _unfinished()


def _unfinished():
    return {**contest.FACTS, "finished": list(contest.FINISHED), "targets": []}


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal, beside those recorded on every CPU."""
    return report.table(result, records.beside(result["command"].removeprefix("smalearn bench ")))
