"""One implementation under test: how it is loaded and called, and its answers, times and memory.

Every implementation has a process of its own, in which no other one's memory, caches or threads slow it down, and
samples are taken in interleaved rounds: the recorded ratios rest on both.
"""

import contextlib
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.managers import BaseManager

import torch

from benchmarks.contest import PATIENCE, contest, judge
from benchmarks.problem import Problem, operands, recurrence, way
from smalearn.course import progress
from smalearn.course.spawned import SPAWN, killed_by_ctrl_c
from smalearn.course.timing import grown_bytes, one_thread, saved_bytes, warm_seconds


@dataclass(frozen=True)
class Implementation:
    """One implementation of a `Problem`; it can be pickled, to be called in another process."""

    name: str  # as reports show it
    # imports what it needs and returns `run(*arguments) -> Y`; it raises ImportError if a library is missing
    load: Callable[[], Callable]
    # its arguments from X, log_a, B and C; this is not timed
    arguments: Callable[..., Sequence[torch.Tensor]] = operands
    exact: Callable[..., torch.Tensor] = recurrence  # what it computes, from its arguments with heads before time
    base: bool = False  # whether the others are set beside it
    checked: bool = True  # whether it is judged; what is not is no peer, but a floor
    time_first: bool = False  # whether its layout is (batch, T, heads, ...), and not (batch, heads, T, ...)
    decay: bool | None = None  # whether it needs a decay (True), or cannot have one (False)
    anywhere: bool = True  # whether it runs on the problem's device without a GPU
    longest: int = 2**40  # tokens of the longest sequence that it takes
    most: int = 2**40  # entries of the largest tensor that it takes; most libraries count them in 32 bits
    heads: int | None = None  # whose answers are compared, the first so many; all if None
    # what it computes, as `exact`, but fast: one head is compared with it at the full length, on devices
    at_length: Callable[..., torch.Tensor] | None = None

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
    """An implementation at a problem; several sets of inputs are used in turn, so that no cache holds the next one."""

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

    def once(self) -> list[torch.Tensor]:
        """One timed run: both, or the forward."""
        return self.both() if self.problem.backward else [self.forward()]

    def answers(self) -> list:
        """Y, and for a backward the gradients of the arguments, as arrays (batch, heads, T, ...)."""
        with one_thread():
            return [x.numpy() for x in self.implementation.laid_out(self.once())]

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
    with contextlib.ExitStack() as stack, killed_by_ctrl_c():
        progress.step("starting a process for each implementation")
        yield {name: stack.enter_context(_Process(ctx=SPAWN)).Run for name in names}


def alone(function: Callable, *arguments: object) -> object:
    """Call a module's function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as fresh, killed_by_ctrl_c():
        return fresh.submit(function, *arguments).result()


@functools.lru_cache(maxsize=2)  # peers of one problem have the same arguments, or them once for each head
def _oracle(problem, *function):
    return problem.oracle(*function)


def _enter(start, one, problem):
    """The entrant that an implementation is, in its process."""
    run = start(one, problem)
    if not one.checked:
        return None, True, run.seconds
    answers = [torch.from_numpy(x)[:, : one.heads] for x in run.answers()]
    return *judge(answers, _oracle(problem, one.exact, one.arguments, one.heads)), run.seconds


def compare(
    problems: Sequence[Problem],
    implementations: Sequence[Implementation],
    rounds: int,
    patience: float = PATIENCE,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
) -> Iterator[dict]:
    """Yield a contest of all implementations for every problem, among those that take it."""
    bases = [one.name for one in implementations if one.base]
    with processes([one.name for one in implementations]) as start:
        for problem in problems:
            taking = [one for one in implementations if one.takes(problem)]
            entrants = {one.name: partial(_enter, start[one.name], one, problem) for one in taking}
            part = contest(str(problem), entrants, rounds, bases, patience, statistic)
            yield part | {"sizes": problem.sizes()}


def memory(problem: Problem, implementations: Sequence[Implementation]) -> dict[str, object]:
    """Memory of a problem: bytes that autograd saves for a backward, and by which a fresh process grows, if known."""
    title = f"Memory, T = {problem.length}, {way(problem.backward)}"
    progress.part(title)
    sizes: Mapping = {one.name: alone(memory_of, one, problem) for one in implementations}
    return {
        "problem": title,
        "length": problem.length,
        "backward": problem.backward,
        "unit": 4 * problem.length * problem.heads * problem.head_dim,
        "bytes": {name: size for name, size in sizes.items() if size},
    }


def memory_of(implementation: Implementation, problem: Problem) -> dict[str, int | None] | None:
    """Saved bytes and growth of the peak in this process, which is to be fresh; None if a library is missing."""
    with one_thread():
        try:
            Run(implementation, replace(problem, length=128)).once()  # libraries load
        except ImportError:
            return None
        run = Run(implementation, problem)
        _ = run.compute, run.sets
        peak = grown_bytes(run.once)
        return {"saved": saved_bytes(run.once), "peak": peak}
