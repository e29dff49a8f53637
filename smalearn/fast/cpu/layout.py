"""Tensors (..., T, N) as (heads, padded_len, width) for batched products, and back; shared keys are laid out once."""

import math

import torch

from smalearn._checks import broadcast_shapes
from smalearn.fast.cpu.tiling import Tiling


class Layout:
    """Split the leading axes into KV heads and, for each of them, the query heads that share its keys.

    Of Q and K (..., T, N), V (..., T, P) and a bias (..., T, T) or None. `leading` are all leading axes, broadcast,
    `heads` the number of KV heads, `queries` that of the query heads of each.
    """

    def __init__(self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, bias: torch.Tensor | None):
        self.leading = broadcast_shapes(*(x.shape[:-2] for x in (Q, K, V, bias) if x is not None))
        axes = range(len(self.leading))
        keys = broadcast_shapes(K.shape[:-2], V.shape[:-2], (1,) * len(axes))
        self._own = [axis for axis in axes if keys[axis] == self.leading[axis]]
        self._shared = [axis for axis in axes if axis not in self._own]
        self.heads = math.prod(self.leading[axis] for axis in self._own)
        self.queries = math.prod(self.leading[axis] for axis in self._shared)

    def lay(self, x: torch.Tensor, tiling: Tiling, front: int = 0, of_keys: bool = False) -> torch.Tensor:
        """Lay out queries as (heads, padded_len·queries, front + width), keys as (heads, padded_len, front + width)."""
        leading, own, shared = self._sizes(of_keys)
        out = x.new_zeros(*own, tiling.padded_len, *shared, front + x.shape[-1])
        x = x.expand(*leading, *x.shape[-2:])
        out[self._tokens(tiling, front)] = x.permute(*self._own, -2, *self._shared, -1)
        return out.view(self.heads, -1, out.shape[-1])

    def restore(self, x: torch.Tensor, tiling: Tiling, of_keys: bool = False) -> torch.Tensor:
        """Invert `lay`: (..., T, width), a view where tokens lie together."""
        _, own, shared = self._sizes(of_keys)
        return self._in_order(x.view(*own, tiling.padded_len, *shared, x.shape[-1])[self._tokens(tiling, 0)])

    def empty(self, like: torch.Tensor, length: int) -> torch.Tensor:
        """Memory for what `restore` gives of queries, (..., T, width) with the width of `like`."""
        _, own, shared = self._sizes(False)
        return self._in_order(like.new_empty(*own, length, *shared, like.shape[-1]))

    def _in_order(self, x):
        """Axes (KV heads..., T, query heads..., width) as (..., T, width)."""
        count = len(self.leading)
        order = [*self._own, count, *self._shared, count + 1]
        return x.permute(*(order.index(axis) for axis in range(len(order))))

    def of_head(self, bias: torch.Tensor, head: int) -> torch.Tensor:
        """View (axes of query heads..., T, T) of a bias, or of its gradient, that belongs to a head."""
        bias = bias[(None,) * (len(self.leading) + 2 - bias.ndim)]
        bias = bias.permute(*self._own, *self._shared, -2, -1)
        place = []
        for axis in reversed(range(len(self._own))):
            head, index = divmod(head, self.leading[self._own[axis]])
            place.append(index if bias.shape[axis] > 1 else 0)
        return bias[tuple(reversed(place))]

    def lay_bias(self, part: torch.Tensor, tiling: Tiling) -> torch.Tensor:
        """Lay out a head's part of the bias as (queries or 1, padded_len, padded_len)."""
        if part.shape[:-2].numel() > 1:
            part = part.expand(*(self.leading[axis] for axis in self._shared), *part.shape[-2:])
        part = part.reshape(-1, *part.shape[-2:])
        if tiling.padded_len == part.shape[-1]:
            return part
        out = part.new_zeros(len(part), tiling.padded_len, tiling.padded_len)
        out[self._pairs(tiling)] = part
        return out

    def restore_bias(self, x: torch.Tensor, tiling: Tiling, like: torch.Tensor) -> torch.Tensor:
        """Invert `lay_bias` for a gradient, summed to the shape of the part `like`."""
        x = x[self._pairs(tiling)]
        if len(x) > 1:
            x = x.unflatten(0, [self.leading[axis] for axis in self._shared])
        return x.sum_to_size(like.shape) if x.ndim == like.ndim else x.view(like.shape)

    def _sizes(self, of_keys):
        """Sizes of all leading axes, of those of KV heads, and of those of query heads, which are 1 in keys."""
        leading = [1 if of_keys and axis in self._shared else size for axis, size in enumerate(self.leading)]
        return leading, [leading[axis] for axis in self._own], [leading[axis] for axis in self._shared]

    def _tokens(self, tiling, front):
        """Index of the tokens' padded positions and of the columns behind those in front."""
        every = slice(None)
        return *[every] * len(self._own), tiling.where, *[every] * len(self._shared), slice(front, None)

    def _pairs(self, tiling):
        """Index of the pairs of tokens in (queries, padded_len, padded_len)."""
        if isinstance(tiling.where, slice):
            return slice(None), tiling.where, tiling.where
        return slice(None), tiling.where[:, None], tiling.where
