"""One step of SSD on a GPU, for decoding: the state is read and written once, which is what a step costs."""

import torch

from smalearn._checks import ShapeError, broadcast_shapes
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch, programs
from smalearn.fast.triton.checks import check_grid, check_operands, check_triton, strided
from smalearn.fast.triton.configs import padded

__all__ = ["ssd_step_triton_"]

TILE = 16
"""Columns of P that a program holds: many small programs, for there is one token to fill the GPU with."""


@torch.no_grad()
def ssd_step_triton_(
    x: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """`smalearn.fast.ssd_step_` by Triton: one step that overwrites the state; no gradient flows through it.

    H = exp(log_a) state + x B^T, y = H C.

    Args:
        x: (..., P) input, float32, float16 or, on a GPU, bfloat16; P from 1 to 256.
        log_a: (...) log decay ≤ 0, dtype of x or float32.
        B: (..., N), dtype of x; N from 1 to 256. Heads that share B and C have an axis of size 1 there.
        C: (..., N), dtype of x.
        state: (..., P, N), contiguous, with all leading axes; dtype of x or float32. It is overwritten.

    Returns:
        y (..., P), dtype of x.

    Raises:
        ShapeError: an axis has two sizes, or the state has not all leading axes.
        ValueError: a dtype or device differs or is not supported, log_a (on a CPU) is positive, P or N is 0 or too
            large, the state is not contiguous.
        RuntimeError: Triton is missing, or does not interpret though there is no GPU.

    Cost:
        3·N·P multiply-adds for each head; it reads and writes the state once.

    Source:
        Dao and Gu 2024 (Mamba-2), section 2.
    """
    function = "ssd_step_triton_"
    check_operands(function, x, log_a, B, C, state, time="")
    leading = tuple(state.shape[:-2])
    everything = tuple(broadcast_shapes(leading, x.shape[:-1], log_a.shape, B.shape[:-1], C.shape[:-1]))
    if everything != leading:
        raise ShapeError(f"{function}: leading axes of state are {leading}, expected {everything}")
    if not state.is_contiguous():
        raise ValueError(f"{function}: state must be contiguous, got strides {state.stride()}")
    check_triton(function, x)
    return _step(function, launch.on_triton, x, log_a, B, C, state)


def _step(function, run, x, log_a, B, C, state):
    """The step where `run` runs programs."""
    inputs, restore = grouped(x[..., None, :], log_a[..., None], B[..., None, :], C[..., None, :], state)
    X, log_a, B, C, H = inputs
    check_grid(function, X)
    batch, groups, heads, _, head_dim = X.shape
    grid = (-(-head_dim // TILE), groups * heads, batch)
    sizes = head_dim, B.shape[-1], TILE, padded(B.shape[-1])
    Y = torch.empty_like(X)
    operands = map(strided, (X, log_a[..., None], B, C, Y, H.mT))
    run(programs.ssd_step, grid, *operands, heads, sizes=sizes, num_warps=4, num_stages=1)
    y, H = restore(Y, H)
    if H.data_ptr() != state.data_ptr():  # axes of groups and heads were not in order: a copy was overwritten
        state.copy_(H)
    return y[..., 0, :]
