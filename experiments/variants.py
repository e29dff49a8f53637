"""Mixers with one part exchanged, for training alone: which of the differences makes the difference?"""

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn.linear_attention import linear_attention_step
from smalearn.masks import alibi_slopes
from smalearn.models import (
    CausalConvolution,
    GatedRMSNorm,
    Mamba1,
    Mamba2,
    MultiLevelAttention,
    RecurrentCache,
    SoftmaxAttention,
)


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


class UntiedMamba2(Mamba2):
    """Mamba-2 whose N components of a state have decays of their own, exp(-A_n dt), as in Mamba; one dt for a head."""

    def __init__(self, dim: int, state: int = 128, **sizes: int):
        super().__init__(dim, state, **sizes)
        rates = torch.empty(len(self.A_log), state).uniform_(1, 16).log()
        self.offset = nn.Parameter(rates - self.A_log.detach()[:, None])

    def prefill(self, x, cache):
        """Read all tokens at once, as gated linear attention."""
        z, xBC, dt, conv_state = self._project(x, self.conv, cache.conv_state)
        X, inputs, log_a, B, C = self._untied(xBC, dt)
        Q, K, V, log_a = (rearrange(part, "... t g h n -> ... g h t n") for part in (C, B, inputs, log_a))
        Y, state = fast.linear_attention(Q, K, V, log_a, cache.state)
        return self._output(rearrange(Y, "... g h t p -> ... t g h p"), X, z), RecurrentCache(conv_state, state)

    def step(self, x, cache):
        """Read one token."""
        z, xBC, dt, conv_state = self._project(x, self.conv.step_unchecked, cache.conv_state)
        X, inputs, log_a, B, C = self._untied(xBC, dt)
        y, state = linear_attention_step(C, B, inputs, log_a, cache.state)
        return self._output(y, X, z), RecurrentCache(conv_state, state)

    def _untied(self, xBC, dt):
        """The operands, with log_a (..., groups, heads of a group, N)."""
        X, inputs, log_a, B, C = self._operands(xBC, dt)
        return X, inputs, log_a[..., None] * rearrange(self.offset.exp(), "(g h) n -> g h n", g=self.groups), B, C


class AlibiAttention(SoftmaxAttention):
    """Standard attention whose scores fall linearly with the distance of two tokens, by the slope of each head."""

    def attend(self, Q, K, V):
        """Attention of all tokens, with ALiBi's bias."""
        places = torch.arange(Q.shape[-2], device=Q.device)
        distance = places[:, None] - places
        bias = -alibi_slopes(self.heads).to(Q)[:, None, None] * distance
        bias = rearrange(bias.masked_fill(distance < 0, -torch.inf), "(g h) t s -> g h t s", g=self.groups)
        return ((Q @ K.mT) + bias).softmax(-1) @ V


class ShuffledAttention(MultiLevelAttention):
    """Multi-level attention whose blocks hold tokens from everywhere, by one fixed order of the context.

    It has the ranks, the blocks and the multiply-adds of the other, and near tokens are no more alike than far ones.
    """

    def __init__(self, *args: object, **sizes: object):
        super().__init__(*args, **sizes)
        shuffle = torch.randperm(self.block_lens[0], generator=torch.Generator().manual_seed(0))
        self.register_buffer("places", shuffle, persistent=False)

    def attend(self, Q, K, V):
        """Attention of all tokens, its scores in the slowest obvious form."""
        places, scores = self.places[: Q.shape[-2]], 0
        for q, k, length in zip(Q.split(self.ranks, -1), K.split(self.ranks, -1), self.block_lens, strict=True):
            blocks = places // length
            scores = scores + (q @ k.mT) * (blocks[:, None] == blocks)
        future = torch.ones(2 * [len(places)], dtype=torch.bool, device=Q.device).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ V
