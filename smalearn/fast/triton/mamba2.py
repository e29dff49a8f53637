"""Mamba-2's form of SSD: step sizes and a fixed decay rate in, skip connection and gate out, sequences end to end.

On a GPU the decays are PyTorch's, a number for each token and head; step sizes, products with x, skip connection and
gate are in the programs of SSD, which have the operands on the chip anyway. Between forward and backward only the
arguments are kept.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from smalearn._checks import (
    ShapeError,
    broadcast_shapes,
    check_number,
    check_operands,
    check_pair,
    check_shapes,
    check_tensor,
    check_type,
    check_values,
    holds,
)
from smalearn._operator import Operator
from smalearn.fast.cpu.ssd import ssd_cpu_unchecked
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch
from smalearn.fast.triton.checks import check_grid, check_programs, check_triton
from smalearn.fast.triton.plan import Plan
from smalearn.fast.triton.ssd import Layer, backward, by_sequence, forward, readable, ssd_of

FUNCTION = "mamba2_ssd"


def mamba2_ssd(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The inner layer of Mamba-2: SSD of x·dt with the decays exp(A·dt), a skip connection and a gate.

    dt' = clamp(softplus(dt + dt_bias)), H_t = exp(A dt'_t) H_{t-1} + dt'_t x_t B_t^T,
    y_t = (H_t C_t + D x_t) ∘ silu(z_t).

    Here time comes before the heads, as Mamba-2's projections give it. Heads of a group, which share B and C, follow
    one another.

    Args:
        x: (..., T, heads, P) inputs, real; on a GPU float32, float16 or bfloat16, and P and N from 1 to 256.
        dt: (..., T, heads) step sizes, dtype of x or float32.
        A: (heads,) rates ≤ 0, dtype of x or float32; also D, z, dt_bias and initial_state.
        B: (..., T, groups, N), dtype of x; groups divides heads.
        C: (..., T, groups, N), dtype of x.
        D: (heads,) weight of the skip connection; none if None.
        z: (..., T, heads, P) gate before silu; none if None.
        dt_bias: (heads,) added to dt.
        dt_softplus: whether softplus makes the step sizes positive.
        dt_limit: least and greatest step size.
        initial_state: (..., heads, P, N) state before the first token, or with cu_seqlens one for each sequence,
            (..., sequences, heads, P, N); zeros if None.
        cu_seqlens: where sequences that lie end to end in T begin, and where the last ends, from 0 to T; a list, or a
            tensor, which is waited for if it is on a GPU. One sequence if None.

    Returns:
        y (..., T, heads, P), dtype of x, and the last states, of the shape of initial_state, float32 if x is half
        precision.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs or (on a GPU) is not supported, groups does not divide heads, A (on a CPU)
            is positive, dt_limit is not an interval of step sizes, or cu_seqlens does not go from 0 to T without a step
            back.
        RuntimeError: the tensors are on a GPU without Triton.

    Cost:
        On a GPU that of `ssd_triton`: forward, after a launch that sums up the decays, one launch for all sequences, or
        two where heads are few, and nothing of the size of x is moved but x, z and y. The backward scans forward once
        more, for the states and the gradient of z: it reads x four times, z and dy five times, and writes their
        gradients, two states for each chunk, and T·Q numbers of pairs of tokens.
        On a CPU that of `ssd_cpu` for each sequence, and seven passes over x.

    Source:
        Dao and Gu 2024 (Mamba-2), section 7.
    """
    if cu_seqlens is not None:
        check_type(FUNCTION, "cu_seqlens", cu_seqlens, torch.Tensor, Sequence)
    others = {"dt": (dt, "th"), "A": (A, "h"), "D": (D, "h"), "z": (z, "thp"), "dt_bias": (dt_bias, "h")}
    others["initial_state"] = initial_state, "hpn" if cu_seqlens is None else "shpn"
    sizes = _check(x, B, C, others)
    borders = None if cu_seqlens is None else _borders(cu_seqlens, sizes)
    check_type(FUNCTION, "dt_softplus", dt_softplus, bool)
    options = _Options(sizes["g"], (dt_softplus, *check_limits(FUNCTION, "dt_limit", dt_limit)), borders)
    tensors = _Tensors(x, dt, A, B, C, D, z, dt_bias, initial_state)
    run = _runner(x, B)
    if run:
        return _in_one(run, options, tensors)
    return _in_steps(partial(by_sequence, ssd_cpu_unchecked), options, tensors)


def _runner(x, B):
    """Name the function of `launch` that runs programs for tensors like these; None on a CPU."""
    if x.device.type != "cuda":
        return None
    check_programs(FUNCTION, "x", x, B)
    check_triton(FUNCTION, x)
    return "on_triton"


class _Tensors(NamedTuple):
    """The arguments that have gradients."""

    x: torch.Tensor
    dt: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor | None
    z: torch.Tensor | None
    dt_bias: torch.Tensor | None
    initial_state: torch.Tensor | None


class _Options(NamedTuple):
    """The others: number of groups; softplus, least and greatest step; borders of sequences, or None."""

    groups: int
    steps: tuple[bool, float, float]
    borders: Sequence[int] | None


def _in_steps(scan: Callable, options: _Options, tensors: _Tensors):
    """The layer as it is written, around any form of SSD.

    `scan` takes X, log_a, B, C (..., g, r, T, ·), a state (..., g, r, sequences·P, N) or None, and borders or None.
    """
    x, _, A, B, C, D, z, _, _ = tensors
    wide = torch.promote_types(x.dtype, torch.float32)
    dt = _step_sizes(tensors.dt.to(wide), tensors.dt_bias, options.steps)
    operands = (x * dt[..., None]).to(x.dtype), (A * dt)[..., None], B, C
    X, log_a, B, C = (_by_group(operand, options.groups) for operand in operands)
    Y, H = scan(X, log_a[..., 0], B, C, _folded(options, tensors.initial_state), options.borders)
    y = Y.flatten(-4, -3).transpose(-2, -3).to(wide)
    y = y if D is None else y + D[..., None] * x
    y = y if z is None else y * F.silu(z.to(wide))
    return y.to(x.dtype), _unfolded(options, H)


def _in_one(run: str, options: _Options, tensors: _Tensors):
    """The layer in one launch, with gradients."""
    x, dt, A, B, C, D, z, dt_bias, initial_state = tensors
    X, dt, B, C = (_by_group(tensor, options.groups) for tensor in (x, dt[..., None], B, C))
    dt, H, Z = dt[..., 0], _folded(options, initial_state), None if z is None else _by_group(z, options.groups)
    leading = [dt.shape[:-1], *(tensor.shape[:-2] for tensor in (X, B, C, H) if tensor is not None)]
    everything = broadcast_shapes(*leading)
    if Z is not None and broadcast_shapes(everything, Z.shape[:-2]) != everything:
        return _in_steps(partial(ssd_of, run), options, tensors)  # there are more gates than outputs

    def by_head(values):
        """One value for each head as (b, g, r, T, 1), without memory."""
        values = None if values is None else values.unflatten(0, (options.groups, -1))[..., None]
        return None if values is None else grouped(X, values.expand(*everything, X.shape[-2]), B, C, H)[0][1][..., None]

    (first, dt, *others), restore = grouped(X, dt, B, C, H)
    check_grid(FUNCTION, first, 1 if options.borders is None else len(options.borders) - 1)
    gate = None if Z is None else grouped(Z.expand(*everything, *Z.shape[-2:]), None, B, C, H)[0][0]
    inputs = first, *others, dt[..., None], by_head(A), by_head(dt_bias), by_head(D), gate
    Y, H = restore(*OPERATORS[run](*inputs, settings=(*options.steps, *(options.borders or ()))))
    return Y.flatten(-4, -3).transpose(-2, -3), _unfolded(options, H)


def _operator(run):
    """The layer in one launch by a function of `launch`.

    Its tensors are X, B, C, H, dt, A, the bias of dt, D and z, its settings `_Options.steps` and the borders. Nothing
    is kept: the backward scans forward once more, for the states and the gradient of z.
    """

    def forwards(tensors, settings, keep):
        steps, plan = _fixed(tensors, settings)
        return list(_launched(getattr(launch, run), plan, steps, tensors)[:2])

    def backwards(gradients, tensors, kept, settings, needs):
        return _gradients(getattr(launch, run), *_fixed(tensors, settings), tensors, *gradients)

    return Operator(
        f"{FUNCTION}_{run}", forwards, backwards, _shapes, _readable, (9, 2), kept_from=None, instead="models.Mamba2"
    )


def _fixed(tensors, settings):
    """Step sizes' options and the plan, from an operator's settings."""
    softplus, least, greatest, *borders = settings
    return (bool(softplus), least, greatest), Plan(tensors[0], tensors[1], list(map(int, borders)) or None)


def _shapes(tensors, settings, keep):
    """Tensors like those of `_launched`."""
    X, (_, plan) = tensors[0], _fixed(tensors, settings)
    state = X.new_empty(*X.shape[:3], plan.sequences * X.shape[4], plan.state, dtype=torch.float32)
    return [torch.empty_like(X), state]


def _readable(tensors, settings):
    """The layer as it is written, on grouped operands."""
    X, B, C, H, dt, A, bias, skip, gate = tensors
    softplus, least, greatest, *borders = settings
    used = _step_sizes(dt, bias, (bool(softplus), least, greatest))
    Y, H = readable(((X * used).to(X.dtype), (A * used)[..., 0], B, C, H), borders)
    Y = Y if skip is None else Y + skip * X
    return (Y if gate is None else Y * F.silu(gate)).to(X.dtype), H


def _launched(run, plan, steps, tensors, **options):
    """`ssd.forward` of the layer."""
    X, B, C, H, dt, A, bias, skip, gate = tensors
    log_a = (A * _step_sizes(dt, bias, steps))[..., 0]
    return forward(run, plan, X, log_a, B, C, H, layer=Layer((dt, bias, skip, gate), steps), **options)


def _gradients(run, steps, plan, tensors, dY, dstate):
    """Gradients of the tensors."""
    X, B, C, H, dt, A, bias, skip, gate = tensors
    dY = X.new_zeros(()).expand(X.shape) if dY is None else dY
    gates = {} if gate is None else {"dy": dY, "gated": torch.empty_like(X)}
    dgate, _, states = _launched(run, plan, steps, tensors, keep=True, **gates)
    used, slope = _step_sizes(dt, bias, steps), _slope(dt, bias, steps)
    layer, dY = Layer((dt, bias, skip, None), steps), gates.get("gated", dY)
    dX, dlog_a, dB, dC, dH, dused, dskip = backward(
        run, plan, X, (A * used)[..., 0], B, C, H, states, dY, dstate, layer
    )
    dlog_a = dlog_a[..., None]
    ddt = (dused + A * dlog_a) * slope
    return [dX, dB, dC, dH, ddt, dlog_a * used, ddt.clone(), dskip, dgate]


def _slope(dt, bias, steps):
    """Derivatives of `_step_sizes` in dt, which are those in the bias too."""
    softplus, least, greatest = steps
    raw = _step_sizes(dt, bias, (False, -math.inf, math.inf))
    free = _step_sizes(dt, bias, (softplus, -math.inf, math.inf))
    inside = (least <= free) & (free <= greatest)
    return torch.where(inside, torch.sigmoid(raw) if softplus else 1.0, 0.0)


OPERATORS = {run: _operator(run) for run in ("on_triton", "on_tiles")}


def _check(x, B, C, others):
    """Sizes of the axes, from shapes that fit; dtypes, devices, groups, and the sign of A if it is on a CPU."""
    for name in ("dt", "A"):
        check_tensor(FUNCTION, name, others[name][0])
    sizes = check_operands(FUNCTION, {"x": (x, "thp"), "B": (B, "tgn"), "C": (C, "tgn")}, others, real=True)
    for name, (tensor, axes) in others.items():
        if axes == "h" and tensor is not None and tensor.ndim > 1:
            raise ShapeError(f"{FUNCTION}: {name} must have one axis (H), got shape {tuple(tensor.shape)}")
    if not sizes["g"] or sizes["h"] % sizes["g"]:
        raise ShapeError(f"{FUNCTION}: axis 'g' of B is {sizes['g']}, which does not divide {sizes['h']} heads of x")
    A = others["A"][0]
    if A.device.type == "cpu" and not holds(A <= 0):
        raise ValueError(f"{FUNCTION}: A must be ≤ 0, got {A.max().item():.3g}")
    return sizes


def check_limits(function, argument, limits):
    """The least and the greatest step size, as floats."""
    pair = check_pair(function, argument, limits, "least", "greatest")
    least, greatest = (float(check_number(function, argument, limit)) for limit in pair)
    if not (0 <= least <= greatest and least < math.inf):
        raise ValueError(f"{function}: {argument} must be two numbers, 0 ≤ least ≤ greatest, got {limits}")
    return least, greatest


def _borders(cu_seqlens, sizes):
    """Borders of the sequences, as integers."""
    if isinstance(cu_seqlens, torch.Tensor):
        check_shapes(FUNCTION, {"cu_seqlens": (cu_seqlens, "s")})
        check_tensor(FUNCTION, "cu_seqlens", cu_seqlens)
        check_values(FUNCTION, "cu_seqlens", cu_seqlens)
    borders = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens)
    whole = all(isinstance(border, int) for border in borders)
    if not whole or len(borders) < 2 or borders[0] or borders[-1] != sizes["t"] or borders != sorted(borders):
        raise ValueError(f"{FUNCTION}: cu_seqlens must be integers that go from 0 to {sizes['t']}, got {borders}")
    if sizes.get("s", len(borders) - 1) != len(borders) - 1:
        raise ShapeError(f"{FUNCTION}: axis 's' is {sizes['s']} in initial_state but {len(borders) - 1} in cu_seqlens")
    return borders


def _step_sizes(dt, bias, steps):
    """The step sizes that are used, at least in float32, from the raw ones."""
    softplus, least, greatest = steps
    dt = dt.to(torch.promote_types(dt.dtype, torch.float32))
    dt = dt if bias is None else dt + bias
    return (F.softplus(dt) if softplus else dt).clamp(least, greatest)


def _by_group(x, groups):
    """(..., T, heads, D) seen as (..., groups, heads of a group, T, D)."""
    return x.transpose(-2, -3).unflatten(-3, (groups, -1))


def _folded(options, states):
    """States (..., heads, P, N) or (..., sequences, heads, P, N) as (..., g, r, sequences·P, N)."""
    if states is None:
        return None
    states = states if options.borders is None else states.transpose(-4, -3).flatten(-3, -2)
    return states.unflatten(-3, (options.groups, -1))


def _unfolded(options, states):
    """Inverse of `_folded`."""
    states = states.flatten(-4, -3)
    if options.borders is None:
        return states
    return states.unflatten(-2, (len(options.borders) - 1, -1)).transpose(-4, -3)
