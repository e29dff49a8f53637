"""Sequence mixers as layers, and small models made of them.

A mixer runs in two ways that agree token by token: `mixer(x)` on a whole text, for training, and
`y_t, cache = mixer.step(x_t, cache)` from `cache = mixer.start(batch)`, for decoding. `mixer.prefill(x, cache)` reads a
whole prompt at once and returns the cache too.
"""

from smalearn.models.attention import (
    ConvolutionCache,
    KeyValueCache,
    LinearAttention,
    LinearAttentionCache,
    ShortConvolution,
    SoftmaxAttention,
)
from smalearn.models.mamba1 import Mamba1, Mamba1Cache
from smalearn.models.mamba2 import Mamba2, Mamba2Cache, initial_dt_bias
from smalearn.models.mixer import CausalConvolution, GatedRMSNorm, Mixer
from smalearn.models.multilevel import FullAttention, GroupedAttention, MultiLevelAttention, WindowAttention
from smalearn.models.stack import Block, ModelCache, SequenceModel

__all__ = [
    "Block",
    "CausalConvolution",
    "ConvolutionCache",
    "FullAttention",
    "GatedRMSNorm",
    "GroupedAttention",
    "KeyValueCache",
    "LinearAttention",
    "LinearAttentionCache",
    "Mamba1",
    "Mamba1Cache",
    "Mamba2",
    "Mamba2Cache",
    "Mixer",
    "ModelCache",
    "MultiLevelAttention",
    "SequenceModel",
    "ShortConvolution",
    "SoftmaxAttention",
    "WindowAttention",
    "initial_dt_bias",
]
