"""The Mamba-1 block: one decay per channel and state entry; dt, B and C are projected from the convolved input."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from smalearn._checks import check_count
from smalearn.linear_attention import linear_attention_recurrent, linear_attention_step
from smalearn.linear_attention.gates import exp_bounded
from smalearn.models.layers import CausalConvolution, WideLinear, narrow
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, forget


class Mamba1(RecurrentMixer):
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
        bias: whether the first and the last projection have one.

    Raises:
        ValueError: a size is not an integer ≥ 1.

    Cost:
        3·T·expand·D·N multiply-adds and as many exponentials in T steps that follow one another; autograd keeps all
        states, T·expand·D·N entries.

    Source:
        Gu and Dao 2023 (Mamba), sections 3.2 to 3.4; the initial values are those of the official code.
    """

    makes_decays = True
    varies = False  # the loop over tokens is written out

    def __init__(
        self,
        dim: int,
        state: int = 16,
        expand: int = 2,
        rank: int | None = None,
        conv_len: int = 4,
        bias: bool = False,
    ):
        super().__init__()
        inner = check_count("Mamba1", "expand", expand) * check_count("Mamba1", "dim", dim)
        self.dim, self.inner, self.state = dim, inner, check_count("Mamba1", "state", state)
        self.rank = check_count("Mamba1", "rank", -(-dim // 16) if rank is None else rank)
        self.in_proj = nn.Linear(dim, 2 * inner, bias=bias)
        self.conv = CausalConvolution(inner, conv_len)
        self.x_proj = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.dt_proj = WideLinear(self.rank, inner)
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        self.dt_proj.bias = nn.Parameter(initial_dt_bias(inner))
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, dim, bias=bias)

    def state_shape(self):
        """Trailing axes of a state with N entries for each channel."""
        return self.inner, self.state

    def prefill(self, x, cache, reset=None):
        """Read all tokens, by `linear_attention_recurrent` with a full gate; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        return self._read(x, cache, partial(self.conv, reset=reset), linear_attention_recurrent, reset)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `linear_attention_step`; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        return self._read(x, cache, self.conv.step_unchecked, linear_attention_step)

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The operands of `linear_attention_recurrent` for a sequence, to look inside.

        Args:
            x: (..., T, D), nothing before it.

        Returns:
            C and B (..., T, N), dt X (..., T, channels) and log_a (..., T, channels, N).

        Raises:
            ShapeError: x does not fit the block.
            ValueError: dtype or device differ from the weights'.
        """
        self.check("operands", x)
        x, _ = self.conv(self.in_proj(x).chunk(2, -1)[0], self.start(*x.shape[:-2]).conv_state)
        return self._operands(x)[1:]

    def _read(self, x, cache, convolve, attend, reset=None):
        """Outputs for all tokens or for one, as are the convolution and the attention, and the cache after them."""
        x, z = self.in_proj(x).chunk(2, -1)
        x, conv_state = convolve(x, cache.conv_state)
        X, C, B, V, log_a = self._operands(x)
        Y, state = attend(C, B, V, forget(log_a, reset), cache.state)
        return self._output(Y, X, z), RecurrentCache(conv_state, state)

    def _operands(self, x):
        """X, and C, B, dt X, log_a for linear attention, with or without an axis of time."""
        X = functional.silu(x)
        dt, B, C = self.x_proj(X).split([self.rank, self.state, self.state], -1)
        dt = functional.softplus(self.dt_proj(dt))
        return X, C, B, narrow(dt * X, X), -exp_bounded(self.A_log) * dt[..., None]

    def _output(self, Y, X, z):
        """The skip D X, the gate and the last projection."""
        return self.out_proj(narrow(Y + self.D * X, X) * functional.silu(z))
