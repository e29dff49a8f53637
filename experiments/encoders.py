"""Models of forecasts: attention that looks both ways, biased by distance as in T5, with scores in levels.

The attention is `multilevel_attention`; one level is the standard.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from smalearn.fast import multilevel_attention
from smalearn.kernel_attention import softmax_attention
from smalearn.models import Block, MultiLevelAttention


def buckets(length: int, count: int, reach: int, causal: bool) -> torch.Tensor:
    """Bucket of every (query, key) pair: near distances have one learned bias each, far ones share theirs.

    With n buckets for the keys before (all of them if causal, else half) a distance a < n/2 has bucket a; farther ones
    n/2 + ⌊n/2 · log(a / (n/2)) / log(reach / (n/2))⌋, n - 1 at most. Keys after have the other half.

    Source:
        Raffel et al. 2020 (T5) and its code; Chronos has it from there.
    """
    place = torch.arange(length)
    distance = place[:, None] - place  # positive for keys before
    half = count if causal else count // 2
    exact = half // 2
    size = distance.clamp(min=0) if causal else distance.abs()
    ratio = (size.clamp(min=1).double() / exact).log() / math.log(reach / exact)
    far = (exact + (ratio * (half - exact) + 1e-9).long()).clamp(max=half - 1)  # 1e-9: a border is the same everywhere
    return torch.where(size < exact, size, far) + (0 if causal else (distance < 0) * half)


class RelativeBias(nn.Module):
    """A number for each head and bucket of distances, added to the scores: all that tells positions in T5."""

    def __init__(self, heads: int, causal: bool, count: int = 32, reach: int = 128):
        super().__init__()
        self.causal, self.count, self.reach = causal, count, reach
        self.values = nn.Parameter(torch.zeros(heads, count))

    def forward(self, length: int) -> torch.Tensor:
        """(heads, 1, T, T), to be added to the scores of T tokens."""
        return self.values[:, buckets(length, self.count, self.reach, self.causal)][:, None]


class LevelAttention(MultiLevelAttention):
    """Multi-level attention that may look both ways, and may have a bias that layers share; one level is standard."""

    def __init__(
        self, dim: int, heads: int, ranks: Sequence[int], context: int, causal: bool, bias: RelativeBias | None = None
    ):
        super().__init__(dim, heads, ranks, context)
        self.causal, self.bias = causal, bias

    def attend(self, Q, K, V):
        """`multilevel_attention`; operands as in `GroupedAttention.attend`."""
        bias = None if self.bias is None else self.bias(Q.shape[-2])
        return multilevel_attention(Q, K, V, self.ranks, self.block_lens, self.causal, bias)


class Repeat(nn.Module):
    """The forecast that needs no learning: the last `period` hours (1 or 24), over and over."""

    def __init__(self, period: int, horizon: int):
        super().__init__()
        self.period, self.horizon = period, horizon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, horizon, C) from (B, context, C)."""
        return x[:, x.shape[1] - self.period + torch.arange(self.horizon) % self.period]


class Forecaster(nn.Module):
    """An encoder that corrects a guess: known hours, then the last day over and over, all seen by all.

    Positions are learned vectors. Hours are relative to the last that is known, and the output is what the guess lacks.
    """

    def __init__(self, columns: int, context: int, horizon: int, blocks: Sequence[Block]):
        super().__init__()
        dim = blocks[0].mixer.dim
        self.guess, self.blocks = Repeat(min(24, context), horizon), nn.ModuleList(blocks)
        self.read, self.norm = nn.Linear(columns, dim), nn.RMSNorm(dim, eps=1e-5)
        self.positions = nn.Parameter(torch.randn(context + horizon, dim))
        self.write = nn.Linear(dim, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, horizon, C) from (B, context, C)."""
        guess = self.guess(x)
        h = self.read(torch.cat([x, guess], 1) - x[:, -1:]) + self.positions
        for block in self.blocks:
            h = block(h)
        return guess + self.write(self.norm(h[:, x.shape[1] :]))


class CrossAttention(nn.Module):
    """Attention of the tokens of a decoder to those of an encoder: other tokens, another length, no levels."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.query, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.memory = nn.Linear(dim, 2 * dim, bias=False)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """(B, T, D) from x (B, T, D) and memory (B, S, D)."""
        parts = [self.query(x) * self.width**-0.5, *self.memory(memory).chunk(2, -1)]
        Q, K, V = (part.unflatten(-1, (self.heads, self.width)).movedim(-3, -2) for part in parts)
        return self.out(softmax_attention(Q, K, V).movedim(-2, -3).flatten(-2))


class DecoderBlock(nn.Module):
    """Attention to itself, then to the encoder, then the MLP, each after a norm and with a residual connection."""

    def __init__(self, mixer: LevelAttention, mlp: int):
        super().__init__()
        dim = mixer.dim
        self.own, self.norm, self.cross = Block(mixer), nn.RMSNorm(dim, eps=1e-5), CrossAttention(dim, mixer.heads)
        hidden = nn.Linear(dim, mlp), nn.GELU(), nn.Linear(mlp, dim)
        self.mlp = nn.Sequential(nn.RMSNorm(dim, eps=1e-5), *hidden)

    def forward(self, x, memory):
        """(B, T, D) from x (B, T, D) and memory (B, S, D)."""
        x = self.own(x)
        x = x + self.cross(self.norm(x), memory)
        return x + self.mlp(x)


class EncoderDecoder(nn.Module):
    """T5 in small, for tokens that are bins of a series: the encoder reads what is known, the decoder writes the rest.

    `ranks` are those of all scores of tokens of one side; the relative biases are the same for all layers of a side;
    `sizes` are `dim`, `heads`, `layers` of either side, and `mlp`.
    """

    def __init__(self, bins: int, context: int, horizon: int, ranks: Sequence[int], sizes: dict[str, int]):
        super().__init__()
        dim, heads, layers, mlp = (sizes[name] for name in ("dim", "heads", "layers", "mlp"))
        self.context, self.embedding = context, nn.Embedding(bins, dim)
        both, past = RelativeBias(heads, causal=False), RelativeBias(heads, causal=True)
        encoder = [LevelAttention(dim, heads, ranks, context, False, both) for _ in range(layers)]
        decoder = [LevelAttention(dim, heads, ranks, horizon, True, past) for _ in range(layers)]
        self.encoder = nn.ModuleList([Block(mixer, mlp) for mixer in encoder])
        self.decoder = nn.ModuleList([DecoderBlock(mixer, mlp) for mixer in decoder])
        self.norms = nn.ModuleList([nn.RMSNorm(dim, eps=1e-5) for _ in range(2)])
        self.head = nn.Linear(dim, bins, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, horizon, bins) from (B, context + horizon - 1) tokens: what is known, and the forecasts before."""
        memory, x = self.embedding(tokens[:, : self.context]), self.embedding(tokens[:, self.context - 1 :])
        for block in self.encoder:
            memory = block(memory)
        memory = self.norms[0](memory)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(self.norms[1](x))
