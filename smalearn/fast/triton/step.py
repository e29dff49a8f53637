"""One step of SSD on a GPU, for decoding: the state is read and written once, which is what a step costs."""

import functools
from typing import NamedTuple

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_signs
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch, programs
from smalearn.fast.triton.checks import check_grid, check_operands, check_triton, strided
from smalearn.fast.triton.configs import padded

TILE = 16
"""Columns of P that a program holds: many small programs, for there is one token to fill the GPU with."""


@torch.no_grad()
def ssd_step_triton_(
    x: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """`smalearn.fast.ssd_step_` by Triton: one step that overwrites the state; no gradient flows through it.

    Arguments, result and errors are those of `fast.ssd_step_`, with x in float32, float16 or, on a GPU, bfloat16, P and
    N from 1 to 256; and RuntimeError if Triton is missing, or does not interpret though there is no GPU.

    Cost:
        3·N·P multiply-adds for each head; it reads and writes the state once.
    """
    operands, function = (x, log_a, B, C, state), "ssd_step_triton_"
    if not all(isinstance(one, torch.Tensor) and one.device == x.device for one in operands):
        check_operands(function, *operands, time="")
    layout = _layout(function, tuple(map(_kind, operands)))
    if log_a.device.type == "cpu":
        check_signs(function, log_a)
    check_triton(function, x)
    return _launched(function, launch.on_triton, layout, *operands)


def _step(function, run, *operands):
    """The step where `run` runs programs."""
    return _launched(function, run, _layout(function, tuple(map(_kind, operands))), *operands)


def _kind(x):
    return x.shape, x.stride(), x.dtype


class _Layout(NamedTuple):
    """How operands of some shapes and strides are launched."""

    grid: tuple[int, ...]
    strides: list[tuple[int, ...]]  # of x, log_a, B, C and the state, as the program sees them
    output: tuple[tuple[int, ...], ...]  # the shape of Y, and its strides there
    y: tuple[tuple[int, ...], ...]  # shape and strides of what is returned
    constants: dict[str, object]
    heads: int


@functools.lru_cache(maxsize=256)
def _layout(function, kinds):
    """Check operands of these kinds, and say how they are launched; None where that needs a copy.

    Once for all steps of a decoder: it takes Python longer than a GPU takes for the step.
    """
    with torch.inference_mode(False):
        operands = [torch.empty_strided(shape, strides, dtype=dtype, device="meta") for shape, strides, dtype in kinds]
        check_operands(function, *operands, time="")
        _check_state(function, *operands)
        (X, log_a, B, C, H), restore = _grouped(*operands)
        check_grid(function, X)
        views = X, log_a[..., None], B, C, H.mT
        y, last = restore(Y := torch.empty_like(X), H)
        if any(view._base is not one for view, one in zip((*views, last), (*operands, operands[-1]), strict=True)):
            return None
    batch, groups, heads, _, head_dim = X.shape
    sizes = head_dim, B.shape[-1], 1, TILE, padded(B.shape[-1])
    constants = {"sizes": sizes, "num_warps": 4, "num_stages": 1}
    grid, y = (-(-head_dim // TILE), groups * heads, batch), y[..., 0, :]
    return _Layout(grid, [x.stride() for x in views], (X.shape, Y.stride()), (y.shape, y.stride()), constants, heads)


def _check_state(function, x, log_a, B, C, state):
    """Check that the state has all leading axes, and lies in one piece."""
    leading = tuple(state.shape[:-2])
    everything = tuple(broadcast_shapes(leading, x.shape[:-1], log_a.shape, B.shape[:-1], C.shape[:-1]))
    if everything != leading:
        raise ShapeError(f"{function}: leading axes of state are {leading}, expected {everything}")
    if not state.is_contiguous():
        raise ValueError(f"{function}: state must be contiguous, got strides {state.stride()}")


def _grouped(x, log_a, B, C, state):
    """What `grouped` makes of a sequence of one token."""
    return grouped(x[..., None, :], log_a[..., None], B[..., None, :], C[..., None, :], state)


def _launched(function, run, layout, *operands):
    """y, where `run` runs programs."""
    if layout is None:  # axes that lie apart become one
        inputs, restore = _grouped(*operands)
        *token, state = (x.contiguous() for x in inputs)
        y = _step(function, run, *(x.squeeze(3) for x in token), state)
        y, state = restore(y[..., None, :], state)
        operands[-1].copy_(state)
        return y[..., 0, :]
    Y = torch.empty_strided(*layout.output, dtype=operands[0].dtype, device=operands[0].device)
    given = [(one, *strides) for one, strides in zip(operands, layout.strides, strict=True)]
    run(programs.ssd_step, layout.grid, *given[:4], strided(Y), given[4], layout.heads, **layout.constants)
    return Y.as_strided(*layout.y)
