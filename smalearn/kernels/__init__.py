"""The fast path: the algorithms of `smalearn.ssd` with care for caches and memory, and no mathematics of their own."""

from smalearn.kernels.cpu import ssd_cpu

__all__ = ["ssd_cpu"]
