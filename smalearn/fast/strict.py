"""A program as Triton's compiler sees it: no other libraries, and what a loop carries keeps its shape and its dtype."""

import builtins
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from smalearn.fast.lanes import Tile, named, refuse, word

__all__ = ["strict"]

INFINITY = 'float("inf")'
LIBRARIES = ("torch", "numpy", "math", "einops")


def strict(program: Callable) -> Callable:
    """The same program, to which PyTorch, NumPy and math do not exist, and whose loops are looked at in each turn.

    Args:
        program: a function that is written for Triton.

    Returns:
        A function that raises a TypeError where it uses such a library, `-torch.inf`, say; or where a name changes its
        shape or dtype in a loop, `total = 0.0` before one that adds a tile to it.
    """
    if program.__globals__.get("range", range) is not range:
        return program
    found = {name: program.__globals__.get(name) for name in program.__code__.co_names}
    absent = {name: _Absent(name) for name, x in found.items() if getattr(x, "__name__", None) in LIBRARIES}
    space = program.__globals__ | absent | {"range": _range}  # as they are now: it may call what is defined after it
    made = types.FunctionType(program.__code__, space, program.__name__, program.__defaults__, program.__closure__)
    return functools.update_wrapper(made, program)


class _Absent:
    """A library that is not there inside a program."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        refuse(f"inside a program there is no {self._name}.{name}: use {INFINITY if name == 'inf' else word(name)}")


def _range(*bounds: object) -> Iterator[int]:
    """Count as `range` does, and look at the program that counts."""
    program = sys._getframe(1)
    before = _kinds(program)
    for number in builtins.range(*bounds):
        yield number
        after = _kinds(program)
        for name, kind in before.items():
            if after.get(name, kind) != kind:
                refuse(
                    f"{name} is {_words(kind)} before the loop and {_words(after[name])} after a turn: what is carried "
                    "from turn to turn keeps its shape and dtype"
                )


def _kinds(frame):
    """Shape and dtype of the tiles and numbers in a frame, by name."""
    return {name: kind for name, x in frame.f_locals.items() if (kind := _kind(x)) is not None}


def _kind(x):
    if isinstance(x, Tile):
        return x.shape, x.dtype
    if isinstance(x, bool | int | float):
        return (), np.dtype(np.bool_ if isinstance(x, bool) else np.int32 if isinstance(x, int) else np.float32)
    return None


def _words(kind):
    shape, dtype = kind
    return f"a tile of shape {shape}, {named(dtype)}," if shape else f"one number, {named(dtype)},"
