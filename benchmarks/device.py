"""What the benchmarks with `--device` share: our GPU programs beside their peers, and the device's own rates.

A module for each, `device_ssd` and its neighbours, holds its problems, its entrants, the least work and its targets. On
a CPU the same harness runs tiny sizes in an interpreter. That shows that it works; its times say nothing of a GPU.
"""

import functools
import gc
import importlib.metadata
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.contest import CannotRunError, Finish, contest, gathered, judge, reason
from benchmarks.implementation import Implementation, Run
from benchmarks.problem import Problem
from smalearn.course import progress
from smalearn.course.timing import interleaved, machine
from smalearn.fast.triton import launch

NOTE = "interpreter: these times say nothing about a GPU"
WAYS = ("forward", "backward")
GATE, HEADS = 500, 24  # tokens and heads, at most, of the problem at which answers are compared
PATIENCE = 2.0  # seconds for all samples of one way of one implementation, if three samples take no longer
CLOCKS = {"cuda": "CUDA events", "cpu": "perf_counter"}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LIBRARIES = ("triton", "mamba-ssm", "fla-core", "flash-linear-attention")


def can_run(device: str) -> str | None:
    """Reason why nothing can be measured on a device, or None."""
    if device == "cpu" or (torch.cuda.is_available() and launch.has_triton() and not launch.interprets()):
        return None
    return "no GPU that Triton compiles for; --device cpu tries the harness at tiny sizes"


def where(device: str) -> str:
    """Name of what runs our programs: "GPU", "Triton's interpreter" or "tile machine"."""
    if device == "cuda":
        return "GPU"
    return "Triton's interpreter" if launch.has_triton() and launch.interprets() else "tile machine"


def record(
    name: str,
    device: str,
    rounds: int,
    measure: Callable[[Mapping, Finish], Mapping],
    targets: Callable[[Mapping], list],
    keep: Callable[[Mapping], object] | None = None,
) -> dict[str, object]:
    """Measure on a device, as `report.record` on a CPU; `measure` has the device's `rates`, too.

    Times without a GPU have no targets, and a `note` that says what they are worth.
    """
    forget()
    facts = {
        "command": f"smalearn bench {name} --device {device}",
        "note": None if device == "cuda" else NOTE,
        "machine": machine() | {"threads": torch.get_num_threads(), "clock": CLOCKS[device]},
        "device": about(device),
        "rounds": rounds,
        "rates": rates(device, rounds),
    }
    result = gathered(facts, partial(measure, facts["rates"]), keep)
    return {"targets": targets(result) if device == "cuda" and "finished" not in result else []} | result


def gpu_name(device: str) -> str | None:
    """The GPU's name, such as "NVIDIA H200"; None of a CPU."""
    return torch.cuda.get_device_properties(device).name if device == "cuda" else None


def about(device: str) -> dict[str, object]:
    """Facts about the device, and the versions of all libraries that compute on it, None for those that are absent."""
    facts = {"runs in": where(device)}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "name": properties.name,
            "capability": f"sm{properties.major}{properties.minor}",
            "processors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "L2": properties.L2_cache_size,
            "CUDA": torch.version.cuda,
            "driver": _driver(),
        }
    return facts | {name: _version(name) for name in LIBRARIES}


def _driver():
    """The driver's version, None where its command is absent."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return None


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def sample(device: str, run: Callable, prepare: Callable[[], object] | None = None) -> float:
    """Seconds of one run, on a GPU by events; it is called with what `prepare` returns, which is not timed."""
    prepared = () if prepare is None else (prepare(),)
    if device == "cpu":
        began = time.perf_counter()
        run(*prepared)
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(10_000_000)  # let Python queue the work before the clock starts: GPU time, not launch time
    first.record()
    run(*prepared)
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


def rates(device: str, rounds: int) -> dict[str, float]:
    """Bytes a second of a copy (read and written), and flops a second of a square matrix product."""
    size, width, dtype = (2**29, 8192, torch.bfloat16) if device == "cuda" else (2**20, 64, torch.float32)
    source, (left, right) = torch.ones(size, device=device, dtype=dtype), torch.ones(2, width, width).to(device, dtype)
    target = torch.empty_like(source)
    runs = {"copy": lambda: target.copy_(source), "gemm": lambda: left @ right}
    samplers = {name: partial(sample, device, run) for name, run in runs.items()}
    interleaved(samplers, 2)
    spent = {name: statistics.median(samples) for name, samples in interleaved(samplers, rounds).items()}
    return {"copy": 2 * size * dtype.itemsize / spent["copy"], "gemm": 2 * width**3 / spent["gemm"]}


def floor(work: Mapping[str, tuple[float, float]], rates: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each way takes at least, at the measured rates: those of its bytes, or those of its flops."""
    return {way: max(size / rates["copy"], flops / rates["gemm"]) for way, (size, flops) in work.items()}


def sets(device: str, size: int) -> int:
    """Number of sets of inputs of this size, in bytes, with twice the L2 cache between two uses of one set."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device == "cuda" else 0
    return 1 + math.ceil(2 * cache / size)


def measure(
    problem: Problem,
    implementations: Sequence[Implementation],
    least: Mapping[str, float],
    rounds: int,
    suffix: str = "",
) -> Iterator[dict[str, object]]:
    """Yield a contest for each way of a problem, of those that take it, and the floor, which is not checked."""
    taking = [one for one in implementations if one.takes(problem)]
    bases = ["floor", *(one.name for one in taking if one.base)]
    for way, seconds in least.items() if taking else ():
        _release(problem.device)
        entrants = {"floor": partial(unchecked, seconds)}
        entrants |= {one.name: partial(_enter, one, problem, way) for one in taking}
        yield compete(f"{problem.title}, {way}{suffix}", entrants, rounds, bases) | {"sizes": problem.sizes()}


def measure_beside(
    problem: Problem, ours: Implementation, peer: Implementation, least: Mapping[str, float], rounds: int
) -> Iterator[dict[str, object]]:
    """Contests of two alone, named "..., beside <peer>"; none where the peer does not take the problem.

    They are for a peer that takes minutes to start: held last, it costs nothing but its own rows.
    """
    return measure(problem, (ours, peer) if peer.takes(problem) else (), least, rounds, f", beside {peer.name}")


def compete(name: str, entrants: Mapping[str, Callable], rounds: int, bases: Sequence[str]) -> dict[str, object]:
    """A contest in which whoever fails, for whatever reason, is absent: compilers and peers have many of them.

    A line of progress says how long each took to enter: to load, compile, run once and be judged.
    """

    def enter(who, one):
        began = time.perf_counter()
        try:
            errors, tolerated, take = _attempt(one)
        finally:
            if who != "floor":
                progress.part(f"  {who}: {time.perf_counter() - began:.1f} s to enter")
        return errors, tolerated, partial(_attempt, take)

    return contest(name, {who: partial(enter, who, one) for who, one in entrants.items()}, rounds, bases, PATIENCE)


def _attempt(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        raise CannotRunError(reason(error)) from None


def unchecked(seconds: float) -> tuple[None, bool, Callable]:
    """The entrant that takes so many seconds, a floor."""
    return None, True, lambda: seconds


def _enter(one, problem, way):
    """The entrant that an implementation is in one of the ways."""
    size = sum(x.nbytes for x in one.arguments(*problem.inputs()[0]) if x is not None)
    run = Run(one, problem, sets(problem.device, size))
    once = {"forward": (run.forward,), "backward": (run.backward, run.start)}[way]
    take = partial(sample, problem.device, *once)
    take()  # before the short problem of the judgement: many tune themselves for what they meet first
    return *judged(one, problem, way == "backward"), take


def _release(device):
    """Free what earlier implementations held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def judged(implementation: Implementation, problem: Problem, backward: bool) -> tuple[list[float], bool]:
    """Errors against the exact function in float64, and whether all are tolerated, at one short sequence.

    One verdict serves all problems that differ in their length alone. If the implementation has `at_length`, one head
    of its output is compared with that at the full length, too. Raise CannotRunError if it fails.
    """
    heads, length = min(problem.heads, HEADS), min(problem.length, GATE)
    short = replace(problem, batch=1, heads=heads, length=length, backward=True)
    found = _verdict(implementation, short, backward)
    if isinstance(found, str):
        raise CannotRunError(found)
    errors, tolerated = found
    if implementation.at_length and not backward:
        more, also = _at_length(implementation, replace(problem, batch=1))
        errors, tolerated = errors + more, tolerated and also
    return errors, tolerated


@functools.cache
def _verdict(implementation, short, backward):
    """What `judge` says at a short problem, or why it fails there."""
    try:
        run = Run(implementation, short)
        answers = implementation.laid_out(run.both() if backward else [run.forward()])
        expected = _oracle(short, implementation.exact, implementation.arguments, backward)
        return judge(answers, expected, TOLERANCE[short.dtype])
    except Exception as error:
        return reason(error)


@functools.cache
def _oracle(short, exact, arguments, backward):
    """The answers that several have in common."""
    return replace(short, backward=backward).oracle(exact, arguments)


@functools.cache
def _at_length(implementation, problem):
    """What `judge` says of the output of the first head."""
    inputs, _ = problem.inputs()
    answer = implementation.laid_out([Run(implementation, problem).forward()])[0][:, :1]
    first = [x if x is None else x[:, :1].double() for x in implementation.arguments(*inputs)]
    with torch.no_grad():
        return judge([answer], [implementation.at_length(*first)], TOLERANCE[problem.dtype])


def forget() -> None:
    """Judge everybody anew."""
    _verdict.cache_clear()
    _oracle.cache_clear()
    _at_length.cache_clear()


def peaks(problem: Problem, implementations: Sequence[Implementation]) -> dict[str, dict[str, int | None]]:
    """For each implementation the `peak` of forward and backward: the bytes of the device beyond what is held before.

    None for a CPU, and for whoever fails.
    """
    return {one.name: {"peak": _peak(problem.device, Run(one, problem).both)} for one in implementations}


def _peak(device, run):
    """Bytes by which a run exceeds what is held before it."""
    if device == "cpu":
        return None
    try:
        run()  # its inputs and what it compiles
        _release(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
    except Exception:
        return None
    return torch.cuda.max_memory_allocated() - before
