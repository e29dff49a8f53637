"""Small models: an embedding, blocks with residual connections, a head. Any mixer goes into any block."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from smalearn._checks import ShapeError, check_count, check_eps, check_tensor, check_type
from smalearn.models.layers import RMSNorm
from smalearn.models.mixer import Cache, Mixer, given
from smalearn.multilevel.texts import check_reset, more_starts


class Block(nn.Module):
    """A pre-norm residual block: x + mixer(norm(x)), and then, in a Transformer, x + MLP(norm(x)).

    Args:
        mixer: over time.
        mlp: width of the hidden layer over features, or a module (..., D) -> (..., D) after a norm of its own; none if
            0, as in Mamba, whose mixer has its own nonlinearities.
        eps: of the norms.

    Raises:
        TypeError: mixer is not a module.
        ValueError: mlp is not an integer ≥ 0, or the mixer has no dim.

    Source:
        Xiong et al. 2020 for the place of the norm; Gu and Dao 2023 (Mamba) for a block without MLP.
    """

    def __init__(self, mixer: Mixer, mlp: int | nn.Module = 0, eps: float = 1e-5):
        super().__init__()
        check_type("Block", "mixer", mixer, nn.Module)
        check_count("Block", "dim of mixer", getattr(mixer, "dim", None))
        check_eps("Block", eps)
        self.norm = RMSNorm(mixer.dim, eps=eps)
        self.mixer = mixer
        self.mlp = None
        if isinstance(mlp, nn.Module):
            self.mlp = nn.Sequential(RMSNorm(mixer.dim, eps=eps), mlp)
        elif check_count("Block", "mlp", mlp, 0):
            hidden = nn.Linear(mixer.dim, mlp), nn.GELU(), nn.Linear(mlp, mixer.dim)
            self.mlp = nn.Sequential(RMSNorm(mixer.dim, eps=eps), *hidden)

    def prefill(self, x: torch.Tensor, cache: Cache, reset: torch.Tensor | None = None) -> tuple[torch.Tensor, Cache]:
        """Outputs for x (..., T, D), which follows the tokens of the mixer's cache, and the cache after it."""
        return self._residual(x, *self.mixer.prefill(self.norm(x), cache, *given(reset)))

    def step(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Output for one token x (..., D), and the cache after it."""
        return self._residual(x, *self.mixer.step(self.norm(x), cache))

    def forward(self, x: torch.Tensor, reset: torch.Tensor | None = None) -> torch.Tensor:
        """Outputs for x (..., T, D), nothing before it; `reset` (..., T) is True where a text begins."""
        return self._residual(x, self.mixer(self.norm(x), *given(reset)), None)[0]

    def _residual(self, x, y, cache):
        """The two residual connections."""
        x = x + y
        return x if self.mlp is None else x + self.mlp(x), cache


class ModelCache(NamedTuple):
    """State of a model that decodes: how many tokens it has read, and the cache of every block.

    `since` (...) is the number of the token at which the text of the last one began, if the model has positions and
    there was a reset.
    """

    length: int
    blocks: tuple[Cache, ...]
    since: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(cache.nbytes for cache in self.blocks) + (0 if self.since is None else self.since.nbytes)


class SequenceModel(nn.Module):
    """Tokens in, logits of the next token (or whatever the targets are) out.

    Rows of several lengths are padded on the left, and several texts packed into one row, with a `reset` (..., T) that
    is True where a text begins: each text has the logits that it has alone. It is no attention mask; from one (B, T)
    it is `mask.diff(dim=-1, prepend=torch.zeros_like(mask[:, :1])) == 1`. To decode begin with `start`.

    Args:
        vocabulary: number of different tokens.
        blocks: at least one, all of one dim.
        positions: the longest sequence, whose positions have learned vectors; 0 for none, where the mixers see order
            themselves.
        tied: whether the head is the embedding.
        eps: of the last norm.

    Raises:
        TypeError: a block is not a `Block`.
        ValueError: there is no block, two have different dim, or a size is not an integer in its range.

    Example:
        >>> from smalearn.models import SoftmaxAttention
        >>> model = SequenceModel(10, [Block(SoftmaxAttention(8))])
        >>> padded, reset = torch.tensor([[0, 0, 7, 8]]), torch.tensor([[False, False, True, False]])
        >>> torch.allclose(model(padded, reset)[:, 2:], model(padded[:, 2:]), atol=1e-6)
        True
    """

    def __init__(
        self, vocabulary: int, blocks: Iterable[Block], positions: int = 0, tied: bool = False, eps: float = 1e-5
    ):
        super().__init__()
        check_type("SequenceModel", "blocks", blocks, list, tuple, nn.ModuleList, Iterator)
        check_type("SequenceModel", "tied", tied, bool)
        blocks = list(blocks)
        for i, block in enumerate(blocks):
            check_type("SequenceModel", f"blocks[{i}]", block, Block)
        self.blocks = nn.ModuleList(blocks)
        dims = {block.mixer.dim for block in self.blocks}
        if len(dims) != 1:
            raise ValueError(f"SequenceModel: blocks need one dim, got {sorted(dims)}")
        (dim,) = dims
        self.embedding = nn.Embedding(check_count("SequenceModel", "vocabulary", vocabulary), dim)
        self.positions = None
        if check_count("SequenceModel", "positions", positions, 0):
            self.positions = nn.Embedding(positions, dim)
        self.norm = RMSNorm(dim, eps=check_eps("SequenceModel", eps))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, reset: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (..., T, vocabulary) for tokens (..., T), integers.

        Args:
            tokens: of the vocabulary, those that pad too.
            reset: (..., T) boolean, True where a text begins, whose positions are counted from there; None if nowhere.
                An attention mask is none.

        Raises:
            ShapeError: there is no axis of time, more tokens than positions, or reset does not fit tokens.
            TypeError: tokens are not a tensor.
            ValueError: tokens are not integers, or (on a CPU) not below the size of the vocabulary; reset is not
                boolean, or a mixer takes none.
        """
        self._check("forward", tokens, reset=reset)
        positions, _ = self._count(tokens, 0, None, reset)
        x = self._embed("forward", tokens, positions)
        for block in self.blocks:
            x = block(x, *given(reset))
        return self.head(self.norm(x))

    def start(self, *leading: int) -> ModelCache:
        """The cache before the first token, for the given leading axes, such as the batch."""
        return ModelCache(0, tuple(block.mixer.start(*leading) for block in self.blocks))

    def prefill(
        self, tokens: torch.Tensor, cache: ModelCache, reset: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ModelCache]:
        """Logits for tokens (..., T) that follow those of the cache, and the cache after them; see `forward`."""
        self._check("prefill", tokens, cache, reset=reset)
        positions, since = self._count(tokens, cache.length, cache.since, reset)
        x = self._embed("prefill", tokens, positions)
        readers = [partial(block.prefill, reset=reset) for block in self.blocks]
        return self._read(readers, x, cache.blocks, cache.length + tokens.shape[-1], since)

    def step(self, token: torch.Tensor, cache: ModelCache) -> tuple[torch.Tensor, ModelCache]:
        """Logits (..., vocabulary) after one more token (...), and the cache after it."""
        check_tensor("SequenceModel.step", "token", token)
        self._check("step", token[..., None], cache)
        position = torch.full((), cache.length, device=token.device)
        x = self._embed("step", token, position if cache.since is None else position - cache.since)
        return self._read([block.step for block in self.blocks], x, cache.blocks, cache.length + 1, cache.since)

    def _count(self, tokens, past, since, reset):
        """Positions of tokens in their texts, and where the last text begins."""
        positions = torch.arange(past, past + tokens.shape[-1], device=tokens.device)
        if self.positions is None:
            return positions, None
        starts, since = more_starts(reset, tokens.shape, past, since)
        return positions if starts is None else positions - starts, since

    def _read(self, readers, x, caches, length, since):
        """Logits, and the cache after each block has read x."""
        after = []
        for read, cache in zip(readers, caches, strict=True):
            x, cache = read(x, cache)
            after.append(cache)
        return self.head(self.norm(x)), ModelCache(length, tuple(after), since)

    def _embed(self, function, tokens, positions):
        """The vectors of tokens, and of positions if the model has any."""
        try:
            x = self.embedding(tokens)
        except IndexError:  # says PyTorch on a CPU, at no cost for tokens that are there
            most = self.embedding.num_embeddings - 1
            raise ValueError(f"SequenceModel.{function}: tokens must be from 0 to {most}, got another") from None
        return x if self.positions is None else x + self.positions(positions)

    def _check(self, function, tokens, *cache, reset=None):
        """Check that tokens are integers with an axis of time, not more of them than positions, and a reset."""
        check_tensor(f"SequenceModel.{function}", "tokens", tokens)
        if tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"SequenceModel.{function}: tokens must be int64 or int32, got {tokens.dtype}")
        for kept in cache:
            check_type(f"SequenceModel.{function}", "cache", kept, ModelCache)
            if len(kept.blocks) != len(self.blocks):
                got = f"{len(kept.blocks)} blocks, expected {len(self.blocks)}"
                raise ShapeError(f"SequenceModel.{function}: cache has {got}")
        past = sum(kept.length for kept in cache)
        if not tokens.ndim:
            raise ShapeError(f"SequenceModel.{function}: tokens need a trailing axis (T), got shape ()")
        check_reset(f"SequenceModel.{function}", reset, tokens.shape[:-1], tokens, axis=-1)
        length = past + tokens.shape[-1]
        if self.positions is not None and length > self.positions.num_embeddings:
            most = self.positions.num_embeddings
            raise ShapeError(f"SequenceModel.{function}: {length} tokens, expected at most {most} positions")
