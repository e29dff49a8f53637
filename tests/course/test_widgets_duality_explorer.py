"""The Python half of the duality explorer: its parts against masked attention, its numbers against counting."""

import pytest
import torch

from smalearn.course.widgets import DualityExplorer
from smalearn.course.widgets.duality_explorer import DECAY, word_vector
from smalearn.testing import assert_close

TEXT = "to be or not to be that is the question"


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10, 16])
def test_reading_is_attention_and_inside_its_pairs_of_one_chunk(chunk):
    explorer, words = DualityExplorer(TEXT, chunk), TEXT.split()
    names, before = list(dict.fromkeys(words)), ["", *words]
    whole, inside = torch.zeros(2, 10, len(names), dtype=torch.float64)
    for t in range(10):
        for s in range(t + 1):
            q, k = word_vector(words[t]), word_vector(before[s])
            weight = DECAY ** (t - s) * sum(a * b for a, b in zip(q, k, strict=True))
            whole[t, names.index(words[s])] += weight
            inside[t, names.index(words[s])] += weight * (t // chunk == s // chunk)
    assert_close(explorer.reading, whole)
    assert_close(explorer.inside, inside)


@pytest.mark.parametrize("word", ["", "than", "ugly.", "日本語", "\ud83d", "w" * 1000])
def test_a_word_has_a_unit_vector_of_its_own(word):
    numbers = word_vector(word)
    assert min(numbers) > 0
    assert sum(number**2 for number in numbers) == pytest.approx(1)
    assert word_vector(word + "s") != numbers


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
