"""Run a function that launches kernels three ways: in the emulator, in Triton's interpreter, compiled for a GPU.

The emulator comes first, always, and checks every address: a pointer that leaves its tensor is an error there, and
kills the interpreter's process. What this machine lacks is said, not skipped in silence.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from smalearn.fast import jit, tile
from smalearn.fast.triton import launch
from smalearn.fast.triton.compiled import Compiled, Launch, compile_for
from smalearn.fast.triton.configs import SHARED
from smalearn.testing import relative_rms

NO_TRITON = "Triton is missing (its packages are for Linux)"


@dataclass(frozen=True)
class Report:
    """What became of a function in each of the places.

    Attributes:
        answer: of the emulator.
        events: every access and product, as the emulator recorded them.
        apart: by place, the largest relative RMS difference to the emulator's answer.
        missing: by place, why it gave no answer.
        target: what was compiled for.
        compiled: what the compiler made of each launch; None without Triton.
        launches: of kernels, as `compile_for` takes them for other cards.
        milliseconds: of one run on the GPU.
    """

    answer: object
    events: list[tile.Event]
    apart: dict[str, float]
    missing: dict[str, str]
    target: str
    compiled: list[Compiled] | None
    launches: Sequence[Launch] = ()
    milliseconds: float | None = None

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that moved between the programs and each operand."""
        moved = Counter()
        for event in self.events:
            moved[event.operand] += event.bytes
        return {name: size for name, size in moved.items() if name}

    def __repr__(self) -> str:
        """One line for each place."""
        sums = Counter()
        for event in self.events:
            sums[event.kind] += event.bytes
        accesses = sum(event.kind != "dot" for event in self.events)
        lines = [
            f"emulator       {accesses} accesses, none outside; {sums['load']:,} bytes loaded, {sums['store']:,} stored"
        ]
        for place in ("interpreter", "GPU"):
            lines.append(f"{place:14} {self.missing[place] if place in self.missing else _compared(self.apart[place])}")
        lines[-1] += "" if self.milliseconds is None else f", in {self.milliseconds:.3f} ms"
        lines += [f"{self.target:14} {NO_TRITON}"] if self.compiled is None else []
        lines += _made(self.compiled or (), self.target)
        return "\n".join(lines)

    def compiled_for(self, target: str, **hints: int) -> str:
        """What the compiler makes of the same launches for another card, a line for each kernel.

        Args:
            target: as `everywhere` takes it.
            hints: `num_warps` and `num_stages`, for all of the launches.
        """
        if not launch.has_triton():
            return f"{target:14} {NO_TRITON}"
        launches = [one._replace(constants=one.constants | hints) for one in self.launches]
        return "\n".join(_made(compile_for(target, launches), target))


def everywhere(run: Callable, *operands: object, target: str = "sm90") -> Report:
    """Run a function in all places that this machine has.

    Args:
        run: launches kernels on its tensors, and returns a tensor or a tuple of them.
        operands: its arguments, tensors on the CPU and others.
        target: what to compile for, sm75 (T4), sm80 (A100), sm86 and sm89 (RTX 30 and 40), sm90 (H100), sm100 or sm120
            (Blackwell).

    Returns:
        The report; printed, it is one line for each place. A program that is too large for the GPU is such a line.

    Raises:
        IndexError: an access that is not masked lies outside of its tensor; nothing else is run then.
        RuntimeError: Triton's compiler refuses a program.

    Cost:
        Triton's interpreter takes some milliseconds for a turn of a loop, the compiler seconds.
    """
    launches = []

    def noted(kernel, grid, *arguments, **constants):
        launches.append(Launch(kernel, grid, arguments, constants))
        jit.in_emulator(kernel, grid, *arguments, **constants)

    with tile.recording() as events:
        answer = _through(noted, run, operands)
    apart, missing, milliseconds = {}, _missing(), None
    if "interpreter" not in missing:
        apart["interpreter"] = _difference(_through(_in_triton, run, operands), answer)
    if "GPU" not in missing:
        from triton.runtime.errors import OutOfResources

        try:
            found, milliseconds = _on_gpu(run, operands)
            apart["GPU"] = _difference(found, answer)
        except OutOfResources as error:
            missing["GPU"] = _too_large(error)
    compiled = compile_for(target, launches) if launch.has_triton() else None
    return Report(answer, events, apart, missing, target, compiled, launches, milliseconds)


def _missing():
    """By place, why nothing can run there: Triton interprets or compiles, never both in one process."""
    if not launch.has_triton():
        return dict.fromkeys(("interpreter", "GPU"), NO_TRITON)
    interprets, missing = launch.interprets(), {}
    if not interprets:
        missing["interpreter"] = "off, Triton compiles here: start with TRITON_INTERPRET=1"
    if not torch.cuda.is_available():
        missing["GPU"] = "not on this machine"
    elif interprets:
        missing["GPU"] = "off, Triton interprets here: start without TRITON_INTERPRET"
    return missing


def _through(send, run, operands):
    """The answer with launches that go through `send`; each run has its own copies."""
    token = jit.sender.set(send)
    try:
        return run(*(x.clone() if isinstance(x, torch.Tensor) else x for x in operands))
    finally:
        jit.sender.reset(token)


def _in_triton(kernel, grid, *arguments, **constants):
    """Launch in Triton's interpreter, whose products of bfloat16 are of its bits: in float32 instead."""
    wide = list(map(_widened, arguments))
    launch.for_triton(kernel.__wrapped__)[grid](*wide, **constants)
    for given, x in zip(arguments, wide, strict=True):
        if given is not x:
            given.copy_(x)


def _widened(x):
    """A tensor of bfloat16 in float32, with the strides that it has; anything else as it is."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.bfloat16:
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=torch.float32).copy_(x)


def _on_gpu(run, operands):
    """The answer of the GPU, and the milliseconds of the quickest of some more runs."""
    given = [x.cuda() if isinstance(x, torch.Tensor) else x for x in operands]
    with torch.device("cuda"):  # what the function makes itself belongs there too
        answer, times = run(*given), []
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run(*given)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return answer, min(times)


def _made(compiled, target):
    """A line for each program that was compiled."""
    for one in dict.fromkeys(compiled):
        units = [f"{one.wgmma} wgmma", f"{one.mma} mma"] + [f"{one.tcgen05} tcgen05"] * (one.tcgen05 > 0)
        yield (
            f"{target:14} {one.kernel}: {one.registers} registers, {one.spilled} bytes spilled, "
            f"{_shared(one.shared, target)}, {', '.join(units)}"
        )


def _too_large(error):
    """Words for a program that asks for more than the card has; Triton counts shared memory in bytes."""
    if error.name != "shared memory":
        return f"not run, {error}"
    return f"not run: needs {math.ceil(error.required / 1024)} KB of the card's {error.limit // 1024} of shared memory"


def _difference(found, expected):
    """The largest relative difference of some tensors."""
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True)
    return max(_relative(x.cpu().double(), y.double()) for x, y in pairs)


def _relative(found, expected):
    """Their relative difference; infinities that are equal do not differ."""
    alike = found.isinf() & (found == expected)
    return relative_rms(found.masked_fill(alike, 0.0), expected.masked_fill(alike, 0.0))


def _compared(apart):
    """Words for a difference."""
    return f"the same to {10.0 ** -_digits(apart):.0e}" if apart < 1e-2 else f"ANOTHER ANSWER, {apart:.1e} apart"


def _shared(size, target):
    """Words for a program's shared memory, beside the most that a card of this kind gives one, where we know it."""
    needed, most = math.ceil(size / 1024), SHARED.get(target)
    if most is None:
        return f"{needed} KB shared"
    return f"{needed} of {most} KB shared{' (TOO MUCH)' if needed > most else ''}"


def _digits(apart):
    """Digits that agree, 7 at most: float32 has no more."""
    return next((n for n in range(7, 2, -1) if apart < 10.0**-n), 2)
