"""Softmax attention as a mixer: to all tokens, by levels or in a window; with RoPE and grouped KV heads.

The attention is PyTorch's, or that of `smalearn.fast` and `smalearn.multilevel`; all caches are those of the latter.
"""

from collections.abc import Sequence

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn._checks import ShapeError, check_count, check_counts, check_type
from smalearn.fast import multilevel_attention
from smalearn.models.layers import divide
from smalearn.models.mixer import Mixer, given
from smalearn.multilevel.cache import FullCache, KeyCache, WindowCache
from smalearn.multilevel.levels import check_levels, halving_blocks
from smalearn.multilevel.rope import check_pairs, rope_levels
from smalearn.multilevel.texts import text_starts
from smalearn.multilevel.window import window_attention


class GroupedAttention(Mixer):
    """Causal softmax attention with grouped KV heads: the base class of all mixers in this module.

        [Q, K, V] = x W_in                      query heads of Q, fewer KV heads of K and V
        Q, K      = rope(Q), rope(K)            each level alone, if `rope`
        Y         = attention(scales·Q, K, V)   each query head, with the KV head of its group
        y         = Y W_out

    A subclass has `attend`, all tokens at once, and `start`, a cache of `smalearn.multilevel`. Its context counts all
    tokens of a row, padding and earlier texts too. `scales` are factors
    of the levels' scores, 1/√(head_dim) for each: so one level is standard attention, and a split of it differs in
    nothing but the scores it leaves out. Set the attribute for something else: the published code has 1/r_l.

    Args:
        dim: D, size of a token.
        heads: number of query heads.
        ranks: features of each level of a head; their sum is D / heads, as the subclass checks.
        groups: number of KV heads, each for a group of query heads; as many as heads if None.
        rope: whether queries and keys are rotated by their positions; then every rank is even.
        context: the longest sequence; None for no limit.

    Raises:
        ValueError: heads does not divide dim, groups does not divide heads, or the ranks do not fit.

    Source:
        Ainslie et al. 2023 (GQA); Su et al. 2021 (RoPE); Kuang et al. 2025, section 3.4, for both with levels.
    """

    def __init__(self, dim: int, heads: int, ranks: Sequence[int], groups: int | None, rope: bool, context: int | None):
        super().__init__()
        name = type(self).__name__
        check_type(name, "rope", rope, bool)
        if context is not None:
            check_count(name, "context", context)
        check_counts(name, "ranks", ranks, 0)
        self.dim, self.heads, self.rope, self.context = dim, heads, rope, context
        self.head_dim = divide(name, "dim", dim, "heads", heads)
        self.groups = heads if groups is None else groups
        divide(name, "heads", heads, "groups", self.groups)
        if rope:
            check_pairs(name, ranks)
        self.ranks, self.scales = ranks, (self.head_dim**-0.5,) * len(ranks)
        self.widths = [dim, *[self.groups * self.head_dim] * 2]
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def attend(
        self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, since: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the attention of all tokens at once.

        Args:
            Q: (..., groups, heads of a group, T, N) queries, scaled.
            K: (..., groups, 1, T, N) keys.
            V: (..., groups, 1, T, P) values.
            since: (..., 1, 1, T) number of the first key that each query sees; 0 if None.

        Returns:
            (..., groups, heads of a group, T, P).
        """
        raise NotImplementedError

    def operands(self, x: torch.Tensor, past: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Q, K and V as `attend` takes them, to look inside.

        Args:
            x: (..., T, D).
            past: how many tokens come before.

        Returns:
            Q (..., groups, heads of a group, T, N), scaled and rotated; K and V (..., groups, 1, T, N), K rotated.

        Raises:
            ShapeError: x does not fit the block.
            ValueError: dtype or device differ from the weights'.
        """
        self.check("operands", x)
        qkv = self.in_proj(x).split(self.widths, -1)
        Q, K, V = (rearrange(x, "... t (g h n) -> ... g h t n", g=self.groups, n=self.head_dim) for x in qkv)
        Q = torch.cat([scale * q for scale, q in zip(self.scales, Q.split(self.ranks, -1), strict=True)], -1)
        if self.rope:
            positions = torch.arange(past, past + x.shape[-2], device=x.device)
            Q, K = (rope_levels(x, self.ranks, positions) for x in (Q, K))
        return Q, K, V

    def forward(self, x: torch.Tensor, reset: torch.Tensor | None = None) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D), nothing before it; no cache is made; see `Mixer.forward`.

        Raises:
            ShapeError: x does not fit the block, or has more tokens than its context, or reset does not fit x.
            ValueError: dtype or device differ from the weights', or the mixer takes no reset.
        """
        self.check("forward", x, reset=reset)
        return self._output(self.attend(*self.operands(x), *_since(reset)))

    def prefill(self, x: torch.Tensor, cache: KeyCache | WindowCache, reset: torch.Tensor | None = None):
        """Read all tokens: at once where they are the first, else by the cache; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        Q, K, V = self.operands(x, cache.length)
        per_head = None if reset is None else reset[..., None, None, :]
        if cache.length:
            Y, cache = cache.read(Q, K, V, per_head)
        else:
            Y, cache = self.attend(Q, K, V, *_since(reset)), cache.append(K, V, per_head)
        return self._output(Y), cache

    def check_cache(self, function: str, cache: KeyCache | WindowCache, leading: tuple[int, ...]) -> None:
        """Check that it is a cache with a KV head for each group."""
        check_type(function, "cache", cache, KeyCache, WindowCache)
        expected = (*leading, self.groups, 1)
        if cache.leading != expected:
            raise ShapeError(f"{function}: cache has leading axes {cache.leading}, expected {expected}")

    def _output(self, Y):
        """The last projection, of all heads."""
        return self.out_proj(rearrange(Y, "... g h t p -> ... t (g h p)"))


class SoftmaxAttention(GroupedAttention):
    """Standard attention: every token sees itself and all before it.

        Y = softmax(Q K^T / √P + causal mask) V, for each query head

    Without RoPE it knows no positions: `SequenceModel` adds them to the tokens. Without limit of the context the cache
    grows. Arguments and errors are those of `GroupedAttention`, with one level of D / heads features, an even number if
    there is RoPE.

    Cost:
        2·D²·(1 + groups / heads) multiply-adds per token for the projections, and T²·D in each of the two products of
        attention. The cache, a `FullCache`, has 2·D·groups / heads numbers for each token.

    Source:
        Vaswani et al. 2017.
    """

    def __init__(
        self, dim: int, heads: int = 1, context: int | None = None, groups: int | None = None, rope: bool = False
    ):
        features = divide("SoftmaxAttention", "dim", dim, "heads", heads)
        super().__init__(dim, heads, (features,), groups, rope, context)

    def attend(self, Q, K, V, since=None):
        """Compute the attention of all tokens by PyTorch's fused form; operands as in `GroupedAttention.attend`.

        A NaN or infinity in V may reach all outputs, also those before it. With `since` there is a mask of T² bytes.
        """
        Q, K, V = (rearrange(x, "... g h t n -> ... (g h) t n") for x in (Q, K, V))
        seen, shared = None, self.groups < self.heads
        if since is not None:
            numbers = torch.arange(since.shape[-1], device=since.device)
            seen = (numbers <= numbers[:, None]) & (numbers >= since[..., 0, :, None])
        causal = since is None
        Y = functional.scaled_dot_product_attention(Q, K, V, seen, is_causal=causal, scale=1.0, enable_gqa=shared)
        return rearrange(Y, "... (g h) t p -> ... g h t p", g=self.groups)

    def start(self, *leading: int) -> FullCache:
        """The cache before the first token, in the dtype of the weights."""
        return FullCache((*leading, self.groups, 1), self.head_dim, self.context, self.head_dim, self.weights)


class MultiLevelAttention(GroupedAttention):
    """Multi-level attention as a mixer: near tokens, which share small blocks, compare more features than far ones.

    Arguments and errors are those of `GroupedAttention`, with ranks such as (8, 4, 4), each level rotated alone with
    RoPE. The context is the longest sequence, which the levels halve; or the block lengths of all levels themselves,
    which have to fit the ranks.

    Cost:
        2·D²·(1 + groups / heads) multiply-adds per token for the projections, and those of `multilevel_attention`. The
        cache is a `KeyCache` for each group.

    Source:
        Kuang et al. 2025, section 3.4.
    """

    no_reset = "its blocks are counted from the first token of a row, not from that of a text"

    def __init__(
        self,
        dim: int,
        heads: int,
        ranks: Sequence[int],
        context: int | Sequence[int],
        groups: int | None = None,
        rope: bool = False,
    ):
        name = type(self).__name__
        features = divide(name, "dim", dim, "heads", heads)
        check_counts(name, "ranks", ranks, 0)
        check_type(name, "context", context, int, Sequence)
        block_lens = halving_blocks(context, len(ranks)) if isinstance(context, int) else context
        ranks, block_lens = check_levels(name, ranks, block_lens, features)
        super().__init__(dim, heads, ranks, groups, rope, context if isinstance(context, int) else block_lens[0])
        self.block_lens = block_lens

    def attend(self, Q, K, V):
        """Compute `multilevel_attention` of all tokens; operands as in `GroupedAttention.attend`."""
        return multilevel_attention(Q, K, V, self.ranks, self.block_lens)

    def start(self, *leading: int) -> KeyCache:
        """The cache before the first token, in the dtype of the weights."""
        shape = (*leading, self.groups, 1)
        return KeyCache(shape, self.ranks, self.block_lens, self.head_dim, self.context, self.weights)


class WindowAttention(GroupedAttention):
    """Sliding window attention as a mixer: a token sees itself and the `window` tokens before it, w ≥ 0.

    All other arguments and the errors are those of `GroupedAttention`, with one level of D / heads features, an even
    number if there is RoPE, and no limit of the context.

    Cost:
        2·D²·(1 + groups / heads) multiply-adds per token for the projections, and those of `window_attention`. The
        cache is a `WindowCache`, 2·groups·w·D / heads numbers, however long the sequence.

    Source:
        Child et al. 2019 (Sparse Transformer).
    """

    varies = False  # the blocks of the window are written out

    def __init__(self, dim: int, heads: int, window: int, groups: int | None = None, rope: bool = False):
        features = divide("WindowAttention", "dim", dim, "heads", heads)
        super().__init__(dim, heads, (features,), groups, rope, None)
        self.window = check_count("WindowAttention", "window", window, 0)

    def attend(self, Q, K, V, since=None):
        """Compute `window_attention` of all tokens; operands as in `GroupedAttention.attend`."""
        return window_attention(Q, K, V, self.window, True, since)

    def start(self, *leading: int) -> WindowCache:
        """The cache before the first token, in the dtype of the weights."""
        return WindowCache((*leading, self.groups, 1), self.head_dim, self.window, self.head_dim, self.weights)


def _since(reset):
    """What `attend` takes for a reset (..., T) of the first tokens: nothing if it is None."""
    return given(None if reset is None else text_starts(reset)[..., None, None, 1:])
