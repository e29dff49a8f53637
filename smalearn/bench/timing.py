"""How times and memory are taken: one process and one thread for each contestant, interleaved rounds, medians."""

import contextlib
import datetime
import math
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import torch

from smalearn.bench.contestants import Contestant
from smalearn.bench.problem import Problem, job, judge, native, oracle

__all__ = ["contest", "interleaved", "machine", "one_thread", "process", "saved_bytes", "seconds", "slope"]

CLOCK = time.perf_counter if sys.platform == "win32" else time.process_time

_JOBS: dict[str, Callable[[], object]] = {}  # in the process of a contestant: what it is timed at


def process() -> Executor:
    """A fresh process that does one thing at a time."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def contest(
    problem: Problem, contestants: Sequence[Contestant], processes: Mapping[str, Executor], rounds: int
) -> dict[str, dict]:
    """Let all contestants that can solve a problem compete: first for the right answer, then in time.

    Args:
        problem: what is to be computed.
        contestants: those that do not handle its decay are passed over.
        processes: for each contestant's name, where it runs.
        rounds: in each, every contestant runs once, in an order drawn anew.

    Returns:
        For each name either `{"absent": why}`, or its `error` and `tolerated`, and, where it is, its `seconds`.
    """
    expected, found = oracle(problem), {}
    for contestant in (one for one in contestants if problem.decay in one.decays):
        answers = processes[contestant.name].submit(prepare, contestant, problem).result()
        if isinstance(answers, str):
            found[contestant.name] = {"absent": answers}
            continue
        error, passed = judge([torch.from_numpy(x) for x in answers], expected)
        found[contestant.name] = {"error": error, "tolerated": passed}
    turns = {
        name: lambda name=name: processes[name].submit(run_prepared, name).result()
        for name, entry in found.items()
        if entry.get("tolerated")
    }
    for name, samples in interleaved(turns, rounds).items():
        found[name]["seconds"] = samples
    return found


def prepare(contestant: Contestant, problem: Problem) -> list | str:
    """In the contestant's process: its answers as arrays in our layout, or why it cannot be loaded."""
    torch.set_num_threads(1)
    try:
        run = contestant.load()
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    compute = job(run, [native(contestant, x) for x in problem.inputs()])
    _JOBS[contestant.name] = lambda: compute(problem.backward)
    return [native(contestant, x).numpy() for x in compute(problem.backward)]


def run_prepared(name: str) -> float:
    """In the contestant's process: the seconds of one run."""
    return seconds(_JOBS[name])


def seconds(run: Callable[[], object]) -> float:
    """Of one run: what its process spends, not what it waits for a processor. Windows counts that too coarsely."""
    began = CLOCK()
    run()
    return CLOCK() - began


def interleaved(turns: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The samples of each turn, all turns once in each round, so that what slows the machine slows all of them."""
    order, draw, samples = list(turns), random.Random(0), {name: [] for name in turns}
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            samples[name].append(turns[name]())
    return samples


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line through log y against log x with the least squares: the p of y ∝ x^p."""
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


def peak_bytes() -> int | None:
    """The most memory this process ever held, None where the system does not say; getrusage counts the parent's too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text(encoding="utf-8").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)


@contextlib.contextmanager
def one_thread():
    """PyTorch on one thread for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> dict[str, object]:
    """What a time depends on, and how busy the machine is; None where the system does not say."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    return {
        "cpu": model or platform.processor() or platform.machine(),
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
