"""Kernel feature maps: two functions phi_q, phi_k whose dot product phi_q(q) · phi_k(k) is, or estimates, a kernel.

Every map has `query(Q)` and `key(K)`, `(..., T, N)` to `(..., T, features)`, the counts `inputs` and `features`, and
`fit(Q, K)`, which returns the map adapted to these sequences (itself, where there is nothing to adapt). Maps know no
values and no masks: `kernel_attention` puts them to use. There is no hidden scale: for the usual 1/√N, pass Q / √N.
"""

from smalearn.features.base import FeatureMap
from smalearn.features.directions import gaussian_directions, orthogonal_directions
from smalearn.features.landmarks import LinearRandomized, segment_means
from smalearn.features.pointwise import CosFormer, EluPlusOne
from smalearn.features.random import HyperbolicRandom, PositiveRandom, RandomFourier
from smalearn.features.series import PowerSeries

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
    "orthogonal_directions",
    "segment_means",
]
