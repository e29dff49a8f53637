"""The Mamba block, the older one: a decay of its own for every channel and state entry, and operands in sequence."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from smalearn._checks import check_count
from smalearn.linear_attention import linear_attention_recurrent, linear_attention_step
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import CausalConvolution, Mixer

__all__ = ["Mamba1", "Mamba1Cache"]


class Mamba1Cache(NamedTuple):
    """What a Mamba block remembers: the last inputs (..., K - 1, channels) of its convolution, its state."""

    window: torch.Tensor
    state: torch.Tensor


class Mamba1(Mixer):
    """The Mamba block with S6, the selective diagonal state space model: P = 1, so every channel is a head.

        [x, z]     = x W_in
        X          = SiLU(conv(x))
        [dt, B, C] = X W_x                        B, C and dt wait for X; Mamba-2 has them beside it
        dt         = softplus(dt W_dt + bias)     one step size per channel
        H_t        = exp(-exp(A_log) dt_t) ∘ H_(t-1) + (dt_t X_t) B_t^T,   Y_t = H_t C_t + D X_t
        y          = (Y · SiLU(z)) W_out

    The decay has an entry for each of the expand·D·N entries of the state: no matrix product does that, so this is the
    loop over tokens, for small sizes.

    Args:
        dim: D, size of a token.
        state: N, size of the state for each channel.
        expand: the block works on expand·D channels.
        rank: of the projection that makes dt; D / 16, rounded up, if None.
        conv_len: K, tokens that the convolution sees.

    Raises:
        ValueError: a size is no integer ≥ 1.

    Cost:
        3·T·expand·D·N multiply-adds and as many exponentials in T steps that follow one another; autograd keeps all
        states, T·expand·D·N entries.

    Source:
        Gu and Dao 2023 (Mamba), sections 3.2 to 3.4; the initial values are those of the official code.
    """

    Cache = Mamba1Cache

    def __init__(self, dim: int, state: int = 16, expand: int = 2, rank: int | None = None, conv_len: int = 4):
        super().__init__()
        inner = check_count("Mamba1", "expand", expand) * check_count("Mamba1", "dim", dim)
        self.dim, self.inner, self.state = dim, inner, check_count("Mamba1", "state", state)
        self.rank = check_count("Mamba1", "rank", -(-dim // 16) if rank is None else rank)
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.conv = CausalConvolution(inner, conv_len)
        self.x_proj = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        self.dt_proj.bias = nn.Parameter(initial_dt_bias(inner))
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def cache_shapes(self):
        """A window of the convolution, and N entries for every channel."""
        channels, _, length = self.conv.weight.shape
        return {"window": (length - 1, channels), "state": (self.inner, self.state)}

    def prefill(self, x: torch.Tensor, cache: Mamba1Cache) -> tuple[torch.Tensor, Mamba1Cache]:
        """All tokens, by `linear_attention_recurrent` with a full gate; the contract is that of `Mamba2.prefill`."""
        self.check("prefill", x, cache)
        x, z = self.in_proj(x).chunk(2, -1)
        x, window = self.conv.prefill(x, cache.window)
        X, *operands = self._operands(x)
        Y, state = linear_attention_recurrent(*operands, cache.state)
        return self._output(Y, X, z), Mamba1Cache(window, state)

    def step(self, x: torch.Tensor, cache: Mamba1Cache) -> tuple[torch.Tensor, Mamba1Cache]:
        """One token, by `linear_attention_step`; the contract is that of `Mamba2.step`."""
        self.check("step", x, cache, time="")
        x, z = self.in_proj(x).chunk(2, -1)
        x, window = self.conv.step(x, cache.window)
        X, *operands = self._operands(x)
        y, state = linear_attention_step(*operands, cache.state)
        return self._output(y, X, z), Mamba1Cache(window, state)

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the block gives to `linear_attention_recurrent` for a text.

        Args:
            x: (..., T, D), nothing before it.

        Returns:
            C and B (..., T, N), dt X (..., T, channels) and log_a (..., T, channels, N).

        Raises:
            ShapeError: x does not fit the block.
            ValueError: dtype or device differ from the weights'.
        """
        self.check("operands", x)
        x, _ = self.conv.prefill(self.in_proj(x).chunk(2, -1)[0], self.start(*x.shape[:-2]).window)
        return self._operands(x)[1:]

    def _operands(self, x):
        """X, and C, B, dt X, log_a for linear attention, with or without an axis of time."""
        X = functional.silu(x)
        dt, B, C = self.x_proj(X).split([self.rank, self.state, self.state], -1)
        dt = functional.softplus(self.dt_proj(dt))
        return X, C, B, dt * X, -self.A_log.exp() * dt[..., None]

    def _output(self, Y, X, z):
        """The skip D X, the gate and the last projection."""
        return self.out_proj((Y + self.D * X) * functional.silu(z))
