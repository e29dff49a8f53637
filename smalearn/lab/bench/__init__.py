"""Timing side by side with peers: a time is reported only for a contestant whose numbers are right.

A contest runs every contestant in a process of its own, on one thread, in interleaved rounds, and keeps all samples.
Those of our GPU programs, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Mapping

from smalearn.lab.bench import bilinear, device, linear_attention, masks, multilevel, ssd, training, weights
from smalearn.lab.bench.contestants import CONTESTANTS, Contestant
from smalearn.lab.bench.linear_attention import benchmark
from smalearn.lab.bench.problem import Problem, SSDProblem

__all__ = ["BENCHMARKS", "CONTESTANTS", "Contestant", "Problem", "SSDProblem", "benchmark", "table"]

BENCHMARKS = {
    "bilinear": bilinear.benchmark,
    "linear-attention": benchmark,
    "masks": masks.benchmark,
    "multilevel": multilevel.benchmark,
    "ssd": ssd.benchmark,
    "training": training.benchmark,
    "weights": weights.benchmark,
}
_TABLES = {
    "bilinear": bilinear.table,
    "linear-attention": linear_attention.table,
    "masks": masks.table,
    "multilevel": multilevel.table,
    "ssd": ssd.table,
    "ssd --device cpu": device.table,
    "ssd --device cuda": device.table,
    "training": training.table,
    "weights": weights.table,
}


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal."""
    return _TABLES[result["command"].removeprefix("smalearn bench ")](result)
