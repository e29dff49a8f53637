"""Sequence mixers as layers, and small models made of them.

A mixer runs in two ways that agree token by token: `mixer(x)` on a whole sequence, for training, and
`y_t, cache = mixer.step(x_t, cache)` from `cache = mixer.start(batch)`, for decoding. `mixer.prefill(x, cache)` reads a
whole prompt at once and returns the cache too. Every cache has `nbytes`, and stays as it is when it is decoded from;
`select_rows` picks and repeats the rows of its batch. A `reset` (..., T), True where a text begins, pads rows on their
left and packs several texts into one.
"""

from smalearn.models.attention import GroupedAttention, MultiLevelAttention, SoftmaxAttention, WindowAttention
from smalearn.models.delta import GatedDeltaNet, GatedDeltaNet2
from smalearn.models.generate import generate
from smalearn.models.hydra import Hydra
from smalearn.models.layers import CausalConvolution, GatedRMSNorm
from smalearn.models.linear import LinearAttention, ShortConvolution
from smalearn.models.load import load
from smalearn.models.log_linear import LogLinearCache, LogLinearMamba2
from smalearn.models.mamba1 import Mamba1
from smalearn.models.mamba2 import Mamba2, initial_dt_bias
from smalearn.models.mamba3 import Mamba3, Mamba3Cache
from smalearn.models.mixer import Cache, Mixer, RecurrentCache, RecurrentMixer, select_rows
from smalearn.models.rwkv7 import RWKV7
from smalearn.models.stack import Block, ModelCache, SequenceModel

__all__ = [
    "RWKV7",
    "Block",
    "Cache",
    "CausalConvolution",
    "GatedDeltaNet",
    "GatedDeltaNet2",
    "GatedRMSNorm",
    "GroupedAttention",
    "Hydra",
    "LinearAttention",
    "LogLinearCache",
    "LogLinearMamba2",
    "Mamba1",
    "Mamba2",
    "Mamba3",
    "Mamba3Cache",
    "Mixer",
    "ModelCache",
    "MultiLevelAttention",
    "RecurrentCache",
    "RecurrentMixer",
    "SequenceModel",
    "ShortConvolution",
    "SoftmaxAttention",
    "WindowAttention",
    "generate",
    "initial_dt_bias",
    "load",
    "select_rows",
]
