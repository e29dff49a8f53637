"""Attention layers whose scores are structured: any bilinear form (`bilinear`), or less compute for far tokens.

What the layers share with recurrent mixers (caches, stacks) is in `smalearn.models`; here is softmax attention alone.
"""

from smalearn.attention.bilinear import (
    BilinearAttention,
    Logits,
    bilinear_attention,
    bilinear_scores,
    bilinear_weights,
)
from smalearn.attention.cache import FullCache, KeyCache, WindowCache
from smalearn.attention.multilevel import (
    batched_scores,
    executed_macs,
    halving_blocks,
    key_numbers,
    level_counts,
    live_key_numbers,
    multilevel_attention,
    multilevel_scores,
    parse_ranks,
    score_macs,
)
from smalearn.attention.rope import rope, rope_levels
from smalearn.attention.window import receptive_field, window_attention

__all__ = [
    "BilinearAttention",
    "FullCache",
    "KeyCache",
    "Logits",
    "WindowCache",
    "batched_scores",
    "bilinear_attention",
    "bilinear_scores",
    "bilinear_weights",
    "executed_macs",
    "halving_blocks",
    "key_numbers",
    "level_counts",
    "live_key_numbers",
    "multilevel_attention",
    "multilevel_scores",
    "parse_ranks",
    "receptive_field",
    "rope",
    "rope_levels",
    "score_macs",
    "window_attention",
]
