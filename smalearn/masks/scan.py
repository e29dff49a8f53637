"""Masks whose product is a scan over time. The causal mask is the first: its product is a running sum."""

import torch

from smalearn._checks import check_count
from smalearn.masks.base import Mask

__all__ = ["CausalMask"]


class CausalMask(Mask):
    """L[t, s] = 1 if s ≤ t else 0: target t sees sources 0..t (Mamba-2 paper, section 4.1.4).

    Its product is the running sum y_t = y_(t-1) + x_t.

    Args:
        target: length T ≥ 0.
        source: length S ≥ 0; T if None. A source later than the last target is seen by nobody, and targets later
            than the last source see all of them.

    Raises:
        ValueError: a length is no integer ≥ 0.

    Example:
        >>> CausalMask(3).matmul(torch.tensor([[1.0], [2.0], [3.0]])).ravel()
        tensor([1., 3., 6.])
    """

    def __init__(self, target: int, source: int | None = None):
        source = target if source is None else source
        self.shape = (check_count("CausalMask", "target", target, 0), check_count("CausalMask", "source", source, 0))

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of ones, (T, S)."""
        return torch.ones(self.shape, dtype=dtype, device=device).tril()

    def _product(self, x):
        target, source = self.shape
        return _resize(x[..., :target, :].cumsum(-2), target, repeat_last=target > source)

    def _transpose_product(self, y):
        # Column s of L holds ones from row s on: a running sum from the end, in which the rows t ≥ S-1 that see
        # every source act as one.
        return _resize(y.flip(-2).cumsum(-2).flip(-2)[..., : self.shape[1], :], self.shape[1])

    def cost(self, columns: int = 1) -> int:
        """One addition per entry of the running sum: min(T, S)·columns."""
        return min(self.shape) * columns


def _resize(x: torch.Tensor, length: int, repeat_last: bool = False) -> torch.Tensor:
    """Extend axis -2 of x to a length: with copies of its last row, or with zeros."""
    missing = length - x.shape[-2]
    if missing <= 0:
        return x
    if repeat_last and x.shape[-2]:
        tail = x[..., -1:, :].expand(*x.shape[:-2], missing, x.shape[-1])
    else:
        tail = x.new_zeros(*x.shape[:-2], missing, x.shape[-1])
    return torch.cat([x, tail], dim=-2)
