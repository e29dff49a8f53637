"""Times beside peers: a time is reported only for an implementation whose numbers are right.

Implementations on a CPU run in a process of their own each, on one thread, in interleaved rounds, and all samples are
kept. Our GPU programs and their peers, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Mapping

from smalearn.lab.bench import (
    bilinear,
    constants,
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

__all__ = ["BENCHMARKS", "device", "place_of", "table"]

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


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal, beside those recorded on every CPU."""
    return report.table(result, records.beside(result["command"].removeprefix("smalearn bench ")))
