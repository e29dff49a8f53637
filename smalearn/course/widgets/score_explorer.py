"""Scores of multi-level attention: how many columns compare a pair, what that costs, and which keys are kept."""

from __future__ import annotations

import math

import torch
import traitlets

from smalearn.course.widgets.base import Checked, Choice, Explorer, module
from smalearn.data import zen_of_python
from smalearn.multilevel import key_numbers, level_counts, live_key_numbers, multilevel_scores, parse_ranks, score_macs
from smalearn.testing import random_tensors

__all__ = ["PRESETS", "ScoreExplorer", "block_lengths"]

PRESETS = ["16", "8|8", "8|0|0|8", "4|4|4|4", "8|4|2|2", "2|2|4|8", "6|2|2|2|2|2"]
MAX_WORDS, MAX_LEVELS, MAX_RANK, MAX_LEAF, SEEDS = 64, 6, 16, 32, 4


def block_lengths(length: int, levels: int, leaf: int = 0) -> tuple[int, ...]:
    """Block lengths that double from the finest level up, the first long enough for all tokens.

    With leaf = 0 every level halves the blocks of the one before, as `halving_blocks` does. With another one the finest
    blocks have `leaf` tokens, and there are as many blocks of level 2 as T needs.

    Example:
        >>> block_lengths(64, 4), block_lengths(64, 4, leaf=4)
        ((64, 32, 16, 8), (64, 16, 8, 4))
    """
    if levels == 1:
        return (length,)
    finest = leaf or -(-length // 2 ** (levels - 1))
    finer = [finest * 2 ** (levels - level) for level in range(2, levels + 1)]
    return (max(2, -(-length // finer[0])) * finer[0], *finer)


class ScoreExplorer(Explorer):
    """The levels d(i, j) and the causal scores of multi-level attention over the words of a text, and what they cost.

    Level l cuts the text into blocks of b_l words, and two words are compared by the columns of all levels whose blocks
    hold both. Query and key of a word are the same vector of normal numbers, so that equal words have a high score, the
    surer the more columns compare them. A pair is chosen by a click or by arrow keys; pointing at it is enough to look.
    The row of a pair is a step of decoding, too: what its query meets is what a key cache must hold.

    Args:
        ranks: r_l of each level in the paper's notation, as "8|4|2|2", or as integers: 1 to 6 of them, which sum to
            r, from 1 to 16.
        length: T, the first words of the text, from 1; all of them if None.
        leaf: b_L, the words in a block of the finest level, from 1 to 32; 0 to halve the blocks from level to level.
        seed: of the vectors, from 0 to 3.
        pair: (i, j), the query and a key not after it; if None, the last word that has been before, and where it was
            last. It is moved if T becomes too small for it.
        text: 1 to 64 words; if None, 64 from the Zen of Python, without its title.

    Raises:
        ValueError: an argument is not one of the above.

    Source: Kuang et al. 2025, section 3.4 and equation (9).

    Example:
        >>> explorer = ScoreExplorer("4|4|4|4")
        >>> explorer.block_lens, round(explorer.macs / explorer.standard_macs, 2)
        ((64, 32, 16, 8), 0.48)
    """

    _esm = module("numbers.js", "score_explorer.js", MAX_LEVELS=MAX_LEVELS, MAX_RANK=MAX_RANK, MAX_LEAF=MAX_LEAF)
    _words = traitlets.List().tag(sync=True)
    _draws = traitlets.List().tag(sync=True)
    _presets = traitlets.List(PRESETS).tag(sync=True)
    ranks = Checked().tag(sync=True)
    length = Checked().tag(sync=True)
    leaf = Checked().tag(sync=True)
    seed = Choice(list(range(SEEDS))).tag(sync=True)
    pair = Checked([0, 0]).tag(sync=True)

    def __init__(
        self,
        ranks: str | list[int] = "8|4|2|2",
        length: int | None = None,
        leaf: int = 0,
        seed: int = 0,
        pair: tuple[int, int] | None = None,
        text: str | None = None,
    ) -> None:
        if not isinstance(text, str | None):
            raise ValueError(f"ScoreExplorer: text, expected a string, got {text!r}")
        words = zen_of_python().lower().split()[7 : 7 + MAX_WORDS] if text is None else text.split()
        if not 1 <= len(words) <= MAX_WORDS:
            raise ValueError(f"ScoreExplorer: text, expected 1 to {MAX_WORDS} words, got {len(words)}")
        length = len(words) if length is None else length
        draws = [_draw(len(set(words)), seed) for seed in range(SEEDS)]
        state = {"ranks": ranks, "length": length, "leaf": leaf, "seed": seed}
        super().__init__(_given={"text": text}, _words=words, _draws=draws, **state)
        self.pair = _own_pair(words[:length]) if pair is None else pair

    @traitlets.validate("ranks")
    def _valid_ranks(self, proposal: dict) -> list[int]:
        value = proposal["value"]
        try:
            ranks = parse_ranks(value) if isinstance(value, str) else value
        except ValueError:
            ranks = ()
        columns = list(ranks) if isinstance(ranks, list | tuple) else []
        are_counts = all(type(rank) is int and rank >= 0 for rank in columns)
        if are_counts and len(columns) <= MAX_LEVELS and 1 <= sum(columns) <= MAX_RANK:
            return columns
        expected = f"1 to {MAX_LEVELS} integers ≥ 0 whose sum is 1 to {MAX_RANK}, as '8|4|2|2'"
        raise ValueError(f"ScoreExplorer: ranks, expected {expected}, got {value!r}")

    @traitlets.validate("length", "leaf")
    def _valid_int(self, proposal: dict) -> int:
        name, value = proposal["trait"].name, proposal["value"]
        low, high = {"length": (1, len(self._words)), "leaf": (0, MAX_LEAF)}[name]
        if type(value) is int and low <= value <= high:
            return value
        raise ValueError(f"ScoreExplorer: {name}, expected an int from {low} to {high}, got {value!r}")

    @traitlets.validate("pair")
    def _valid_pair(self, proposal: dict) -> list[int]:
        pair = proposal["value"]
        tokens = list(pair) if isinstance(pair, list | tuple) else []
        if [type(token) for token in tokens] == [int, int] and 0 <= tokens[1] <= tokens[0] < self.length:
            return tokens
        expected = f"(i, j) with 0 ≤ j ≤ i ≤ {self.length - 1}"
        raise ValueError(f"ScoreExplorer: pair, expected {expected}, got {pair!r}")

    @traitlets.observe("length")
    def _fit_pair(self, change: dict) -> None:
        if self.pair[0] >= self.length:
            self.pair = [min(token, self.length - 1) for token in self.pair]

    @property
    def block_lens(self) -> tuple[int, ...]:
        """The block length b_l of each level."""
        return block_lengths(self.length, len(self.ranks), self.leaf)

    @property
    def vectors(self) -> torch.Tensor:
        """Query and key of each word, (T, r), float64; equal words have equal ones."""
        names = list(dict.fromkeys(self._words))
        places = [names.index(word) for word in self._words[: self.length]]
        return torch.tensor(self._draws[self.seed], dtype=torch.float64)[places, : sum(self.ranks)]

    @property
    def levels(self) -> torch.Tensor:
        """Number of levels that a pair shares, d(i, j), (T, T) int64."""
        return level_counts(self.length, self.block_lens)

    @property
    def scores(self) -> torch.Tensor:
        """The scores over √r, (T, T) float64; those above the diagonal are not used."""
        X = self.vectors
        return multilevel_scores(X / math.sqrt(sum(self.ranks)), X, self.ranks, self.block_lens)

    @property
    def weights(self) -> torch.Tensor:
        """The causal softmax of the scores, (T, T) float64."""
        future = torch.ones_like(self.scores, dtype=torch.bool).triu(1)
        return self.scores.masked_fill(future, -math.inf).softmax(-1)

    @property
    def macs(self) -> int:
        """Multiply-adds of the causal scores: Σ_l r_l · (pairs in a common block of level l)."""
        return sum(self.level_macs)

    @property
    def level_macs(self) -> list[int]:
        """The multiply-adds of each level."""
        single_levels = torch.diag(torch.tensor(self.ranks)).tolist()
        return [score_macs(self.length, ranks, self.block_lens) for ranks in single_levels]

    @property
    def standard_macs(self) -> int:
        """Multiply-adds of standard attention with r columns, r·T(T + 1)/2."""
        return score_macs(self.length, [sum(self.ranks)], [self.length])

    @property
    def kept(self) -> int:
        """Numbers of keys that the query i meets, the last of t = i + 1 tokens: Σ_l r_l·((t - 1) mod b_l + 1)."""
        return live_key_numbers(self.pair[0] + 1, self.ranks, self.block_lens)

    @property
    def room(self) -> int:
        """Numbers that a key cache for T tokens has room for: Σ_l r_l·min(T, b_l)."""
        return key_numbers(self.length, self.ranks, self.block_lens)

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        ranks = "|".join(map(str, self.ranks))
        state = f"length={self.length}, leaf={self.leaf}, seed={self.seed}, pair={self.pair}"
        return f"ScoreExplorer({ranks!r}, {state})"


def _draw(words: int, seed: int) -> list[list[float]]:
    """Draw the vectors of a seed, one for each different word, (words, 16)."""
    return random_tensors([(words, MAX_RANK)], seed)[0].round(decimals=3).tolist()


def _own_pair(words: list[str]) -> list[int]:
    """Find the last word that occurs twice, and its occurrence before; the last and the first word if there is none."""
    repeats = ([i, j] for i in range(len(words)) for j in range(i) if words[i] == words[j])
    return max(repeats, default=[len(words) - 1, 0])
