"""Fast implementations, chosen by device, dtype and gate: for use, where the rooms above are for reading.

No mathematics here that `ssd`, `linear_attention` and `multilevel` lack. `cpu` and `triton` hold the implementations,
`tile` runs the programs of a GPU on any computer, `distributed` splits a sequence over several devices.
"""

from smalearn.fast.dispatch import delta_rule, generalized_delta_rule, linear_attention, ssd, ssd_step_
from smalearn.fast.multilevel import executed_macs, multilevel_attention
from smalearn.fast.triton import mamba2_ssd

__all__ = [
    "delta_rule",
    "executed_macs",
    "generalized_delta_rule",
    "linear_attention",
    "mamba2_ssd",
    "multilevel_attention",
    "ssd",
    "ssd_step_",
]
