"""A recorded run, written for the browser that draws it: lists of small numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smalearn.course.widgets.kernel_designs import Stage
from smalearn.course.widgets.kernel_recording import Recording
from smalearn.fast.tile import Event

__all__ = ["HELD", "KINDS", "LETTERS", "runs", "trace_of"]

KINDS = ["load", "store", "dot"]
LETTERS = {"log_a": "log a", "b": "B", "c": "C", "x": "X", "y": "Y", "final": "last H", "added": "added H"}
HELD = {"log_a": "sums of log a", "states": "H", "added": "added H"}  # what a tile is called on the chip


def runs(events: Sequence[Event]) -> list[list[Event]]:
    """Split events into those of each launch, where programs come in order."""
    launches, previous = [], None
    for event in events:
        if previous is None or event.program < previous:
            launches.append([])
        launches[-1].append(event)
        previous = event.program
    return launches


def trace_of(name: str, launches: list[tuple], shapes: dict[str, tuple[int, int, int]]) -> dict:
    """Write a design for the browser: lists of small numbers.

    A step is (launch, number of the program, kind, number of the operand, panel, row, column, rows and columns of its
    tile, rows and columns of it that no mask switches off, bytes, multiply-adds, number of the tiles on the
    chip); that of a product has its sizes m, k, n in the place of panel, row and column.
    """
    used = {event.operand for _, events, _ in launches for event in events if event.operand}
    names = [operand for operand in [*LETTERS, *shapes] if operand in used and operand in shapes]
    names, products, held, steps = list(dict.fromkeys(names)), [], [], []
    for launch, (stage, events, grid) in enumerate(launches):
        for event, product, chip in zip(events, _products(stage, events), _chips(stage, events), strict=True):
            if event.kind == "dot":
                place, label = [*map(int, event.offsets), 0, 0, 0, 0], _number(products, product)
            else:
                place, label = _place(event, shapes[event.operand]), names.index(event.operand)
            program = int(np.ravel_multi_index(event.program, grid))
            kind = KINDS.index(event.kind)
            steps.append([launch, program, kind, label, *place, event.bytes, event.flops // 2, _number(held, chip)])
    operands = [_operand(number, operand, shapes[operand], steps) for number, operand in enumerate(names)]
    grids = [list(grid) for _, _, grid in launches]
    return {"name": name, "grids": grids, "operands": operands, "products": products, "held": held, "steps": steps}


def _number(entries: list, entry: object) -> int:
    """Find the place of an entry in a list; add it at the end if it is new."""
    if entry not in entries:
        entries.append(entry)
    return entries.index(entry)


def _operand(number: int, name: str, shape: tuple[int, int, int], steps: list[list[int]]) -> dict:
    """Describe a tensor: its panels (one for each head), their size, and how far tiles reach."""
    tiles = [step for step in steps if step[2] < 2 and step[3] == number]
    height, width = (max(shape[1 + i], *(step[5 + i] + step[7 + i] for step in tiles)) for i in (0, 1))
    sizes = {"panels": shape[0], "rows": shape[1], "columns": shape[2], "height": height, "width": width}
    return {"name": LETTERS.get(name, name), **sizes}


def _place(event: Event, shape: tuple[int, int, int]) -> list[int]:
    """Find panel, row and column where a tile begins, its rows and columns, and those that are not masked."""
    panels, rows, columns = shape
    offsets = np.asarray(event.offsets)
    offsets = offsets.reshape(*offsets.shape, *[1] * (2 - offsets.ndim))
    for tile in (offsets, offsets.T):
        height, width = ((tile >= 0).any(axis).sum() for axis in (1, 0))
        down, across = np.arange(tile.shape[0])[:, None], np.arange(tile.shape[1])
        expected = np.where((down < height) & (across < width), tile[0, 0] + down * columns + across, -1)
        if np.array_equal(tile, expected):
            row, column = divmod(max(int(tile[0, 0]), 0), columns)
            panel = min(row // rows, panels - 1)  # lanes behind the last panel hang below it
            return [panel, row - panel * rows, column, *tile.shape, int(height), int(width)]
    raise ValueError(
        f"KernelTracer.of: {event.kind} of {event.operand}, expected neighbouring rows and columns of which a mask "
        "leaves the first"
    )


def _products(stage: Stage | Recording | None, events: list[Event]) -> Iterator[str]:
    """Yield for each event the name of its matrix product; an empty one if it is not a product."""
    if isinstance(stage, Recording):
        yield from stage.products
        return
    count = 0
    for event in events:
        dot = event.kind == "dot"
        yield "" if not dot else stage.products[count % len(stage.products)][0] if stage else "a product"
        count += dot


def _chips(stage: Stage | Recording | None, events: list[Event]) -> Iterator[list]:
    """Yield for each event the tiles (name, rows, columns) on the chip after it: those of its chunk, and H."""
    if isinstance(stage, Recording):
        yield from stage.chips
        return
    program, chip, count = None, {}, 0
    state = next((e.offsets.shape for e in events if e.operand == "final"), None)
    for event in events if stage else []:
        if event.program != program or event.operand == "log_a":
            chip = {"H": state} if stage.walks else {}
        program = event.program
        if event.kind == "load":
            sums = event.operand == "log_a"
            name = HELD.get(event.operand, LETTERS.get(event.operand))
            chip = chip | {name: (len(event.offsets), 2) if sums else event.offsets.shape}
        elif event.kind == "dot":
            chip = chip | {stage.products[count % len(stage.products)][1]: (event.offsets[0], event.offsets[2])}
            count += 1
        yield [[name, *map(int, shape)] for name, shape in chip.items()]
    if not stage:
        yield from ([] for _ in events)
