"""Attention with a kernel in place of the exponential: softmax, feature maps, Linformer, Nyström.

A feature map is two functions phi_q, phi_k whose dot product phi_q(q) · phi_k(k) is, or estimates, a kernel. Every map
has `query(Q)` and `key(K)`, `(..., T, N)` to `(..., T, features)`, the counts `inputs` and `features`, and `fit(Q, K)`,
which returns the map adapted to these sequences (itself, where there is nothing to adapt). Maps know no values and no
masks: `kernel_attention` puts them to use. There is no hidden scale: for the usual 1/√N, pass Q / √N.
"""

from smalearn.kernel_attention.attention import (
    iterated_pinv,
    kernel_attention,
    linformer,
    nystrom,
    softmax_attention,
    softmax_weights,
)
from smalearn.kernel_attention.base import FeatureMap
from smalearn.kernel_attention.directions import gaussian_directions, orthogonal_directions
from smalearn.kernel_attention.landmarks import LinearRandomized, segment_means
from smalearn.kernel_attention.pointwise import CosFormer, EluPlusOne
from smalearn.kernel_attention.random import HyperbolicRandom, PositiveRandom, RandomFourier
from smalearn.kernel_attention.series import PowerSeries

__all__ = [
    "CosFormer",
    "EluPlusOne",
    "FeatureMap",
    "HyperbolicRandom",
    "LinearRandomized",
    "PositiveRandom",
    "PowerSeries",
    "RandomFourier",
    "gaussian_directions",
    "iterated_pinv",
    "kernel_attention",
    "linformer",
    "nystrom",
    "orthogonal_directions",
    "segment_means",
    "softmax_attention",
    "softmax_weights",
]
