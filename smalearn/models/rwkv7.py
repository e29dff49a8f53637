"""RWKV-7's time mixing: three keys, from token shifts in the place of a convolution."""

import math

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.linear_attention import DELTA_MODELS, generalized_delta_rule_step
from smalearn.models.layers import WideLinear, divide, narrow
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, weights_of


class RWKV7(RecurrentMixer):
    """RWKV-7's time mixing as a mixer.

        x_c      = x_t + μ_c ∘ (x_(t-1) - x_t)                 a token shift each for c = R, K, V, w, a, g
        R, K, V  = x_R W_R, x_K W_K, x_V W_V
        w        = exp(-e^(-1/2) sigmoid(tanh(x_w A_w) B_w + c_w))         the decay of a key feature
        a        = sigmoid(x_a A_a B_a + c_a)                              how much of it is erased
        κ, K'    = ξ ∘ K with norm 1 in every head,  K ∘ (1 + (a - 1) ∘ α)
        Y        = generalized_delta_rule(R, K', V, read = κ / w, erase = a ∘ κ, log w)
        y        = ((norm(Y) + (R · ρ ∘ K') V) ∘ (sigmoid(x_g A_g) B_g)) W_out     R · K' of each head

    K' and the key that reads, before the decay, are those of `DELTA_MODELS["RWKV-7"]`. From the second layer of a model
    on the paper mixes V with the first layer's, which no mixer sees: that is left out.

    Args:
        dim: D, size of a token; R, K and V of all heads have as many channels.
        head_dim: N = P, size of a head.
        rank: of the matrices A and B.

    Raises:
        ValueError: head_dim does not divide dim, or a size is not an integer ≥ 1.

    Cost:
        Per token 4·D² + 6·D·rank multiply-adds for the projections, and those of `fast.generalized_delta_rule` with
        `erase` and a gate per key feature. The cache has D·head_dim entries, and one token.

    Source:
        Peng et al. 2025 (RWKV-7), section 4. Initial values are ours, in the range of the paper's.
    """

    makes_decays = True
    varies = False  # the loop over chunks is written out

    def __init__(self, dim: int, head_dim: int = 64, rank: int = 32):
        super().__init__()
        self.heads = divide("RWKV7", "dim", dim, "head_dim", head_dim)
        check_count("RWKV7", "rank", rank)
        self.dim = dim
        self.head_dim = head_dim
        self.shift = nn.Parameter(torch.full((6, dim), 0.5))  # of R, K, V, w, a, g
        self.R_proj, self.K_proj, self.V_proj = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.w_low_proj, self.a_low_proj, self.g_low_proj = (nn.Linear(dim, rank, bias=False) for _ in range(3))
        self.w_proj, self.a_proj = (WideLinear(rank, dim) for _ in range(2))
        self.g_proj = nn.Linear(rank, dim, bias=False)
        self.w_proj.bias.data = torch.linspace(-5.5, 0.5, head_dim).repeat(self.heads)  # slow features and fast ones
        self.key = nn.Parameter(torch.full((self.heads, 1, head_dim), 0.85))  # ξ
        self.mix = nn.Parameter(torch.ones(self.heads, 1, head_dim))  # α
        self.bonus = nn.Parameter(torch.zeros(self.heads, 1, head_dim))  # ρ
        self.norm_weight = nn.Parameter(torch.ones(dim))
        self.norm_bias = nn.Parameter(torch.zeros(dim))
        self.out_proj = nn.Linear(dim, dim, bias=False)

    @property
    def weights(self):
        """A tensor whose dtype and device tokens have; see `weights_of`."""
        return weights_of(self.R_proj, self)

    def cache_shapes(self):
        """Trailing axes of each tensor of a cache."""
        return {"conv_state": (1, self.dim), "state": (self.heads, self.head_dim, self.head_dim)}

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once, by `fast.generalized_delta_rule`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        return self._read(x, cache, fast.generalized_delta_rule, reset)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `generalized_delta_rule_step`: the same work whatever came before; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        y, cache = self._read(x[..., None, :], cache, _rule_of_one)
        return y[..., 0, :], cache

    def _read(self, x, cache, rule, reset=None):
        """Outputs for x (..., T, D), by a form of the rule, and the cache after it."""
        tokens = torch.cat([cache.conv_state.to(x.dtype), x], -2)
        previous = tokens[..., :-1, :]
        if reset is not None:
            previous = previous.masked_fill(reset[..., None], 0)
        R, K, V, w, a, gate = self._project(x, previous - x)
        keys = DELTA_MODELS["RWKV-7"].keys(R, K, V, w, a, self.key, self.mix)
        if reset is not None:
            keys = keys._replace(log_a=keys.log_a.masked_fill(reset[..., None, :, None], -math.inf))
        K = narrow(keys.K, x)
        Y, state = rule(*keys._replace(K=K), cache.state)
        own = (R * self.bonus * K).sum(-1, keepdim=True) * V
        Y = self._norm(Y) + rearrange(own, "... h t p -> ... t (h p)")
        return self.out_proj(narrow(Y * gate, x)), RecurrentCache(tokens[..., -1:, :].clone(), state)

    def _project(self, x, difference):
        """R, K, V and the logits of w and a, (..., heads, T, N), and the output's gate (..., T, D)."""
        x_R, x_K, x_V, x_w, x_a, x_g = (narrow(x + mu * difference, x) for mu in self.shift)
        w = self.w_proj(self.w_low_proj(x_w).tanh())
        a = self.a_proj(self.a_low_proj(x_a))
        parts = self.R_proj(x_R), self.K_proj(x_K), self.V_proj(x_V), w, a
        gate = self.g_proj(self.g_low_proj(x_g).sigmoid())
        return *(rearrange(part, "... t (h n) -> ... h t n", h=self.heads) for part in parts), gate

    def _norm(self, Y):
        """Mean 0 and variance 1 in every head (..., heads, T, P), then weights and biases, (..., T, D)."""
        Y = functional.layer_norm(Y, Y.shape[-1:], eps=1e-5 * self.head_dim)
        return self.norm_weight * rearrange(Y, "... h t p -> ... t (h p)") + self.norm_bias


def _rule_of_one(*operands):
    """The rule for an axis of time of one token; the state is the last operand."""
    y, state = generalized_delta_rule_step(*(x[..., 0, :] for x in operands[:-1]), operands[-1])
    return y[..., None, :], state
