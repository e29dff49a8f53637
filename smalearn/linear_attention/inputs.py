"""Input checks shared by all forms of linear attention."""

import torch

from smalearn._checks import ShapeError, check_operands

REMEDY = {"tn": "linear_attention_chunked", "tpn": "linear_attention_recurrent"}


def check_inputs(function, Q, K, V, log_a, state=None, gates=("t", "tn"), more=None, real=False):
    """Check shapes, dtypes, devices and the sign of log_a, for Q, K (..., T, N), V (..., T, P) and state (..., P, N).

    `gates` are the axes that log_a may have, the gate of a token first: its letter, or none for a single step, is time.
    `more` are tensors of the dtype of Q or float32, by name, with their axes.
    """
    time = gates[0]
    q, k, v, state_name = ("Q", "K", "V", "initial_state") if time else ("q", "k", "v", "state")

    def axes():
        """The axes of log_a by how many more it has than a key; ValueError if this form has no such gate."""
        possible = {-1: time, 0: time + "n", 1: time + "pn"}
        axes = possible.get(log_a.ndim - K.ndim)
        if axes is None:
            expected = ", ".join(f"{K.ndim + extra} for {_shown(axes)}" for extra, axes in possible.items())
            raise ShapeError(f"{function}: log_a has {log_a.ndim} axes, expected {expected}")
        if axes not in gates:
            allowed = " or ".join(map(_shown, gates))
            raise ValueError(f"{function}: log_a has axes {_shown(axes)}, expected {allowed}; use {REMEDY[axes]}")
        if log_a.ndim == K.ndim < max(Q.ndim, V.ndim):
            _check_key_gate(function, log_a, k, K, time)
        return axes

    operands = {q: (Q, time + "n"), k: (K, time + "n"), v: (V, time + "p")}
    check_operands(function, operands, {"log_a": (log_a, axes), state_name: (state, "pn")} | (more or {}), real)


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
