"""SSD and multi-level attention on a CPU: blocks that stay in its cache, matrix products for nearly all the work."""

from smalearn.fast.cpu.ssd import ssd_cpu
from smalearn.fast.cpu.step import ssd_step_

__all__ = ["ssd_cpu", "ssd_step_"]
