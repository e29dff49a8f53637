"""Multi-level attention (structured attention paper, section 3.4): closer tokens compare more columns.

One file an idea: levels of blocks and what they cost, the scores, the caches that decoding keeps, windows, rotary
positions. The attention that never forms its scores is `smalearn.fast.multilevel_attention`.
"""

from smalearn.multilevel.cache import FullCache, KeyCache, WindowCache
from smalearn.multilevel.levels import (
    halving_blocks,
    key_numbers,
    level_counts,
    live_key_numbers,
    parse_ranks,
    score_macs,
)
from smalearn.multilevel.rope import rope, rope_levels
from smalearn.multilevel.scores import batched_scores, multilevel_scores
from smalearn.multilevel.window import receptive_field, window_attention

__all__ = [
    "FullCache",
    "KeyCache",
    "WindowCache",
    "batched_scores",
    "halving_blocks",
    "key_numbers",
    "level_counts",
    "live_key_numbers",
    "multilevel_scores",
    "parse_ranks",
    "receptive_field",
    "rope",
    "rope_levels",
    "score_macs",
    "window_attention",
]
