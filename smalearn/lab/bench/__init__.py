"""Times beside peers: a time is reported only for an implementation whose numbers are right.

Implementations on a CPU run in a process of their own each, on one thread, in interleaved rounds, and all samples are
kept. Our GPU programs and their peers, `device`, run in one process: a device does one thing at a time.
"""

from collections.abc import Mapping

from smalearn.lab.bench import bilinear, constants, device, linear_attention, masks, multilevel, ssd, training, weights
from smalearn.lab.bench.report import render

__all__ = ["BENCHMARKS", "table"]

_MODULES = {
    "bilinear": bilinear,
    "constants": constants,
    "linear-attention": linear_attention,
    "masks": masks,
    "multilevel": multilevel,
    "ssd": ssd,
    "training": training,
    "weights": weights,
}
BENCHMARKS = {name: module.benchmark for name, module in _MODULES.items()}


def table(result: Mapping) -> str:
    """A result of any benchmark for a terminal."""
    name = result["command"].removeprefix("smalearn bench ")
    module = device if "--device" in name else _MODULES[name]
    return render(result, module.sections(result))
