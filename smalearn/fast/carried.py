"""Loops of a program as Triton's compiler sees them: what a turn hands to the next keeps its shape and its dtype."""

import builtins
import functools
import sys
import types
from collections.abc import Callable, Iterator

import numpy as np

from smalearn.fast.lanes import Tile, refuse

__all__ = ["with_strict_loops"]


def with_strict_loops(program: Callable) -> Callable:
    """The same program, whose `range` compares the names it knows before and after each turn.

    Args:
        program: a function that is written for Triton.

    Returns:
        A function that raises a TypeError where a name changes its shape or dtype in a loop, `total = 0.0` before one
        that adds a tile to it, say.
    """
    if program.__globals__.get("range", range) is not range:
        return program
    space = program.__globals__ | {"range": _range}  # as they are now: what a program calls may be defined after it
    strict = types.FunctionType(program.__code__, space, program.__name__, program.__defaults__, program.__closure__)
    return functools.update_wrapper(strict, program)


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
    return f"a tile of shape {shape}, {dtype}," if shape else f"one number, {dtype},"
