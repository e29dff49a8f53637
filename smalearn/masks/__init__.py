"""Structured masks: (T, S) matrices over time that multiply a tensor without being stored.

Every mask has `shape`, `dense(dtype, device)`, `matmul(x)`, `transpose_matmul(x)` and `cost(columns)`. Masks know
nothing of queries, keys and values, and are not an `nn.Module`.
"""

from smalearn.masks.base import Mask, dense_mask, hadamard
from smalearn.masks.causal import CausalMask, DecayMask, SemiseparableMask
from smalearn.masks.decay import decay_matrix, segsum
from smalearn.masks.fourier import FourierMask, ToeplitzMask
from smalearn.masks.hierarchical import HierarchicalMask, level_count, level_matrix
from smalearn.masks.lowrank import HadamardMask, LowRankMask
from smalearn.masks.presets import alibi_slopes, retnet_decays, rotary_decay_mask
from smalearn.masks.scan import scan_associative, scan_chunked, scan_recurrent
from smalearn.masks.sparse import BandedMask, BlockDiagonalMask, DilatedMask, IntersectionMask, SparseMask

__all__ = [
    "BandedMask",
    "BlockDiagonalMask",
    "CausalMask",
    "DecayMask",
    "DilatedMask",
    "FourierMask",
    "HadamardMask",
    "HierarchicalMask",
    "IntersectionMask",
    "LowRankMask",
    "Mask",
    "SemiseparableMask",
    "SparseMask",
    "ToeplitzMask",
    "alibi_slopes",
    "decay_matrix",
    "dense_mask",
    "hadamard",
    "level_count",
    "level_matrix",
    "retnet_decays",
    "rotary_decay_mask",
    "scan_associative",
    "scan_chunked",
    "scan_recurrent",
    "segsum",
]
