"""One slider between attention and a recurrence: what every word reads, by pairs inside a chunk and out of a state."""

from __future__ import annotations

import math

import torch
import traitlets

from smalearn.course.widgets.base import Checked, Explorer, Size, module
from smalearn.course.widgets.chunk_explorer import chunked_macs
from smalearn.course.widgets.feature_explorer import TEXT
from smalearn.ssd import ssd_chunked

__all__ = ["DualityExplorer"]

MAX_WORDS, STATE, DECAY = 16, 6, 0.9
OWN = 0.25  # how much of a word's key is its own vector


class DualityExplorer(Explorer):
    """The chunked algorithm on a sentence: at c = T it is attention, at c = 1 a recurrence, and its answers stay.

    Every word asks what came after it before: its query is its vector, its key the vector of the word before it and a
    quarter of its own, its value its place in the vocabulary. M_ts = 0.9^(t−s) q_t·k_s. The first six different words
    have a feature of their own, the others share two of them; so all weights are positive, and what a word reads can be
    shown as one bar: in one colour what it reads pair by pair, in the other what it reads out of the state that enters
    its chunk.

    Args:
        text: 1 to 16 words; in the picture the reader can write others.
        chunk: c, from 1 to 16; one of at least as many as there are words is a single chunk.

    Raises:
        ValueError: an argument is not one of the above.

    Source: Dao and Gu 2024, "Transformers are SSMs", sections 5 and 6.

    Example:
        >>> attention, recurrence = DualityExplorer(chunk=16), DualityExplorer(chunk=1)
        >>> bool((attention.reading - recurrence.reading).abs().max() < 1e-15), attention.steps, recurrence.steps
        (True, 1, 15)
    """

    _esm = module("duality_explorer.js", MAX_WORDS=MAX_WORDS, STATE=STATE, DECAY=DECAY, OWN=OWN)
    text = Checked(TEXT).tag(sync=True)
    chunk = Size(5, MAX_WORDS).tag(sync=True)

    def __init__(self, text: str = TEXT, chunk: int = 5) -> None:
        super().__init__(text=text, chunk=chunk)

    @traitlets.validate("text")
    def _valid_text(self, proposal: dict) -> str:
        text = proposal["value"]
        count = len(text.split()) if isinstance(text, str) else repr(text)
        if isinstance(text, str) and 1 <= count <= MAX_WORDS:
            return " ".join(text.split())
        raise ValueError(f"DualityExplorer: text, expected 1 to {MAX_WORDS} words, got {count}")

    @property
    def sequences(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values X (T, P), log decays (T,), keys B and queries C (T, N), float64."""
        words = self.text.split()
        names = list(dict.fromkeys(words))
        places, eye = [names.index(word) for word in words], torch.eye(len(names), dtype=torch.float64)
        C = word_vectors(len(names))[places]
        B = torch.cat([torch.zeros_like(C[:1]), C[:-1]]) + OWN * C
        return eye[places], torch.full((len(words),), math.log(DECAY), dtype=C.dtype), B, C

    @property
    def reading(self) -> torch.Tensor:
        """What every word reads, Y (T, P), float64, by the chunked algorithm."""
        return ssd_chunked(*self.sequences, chunk_len=self.chunk)[0]

    @property
    def inside(self) -> torch.Tensor:
        """The part of `reading` from pairs inside a chunk; the rest comes out of the state that enters the chunk."""
        chunks = zip(*(sequence.split(self.chunk) for sequence in self.sequences), strict=True)
        return torch.cat([ssd_chunked(*chunk, chunk_len=self.chunk)[0] for chunk in chunks])

    @property
    def steps(self) -> int:
        """How many chunks there are: each waits for the state of the one before."""
        return math.ceil(len(self.text.split()) / self.chunk)

    @property
    def macs(self) -> float:
        """Multiply-adds, as `chunked_macs` counts them; a single chunk needs no state."""
        (T, P), parts = self.sequences[0].shape, 1 if self.steps == 1 else 4
        return sum(chunked_macs(T, self.chunk, STATE, P)[:parts])

    @property
    def kept(self) -> int:
        """Numbers that are kept to read the next word: the state, and keys and values of an unfinished chunk."""
        T, P = self.sequences[0].shape
        return T * (STATE + P) if self.steps == 1 else STATE * P + (self.chunk - 1) * (STATE + P)

    def __repr__(self) -> str:
        """The state without its words, the same text on every machine."""
        return f"DualityExplorer({len(self.text.split())} words, chunk={self.chunk})"


def word_vectors(count: int) -> torch.Tensor:
    """Make unit vectors of as many words, (count, N), float64: a feature each, and then pairs of them.

    The pairs are the matches of a tournament of six, in which nobody plays twice a day.
    """
    vectors = torch.zeros(count, STATE, dtype=torch.float64)
    for i in range(count):
        day, match = divmod(i - STATE, 3)
        pairs = [((day + 1) % 5, (day - 1) % 5), ((day + 2) % 5, (day - 2) % 5), (5, day)]
        for feature in (i,) if i < STATE else pairs[match]:
            vectors[i, feature] = 1
    return vectors / vectors.norm(dim=1, keepdim=True)
