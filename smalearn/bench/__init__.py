"""Timing side by side with peers: a time is reported only for a contestant whose numbers are right.

A contest runs every contestant in a process of its own, on one thread, in interleaved rounds, and keeps all samples.
"""

from collections.abc import Mapping

from smalearn.bench import linear_attention, masks, ssd, weights
from smalearn.bench.contestants import CONTESTANTS, Contestant
from smalearn.bench.linear_attention import benchmark
from smalearn.bench.problem import Problem, SSDProblem

__all__ = ["BENCHMARKS", "CONTESTANTS", "Contestant", "Problem", "SSDProblem", "benchmark", "table"]

BENCHMARKS = {
    "linear-attention": benchmark,
    "masks": masks.benchmark,
    "ssd": ssd.benchmark,
    "weights": weights.benchmark,
}
_TABLES = {"linear-attention": linear_attention.table, "masks": masks.table, "ssd": ssd.table, "weights": weights.table}


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal."""
    return _TABLES[result["command"].split()[-1]](result)
