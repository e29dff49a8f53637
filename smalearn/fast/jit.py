"""`triton` where there is none: `@triton.jit`, `kernel[grid](...)`, `cdiv`, `next_power_of_2`, for the Triton emulator.

    from smalearn.fast import tile as tl
    from smalearn.fast.jit import triton

stand for `import triton.language as tl` and `import triton`; a program written below these two lines is Triton's
source, unchanged. Tensors on a CPU go to the emulator, those on a GPU to Triton; `fast.triton.everywhere` takes a
launch to Triton's interpreter and to its compiler.
"""

import contextvars
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import torch

from smalearn._torch import plain_calls
from smalearn.fast import tile
from smalearn.fast.lanes import refuse, running
from smalearn.fast.strict import strict

HINTS = ("num_warps", "num_stages")
UNKNOWN = {x for name, x in vars(torch).items() if name.startswith(("float8", "float4", "complex32"))}
"""Dtypes that the emulator's tiles do not have."""


class Kernel:
    """A program, as `@triton.jit` makes it of a function: `kernel[grid](*arguments, **constants)` launches it."""

    def __init__(self, function: Callable):
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: object, **constants: object) -> object:
        """What a program calls from inside; RuntimeError where nothing runs."""
        if not running.active:
            name = self.__name__
            raise RuntimeError(f"{name}: a kernel is launched, {name}[grid](...); only kernels call it as a function")
        return strict(self.__wrapped__)(*arguments, **constants)

    def __getitem__(self, grid: tuple[int, ...] | Callable) -> Callable[..., None]:
        """The launch for a grid: a tuple of at most three numbers, or a function that makes it of the constants."""

        def launch(*arguments: object, **constants: object) -> None:
            sizes = grid(constants) if callable(grid) else grid
            whole = isinstance(sizes, tuple | list) and all(isinstance(size, int) and size >= 0 for size in sizes)
            if not whole or not 1 <= len(sizes) <= 3:
                raise TypeError(f"{self.__name__}: grid, expected a tuple of 1 to 3 whole numbers, got {sizes!r}")
            _check(self, arguments, constants)
            sender.get()(self, tuple(sizes), *arguments, **constants)

        return launch


def in_emulator(kernel: Kernel, grid: tuple[int, ...], *arguments: object, **constants: object) -> None:
    """Launch where the tensors are: in the emulator, or by Triton on a GPU."""
    if any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in arguments):
        from smalearn.fast.triton.launch import for_triton

        for_triton(kernel.__wrapped__)[grid](*arguments, **constants)
        return

    program = strict(kernel.__wrapped__)

    @functools.wraps(program)
    def silent(*given: object, **constants: object) -> None:
        if (result := program(*given, **constants)) is not None:
            refuse(f"a kernel returns nothing, it stores; got {type(result).__name__}")

    with plain_calls():  # who watches PyTorch's calls need not see how tensors get here
        arrays = [_array(x.detach()) if isinstance(x, torch.Tensor) else x for x in arguments]
    tile.launch(silent, grid, *arrays, **{n: x for n, x in constants.items() if n not in HINTS})


def _array(x):
    """A tensor as the array that shares its memory; NumPy has only the bits of bfloat16."""
    return x.view(torch.int16).numpy().view(tile.BITS) if x.dtype == torch.bfloat16 else x.numpy()


sender: contextvars.ContextVar[Callable] = contextvars.ContextVar("sender", default=in_emulator)
"""What launches go through; `fast.triton.everywhere` sets it to run the same launches elsewhere."""


def _check(kernel, arguments, constants):
    """Bind the arguments as the compiler does, and say what does not fit."""
    parameters = inspect.signature(kernel.__wrapped__).parameters
    given = {name: x for name, x in constants.items() if name not in HINTS}
    try:
        bound = inspect.signature(kernel.__wrapped__).bind(*arguments, **given).arguments
    except TypeError as error:
        raise TypeError(f"{kernel.__name__}: {error}; its parameters are {', '.join(parameters)}") from None
    for name, x in bound.items():
        if isinstance(x, torch.Tensor) and x.dtype == torch.float64:
            raise TypeError(f"{kernel.__name__}: {name} is float64, for which GPUs are slow: x.float()")
        if isinstance(x, torch.Tensor) and x.dtype in UNKNOWN and x.device.type == "cpu":
            dtype = str(x.dtype).removeprefix("torch.")
            raise TypeError(f"{kernel.__name__}: {name} is {dtype}, which GPUs have and the emulator has not: x.half()")


def cdiv(x: int, y: int) -> int:
    """Divide and round up."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


class _Triton(SimpleNamespace):
    """The names of `triton` that programs and their launches need."""

    def __getattr__(self, name: str) -> NoReturn:
        words = "it tries settings on a card; here num_warps and num_stages go into the launch"
        words = words if name in ("autotune", "Config") else "jit, cdiv and next_power_of_2 are there"
        raise AttributeError(f"triton.{name}: the emulator does not have it, Triton may; {words}")


triton = _Triton(jit=Kernel, cdiv=cdiv, next_power_of_2=next_power_of_2)
