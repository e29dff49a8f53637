"""The fast path: the algorithms of `smalearn.ssd` with care for caches and memory, and no mathematics of their own."""

from smalearn.kernels.cpu import ssd_cpu
from smalearn.kernels.gpu import ssd_tiles, ssd_triton, triton_handles
from smalearn.kernels.mamba2 import mamba2_ssd
from smalearn.kernels.step import ssd_step_triton_

__all__ = ["mamba2_ssd", "ssd_cpu", "ssd_step_triton_", "ssd_tiles", "ssd_triton", "triton_handles"]
