"""What a learner's kernel did, launch by launch: its accesses, and the tiles that its variables held meanwhile."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

from smalearn.fast import jit
from smalearn.fast.lanes import Tile, running
from smalearn.fast.tile import Event

__all__ = ["Recording", "record"]


class Recording(NamedTuple):
    """One launch.

    Attributes:
        events: every access and product, in order; one that fails is the last.
        grid: numbers of programs on three axes.
        chips: for each event, name, rows and columns of the tiles of float numbers that the program's variables hold.
        shapes: by parameter, the shape of its tensor, at least two axes.
    """

    events: list[Event]
    grid: list[int]
    chips: list[list]
    shapes: dict[str, tuple[int, ...]]


class _Watch(list):
    """A list of events that looks, at each one, into the variables of the kernel that runs."""

    def __init__(self, code):
        super().__init__()
        self.code, self.chips = code, []

    def append(self, event):
        super().append(event)
        frame = sys._getframe(1)
        while frame and frame.f_code is not self.code:
            frame = frame.f_back
        held = frame.f_locals if frame else {}
        floats = {name: x.shape for name, x in held.items() if isinstance(x, Tile) and x.shape and x.dtype.kind == "f"}
        self.chips.append([[name, *(int(size) for size in (*shape, 1)[:2])] for name, shape in floats.items()])


def record(run: Callable, *operands: object) -> tuple[object, list[Recording], IndexError | None]:
    """Run a function that launches kernels in the emulator, and look on.

    Args:
        run: the function.
        operands: its arguments.

    Returns:
        Its answer, None where an access failed; one recording for each launch; and the error of the access that failed.
    """
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
            recordings.append(Recording(list(watch), [*grid, 1, 1, 1][:3], after, shapes))

    token, answer, error = jit.sender.set(send), None, None
    try:
        answer = run(*operands)
    except IndexError as failed:
        error = failed
    finally:
        jit.sender.reset(token)
    return answer, recordings, error
