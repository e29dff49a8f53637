"""The benchmark `constants`: the sizes that were tuned on one machine, each at half, itself and double on this one."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import masks
from benchmarks.contest import best, contest
from benchmarks.implementation import Implementation, Run
from benchmarks.multilevel import ATTENTIONS
from benchmarks.peers import BACKWARDS, SSD
from benchmarks.problem import DECAYS, Problem
from benchmarks.report import record
from smalearn import fast
from smalearn.course.timing import warm_seconds
from smalearn.scores.tiled import tiled_attention
from smalearn.testing import random_tensors

__all__ = ["CONSTANTS", "Constant", "benchmark", "measure"]


@dataclass(frozen=True)
class Constant:
    """A module's attribute that sets a speed and no result; `prepare` makes what is timed from a scale of the sizes."""

    module: str
    name: str
    prepare: Callable[[float], Callable[[], object]]


def _mask(name, scale):
    mask = masks.FAMILIES[name](round(8192 * scale))
    return partial(mask.matmul, masks.operand(mask, 64))


def _run(implementation, scale, length=2048, backward=True, **sizes):
    return Run(implementation, Problem(length=round(length * scale), backward=backward, **sizes)).once


def _step(scale):
    batch = max(1, round(8 * scale))
    shapes = [(batch, 24, 64), (batch, 24), (batch, 1, 128), (batch, 1, 128), (batch, 24, 64, 128)]
    x, z, B, C, state = random_tensors(shapes, dtype=torch.float32)
    return partial(fast.ssd_step_, x, DECAYS["gate"](z), B, C, state)


def _tiles():
    return lambda V, _, K, Q: tiled_attention(Q, K, V)


_ATTENTION = {"length": 4096, "heads": 4, "state": 64, "decay": None, "shared": False, "backward": False}
_LEVELS = partial(_run, ATTENTIONS[1], **_ATTENTION)
_TILED = partial(_run, Implementation("tiles", _tiles), **_ATTENTION)
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
        What `contest` does for the values, beside the present one; `present`; and `buys`, the least median of another
        value over that of the present.
    """
    module = importlib.import_module(f"smalearn.{constant.module}")
    present, run = getattr(module, constant.name), constant.prepare(scale)
    values = (present // 2, present, 2 * present)

    def sample(value):
        _set(module, constant.name, value)
        return warm_seconds(run)

    def enter(value):
        return None, True, partial(sample, value)

    try:
        entrants = {str(value): partial(enter, value) for value in values}
        part = contest(f"{constant.module}.{constant.name}, now {present}", entrants, rounds, [str(present)])
    finally:
        _set(module, constant.name, present)
    return part | {"present": present, "buys": best(part, str(present))}


def _set(module, name, value):
    """Change a constant; plans that were made with another value are forgotten."""
    setattr(module, name, value)
    for member in list(vars(module).values()):
        if hasattr(member, "cache_clear"):
            member.cache_clear()
