"""Run of the SSD forward program, access by access: which program touches which tile of which tensor, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import traitlets

from smalearn.course.widgets import kernel_designs
from smalearn.course.widgets.base import Checked, Explorer, module
from smalearn.course.widgets.kernel_designs import DESIGNS
from smalearn.course.widgets.kernel_recording import record
from smalearn.course.widgets.kernel_traces import KINDS, runs, trace_of
from smalearn.fast.tile import Event

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK_LENS", "LIMITS", "KernelTracer"]

LIMITS = {"length": 64, "state": 32, "head_dim": 32, "heads": 4}
CHUNK_LENS = (16, 32, 64)
MOST_STEPS = 4000  # of a recording, so that it is small enough to be sent


class KernelTracer(Explorer):
    """The SSD forward program at work, recorded in our Triton emulator: step through its accesses to memory.

    Every tensor is a grid of cells, one for each head. At each step one program loads a tile, stores one, or multiplies
    two on the chip. Cells read so far are blue, the darker the more often; cells written are green. Lanes of a tile
    that a mask switches off are dashed, mostly outside of the tensor's edge; lanes that are outside and not switched
    off are orange, and so are the cells of other rows and heads that they hit. Below stand the tiles that are on the
    chip, the units where two of them meet in a product, and running totals of bytes and multiply-adds. A cell that is
    pointed at says how often it has been read and written.

    Designs: "one walk", where one program goes through all chunks of a head with the state on the chip;
    "four steps", the chunked algorithm as four launches that speak through memory; "one walk without masks", which is
    broken. A program holds 16 columns of P. Multiply-adds are those of the matrix products, masked lanes included.

    Args:
        length: T, from 1 to 64.
        chunk_len: Q, 16, 32 or 64.
        state: N, from 1 to 32.
        head_dim: P, from 1 to 32.
        heads: from 1 to 4; they share B and C.
        shown: `design`, at first "one walk", and `step`, the number of steps that are done, at first half of all. These
            two can be read and set.

    Raises:
        ValueError: an argument is not one of the above.

    Cost: all designs run once, some hundredths of a second; the browser gets 130 kB at the largest sizes, 60 kB of it
        the script. Of another recording, or a race, it gets about 50 bytes a step.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 6.

    Example:
        >>> tracer = KernelTracer(length=64, state=16, head_dim=16, heads=1)
        >>> tracer.costs["one walk"], tracer.costs["four steps"]
        ({'loaded': 12544, 'stored': 5120, 'macs': 65536}, {'loaded': 37888, 'stored': 17408, 'macs': 65536})
    """

    _esm = module(
        "kernel_runs.js",
        "kernel_layout.js",
        "kernel_tracer.js",
        **{kind.upper(): number for number, kind in enumerate(KINDS)},
    )
    _traces = traitlets.List().tag(sync=True)
    _race = traitlets.Bool(False).tag(sync=True)
    _fails = traitlets.Unicode().tag(sync=True)
    design = Checked().tag(sync=True)
    step = Checked().tag(sync=True)

    def __init__(
        self,
        length: int = 40,
        chunk_len: int = 16,
        state: int = 8,
        head_dim: int = 20,
        heads: int = 2,
        **shown: object,
    ) -> None:
        sizes = {"length": length, "chunk_len": chunk_len, "state": state, "head_dim": head_dim, "heads": heads}
        for name, size in sizes.items():
            _check_size(name, size)
        origin = ", ".join(f"{name}={size}" for name, size in sizes.items())
        self._start([_design(name, sizes) for name in DESIGNS], origin, given=sizes, **shown)

    @classmethod
    def of(cls, events: Sequence[Event], shapes: dict[str, tuple[int, ...]], **shown: object) -> KernelTracer:
        """Make the tracer of another recording, of any program; the tiles on the chip are not drawn then.

        Args:
            events: those that `smalearn.fast.tile.recording` collects.
            shapes: by operand, the shape (..., rows, columns) of its memory, which is contiguous.
            shown: `step`, the number of steps that are done.

        Returns:
            A tracer whose only design is called "recording".

        Raises:
            ValueError: nothing is recorded, or too much; an operand has no shape, or is too large to be drawn; a tile
                is not one of neighbouring rows and columns of which a mask leaves the first.

        Example:
            >>> from smalearn.fast import tile
            >>> with tile.recording() as events:
            ...     tile.launch(lambda x: tile.load(x + tile.arange(0, 4)), (1,), np.zeros((2, 4)))
            >>> KernelTracer.of(events, {"x": (2, 4)}, step=1).totals
            {'loaded': 32, 'stored': 0, 'macs': 0}
        """
        if not 1 <= len(events) <= MOST_STEPS:
            raise ValueError(f"KernelTracer.of: events, expected 1 to {MOST_STEPS}, got {len(events)}")
        for name in dict.fromkeys(event.operand for event in events if event.operand):
            _check_shape(name, shapes.get(name))
        shapes = {name: (int(np.prod(shape[:-2])), *shape[-2:]) for name, shape in shapes.items()}
        launches = [
            (None, launch, [1 + max(event.program[axis] for event in launch) for axis in range(3)])
            for launch in runs(events)
        ]
        tracer = cls.__new__(cls)
        tracer._start([trace_of("recording", launches, shapes)], f"{len(events)} events", **shown)
        return tracer

    @classmethod
    def race(
        cls, run: Callable, operands: tuple[torch.Tensor | int, ...], name: str = "your walk", **shown: object
    ) -> KernelTracer:
        """Make the tracer of a function that launches kernels on one head, beside the four steps on the same numbers.

        The tiles on the chip are those that the kernel's own variables hold, and a product is named after those that
        it multiplies. A program that leaves a tensor's memory is shown up to there.

        Args:
            run: as the `walk` of chapter 12, (X, log2_a, B, C, initial, chunk_len) → its results.
            operands: its arguments, X (T, P), B (T, N), of the sizes that `KernelTracer` takes.
            name: of its design.
            shown: `design`, at first `name`, and `step`.

        Returns:
            A tracer with two designs, which the page shows side by side.

        Raises:
            ValueError: an argument is not one of the above; nothing was launched.
        """
        X, _, B, *_, chunk_len = operands
        sizes = {"length": len(X), "chunk_len": chunk_len, "state": B.shape[1], "head_dim": X.shape[1], "heads": 1}
        for size in sizes.items():
            _check_size(*size)
        _, recordings, error = record(run, *operands)
        if not any(one.events for one in recordings):
            raise ValueError("KernelTracer.race: run launched no kernel that touches memory")
        shapes = {}
        for one in recordings:
            shapes |= {name: (int(np.prod(shape[:-2])), *shape[-2:]) for name, shape in one.shapes.items()}
        launches = [(one, one.events, one.grid) for one in recordings]
        tracer = cls.__new__(cls)
        origin = ", ".join(f"{name}={size}" for name, size in sizes.items())
        traces = [trace_of(name, launches, shapes), _design("four steps", sizes)]
        tracer._start(traces, origin, fails=str(error or ""), race=True, **shown)
        return tracer

    def _start(
        self,
        traces: list[dict],
        origin: str,
        design: str | None = None,
        step: int | None = None,
        race: bool = False,
        fails: str = "",
        given: dict[str, int] | None = None,
    ) -> None:
        self._origin = origin
        trace = _chosen(traces, traces[0]["name"] if design is None else design)
        step = _checked_step(traces if race else [trace], len(trace["steps"]) // 2 if step is None else step)
        super().__init__(_given=given, _traces=traces, _race=race, _fails=fails, design=trace["name"], step=step)

    @traitlets.validate("design")
    def _valid_design(self, proposal: dict) -> str:
        return _chosen(self._traces, proposal["value"])["name"]

    @traitlets.validate("step")
    def _valid_step(self, proposal: dict) -> int:
        return _checked_step(self._traces if self._race else [self._trace], proposal["value"])

    @traitlets.observe("design")
    def _fit_step(self, change: dict) -> None:
        self.step = self.step if self._race else min(self.step, len(self._trace["steps"]))

    @property
    def _trace(self) -> dict:
        """The recording of the design."""
        return _chosen(self._traces, self.design)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes loaded, bytes stored, and multiply-adds, of the steps that are done."""
        return _totals(self._trace["steps"][: self.step])

    @property
    def costs(self) -> dict[str, dict[str, int]]:
        """The `totals` of each design after its last step."""
        return {trace["name"]: _totals(trace["steps"]) for trace in self._traces}

    def __repr__(self) -> str:
        """The recording and the state, the same text on every machine."""
        if self._origin.endswith("events"):
            return f"KernelTracer.of({self._origin}, step={self.step})"
        return f"KernelTracer({self._origin}, design={self.design!r}, step={self.step})"


def _chosen(traces: list[dict], design: object) -> dict:
    """Find the trace of that name; a ValueError where there is none."""
    for trace in traces:
        if trace["name"] == design:
            return trace
    names = ", ".join(repr(trace["name"]) for trace in traces)
    raise ValueError(f"KernelTracer: design, expected one of {names}, got {design!r}")


def _checked_step(traces: list[dict], step: object) -> int:
    """Return the step; a ValueError where no trace has it."""
    count = max(len(trace["steps"]) for trace in traces)
    if isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= count:
        return step
    raise ValueError(f"KernelTracer: step, expected an int from 0 to {count}, got {step!r}")


def _check_size(name: str, size: object) -> None:
    """Check a size; a ValueError where it is not one."""
    is_int = isinstance(size, int) and not isinstance(size, bool)
    if name == "chunk_len":
        if not is_int or size not in CHUNK_LENS:
            raise ValueError(f"KernelTracer: chunk_len, expected 16, 32 or 64, got {size!r}")
    elif not is_int or not 1 <= size <= LIMITS[name]:
        raise ValueError(f"KernelTracer: {name}, expected an int from 1 to {LIMITS[name]}, got {size!r}")


def _check_shape(name: str, shape: object) -> None:
    """Check a shape; a ValueError where no tensor of that shape can be drawn."""
    axes = list(shape) if isinstance(shape, tuple | list) else []
    if len(axes) < 2 or not all(isinstance(size, int) and size > 0 for size in axes) or _too_large(axes):
        expected = "(..., rows, columns), at most 16 matrices of at most 256 rows and columns"
        raise ValueError(f"KernelTracer.of: shape of {name}, expected {expected}, got {shape!r}")


def _too_large(shape: list[int]) -> bool:
    return int(np.prod(shape[:-2])) > 16 or max(shape[-2:]) > 256


def _design(name: str, sizes: dict[str, int]) -> dict:
    """Make the trace of a design."""
    made = kernel_designs.operands(**sizes)
    launches = [(stage, *kernel_designs.run(stage, made, sizes["chunk_len"])) for stage in DESIGNS[name]]
    return trace_of(name, launches, {operand: shape for operand, (_, shape) in made.items()})


def _totals(steps: list[list[int]]) -> dict[str, int]:
    """Add up bytes and multiply-adds over steps."""
    loaded, stored = (sum(step[11] for step in steps if step[2] == kind) for kind in (0, 1))
    return {"loaded": loaded, "stored": stored, "macs": sum(step[12] for step in steps)}
