"""One implementation under test: how it is loaded and called, whether its numbers are right, and its times and memory.

Every implementation has a process of its own, in which no other one's memory, caches or threads slow it down, and
samples are taken in interleaved rounds: the recorded ratios rest on both.
"""

import contextlib
import itertools
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.managers import BaseManager

import torch

from smalearn.lab.bench.problem import Problem, judge, recurrence
from smalearn.lab.bench.report import milliseconds, outcome, speedups
from smalearn.lab.bench.timing import (
    grown_bytes,
    interleaved,
    one_thread,
    saved_bytes,
    seconds,
    slope,
    warm_seconds,
)

__all__ = [
    "Implementation",
    "Run",
    "alone",
    "compare",
    "comparison_rows",
    "every_kth",
    "growth",
    "growth_line",
    "measure",
    "memory",
    "memory_of",
    "memory_section",
    "operands",
    "processes",
]

PATIENCE = 120.0  # seconds for all samples of one implementation at one problem, if three samples take no longer


def operands(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The problem's operands as they are."""
    return tensors


@dataclass(frozen=True)
class Implementation:
    """One implementation of a `Problem`; it can be pickled, to be called in another process.

    Attributes:
        name: as reports show it.
        load: imports what it needs and returns `run(*arguments) -> Y`; it raises ImportError if a library is missing.
        arguments: its arguments from X, log_a, B and C; this is not timed.
        exact: what it computes, from its arguments with heads before time.
        ours: whether the others are its peers.
        time_first: whether its layout is (batch, T, heads, ...), and not (batch, heads, T, ...).
        decay: whether it needs a decay (True), or cannot have one (False).
        anywhere: whether it runs on the problem's device without a GPU.
        longest: tokens of the longest sequence that it takes.
        most: entries of the largest tensor that it takes; most libraries count them in 32 bits.
    """

    name: str
    load: Callable[[], Callable]
    arguments: Callable[..., Sequence[torch.Tensor]] = operands
    exact: Callable[..., torch.Tensor] = recurrence
    ours: bool = False
    time_first: bool = False
    decay: bool | None = None
    anywhere: bool = True
    longest: int = 2**40
    most: int = 2**40

    def takes(self, problem: Problem) -> bool:
        """Tell whether it can solve a problem."""
        largest = problem.batch * problem.length * problem.heads * max(problem.head_dim, problem.state)
        fits = problem.length <= self.longest and largest < self.most
        known = self.decay is None or self.decay == (problem.decay is not None)
        return fits and known and (self.anywhere or problem.device != "cpu")

    def laid_out(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Tensors (batch, heads, T, ...) in its layout, and back; others as they are."""
        if not self.time_first:
            return list(tensors)
        return [x.transpose(1, 2).contiguous() if x is not None and x.ndim > 2 else x for x in tensors]


class Run:
    """An implementation at a problem; several sets of inputs are used in turn, so that no cache holds the next one.

    Args:
        implementation: is loaded when it is needed.
        problem: its sizes.
        sets: of inputs.
    """

    def __init__(self, implementation: Implementation, problem: Problem, sets: int = 1):
        self.implementation, self.problem, self.count = implementation, problem, sets

    @cached_property
    def compute(self) -> Callable:
        """The loaded implementation."""
        return self.implementation.load()

    @cached_property
    def sets(self) -> Iterator[tuple[list[torch.Tensor | None], torch.Tensor]]:
        """Arguments that have gradients, and the gradient of Y."""
        problems = [replace(self.problem, seed=self.problem.seed + k) for k in range(self.count)]
        return itertools.cycle([self._inputs(problem) for problem in problems])

    def _inputs(self, problem):
        tensors, dY = problem.inputs()
        *arguments, dY = self.implementation.laid_out([*self.implementation.arguments(*tensors), dY])
        return [x if x is None else x.detach().requires_grad_() for x in arguments], dY

    def forward(self) -> torch.Tensor:
        """Y alone."""
        with torch.no_grad():
            return self.compute(*next(self.sets)[0])

    def start(self) -> tuple:
        """Y with its graph, the arguments and dY: what a backward needs."""
        arguments, dY = next(self.sets)
        return self.compute(*arguments), [x for x in arguments if x is not None], dY

    def backward(self, started: tuple) -> tuple:
        """The gradients of all arguments."""
        return torch.autograd.grad(*started)

    def both(self) -> list[torch.Tensor]:
        """Y and the gradients."""
        started = self.start()
        return [started[0].detach(), *self.backward(started)]

    def once(self) -> object:
        """One timed run: both, or the forward."""
        return self.both() if self.problem.backward else self.forward()

    def answers(self) -> list:
        """Y, and for a backward the gradients of X, log_a, B and C, as arrays (batch, heads, T, ...)."""
        with one_thread():
            if not self.problem.backward:
                return [self.implementation.laid_out([self.forward()])[0].numpy()]
            Y, *grads = self.both()
        leaves = [x if x is None else x.requires_grad_() for x in self.problem.inputs()[0]]
        arguments = self.implementation.laid_out(self.implementation.arguments(*leaves))
        present = ([x for x in some if x is not None] for some in (arguments, leaves))
        answers = [*self.implementation.laid_out([Y]), *torch.autograd.grad(*present, grads)]
        return [x.detach().numpy() for x in answers]

    def seconds(self) -> float:
        """Seconds of one run on one thread."""
        with one_thread():
            return warm_seconds(self.once)


class _Process(BaseManager):
    """A fresh process that holds runs."""


_Process.register("Run", Run, exposed=("answers", "seconds"))


@contextlib.contextmanager
def processes(names: Sequence[str]) -> Iterator[dict[str, Callable]]:
    """The class `Run` in a process of its own for each name."""
    with contextlib.ExitStack() as stack:
        context = multiprocessing.get_context("spawn")
        yield {name: stack.enter_context(_Process(ctx=context)).Run for name in names}


def alone(function: Callable, *arguments: object) -> object:
    """Call a module's function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments).result()


def every_kth(taken: float, rounds: int, patience: float = PATIENCE) -> int:
    """The k for which a run of so many seconds is timed in every k-th round only; three samples at least."""
    return min(1 + int(rounds * taken / patience), 1 + rounds // 3)


def measure(
    problem: Problem, implementations: Sequence[Implementation], start: Mapping[str, Callable], rounds: int
) -> dict[str, dict]:
    """Check all implementations that take a problem, then time those that are right.

    Args:
        problem: what is to be computed.
        implementations: those that cannot solve it are left out.
        start: for each name what makes a `Run`.
        rounds: samples of each time, fewer of what is slow.

    Returns:
        For each name either `{"absent": why}`, or its `error` and `tolerated`, and, where it is, its `seconds`.
    """
    expected, entries, samplers, every = problem.oracle(), {}, {}, {}
    for name, implementation in ((one.name, one) for one in implementations if one.takes(problem)):
        run = start[name](implementation, problem)
        try:
            answers = run.answers()
        except ImportError as error:
            entries[name] = {"absent": f"{type(error).__name__}: {error}"}
            continue
        error, passed = judge([torch.from_numpy(x) for x in answers], expected)
        entries[name] = {"error": error, "tolerated": passed}
        if passed:
            samplers[name], every[name] = run.seconds, every_kth(run.seconds(), rounds)
    for name, samples in interleaved(samplers, rounds, every).items():
        entries[name]["seconds"] = samples
    return entries


def compare(problems: Sequence[Problem], implementations: Sequence[Implementation], rounds: int) -> list[dict]:
    """Measure all implementations at every problem.

    Returns:
        For each its `problem`, `sizes`, `contestants` (see `measure`), and `speedups`: for each of ours and each peer,
        median(peer) / median(ours).
    """
    with processes([one.name for one in implementations]) as start:
        entries = [measure(problem, implementations, start, rounds) for problem in problems]
    ours = [one.name for one in implementations if one.ours]
    return [
        {"problem": str(problem), "sizes": problem.sizes(), "contestants": one, "speedups": speedups(one, ours)}
        for problem, one in zip(problems, entries, strict=True)
    ]


def comparison_rows(part: Mapping) -> Iterator[Sequence[str]]:
    """One row for each implementation: its median, its error, and how many times faster ours are."""
    for name, entry in part["contestants"].items():
        if "seconds" not in entry:
            yield name, outcome(entry)
            continue
        ratios = [f"{others[name]:.2f}" for others in part["speedups"].values() if name in others]
        faster = [f"ours are faster by {', '.join(ratios)}"] * bool(ratios)
        yield name, milliseconds(entry["seconds"]), f"error {entry['error']:.0e}", *faster


def growth(implementation: Implementation, problems: Sequence[Problem], rounds: int) -> dict[str, object]:
    """Time of the forward against T, and against that of a copy of X, which is linear in T whatever the caches do.

    Returns:
        `lengths`; `seconds` of both for each; and the exponents p: of time ∝ T^p for both, and of time ∝ clone^p.
    """
    samplers, lengths = {}, [problem.length for problem in problems]
    for problem in problems:
        run, copied = Run(implementation, replace(problem, backward=False)), problem.inputs()[1].clone
        samplers[implementation.name, problem.length] = lambda run=run: seconds(run.once)
        samplers["clone", problem.length] = lambda copied=copied: seconds(copied)
    with one_thread():
        interleaved(samplers, 1)  # the first call takes longer
        samples = interleaved(samplers, rounds)
    times = {name: [samples[name, length] for length in lengths] for name in (implementation.name, "clone")}
    ours, clone = (list(map(statistics.median, one)) for one in times.values())
    exponents = {
        "against T": slope(lengths, ours),
        "clone against T": slope(lengths, clone),
        "against clone": slope(clone, ours),
    }
    return {"lengths": lengths, "seconds": times, "exponents": exponents}


def growth_line(part: Mapping) -> str:
    """All exponents."""
    exponents = ", ".join(f"{value:.2f} {name}" for name, value in part["exponents"].items())
    return f"Exponent of the forward's time, T = {part['lengths']}: {exponents}"


def memory(problem: Problem, implementations: Sequence[Implementation]) -> dict[str, object]:
    """Memory of forward and backward: what autograd saves between them, and by how much a fresh process grows.

    Returns:
        `length`; `unit`, the bytes of X; and `bytes`, for each implementation that is there `saved` and `peak`, `peak`
        None where the system does not report it.
    """
    sizes = {one.name: alone(memory_of, one, problem) for one in implementations}
    unit = 4 * problem.length * problem.heads * problem.head_dim
    return {"length": problem.length, "unit": unit, "bytes": {name: size for name, size in sizes.items() if size}}


def memory_of(implementation: Implementation, problem: Problem) -> dict[str, int | None] | None:
    """Saved bytes and growth of the peak in this process, which is to be fresh; None if a library is missing."""
    with one_thread():
        try:
            Run(implementation, replace(problem, length=64)).both()  # libraries load
        except ImportError:
            return None
        run = Run(implementation, problem)
        _ = run.compute, run.sets
        peak = grown_bytes(run.both)
        return {"saved": saved_bytes(run.both), "peak": peak}


def memory_section(part: Mapping) -> tuple[str, list[Sequence[str]]]:
    """Bytes that each implementation saves, and its peak, in MiB and in units of X."""
    unit, rows = part["unit"], []
    for name, sizes in part["bytes"].items():
        saved, peak = ("unknown" if x is None else f"{x / 2**20:.1f} MiB ({x / unit:.1f})" for x in sizes.values())
        rows.append((name, f"saved {saved}", f"peak {peak}"))
    return f"Memory of forward + backward, T = {part['length']}; in brackets, in units of the bytes of X", rows
