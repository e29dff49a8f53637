"""A vocabulary of pieces of words, learned from a text: byte-pair encoding, on characters."""

import re
from collections import Counter, defaultdict
from itertools import pairwise

import torch

from smalearn._checks import check_count, check_type
from smalearn.data.text import join

WORDS = re.compile(r" ?[A-Za-z]+|\s+(?=\S)|\s+|[^A-Za-z\s]")


class Pieces:
    """Pieces of words, each with a number: at first the characters, then the pair that is most frequent within words.

    Args:
        text: with every character that is to have a number.
        size: how many pieces; at least as many as the text has characters, and fewer if no pair is left.

    Raises:
        ValueError: the text is empty, or has more characters than size.

    Cost:
        About a second for 500 pieces of a text of half a million characters.

    Source:
        Sennrich, Haddow and Birch 2016 (arXiv 1508.07909).

    Example:
        >>> pieces = Pieces("the thin thing", 9)
        >>> [pieces.decode(code[None]) for code in pieces.encode("the thing")]
        ['th', 'e', ' ', 'thi', 'n', 'g']
    """

    def __init__(self, text: str, size: int = 512):
        check_type("Pieces", "text", text, str)
        check_count("Pieces", "size", size)
        characters = sorted(set(text))
        if not 1 <= len(characters) <= size:
            raise ValueError(f"Pieces: text must have 1 to size = {size} characters, got {len(characters)}")
        self.pieces = _merged(text, characters, size)
        self._codes = {piece: code for code, piece in enumerate(self.pieces)}
        longest = sorted(self.pieces, key=len, reverse=True)
        self._longest = re.compile("|".join(map(re.escape, longest)), re.DOTALL)

    def __len__(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    def encode(self, text: str) -> torch.Tensor:
        """The numbers (T,), int64, of a text: always the longest piece that fits, then on from its end.

        Raises:
            ValueError: a character has no number.
        """
        check_type("Pieces.encode", "text", text, str)
        unknown = sorted(set(text) - set(self.pieces))
        if unknown:
            raise ValueError(f"Pieces.encode: {unknown[0]!r} is in no piece")
        return torch.tensor([self._codes[piece] for piece in self._longest.findall(text)], dtype=torch.long)

    @staticmethod
    def words(text: str) -> list[str]:
        """Cut a text where no piece may cross: before words, with the blank that leads one; signs stand alone."""
        return WORDS.findall(text)

    def decode(self, codes: torch.Tensor) -> str:
        """The text of numbers (T,), one for each piece, below their count; a ValueError says what is not."""
        return join("Pieces.decode", self.pieces, codes)


def _merged(text, pieces, size):
    """Merge the most frequent pair of neighbours within words until there are enough pieces."""
    words = [(list(word), count) for word, count in Counter(Pieces.words(text)).items()]
    pairs, places = Counter(), defaultdict(set)  # how often each pair occurs, and in which words
    for at, (word, count) in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += count
            places[pair].add(at)
    while len(pieces) < size and pairs:
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 1:
            break
        pieces.append("".join(best))
        for at in places.pop(best):
            word, count = words[at]
            for pair in pairwise(word):
                pairs[pair] -= count
            for k in reversed(range(len(word) - 1)):
                if tuple(word[k : k + 2]) == best:
                    word[k : k + 2] = pieces[-1:]
            for pair in pairwise(word):
                pairs[pair] += count
                places[pair].add(at)
        del pairs[best]
    return pieces
