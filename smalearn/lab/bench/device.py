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
from smalearn.lab.bench.device_contestants import CONTESTANTS, STEPS, DeviceContestant, programs, where
from smalearn.lab.bench.device_problem import DeviceProblem, floor
from smalearn.lab.bench.device_report import speedups, table, targets
from smalearn.lab.bench.device_tune import tune
from smalearn.lab.bench.timing import interleaved, machine
from smalearn.ssd import ssd_chunked
from smalearn.testing import relative_rms

__all__ = ["PROBLEMS", "TINY", "benchmark", "can_run", "contest", "decode", "rates", "table"]

NOTE = "interpreter: these times say nothing about a GPU"
SIZES = ((8, 24, 2048), (8, 80, 2048), (8, 80, 8192), (1, 128, 65536), (1, 24, 65536))  # batch, heads, T
GROWTH = tuple((2**18 // length, 24, length) for length in (1024, 4096, 16384, 65536, 262144))
PROBLEMS = tuple(
    DeviceProblem(batch=batch, heads=heads, length=length, head_dim=64, state=128)
    for batch, heads, length in SIZES + GROWTH
)
TINY = (DeviceProblem(batch=2, heads=2, length=40, head_dim=16, state=16, dtype=torch.float32, device="cpu"),)
GATE = 500  # tokens of the problem at which answers are compared
PATIENCE = 20.0  # seconds for all samples of one way of one contestant
STEPS_AT_ONCE = {"cuda": 20, "cpu": 2}
CLOCKS = {"cuda": "CUDA events", "cpu": "perf_counter"}
BATCHES = {"cuda": (1, 8, 64), "cpu": (1, 2)}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LIBRARIES = ("triton", "mamba-ssm", "fla-core", "flash-linear-attention")


def can_run(device: str) -> str | None:
    """Why nothing can be measured on a device, or None.

    Args:
        device: "cuda" or "cpu".
    """
    if device == "cpu" or (torch.cuda.is_available() and launch.has_triton() and not launch.interprets()):
        return None
    return "no GPU that Triton compiles for; --device cpu tries the harness at tiny sizes"


def benchmark(
    device: str = "cuda", problems: Sequence[DeviceProblem] | None = None, rounds: int = 21, tuning: bool = False
) -> dict[str, object]:
    """Run all parts, about ten minutes on a GPU and seconds on a CPU.

    Args:
        device: "cuda" or "cpu".
        problems: sizes of the contests; the usual ones of the device if None.
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
        "contests": [contest(problem, CONTESTANTS, measured, rounds) for problem in problems],
        "decode": [decode(replace(problems[0], batch=batch), STEPS, rounds) for batch in BATCHES[device]],
    }
    return result | {"targets": targets(result) if device == "cuda" else []}


def about(device: str) -> dict[str, object]:
    """What the device is, and the versions of all libraries that compute on it, None for those that are absent."""
    found = {"runs in": where(device)}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "capability": f"sm{properties.major}{properties.minor}",
            "processors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "L2": properties.L2_cache_size,
            "CUDA": torch.version.cuda,
            "driver": _driver(),
        }
    return found | {name: _version(name) for name in LIBRARIES}


def _driver():
    """In the words of its own command, None where that is absent."""
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
    given = () if prepare is None else (prepare(),)
    if device == "cpu":
        began = time.perf_counter()
        run(*given)
        return time.perf_counter() - began
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # a millisecond, in which Python gets ahead: the GPU's time is asked for
    first.record()
    run(*given)
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


def rates(device: str, rounds: int) -> dict[str, float]:
    """Bytes a second of a copy (read and written), and flops a second of a square matrix product."""
    size, width, dtype = (2**29, 8192, torch.bfloat16) if device == "cuda" else (2**20, 64, torch.float32)
    source, (left, right) = torch.ones(size, device=device, dtype=dtype), torch.ones(2, width, width).to(device, dtype)
    target = torch.empty_like(source)
    turns = {"copy": lambda: target.copy_(source), "gemm": lambda: left @ right}
    turns = {name: lambda run=run: sample(device, run) for name, run in turns.items()}
    interleaved(turns, 2)
    spent = {name: statistics.median(samples) for name, samples in interleaved(turns, rounds).items()}
    return {"copy": 2 * size * dtype.itemsize / spent["copy"], "gemm": 2 * width**3 / spent["gemm"]}


def turns(device: str, size: int) -> int:
    """How many sets of inputs of so many bytes take turns, so that twice the L2 cache lies between two uses of one."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device == "cuda" else 0
    return 1 + math.ceil(2 * cache / size)


class Job:
    """A contestant at one problem: the ways that are timed, with sets of inputs in turn so that no cache knows them.

    Args:
        contestant: it is loaded here.
        problem: its sizes.
    """

    def __init__(self, contestant: DeviceContestant, problem: DeviceProblem):
        self.run, self.contestant = contestant.load(), contestant
        first = self._ready(problem)
        count = turns(problem.device, sum(x.nbytes for x in first[0]))
        rest = (self._ready(replace(problem, seed=seed)) for seed in range(1, count))
        self.sets = itertools.cycle([first, *rest])

    def _ready(self, problem):
        """Its arguments as leaves, and the gradient of its output."""
        arguments, dY = problem.inputs()
        own = self.contestant.own(*arguments)
        leaves = [x.detach().requires_grad_() for x in own]
        return leaves, self._cotangent(dY, leaves)

    def _cotangent(self, dY, leaves):
        """The gradient in the layout of the contestant's values."""
        return dY if any(x.shape == dY.shape for x in leaves) else dY.transpose(1, 2).contiguous()

    def forward(self) -> torch.Tensor:
        """The output alone."""
        arguments, _ = next(self.sets)
        with torch.no_grad():
            return self.run(*arguments)

    def before(self) -> tuple:
        """What a backward needs."""
        arguments, dY = next(self.sets)
        return self.run(*arguments), arguments, dY

    def backward(self, given: tuple) -> tuple:
        """The gradients of all arguments."""
        return torch.autograd.grad(*given)

    def both(self) -> tuple:
        """The output, then the gradients."""
        return self.backward(self.before())

    def samples(self, device: str) -> dict[str, Callable[[], float]]:
        """For each way what takes a sample of it."""
        prepared = {"forward": (self.forward,), "backward": (self.backward, self.before), "both": (self.both,)}
        return {way: lambda one=one: sample(device, *one) for way, one in prepared.items()}


def contest(
    problem: DeviceProblem, contestants: Sequence[DeviceContestant], measured: Mapping[str, float], rounds: int
) -> dict[str, object]:
    """All contestants at one problem: first the right answers, then the times of those who have them.

    Returns:
        `problem`, `sizes`, `floor` in seconds of each way, `speedups` of ours, and `contestants`: for each name either
        `absent` with the reason, or `error` and `tolerated`, and where it is `peak` in bytes and `seconds` of each way.
    """
    found, timed, every = {}, {}, {}
    for contestant in (one for one in contestants if one.enters(problem)):
        name = contestant.name
        try:
            found[name] = judged(contestant, problem)
            if found[name]["tolerated"]:
                job = Job(contestant, problem)
                found[name]["peak"] = peak(problem.device, job.both)
                new = {(name, way): turn for way, turn in job.samples(problem.device).items()}
                every |= {key: min(1 + int(rounds * turn() / PATIENCE), 1 + rounds // 3) for key, turn in new.items()}
                timed |= new
        except (ImportError, torch.OutOfMemoryError) as error:
            found[name] = {"absent": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            timed, job = {key: turn for key, turn in timed.items() if key[0] != name}, None
            _release(problem.device)
    for (name, way), samples in interleaved(timed, rounds, every).items():
        found[name].setdefault("seconds", {})[way] = samples
    del timed
    _release(problem.device)
    sizes = asdict(problem) | {"dtype": str(problem.dtype)}
    shown = {"problem": str(problem), "sizes": sizes, "floor": floor(problem, measured)}
    return shown | {"speedups": speedups(found), "contestants": found}


def _release(device):
    """What earlier contestants held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def judged(contestant: DeviceContestant, problem: DeviceProblem) -> dict[str, object]:
    """The largest error of a contestant's output and gradients against its own function in float64, at one batch.

    Of ours also the output of one head at the full length, against the chunked form in float64.
    """
    short = replace(problem, batch=1, length=min(problem.length, GATE))
    run, (arguments, dY) = contestant.load(), short.inputs()
    answers = []
    for form, wide in ((run, False), (contestant.exact, True)):
        leaves = [(x.double() if wide else x).detach().requires_grad_() for x in contestant.own(*arguments)]
        Y = form(*leaves)
        cotangent = dY if Y.shape == dY.shape else dY.transpose(1, 2)
        answers.append([Y, *torch.autograd.grad(Y, leaves, cotangent.to(Y.dtype))])
    errors = [relative_rms(*pair) for pair in zip(*answers, strict=True)]
    if contestant.name == CONTESTANTS[0].name:
        (X, *others), _ = replace(problem, batch=1).inputs()
        one = [x[:, :1] for x in (X, *others)]
        errors.append(relative_rms(run(X, *others)[:, :1], ssd_chunked(*(x.double() for x in one))[0]))
    error = max(errors, key=lambda error: (error != error, error))
    return {"error": error, "tolerated": error <= TOLERANCE[problem.dtype]}


def peak(device: str, run: Callable) -> int | None:
    """By how many bytes of the device a run exceeds what is held before it; None for a CPU."""
    if device == "cpu":
        return None
    _release(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def decode(problem: DeviceProblem, contestants: Sequence[DeviceContestant], rounds: int) -> dict[str, object]:
    """Steps of decoding, the state in float32 and overwritten.

    Returns:
        `batch`, `heads`, `steps`, and `contestants` as in `contest`, with `seconds` of so many steps and no `peak`.
    """
    found, timed, count = {}, {}, STEPS_AT_ONCE[problem.device]
    for contestant in (one for one in contestants if one.enters(problem)):
        try:
            run = contestant.load()
        except ImportError as error:
            found[contestant.name] = {"absent": f"{type(error).__name__}: {error}"}
            continue
        arguments = contestant.own(*_one_token(problem))
        wide = [x.double() for x in arguments]
        wanted, answer = contestant.exact(*wide), run(*arguments)
        error = max(relative_rms(answer, wanted), relative_rms(arguments[-1], wide[-1]))
        found[contestant.name] = {"error": error, "tolerated": error <= TOLERANCE[problem.dtype]}
        if found[contestant.name]["tolerated"]:
            sets = turns(problem.device, sum(x.nbytes for x in arguments))
            steps = itertools.cycle([arguments, *(contestant.own(*_one_token(problem)) for _ in range(1, sets))])
            timed[contestant.name] = lambda run=run, steps=steps: sample(
                problem.device, lambda: [run(*next(steps)) for _ in range(count)]
            )
    interleaved(timed, 1)
    for name, samples in interleaved(timed, rounds).items():
        found[name]["seconds"] = samples
    return {"batch": problem.batch, "heads": problem.heads, "steps": count, "contestants": found}


def _one_token(problem):
    """Operands x (batch, heads, P), log_a (batch, heads), B, C (batch, 1, N), state (batch, heads, P, N) in float32."""
    (X, log_a, B, C), _ = replace(problem, length=1).inputs()
    state = torch.ones(problem.batch, problem.heads, problem.head_dim, problem.state, device=problem.device)
    return X[..., 0, :].contiguous(), log_a[..., 0], B[..., 0, :], C[..., 0, :], state
