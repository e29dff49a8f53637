"""How times and memory are taken: one process and one thread for each contestant, interleaved rounds, medians."""

import contextlib
import ctypes
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

from smalearn.lab.bench.contestants import Contestant
from smalearn.lab.bench.problem import Problem, SSDProblem, judge

__all__ = [
    "answers_of",
    "contest",
    "grown_bytes",
    "interleaved",
    "machine",
    "one_thread",
    "process",
    "saved_bytes",
    "seconds",
    "slope",
]

SHORT = 0.1  # seconds of a run so short that cold caches would count
PATIENCE = 120.0  # seconds for all runs of one contestant in one contest, if three runs take no longer
CLOCK = time.perf_counter if sys.platform == "win32" else time.process_time

_JOBS: dict[str, Callable[[], object]] = {}  # in the process of a contestant: what it is timed at


def process() -> Executor:
    """A fresh process that does one thing at a time."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def contest(
    problem: Problem | SSDProblem, contestants: Sequence[Contestant], processes: Mapping[str, Executor], rounds: int
) -> dict[str, dict]:
    """Let all contestants that can solve a problem compete: first for the right answer, then in time.

    Args:
        problem: what is to be computed.
        contestants: those that cannot solve it are passed over.
        processes: for each contestant's name, where it runs.
        rounds: in each, every contestant has its turn, in an order drawn anew; one that is too slow for so many takes
            part in every second, third, ... round only.

    Returns:
        For each name either `{"absent": why}`, or its `error` and `tolerated`, and, where it is, its `seconds`.
    """
    expected, found, turns, every = problem.oracle(), {}, {}, {}
    for contestant in (one for one in contestants if one.enters(problem)):
        name = contestant.name
        answers = answers_of(contestant, problem, processes[name])
        if isinstance(answers, str):
            found[name] = {"absent": answers}
            continue
        error, passed = judge(answers, expected)
        found[name] = {"error": error, "tolerated": passed}
        if passed:
            turns[name] = lambda name=name: processes[name].submit(run_prepared, name).result()
            every[name] = min(1 + int(rounds * turns[name]() / PATIENCE), 1 + rounds // 3)
    for name, samples in interleaved(turns, rounds, every).items():
        found[name]["seconds"] = samples
    return found


def answers_of(contestant: Contestant, problem: Problem | SSDProblem, where: Executor) -> list[torch.Tensor] | str:
    """Y, and for a backward the gradients, or why the contestant is absent; it is ready to be timed then."""
    answers = where.submit(prepare, contestant, problem).result()
    return answers if isinstance(answers, str) else [torch.from_numpy(x) for x in answers]


def prepare(contestant: Contestant, problem: Problem | SSDProblem) -> list | str:
    """In the contestant's process: its answers as arrays in our layout, or why it cannot be loaded."""
    torch.set_num_threads(1)
    try:
        compute = contestant.job(problem)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"
    _JOBS[contestant.name] = lambda: compute(problem.backward)
    return [x.numpy() for x in contestant.returned(compute(problem.backward), problem)]


def run_prepared(name: str) -> float:
    """In the contestant's process: the seconds of one run.

    A short one is done again and counts then: the first time its memory is not in the caches, which the others had.
    """
    first = seconds(_JOBS[name])
    return seconds(_JOBS[name]) if first < SHORT else first


def seconds(run: Callable[[], object]) -> float:
    """Of one run: what its process spends, not what it waits for a processor. Windows counts that too coarsely."""
    began = CLOCK()
    run()
    return CLOCK() - began


def interleaved(
    turns: Mapping[str, Callable[[], float]], rounds: int, every: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """The samples of each turn, all turns once in each round, so that what slows the machine slows all of them.

    Args:
        turns: name -> what returns a sample.
        rounds: how many.
        every: name -> k, for a turn that takes part in each k-th round only.
    """
    order, draw, samples = list(turns), random.Random(0), {name: [] for name in turns}
    for number in range(rounds):
        draw.shuffle(order)
        for name in order:
            if number % (every or {}).get(name, 1) == 0:
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


def grown_bytes(run: Callable[[], object]) -> int | None:
    """By how much a run makes the memory of this process grow at most; None where the system does not say.

    Linux counts the peak; what was freed before is given back first, so that the run cannot use it for nothing.
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
    """A line of what Linux says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


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
