"""Mamba-2's form of SSD: step sizes and a fixed decay rate in, skip connection and gate out, sequences end to end."""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from smalearn._checks import ShapeError, check_companion, check_dtypes, check_shapes
from smalearn.kernels.cpu import ssd_cpu
from smalearn.kernels.gpu import ssd_triton

__all__ = ["mamba2_ssd"]


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
        x: (..., T, heads, P) inputs.
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
        ValueError: a dtype or device differs, groups does not divide heads, A (on a CPU) is positive, dt_limit is no
            interval of step sizes, or cu_seqlens does not go from 0 to T without a step back.

    Cost:
        That of `ssd_cpu`, on a GPU of `ssd_triton`, for each sequence, and seven passes over x.

    Source:
        Dao and Gu 2024 (Mamba-2), section 7.
    """
    given = {"dt": (dt, "th"), "A": (A, "h"), "D": (D, "h"), "z": (z, "thp"), "dt_bias": (dt_bias, "h")}
    given["initial_state"] = initial_state, "hpn" if cu_seqlens is None else "shpn"
    sizes = _check(x, B, C, given)
    borders = _borders(cu_seqlens, sizes)
    wide = torch.promote_types(x.dtype, torch.float32)
    dt = _step_sizes(dt.to(wide), dt_bias, dt_softplus, dt_limit)
    operands = (x * dt[..., None]).to(x.dtype), (A * dt)[..., None], B, C
    X, log_a, B, C = (_by_group(operand, sizes["g"]) for operand in operands)
    outputs, states = [], []
    form = ssd_triton if x.device.type == "cuda" else ssd_cpu
    for index, now in enumerate(itertools.starmap(slice, itertools.pairwise(borders))):
        H = initial_state if initial_state is None or cu_seqlens is None else initial_state[..., index, :, :, :]
        H = None if H is None else H.unflatten(-3, (sizes["g"], -1))
        Y, H = form(X[..., now, :], log_a[..., now, 0], B[..., now, :], C[..., now, :], H)
        outputs.append(Y.flatten(-4, -3).transpose(-2, -3).to(wide))
        states.append(H.flatten(-4, -3))
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -3)
    y = y if D is None else y + D[..., None] * x
    y = y if z is None else y * F.silu(z.to(wide))
    return y.to(x.dtype), states[0] if cu_seqlens is None else torch.stack(states, -4)


def _check(x, B, C, companions):
    """Sizes of the axes, from shapes that fit; dtypes, devices, groups, and the sign of A if it is on a CPU."""
    function, companions = "mamba2_ssd", {name: given for name, given in companions.items() if given[0] is not None}
    check_dtypes(function, {"x": x, "B": B, "C": C})
    for name, (tensor, _) in companions.items():
        check_dtypes(function, {name: tensor})
    sizes = check_shapes(function, {"x": (x, "thp"), "B": (B, "tgn"), "C": (C, "tgn")} | companions)
    for name, (tensor, axes) in companions.items():
        check_companion(function, name, tensor, "x", x)
        if axes == "h" and tensor.ndim > 1:
            raise ShapeError(f"{function}: {name} must have one axis (H), got shape {tuple(tensor.shape)}")
    if not sizes["g"] or sizes["h"] % sizes["g"]:
        raise ShapeError(f"{function}: axis 'g' of B is {sizes['g']}, which does not divide {sizes['h']} heads of x")
    A = companions["A"][0]
    if A.device.type == "cpu" and not (A <= 0).all():
        raise ValueError(f"{function}: A must be ≤ 0, got {A.max().item():.3g}")
    return sizes


def _borders(cu_seqlens, sizes):
    """Where sequences begin and end, as integers."""
    if cu_seqlens is None:
        return [0, sizes["t"]]
    borders = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens)
    whole = all(isinstance(border, int) for border in borders)
    if not whole or len(borders) < 2 or borders[0] or borders[-1] != sizes["t"] or borders != sorted(borders):
        raise ValueError(f"mamba2_ssd: cu_seqlens must be integers that go from 0 to {sizes['t']}, got {borders}")
    if sizes.get("s", len(borders) - 1) != len(borders) - 1:
        raise ShapeError(f"mamba2_ssd: axis 's' is {sizes['s']} in initial_state but {len(borders) - 1} in cu_seqlens")
    return borders


def _step_sizes(dt, bias, softplus, limit):
    """The step sizes that are used, from those that are given."""
    least, greatest = limit
    if not 0 <= least <= greatest:
        raise ValueError(f"mamba2_ssd: dt_limit must be two numbers, 0 ≤ least ≤ greatest, got {limit}")
    dt = dt if bias is None else dt + bias
    return (F.softplus(dt) if softplus else dt).clamp(least, greatest)


def _by_group(x, groups):
    """(..., T, heads, D) seen as (..., groups, heads of a group, T, D)."""
    return x.transpose(-2, -3).unflatten(-3, (groups, -1))
