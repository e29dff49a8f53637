"""Timing side by side with peers: a time is reported only for a contestant whose numbers are right.

A contest runs every contestant in a process of its own, on one thread, in interleaved rounds, and keeps all samples.
"""

from smalearn.bench.contestants import CONTESTANTS, Contestant
from smalearn.bench.linear_attention import benchmark, table
from smalearn.bench.problem import Problem

__all__ = ["BENCHMARKS", "CONTESTANTS", "Contestant", "Problem", "benchmark", "table"]

BENCHMARKS = {"linear-attention": benchmark}
