"""Designs of the SSD forward that `KernelTracer` records in the Triton emulator, of float32 numbers at tiny sizes.

The walk is `fast.triton.programs.ssd_forward` itself. Against it stand the four steps of the chunked algorithm as four
programs, one launch each: what one has computed the next reads back from memory. The walk without masks is the same
program by someone who forgot them.
"""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import NamedTuple

import numpy as np

from smalearn.fast import tile as tl
from smalearn.fast.triton import programs
from smalearn.fast.triton.configs import padded

__all__ = ["DESIGNS", "TILE", "Stage", "operands", "run"]

TILE = 16
"""Columns of P that a program holds."""


def added_states(x, log_a, b, added, length, sizes: tl.constexpr):
    """Compute what a chunk adds to the state; the grid is (tiles of P, heads, chunks)."""
    P, N, Q, i, n, p, chunk, head = _places(sizes, tl.program_id(2))
    rows = chunk * Q + i
    coarse, fine, coarse_total, fine_total = programs.decay_sums(log_a, head, rows, length)
    B, X = programs.read(b, (0, 0, 0), rows, n, length, N), programs.read(x, head, rows, p, length, P)
    fX = X * programs.until_end(coarse, fine, coarse_total, fine_total)[:, None]
    programs.write(added, head, chunk * N + n, p, chunk * N + N, P, tl.dot(tl.trans(B), fX))


def passed_states(log_a, added, states, final, length, sizes: tl.constexpr):
    """Compute the state before every chunk, and the last one; the grid is (tiles of P, heads)."""
    P, N, Q, i, n, p, _, head = _places(sizes, 0)
    H = tl.full((sizes[4], sizes[3]), 0.0, tl.float32)
    for start in range(0, length, Q):
        border = start // Q * N
        _, _, coarse, fine = programs.decay_sums(log_a, head, start + i, length)
        programs.write(states, head, border + n, p, border + N, P, H)
        H = H * tl.exp2(coarse + fine) + programs.read(added, head, border + n, p, border + N, P)
    programs.write(final, head, n, p, N, P, H)


def inside_chunks(log_a, b, c, x, y, length, sizes: tl.constexpr):
    """Y = (L ∘ C B^T) X in a chunk; the grid is (tiles of P, heads, chunks)."""
    P, N, Q, i, n, p, chunk, head = _places(sizes, tl.program_id(2))
    rows = chunk * Q + i
    coarse, fine, _, _ = programs.decay_sums(log_a, head, rows, length)
    B, C = programs.read(b, (0, 0, 0), rows, n, length, N), programs.read(c, (0, 0, 0), rows, n, length, N)
    M = tl.dot(C, tl.trans(B)) * programs.lower(coarse, fine, i)
    programs.write(y, head, rows, p, length, P, tl.dot(M, programs.read(x, head, rows, p, length, P)))


def from_states(log_a, c, states, y, length, sizes: tl.constexpr):
    """Y += e ∘ C H in a chunk; the grid is (tiles of P, heads, chunks)."""
    P, N, Q, i, n, p, chunk, head = _places(sizes, tl.program_id(2))
    rows, border = chunk * Q + i, chunk * N
    coarse, fine, _, _ = programs.decay_sums(log_a, head, rows, length)
    C, H = programs.read(c, (0, 0, 0), rows, n, length, N), programs.read(states, head, border + n, p, border + N, P)
    Y = tl.dot(C, H) * tl.exp2(coarse + fine)[:, None]
    programs.write(y, head, rows, p, length, P, Y + programs.read(y, head, rows, p, length, P))


def _places(sizes, chunk):
    """Return P, N, Q, the lanes of a tile of tokens, of states and of columns, the chunk and the head."""
    P, N, Q, tile, features = sizes
    columns = tl.program_id(0) * tile + tl.arange(0, tile)
    return P, N, Q, tl.arange(0, Q), tl.arange(0, features), columns, chunk, (0, 0, tl.program_id(1))


def _careless():
    """Make an `ssd_forward` whose loads and stores ignore their masks."""
    without = {"load": lambda pointer, **_: tl.load(pointer), "store": lambda pointer, x, **_: tl.store(pointer, x)}
    space = {**vars(programs), "tl": SimpleNamespace(**{**vars(tl), **without})}
    functions = {name: x for name, x in vars(programs).items() if isinstance(x, FunctionType)}
    for name, x in functions.items():
        space[name] = FunctionType(x.__code__, space, name, x.__defaults__)
        space[name].__annotations__ = x.__annotations__
    return space["ssd_forward"]


class Stage(NamedTuple):
    """Launch of one program of a design.

    Attributes:
        program: the program that runs.
        reads: names of its first arguments; "" for None.
        walks: whether one program goes through all chunks, with the state on the chip.
        products: its matrix products in order, each as a text, and the tile on the chip that has the result.
    """

    program: Callable
    reads: tuple[str, ...]
    walks: bool
    products: tuple[tuple[str, str], ...] = ()


_FORWARD = ("x", "log_a", "b", "c", "y", "", "final", "")
_PRODUCTS = (("C Bᵀ", "M"), ("C H", "Y"), ("M X", "Y"), ("Bᵀ f X", "H"))

DESIGNS: dict[str, tuple[Stage, ...]] = {
    "one walk": (Stage(programs.ssd_forward, _FORWARD, True, _PRODUCTS),),
    "four steps": (
        Stage(added_states, ("x", "log_a", "b", "added"), False, (("Bᵀ f X", "added H"),)),
        Stage(passed_states, ("log_a", "added", "states", "final"), True),
        Stage(inside_chunks, ("log_a", "b", "c", "x", "y"), False, (("C Bᵀ", "M"), ("M X", "Y"))),
        Stage(from_states, ("log_a", "c", "states", "y"), False, (("C H", "Y"),)),
    ),
    "one walk without masks": (Stage(_careless(), _FORWARD, True, _PRODUCTS),),
}


def operands(length: int, chunk_len: int, state: int, head_dim: int, heads: int) -> dict[str, tuple[np.ndarray, tuple]]:
    """Make all tensors of all designs, inputs drawn at random from a fixed seed, the others 0.

    Behind each array there is unused memory, so that a program without masks runs to its end, as on a GPU.
    """
    rows = -(-length // chunk_len) * state
    shapes = {"log_a": (heads, length, 1), "b": (1, length, state), "c": (1, length, state)}
    shapes |= {"x": (heads, length, head_dim), "added": (heads, rows, head_dim), "states": (heads, rows, head_dim)}
    shapes |= {"y": (heads, length, head_dim), "final": (heads, state, head_dim)}
    random, slack = np.random.default_rng(0), chunk_len * 64
    made = {}
    for name, shape in shapes.items():
        memory = np.zeros(int(np.prod(shape)) + slack, np.float32)
        entries = memory[: memory.size - slack]
        if name in ("b", "c", "x"):
            entries[:] = random.standard_normal(entries.size)
        elif name == "log_a":
            entries[:] = -random.random(entries.size)
        made[name] = memory, shape
    return made


def run(stage: Stage, made: dict[str, tuple[np.ndarray, tuple]], chunk_len: int) -> tuple[list[tl.Event], tuple]:
    """Launch a stage."""
    (heads, length, head_dim), state = made["x"][1], made["b"][1][2]
    arguments = []
    for name in stage.reads:
        memory, (_, height, width) = made[name] if name else (None, (0, 0, 0))
        arguments.append((memory, 0, 0, height * width, width, 1) if name else None)
    sizes = head_dim, state, chunk_len, TILE, padded(state)
    grid = -(-head_dim // TILE), heads, 1 if stage.walks else -(-length // chunk_len)
    numbers = {"length": length, "sizes": sizes}
    if "segments" in stage.program.__code__.co_varnames:
        numbers |= {"heads": heads, "segments": 1, "precision": "ieee"}
    with tl.recording() as events:
        tl.launch(stage.program, grid, *arguments, **numbers)
    return events, grid
