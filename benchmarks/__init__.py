"""Times beside peers: a time is reported only for an implementation whose numbers are right.

Implementations on a CPU run in a process of their own each, on one thread, in interleaved rounds, and all samples are
kept. Our GPU programs and their peers, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Callable, Mapping

from benchmarks import (
    bilinear,
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
    """Run a benchmark to its end, or until Ctrl-C, on a device (`DEVICE_BENCHMARKS`) or, where `on` is None, a CPU.

    `keep` is called with what is finished whenever a part is; that is also the result of one that was stopped.
    """
    return DEVICE_BENCHMARKS[name](on, keep=keep) if on else BENCHMARKS[name](keep=keep)


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal, beside those recorded on every CPU."""
    return report.table(result, records.beside(result["command"].removeprefix("smalearn bench ")))
