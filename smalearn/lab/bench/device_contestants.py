"""Who takes part in the benchmark of the GPU programs: ours, and other libraries' where they are installed.

Every contestant is called in its own layout with its own arguments, and judged by its own function in float64.
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from smalearn.fast.triton import launch, mamba2_ssd, ssd_step_triton_, ssd_tiles, ssd_triton, step
from smalearn.kernel_attention import softmax_attention
from smalearn.lab.bench.contestants import ours
from smalearn.lab.bench.device_problem import DeviceProblem
from smalearn.ssd import ssd_chunked, ssd_recurrent

__all__ = ["CONTESTANTS", "STEPS", "DeviceContestant", "programs", "where"]

OURS, LAYER = "ssd_triton", "mamba2_ssd, whole layer"


@dataclass(frozen=True)
class DeviceContestant:
    """One implementation on a device.

    Attributes:
        name: as reports show it.
        load: imports what it needs, and returns `run(*arguments) -> Y` of its own arguments.
        own: its arguments of X, log_a, B and C (for a step of x, log_a, B, C and state); this is not timed.
        exact: what it computes, of its own arguments in float64, in the slowest and most obvious form.
        interpreted: whether it can run without a GPU.
        longest: tokens beyond which it takes no part.
    """

    name: str
    load: Callable[[], Callable]
    own: Callable
    exact: Callable
    interpreted: bool = False
    longest: int = 2**40

    def enters(self, problem: DeviceProblem) -> bool:
        """Whether it can solve a problem; others than ours count entries of a tensor in 32 bits."""
        widest = problem.batch * problem.length * problem.heads * max(problem.head_dim, problem.state)
        small = problem.length <= self.longest and (self.name in (OURS, LAYER) or widest < 2**31)
        return small and (self.interpreted or problem.device == "cuda")


def where(device: str) -> str:
    """What runs our programs: "GPU", "Triton's interpreter" or "tile machine"."""
    if device == "cuda":
        return "GPU"
    return "Triton's interpreter" if launch.has_triton() and launch.interprets() else "tile machine"


def programs(device: str) -> Callable:
    """`ssd_triton`, or `ssd_tiles` where Triton can run no programs on that device."""
    return ssd_tiles if where(device) == "tile machine" else ssd_triton


def _programs():
    """Ours."""
    return lambda X, *others: programs(X.device.type)(X, *others)[0]


def _themselves(*operands):
    """Our arguments."""
    return operands


def _recurrence(X, log_a, B, C):
    return ssd_recurrent(X, log_a, B, C)[0]


def _compiled():
    return ours(torch.compile(ssd_chunked))


# Of Mamba-2's authors


def _by_steps(X, log_a, B, C):
    """x, dt, B and C with x·dt = X and A·dt = log_a for A = −1, time before the heads."""
    dt = -log_a
    X = (X / dt[..., None]).to(X.dtype)
    return tuple(x.transpose(1, 2).contiguous() for x in (X, dt, B, C))


def _by_steps_exactly(x, dt, B, C):
    X, dt, B, C = (tensor.transpose(1, 2) for tensor in (x, dt, B, C))
    return ssd_recurrent(X * dt[..., None], -dt, B, C)[0].transpose(1, 2)


def _mamba_ssm(name):
    """A module of its Triton programs. The package itself asks for a CUDA extension, which these do not need."""
    found = None if "mamba_ssm" in sys.modules else importlib.util.find_spec("mamba_ssm")
    if found:
        sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
        sys.modules["mamba_ssm"].__path__ = list(found.submodule_search_locations)
    return importlib.import_module(f"mamba_ssm.ops.triton.{name}")


def _chunk_scan():
    run = _mamba_ssm("ssd_combined").mamba_chunk_scan_combined
    return lambda x, dt, B, C: run(x, dt, -torch.ones_like(dt[0, 0]), B, C, chunk_size=256)


# Mamba-2's whole layer, with step sizes, skip connection and gate


def _layer(X, log_a, B, C):
    """x, dt, A, B, C, D, z and the bias of dt, time before the heads."""
    x, dt, B, C = (tensor.transpose(1, 2).contiguous() for tensor in (X, log_a, B, C))
    A, D, bias = (value * torch.ones_like(dt[0, 0]) for value in (-1, 1, 2))
    return x, dt, A, B, C, D, x.roll(1, 1), bias


def _layer_exactly(x, dt, A, B, C, D, z, bias):
    dt = F.softplus(dt + bias)
    X, log_a, B, C = (tensor.transpose(1, 2) for tensor in (x * dt[..., None], A * dt, B, C))
    return (ssd_recurrent(X, log_a, B, C)[0].transpose(1, 2) + D[:, None] * x) * F.silu(z)


def _our_layer():
    return lambda *arguments: mamba2_ssd(*arguments, dt_softplus=True)[0]


def _their_layer():
    run = _mamba_ssm("ssd_combined").mamba_chunk_scan_combined

    def layer(x, dt, A, B, C, D, z, bias):
        return run(x, dt, A, B, C, chunk_size=256, D=D, z=z, dt_bias=bias, dt_softplus=True)

    return layer


# Of flash-linear-attention


def _every_head(X, log_a, B, C):
    """Queries, keys, values and gates, time before the heads; keys and queries for every head."""
    Q, K = (x.expand(-1, X.shape[1], -1, -1) for x in (C, B))
    return tuple(x.transpose(1, 2).contiguous() for x in (Q, K, X, log_a))


def _every_head_exactly(Q, K, V, g):
    X, log_a, B, C = (x.transpose(1, 2) for x in (V, g, K, Q))
    return ssd_recurrent(X, log_a, B, C)[0].transpose(1, 2)


def _simple_gla(name):
    run = getattr(importlib.import_module("fla.ops.simple_gla"), name)
    return lambda q, k, v, g: run(q, k, v, g=g, scale=1.0)[0]


# Of PyTorch: softmax attention at the same sizes, for comparison; it computes something else


def _attention(X, log_a, B, C):
    return tuple(x.expand(*X.shape[:2], -1, -1).contiguous() for x in (C, B, X))


def _attention_exactly(Q, K, V):
    below = torch.ones(Q.shape[-2], Q.shape[-2], dtype=Q.dtype, device=Q.device).tril()
    return softmax_attention(Q, K, V, below)


def _flash():
    return partial(F.scaled_dot_product_attention, is_causal=True, scale=1.0)


_gla = {"own": _every_head, "exact": _every_head_exactly}

CONTESTANTS = (
    DeviceContestant(OURS, _programs, _themselves, _recurrence, interpreted=True),
    DeviceContestant("mamba_ssm mamba_chunk_scan_combined", _chunk_scan, _by_steps, _by_steps_exactly),
    DeviceContestant(LAYER, _our_layer, _layer, _layer_exactly),
    DeviceContestant("mamba_ssm, whole layer", _their_layer, _layer, _layer_exactly),
    DeviceContestant("fla chunk_simple_gla", partial(_simple_gla, "chunk_simple_gla"), **_gla),
    DeviceContestant("fla fused_chunk_simple_gla", partial(_simple_gla, "fused_chunk_simple_gla"), **_gla),
    DeviceContestant("ssd_chunked", partial(ours, ssd_chunked), _themselves, _recurrence, interpreted=True),
    DeviceContestant("ssd_chunked, compiled", _compiled, _themselves, _recurrence, longest=4096),
    DeviceContestant("softmax attention (torch)", _flash, _attention, _attention_exactly, interpreted=True),
)


# One step of decoding: y is returned, and the last argument, a state (batch, heads, P, N), overwritten


def _step():
    def run(*operands):
        if where(operands[0].device.type) == "tile machine":
            return step._step("bench", launch.on_tiles, *operands)
        return ssd_step_triton_(*operands)

    return run


def _einsums():
    def run(x, log_a, B, C, state):
        state.mul_(log_a.exp()[..., None, None]).add_(x[..., :, None] * B[..., None, :])
        return torch.einsum("bhpn,bn->bhp", state, C[:, 0].to(state.dtype)).to(x.dtype)

    return run


def _step_exactly(x, log_a, B, C, state):
    state.copy_(log_a.exp()[..., None, None] * state + x[..., :, None] * B[..., None, :])
    return (state * C[..., None, :]).sum(-1)


def _step_sizes(x, log_a, B, C, state):
    """x, dt, A, B, C, state: dt for every entry of x, A = −1 for every entry of a state."""
    dt = -log_a[..., None].expand(*x.shape)
    A = -torch.ones_like(dt[0, :, :1, None]).expand(*state.shape[1:])
    return (x / dt).to(x.dtype), dt, A, B, C, state


def _step_sizes_exactly(x, dt, A, B, C, state):
    return _step_exactly(x * dt, -dt[..., 0], B, C, state)


def _state_update():
    run = _mamba_ssm("selective_state_update").selective_state_update
    return lambda x, dt, A, B, C, state: run(state, x, dt, A, B, C)


STEPS = (
    DeviceContestant("ssd_step_triton_", _step, _themselves, _step_exactly, interpreted=True),
    DeviceContestant("mamba_ssm selective_state_update", _state_update, _step_sizes, _step_sizes_exactly),
    DeviceContestant("einsums", _einsums, _themselves, _step_exactly, interpreted=True),
)
