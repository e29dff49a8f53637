"""A tile of the Triton emulator: what a program on a GPU holds, with the operations that it has there and no others.

Dtypes follow Triton's rules: a Python number does not widen a tile of its kind, halves meet float32 in float32, and
whole numbers have 32 bits until one says otherwise. What Triton lacks (`s[-1]`, `@`, `.T`, NumPy's functions) is
refused here with the word to use instead; an int32 that wraps around, of which a GPU says nothing, is refused too.
"""

import numbers
import operator
from typing import NoReturn

import numpy as np

Number = int | float | bool
WORDS = {
    "T": "tl.trans(x)",
    "mT": "tl.trans(x)",
    "memory": "tl.load(pointer + offsets)",
    "reshape": "other offsets when you load",
    "item": "tl.sum(x) or a load of one entry",
    "astype": "x.to(dtype)",
    "float": "x.to(tl.float32)",
    "size": "the constexpr with which you made it",
    "clip": "tl.minimum and tl.maximum",
}
SAME = {
    "cumsum",
    "sum",
    "max",
    "min",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "abs",
    "where",
    "dot",
    "maximum",
    "minimum",
}
NUMPY = {"matmul": "tl.dot", "amax": "tl.max", "amin": "tl.min", "transpose": "tl.trans", "absolute": "tl.abs"}
HALF, SINGLE, DOUBLE = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BRAIN = SINGLE.newbyteorder()
"""bfloat16, which NumPy lacks: rounded float32, marked by the other byte order, which NumPy tells apart and carries."""


class Tile:
    """An array, not copied, as a tile of Triton: arithmetic, comparisons, `[:, None]`, `.to`, a shape and a dtype."""

    __slots__ = ("_values",)

    def __init__(self, values: np.ndarray):
        self._values = np.asarray(values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, all known when a program is compiled."""
        return self._values.shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return self._values.dtype

    def to(self, dtype: np.dtype) -> "Tile":
        """The same entries in another type, like `tl.cast`."""
        return Tile(cast(self._values, dtype))

    def __getitem__(self, index: object) -> "Tile":
        """New axes alone: `x[:, None]`, `x[None, :]`."""
        parts = index if isinstance(index, tuple) else (index,)
        if not all(part is None or part == slice(None) for part in parts):
            refuse(
                f"a tile has no entries that one can pick, [{_written(index)}]: mask with tl.where and add up, tl.sum"
            )
        return Tile(self._values[index])

    def __index__(self) -> int:
        """A tile of one whole number as the bound of a loop."""
        if self.shape or self.dtype.kind not in "iu":
            refuse(f"a tile of shape {self.shape} and {named(self.dtype)} counts no loop: expected one whole number")
        return int(self._values)

    def __bool__(self) -> bool:
        """Of one number alone, as `if` and `while` take it."""
        if self.shape:
            refuse("a tile is neither true nor false: use &, | and ~ on masks, and tl.where in place of if")
        return bool(self._values)

    def __neg__(self):
        return Tile(cast(-self._values, self.dtype))

    def __invert__(self):
        return Tile(~self._values)

    def __repr__(self) -> str:
        return f"Tile({np.array2string(self._values, separator=', ')}, shape={self.shape}, dtype={named(self.dtype)})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        instead = WORDS.get(name) or f"{word(name)}(x)" * (name in SAME) or "the words of tl"
        refuse(f"a tile has no .{name}: use {instead}", AttributeError)

    def __len__(self) -> NoReturn:
        refuse("a tile has no len(): its sizes are constexpr, x.shape[0]")

    def __iter__(self) -> NoReturn:
        refuse("a tile cannot be looped over: one program computes all of it at once")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        refuse("a tile's entries cannot be set: make a new tile, tl.where(mask, x, y)")

    def __float__(self) -> NoReturn:
        refuse("a tile is not a number: store it with tl.store")

    __int__ = __float__

    def __matmul__(self, other: object) -> NoReturn:
        refuse("tiles have no @: use tl.dot(x, y)")

    __rmatmul__ = __matmul__

    def __pow__(self, other: object) -> NoReturn:
        refuse("tiles have no **: use tl.exp2, or multiply")

    __rpow__ = __pow__

    def __array__(self, *_, **__) -> NoReturn:
        refuse("NumPy knows no tile: use the words of tl")

    def __array_function__(self, function, *_) -> NoReturn:
        refuse(f"a GPU has no np.{function.__name__}: use {word(function.__name__)}")

    def __array_ufunc__(self, function, *_, **__) -> NoReturn:
        self.__array_function__(function)

    @classmethod
    def __torch_function__(cls, function, *_, **__) -> NoReturn:
        name = getattr(function, "__name__", "function")
        refuse(f"inside a program there is no torch.{name}: use {word(name)}")


class _Running:
    """The program that runs: its name, its indices, the size of the grid, and where events go, if anywhere.

    `fills`: masked loads without `other` give NaN. `rounds`: `tl.dot` rounds float32 where it is not told to be exact.
    """

    name, program, grid, events, active, fills, rounds = "", (0, 0, 0), (1, 1, 1), None, False, True, False


running = _Running()


def refuse(sentence: str, error: type[Exception] = TypeError) -> NoReturn:
    """Raise what Triton would not compile, with the program's name."""
    raise error(f"{running.name}: {sentence}" if running.name else sentence)


def compiled(what: str, *given: object, instead: str = "") -> None:
    """Refuse tiles, known to a run alone, where the compiler needs a number: `what` it is, what would do `instead`."""
    if any(isinstance(x, Tile) for x in given):
        refuse(f"{what} are constexpr, known when the program is compiled: mark them `tl.constexpr`{instead}")


def values(x: object, function: str = "tl") -> np.ndarray | Number:
    """The array of a tile, or a Python number as it is; TypeError, in the name of a `function`, for anything else."""
    if isinstance(x, Tile):
        return x._values
    if isinstance(x, numbers.Number) and not isinstance(x, np.generic):
        return x
    refuse(f"{function}: expected a tile or a number, got {type(x).__name__}")


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array in another type of NumPy, or `BRAIN`: bfloat16, the nearest of 8 binary digits, the even one of two."""
    if dtype != BRAIN:
        return x.astype(dtype)
    bits = np.array(x, np.float32).view(np.uint32)
    near = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return np.where(np.isnan(x), x, near.view(np.float32)).astype(BRAIN)


def named(dtype: np.dtype) -> str:
    """What Triton calls a type of NumPy, or `BRAIN`."""
    return "bfloat16" if dtype == BRAIN else str(dtype)


def promoted(x: object, y: object, divides: bool = False) -> np.dtype:
    """The type in which Triton computes with a tile and another one, or a number; / and % of halves do in float32.

    >>> promoted(Tile(np.ones(2, np.float16)), 0.5), promoted(Tile(np.ones(2, np.int32)), 0.5)
    (dtype('float16'), dtype('float32'))
    """
    kinds = [_kind(one) for one in (x, y)]
    tiles = [one.dtype for one in (x, y) if isinstance(one, Tile)]
    if len(tiles) == 1:
        number = 1 if isinstance(x, Tile) else 0
        if kinds[number] <= kinds[1 - number]:
            return SINGLE if divides and tiles[0] in (HALF, BRAIN) else tiles[0]
        tiles.append(np.dtype((bool, np.int32, np.float32)[kinds[number]]))
    for dtype in (DOUBLE, SINGLE):
        if dtype in tiles:
            return dtype
    if HALF in tiles:
        return SINGLE if divides else HALF
    if BRAIN in tiles:
        return SINGLE if divides or tiles != [BRAIN, BRAIN] else BRAIN
    return np.promote_types(*tiles)


def word(name: str) -> str:
    """What `tl` calls a function of NumPy or torch; other words where it has none."""
    return NUMPY.get(name, f"tl.{name}" if name in SAME else "the words of tl")


def _kind(x):
    """0 for bool, 1 for whole numbers, 2 for others."""
    if isinstance(x, Tile):
        return {"b": 0, "i": 1, "u": 1, "f": 2}[x.dtype.kind]
    return 0 if isinstance(x, bool) else 1 if isinstance(x, int) else 2


def _written(index):
    """An index as it stands in the source."""
    parts = index if isinstance(index, tuple) else (index,)
    return ", ".join(":" if part == slice(None) else "…" if isinstance(part, slice) else str(part) for part in parts)


def _whole(result, dtype):
    """Whole numbers in their type; refuses those that would wrap around."""
    narrow = cast(result, dtype)
    if dtype == np.int32 and result.dtype == np.int64 and (narrow != result).any():
        refuse(f"an int32 wraps around, {result[narrow != result].flat[0]}: tl.cast(..., tl.int64) before you multiply")
    return narrow


def _arithmetic(function, divides=False):
    """A method for a binary operation, and its mirror image."""

    def apply(x, y):
        if not isinstance(y, Tile) and not isinstance(y, numbers.Number):
            return NotImplemented
        dtype = promoted(x, y, divides)
        if function is operator.truediv and dtype.kind != "f":
            dtype = SINGLE
        wide = np.int64 if dtype.kind in "iu" else dtype
        return Tile(_whole(np.asarray(function(_as(x, wide), _as(y, wide))), dtype))

    return apply, lambda y, x: apply(Tile(np.asarray(x, promoted(x, y))), y)


def _as(x, dtype):
    return cast(np.asarray(x._values if isinstance(x, Tile) else x), dtype)


def _comparison(function):
    def apply(x, y):
        if not isinstance(y, Tile) and not isinstance(y, numbers.Number):
            return NotImplemented
        dtype = promoted(x, y)
        return Tile(np.asarray(function(_as(x, dtype), _as(y, dtype))))

    return apply


def _towards_zero(x, y):
    """Division of whole numbers as in C, which is Triton's: −7 // 2 is −3."""
    if x.dtype.kind == "f":
        refuse("// is for whole numbers: use x / y and tl.floor")
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


def _rest(x, y):
    return np.fmod(x, y)


for _name, _function in {"add": operator.add, "sub": operator.sub, "mul": operator.mul}.items():
    setattr(Tile, f"__{_name}__", _arithmetic(_function)[0])
    setattr(Tile, f"__r{_name}__", _arithmetic(_function)[1])
for _name, _function in {"truediv": operator.truediv, "floordiv": _towards_zero, "mod": _rest}.items():
    setattr(Tile, f"__{_name}__", _arithmetic(_function, True)[0])
    setattr(Tile, f"__r{_name}__", _arithmetic(_function, True)[1])
for _name in ("and_", "or_", "xor", "lshift", "rshift"):
    _bare = _name.rstrip("_")
    setattr(Tile, f"__{_bare}__", _arithmetic(getattr(operator, _name))[0])
    setattr(Tile, f"__r{_bare}__", _arithmetic(getattr(operator, _name))[1])
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Tile, f"__{_name}__", _comparison(getattr(operator, _name)))
Tile.__hash__ = None
