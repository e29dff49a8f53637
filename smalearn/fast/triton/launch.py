"""Launch the GPU programs: in the Triton emulator, in Triton's interpreter, or on a GPU."""

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import torch

from smalearn.fast import tile
from smalearn.fast.strict import outside

NUMBERS = ["length", "heads", "groups", "segments", "sequences"]
"""Parameters that change from call to call: a program is not compiled again for those that are 1 or divisible by 16."""


def on_tiles(program: Callable, grid: tuple[int, ...], *operands: object, **constants: object) -> None:
    """Run a program in the Triton emulator; nothing runs if the grid has a 0.

    The first arguments are its operands: a tensor on the CPU, float32 or float16; a tuple of a tensor and numbers; a
    number or None. The others come by name, tensors too; num_warps and num_stages are for GPUs and have no meaning
    here.
    """
    del constants["num_warps"], constants["num_stages"]
    tile.launch(program, grid, *map(_array, operands), **{name: _array(x) for name, x in constants.items()})


def on_triton(program: Callable, grid: tuple[int, ...], *operands: object, **constants: object) -> None:
    """Run a program on the GPU that holds the tensors, in Triton's interpreter if they are on a CPU; see `on_tiles`."""
    if 0 in grid:
        return
    device = operands[0][0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for_triton(program)[grid](*operands, **constants)


def has_triton() -> bool:
    """Tell whether Triton can be imported; its own packages are for Linux."""
    return importlib.util.find_spec("triton") is not None


def interprets() -> bool:
    """Tell whether Triton interprets programs instead of compiling them; it is decided when Triton is first imported.

    The environment variable TRITON_INTERPRET says so. Where it is not set and there is no GPU to compile for, we do.
    """
    if "triton" not in sys.modules and not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # to stay: parts of Triton are imported later, and look again
    import triton
    import triton.language as tl

    return not isinstance(tl.zeros, triton.JITFunction)


@functools.cache
def for_triton(function: Callable, called: bool = False) -> Callable:
    """Copy a program for Triton: its globals are Triton's `tl` in place of ours, and such copies of what it calls.

    It is one of ours, or a learner's, as which a `Kernel` has it. What comes back is what `triton.jit` makes of the
    copy; for a function that is `called` by a program, in the interpreter, the copy itself: the interpreter prepares
    all of `tl` for each call of a function that is jitted.
    """
    import triton
    import triton.language as tl

    _take_the_assembler_of_torch()
    found = {name: getattr(x, "__wrapped__", x) for name, x in outside(function).items()}
    callees = {name: x for name, x in found.items() if isinstance(x, FunctionType)}
    space = {"tl": tl} | {name: for_triton(callee, called=True) for name, callee in callees.items()}
    space |= {
        name: x.value if interprets() else tl.constexpr(x.value)
        for name, x in found.items()
        if isinstance(x, tile.constexpr)
    }
    copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__)
    copy.__annotations__, copy.__module__ = function.__annotations__, function.__module__
    return copy if called and interprets() else triton.jit(copy, do_not_specialize=NUMBERS)


def _take_the_assembler_of_torch():
    """Have Triton assemble with PyTorch's `ptxas` where it has one, as `torch.compile` has it.

    That of Triton 3.6 and 3.7, of CUDA 12.8, makes mistakes: on an H200 a product of halves was wrong, since the upper
    half of an address of shared memory was computed from its lower half; those of CUDA 12.9 and 13.0 computed it right.
    """
    ptxas = Path(torch.__file__).parent / "bin" / "ptxas"
    if ptxas.exists():
        os.environ.setdefault("TRITON_PTXAS_PATH", str(ptxas))


def assembler() -> tuple[int, int]:
    """Version of CUDA whose assembler Triton calls, such as (13, 0)."""
    from triton import knobs

    _take_the_assembler_of_torch()
    major, minor = knobs.nvidia.ptxas.version.split(".")[:2]
    return int(major), int(minor)


def _array(x):
    """A tensor as the array that shares its memory."""
    if isinstance(x, tuple):
        return tuple(map(_array, x))
    return x.detach().numpy() if isinstance(x, torch.Tensor) else x
