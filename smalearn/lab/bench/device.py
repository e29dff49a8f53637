"""The benchmark `ssd --device`: our GPU programs beside their peers, and beside what the device could do at best.

On a CPU the same harness runs tiny sizes in an interpreter. That shows that it works; its times say nothing of a GPU.
"""

import gc
import importlib.metadata
import itertools
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import torch

from smalearn.fast.triton import launch
from smalearn.lab.bench.device_peers import OURS, SSD, STEPS, programs, where
from smalearn.lab.bench.device_report import floor, sections, speedups, targets, title
from smalearn.lab.bench.device_tune import tune
from smalearn.lab.bench.implementation import Implementation, Run, every_kth
from smalearn.lab.bench.problem import Problem
from smalearn.lab.bench.timing import interleaved, machine
from smalearn.ssd import ssd_chunked
from smalearn.testing import relative_rms

__all__ = ["PROBLEMS", "TINY", "benchmark", "can_run", "decode", "measure", "rates", "sections"]

NOTE = "interpreter: these times say nothing about a GPU"
SIZES = ((8, 24, 2048), (8, 80, 2048), (8, 80, 8192), (1, 128, 65536), (1, 24, 65536))  # batch, heads, T
GROWTH = tuple((2**18 // length, 24, length) for length in (1024, 4096, 16384, 65536, 262144))
_problem = partial(Problem, views=True, backward=True)
PROBLEMS = tuple(
    _problem(batch=batch, heads=heads, length=length, head_dim=64, state=128, dtype=torch.bfloat16, device="cuda")
    for batch, heads, length in SIZES + GROWTH
)
TINY = (_problem(batch=2, heads=2, length=40, head_dim=16, state=16),)
GATE = 500  # tokens of the problem at which answers are compared
PATIENCE = 20.0  # seconds for all samples of one way of one implementation
STEPS_AT_ONCE = {"cuda": 20, "cpu": 2}
CLOCKS = {"cuda": "CUDA events", "cpu": "perf_counter"}
BATCHES = {"cuda": (1, 8, 64), "cpu": (1, 2)}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LIBRARIES = ("triton", "mamba-ssm", "fla-core", "flash-linear-attention")


def can_run(device: str) -> str | None:
    """Reason why nothing can be measured on a device, or None.

    Args:
        device: "cuda" or "cpu".
    """
    if device == "cpu" or (torch.cuda.is_available() and launch.has_triton() and not launch.interprets()):
        return None
    return "no GPU that Triton compiles for; --device cpu tries the harness at tiny sizes"


def benchmark(
    device: str = "cuda", problems: Sequence[Problem] | None = None, rounds: int = 21, tuning: bool = False
) -> dict[str, object]:
    """Run all parts, about ten minutes on a GPU and seconds on a CPU.

    Args:
        device: "cuda" or "cpu".
        problems: sizes to compare; the usual ones of the device if None.
        rounds: samples of each time.
        tuning: whether to look for better configurations first, and to use them in what follows.

    Returns:
        What is written as JSON: `command`, `note` (what it is worth, None on a GPU), `machine`, `device`, `rounds`,
        `tuned`, `rates`, `contests`, `decode`, `targets`.
    """
    problems = problems or (PROBLEMS if device == "cuda" else TINY)
    tuned = tune(problems, programs(device), partial(sample, device), max(1, rounds // 4)) if tuning else []
    measured = rates(device, rounds)
    result = {
        "command": f"smalearn bench ssd --device {device}",
        "note": None if device == "cuda" else NOTE,
        "machine": machine() | {"threads": torch.get_num_threads(), "clock": CLOCKS[device]},
        "device": about(device),
        "rounds": rounds,
        "tuned": tuned,
        "rates": measured,
        "contests": [measure(problem, SSD, measured, rounds) for problem in problems],
        "decode": [decode(replace(problems[0], batch=batch), STEPS, rounds) for batch in BATCHES[device]],
    }
    return result | {"targets": targets(result) if device == "cuda" else []}


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
    """Seconds of one run, on a GPU by events.

    Args:
        device: "cuda" or "cpu".
        run: called without arguments, or with what `prepare` returns.
        prepare: is not timed.
    """
    prepared = () if prepare is None else (prepare(),)
    if device == "cpu":
        began = time.perf_counter()
        run(*prepared)
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # let Python queue the work before the clock starts: GPU time, not launch time
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


def sets(device: str, size: int) -> int:
    """Number of sets of inputs of this size, in bytes, with twice the L2 cache between two uses of one set."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device == "cuda" else 0
    return 1 + math.ceil(2 * cache / size)


def measure(
    problem: Problem, implementations: Sequence[Implementation], measured: Mapping[str, float], rounds: int
) -> dict[str, object]:
    """Check all implementations at one problem, then time those that are right.

    Returns:
        `problem`, `sizes`, `floor` in seconds of each way, `speedups` of ours, and `contestants`: for each name either
        `absent` with the reason, or `error` and `tolerated`, and where it is `peak` in bytes and `seconds` of each way.
    """
    entries, timed, every = {}, {}, {}
    for name, implementation in ((one.name, one) for one in implementations if one.takes(problem)):
        try:
            entries[name] = judged(implementation, problem)
            if entries[name]["tolerated"]:
                run = Run(implementation, problem, sets(problem.device, _bytes(implementation, problem)))
                entries[name]["peak"] = peak(problem.device, run.both)
                samplers = {(name, way): sampler for way, sampler in _samplers(run).items()}
                every |= {key: every_kth(sampler(), rounds, PATIENCE) for key, sampler in samplers.items()}
                timed |= samplers
        except (ImportError, torch.OutOfMemoryError) as error:
            entries[name] = {"absent": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            run = samplers = None
            _release(problem.device)
    for (name, way), samples in interleaved(timed, rounds, every).items():
        entries[name].setdefault("seconds", {})[way] = samples
    timed = run = samplers = None
    _release(problem.device)
    sizes = asdict(problem) | {"dtype": str(problem.dtype)}
    shown = {"problem": title(problem), "sizes": sizes, "floor": floor(problem, measured)}
    return shown | {"speedups": speedups(entries), "contestants": entries}


def _bytes(implementation, problem):
    """The size of an implementation's arguments."""
    return sum(x.nbytes for x in implementation.laid_out(implementation.arguments(*problem.inputs()[0])))


def _samplers(run):
    """Functions that take a sample, for each way."""
    ways = {"forward": (run.forward,), "backward": (run.backward, run.start), "both": (run.both,)}
    return {way: partial(sample, run.problem.device, *one) for way, one in ways.items()}


def _release(device):
    """Free what earlier implementations held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def judged(implementation: Implementation, problem: Problem) -> dict[str, object]:
    """The largest error of the output and all gradients against the exact function in float64, at one short sequence.

    Of ours also the output of one head at the full length, against the chunked form in float64.
    """
    run = Run(implementation, replace(problem, batch=1, length=min(problem.length, GATE)))
    answers = implementation.laid_out(run.both())
    operands, dY = run.problem.inputs()
    leaves = [x.detach().double().requires_grad_() for x in implementation.arguments(*operands)]
    Y = implementation.exact(*leaves)
    expected = [Y, *torch.autograd.grad(Y, leaves, dY.to(Y.dtype))]
    errors = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
    if implementation.name == OURS:
        (X, *others), _ = replace(problem, batch=1).inputs()
        with torch.no_grad():
            first = run.compute(X, *others)[:, :1]
            errors.append(relative_rms(first, ssd_chunked(*(x[:, :1].double() for x in (X, *others)))[0]))
    error = max(errors, key=lambda error: (error != error, error))
    return {"error": error, "tolerated": error <= TOLERANCE[problem.dtype]}


def peak(device: str, run: Callable) -> int | None:
    """Bytes of the device by which a run exceeds what is held before it; None for a CPU."""
    if device == "cpu":
        return None
    _release(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def decode(problem: Problem, implementations: Sequence[Implementation], rounds: int) -> dict[str, object]:
    """Steps of decoding, the state in float32 and overwritten.

    Returns:
        `batch`, `heads`, `steps`, and `contestants` as in `measure`, with `seconds` of so many steps and no `peak`.
    """
    entries, timed, count = {}, {}, STEPS_AT_ONCE[problem.device]
    for name, one in ((one.name, one) for one in implementations if one.takes(problem)):
        try:
            run = one.load()
        except ImportError as error:
            entries[name] = {"absent": f"{type(error).__name__}: {error}"}
            continue
        arguments = one.arguments(*_one_token(problem))
        wide = [x.double() for x in arguments]
        expected, answer = one.exact(*wide), run(*arguments)
        error = max(relative_rms(answer, expected), relative_rms(arguments[-1], wide[-1]))
        entries[name] = {"error": error, "tolerated": error <= TOLERANCE[problem.dtype]}
        if entries[name]["tolerated"]:
            more = range(1, sets(problem.device, sum(x.nbytes for x in arguments)))
            steps = itertools.cycle([arguments, *(one.arguments(*_one_token(problem)) for _ in more)])
            timed[name] = lambda run=run, steps=steps: sample(
                problem.device, lambda: [run(*next(steps)) for _ in range(count)]
            )
    interleaved(timed, 1)
    for name, samples in interleaved(timed, rounds).items():
        entries[name]["seconds"] = samples
    return {"batch": problem.batch, "heads": problem.heads, "steps": count, "contestants": entries}


def _one_token(problem):
    """Operands x (batch, heads, P), log_a (batch, heads), B, C (batch, 1, N), state (batch, heads, P, N) in float32."""
    (X, log_a, B, C), _ = replace(problem, length=1).inputs()
    state = torch.ones(problem.batch, problem.heads, problem.head_dim, problem.state, device=problem.device)
    return X[..., 0, :].contiguous(), log_a[..., 0], B[..., 0, :], C[..., 0, :], state
