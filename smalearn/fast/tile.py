"""A Triton emulator, our tile machine: the `tl` operations of our GPU programs in NumPy, checked, recorded, everywhere.

`programs.py` is written for Triton, and a program names all it does `tl.something`. This module has these names too.
Programs run one after the other. Tiles are those of `lanes.py`; a pointer is a memory with offsets into it. Every
access is checked, which a GPU does not do, and noted down for pictures and for counting.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from smalearn.fast import lanes
from smalearn.fast.lanes import BRAIN, Tile, compiled, named, promoted, refuse, running, values

__all__ = ["ABSENT", "BITS", "Event", "Pointer", "launch", "recording"]

int1, int8, int32, int64 = map(np.dtype, (np.bool_, np.int8, np.int32, np.int64))
float16, float32, float64 = map(np.dtype, (np.float16, np.float32, np.float64))
bfloat16, BITS = BRAIN, np.dtype("V2")  # its numbers in a tile, and in memory
ABSENT = {
    "associative_scan": "tl.cumsum, or a loop that carries a state",
    "atomic_add": "one program for each result",
    "device_print": "print(x), which shows a tile's numbers",
    "dot_scaled": "tl.dot of float16 or bfloat16",
    "make_block_ptr": "a tile of pointers, x + offsets",
    "make_tensor_descriptor": "a tile of pointers, x + offsets",
    "rand": "random numbers that are given as a tensor",
    "range": "range; num_stages goes into the launch",
    "reduce": "tl.sum, tl.max or tl.min",
    "reshape": "other offsets when you load",
    "sigmoid": "1 / (1 + tl.exp(-x))",
    "softmax": "tl.exp, tl.max and tl.sum",
    "sort": "numbers that are sorted before the launch",
}
"""What programs for Triton use and ours have not, each with what does instead."""


class constexpr:  # noqa: N801
    """Marks a parameter that is known when Triton compiles; `BLOCK = tl.constexpr(16)` is such a global, a number."""

    value = property(lambda self: self.real)

    def __new__(cls, value):
        return type("constexpr", (float if isinstance(value, float) else int, cls), {})(value)


START = np.zeros((), np.int32)


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

    __slots__ = ("_memory", "_offsets", "name")
    __array_ufunc__ = None

    def __init__(self, name: str, memory: np.ndarray, offsets: np.ndarray = START):
        self.name, self._memory, self._offsets = name, memory, np.asarray(offsets)

    @property
    def dtype(self) -> SimpleNamespace:
        """Type of the pointer; `element_ty` in it is that of the entries, for a cast before a store."""
        return SimpleNamespace(element_ty=_entries(self._memory))

    type = dtype

    def __add__(self, offsets: object) -> "Pointer":
        """Pointers further on, by whole numbers."""
        steps = np.asarray(values(offsets, f"{self.name} + offsets"))
        if steps.dtype.kind not in "iu":
            refuse(f"{self.name} + offsets: offsets are {steps.dtype}, expected whole numbers")
        narrow = steps.dtype == np.int32 or not isinstance(offsets, Tile)
        return Pointer(self.name, self._memory, self._offsets + (steps.astype(np.int32) if narrow else steps))

    __radd__ = __add__

    def __sub__(self, offsets: object) -> "Pointer":
        """Pointers further back."""
        return self + -offsets

    def __getitem__(self, index: object) -> "Pointer":
        """New axes of a tile of pointers; a pointer has no entries."""
        parts = index if isinstance(index, tuple) else (index,)
        if self._offsets.ndim and all(part is None or part == slice(None) for part in parts):
            return Pointer(self.name, self._memory, self._offsets[index])
        refuse(f"pointer {self.name} has no entries; read with tl.load({self.name} + offsets)")

    def __setitem__(self, index, value):
        refuse(f"pointer {self.name} has no entries; write with tl.store({self.name} + offsets, tile)")

    def __len__(self):
        refuse(f"pointer {self.name} has no len(): pass the length as an argument")

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"pointer {self.name} has no .{name}: a program gets sizes and strides as arguments", AttributeError)


def launch(program: Callable, grid: tuple[int, ...], *operands: object, **constants: object) -> None:
    """Run a program for every point of the grid, in order.

    Args:
        program: a function of `programs.py`.
        grid: number of programs on each axis, at most three.
        operands: its first arguments; an array, also in a tuple, stands for a pointer to its first entry, and a number
            is a tile of one, unless the parameter is marked `tl.constexpr`.
        constants: the others, by name.

    Raises:
        IndexError: an access that is not masked lies outside its array; names program, operand and offset.
        TypeError: the program does what Triton does not know.
    """
    signature = inspect.signature(program)
    arguments = signature.bind(*operands, **constants).arguments
    given = {
        name: x if "constexpr" in str(signature.parameters[name].annotation) else _pointed(name, x)
        for name, x in arguments.items()
    }
    before = running.name, running.program, running.grid, running.active
    running.name, running.grid, running.active = program.__name__, tuple([*grid, 1, 1, 1][:3]), True
    try:
        with np.errstate(**{kind: "ignore" for kind, what in np.geterr().items() if what == "warn"}):
            for place in product(*map(range, running.grid)):
                running.program = place
                program(**given)
    finally:
        running.name, running.program, running.grid, running.active = before


@contextlib.contextmanager
def recording() -> Iterator[list[Event]]:
    """Collect the events of all launches of a `with` block, in order, in the list it gives.

    An access that is an error is the last event, so that one can look at it.

    Example:
        >>> def first(x):
        ...     load(x + arange(0, 4))
        >>> with recording() as events:
        ...     launch(first, (1,), np.zeros(4))
        >>> [(event.kind, event.operand, event.bytes) for event in events]
        [('load', 'x', 32)]
    """
    before, running.events = running.events, []
    try:
        yield running.events
    finally:
        running.events = before


def _pointed(name, x):
    """An argument with pointers to their first entry for arrays; their memory ends with the last, whatever strides."""
    if isinstance(x, tuple):
        return tuple(_pointed(name, part) for part in x)
    if isinstance(x, int) and not isinstance(x, bool):
        return Tile(np.asarray(x, np.int32 if -(2**31) <= x < 2**31 else np.int64))
    if isinstance(x, float):
        return Tile(np.asarray(x, np.float32))
    if not isinstance(x, np.ndarray):
        return x
    extent = 1 + int(np.dot(np.array(x.shape) - 1, x.strides)) // x.itemsize if x.size else 0
    return Pointer(name, np.lib.stride_tricks.as_strided(x, (extent,), (x.itemsize,)))


def _note(kind, operand, offsets, size=0, flops=0):
    if running.events is not None:
        running.events.append(Event(running.program, kind, operand, offsets, size, flops))


def _reached(kind, pointer, mask):
    """Memory, offsets and mask of an access, of one shape; raises where what is not masked leaves the memory."""
    if not isinstance(pointer, Pointer):
        refuse(f"tl.{kind}: expected a pointer plus offsets, got {type(pointer).__name__}")
    memory, offsets = pointer._memory, pointer._offsets
    mask = _like(f"mask of the {kind} of {pointer.name}", True if mask is None else mask, offsets.shape)
    if mask.dtype != bool:
        refuse(f"mask of the {kind} of {pointer.name}: expected a comparison, got {mask.dtype}")
    _note(kind, pointer.name, np.where(mask, offsets, -1), int(mask.sum()) * memory.itemsize)
    outside = mask & ((offsets < 0) | (offsets >= memory.size))
    if outside.any():
        first, last = offsets[outside].flat[0], memory.size - 1
        where = f"{running.name}, program {running.program}"
        raise IndexError(f"{where}: {kind} of {pointer.name} at offset {first}, expected 0 to {last} or a mask")
    return memory, offsets, mask


def _like(what, x, shape):
    """A tile or a number spread over the shape of the pointers, which never grows."""
    x = np.asarray(values(x, what))
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        refuse(f"{what}: shape {x.shape} does not spread over the pointers, {shape}", ValueError)


# What programs call as tl.…, with the meaning that Triton documents.


def static_range(*bounds):
    compiled("tl.static_range: its bounds", *bounds)
    return range(*bounds)


def program_id(axis):
    return Tile(np.asarray(running.program[axis], np.int32))


def num_programs(axis):
    return Tile(np.asarray(running.grid[axis], np.int32))


def cdiv(x, y):
    return (x + y - 1) // y


def arange(start, end):
    compiled("tl.arange: its bounds", start, end, instead=", or add what is not, `first + tl.arange(0, 16)`")
    if end <= start or (end - start) & (end - start - 1):
        refuse(f"tl.arange: length is {end - start}, expected a power of two", ValueError)
    return Tile(np.arange(start, end, dtype=np.int32))


def full(shape, value, dtype):
    shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    compiled("tl.full: sizes of a tile", *shape)
    return Tile(lanes.cast(np.full(shape, values(value, "tl.full")), dtype))


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def load(pointer, mask=None, other=None):
    if mask is None and other is not None:
        refuse("tl.load: `other` is for what a mask leaves out, but there is no mask", ValueError)
    memory, offsets, mask = _reached("load", pointer, mask)
    dtype = _entries(memory)
    nothing = np.nan if dtype.kind == "f" else -(2**31) if memory.dtype.itemsize > 3 else 0  # as good as any
    other = (nothing if running.fills else 0) if other is None else other
    out = lanes.cast(np.array(_like(f"other of the load of {pointer.name}", other, offsets.shape)), dtype)
    found = memory[offsets[mask]]
    out[mask] = (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if dtype == BRAIN else found
    return Tile(out)


def store(pointer, value, mask=None):
    memory, offsets, mask = _reached("store", pointer, mask)
    kept = lanes.cast(_like(f"tile that is stored in {pointer.name}", value, offsets.shape)[mask], _entries(memory))
    if memory.dtype == BITS:
        kept = (kept.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BITS)
    memory[offsets[mask]] = kept


def cast(x, dtype):
    return Tile(lanes.cast(np.asarray(values(x, "tl.cast")), dtype))


def dot(x, y, acc=None, input_precision=None, allow_tf32=None):
    """A matrix product with sums in float32, or of float64; it rounds to tf32 only where `running.rounds`."""
    if allow_tf32 is not None:
        refuse('tl.dot: allow_tf32 is an old word; for allow_tf32=False write input_precision="ieee"')
    x, y = (_tile("dot", one) for one in (x, y))
    if x.dtype != y.dtype:
        refuse(f"tl.dot: its first factor is {named(x.dtype)}, its second {named(y.dtype)}: cast one with `.to`")
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        refuse(f"tl.dot: shapes are {x.shape} and {y.shape}, expected (m, k) and (k, n)", ValueError)
    if any(size < 16 for size in x.shape + y.shape):
        refuse(f"tl.dot: shapes are {x.shape} and {y.shape}, expected no axis below 16", ValueError)
    _note("dot", "", np.array([*x.shape, y.shape[1]]), flops=2 * x.size * y.shape[1])
    wide = np.float64 if x.dtype == np.float64 else np.float32
    round = _tf32 if input_precision in (None, "tf32") and x.dtype == np.float32 and running.rounds else wide
    found = Tile(round(x) @ round(y))
    return found if acc is None else acc + found


def _tf32(x):
    """Ten binary digits behind the first one, to nearest; infinities and NaNs stay."""
    kept = (x.view(np.int32) + 0x1000 & ~0x1FFF).view(np.float32)
    return np.where(np.isfinite(x), kept, x)


def cumsum(x, axis=0):
    x = _tile("cumsum", x)
    return Tile(np.cumsum(x, axis, dtype=_summed(x)))


def sum(x, axis=None, keep_dims=False):
    x = _tile("sum", x)
    found = np.sum(x, axis, dtype=_summed(x), keepdims=keep_dims)
    return Tile(lanes.cast(found, x.dtype if x.dtype == BRAIN else found.dtype))


def max(x, axis=None, keep_dims=False):
    return Tile(np.max(_tile("max", x), axis, keepdims=keep_dims))


def min(x, axis=None, keep_dims=False):
    return Tile(np.min(_tile("min", x), axis, keepdims=keep_dims))


def trans(x):
    return Tile(_tile("trans", x).T)


def where(condition, x, y):
    condition = np.asarray(values(condition, "tl.where"))
    if condition.dtype != bool:
        refuse(f"tl.where: the condition is {condition.dtype}, expected a comparison")
    dtype = _both(x, y)
    return Tile(lanes.cast(np.where(condition, *(np.asarray(values(one)) for one in (x, y))), dtype))


def maximum(x, y):
    return _wide(where(x > y, x, y))


def minimum(x, y):
    return _wide(where(x < y, x, y))


def _wide(x):
    """What is compared in bfloat16 is float32 afterwards."""
    return cast(x, float32) if x.dtype == BRAIN else x


def abs(x):
    x = _tile("abs", x)
    return Tile(lanes.cast(np.abs(x), x.dtype))


def _tile(function, x):
    """The array of a tile; a number is one of no axes."""
    return np.asarray(values(x, f"tl.{function}"))


def _entries(memory):
    """The type of a memory's entries."""
    return BRAIN if memory.dtype == BITS else memory.dtype


def _summed(x):
    """The type of a sum: whole numbers below 32 bits are widened."""
    return np.int32 if x.dtype.itemsize < 4 and x.dtype.kind in "biu" else x.dtype.type


def _both(x, y):
    """The type of two tiles or numbers."""
    if isinstance(x, Tile) or isinstance(y, Tile):
        return promoted(x, y)
    return np.float32 if isinstance(x, float) or isinstance(y, float) else np.int32


def _of_floats(name):
    """A function of float32, which is what the hardware has it for."""
    function = getattr(np, name)

    def apply(x):
        x = _tile(name, x)
        if x.dtype not in (np.float32, np.float64):
            refuse(f"tl.{name}: x is {named(x.dtype)}, expected float32: x.to(tl.float32)")
        return Tile(function(x))

    return apply


exp, exp2, log, log2, sqrt, floor, ceil = map(_of_floats, ("exp", "exp2", "log", "log2", "sqrt", "floor", "ceil"))


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    instead = ABSENT.get(name, "dot, sum, cumsum, max, where, exp2, trans, load and store are there")
    raise AttributeError(f"tl.{name}: the emulator does not have it, Triton may; {instead}")
