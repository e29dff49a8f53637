"""Implementations of SSD on a device: our GPU programs, and other libraries' where they are installed.

Each is called in its own layout with its own arguments, and judged by its own function in float64.
"""

import importlib
import importlib.util
import sys
import types
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.device import where
from benchmarks.implementation import Implementation
from benchmarks.peers import every_head, given, ours
from benchmarks.problem import recurrence
from smalearn.fast.triton import launch, mamba2_ssd, ssd_step_triton_, ssd_tiles, ssd_triton, step
from smalearn.kernel_attention import softmax_attention
from smalearn.ssd import ssd_chunked


def _programs(X, *others):
    """`ssd_triton`, or `ssd_tiles` where Triton can run no programs on that device."""
    run = ssd_tiles if where(X.device.type) == "tile machine" else ssd_triton
    return run(X, *others)


# Mamba-2's authors


def _by_steps(X, log_a, B, C):
    """x, dt, B and C with x·dt = X and A·dt = log_a for A = −1."""
    return (X / -log_a[..., None]).to(X.dtype), -log_a, B, C


def _by_steps_exactly(x, dt, B, C):
    return recurrence(x * dt[..., None], -dt, B, C)


def _mamba_ssm(name):
    """A module of its Triton programs. The package itself asks for a CUDA extension, which these do not need."""
    spec = None if "mamba_ssm" in sys.modules else importlib.util.find_spec("mamba_ssm")
    if spec:
        sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
        sys.modules["mamba_ssm"].__path__ = list(spec.submodule_search_locations)
    return importlib.import_module(f"mamba_ssm.ops.triton.{name}")


def _chunk_scan():
    run = _mamba_ssm("ssd_combined").mamba_chunk_scan_combined
    return lambda x, dt, B, C: run(x, dt, -torch.ones_like(dt[0, 0]), B, C, chunk_size=256)


# Mamba-2's whole layer, with step sizes, skip connection and gate


def _layer(X, log_a, B, C):
    """x, dt, A, B, C, D, z and the bias of dt."""
    A, D, bias = (value * torch.ones_like(log_a[0, :, 0]) for value in (-1, 1, 2))
    return X, log_a, A, B, C, D, X.roll(1, 2), bias


def _layer_exactly(x, dt, A, B, C, D, z, bias):
    dt = F.softplus(dt + bias[:, None])
    Y = recurrence(x * dt[..., None], A[:, None] * dt, B, C)
    return (Y + D[:, None, None] * x) * F.silu(z)


def _their_layer():
    run = _mamba_ssm("ssd_combined").mamba_chunk_scan_combined
    options = {"chunk_size": 256, "dt_softplus": True}
    return lambda x, dt, A, B, C, D, z, bias: run(x, dt, A, B, C, D=D, z=z, dt_bias=bias, **options)


# flash-linear-attention


def _simple_gla(name):
    run = getattr(importlib.import_module("fla.ops.simple_gla"), name)
    return lambda X, log_a, B, C: run(C, B, X, g=log_a, scale=1.0)[0]


# PyTorch: softmax attention at the same sizes, for comparison; it computes something else


def _attention(X, log_a, B, C):
    return tuple(x.expand(*X.shape[:2], -1, -1).contiguous() for x in (C, B, X))


def _attention_exactly(Q, K, V):
    below = torch.ones(Q.shape[-2], Q.shape[-2], dtype=Q.dtype, device=Q.device).tril()
    return softmax_attention(Q, K, V, below)


_flash = partial(F.scaled_dot_product_attention, is_causal=True, scale=1.0)
_peer = partial(Implementation, anywhere=False, most=2**31)
_mamba = partial(_peer, time_first=True, arguments=_by_steps, exact=_by_steps_exactly)
_whole = partial(Implementation, anywhere=False, time_first=True, arguments=_layer, exact=_layer_exactly)
_SHORT = {"anywhere": True, "longest": 4096}  # seconds beyond
_gla = partial(_peer, time_first=True, arguments=every_head, longest=16384)  # tunes itself for every number of heads

SSD = (
    Implementation("ssd_triton", partial(ours, _programs), base=True, at_length=ours(ssd_chunked)),
    _mamba("mamba_ssm mamba_chunk_scan_combined", _chunk_scan),
    _peer("ssd_chunked", partial(ours, ssd_chunked), **_SHORT),
    _peer("softmax attention (torch)", partial(given, _flash), _attention, _attention_exactly, **_SHORT),
)
GLA = (
    _gla("fla chunk_simple_gla", partial(_simple_gla, "chunk_simple_gla")),
    _gla("fla fused_chunk_simple_gla", partial(_simple_gla, "fused_chunk_simple_gla")),
)
"""Peers that compile dozens of configurations at their first call, for minutes: ours is set beside them last."""

LAYERS = (
    _whole("mamba2_ssd, whole layer", partial(ours, mamba2_ssd, dt_softplus=True), base=True),
    _whole("mamba_ssm, whole layer", _their_layer, most=2**31),
)


# One step of decoding: y is returned, and the last argument, a state (batch, heads, P, N), overwritten


def _step(*operands):
    if where(operands[0].device.type) == "tile machine":
        return step._step("bench", launch.on_tiles, *operands)
    return ssd_step_triton_(*operands)


def _einsums(x, log_a, B, C, state):
    state.mul_(log_a.exp()[..., None, None]).add_(x[..., :, None] * B[..., None, :])
    return torch.einsum("bhpn,bn->bhp", state, C[:, 0].to(state.dtype)).to(x.dtype)


def _step_exactly(x, log_a, B, C, state):
    state.copy_(log_a.exp()[..., None, None] * state + x[..., :, None] * B[..., None, :])
    return (state * C[..., None, :]).sum(-1)


def _step_sizes(x, log_a, B, C, state):
    """x, dt, A, B, C, no bias, state: dt for every entry of x, A = −1 for every entry of a state."""
    dt = (-log_a)[..., None].expand(*x.shape)  # by its strides the peer knows that a head has one
    A = (-torch.ones_like(log_a[0, :, None, None])).expand(*state.shape[1:])
    return (x / dt).to(x.dtype), dt, A, B, C, torch.zeros_like(log_a[0, :, None]).expand(*x.shape[1:]), state


def _step_sizes_exactly(x, dt, A, B, C, none, state):
    return _step_exactly(x * dt, -dt[..., 0], B, C, state)


def _state_update():
    run = _mamba_ssm("selective_state_update").selective_state_update
    return lambda x, dt, A, B, C, none, state: run(state, x, dt, A, B, C, D=none, dt_bias=none)  # it fails without


STEPS = (
    Implementation("ssd_step_triton_", partial(given, _step), exact=_step_exactly, base=True),
    _peer("mamba_ssm selective_state_update", _state_update, _step_sizes, _step_sizes_exactly),
    _peer("einsums", partial(given, _einsums), exact=_step_exactly, anywhere=True),
)
