"""What a learner's kernel did, launch by launch: its accesses, and the tiles that its variables held meanwhile."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from smalearn.fast import jit
from smalearn.fast.lanes import Tile, running, values
from smalearn.fast.tile import Event

__all__ = ["Recording", "record"]


class Recording(NamedTuple):
    """One launch.

    Attributes:
        events: every access and product, in order; one that fails is the last.
        grid: numbers of programs on three axes.
        chips: for each event, name, rows and columns of the tiles of float numbers that the program's variables hold.
        products: for each event, the variables that it multiplies, such as "C Bᵀ"; empty for an access.
        shapes: by parameter, the shape of its tensor, at least two axes.
    """

    events: list[Event]
    grid: list[int]
    chips: list[list]
    products: list[str]
    shapes: dict[str, tuple[int, ...]]


class _Watch(list):
    """A list of events that looks, at each one, into the variables of the kernel that runs."""

    def __init__(self, code):
        super().__init__()
        self.code, self.chips, self.products = code, [], []

    def append(self, event):
        super().append(event)
        frame = word = sys._getframe(2)  # of the `tl` operation, which the kernel has called
        while frame and frame.f_code is not self.code:
            frame = frame.f_back
        held = frame.f_locals if frame else {}
        floats = {n: values(x) for n, x in held.items() if isinstance(x, Tile) and x.shape and x.dtype.kind == "f"}
        self.chips.append([[name, *(int(size) for size in (*x.shape, 1)[:2])] for name, x in floats.items()])
        pair = [word.f_locals[side] for side in "xy"] if event.kind == "dot" else []
        self.products.append(" ".join(_named(x, floats) for x in pair))


def _named(factor: np.ndarray, held: dict[str, np.ndarray]) -> str:
    """Name the last variable that a factor is, perhaps turned or in another precision; "…" if it is none."""
    for name, x in reversed(held.items()):
        for turned, sign in ((x, ""), (x.T, "ᵀ")):
            if np.array_equal(turned.astype(factor.dtype), factor):
                return name + sign
    return "…"


def record(run: Callable, *operands: object) -> tuple[object, list[Recording], IndexError | None]:
    """Run a function that launches kernels in the emulator, and look on."""
    recordings = []

    def send(kernel, grid, *arguments, **constants):
        watch, before = _Watch(kernel.__wrapped__.__code__), running.events
        names = list(kernel.__wrapped__.__code__.co_varnames)
        given = dict(zip(names, arguments, strict=False)) | constants
        shapes = {n: (*x.shape, 1)[: max(x.ndim, 2)] for n, x in given.items() if isinstance(x, torch.Tensor)}
        running.events = watch
        try:
            jit.in_emulator(kernel, grid, *arguments, **constants)
        finally:
            running.events = before
            after = [*watch.chips[1:], *watch.chips[-1:]]  # what an event made is in a variable at the next one
            recordings.append(Recording(list(watch), [*grid, 1, 1, 1][:3], after, watch.products, shapes))

    token, answer, error = jit.sender.set(send), None, None
    try:
        answer = run(*operands)
    except IndexError as failed:
        error = failed
    finally:
        jit.sender.reset(token)
    return answer, recordings, error
