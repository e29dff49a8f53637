"""Random features: unbiased estimates of exp(q · k), whose error falls like m^(-1/2) with the number m of directions.

exp(q · k) is an average over Gaussian directions ω, in two ways:

    exp(q · k) = e^(|q|²/2) e^(|k|²/2) E[cos ω·(q - k)]                      RandomFourier
    exp(q · k) = E[exp(ω·q - |q|²/2) exp(ω·k - |k|²/2)]                      PositiveRandom, HyperbolicRandom

The first has little variance where q is near k, the second where q is near -k, that is, where the kernel is small.
"""

import math
from abc import abstractmethod
from copy import copy

import torch

from smalearn._checks import check_count, check_dtypes, check_shapes
from smalearn.kernel_attention.base import FeatureMap


class _RandomMap(FeatureMap):
    """phi(x) = exp(exponent(x)) · wave(x), with a `fit` that keeps the exponentials in the range of floats.

    A fitted map divides feature i of every key by e^(shift_i) and multiplies that of every query by it, which changes
    no kernel value; then it divides all features of a query by their largest exponential, which cancels in the
    normaliser. The shift is one for all keys of a sequence: one for each key would weigh the keys.
    """

    def __init__(self, W: torch.Tensor):
        check_dtypes(type(self).__name__, {"W": W})
        check_shapes(type(self).__name__, {"W": (W, "mn")})
        check_count(type(self).__name__, "the number of directions in W", W.shape[-2])
        self.W, self.inputs, self.shift = W, W.shape[-1], None

    @abstractmethod
    def _exponent(self, x):
        """(..., T, features), or (..., T, 1) where all features share it."""

    @abstractmethod
    def _wave(self, x):
        """What the exponential is multiplied by; it broadcasts to (..., T, features)."""

    def _query_exponent(self, Q):
        return self._exponent(Q)

    def _query(self, Q):
        exponent = self._query_exponent(Q)
        if self.shift is not None:
            exponent = exponent + self.shift
            exponent = exponent - exponent.detach().amax(-1, keepdim=True)
        return exponent.exp() * self._wave(Q)

    def _key(self, K):
        exponent = self._exponent(K)
        if self.shift is not None:
            exponent = exponent - self.shift
        return exponent.exp() * self._wave(K)

    def _fit(self, Q, K):
        return self._shifted(K)

    def _shifted(self, K):
        """A copy with the largest exponent of each feature over the keys for its shift."""
        fitted = copy(self)
        # Without keys any shift will do.
        fitted.shift = self._exponent(K).detach().amax(-2, keepdim=True) if K.shape[-2] else self.W.new_zeros(1, 1)
        return fitted

    def _check(self, method, name, x):
        super()._check(method, name, x)
        where = f"{type(self).__name__}.{method}"
        check_dtypes(where, {name: x, "W": self.W})
        check_shapes(where, {name: (x, "tn"), "W": (self.W, "mn")})


class RandomFourier(_RandomMap):
    """phi(x) = e^(|x|²/2) m^(-1/2) (cos ω_i·x, sin ω_i·x) for i < m: random Fourier features of exp(q · k).

    phi(q) · phi(k) = e^(|q|²/2 + |k|²/2) · mean_i cos ω_i·(q - k), an unbiased estimate of exp(q · k). Its relative
    variance is e^d (1 - e^(-d))² / 2m with d = |q - k|² for independent directions. It may be negative: for large
    norms the normaliser comes near zero.

    `fit` makes the features finite for norms that overflow otherwise; see `kernel_attention`.

    Args:
        W: (..., m, N) directions ω_i ~ N(0, I); 2m features.

    Raises:
        ShapeError: W has fewer than two axes.
        ValueError: W has no floating dtype.

    Cost:
        T·m·N multiply-adds, 2·T·m cosines and sines.

    Source:
        Rahimi and Recht 2007; Peng et al. 2021, "Random Feature Attention". The Mamba-2 paper, section 4.1.3, leaves
        out the factors: (cos, sin) alone estimates the Gaussian kernel exp(-|q - k|²/2), and attention with it is
        softmax(q · k - |k|²/2).
    """

    def __init__(self, W: torch.Tensor):
        super().__init__(W)
        self.features = 2 * W.shape[-2]

    def _exponent(self, x):
        return _half_square(x)

    def _wave(self, x):
        angles = x @ self.W.mT
        return torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(self.W.shape[-2])


class PositiveRandom(_RandomMap):
    """phi(x) = e^(-|x|²/2) m^(-1/2) exp(ω_i·x) for i < m: Performer's positive random features.

    phi(q) · phi(k) is positive and an unbiased estimate of exp(q · k) if every ω_i ~ N(0, I), as those of
    `gaussian_directions` and `orthogonal_directions` are. Its relative variance is (e^(|q + k|²) - 1) / m for
    independent directions: large norms need exponentially many.

    `fit` makes the features finite for norms that overflow otherwise; see `kernel_attention`.

    Args:
        W: (..., m, N) directions; m features.

    Raises:
        ShapeError: W has fewer than two axes.
        ValueError: W has no floating dtype.

    Cost:
        T·m·N multiply-adds, T·m exponentials.

    Source:
        Choromanski et al. 2021 (Performer, FAVOR+), Lemma 1. The Mamba-2 paper, section 4.1.3, leaves out
        e^(-|x|²/2): attention with the bare exponentials tends to softmax(q · k + |k|²/2).
    """

    def __init__(self, W: torch.Tensor):
        super().__init__(W)
        self.features = W.shape[-2]

    def _exponent(self, x):
        return x @ self.W.mT - _half_square(x)

    def _wave(self, x):
        return self.features**-0.5


class HyperbolicRandom(PositiveRandom):
    """phi(x) = e^(-|x|²/2) (2m)^(-1/2) (exp(ω_i·x), exp(-ω_i·x)) for i < m: each direction with both signs.

    The positive features of the directions (W, -W), whose estimate is a mean of hyperbolic cosines:
    phi(q) · phi(k) = e^(-|q|²/2 - |k|²/2) · mean_i cosh ω_i·(q + k). Its relative variance is that of 2m independent
    directions times 1 - e^(-|q + k|²).

    Args:
        W: (..., m, N) directions; 2m features.

    Raises:
        ShapeError: W has fewer than two axes.
        ValueError: W has no floating dtype.

    Cost:
        2·T·m·N multiply-adds, 2·T·m exponentials.

    Source:
        Choromanski et al. 2021 (Performer), Lemma 1. The Mamba-2 paper, section 4.1.3, writes
        2^(-1/2) (e^x, e^(-x)) of the projections x: the factors e^(-|x|²/2) and m^(-1/2) are missing.
    """

    def __init__(self, W: torch.Tensor):
        super().__init__(W)
        self.W = torch.cat([W, -W], dim=-2)
        self.features = self.W.shape[-2]


def _half_square(x):
    """|x|²/2, (..., T, 1)."""
    return x.square().sum(-1, keepdim=True) / 2
