"""Functions of logits that stay finite, gradients included, where a diverging run takes the logits.

In float32 exp overflows at 89 and underflows at −103. A gate of 0 is no harm, but behind it lies a gradient 0·inf.
"""

import math

import torch
import torch.nn.functional as F


def exp_bounded(x: torch.Tensor) -> torch.Tensor:
    """exp(x), at most the square root of the dtype's largest number: e^44 in float32, e^354 in float64.

    For rates of decay. A larger rate forgets all the same, and products with this one do not overflow.
    """
    return x.clamp(max=math.log(torch.finfo(x.dtype).max) / 2).exp()


def log_of_gate(gate: torch.Tensor) -> torch.Tensor:
    """Log of a gate in [0, 1] plus the dtype's smallest normal number, so that its exp has the right gradient at 0."""
    return (gate + torch.finfo(gate.dtype).tiny).log()


def log_softplus(z: torch.Tensor) -> torch.Tensor:
    """Logarithm of softplus(z), log log(1 + e^z), which is z + O(e^z) for negative z."""
    smallest = -40.0  # e^-40 is less than the eps of float64
    return torch.where(z < smallest, z, F.softplus(z.clamp(min=smallest)).log())


def running_max(log_gate: torch.Tensor, log_weight: torch.Tensor, least: float) -> tuple[torch.Tensor, ...]:
    """Log of the largest weight in a state, m_t = max(log_gate_t + m_(t-1), log_weight_t, least), all (..., T).

    A state divided by exp(m_t) has the gate log_gate_t + m_(t-1) − m_t, which is ≤ 0, and writes with the weight
    log_weight_t − m_t ≤ 0: these two are returned, and m. Before the first token m is `least`, −inf for no bound.
    """
    m = [torch.full_like(log_weight[..., :1], least)]
    bound = m[0]
    for t in range(log_weight.shape[-1]):
        now = torch.maximum(log_gate[..., t, None] + m[-1], log_weight[..., t, None])
        m.append(torch.maximum(now, bound))
    m = torch.cat(m, -1)
    before, m = m[..., :-1], m[..., 1:]
    return log_gate + before - m, log_weight - m, m
