"""The Python half of the feature explorer: its weights against sums over directions, what it refuses."""

import base64
import math

import numpy as np
import pytest
import torch
from registry_features import dot, elu_plus_one, fourier, hyperbolic, mean_over, positive

from smalearn.course.widgets import FeatureExplorer
from smalearn.course.widgets.feature_explorer import SEEDS, TEXT
from smalearn.data import zen_of_python
from smalearn.kernel_attention import gaussian_directions, orthogonal_directions
from smalearn.testing import assert_close

# name: (directions, features for each of them, term of the estimate)
TERMS = {
    "positive": (gaussian_directions, 512, 1, positive),
    "hyperbolic": (gaussian_directions, 512, 2, hyperbolic),
    "hyperbolic, orthogonal": (orthogonal_directions, 256, 2, hyperbolic),
    "Fourier": (gaussian_directions, 512, 2, fourier),
}
SETTINGS = [(4, 1, 0), (32, 0.25, 3), (16, 2.5, 1), (128, 4.0, 2)]


def vectors(words, norm):
    """The word and the two before it, one-hot, of one length."""
    names = list(dict.fromkeys(words))
    rows = []
    for t in range(len(words)):
        ones = [[float(t >= back and words[t - back] == name) for name in names] for back in range(3)]
        length = math.sqrt(min(t + 1, 3))
        rows.append([norm * x / length for code in ones for x in code])
    return rows


def weights(X, kernel):
    """Kernel attention on all earlier words, word by word."""
    M = torch.zeros(len(X), len(X), dtype=torch.float64)
    for t in range(1, len(X)):
        scores = [kernel(X[t], X[s], t, s) for s in range(t)]
        M[t, :t] = torch.tensor(scores, dtype=torch.float64) / sum(scores)
    return M


@pytest.mark.parametrize(("features", "norm", "seed"), SETTINGS)
@pytest.mark.parametrize("name", TERMS)
def test_estimate_is_the_mean_over_directions(name, features, norm, seed):
    draw, count, each, term = TERMS[name]
    X = vectors(TEXT.split(), norm)
    W = draw(count, len(X[0]), seed, torch.float32).double()[: features // each]
    explorer = FeatureExplorer(map=name, features=features, norm=norm, seed=seed)
    assert explorer.phi.features == features
    assert_close(explorer.estimate, weights(X, mean_over(W, term)), 1e-10)  # Fourier's sums cancel


def test_estimate_of_elu_is_its_own_kernel():
    explorer = FeatureExplorer(map="1 + elu", norm=2)
    X = vectors(TEXT.split(), 2)
    assert_close(explorer.estimate, weights(X, lambda q, k, i, j: dot(elu_plus_one(q), elu_plus_one(k))))
    before = explorer.error
    explorer.features, explorer.seed = 512, 3
    assert explorer.error == before


@pytest.mark.parametrize("norm", [0.25, 1, 4])
def test_weights_are_those_of_softmax_and_the_error_is_relative(norm):
    explorer = FeatureExplorer("a b a b c a", norm=norm)
    exact = weights(vectors(list("ababca"), norm), lambda q, k, i, j: math.exp(dot(q, k)))
    assert_close(explorer.weights, exact)
    assert explorer.error == pytest.approx(((explorer.estimate - exact).norm() / exact.norm()).item())


def test_the_browser_gets_the_directions_of_the_package():
    explorer = FeatureExplorer("a b c")
    for kind, draw, count in [("gaussian", gaussian_directions, 512), ("orthogonal", orthogonal_directions, 256)]:
        assert len(explorer._draws[kind]) == SEEDS
        for seed, packed in enumerate(explorer._draws[kind]):
            numbers = np.frombuffer(base64.b64decode(packed), "<f4").reshape(count, 9)
            np.testing.assert_array_equal(numbers, draw(count, 9, seed, torch.float32).numpy())


def test_text_is_from_the_zen():
    assert TEXT in " ".join(zen_of_python().lower().split())
