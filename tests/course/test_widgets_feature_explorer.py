"""The Python half of the feature explorer: its weights against sums over directions, what it refuses."""

import base64
import math
import re
from statistics import median

import numpy as np
import pytest
import torch
from registry_features import dot, elu_plus_one, fourier, hyperbolic, mean_over, positive

from smalearn.course.widgets import FeatureExplorer
from smalearn.course.widgets.feature_explorer import MAPS, SEEDS, SIZES, TEXT
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


def test_fewer_directions_are_among_more():
    few, many = (FeatureExplorer(map="positive", features=count).phi.W for count in (8, 512))
    assert torch.equal(few, many[:8])


@pytest.mark.parametrize("name", [name for name in MAPS if name != "1 + elu"])
def test_error_falls_with_features_and_grows_with_the_norm(name):
    def error(features, norm):
        return median(FeatureExplorer(map=name, features=features, norm=norm, seed=seed).error for seed in range(SEEDS))

    assert error(512, 1) < error(64, 1) / 2
    assert error(512, 2) > 2 * error(512, 1)


def test_text_is_from_the_zen():
    assert TEXT in " ".join(zen_of_python().lower().split())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"text": "one"}, "text, expected 2 to 16 words, got 1"),
        ({"text": "a " * 17}, "text, expected 2 to 16 words, got 17"),
        (
            {"map": "cosFormer"},
            "map, expected one of 'positive', 'hyperbolic', 'hyperbolic, orthogonal', 'Fourier', '1 + elu', "
            "got 'cosFormer'",
        ),
        ({"features": 48}, "features, expected one of 4, 8, 16, 32, 64, 128, 256, 512, got 48"),
        ({"features": 64.0}, "features, expected one of 4, 8, 16, 32, 64, 128, 256, 512, got 64.0"),
        ({"seed": 4}, "seed, expected one of 0, 1, 2, 3, got 4"),
        ({"seed": True}, "seed, expected one of 0, 1, 2, 3, got True"),
        ({"norm": 0.2}, "norm, expected a number from 0.25 to 4, got 0.2"),
        ({"norm": math.nan}, "norm, expected a number from 0.25 to 4, got nan"),
        ({"norm": "1"}, "norm, expected a number from 0.25 to 4, got '1'"),
        ({"norm": True}, "norm, expected a number from 0.25 to 4, got True"),
        ({"row": 15}, "row, expected an int from 0 to 14, got 15"),
        ({"row": -1}, "row, expected an int from 0 to 14, got -1"),
        ({"row": 1.0}, "row, expected an int from 0 to 14, got 1.0"),
        ({"row": False}, "row, expected an int from 0 to 14, got False"),
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(state, message):
    with pytest.raises(ValueError, match=f"^{re.escape('FeatureExplorer: ' + message)}$"):
        FeatureExplorer(**state)


@pytest.mark.parametrize("name", ["map", "features", "norm", "seed", "row"])
def test_nothing_is_no_state(name):
    explorer = FeatureExplorer()
    with pytest.raises(ValueError, match=f"^FeatureExplorer: {name}, expected .*, got None$"):
        explorer.set_trait(name, None)


def test_a_refused_state_changes_nothing():
    explorer = FeatureExplorer(features=SIZES[-1], norm=4)
    with pytest.raises(ValueError, match="norm, expected a number"):
        explorer.norm = 5
    assert repr(explorer) == "FeatureExplorer(15 words, map='hyperbolic', features=512, norm=4, seed=0, row=13)"
