"""Attention through features, and softmax attention: how near they are, and at which norms they are not."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import torch
import traitlets

from smalearn.course.widgets.base import Checked, Choice, Explorer, module
from smalearn.data import ngram_features
from smalearn.kernel_attention import (
    EluPlusOne,
    HyperbolicRandom,
    PositiveRandom,
    RandomFourier,
    gaussian_directions,
    kernel_attention,
    orthogonal_directions,
    softmax_weights,
)
from smalearn.testing import relative_rms

if TYPE_CHECKING:
    from smalearn.kernel_attention import FeatureMap

__all__ = ["FeatureExplorer"]

TEXT = "beautiful is better than ugly. explicit is better than implicit. simple is better than complex."
MAX_WORDS, ORDER, SEEDS = 16, 3, 4
SIZES = [2**power for power in range(2, 10)]  # 4 to 512 features
NORMS = [quarters / 4 for quarters in range(1, 17)]
DRAWS = {"gaussian": (gaussian_directions, SIZES[-1]), "orthogonal": (orthogonal_directions, SIZES[-1] // 2)}
# name: (class, draw, features for each direction). 1 + elu has no directions.
MAPS = {
    "positive": (PositiveRandom, "gaussian", 1),
    "hyperbolic": (HyperbolicRandom, "gaussian", 2),
    "hyperbolic, orthogonal": (HyperbolicRandom, "orthogonal", 2),
    "Fourier": (RandomFourier, "gaussian", 2),
    "1 + elu": (EluPlusOne, "", 0),
}


class FeatureExplorer(Explorer):
    """The weights of softmax attention over a short text, beside those through the features of a map.

    Query and key of a word are one vector of length `norm`: the word and the two before it, one-hot. Each word attends
    to the words before it. More features are more directions of one draw: those of fewer features are among them.

    Args:
        text: 2 to 16 words.
        map: "positive", "hyperbolic", "hyperbolic, orthogonal", "Fourier", or "1 + elu", which has no draw.
        features: how many, a power of two from 4 to 512; for "1 + elu", which has as many as inputs, of no effect.
        norm: the length |q| = |k| of queries and keys, from 0.25 to 4.
        seed: of the directions, from 0 to 3.
        row: the word, counted from 0, whose weights are shown as bars; the last but one if None.

    Raises:
        ValueError: there are too few or too many words, or another argument is not one of the above.

    Cost: the directions of all seeds go to the browser once, about 16 kB for each input.

    Source: Choromanski et al. 2021 (Performer); Rahimi and Recht 2007.

    Example:
        >>> [round(FeatureExplorer(features=512, norm=norm).error, 2) for norm in (1, 2)]
        [0.08, 0.44]
    """

    _esm = module("numbers.js", "feature_explorer.js", SIZES=SIZES, NORMS=NORMS)
    _words = traitlets.List().tag(sync=True)
    _X = traitlets.List().tag(sync=True)
    _draws = traitlets.Dict().tag(sync=True)
    _maps = traitlets.List(list(MAPS)).tag(sync=True)
    map = Choice(list(MAPS)).tag(sync=True)
    features = Choice(SIZES).tag(sync=True)
    norm = Checked().tag(sync=True)
    seed = Choice(list(range(SEEDS))).tag(sync=True)
    row = Checked().tag(sync=True)

    def __init__(
        self,
        text: str = TEXT,
        map: str = "hyperbolic",
        features: int = 512,
        norm: float = 1,
        seed: int = 0,
        row: int | None = None,
    ) -> None:
        words = text.split()
        if not 2 <= len(words) <= MAX_WORDS:
            raise ValueError(f"FeatureExplorer: text, expected 2 to {MAX_WORDS} words, got {len(words)}")
        X = torch.nn.functional.normalize(ngram_features(words, ORDER).double(), dim=-1)
        super().__init__(
            _given={"text": text},
            _words=words,
            _X=X.tolist(),
            _draws={kind: [_packed(kind, X.shape[1], seed) for seed in range(SEEDS)] for kind in DRAWS},
            map=map,
            features=features,
            norm=norm,
            seed=seed,
            row=len(words) - 2 if row is None else row,
        )

    @traitlets.validate("row")
    def _valid_row(self, proposal: dict) -> int:
        row, last = proposal["value"], len(self._words) - 1
        if _is_number(row, int) and 0 <= row <= last:
            return row
        raise ValueError(f"FeatureExplorer: row, expected an int from 0 to {last}, got {row!r}")

    @traitlets.validate("norm")
    def _valid_norm(self, proposal: dict) -> float:
        norm, low, high = proposal["value"], NORMS[0], NORMS[-1]
        if _is_number(norm, int | float) and low <= norm <= high:
            return norm
        raise ValueError(f"FeatureExplorer: norm, expected a number from {low:g} to {high:g}, got {norm!r}")

    @property
    def phi(self) -> FeatureMap:
        """The map, not yet fitted."""
        build, kind, each = MAPS[self.map]
        if not kind:
            return build(len(self._X[0]))
        return build(_directions(kind, len(self._X[0]), self.seed)[: self.features // each])

    @property
    def weights(self) -> torch.Tensor:
        """The weights (T, T) of softmax attention, float64; the first word has no word before it, so row 0 is zero."""
        X = self._scaled()
        return softmax_weights(X, X, _earlier(len(X)))

    @property
    def estimate(self) -> torch.Tensor:
        """The weights (T, T) of kernel attention with `phi`, float64."""
        X = self._scaled()
        return kernel_attention(X, X, torch.eye(len(X), dtype=X.dtype), self.phi.fit(X, X), _earlier(len(X)))

    @property
    def error(self) -> float:
        """The relative RMS error of `estimate`, without unit."""
        return relative_rms(self.estimate, self.weights)

    def _scaled(self) -> torch.Tensor:
        """Queries, which are the keys too, (T, N)."""
        return self.norm * torch.tensor(self._X, dtype=torch.float64)

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        names = ["map", "features", "norm", "seed", "row"]
        state = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"FeatureExplorer({len(self._words)} words, {state})"


def _directions(kind: str, inputs: int, seed: int) -> torch.Tensor:
    """Draw all directions, (m, N): numbers of float32, which the browser has too, as float64."""
    draw, count = DRAWS[kind]
    return draw(count, inputs, seed, torch.float32).double()


def _packed(kind: str, inputs: int, seed: int) -> str:
    """Pack the directions for the browser: float32, row by row, in base64."""
    return base64.b64encode(_directions(kind, inputs, seed).numpy().astype("<f4").tobytes()).decode("ascii")


def _earlier(length: int) -> torch.Tensor:
    """Make the mask (T, T) of all words before a word."""
    return torch.ones(length, length, dtype=torch.float64).tril(-1)


def _is_number(value: object, kind: type) -> bool:
    """Say whether a value is of a kind of numbers, to which booleans do not belong."""
    return isinstance(value, kind) and not isinstance(value, bool)
