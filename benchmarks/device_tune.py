"""A search for better configurations of the GPU programs, which gives lines for `fast.triton.configs.TABLE`."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.problem import Problem
from smalearn.fast.triton import plan
from smalearn.fast.triton.configs import TABLE, Config, config, padded
from smalearn.testing import relative_rms

__all__ = ["candidates", "tune"]


def candidates(problem: Problem) -> Iterator[list[Config]]:
    """Configurations of a launch, in lists of one chunk length each; few for a CPU, which only tries the search."""
    tiny = problem.device == "cpu"
    lengths, warps, stages = ((16, 32), (4,), (1,)) if tiny else ((32, 64, 128), (4, 8), (1, 2, 3))
    tiles = [tile for tile in (16, 32, 64) if tile <= padded(problem.head_dim)]
    for chunk_len in lengths:
        yield [Config(chunk_len, *rest) for rest in itertools.product(tiles, warps, stages)]


def tune(
    problems: Sequence[Problem], form: Callable, sample: Callable[[Callable], float], rounds: int
) -> list[dict[str, object]]:
    """Find the best configurations for each P, N and dtype, at the first problem that has them; `TABLE` keeps them.

    For each chunk length the forward chooses the configuration of the scan, then both together those of the backward,
    one after the other. What does not compile, or gives another answer, is left out.

    Args:
        problems: sizes.
        form: what is tuned, with the arguments of `ssd_triton`.
        sample: seconds of one call of a function.
        rounds: samples of each time.

    Returns:
        For each the `problem`, the `line` for `TABLE`, and `seconds` of forward and backward `before` and `after`.
    """
    tuned = {}
    for problem in problems:
        sizes = padded(problem.head_dim), padded(problem.state), problem.dtype
        key = plan.architecture(torch.empty(0, device=problem.device).device), *sizes
        if key not in tuned:
            tuned[key] = _tuned(key, problem, form, lambda run: statistics.median(sample(run) for _ in range(rounds)))
    return list(tuned.values())


def _tuned(key, problem, form, median):
    """Result of `tune` for one problem; the best is in `TABLE` afterwards."""
    arguments, dY = problem.inputs()
    leaves = [x.requires_grad_() for x in arguments]

    def forward():
        with torch.no_grad():
            return form(*leaves)[:1]

    def both():
        return torch.autograd.grad(form(*leaves)[0], leaves, dY)

    right = {run: run() for run in (forward, both)}

    def seconds(run, *chosen):
        """Seconds with configurations of the scan and of the backward, infinite where they fail."""
        before = TABLE.get(key)
        TABLE[key] = chosen
        try:
            apart = (relative_rms(x, y) for x, y in zip(run(), right[run], strict=True))
            return median(run) if max(apart) <= 4 * torch.finfo(problem.dtype).eps else math.inf
        except Exception:  # a compiler has many ways to say that registers or shared memory do not suffice
            return math.inf
        finally:
            TABLE.pop(key) if before is None else TABLE.update({key: before})

    first = config(key[0], problem.head_dim, problem.state, problem.dtype)
    times = {first: seconds(both, *first)}
    for group in candidates(problem):
        chosen = [one._replace(chunk_len=group[0].chunk_len) for one in first]
        chosen[0] = min(group, key=lambda scan, others=chosen[1:]: seconds(forward, scan, *others))
        for place in range(1, len(first)):
            trials = [(*chosen[:place], one, *chosen[place + 1 :]) for one in group]
            found = {trial: seconds(both, *trial) for trial in trials}
            chosen = list(min(found, key=found.get))
            times |= found
    best = min(times, key=times.get)
    TABLE[key] = best
    line = f"({key[0]!r}, {key[1]}, {key[2]}, {key[3]}): {best},"
    return {"problem": problem.title, "line": line, "seconds": {"before": times[first], "after": times[best]}}
