"""The Python half of the duality explorer: its parts against masked attention, its numbers against counting."""

import pytest
import torch

from smalearn.course.widgets import DualityExplorer
from smalearn.course.widgets.duality_explorer import DECAY, OWN, word_vectors
from smalearn.testing import assert_close

TEXT = "to be or not to be that is the question"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10, 16])
def test_reading_is_attention_and_inside_its_pairs_of_one_chunk(chunk):
    explorer, words = DualityExplorer(TEXT, chunk), TEXT.split()
    names = list(dict.fromkeys(words))
    vectors = [word_vectors(8)[names.index(word)] for word in words]
    keys = [OWN * vectors[s] + (vectors[s - 1] if s else 0) for s in range(10)]
    whole, inside = torch.zeros(2, 10, len(names), dtype=torch.float64)
    for t in range(10):
        for s in range(t + 1):
            weight = DECAY ** (t - s) * (vectors[t] @ keys[s])
            whole[t, names.index(words[s])] += weight
            inside[t, names.index(words[s])] += weight * (t // chunk == s // chunk)
    assert_close(explorer.reading, whole)
    assert_close(explorer.inside, inside)


def test_sixteen_words_have_positive_unit_vectors_of_their_own():
    vectors = word_vectors(16)
    assert (vectors >= 0).all()
    alike = vectors @ vectors.mT
    assert_close(alike.diagonal(), torch.ones(16, dtype=torch.float64))
    assert alike.fill_diagonal_(0).max() < 0.8


def test_at_first_repeated_words_read_what_followed_them():
    explorer = DualityExplorer()
    words = explorer.text.split()
    names = list(dict.fromkeys(words))
    for t, word in enumerate(words):
        if followed := {words[s + 1] for s in range(t) if words[s] == word}:
            assert names[explorer.reading[t].argmax()] in followed


@pytest.mark.parametrize(
    ("chunk", "numbers"),
    [
        (16, (10 * 10 * (6 + 8), 10 * (6 + 8), 1)),
        (5, (10 * 5 * (6 + 8) + 2 * 10 * 6 * 8 + 2 * 6 * 8, 6 * 8 + 4 * (6 + 8), 2)),
        (1, (10 * (6 + 8) + 3 * 10 * 6 * 8, 6 * 8, 10)),
    ],
)
def test_work_numbers_kept_and_steps_are_counted(chunk, numbers):
    explorer = DualityExplorer(TEXT, chunk)
    assert (explorer.macs, explorer.kept, explorer.steps) == numbers
