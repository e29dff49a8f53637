"""Caches of softmax attention while it decodes: everything, the current block of every level, or a window.

All caches are used alike: `Y, cache = cache.read(Q, K, V)` is attention for the next tokens, one or many, and gives the
cache after them; `cache.append(K, V)` leaves attention out, after a prompt that was read in parallel. Both take a
`reset` (..., S), True where a text begins, which sees nothing before it; `since` says where the last one began. An old
cache can be read from again. `length` counts the tokens so far; `key_numbers` are kept of them; `key_bytes`,
`value_bytes` and `nbytes` are those of the tensors themselves.

To PyTorch a cache is a tree of tensors (a pytree): the values and keys so far. So its rows can be picked, and
`torch.export` takes it.
"""

import copy
import functools
import math
import sys
from collections.abc import Sequence

import torch
from torch.utils import _pytree as pytree

from smalearn._checks import ShapeError, check_count, check_counts, check_dtypes, check_shapes
from smalearn.contractions import contract
from smalearn.multilevel.levels import check_levels
from smalearn.multilevel.texts import check_reset, more_starts
from smalearn.multilevel.window import window_attention

UNLIMITED = sys.maxsize  # length of a block that never ends
PIECE = 256  # tokens that are read together at most: their scores have this many rows


class Rows:
    """Rows (..., S, N) that grow at their end, in a tensor with room for more.

    `append` writes in place where nobody can notice: the next rows are free, and autograd does not record. Otherwise it
    writes to a copy, of twice the size (or of `room` rows, if that is not 0) where the room is used up. So `seen` never
    changes, and a step costs what it adds, not what is there.
    """

    def __init__(self, storage: torch.Tensor, length: int = 0, room: int = 0):
        self.storage, self.length, self.room = storage, length, room
        self.used = [length]  # rows of the storage in use, known to all who share it; -1 for those of a graph

    @property
    def seen(self) -> torch.Tensor:
        """The rows so far, a view."""
        return self.storage[..., : self.length, :]

    @functools.cached_property
    def leaf(self) -> object:
        """What a tree has of them: the same object each time, by which `torch.export` knows it; or what a map made."""
        return self.seen if isinstance(self.storage, torch.Tensor) else self.storage

    def append(self, new: torch.Tensor, recorded: bool) -> "Rows":
        """These rows and (..., S, N) new ones; `recorded`: whether autograd records them, or a product with them."""
        length, room = self.length + new.shape[-2], self.storage.shape[-2]
        free = self.used[0] == self.length and not recorded and length <= room
        if length > room:  # in a compiled program exactly so many, or each doubling would need another program
            room = self.room or (length if torch.compiler.is_compiling() else max(length, 2 * room))
        if free:
            after = Rows(self.storage, length, self.room)
            after.storage[..., self.length : length, :] = new
            after.used = self.used
        else:
            spare = self.storage.new_empty(*self.storage.shape[:-2], room - length, self.storage.shape[-1])
            after = Rows(torch.cat([self.seen, new.to(spare.dtype), spare], -2), length, self.room)
        after.used[0] = -1 if recorded else length
        return after

    def renew(self) -> "Rows":
        """Empty rows, in a tensor of their own."""
        return Rows(torch.empty_like(self.storage), 0, self.room)


class Cache:
    """Checks, and bytes counted from real tensors, that all caches share. A subclass has `_keys`, `_values`."""

    length: int
    since: torch.Tensor | None = None  # (...) int64, number of the first token that the next one sees, if not 0

    def __init__(self, features: int, head_dim: int):
        self.features, self.head_dim = features, check_count(type(self).__name__, "head_dim", head_dim)

    @property
    def leading(self) -> tuple[int, ...]:
        """Axes before (T, N) of the keys."""
        return tuple(self._values.storage.shape[:-2])

    @property
    def key_numbers(self) -> int:
        """How many numbers of keys later tokens can still need, over all leading axes."""
        return sum(rows.seen.numel() for rows in self._keys)

    @property
    def key_bytes(self) -> int:
        """Bytes of the tensors that hold keys, room for later ones included."""
        return sum(rows.storage.untyped_storage().nbytes() for rows in self._keys)

    @property
    def value_bytes(self) -> int:
        """Bytes of the tensor that holds values, room for later ones included."""
        return self._values.storage.untyped_storage().nbytes()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.key_bytes + self.value_bytes + (0 if self.since is None else self.since.nbytes)

    def _empty(self, leading, rooms, like):
        """Rows with room for (length, size) numbers each, none at first where the length has no limit."""
        like, name = torch.empty(0) if like is None else like, type(self).__name__
        check_dtypes(name, {"like": like}, real=True)
        leading = check_counts(name, "leading", leading, 0)
        rooms = [(0 if length == UNLIMITED else length, size) for length, size in rooms]
        shapes = [(*leading, *room) for room in rooms]
        return [Rows(torch.empty(shape, dtype=like.dtype, device=like.device), 0, shape[-2]) for shape in shapes]

    def _starts(self, reset, new):
        """Where the texts of new tokens begin (..., S), and that of the last (...); None if all is one text."""
        return more_starts(reset, (*self.leading, new), self.length, self.since)

    def _from(self, since):
        """This cache, a new one, of which later tokens see what begins there."""
        if since is not None:  # else the tree has no such leaf
            self.since = since
        return self

    def _check(self, function, operands, reset):
        """Check that new tokens have the axes and the dtype of the cache, and the reset theirs."""
        function = f"{type(self).__name__}.{function}"
        check_dtypes(function, {"cache": self._values.storage} | {name: x for name, (x, _) in operands.items()})
        check_shapes(function, operands)
        for name, expected in (("K", (*self.leading, self.features)), ("V", (*self.leading, self.head_dim))):
            got = tuple(operands[name][0].shape)
            if (*got[:-2], *got[-1:]) != expected:
                axes = ", ".join(map(str, [*expected[:-1], "S", expected[-1]]))
                raise ShapeError(f"{function}: {name} has shape {got}, expected ({axes})")
        check_reset(function, reset, self.leading, operands["V"][0])


class KeyCache(Cache):
    """The cache of multi-level attention: of the keys of level l it keeps only those of the current block.

        level l, after t tokens:  the last (t - 1) mod block_lens[l] + 1 of its keys, r_l numbers each
        room for T tokens:        Σ_l r_l·min(T, block_lens[l]) numbers of keys; and all values

    At a border of its blocks a level starts anew, because no later token shares a block with an earlier one. All scores
    stay those of `multilevel_scores`.

    Args:
        leading: axes before (T, N) of the keys, such as (batch, groups, 1); queries may have a group of heads at a 1.
        ranks: r_l, features of each level.
        block_lens: block lengths of each level.
        head_dim: P, size of a value.
        context: T, the longest sequence that can be read; block_lens[0] if None.
        like: a tensor whose dtype and device keys and values have; those of `torch.empty(0)` if None.

    Raises:
        ValueError: a size is not an integer in its range, a level lacks its rank or length, or blocks do not nest.

    Cost:
        The tensors are made at the start, at their full size. A token adds r_l numbers to each level, and P values.

    Source:
        Kuang et al. 2025, section 3.4, whose code has no decoding.

    Example:
        >>> cache = KeyCache((), (32, 8, 6, 4, 4, 4, 4, 2), (1024, 512, 256, 128, 64, 32, 16, 8), head_dim=64)
        >>> cache.key_bytes // 4, FullCache((), 64, 1024, head_dim=64).key_bytes // 4
        (39376, 65536)
    """

    def __init__(
        self,
        leading: Sequence[int],
        ranks: Sequence[int],
        block_lens: Sequence[int],
        head_dim: int,
        context: int | None = None,
        like: torch.Tensor | None = None,
    ):
        name = type(self).__name__
        self.ranks, self.block_lens = check_levels(name, ranks, block_lens)
        super().__init__(sum(self.ranks), head_dim)
        self.context = self.block_lens[0] if context is None else check_count(name, "context", context)
        if self.context > self.block_lens[0]:
            raise ValueError(f"{name}: context must be ≤ block_lens[0] = {self.block_lens[0]}, got {context}")
        rooms = [(min(self.context, size), rank) for size, rank in zip(self.block_lens, self.ranks, strict=True)]
        self._values, *self._keys = self._empty(leading, [(self.context, head_dim), *rooms], like)

    @property
    def length(self) -> int:
        """How many tokens were read: all have their values."""
        return self._values.length

    def append(self, K: torch.Tensor, V: torch.Tensor, reset: torch.Tensor | None = None) -> "KeyCache":
        """The cache after the keys (..., S, N) and values (..., S, P) of S more tokens; `reset` as `read` takes it.

        Raises:
            ShapeError: K or V does not fit the cache, or there are more tokens than the context.
            ValueError: dtype or device differ from the cache's.
        """
        self._check("append", {"K": (K, "sn"), "V": (V, "sp")}, reset)
        return self._append("append", K, V, _recorded(K, V))._from(self._starts(reset, K.shape[-2])[1])

    def read(
        self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, reset: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, "KeyCache"]:
        """Attention of S more tokens to all before them and to each other, causally, and the cache after them.

        No hidden scale: for the usual 1/√N pass Q / √N.

        Args:
            Q: (..., S, N) queries, leading axes of the cache or others that broadcast with them.
            K: (..., S, N) keys, leading axes of the cache.
            V: (..., S, P) values, leading axes of the cache.
            reset: (..., S) boolean, True where a text begins; leading axes of the cache or fewer. None if nowhere. The
                blocks of levels stay where they are.

        Returns:
            Y (..., S, P), and the cache after the S tokens.

        Raises:
            ShapeError: an operand does not fit the cache, or there are more tokens than the context.
            ValueError: dtype or device differ from the cache's.

        Cost:
            For one token r_l multiply-adds for every key that is kept of level l, P for every value. More tokens are
            taken together, 256 at most, as far as a block of the last level reaches: from an empty cache, parallel
            attention and `append` are faster.
        """
        self._check("read", {"Q": (Q, "sn"), "K": (K, "sn"), "V": (V, "sp")}, reset)
        cache, parts, start = self, [], 0
        starts, last = self._starts(reset, Q.shape[-2])
        while start < Q.shape[-2] or not parts:
            end = Q.shape[-2]
            if end - start > 1:
                # Tokens of one finest block see the same keys, but for the triangle among themselves.
                left = self.block_lens[-1] - cache.length % self.block_lens[-1]
                end = min(end, start + min(left, PIECE))
            cache = cache._append("read", K[..., start:end, :], V[..., start:end, :], _recorded(Q, K, V))
            since = None if starts is None else starts[..., start:end]
            parts.append(cache._attend(Q[..., start:end, :], since))
            start = end
        return parts[0] if len(parts) == 1 else torch.cat(parts, -2), cache._from(last)

    def _append(self, function, K, V, recorded):
        """Append keys and values that are checked."""
        length = self.length + K.shape[-2]
        if length > self.context:
            most = f"at most {self.context}, the context of the cache"
            raise ShapeError(f"{type(self).__name__}.{function}: {length} tokens, expected {most}")
        after = copy.copy(self)
        after._values = self._values.append(V, recorded)
        after._keys = [
            self._grow(rows, new, length, block, recorded)
            for rows, new, block in zip(self._keys, K.split(self.ranks, -1), self.block_lens, strict=True)
        ]
        return after

    def _grow(self, rows, new, length, block, recorded):
        """The keys of a level in its current block, after new ones that end at `length`."""
        kept = length if length <= block else (length - 1) % block + 1
        if kept > new.shape[-2]:  # the block began before the new keys
            return rows.append(new, recorded)
        return rows.renew().append(new[..., new.shape[-2] - kept :, :], recorded)

    def _attend(self, Q, since=None):
        """Attention of the last tokens, all in one block of the last level, to the keys from `since` on."""
        products = [
            contract("TN, SN -> TS", q, rows.seen) for q, rows in zip(Q.split(self.ranks, -1), self._keys, strict=True)
        ]
        scores = products[0]
        for part in products[1:]:
            scores[..., scores.shape[-1] - part.shape[-1] :] += part
        new = Q.shape[-2]
        if new > 1:
            future = torch.ones(new, new, dtype=torch.bool, device=Q.device).triu(1)
            scores[..., scores.shape[-1] - new :].masked_fill_(future, -math.inf)
        if since is not None:
            numbers = torch.arange(scores.shape[-1], device=Q.device)
            scores = scores.masked_fill(numbers < since[..., None], -math.inf)
        return contract("TS, SP -> TP", scores.softmax(-1), self._values.seen)


class FullCache(KeyCache):
    """The cache of standard attention, all keys and values: multi-level attention with one level.

    A key has `features` = N numbers. Without limit of the `context`, None, the tensors grow, by doubling. All other
    arguments and the errors are those of `KeyCache`.
    """

    def __init__(
        self,
        leading: Sequence[int],
        features: int,
        context: int | None,
        head_dim: int,
        like: torch.Tensor | None = None,
    ):
        super().__init__(leading, (features,), (UNLIMITED if context is None else context,), head_dim, like=like)


class WindowCache(Cache):
    """The cache of causal window attention: the keys and values of the last `window` tokens, however long the sequence.

    `window` says how many tokens back the next one will see. All other arguments and the errors are those of
    `FullCache`.

    Cost:
        min(t, window)·(N + P) numbers, which a step copies: it reads them all anyway.
    """

    def __init__(
        self,
        leading: Sequence[int],
        features: int,
        window: int,
        head_dim: int,
        like: torch.Tensor | None = None,
    ):
        super().__init__(check_count("WindowCache", "features", features, 0), head_dim)
        self.window, self.length = check_count("WindowCache", "window", window, 0), 0
        self._values, *self._keys = self._empty(leading, [(0, head_dim), (0, features)], like)

    def append(self, K: torch.Tensor, V: torch.Tensor, reset: torch.Tensor | None = None) -> "WindowCache":
        """The cache after the keys (..., S, N) and values (..., S, P) of S more tokens; see `KeyCache.append`."""
        self._check("append", {"K": (K, "sn"), "V": (V, "sp")}, reset)
        new = K.shape[-2]
        return self._after(new, *self._joined(K, V))._from(self._starts(reset, new)[1])

    def read(
        self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, reset: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, "WindowCache"]:
        """Attention of S more tokens, by `window_attention`, and the cache after them; see `KeyCache.read`."""
        self._check("read", {"Q": (Q, "sn"), "K": (K, "sn"), "V": (V, "sp")}, reset)
        new, (K, V) = K.shape[-2], self._joined(K, V)
        starts, last = self._starts(reset, new)
        gone = self.length + new - K.shape[-2]  # the first key that is left has this number
        since = None if starts is None else starts - gone
        Y = window_attention(Q, K, V, self.window, True, since)
        return Y, self._after(new, K, V)._from(last)

    def _joined(self, K, V):
        """Kept and new keys, kept and new values."""
        return torch.cat([self._keys[0].seen, K], -2), torch.cat([self._values.seen, V], -2)

    def _after(self, new, K, V):
        """The cache that keeps the last of these keys and values, in tensors of their own."""
        after = copy.copy(self)
        after.length, start = self.length + new, max(0, K.shape[-2] - self.window)
        kept = [x[..., start:, :].clone() for x in (K, V)]
        after._keys, after._values = ([Rows(kept[0], kept[0].shape[-2])], Rows(kept[1], kept[1].shape[-2]))
        return after


def _flatten(cache):
    """Values and keys so far; number of tokens and start of the text, where the cache has them; and the rest."""
    rows = (cache._values, *cache._keys)
    more = {name: value for name, value in vars(cache).items() if name in ("length", "since")}
    rest = {name: value for name, value in vars(cache).items() if name not in ("_values", "_keys", *more)}
    context = type(cache), tuple(x.room for x in rows), tuple(more), tuple(rest.items())
    return [*(x.leaf for x in rows), *more.values()], context


def _unflatten(leaves, context):
    """The cache of such leaves. Its storage has no room, so that what it shares with another cache is not written."""
    kind, rooms, more, rest = context
    cache, leaves = kind.__new__(kind), list(leaves)
    lengths = [x.shape[-2] if getattr(x, "ndim", 0) > 1 else 0 for x in leaves]
    rows = [Rows(*leaf) for leaf in zip(leaves, lengths, rooms, strict=False)]
    cache._values, cache._keys = rows[0], rows[1:]
    vars(cache).update(rest)
    vars(cache).update(zip(more, leaves[len(rooms) :], strict=True))
    return cache


def _flatten_with_keys(cache):
    """The same, each leaf with its place."""
    leaves, context = _flatten(cache)
    return [(pytree.SequenceKey(i), leaf) for i, leaf in enumerate(leaves)], context


for _kind in (KeyCache, FullCache, WindowCache):
    pytree.register_pytree_node(_kind, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_keys)


def _recorded(*tensors):
    """Whether autograd records operations on these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
