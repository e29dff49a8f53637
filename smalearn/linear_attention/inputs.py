"""Input checks shared by all forms of linear attention."""

import torch

from smalearn._checks import ShapeError, check_dtypes, check_float32_or, check_log_a, check_shapes, check_tensor

REMEDY = {"tn": "linear_attention_chunked", "tpn": "linear_attention_recurrent"}


def check_inputs(function, Q, K, V, log_a, state=None, gates=("t", "tn")):
    """Check shapes, dtypes, devices and the sign of log_a, for Q, K (..., T, N), V (..., T, P) and state (..., P, N).

    `gates` are the axes that log_a may have, the gate of a token first: its letter, or none for a single step, is time.
    """
    time = gates[0]
    names = ("Q", "K", "V", "initial_state") if time else ("q", "k", "v", "state")
    operands = dict(zip(names, [(Q, time + "n"), (K, time + "n"), (V, time + "p"), (state, "pn")], strict=True))
    check_dtypes(function, {name: operands[name][0] for name in names[:3]})
    if log_a is not None:
        check_dtypes(function, {"log_a": log_a})
        operands["log_a"] = (log_a, _gate_axes(function, log_a, K, gates))
        if log_a.ndim == K.ndim < max(Q.ndim, V.ndim):
            _check_key_gate(function, log_a, names[1], K, time)
    if state is not None:
        check_tensor(function, names[3], state)
    check_shapes(function, {name: pair for name, pair in operands.items() if pair[0] is not None})
    if state is not None:
        check_float32_or(function, names[3], state, names[0], Q)
    if log_a is not None:
        check_log_a(function, log_a, names[0], Q)


def _gate_axes(function, log_a, K, gates):
    """The axes of log_a by how many more it has than a key; ValueError if this form has no such gate."""
    possible = {-1: gates[0], 0: gates[0] + "n", 1: gates[0] + "pn"}
    axes = possible.get(log_a.ndim - K.ndim)
    if axes is None:
        expected = ", ".join(f"{K.ndim + extra} for {_shown(axes)}" for extra, axes in possible.items())
        raise ShapeError(f"{function}: log_a has {log_a.ndim} axes, expected {expected}")
    if axes not in gates:
        allowed = " or ".join(map(_shown, gates))
        raise ValueError(f"{function}: log_a has axes {_shown(axes)}, expected {allowed}; use {REMEDY[axes]}")
    return axes


def _check_key_gate(function, log_a, name, K, time):
    """Where keys lack an axis that other operands have, check that a gate per key feature was meant."""
    axes = len(time) + 1
    if log_a.shape[-axes:] != K.shape[-axes:]:
        one = ", ".join(map(str, [*K.shape[:-axes], 1, *K.shape[-axes:]]))
        meant = f"log_a with as many axes as {name} has one gate per key feature, {_shown(time + 'n')}"
        remedy = f"for one per token give {name} an axis of size 1: ({one})"
        raise ShapeError(f"{function}: {meant}, got shape {tuple(log_a.shape)}; {remedy}")


def _shown(axes):
    """The axes as docstrings write them."""
    return f"({', '.join(['...', *axes.upper()])})"


def key_gate(log_a: torch.Tensor | None, K: torch.Tensor) -> torch.Tensor:
    """log_a as (..., T, 1) for a gate per token or none, (..., T, N) for one per key feature."""
    if log_a is None:
        return K.new_zeros(K.shape[-2], 1)
    return log_a[..., None] if log_a.ndim < K.ndim else log_a
