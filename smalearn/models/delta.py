"""Gated DeltaNet: the delta rule with a decay, behind the projections and the short convolution of Mamba-2."""

from functools import partial

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.linear_attention import delta_rule_step, l2norm
from smalearn.linear_attention.gates import exp_bounded
from smalearn.models.layers import CausalConvolution, RMSNorm, divide
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, forget

__all__ = ["GatedDeltaNet"]


class GatedDeltaNet(RecurrentMixer):
    """The gated delta rule as a mixer, as Qwen3-Next has it.

        [z, QKV, b, a] = x W_in
        [Q, K, V]      = SiLU(conv(QKV))              a causal convolution without bias
        Q, K           = l2norm(Q) / √N, l2norm(K)    keys of norm 1
        beta           = sigmoid(b)
        log_a          = -exp(A_log) softplus(a + dt_bias)
        Y              = delta_rule(Q, K, V, beta, log_a)
        y              = (norm(Y) · SiLU(z)) W_out    the norm of each head, before its gate

    The value heads of a group share queries and keys, by an axis of size 1.

    Args:
        dim: D, size of a token.
        state: N, size of a head's queries and keys.
        head_dim: P, size of its values.
        expand: the values of all heads have expand·D channels.
        groups: how many pairs of queries and keys there are; as many as heads if None.
        conv_len: K, tokens that the convolution sees.

    Raises:
        ValueError: head_dim does not divide expand·dim, or groups the number of heads.

    Cost:
        Per token D·(3·expand·D + 2·groups·N + 2·heads) multiply-adds for the projections, and those of
        `fast.delta_rule`. The cache has expand·D·N entries, and K - 1 tokens of the convolution.

    Source:
        Yang, Kautz and Hatamizadeh 2024 (Gated DeltaNet), section 3.4; the order of norm and gate is Qwen3-Next's.
    """

    makes_decays = True

    def __init__(
        self,
        dim: int,
        state: int = 64,
        head_dim: int = 64,
        expand: int = 1,
        groups: int | None = None,
        conv_len: int = 4,
    ):
        super().__init__()
        for name, size in (("dim", dim), ("state", state), ("expand", expand)):
            check_count("GatedDeltaNet", name, size)
        inner = expand * dim
        heads = divide("GatedDeltaNet", "expand·dim", inner, "head_dim", head_dim)
        self.dim = dim
        self.state = state
        self.head_dim = head_dim
        self.groups = heads if groups is None else groups
        self.heads_per_group = divide("GatedDeltaNet", "number of heads", heads, "groups", self.groups)

        self.parts = [self.groups * state, self.groups * state, inner]  # of Q, K and V
        self.widths = [inner, sum(self.parts), heads, heads]  # of z, QKV, b and a
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.parts), conv_len, bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.norm = RMSNorm(head_dim, eps=1e-6)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def state_shape(self):
        """Trailing axes of a state for each head."""
        return self.groups, self.heads_per_group, self.head_dim, self.state

    def prefill(
        self, x: torch.Tensor, cache: RecurrentCache, reset: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, RecurrentCache]:
        """Read all tokens at once, by `fast.delta_rule`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        z, QKV, b, a, conv_state = self._project(x, partial(self.conv, reset=reset), cache.conv_state)
        Q, K, V, beta, log_a = self._operands(QKV, b, a)
        Q, K, V = (rearrange(part, "... t g h n -> ... g h t n") for part in (Q, K, V))
        beta, log_a = (rearrange(part, "... t g h -> ... g h t") for part in (beta, forget(log_a, reset)))
        Y, state = fast.delta_rule(Q, K, V, beta, log_a, cache.state)
        Y = rearrange(Y, "... g h t p -> ... t (g h) p")
        return self._output(Y, z), RecurrentCache(conv_state, state)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `delta_rule_step`: the same work whatever came before; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        z, QKV, b, a, conv_state = self._project(x, self.conv.step_unchecked, cache.conv_state)
        y, state = delta_rule_step(*self._operands(QKV, b, a), cache.state)
        y = rearrange(y, "... g h p -> ... (g h) p")
        return self._output(y, z), RecurrentCache(conv_state, state)

    def _project(self, x, convolve, conv_state):
        """z, QKV after the convolution, b, a, and the next conv state; `convolve` is for all tokens or for one."""
        z, QKV, b, a = self.in_proj(x).split(self.widths, -1)
        QKV, conv_state = convolve(QKV, conv_state)
        return z, QKV, b, a, conv_state

    def _operands(self, QKV, b, a):
        """Q, K (..., groups, 1, N), V (..., groups, heads, P), beta and log_a, with or without time before them."""
        Q, K, V = functional.silu(QKV).split(self.parts, -1)
        Q, K = (l2norm(rearrange(part, "... (g n) -> ... g 1 n", g=self.groups)) for part in (Q, K))
        V = rearrange(V, "... (g h p) -> ... g h p", g=self.groups, p=self.head_dim)
        beta = b.sigmoid().to(Q.dtype)
        log_a = -exp_bounded(self.A_log) * functional.softplus(a + self.dt_bias)
        beta, log_a = (rearrange(part, "... (g h) -> ... g h", g=self.groups) for part in (beta, log_a))
        return Q * self.state**-0.5, K, V, beta, log_a

    def _output(self, Y, z):
        """The norm of every head, its gate, and the last projection."""
        gate = functional.silu(rearrange(z, "... (h p) -> ... h p", p=self.head_dim))
        return self.out_proj(rearrange(self.norm(Y) * gate, "... h p -> ... (h p)"))
