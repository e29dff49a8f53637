"""SSD, the Mamba-2 layer and multi-level attention as programs for a GPU; `fast.tile` runs them without one."""

from smalearn.fast.triton.mamba2 import mamba2_ssd
from smalearn.fast.triton.ssd import ssd_tiles, ssd_triton, triton_handles
from smalearn.fast.triton.step import ssd_step_triton_

__all__ = ["mamba2_ssd", "ssd_step_triton_", "ssd_tiles", "ssd_triton", "triton_handles"]
