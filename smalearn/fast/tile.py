"""A Triton emulator, our tile machine: the `tl` operations of our GPU programs in NumPy, checked, recorded, everywhere.

`programs.py` is written for Triton, and a program names all it does `tl.something`. This module has these names too.
Programs run one after the other. A tile is an array; a pointer is a memory with offsets into it. Every access is
checked, which a GPU does not do, and noted down for pictures and for counting.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

__all__ = ["Event", "Pointer", "launch", "recording"]

float16, float32, int32, int64 = np.float16, np.float32, np.int32, np.int64


class constexpr:  # noqa: N801
    """Marks a parameter whose value is known when Triton compiles the program; here it marks nothing."""


class Event(NamedTuple):
    """One access to memory, or one matrix product, of one program.

    Attributes:
        program: its indices on the three axes of the grid.
        kind: "load", "store" or "dot".
        operand: name of the program's parameter; empty for a dot.
        offsets: which of its entries the tile is, −1 where the mask is off; for a dot the sizes (m, k, n).
        bytes: that move between memory and program; 0 for a dot.
        flops: 2·m·k·n for a dot, else 0.
    """

    program: tuple[int, int, int]
    kind: str
    operand: str
    offsets: np.ndarray
    bytes: int
    flops: int


class Pointer:
    """Offsets into a flat memory that has the name of a parameter; `pointer + tile` is a tile of pointers."""

    __array_ufunc__ = None

    def __init__(self, name: str, memory: np.ndarray, offsets: np.ndarray | int = 0):
        self.name, self.memory, self.offsets = name, memory, offsets

    def __add__(self, offsets):
        return Pointer(self.name, self.memory, self.offsets + offsets)

    def __getitem__(self, index):
        raise TypeError(
            f"{_current.name}: pointer {self.name} has no entries; read with tl.load({self.name} + offsets)"
        )

    def __setitem__(self, index, value):
        what = f"pointer {self.name} has no entries; write with tl.store({self.name} + offsets, tile)"
        raise TypeError(f"{_current.name}: {what}")

    def masked(self, kind: str, mask) -> tuple[np.ndarray, np.ndarray]:
        """Offsets and mask as tiles of one shape; raises where an offset that is not masked leaves the memory."""
        offsets, mask = np.broadcast_arrays(self.offsets, True if mask is None else mask)
        _note(kind, self.name, np.where(mask, offsets, -1), int(mask.sum()) * self.memory.itemsize)
        outside = mask & ((offsets < 0) | (offsets >= self.memory.size))
        if outside.any():
            first, last = offsets[outside].flat[0], self.memory.size - 1
            where = f"{_current.name}, program {_current.program}"
            raise IndexError(f"{where}: {kind} of {self.name} at offset {first}, expected 0 to {last} or a mask")
        return offsets, mask


class _Running:
    """The program that runs: its name, its indices, the size of the grid, and where events go, if anywhere."""

    name, program, events = "", (0, 0, 0), None


_current = _Running()


def launch(program: Callable, grid: tuple[int, ...], *operands: object, **constants: object) -> None:
    """Run a program for every point of the grid, in order.

    Args:
        program: a function of `programs.py`.
        grid: number of programs on each axis, at most three.
        operands: its first arguments; an array, also in a tuple, stands for a pointer to its first entry.
        constants: the others, by name.

    Raises:
        IndexError: an access that is not masked lies outside its array; names program, operand and offset.
    """
    arguments = inspect.signature(program).bind(*operands, **constants).arguments
    arguments = {name: _pointed(name, x) for name, x in arguments.items()}
    _current.name = program.__name__
    for index in product(*map(range, [*grid, 1, 1, 1][:3])):
        _current.program = index
        program(**arguments)


@contextlib.contextmanager
def recording() -> Iterator[list[Event]]:
    """Collect the events of all launches of a `with` block, in order, in the list it gives.

    An access that is an error is the last event, so that one can look at it.

    Example:
        >>> with recording() as events:
        ...     launch(lambda x: load(x + arange(0, 4)), (1,), np.zeros(4))
        >>> [(event.kind, event.operand, event.bytes) for event in events]
        [('load', 'x', 32)]
    """
    before, _current.events = _current.events, []
    try:
        yield _current.events
    finally:
        _current.events = before


def _pointed(name, x):
    """An argument with pointers to their first entry for arrays; their memory ends with the last, whatever strides."""
    if isinstance(x, tuple):
        return tuple(_pointed(name, part) for part in x)
    if not isinstance(x, np.ndarray):
        return x
    extent = 1 + int(np.dot(np.array(x.shape) - 1, x.strides)) // x.itemsize if x.size else 0
    return Pointer(name, np.lib.stride_tricks.as_strided(x, (extent,), (x.itemsize,)))


def _note(kind, operand, offsets, size=0, flops=0):
    if _current.events is not None:
        _current.events.append(Event(_current.program, kind, operand, offsets, size, flops))


# What programs call as tl.…, with the meaning that Triton documents.


def program_id(axis):
    return _current.program[axis]


def arange(start, end):
    if (end - start) & (end - start - 1):
        raise ValueError(f"arange: length is {end - start}, expected a power of two")
    return np.arange(start, end, dtype=int32)


def full(shape, value, dtype):
    return np.full(shape, value, dtype)


def load(pointer, mask=None, other=0.0):
    offsets, mask = pointer.masked("load", mask)
    out = np.full(offsets.shape, other, pointer.memory.dtype)
    out[mask] = pointer.memory[offsets[mask]]
    return out


def store(pointer, value, mask=None):
    offsets, mask = pointer.masked("store", mask)
    pointer.memory[offsets[mask]] = np.broadcast_to(value, offsets.shape)[mask]


def cast(x, dtype):
    return np.asarray(x).astype(dtype)


def dot(x, y, input_precision=None):
    """A matrix product with sums in float32, as tensor cores have; all precisions are the best one here."""
    if x.dtype != y.dtype:
        raise TypeError(f"dot: y is {y.dtype} but x is {x.dtype}")
    if min(*x.shape, *y.shape) < 16:
        raise ValueError(f"dot: shapes are {x.shape} and {y.shape}, expected no axis below 16")
    _note("dot", "", np.array([*x.shape, y.shape[1]]), flops=2 * x.size * y.shape[1])
    return cast(x, float32) @ cast(y, float32)


def cumsum(x, axis=0):
    return np.cumsum(x, axis, dtype=x.dtype)


def sum(x, axis=None):
    return np.sum(x, axis, dtype=x.dtype)


trans, where, exp2, log, floor = np.transpose, np.where, np.exp2, np.log, np.floor
