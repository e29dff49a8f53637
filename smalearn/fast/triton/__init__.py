"""SSD, the Mamba-2 layer, the delta rule and multi-level attention as programs for a GPU; `fast.tile` runs them too."""

from smalearn.fast.triton.delta import delta_rule_tiles, delta_rule_triton
from smalearn.fast.triton.mamba2 import mamba2_ssd
from smalearn.fast.triton.ssd import ssd_tiles, ssd_triton, triton_handles
from smalearn.fast.triton.step import ssd_step_triton_

__all__ = [
    "delta_rule_tiles",
    "delta_rule_triton",
    "mamba2_ssd",
    "ssd_step_triton_",
    "ssd_tiles",
    "ssd_triton",
    "triton_handles",
]
