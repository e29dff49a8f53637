"""The benchmark `constants`: the sizes that were tuned on one machine, each at half, itself and double on this one."""

import importlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from smalearn import fast
from smalearn.lab.bench import masks
from smalearn.lab.bench.implementation import Run
from smalearn.lab.bench.multilevel import EQUAL
from smalearn.lab.bench.peers import BACKWARDS, SSD
from smalearn.lab.bench.problem import DECAYS, Problem
from smalearn.lab.bench.report import milliseconds, record
from smalearn.lab.bench.timing import interleaved, warm_seconds
from smalearn.multilevel import halving_blocks, parse_ranks
from smalearn.scores.tiled import tiled_attention
from smalearn.testing import random_tensors

__all__ = ["CONSTANTS", "Constant", "benchmark", "measure", "sections"]

NEVER = 1 << 62  # bytes of no tensor


@dataclass(frozen=True)
class Constant:
    """A module's attribute that sets a speed and no result.

    `prepare` makes what is timed from a scale of the sizes; `values` are tried in place of half and double.
    """

    module: str
    name: str
    prepare: Callable[[float], Callable[[], object]]
    values: tuple[int, ...] | None = None


def _mask(name, scale):
    mask = masks.FAMILIES[name](round(8192 * scale))
    return partial(mask.matmul, masks.operand(mask, 64))


def _run(implementation, scale, **sizes):
    return Run(implementation, Problem(length=round(2048 * scale), backward=True, **sizes)).once


def _step(scale):
    batch = max(1, round(8 * scale))
    shapes = [(batch, 24, 64), (batch, 24), (batch, 1, 128), (batch, 1, 128), (batch, 24, 64, 128)]
    x, z, B, C, state = random_tensors(shapes, dtype=torch.float32)
    return partial(fast.ssd_step_, x, DECAYS["gate"](z), B, C, state)


def _attention(form, scale):
    Q, K, V = random_tensors([(1, 4, round(4096 * scale), 64)] * 3, dtype=torch.float32)
    return partial(form, Q / 8, K, V)


def _multilevel(Q, K, V):
    ranks = parse_ranks(EQUAL)
    return fast.multilevel_attention(Q, K, V, ranks, halving_blocks(Q.shape[-2], len(ranks)))


def _tiles(Q, K, V):
    return tiled_attention(Q, K, V[..., :32])  # values as wide as keys would be PyTorch's attention


_LEVELS, _TILED = partial(_attention, _multilevel), partial(_attention, _tiles)
_SSD = partial(_run, SSD[0])

CONSTANTS = (
    Constant("masks.scan", "CHUNK_LEN", partial(_mask, "1-semiseparable")),
    Constant("masks.scan", "SUM_LEN", partial(_mask, "causal")),
    Constant("masks.fourier", "TOGETHER", partial(_mask, "Toeplitz")),
    Constant("fast.cpu.scan", "CHUNK_LEN", _SSD),
    Constant("fast.cpu.scan", "CACHE", _SSD),
    Constant("fast.cpu.step", "CACHE", _step),
    Constant("fast.cpu.tiling", "DIAGONAL", _LEVELS),
    Constant("fast.cpu.tiling", "ROWS", _LEVELS),
    Constant("fast.cpu.tiling", "KEYS", _LEVELS),
    Constant("fast.cpu.tiling", "SCORES", _LEVELS),
    Constant("fast.cpu.memory", "LARGE", partial(_SSD, heads=64), values=(NEVER,)),  # without huge pages
    Constant("scores.tiled", "TILE", _TILED),
    Constant("scores.tiled", "TOGETHER", _TILED),
    Constant("linear_attention.recompute", "TOGETHER", partial(_run, BACKWARDS[1], heads=8, shared=False)),
)


def benchmark(rounds: int = 11, scale: float = 1.0) -> dict[str, object]:
    """Measure every constant again, a few minutes at the usual sizes: float32, one thread.

    Args:
        rounds: samples of each time.
        scale: of the sizes.

    Returns:
        See `record`, with the part `constants`: what `measure` returns, by name; no `targets`.
    """

    def parts():
        return {"constants": {f"{one.module}.{one.name}": measure(one, rounds, scale) for one in CONSTANTS}}

    return record("constants", rounds, parts, lambda _: [])


def measure(constant: Constant, rounds: int, scale: float = 1.0) -> dict[str, object]:
    """Time one run at every value; the module has its own value afterwards.

    Returns:
        `present`; `seconds`, value -> samples; and `buys`, the least median of another value over that of the present.
    """
    module = importlib.import_module(f"smalearn.{constant.module}")
    present, run = getattr(module, constant.name), constant.prepare(scale)
    values = sorted({present, *(constant.values or (present // 2, 2 * present))})

    def sample(value):
        _set(module, constant.name, value)
        return warm_seconds(run)

    try:
        for value in values:
            sample(value)
        seconds = interleaved({str(value): partial(sample, value) for value in values}, rounds)
    finally:
        _set(module, constant.name, present)
    middle = {value: statistics.median(samples) for value, samples in seconds.items()}
    median = middle.pop(str(present))
    return {"present": present, "seconds": seconds, "buys": min(middle.values()) / median}


def _set(module, name, value):
    """Change a constant; plans that were made with another value are forgotten."""
    setattr(module, name, value)
    for member in list(vars(module).values()):
        if hasattr(member, "cache_clear"):
            member.cache_clear()


def sections(result: Mapping) -> Iterator[tuple[str, Sequence]]:
    """Titles and rows for `render`."""
    rows = []
    for name, part in result["constants"].items():
        times = [
            f"{'never' if int(value) == NEVER else value}: {milliseconds(samples)}"
            for value, samples in part["seconds"].items()
        ]
        rows.append(
            (name, f"now {part['present']}", f"best other takes {part['buys']:.2f} times as long", ", ".join(times))
        )
    yield "Medians at each value", rows
