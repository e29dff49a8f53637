"""The Python half of the score explorer: multi-level attention and its cache, blocks, words and pairs."""

import math
from itertools import pairwise

import pytest
import torch

from smalearn.course.widgets import ScoreExplorer
from smalearn.course.widgets.score_explorer import MAX_LEAF, MAX_LEVELS, MAX_RANK, PRESETS, SEEDS, block_lengths
from smalearn.fast import multilevel_attention
from smalearn.multilevel import halving_blocks
from smalearn.multilevel.cache import KeyCache
from smalearn.testing import assert_close

TEXT = "a b a c a b d d e a b c a"
SETTINGS = [
    {},
    {"ranks": "16"},
    {"ranks": "8|0|0|8", "length": 37, "seed": 3},
    {"ranks": [2, 1, 3], "length": 29, "leaf": 5, "seed": 1},
    {"ranks": (1, 2, 1, 0, 2, 1), "length": 3, "seed": 2},
    {"ranks": "0|4", "length": 1, "leaf": 32},
    {"ranks": "3|2|1", "text": TEXT},
]


@pytest.mark.parametrize("state", SETTINGS, ids=str)
def test_state_is_multi_level_attention_and_its_cache(state):
    explorer = ScoreExplorer(**state)
    K, V = explorer.vectors, torch.eye(explorer.length, dtype=torch.float64)
    Q = K / math.sqrt(K.shape[1])
    assert_close(multilevel_attention(Q, K, V, explorer.ranks, explorer.block_lens), explorer.weights)
    cache = KeyCache((), explorer.ranks, explorer.block_lens, explorer.length, context=explorer.length, like=V)
    assert cache.key_bytes == 8 * explorer.room
    for t in range(explorer.length):
        Y, cache = cache.read(Q[t : t + 1], K[t : t + 1], V[t : t + 1])
        explorer.pair = [t, t]
        assert_close(Y[0], explorer.weights[t])
        assert cache.key_numbers == explorer.kept


def test_one_level_is_standard_attention():
    explorer = ScoreExplorer("16", pair=(40, 3))
    assert_close(explorer.scores, explorer.vectors @ explorer.vectors.mT / 4)
    assert explorer.macs == explorer.standard_macs == 16 * 64 * 65 // 2
    assert (explorer.kept, explorer.room) == (41 * 16, 64 * 16)


def test_blocks_halve_unless_the_finest_is_chosen():
    for length in range(1, 65):
        for levels in range(1, MAX_LEVELS + 1):
            lengths = block_lengths(length, levels)
            if length >= 2 ** (levels - 1):
                assert lengths == halving_blocks(length, levels)
            for leaf in range(MAX_LEAF + 1):
                lengths = block_lengths(length, levels, leaf)
                assert lengths[0] >= length
                assert len(lengths) == levels
                assert all(coarse % fine == 0 and coarse >= 2 * fine for coarse, fine in pairwise(lengths))
                assert levels == 1 or leaf in (0, lengths[-1])
    assert block_lengths(50, 4, 1) == (52, 4, 2, 1)


def test_equal_words_have_equal_vectors():
    explorer = ScoreExplorer(text=TEXT)
    words, X = TEXT.split(), explorer.vectors
    for i, one in enumerate(words):
        for j, other in enumerate(words):
            assert torch.equal(X[i], X[j]) == (one == other)
    assert not torch.equal(X, ScoreExplorer(text=TEXT, seed=1).vectors)
    assert len(explorer._draws) == SEEDS


def test_the_text_and_the_pair_at_first():
    explorer = ScoreExplorer()
    assert explorer._words[:5] == ["beautiful", "is", "better", "than", "ugly."]
    assert (len(explorer._words), explorer.length, explorer.pair) == (64, 64, [61, 37])
    assert explorer._words[61] == explorer._words[37] == "to"
    assert ScoreExplorer(text=TEXT).pair == [12, 9]
    assert ScoreExplorer(text=TEXT, length=4).pair == [2, 0]
    assert ScoreExplorer(text=TEXT, length=2).pair == [1, 0]
    assert ScoreExplorer(text="one").pair == [0, 0]


def test_a_pair_is_moved_where_the_length_leaves_it_out():
    explorer = ScoreExplorer(pair=(40, 30))
    for length, pair in [(41, [40, 30]), (35, [34, 30]), (20, [19, 19]), (64, [19, 19])]:
        explorer.length = length
        assert explorer.pair == pair


def test_presets_are_splits_of_as_many_columns():
    for preset in PRESETS:
        assert sum(ScoreExplorer(preset).ranks) == MAX_RANK
    assert ScoreExplorer().ranks == [8, 4, 2, 2]
    explorer = ScoreExplorer()
    explorer.ranks = "4|0|1"
    assert explorer.ranks == [4, 0, 1]
