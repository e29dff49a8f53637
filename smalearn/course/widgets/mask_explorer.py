"""Structured masks over the words of a text: L, the scores, their product, and what the structure is worth."""

from __future__ import annotations

import reprlib

import torch
import traitlets

from smalearn import masks
from smalearn._checks import ShapeError
from smalearn.course.widgets.base import Checked, Explorer, module
from smalearn.data import ngram_features, zen_of_python

__all__ = ["FAMILIES", "MaskExplorer"]

FAMILIES = [
    "causal",
    "decay",
    "1-semiseparable",
    "Toeplitz",
    "Fourier",
    "low rank",
    "banded",
    "dilated",
    "block diagonal",
    "log-linear",
]
MAX_WORDS, MAX_RANK, FEATURES, NGRAM = 64, 8, 4, 3
TOLERANCE, DECADES = 1e-10, 6


class MaskExplorer(Explorer):
    """A mask L of a structured family, the scores G = Q K^T of a text, and M = L ∘ G (Mamba-2 paper, section 4.3).

    Folded below them are a row of M as weights over the words, the ranks of the blocks L[k:, :k], and what a product of
    L with one column costs by the family's fast algorithm and as a dense matrix. Decays and α are drawn with the
    pointer, other parameters have sliders. Everything that is chosen can be read and set from Python too.

    Args:
        text: 2 to 64 words; if None, 64 from the Zen of Python, without its title.
        seed: of the random queries and keys, and of the random walks in the factors U and V.
        state: any of these.
            family: one of `FAMILIES`.
            gamma: γ of "decay" and "log-linear", from 0 to 1.
            growth: of "log-linear", from 0 to 2: level ℓ of the tree weighs growth^ℓ.
            decays: a_t of "1-semiseparable", T numbers from 0 to 1, or one for all; a_0 is not used. By default 0.98
                within a sentence and 0.6 at its first word.
            alpha: of "Toeplitz", numbers from -1 to 1: T for the distances t - s = 0, 1, …, or 2T-1 for the distances
                -(T-1), …, T-1, from future to past. By default 1 / (1 + distance), causal.
            rank: R of "low rank", from 1 to 8 and to T.
            window: of "banded" and "dilated", from 0 to T-1.
            dilation: of "dilated", from 1 to T-1.
            blocks: of "block diagonal", a divisor of T.
            scores: "words", how many of the last three words are equal, or "random".
            target: the row t, from 0 to T-1; if not given, the last one of those that repeat the most.
            split: k, from 1 to T-1; T // 2 if not given.
            scale: of the colours, "linear" or "log", the latter over six powers of ten.

    Raises:
        ShapeError: decays or alpha have another length.
        ValueError: the text has too few or too many words, or an argument is none of the above.
        TypeError: a name that is none of the above.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 4.3 and Figure 3.

    Example:
        >>> explorer = MaskExplorer(family="low rank", rank=3)
        >>> max(explorer.ranks), explorer.mask.shape
        (3, (64, 64))
    """

    _esm = module(
        "singular_values.js",
        "mask_formulas.js",
        "numbers.js",
        "mask_matrices.js",
        "mask_explorer.js",
        DECADES=DECADES,
        TOLERANCE=TOLERANCE,
        NGRAM=NGRAM,
    )
    _words = traitlets.List().tag(sync=True)
    _Q = traitlets.List().tag(sync=True)
    _K = traitlets.List().tag(sync=True)
    _U = traitlets.List().tag(sync=True)
    _V = traitlets.List().tag(sync=True)
    family = Checked().tag(sync=True)
    gamma = Checked().tag(sync=True)
    growth = Checked().tag(sync=True)
    decays = Checked().tag(sync=True)
    alpha = Checked().tag(sync=True)
    rank = Checked().tag(sync=True)
    window = Checked().tag(sync=True)
    dilation = Checked().tag(sync=True)
    blocks = Checked().tag(sync=True)
    scores = Checked().tag(sync=True)
    target = Checked().tag(sync=True)
    split = Checked().tag(sync=True)
    scale = Checked().tag(sync=True)

    def __init__(self, text: str | None = None, seed: int = 0, **state: object) -> None:
        if not isinstance(text, str | None):
            raise ValueError(f"MaskExplorer: text, expected a string, got {text!r}")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"MaskExplorer: seed, expected an int, got {seed!r}")
        words = zen_of_python().lower().split()[7 : 7 + MAX_WORDS] if text is None else text.split()
        if not 2 <= len(words) <= MAX_WORDS:
            raise ValueError(f"MaskExplorer: text, expected 2 to {MAX_WORDS} words, got {len(words)}")
        defaults = _defaults(words)
        if unknown := sorted(state.keys() - defaults.keys()):
            raise TypeError(f"MaskExplorer: expected some of {', '.join(defaults)}, got {', '.join(unknown)}")
        given = {"text": text, "seed": seed}
        super().__init__(_given=given, _words=words, **_random(len(words), seed), **defaults | state)

    @traitlets.validate("family", "scores", "scale")
    def _valid_choice(self, proposal: dict) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        values = {"family": FAMILIES, "scores": ["words", "random"], "scale": ["linear", "log"]}[name]
        if value in values:
            return value
        raise ValueError(f"MaskExplorer: {name}, expected one of {', '.join(map(repr, values))}, got {value!r}")

    @traitlets.validate("rank", "window", "dilation", "blocks", "target", "split")
    def _valid_int(self, proposal: dict) -> int:
        name, value, last = proposal["trait"].name, proposal["value"], len(self._words) - 1
        limits = {"rank": (1, min(MAX_RANK, last + 1)), "blocks": (1, last + 1)}
        low, high = limits.get(name, (int(name in ("dilation", "split")), last))
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"MaskExplorer: {name}, expected an int from {low} to {high}, got {value!r}")
        if name == "blocks" and (last + 1) % value:
            raise ValueError(f"MaskExplorer: blocks, expected a divisor of {last + 1} words, got {value}")
        return value

    @traitlets.validate("gamma", "growth")
    def _valid_number(self, proposal: dict) -> float:
        name = proposal["trait"].name
        value = _numbers(name, proposal["value"], low=0, high={"gamma": 1, "growth": 2}[name])
        if value.ndim:
            raise ShapeError(f"MaskExplorer: {name}, expected one number, got shape {tuple(value.shape)}")
        return value.item()

    @traitlets.validate("decays")
    def _valid_decays(self, proposal: dict) -> list[float]:
        decays, length = _numbers("decays", proposal["value"], low=0), len(self._words)
        if decays.shape not in [(), (length,)]:
            raise ShapeError(f"MaskExplorer: decays, expected one or {length}, got shape {tuple(decays.shape)}")
        return decays.expand(length).tolist()

    @traitlets.validate("alpha")
    def _valid_alpha(self, proposal: dict) -> list[float]:
        alpha, length = _numbers("alpha", proposal["value"], low=-1), len(self._words)
        if alpha.shape not in [(length,), (2 * length - 1,)]:
            expected = f"{length} or {2 * length - 1}"
            raise ShapeError(f"MaskExplorer: alpha, expected {expected} numbers, got shape {tuple(alpha.shape)}")
        return [0.0] * (2 * length - 1 - len(alpha)) + alpha.tolist()

    @property
    def mask(self) -> masks.Mask:
        """The mask that is shown, (T, T)."""
        T = len(self._words)
        U, V = (torch.tensor(x, dtype=torch.float64)[:, : self.rank] for x in (self._U, self._V))
        alpha, decays = (torch.tensor(x, dtype=torch.float64) for x in (self.alpha, self.decays))
        return {
            "causal": lambda: masks.CausalMask(T),
            "decay": lambda: masks.DecayMask(T, self.gamma),
            "1-semiseparable": lambda: masks.SemiseparableMask(decays.log()),
            "Toeplitz": lambda: masks.ToeplitzMask(alpha[T - 1 :], alpha[:T].flip(0)),
            "Fourier": lambda: masks.FourierMask(T),
            "low rank": lambda: masks.LowRankMask(U, V),
            "banded": lambda: masks.BandedMask(T, T, self.window),
            "dilated": lambda: masks.DilatedMask(T, T, self.window, self.dilation),
            "block diagonal": lambda: masks.BlockDiagonalMask(T, T, self.blocks),
            "log-linear": self._log_linear,
        }[self.family]()

    def _log_linear(self) -> masks.HierarchicalMask:
        """Decays γ^(t - s), and for each level of the tree a weight of its own."""
        T, like = len(self._words), {"dtype": torch.float64}
        weights = torch.tensor(self.growth, **like) ** torch.arange(masks.level_count(T))
        return masks.HierarchicalMask(torch.tensor(self.gamma, **like).log().expand(T), weights.expand(T, -1))

    @property
    def L(self) -> torch.Tensor:
        """The mask as a (T, T) tensor, float64, or complex128 for "Fourier"."""
        mask = self.mask
        return mask.dense(torch.complex128 if mask.is_complex else torch.float64)

    @property
    def G(self) -> torch.Tensor:
        """The scores Q K^T (T, T), float64."""
        if self.scores == "words":
            Q = K = ngram_features(self._words, NGRAM).double()
        else:
            Q, K = (torch.tensor(x, dtype=torch.float64) for x in (self._Q, self._K))
        return Q @ K.mT

    @property
    def M(self) -> torch.Tensor:
        """The masked scores L ∘ G (T, T), dtype of L."""
        return self.L * self.G

    @property
    def weights(self) -> torch.Tensor:
        """The row M_t (T): the weights of the words for the target."""
        return self.M[self.target]

    @property
    def ranks(self) -> list[int]:
        """The ranks of L[k:, :k] for k = 1, …, T-1: its singular values above 1e-10 times the largest."""
        L = self.L
        return [int(torch.linalg.matrix_rank(L[k:, :k], rtol=TOLERANCE)) for k in range(1, len(L))]

    @property
    def cost(self) -> int:
        """Operations of the fast product of L with one column, as its mask counts them."""
        return self.mask.cost(1)

    @property
    def dense_cost(self) -> int:
        """Multiplications and additions of the dense product of L with one column: T(2T - 1), complex T(8T - 2)."""
        T = len(self._words)
        return T * (8 * T - 2) if self.mask.is_complex else T * (2 * T - 1)

    def _named(self) -> str:
        """The family with its parameters that are single numbers."""
        shown = {
            "decay": ["gamma"],
            "low rank": ["rank"],
            "banded": ["window"],
            "dilated": ["window", "dilation"],
            "block diagonal": ["blocks"],
            "log-linear": ["gamma", "growth"],
        }
        parameters = [f"{name}={getattr(self, name)}" for name in shown.get(self.family, [])]
        return ", ".join([self.family, *parameters])

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        state = f"scores={self.scores!r}, target={self.target}, split={self.split}, scale={self.scale!r}"
        return f"MaskExplorer({len(self._words)} words, {self._named()}, {state})"


def _defaults(words: list[str]) -> dict[str, object]:
    """Choose the state at first."""
    T = len(words)
    X = ngram_features(words, NGRAM)
    scores = X @ X.mT
    opens = [i > 0 and words[i - 1][-1] in ".!?" for i in range(T)]
    return {
        "family": "1-semiseparable",
        "gamma": 0.9,
        "growth": 1.4,
        "decays": [0.6 if first else 0.98 for first in opens],
        "alpha": [1 / (1 + distance) for distance in range(T)],
        "rank": min(2, T),
        "window": min(4, T - 1),
        "dilation": min(4, T - 1),
        "blocks": max(blocks for blocks in range(1, min(8, T) + 1) if T % blocks == 0),
        "scores": "words",
        "target": max(range(T), key=lambda t: (scores[t, :t].sum(), t)),
        "split": T // 2,
        "scale": "linear",
    }


def _random(length: int, seed: int) -> dict[str, list]:
    """Draw normal queries and keys, and random walks around 0 that go at most to -1 or 1."""
    chance = torch.Generator().manual_seed(seed)
    Q, K = torch.randn(2, length, FEATURES, generator=chance, dtype=torch.float64)
    walks = torch.randn(2, length, min(MAX_RANK, length), generator=chance, dtype=torch.float64).cumsum(1)
    walks = walks - walks.mean(1, keepdim=True)
    U, V = walks / walks.abs().amax(1, keepdim=True)
    return {name: x.round(decimals=3).tolist() for name, x in {"_Q": Q, "_K": K, "_U": U, "_V": V}.items()}


def _numbers(name: str, value: object, low: float, high: float = 1) -> torch.Tensor:
    """Convert to a float64 tensor of numbers from `low` to `high`, or a ValueError that names the argument."""
    try:
        tensor = torch.as_tensor(None if isinstance(value, bool) else value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"MaskExplorer: {name}, expected an array of numbers, got {reprlib.repr(value)}") from error
    wrong = tensor[~((tensor >= low) & (tensor <= high))]
    if len(wrong):
        raise ValueError(f"MaskExplorer: {name}, expected numbers from {low} to {high}, got {wrong[0].item()}")
    return tensor
