"""Every feature map under test with its kernel in plain Python. A new map adds lines here and inherits the suite."""

import math

from torch import float64

from smalearn.kernel_attention import (
    CosFormer,
    EluPlusOne,
    HyperbolicRandom,
    LinearRandomized,
    PositiveRandom,
    PowerSeries,
    RandomFourier,
    gaussian_directions,
    orthogonal_directions,
)

INPUTS = 3


def dot(q, k):
    return sum(a * b for a, b in zip(q, k, strict=True))


def elu_plus_one(x):
    return [a + 1 if a > 0 else math.exp(a) for a in x]


def relu(x):
    return [max(a, 0.0) for a in x]


def mean_over(W, term):
    """term(ω·q, ω·k, |q|²/2, |k|²/2), averaged over the rows of W."""

    def kernel(q, k, i, j):
        terms = [term(dot(w, q), dot(w, k), dot(q, q) / 2, dot(k, k) / 2) for w in W.tolist()]
        return sum(terms) / len(terms)

    return kernel


def fourier(a, b, q, k):
    return math.exp(q + k) * math.cos(a - b)


def positive(a, b, q, k):
    return math.exp(a + b - q - k)


def hyperbolic(a, b, q, k):
    return math.exp(-q - k) * math.cosh(a + b)


W, ORTHOGONAL = gaussian_directions(5, INPUTS, 0, float64), orthogonal_directions(5, INPUTS, 0, float64)

# name: (map, k(q, k, i, j)), where query q stands at position i and key k at position j. All before any fit.
MAPS = {
    "elu + 1": (EluPlusOne(INPUTS), lambda q, k, i, j: dot(elu_plus_one(q), elu_plus_one(k))),
    "cosFormer": (
        CosFormer(INPUTS, horizon=9),
        lambda q, k, i, j: dot(relu(q), relu(k)) * math.cos(math.pi * (i - j) / 18),
    ),
    "cosFormer from 2": (
        CosFormer(INPUTS, horizon=9, offset=2),
        lambda q, k, i, j: dot(relu(q), relu(k)) * math.cos(math.pi * (i - j) / 18),
    ),
    "Taylor": (PowerSeries.exp(INPUTS, 3), lambda q, k, i, j: 1 + dot(q, k) + dot(q, k) ** 2 / 2 + dot(q, k) ** 3 / 6),
    "series": (PowerSeries(INPUTS, [2, -3, 0, 0.5]), lambda q, k, i, j: 2 - 3 * dot(q, k) + dot(q, k) ** 3 / 2),
    "constant": (PowerSeries(INPUTS, [2]), lambda q, k, i, j: 2.0),
    "Fourier": (RandomFourier(W), mean_over(W, fourier)),
    "Fourier, orthogonal": (RandomFourier(ORTHOGONAL), mean_over(ORTHOGONAL, fourier)),
    "positive": (PositiveRandom(W), mean_over(W, positive)),
    "positive, orthogonal": (PositiveRandom(ORTHOGONAL), mean_over(ORTHOGONAL, positive)),
    "hyperbolic": (HyperbolicRandom(W), mean_over(W, hyperbolic)),
    "linear randomized": (LinearRandomized(W[:4]), mean_over(W[:4], positive)),
}
