"""The Mamba-2 block: all operands of SSD from one projection, a short convolution, SSD, a gate, a norm."""

import math
from functools import partial

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count, check_number
from smalearn.fast.triton.mamba2 import check_limits
from smalearn.linear_attention.gates import exp_bounded
from smalearn.models.layers import CausalConvolution, GatedRMSNorm, divide, narrow
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, forget
from smalearn.ssd import ssd_step


class Mamba2(RecurrentMixer):
    """The Mamba-2 block, in training and in decoding.

        [z, xBC, dt] = x W_in                     one projection, so no operand waits for another
        [X, B, C]    = SiLU(conv(xBC))            a causal convolution of a few tokens
        dt           = softplus(dt + dt_bias)     one step size per head, kept within `dt_limits`
        Y            = SSD(dt X, -exp(A_log) dt, B, C) + D X
        y            = norm(Y · SiLU(z)) W_out

    SSD is H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t, with a state H (P, N) for each head. The heads of a
    group share B and C, by an axis of size 1. Other limits of dt, or other groups of the norm, are set as attributes:
    `block.dt_limits = (0.0, 0.1)`, `block.norm.groups = 1`.

    Args:
        dim: D, size of a token.
        state: N, size of the state for each channel.
        head_dim: P, channels of a head.
        expand: the block works on expand·D channels.
        groups: how many pairs of B and C there are.
        conv_len: K, tokens that the convolution sees.
        heads: how many, where the block works on heads·P channels and not on expand·D; None to take expand.
        eps: of the norm.
        bias: whether both projections have one.

    Raises:
        ValueError: head_dim does not divide expand·dim, or groups the number of heads.

    Cost:
        Per token D·(3·expand·D + 2·groups·N + heads) multiply-adds for the projections, and those of `fast.ssd`. The
        cache has expand·D·N entries, and K - 1 tokens of the convolution, however long the sequence.

    Source:
        Dao and Gu 2024 (Mamba-2), section 7 and figure 6; the initial values are those of the official code.
    """

    makes_decays = True

    def __init__(
        self,
        dim: int,
        state: int = 128,
        head_dim: int = 64,
        expand: int = 2,
        groups: int = 1,
        conv_len: int = 4,
        heads: int | None = None,
        eps: float = 1e-5,
        bias: bool = False,
    ):
        super().__init__()
        for name, size in (("dim", dim), ("state", state), ("expand", expand)):
            check_count("Mamba2", name, size)
        if heads is None:
            heads = divide("Mamba2", "expand·dim", expand * dim, "head_dim", head_dim)
        inner = check_count("Mamba2", "heads", heads) * check_count("Mamba2", "head_dim", head_dim)
        self.dim = dim
        self.inner = inner
        self.state = state
        self.head_dim = head_dim
        self.groups = groups
        self.heads_per_group = divide("Mamba2", "number of heads", heads, "groups", groups)

        self.widths = [inner, inner + 2 * groups * state, heads]  # of z, xBC and dt
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=bias)
        self.conv = CausalConvolution(self.widths[1], conv_len)
        self.dt_bias = nn.Parameter(initial_dt_bias(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())  # A = -exp(A_log), one for each head
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedRMSNorm(inner, groups, eps)
        self.out_proj = nn.Linear(inner, dim, bias=bias)
        self.dt_limits = (0.0, math.inf)

    @property
    def dt_limits(self) -> tuple[float, float]:
        """The least and the greatest step size dt, 0 ≤ least ≤ greatest."""
        return self._dt_limits

    @dt_limits.setter
    def dt_limits(self, limits: tuple[float, float]) -> None:
        self._dt_limits = check_limits("Mamba2", "dt_limits", limits)

    def state_shape(self):
        """Trailing axes of a state for each head."""
        return self.groups, self.heads_per_group, self.head_dim, self.state

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once, by `fast.ssd`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        z, xBC, dt, conv_state = self._project(x, partial(self.conv, reset=reset), cache.conv_state)
        X, V, log_a, B, C = self._operands(xBC, dt)
        Y, state = fast.ssd(*time_last(V, forget(log_a, reset), B, C), cache.state)
        Y = rearrange(Y, "... g h t p -> ... t g h p")
        return self._output(Y, X, z), RecurrentCache(conv_state, state)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `ssd_step`: the same work whatever came before; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        z, xBC, dt, conv_state = self._project(x, self.conv.step_unchecked, cache.conv_state)
        X, *operands = self._operands(xBC, dt)
        y, state = ssd_step(*operands, cache.state)
        return self._output(y, X, z), RecurrentCache(conv_state, state)

    def operands(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The operands of SSD for a sequence, as every form of `smalearn.ssd` takes them: to see what the block does.

        Args:
            x: (..., T, D), nothing before it.

        Returns:
            dt X (..., groups, heads of a group, T, P), log_a (..., groups, heads of a group, T), B and C
            (..., groups, 1, T, N).

        Raises:
            ShapeError: x does not fit the block.
            ValueError: dtype or device differ from the weights'.
        """
        self.check("operands", x)
        _, xBC, dt, _ = self._project(x, self.conv, self.start(*x.shape[:-2]).conv_state)
        return time_last(*self._operands(xBC, dt)[1:])

    def _project(self, x, convolve, conv_state):
        """z, xBC after the convolution, dt, and the next conv state; `convolve` is for all tokens or for one."""
        z, xBC, dt = self.in_proj(x).split(self.widths, -1)
        xBC, conv_state = convolve(xBC, conv_state)
        return z, xBC, dt, conv_state

    def _operands(self, xBC, dt):
        """X, and dt X, log_a, B, C, with or without an axis of time before the groups."""
        shared = self.groups * self.state  # channels of B, and of C
        X, B, C = functional.silu(xBC).split([self.inner, shared, shared], -1)
        X = rearrange(X, "... (g h p) -> ... g h p", g=self.groups, p=self.head_dim)
        B, C = (rearrange(part, "... (g n) -> ... g 1 n", g=self.groups) for part in (B, C))
        dt = functional.softplus(dt + self.dt_bias).clamp(*self.dt_limits)
        log_a = -exp_bounded(self.A_log) * dt
        dt, log_a = (rearrange(part, "... (g h) -> ... g h", g=self.groups) for part in (dt, log_a))
        return X, narrow(dt[..., None] * X, X), log_a, B, C

    def _output(self, Y, X, z):
        """The skip D X, the gated norm and the last projection."""
        Y = Y + rearrange(self.D, "(g h) -> g h 1", g=self.groups) * X
        return self.out_proj(self.norm(rearrange(narrow(Y, X), "... g h p -> ... (g h p)"), z))


def initial_dt_bias(count: int, shortest: float = 1e-3, longest: float = 0.1) -> torch.Tensor:
    """Biases b such that the steps softplus(b) are log-uniform between two lengths.

    A state that decays by exp(-dt) remembers about 1/dt tokens: 10 to 1000 of them; by exp(-A dt), A times fewer.

    Args:
        count: how many.
        shortest: the shortest step, above 0.
        longest: the longest.

    Returns:
        (count,) drawn with torch's global generator.

    Raises:
        TypeError: a length is not a number.
        ValueError: count is not an integer ≥ 1, or not 0 < shortest ≤ longest < ∞.

    Source:
        Gu et al. 2020 (HiPPO) for the range; b = dt + log(1 - e^(-dt)) inverts the softplus without overflow.
    """
    check_count("initial_dt_bias", "count", count)
    for name, value in (("shortest", shortest), ("longest", longest)):
        check_number("initial_dt_bias", name, value)
    if not 0 < shortest <= longest < math.inf:
        raise ValueError(f"initial_dt_bias: steps need 0 < shortest ≤ longest, got {shortest} and {longest}")
    dt = torch.empty(count).uniform_(math.log(shortest), math.log(longest)).exp()
    return dt + torch.log(-torch.expm1(-dt))


def time_last(X, log_a, B, C):
    """Views of (..., T, groups, heads, ·) in the layout of SSD, (..., groups, heads, T, ·)."""
    X, B, C = (rearrange(part, "... t g h n -> ... g h t n") for part in (X, B, C))
    return X, rearrange(log_a, "... t g h -> ... g h t"), B, C
