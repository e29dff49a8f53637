"""State space duality against the recurrence, token by token in float64: operands, decays of every kind, gradients."""

import torch
from comparing import all_close
from oracles_linear_attention import linear_attention as loop

from smalearn.fast.cpu import ssd_cpu
from smalearn.testing import random_tensors

INF = float("inf")
DECAYS = ["none", "mild", "zeros", "strong", "resets", "all-inf"]


def decays(kind, shape):
    mild, where = random_tensors([shape, shape], seed=5)
    mild = -mild.abs()
    return {
        "none": None,
        "ones": torch.zeros_like(mild),
        "mild": mild,
        "zeros": torch.where(where > 0, 0.0, mild),
        "strong": torch.where(where > 1, -1e4, 0.01 * mild),
        "resets": torch.where(where > 1, -INF, torch.where(where < -1, -1e4, 0.1 * mild)),
        "all-inf": torch.full(shape, -INF, dtype=torch.float64),
    }[kind]


def inputs(length, kind="mild", leading=(), shared=None, dtype=torch.float64, state=3, head_dim=2):
    """X, log_a, B, C and an initial state; B and C with the leading axes `shared`."""
    shared = leading if shared is None else shared
    rows = [(*leading, length, head_dim), *2 * [(*shared, length, state)], (*leading, head_dim, state)]
    X, B, C, H = random_tensors(rows)
    log_a = decays(kind, (*leading, length))
    return [None if x is None else x.to(dtype) for x in (X, log_a, B, C, H)]


def expected(X, log_a, B, C, H):
    """The recurrence in float64 under the names of attention, without a decay if log_a is None."""
    X, B, C = (x.double() for x in (X, B, C))
    log_a = X.new_zeros(X.shape[:-1]) if log_a is None else log_a.double()
    axes = max(log_a.ndim + 1, B.ndim, C.ndim)  # the loop tells gates by their axes; here, missing ones are shared
    B, C, log_a = (x[(None,) * (axes - x.ndim - less)] for x, less in ((B, 0), (C, 0), (log_a, 1)))
    return loop(C, B, X, log_a, None if H is None else H.double())


def gradients(function, operands, seed=7):
    """Y, the last state, and the gradients of a random functional of both; the same on every device."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in operands]
    outputs = function(*leaves)
    cotangents = random_tensors([x.shape for x in outputs], seed=seed)
    cotangents = [c.to(operands[0].dtype).to(x) for c, x in zip(cotangents, outputs, strict=True)]
    present = [x for x in leaves if x is not None]
    made, back = zip(*((y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad), strict=True)
    return [*outputs, *torch.autograd.grad(made, present, back, materialize_grads=True)]  # no token makes no state


def check(operands, tolerance=None, form=ssd_cpu):
    """Outputs and gradients of a form against those of the recurrence."""
    all_close(gradients(form, operands), gradients(expected, operands), tolerance)
