"""Linear attention, and a short convolution alone, as mixers."""

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.linear_attention import linear_attention_step
from smalearn.models.layers import CausalConvolution, RMSNorm, divide
from smalearn.models.mixer import RecurrentCache, RecurrentMixer, forget


class LinearAttention(RecurrentMixer):
    """Causal linear attention without decay: the Mamba-2 block less its gates, decay, skip, and shared keys.

        [Q, K, V] = SiLU(conv(x W_in))
        H_t       = H_(t-1) + V_t K_t^T,   Y_t = H_t Q_t        each head
        y         = norm(Y) W_out                               in place of the normaliser

    Args:
        dim: D, size of a token.
        state: N, size of a head's queries and keys.
        head_dim: P, size of its values.
        expand: the values of all heads have expand·D channels.
        conv_len: K, tokens that the convolution sees.

    Raises:
        ValueError: head_dim does not divide expand·dim.

    Cost:
        Per token D·heads·(2·N + P) + expand·D² multiply-adds for the projections, and those of `fast.linear_attention`.
        The cache has expand·D·N entries, and K - 1 tokens of the convolution.

    Source:
        Katharopoulos et al. 2020; Qin et al. 2022 ("The devil in linear transformer") for the norm.
    """

    def __init__(self, dim: int, state: int = 64, head_dim: int = 64, expand: int = 1, conv_len: int = 4):
        super().__init__()
        inner = check_count("LinearAttention", "expand", expand) * check_count("LinearAttention", "dim", dim)
        self.heads = divide("LinearAttention", "expand·dim", inner, "head_dim", head_dim)
        self.dim, self.state, self.head_dim = dim, check_count("LinearAttention", "state", state), head_dim
        self.widths = [self.heads * state, self.heads * state, inner]
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.widths), conv_len)
        self.norm = RMSNorm(inner, eps=1e-5)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def state_shape(self):
        """Trailing axes of a state for each head."""
        return self.heads, self.head_dim, self.state

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once, by `fast.linear_attention`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        x, conv_state = self.conv(self.in_proj(x), cache.conv_state, reset)
        Q, K, V = (rearrange(part, "... t h n -> ... h t n") for part in self._heads(x))
        log_a = None if reset is None else forget(x.new_zeros(*x.shape[:-1], 1, 1), reset)[..., 0].mT
        Y, state = fast.linear_attention(Q, K, V, log_a, cache.state)
        return self._output(rearrange(Y, "... h t p -> ... t h p")), RecurrentCache(conv_state, state)

    def step(self, x: torch.Tensor, cache: RecurrentCache) -> tuple[torch.Tensor, RecurrentCache]:
        """Read one token, by `linear_attention_step`; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        x, conv_state = self.conv.step_unchecked(self.in_proj(x), cache.conv_state)
        y, state = linear_attention_step(*self._heads(x), None, cache.state)
        return self._output(y), RecurrentCache(conv_state, state)

    def _heads(self, x):
        """Q, K and V (..., heads, ·), with or without an axis of time before the heads."""
        parts = functional.silu(x).split(self.widths, -1)
        return [rearrange(part, "... (h n) -> ... h n", h=self.heads) for part in parts]

    def _output(self, Y):
        """The norm over all heads and the last projection."""
        return self.out_proj(self.norm(rearrange(Y, "... h p -> ... (h p)")))


class ShortConvolution(RecurrentMixer):
    """`CausalConvolution` as a mixer: it mixes each token with the few before it, for an attention block after it.

    The other recurrent mixers have one inside. Softmax attention can do without, with positions and one more block,
    but then takes much longer to learn to look one token back.

    Args:
        dim: D, size of a token.
        conv_len: K, how many tokens it sees.

    Raises:
        ValueError: a size is not an integer ≥ 1.

    Cost:
        K·D multiply-adds per token; the cache has K - 1 tokens.

    Source:
        Arora et al. 2023 (Zoology), whose attention models begin with such a block.
    """

    def __init__(self, dim: int, conv_len: int = 4):
        super().__init__()
        for name, size in (("dim", dim), ("conv_len", conv_len)):
            check_count("ShortConvolution", name, size)
        self.dim, self.conv = dim, CausalConvolution(dim, conv_len)

    def state_shape(self):
        """No state besides that of the convolution."""
        return (0,)

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        y, conv_state = self.conv(x, cache.conv_state, reset)
        return y, RecurrentCache(conv_state, cache.state)
