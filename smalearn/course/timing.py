"""Clocks and meters: seconds of a processor, interleaved rounds, bytes, and what the machine was."""

import contextlib
import ctypes
import datetime
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from smalearn.course import progress

__all__ = [
    "grown_bytes",
    "interleaved",
    "machine",
    "one_thread",
    "quartiles",
    "saved_bytes",
    "seconds",
    "slope",
    "warm_seconds",
]

SHORT = 0.1  # seconds of a run so short that cold caches would count
CLOCK = time.perf_counter if sys.platform == "win32" else time.process_time


def seconds(run: Callable[[], object]) -> float:
    """Seconds that this process spends on one run, without waiting for a processor; Windows counts waiting too."""
    began = CLOCK()
    run()
    return CLOCK() - began


def warm_seconds(run: Callable[[], object]) -> float:
    """Seconds of one run after an untimed warm-up; a run that takes long needs none."""
    first = seconds(run)
    return seconds(run) if first < SHORT else first


def interleaved(
    samplers: Mapping[str, Callable[[], float]], rounds: int, every: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Samples in rounds, each measuring everything once in a new order: what slows the machine slows all alike.

    What has an `every` of k is measured in each k-th round only.
    """
    order, draw, samples = list(samplers), random.Random(0), {name: [] for name in samplers}
    for number in range(rounds):
        progress.step(f"round {number + 1} of {rounds}")
        draw.shuffle(order)
        for name in order:
            if number % (every or {}).get(name, 1) == 0:
                samples[name].append(samplers[name]())
    return samples


def quartiles(samples: Sequence[float]) -> list[float]:
    """The median between the two other quartiles; a single sample is all three."""
    return statistics.quantiles(samples, method="inclusive") if len(samples) > 1 else 3 * list(samples)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent p of y ∝ x^p: slope of the least-squares line through log y against log x."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def saved_bytes(run: Callable[[], object]) -> int:
    """Bytes that autograd saves for a backward during a run, each storage counted once, the inputs' too."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run()
    return sum(storage.nbytes() for storage in storages.values())


def grown_bytes(run: Callable[[], object]) -> int | None:
    """Peak growth of this process's memory during a run; None where the system does not report it.

    Linux counts the peak; memory freed before is given back first, so that the run cannot use it for nothing.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what is held now
    except (AttributeError, OSError, TypeError):  # no such function, no such file, no library without a name
        return None
    before = _kibibytes("VmRSS")
    run()
    return 1024 * (_kibibytes("VmHWM") - before)


def _kibibytes(name):
    """Value of a line of Linux's report about this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@contextlib.contextmanager
def one_thread():
    """Run PyTorch on one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, object]:
    """Facts that a time depends on, and how busy the machine is; None where the system does not report one."""
    file, brand = Path("/proc/cpuinfo"), None
    lines = file.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if file.exists() else []
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if sys.platform == "darwin":
        brand = subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], encoding="utf-8").strip()
    model = [f"{key} {info[key]}" for key in ("cpu family", "model", "CPU implementer", "CPU part") if key in info]
    return {
        "cpu": info.get("model name") or brand or platform.processor() or platform.machine(),
        "model": ", ".join(model) or None,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
        "clock": CLOCK.__name__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
