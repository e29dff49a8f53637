"""The benchmark `ssd --device`: our GPU programs beside their peers, and beside what the device could do at best.

On a CPU the same harness runs tiny sizes in an interpreter. That shows that it works; its times say nothing of a GPU.
"""

import functools
import gc
import importlib.metadata
import itertools
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from smalearn.fast.triton import launch
from smalearn.lab.bench.contest import best, contest, judge, ratio
from smalearn.lab.bench.device_peers import LAYERS, SSD, STEPS, programs, where
from smalearn.lab.bench.device_tune import tune
from smalearn.lab.bench.implementation import Implementation, Run
from smalearn.lab.bench.problem import Problem
from smalearn.lab.bench.report import at_least, at_most
from smalearn.lab.bench.timing import interleaved, machine
from smalearn.ssd import ssd_chunked

__all__ = [
    "PROBLEMS",
    "TINY",
    "WAYS",
    "benchmark",
    "can_run",
    "decode",
    "floor",
    "judged",
    "measure",
    "rates",
    "targets",
    "work",
]

NOTE = "interpreter: these times say nothing about a GPU"
SIZES = ((8, 24, 2048), (8, 80, 2048), (8, 80, 8192), (1, 128, 65536), (1, 24, 65536))  # batch, heads, T
GROWTH = tuple((2**18 // length, 24, length) for length in (1024, 4096, 16384, 65536, 262144))
_problem = partial(Problem, views=True, backward=True)
PROBLEMS = tuple(
    _problem(batch=batch, heads=heads, length=length, head_dim=64, state=128, dtype=torch.bfloat16, device="cuda")
    for batch, heads, length in SIZES + GROWTH
)
TINY = (_problem(batch=2, heads=2, length=40, head_dim=16, state=16),)
WAYS = ("forward", "backward", "both")
CHUNK_LEN = 64  # of the floor: with fewer tokens the products of a chunk do not fill matrix units
GATE = 500  # tokens of the problem at which answers are compared
PATIENCE = 20.0  # seconds for all samples of one way of one implementation
STEPS_AT_ONCE = {"cuda": 20, "cpu": 2}
CLOCKS = {"cuda": "CUDA events", "cpu": "perf_counter"}
BATCHES = {"cuda": (1, 8, 64), "cpu": (1, 2)}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LIBRARIES = ("triton", "mamba-ssm", "fla-core", "flash-linear-attention")
OURS, MAMBA, STEP = SSD[0].name, SSD[1].name, STEPS[0].name
LARGE, FEW = tuple(problem.title for problem in PROBLEMS[1:3]), PROBLEMS[4].title


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
        `tuned`, `rates`, `contests`, `memory`, `decode`, `targets`.
    """
    problems = problems or (PROBLEMS if device == "cuda" else TINY)
    tuned = tune(problems, programs(device), partial(sample, device), max(1, rounds // 4)) if tuning else []
    result = {
        "command": f"smalearn bench ssd --device {device}",
        "note": None if device == "cuda" else NOTE,
        "machine": machine() | {"threads": torch.get_num_threads(), "clock": CLOCKS[device]},
        "device": about(device),
        "rounds": rounds,
        "tuned": tuned,
        "rates": rates(device, rounds),
        "contests": [],
        "memory": [],
    }
    for problem, implementations in itertools.product(problems, (SSD, LAYERS)):
        if taking := [one for one in implementations if one.takes(problem)]:
            contests, memory = measure(problem, taking, result["rates"], rounds)
            result["contests"] += contests
            result["memory"].append(memory)
    result["decode"] = [decode(replace(problems[0], batch=batch), STEPS, rounds) for batch in BATCHES[device]]
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
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Check all implementations at one problem, then time those that are right.

    Returns:
        For each of `WAYS` what `contest` does, with `sizes` and the floor as one that is not checked; and the memory,
        `problem`, `unit`, the bytes of X, and `bytes`, the `peak` of both for each.
    """
    least, parts, verdict = floor(problem, measured), [], functools.cache(judged)
    bases = ["floor", *(one.name for one in implementations if one.base)]
    for way in WAYS:
        _release(problem.device)
        entrants = {"floor": lambda way=way: (None, True, lambda: least[way])}
        entrants |= {one.name: partial(_enter, verdict, one, problem, way) for one in implementations}
        part = contest(f"{problem.title}, {way}", entrants, rounds, bases, PATIENCE)
        parts.append(part | {"sizes": problem.sizes()})
    right = [one for one in implementations if "seconds" in parts[-1]["contestants"][one.name]]
    peaks = {one.name: {"peak": peak(problem.device, Run(one, problem).both)} for one in right}
    unit = problem.batch * problem.length * problem.heads * problem.head_dim * problem.dtype.itemsize
    return parts, {"problem": f"Memory, {problem.title}, {implementations[0].name}", "unit": unit, "bytes": peaks}


def _enter(verdict, one, problem, way):
    """The entrant that an implementation is in one of the ways."""
    errors, tolerated = verdict(one, problem)
    size = sum(x.nbytes for x in one.laid_out(one.arguments(*problem.inputs()[0])))
    run = Run(one, problem, sets(problem.device, size))
    once = {"forward": (run.forward,), "backward": (run.backward, run.start), "both": (run.both,)}[way]
    return errors, tolerated, partial(sample, problem.device, *once)


def _release(device):
    """Free what earlier implementations held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def judged(implementation: Implementation, problem: Problem) -> tuple[list[float], bool]:
    """Errors of the output and all gradients against the exact function in float64, at one short sequence.

    Of ours also the output of one head at the full length, against the chunked form in float64.
    """
    short = replace(problem, batch=1, length=min(problem.length, GATE), backward=True)
    run = Run(implementation, short)
    answers = implementation.laid_out(run.both())
    expected = short.oracle(implementation.exact, implementation.arguments)
    if implementation.name == OURS:
        (X, *others), _ = replace(problem, batch=1).inputs()
        with torch.no_grad():
            answers.append(run.compute(X, *others)[:, :1])
            expected.append(ssd_chunked(*(x[:, :1].double() for x in (X, *others)))[0])
    return judge(answers, expected, TOLERANCE[problem.dtype])


def peak(device: str, run: Callable) -> int | None:
    """Bytes of the device by which a run exceeds what is held before it; None for a CPU."""
    if device == "cpu":
        return None
    run()  # its inputs and what it compiles
    _release(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def decode(problem: Problem, implementations: Sequence[Implementation], rounds: int) -> dict[str, object]:
    """Steps of decoding, the state in float32 and overwritten.

    Returns:
        What `contest` does for so many `steps`, and `batch`.
    """
    count = STEPS_AT_ONCE[problem.device]

    def enter(one):
        run, arguments = one.load(), one.arguments(*_one_token(problem))
        wide = [x.double() for x in arguments]
        expected, answer = one.exact(*wide), run(*arguments)
        more = range(1, sets(problem.device, sum(x.nbytes for x in arguments)))
        steps = itertools.cycle([arguments, *(one.arguments(*_one_token(problem)) for _ in more)])
        verdict = judge([answer, arguments[-1]], [expected, wide[-1]], TOLERANCE[problem.dtype])
        return *verdict, partial(sample, problem.device, lambda: [run(*next(steps)) for _ in range(count)])

    taking = {one.name: partial(enter, one) for one in implementations if one.takes(problem)}
    name = f"{count} steps of decoding, batch {problem.batch}, {problem.heads} heads"
    part = contest(name, taking, rounds, [one.name for one in implementations if one.base], PATIENCE)
    return part | {"batch": problem.batch, "steps": count}


def _one_token(problem):
    """Operands x (batch, heads, P), log_a (batch, heads), B, C (batch, 1, N), state (batch, heads, P, N) in float32."""
    (X, log_a, B, C), _ = replace(problem, length=1).inputs()
    state = torch.ones(problem.batch, problem.heads, problem.head_dim, problem.state, device=problem.device)
    return X[..., 0, :].contiguous(), log_a[..., 0], B[..., 0, :], C[..., 0, :], state


def work(problem: Problem) -> dict[str, tuple[float, float]]:
    """Bytes and flops of each way that no program can do without, if it works in chunks of 64.

    Operands are read once and results are written once, log_a in float32. For each token and head with Q = 64, the
    forward has 2·Q·P + 4·N·P flops and 2·Q·N more for each group of heads; the backward, which must compute
    states and scores again, 4·Q·P + 10·N·P and 6·Q·N.

    Args:
        problem: its sizes.

    Returns:
        For each of `WAYS` (bytes, flops).
    """
    tokens = problem.batch * problem.length
    rows, P, N = tokens * problem.heads, problem.head_dim, problem.state
    item = problem.dtype.itemsize
    decays, values, maps = 4 * rows, item * rows * P, item * 2 * tokens * N
    forward = decays + 2 * values + maps, 2 * CHUNK_LEN * (rows * P + tokens * N) + 4 * rows * N * P
    backward = 2 * decays + 3 * values + 2 * maps, CHUNK_LEN * (4 * rows * P + 6 * tokens * N) + 10 * rows * N * P
    return dict(zip(WAYS, [forward, backward, tuple(map(sum, zip(forward, backward, strict=True)))], strict=True))


def floor(problem: Problem, rates: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each way takes at least: those of its bytes, or those of its flops.

    Args:
        problem: its sizes.
        rates: `copy` in bytes and `gemm` in flops a second, as measured.

    Returns:
        For each of `WAYS` the larger of the two.
    """
    return {way: max(size / rates["copy"], flops / rates["gemm"]) for way, (size, flops) in work(problem).items()}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on an H200."""
    parts, rows = {part["problem"]: part for part in result["contests"]}, []
    peaks = {part["problem"]: part["bytes"] for part in result["memory"]}
    bounds = [(problem, *bound) for problem in LARGE for bound in (("forward", 2.5), ("backward", 2.0))]
    for problem, way, least in [*bounds, (FEW, "forward", 2.0)]:
        faster = ratio(parts.get(f"{problem}, {way}", {"speedups": {}}), OURS, MAMBA)
        rows.append(at_least(f"{problem}, {way}: times as fast as mamba_ssm", least, faster))
    for problem in LARGE:
        slower = ratio(parts.get(f"{problem}, forward", {"speedups": {}}), "floor", OURS)
        rows.append(at_least(f"{problem}, forward: fraction of the floor", 0.4, slower and 1 / slower))
        ours, mamba = (peaks.get(f"Memory, {problem}, {OURS}", {}).get(name, {}).get("peak") for name in (OURS, MAMBA))
        rows.append(at_most(f"{problem}: peak memory over that of mamba_ssm", 0.5, ours and mamba and ours / mamba))
    for part in result["decode"]:
        what = f"a step of decoding, batch {part['batch']}: times as fast as the best"
        rows.append(at_least(what, 1.0, best(part, STEP)))
    return rows
