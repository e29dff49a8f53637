"""Pieces of words: learned pair by pair, and cut by the longest piece."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from smalearn.data import Pieces, load_text

TEXT = "the thin thing thinks; the other thing\nthinks of nothing. " * 3


def by_hand(text, size):
    """Count all pairs anew for each merge."""
    words = [list(word) for word in Pieces.words(text)]
    pieces = sorted(set(text))
    while len(pieces) < size:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        pieces.append("".join(best))
        for word in words:
            for k in reversed(range(len(word) - 1)):
                if tuple(word[k : k + 2]) == best:
                    word[k : k + 2] = pieces[-1:]
    return pieces


@pytest.mark.parametrize("size", [20, 25, 40, 200])
def test_pairs_are_merged_by_their_frequency(size):
    assert Pieces(TEXT, size).pieces == by_hand(TEXT, size)


def test_what_is_cut_can_be_joined():
    pieces = Pieces(TEXT, 30)
    codes = pieces.encode(TEXT)
    assert codes.dtype == torch.int64
    assert pieces.decode(codes) == TEXT
    assert len(codes) < len(TEXT) / 2
    assert len(pieces) == 30
    assert pieces.decode(pieces.encode("")) == ""


def test_the_longest_piece_comes_first():
    pieces = Pieces("abcabcab", 5)
    assert pieces.decode(pieces.encode("abcab")[:1]) == max(
        (piece for piece in pieces.pieces if "abcab".startswith(piece)), key=len
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("",), "text must have 1 to size = 512 characters, got 0"), (("abc", 2), "1 to size = 2 characters, got 3")],
)
def test_texts_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pieces(*arguments)


def test_an_unknown_character_is_named():
    with pytest.raises(ValueError, match=r"Pieces.encode: '€' is in no piece"):
        Pieces(TEXT, 30).encode("the €")


def test_prose_is_a_text_of_sentences():
    text = load_text("python prose").text
    lines = text.splitlines()
    assert len(lines) > 500
    assert len(lines) == len(set(lines))
    letters = sum(character.isalpha() or character in " ,." for character in text)
    assert letters > 0.9 * len(text)
    assert text.isascii()
    pieces = Pieces(text)
    assert pieces.decode(pieces.encode(text)) == text
    assert len(pieces.encode(text)) < len(text) / 2
