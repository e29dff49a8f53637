"""Gated DeltaNet, first and second: delta rules with decays behind the projections and the convolution of Mamba-2."""

from functools import partial

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.linear_attention import delta_rule_step, generalized_delta_rule_step, l2norm
from smalearn.linear_attention.gates import exp_bounded
from smalearn.models.layers import CausalConvolution, RMSNorm, WideLinear, divide, narrow
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, forget


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
    eps = 1e-6  # of the norm

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
        mixer = type(self).__name__
        for name, size in (("dim", dim), ("state", state), ("expand", expand)):
            check_count(mixer, name, size)
        inner = expand * dim
        heads = divide(mixer, "expand·dim", inner, "head_dim", head_dim)
        self.dim = dim
        self.state = state
        self.head_dim = head_dim
        self.groups = heads if groups is None else groups
        self.heads_per_group = divide(mixer, "number of heads", heads, "groups", self.groups)

        self.parts = [self.groups * state, self.groups * state, inner]  # of Q, K and V
        self.widths = self._widths(inner, heads)
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.parts), conv_len, bias=False)
        self._make_gates(inner, heads)
        self.norm = RMSNorm(head_dim, eps=self.eps)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def _widths(self, inner, heads):
        """Sizes of z, QKV, b and a."""
        return [inner, sum(self.parts), heads, heads]

    def _make_gates(self, inner, heads):
        """Parameters of the decays."""
        self.dt_bias = nn.Parameter(initial_dt_bias(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())

    def state_shape(self):
        """Trailing axes of a state for each head."""
        return self.groups, self.heads_per_group, self.head_dim, self.state

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once, by `fast.delta_rule`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        z, QKV, gates, conv_state = self._project(x, partial(self.conv, reset=reset), cache.conv_state)
        operands = self._operands(QKV, *gates, reset=reset)
        Y, state = self._rule(*(part.movedim(x.ndim - 2, x.ndim) for part in operands), cache.state)
        Y = rearrange(Y, "... g h t p -> ... t (g h) p")
        return self._output(Y, z), RecurrentCache(conv_state, state)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `delta_rule_step`: the same work whatever came before; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        z, QKV, gates, conv_state = self._project(x, self.conv.step_unchecked, cache.conv_state)
        y, state = self._rule_step(*self._operands(QKV, *gates), cache.state)
        y = rearrange(y, "... g h p -> ... (g h) p")
        return self._output(y, z), RecurrentCache(conv_state, state)

    def _project(self, x, convolve, conv_state):
        """z, QKV after the convolution, the gates, and the next conv state; `convolve` is for all tokens or for one."""
        z, QKV, *gates = self.in_proj(x).split(self.widths, -1)
        QKV, conv_state = convolve(QKV, conv_state)
        return z, QKV, gates, conv_state

    def _of_memory(self, QKV):
        """Q, K (..., groups, 1, N), V (..., groups, heads, P), with or without time before them."""
        Q, K, V = functional.silu(QKV).split(self.parts, -1)
        Q, K = (l2norm(rearrange(part, "... (g n) -> ... g 1 n", g=self.groups)) for part in (Q, K))
        return Q * self.state**-0.5, K, rearrange(V, "... (g h p) -> ... g h p", g=self.groups, p=self.head_dim)

    def _operands(self, QKV, b, a, reset=None):
        """What `_rule` takes, but for the state, with time before groups and heads, or without."""
        Q, K, V = self._of_memory(QKV)
        beta = b.sigmoid().to(Q.dtype)
        log_a = -exp_bounded(self.A_log) * functional.softplus(a + self.dt_bias)
        beta, log_a = (rearrange(part, "... (g h) -> ... g h", g=self.groups) for part in (beta, log_a))
        return Q, K, V, beta, forget(log_a, reset)

    def _rule(self, *operands):
        """All tokens, by groups and heads."""
        return fast.delta_rule(*operands)

    def _rule_step(self, *operands):
        """One token."""
        return delta_rule_step(*operands)

    def _gate(self, z):
        """What the normed outputs (..., heads·P) are multiplied by."""
        return functional.silu(z)

    def _output(self, Y, z):
        """The norm of every head, its gate, and the last projection."""
        gate = rearrange(self._gate(z), "... (h p) -> ... h p", p=self.head_dim)
        return self.out_proj(rearrange(self.norm(Y) * gate, "... h p -> ... (h p)"))


class GatedDeltaNet2(GatedDeltaNet):
    """Gated DeltaNet 2 as a mixer: what is erased and what is written have gates of their own, per feature.

        [z, QKV, b, w, a] = x W_in                            z and a of head_dim numbers only
        Q, K, V           = those of `GatedDeltaNet`
        log_a             = -exp(A_log) softplus(a W_a + dt_bias)       one per key feature
        Y                 = generalized_delta_rule(Q, K, sigmoid(w) ∘ V, read = sigmoid(b) ∘ K, log_a)
        y                 = (norm(Y) · sigmoid(z W_z + c)) W_out

    Arguments and errors are those of `GatedDeltaNet`.

    Cost:
        Per token D·(2·expand·D + 4·groups·N + 2·P) + P·(expand·D + groups·N) multiply-adds for the projections, and
        those of `fast.generalized_delta_rule` with a gate per key feature. The cache is that of `GatedDeltaNet`.

    Source:
        Gated DeltaNet-2, 2026 (arXiv 2605.22791); the order of norm and gate, the low rank of z and a and their
        initial values are those of its layer in flash-linear-attention.
    """

    varies = False  # the loop over chunks is written out
    eps = 1e-5

    def _widths(self, inner, heads):
        """Sizes of z, QKV, b, w and a."""
        return [self.head_dim, sum(self.parts), self.parts[0], inner, self.head_dim]

    def _make_gates(self, inner, heads):
        """Parameters of the decays, and what widens z and a."""
        self.gate_proj = WideLinear(self.head_dim, inner)
        self.decay_proj = nn.Linear(self.head_dim, self.parts[0], bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(self.parts[0]))
        self.A_log = nn.Parameter(torch.empty(self.groups).uniform_(1, 16).log())

    def _operands(self, QKV, b, w, a, reset=None):
        """Q, K, sigmoid(w) ∘ V, sigmoid(b) ∘ K and log_a (..., groups, 1, N)."""
        Q, K, V = self._of_memory(QKV)
        rate = rearrange(functional.softplus(self.decay_proj(a) + self.dt_bias), "... (g n) -> ... g n", g=self.groups)
        log_a = forget(-exp_bounded(self.A_log)[:, None] * rate, reset)
        erased = rearrange(b.sigmoid(), "... (g n) -> ... g 1 n", g=self.groups)
        written = w.sigmoid().unflatten(-1, V.shape[-3:])
        return Q, K, written * V, erased * K, log_a[..., None, :]

    def _rule(self, Q, K, V, read, log_a, state):
        """All tokens, by groups and heads."""
        return fast.generalized_delta_rule(Q, K, V, read, None, log_a, state)

    def _rule_step(self, q, k, v, read, log_a, state):
        """One token."""
        return generalized_delta_rule_step(q, k, v, read, None, log_a, state)

    def _gate(self, z):
        """What the normed outputs (..., heads·P) are multiplied by."""
        return narrow(self.gate_proj(z).sigmoid(), z)
