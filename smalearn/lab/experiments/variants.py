"""Mamba-2 and Mamba with one part exchanged: which of the differences makes the difference?"""

import torch
from torch import nn
from torch.nn import functional

from smalearn.models import CausalConvolution, GatedRMSNorm, Mamba1, Mamba2

__all__ = ["ConstantDecay", "Gate", "NormedMamba1", "SequentialMamba2", "undecayed", "unnormed"]


class Gate(nn.Module):
    """y · SiLU(z): what is left of `GatedRMSNorm` without its norm."""

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Gated y; both operands are (..., channels)."""
        return y * functional.silu(z)


def unnormed(dim: int, state: int, **sizes: int) -> Mamba2:
    """Mamba-2 with the gate alone before its last projection, as in Mamba."""
    block = Mamba2(dim, state, **sizes)
    block.norm = Gate()
    return block


def undecayed(dim: int, state: int, **sizes: int) -> Mamba2:
    """Mamba-2 that cannot forget: A = 0, the causal mask of linear attention."""
    block = Mamba2(dim, state, **sizes)
    block.A_log = nn.Parameter(torch.full_like(block.A_log, -torch.inf), requires_grad=False)
    return block


class ConstantDecay(Mamba2):
    """Mamba-2 that forgets alike at every token; how strongly it writes a token still depends on the token."""

    def _operands(self, xBC, dt):
        X, inputs, log_a, B, C = super()._operands(xBC, dt)
        constant = -self.A_log.exp() * functional.softplus(self.dt_bias)
        return X, inputs, constant.view(self.groups, self.heads_per_group).expand_as(log_a), B, C


class NormedMamba1(Mamba1):
    """Mamba with the gated norm of Mamba-2 before its last projection."""

    def __init__(self, dim: int, state: int = 16, **sizes: int):
        super().__init__(dim, state, **sizes)
        self.norm = GatedRMSNorm(self.inner)

    def _output(self, Y, X, z):
        return self.out_proj(self.norm(Y + self.D * X, z))


class SequentialMamba2(Mamba2):
    """Mamba-2 with B, C and dt made from X after its convolution, as in Mamba, not together with it."""

    def __init__(self, dim: int, state: int = 128, **sizes: int):
        super().__init__(dim, state, **sizes)
        length, others = self.conv.weight.shape[-1], self.widths[1] - self.inner
        self.in_proj = nn.Linear(dim, 2 * self.inner, bias=False)
        self.conv = CausalConvolution(self.inner, length)
        self.x_proj = nn.Linear(self.inner, others + self.widths[2], bias=False)
        self.x_widths = [others, self.widths[2]]

    def _project(self, x, convolve, window):
        z, x = self.in_proj(x).chunk(2, -1)
        x, window = convolve(x, window)
        BC, dt = self.x_proj(functional.silu(x)).split(self.x_widths, -1)
        return z, torch.cat([x, BC], -1), dt, window
