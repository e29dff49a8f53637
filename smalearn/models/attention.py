"""The other mixers: linear attention with a state, softmax attention with a growing cache, a convolution alone."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.kernel_attention import softmax_attention
from smalearn.linear_attention import linear_attention_step
from smalearn.models.mixer import CausalConvolution, Mixer, divide

__all__ = [
    "ConvolutionCache",
    "KeyValueCache",
    "LinearAttention",
    "LinearAttentionCache",
    "ShortConvolution",
    "SoftmaxAttention",
]


class LinearAttentionCache(NamedTuple):
    """What linear attention remembers: the last inputs (..., K - 1, channels) of its convolution, its state."""

    window: torch.Tensor
    state: torch.Tensor


class LinearAttention(Mixer):
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

    Cache = LinearAttentionCache

    def __init__(self, dim: int, state: int = 64, head_dim: int = 64, expand: int = 1, conv_len: int = 4):
        super().__init__()
        inner = check_count("LinearAttention", "expand", expand) * check_count("LinearAttention", "dim", dim)
        self.heads = divide("LinearAttention", "expand·dim", inner, "head_dim", head_dim)
        self.dim, self.state, self.head_dim = dim, check_count("LinearAttention", "state", state), head_dim
        self.widths = [self.heads * state, self.heads * state, inner]
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.widths), conv_len)
        self.norm = nn.RMSNorm(inner, eps=1e-5)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def cache_shapes(self):
        """A window of the convolution, and a state for every head."""
        channels, _, length = self.conv.weight.shape
        return {"window": (length - 1, channels), "state": (self.heads, self.head_dim, self.state)}

    def prefill(self, x: torch.Tensor, cache: LinearAttentionCache) -> tuple[torch.Tensor, LinearAttentionCache]:
        """All tokens at once, by `fast.linear_attention`; the contract is that of `Mamba2.prefill`."""
        self.check("prefill", x, cache)
        x, window = self.conv.prefill(self.in_proj(x), cache.window)
        Q, K, V = (y.movedim(-3, -2) for y in self._heads(x))
        Y, state = fast.linear_attention(Q, K, V, None, cache.state)
        return self._output(Y.movedim(-2, -3)), LinearAttentionCache(window, state)

    def step(self, x: torch.Tensor, cache: LinearAttentionCache) -> tuple[torch.Tensor, LinearAttentionCache]:
        """One token, by `linear_attention_step`; the contract is that of `Mamba2.step`."""
        self.check("step", x, cache, time="")
        x, window = self.conv.step(self.in_proj(x), cache.window)
        y, state = linear_attention_step(*self._heads(x), None, cache.state)
        return self._output(y), LinearAttentionCache(window, state)

    def _heads(self, x):
        """Q, K and V (..., heads, ·), with or without an axis of time before the heads."""
        return [y.unflatten(-1, (self.heads, -1)) for y in functional.silu(x).split(self.widths, -1)]

    def _output(self, Y):
        """All heads beside each other, the norm and the last projection."""
        return self.out_proj(self.norm(Y.flatten(-2)))


class KeyValueCache(NamedTuple):
    """What softmax attention remembers: everything. Keys and values (..., heads, S, P) of all S tokens so far."""

    K: torch.Tensor
    V: torch.Tensor


class SoftmaxAttention(Mixer):
    """Causal softmax attention with several heads: Y = softmax(Q K^T / √P) V, masked, for each head.

    It knows no positions: `SequenceModel` adds them to the tokens.

    Args:
        dim: D, size of a token.
        heads: how many.

    Raises:
        ValueError: heads does not divide dim.

    Cost:
        4·D² multiply-adds per token for the projections, and those of `softmax_attention`; the cache has 2·D entries
        for every token so far.

    Source:
        Vaswani et al. 2017.
    """

    Cache = KeyValueCache

    def __init__(self, dim: int, heads: int = 1):
        super().__init__()
        self.head_dim = divide("SoftmaxAttention", "dim", dim, "heads", heads)
        self.dim, self.heads = dim, heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def cache_shapes(self):
        """Keys and values of all tokens."""
        return dict.fromkeys(("K", "V"), (self.heads, None, self.head_dim))

    def prefill(self, x: torch.Tensor, cache: KeyValueCache) -> tuple[torch.Tensor, KeyValueCache]:
        """All tokens at once, by `softmax_attention`; the contract is that of `Mamba2.prefill`."""
        self.check("prefill", x, cache)
        heads = self.in_proj(x).unflatten(-1, (3 * self.heads, self.head_dim)).movedim(-3, -2)
        Q, K, V = heads.chunk(3, -3)
        K, V = (torch.cat([past.to(x.dtype), new], -2) for past, new in ((cache.K, K), (cache.V, V)))
        past = K.shape[-2] - x.shape[-2]
        L = x.new_ones(x.shape[-2], K.shape[-2]).tril(past)  # token t of x has seen the past, and x up to t
        Y = softmax_attention(Q * self.head_dim**-0.5, K, V, L)
        return self.out_proj(Y.movedim(-2, -3).flatten(-2)), KeyValueCache(K, V)


class ConvolutionCache(NamedTuple):
    """What a convolution remembers: its last inputs (..., K - 1, D)."""

    window: torch.Tensor


class ShortConvolution(Mixer):
    """`CausalConvolution` as a mixer: it puts the tokens just before beside a token, for an attention block after it.

    The other mixers here have one inside. Softmax attention can do without, with positions and a block more, but it
    then takes much longer to learn to look one token back.

    Args:
        dim: D, size of a token.
        conv_len: K, how many tokens it sees.

    Raises:
        ValueError: conv_len is no integer ≥ 1.

    Cost:
        K·D multiply-adds per token; the cache has K - 1 tokens.

    Source:
        Arora et al. 2023 (Zoology), whose attention models begin with such a block.
    """

    Cache = ConvolutionCache

    def __init__(self, dim: int, conv_len: int = 4):
        super().__init__()
        self.dim, self.conv = dim, CausalConvolution(dim, conv_len)

    def cache_shapes(self):
        """A window."""
        return {"window": (self.conv.weight.shape[-1] - 1, self.dim)}

    def prefill(self, x: torch.Tensor, cache: ConvolutionCache) -> tuple[torch.Tensor, ConvolutionCache]:
        """All tokens at once; the contract is that of `Mamba2.prefill`."""
        self.check("prefill", x, cache)
        y, window = self.conv.prefill(x, cache.window)
        return y, ConvolutionCache(window)
