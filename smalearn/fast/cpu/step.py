"""One step of SSD that overwrites its state: decoding without new memory."""

import functools

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_signs, check_ssd


def ssd_step_(
    x: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """`ssd_step` that overwrites the state, for decoding without new memory; no gradient flows through it.

    The heads that share B and C are rows of one matrix, so that a step is a rank-1 update and one product. Arguments,
    result and errors are those of `fast.ssd_step_`.

    Cost:
        3·N·P multiply-adds; it passes over the state three times, part by part, so that memory sees one of them.
    """
    try:
        plan = _plan(*[(z.shape, z.dtype, z.device, z.layout) for z in (x, log_a, B, C, state)])
    except (AttributeError, RuntimeError, TypeError):
        check_ssd("ssd_step_", x, log_a, B, C, state, time="")  # says which one is not a dense tensor
        raise
    outer, shared, groups, rows, shape, dtype = plan
    together = max(1, CACHE // max(1, rows * state.shape[-1]))
    if log_a.is_cpu:
        check_signs("ssd_step_", log_a)
    if not state.is_contiguous():
        raise ValueError(f"ssd_step_: state must be contiguous, got strides {state.stride()}")
    with torch.no_grad():
        if outer:
            log_a, x = log_a.expand(outer[:-1]), x.to(state.dtype).expand(outer)
            B, C = B.to(state.dtype).expand(shared), C.to(state.dtype).expand(shared)
        decays, H = log_a.exp()[..., None, None], state
        x, B, C = x.reshape(groups, rows, 1), B.reshape(groups, 1, -1), C.reshape(groups, -1, 1)
        if groups <= together:
            y = _update(H, decays, x, B, C)
        else:
            H, decays = state.view(groups, -1, *state.shape[-2:]), decays.reshape(groups, -1, 1, 1)
            y = torch.cat(
                [_update(*part) for part in zip(*(z.split(together) for z in (H, decays, x, B, C)), strict=True)]
            )
        return y.view(shape).to(dtype)


def _update(H, decays, x, B, C):
    """One step of states that lie as (groups, rows, N), in place."""
    return torch.bmm(H.mul_(decays).view(len(x), x.shape[1], -1).baddbmm_(x, B), C)


CACHE = 1 << 18
"""Numbers of the states that `ssd_step_` changes and reads at a time, 1 MiB in float32: they are still in the cache.

Double takes 3 times as long, half the same (one thread of an AMD EPYC).
"""


@functools.lru_cache(maxsize=256)  # the checks take longer than a small step
def _plan(*kinds):
    """Check a step on operands of these shapes, dtypes, devices and layouts; say how its state lies as matrices.

    That is the shapes to which x, and B and C, have to be expanded, None if they need not; groups; rows of each; shape
    and dtype of y.
    """
    if any(layout is not torch.strided for *_, layout in kinds):
        raise TypeError("sparse")  # which one, says the caller
    x, log_a, B, C, state = (torch.zeros((), dtype=d, device=device).expand(shape) for shape, d, device, _ in kinds)
    check_ssd("ssd_step_", x, log_a, B, C, state, time="")
    *leading, head_dim, features = state.shape
    everything = broadcast_shapes(leading, x.shape[:-1], log_a.shape, B.shape[:-1], C.shape[:-1])
    if everything != tuple(leading):
        raise ShapeError(f"ssd_step_: leading axes of state are {tuple(leading)}, expected {tuple(everything)}")
    own = list(broadcast_shapes(B.shape[:-1], C.shape[:-1]))
    own = [1] * (len(leading) - len(own)) + own
    while own and own[-1] == 1:  # the last axes along which B and C do not vary: more rows of the same product
        own.pop()
    groups, heads = (torch.Size(part).numel() for part in (leading[: len(own)], leading[len(own) :]))
    shared = (*leading[: len(own)], *[1] * (len(leading) - len(own)), features)
    outer = (*leading, head_dim)
    shapes = x.shape, log_a.shape, B.shape, C.shape
    complete = shapes == (outer, outer[:-1], shared, shared) and x.dtype == state.dtype
    return None if complete else outer, shared, groups, heads * head_dim, outer, x.dtype
