"""Mamba-2 with log-linear attention in place of SSD: a state for each level of a tree over time."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn._checks import check_count
from smalearn.linear_attention import log_linear_attention, log_linear_step
from smalearn.masks import level_count
from smalearn.models.mamba2 import Mamba2, time_last


class LogLinearCache(NamedTuple):
    """State of log-linear attention between two calls.

    `conv_state` (..., K - 1, channels) are the last inputs of the convolution; `state` (..., groups, heads of a group,
    levels, P, N) is a binary counter of states, zeros where a bit of `length` is 0, the number of tokens read.
    """

    conv_state: torch.Tensor
    state: torch.Tensor
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.conv_state.nbytes + self.state.nbytes


class LogLinearMamba2(Mamba2):
    """The Mamba-2 block whose mask is `masks.HierarchicalMask`.

        Y = (L ∘ W ∘ C B^T) dt X + D X,    W[t, s] = w[t, level(t, s)],    w = softplus(level_scale · (x W_level))

    Args:
        dim: D, size of a token.
        context: the longest sequence, which decides how many levels there are: `masks.level_count(context)`.
        state: N, size of the state for each channel and level.
        head_dim: P, channels of a head.
        expand: the block works on expand·D channels.
        groups: how many pairs of B and C there are.
        conv_len: K, tokens that the convolution sees.

    Raises:
        ValueError: head_dim does not divide expand·dim, or groups the number of heads.

    Cost:
        Per token the projections of `Mamba2` and D·heads·levels multiply-adds more; the attention is that of
        `log_linear_attention`. The cache has expand·D·N·levels entries, and K - 1 tokens of the convolution. A prefill
        that follows other tokens goes step by step.

    Source:
        Guo et al. 2025 (Log-linear attention), section 3.4; the weights are those of its published code.
    """

    cache_type = LogLinearCache
    varies = False  # twice the tokens have a level more
    no_reset = "its tree of levels begins at the first token of a row, not at that of a text"

    def __init__(
        self,
        dim: int,
        context: int,
        state: int = 128,
        head_dim: int = 64,
        expand: int = 2,
        groups: int = 1,
        conv_len: int = 4,
    ):
        super().__init__(dim, state, head_dim, expand, groups, conv_len)
        self.context = check_count("LogLinearMamba2", "context", context)
        self.levels, heads = level_count(context), len(self.D)
        self.level_proj = nn.Linear(dim, heads * self.levels, bias=False)
        self.level_scale = nn.Parameter(torch.ones(heads, self.levels))

    def state_shape(self):
        """Trailing axes of a state for each head."""
        return self.groups, self.heads_per_group, self.levels, self.head_dim, self.state

    def prefill(self, x, cache, reset=None):
        """Read all tokens: at once where they are the first, else one after the other; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        if cache.length:
            return self._follow(x, cache)
        z, xBC, dt, conv_state = self._project(x, self.conv, cache.conv_state)
        X, *operands = self._operands(xBC, dt)
        V, log_a, B, C = time_last(*operands)
        weights = rearrange(self._weights(x), "... t g h l -> ... g h t l")
        Y, state = log_linear_attention(C, B, V, log_a, weights)
        y = self._output(rearrange(Y, "... g h t p -> ... t g h p"), X, z)
        return y, LogLinearCache(conv_state, state, x.shape[-2])

    def step(self, x: torch.Tensor, cache: LogLinearCache) -> tuple[torch.Tensor, LogLinearCache]:
        """Read one token, by `log_linear_step`: a state for each level is read; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        z, xBC, dt, conv_state = self._project(x, self.conv.step_unchecked, cache.conv_state)
        X, V, log_a, B, C = self._operands(xBC, dt)
        y, state = log_linear_step(C, B, V, log_a, self._weights(x), cache.state, cache.length)
        return self._output(y, X, z), LogLinearCache(conv_state, state, cache.length + 1)

    def _follow(self, x, cache):
        """Read tokens that follow others, step by step."""
        outputs = []
        for token in x.unbind(-2):
            y, cache = self.step(token, cache)
            outputs.append(y)
        return torch.stack(outputs, -2) if outputs else x, cache

    def _weights(self, x):
        """Weights of the levels, (..., groups, heads of a group, levels)."""
        weights = functional.softplus(self.level_scale.flatten() * self.level_proj(x))
        return rearrange(weights, "... (g h l) -> ... g h l", g=self.groups, l=self.levels)
