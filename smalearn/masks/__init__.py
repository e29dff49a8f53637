"""Structured masks: (T, S) matrices over time that multiply a tensor without being stored.

Every mask has `shape`, `dense(dtype, device)`, `matmul(x)`, `transpose_matmul(x)` and `cost(columns)`. Masks know
nothing of queries, keys and values, and are no `nn.Module`.
"""

from smalearn.masks.base import Mask, dense_mask
from smalearn.masks.scan import CausalMask
from smalearn.masks.sparse import BandedMask, BlockDiagonalMask, DilatedMask, SparseMask

__all__ = ["BandedMask", "BlockDiagonalMask", "CausalMask", "DilatedMask", "Mask", "SparseMask", "dense_mask"]
