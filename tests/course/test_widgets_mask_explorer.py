"""The Python half of the mask explorer: its masks, scores, ranks and costs, its state, and its still picture."""

import numpy as np
import pytest
import torch

from smalearn.course.widgets import MaskExplorer
from smalearn.course.widgets.mask_explorer import FAMILIES
from smalearn.testing import assert_close

TEXT = "a b c d e. f g h a b c! d"
T = 12


def oracle(explorer):
    """Every entry of L from its definition, in plain Python."""
    e, size = explorer, len(explorer._words)
    factors = list(zip(e._U, e._V, strict=True))
    definitions = {
        "causal": lambda t, s: s <= t,
        "decay": lambda t, s: e.gamma ** (t - s) if s <= t else 0,
        "1-semiseparable": lambda t, s: np.prod(e.decays[s + 1 : t + 1]) if s <= t else 0,
        "Toeplitz": lambda t, s: e.alpha[t - s + size - 1],
        "Fourier": lambda t, s: np.exp(2j * np.pi * t * s / size),
        "low rank": lambda t, s: sum(factors[t][0][r] * factors[s][1][r] for r in range(e.rank)),
        "banded": lambda t, s: abs(t - s) <= e.window,
        "dilated": lambda t, s: any(abs(t - s) == i * e.dilation for i in range(e.window + 1)),
        "log-linear": lambda t, s: e.gamma ** (t - s) * e.growth ** (t ^ s).bit_length() if s <= t else 0,
        "block diagonal": lambda t, s: t // (size // e.blocks) == s // (size // e.blocks),
    }
    rows = [[definitions[e.family](t, s) for s in range(size)] for t in range(size)]
    return torch.tensor(np.array(rows, dtype=complex if e.family == "Fourier" else float))


STATES = [
    {"family": "causal"},
    *[{"family": "decay", "gamma": gamma} for gamma in (0, 0.5, 1)],
    {"family": "1-semiseparable"},
    {"family": "1-semiseparable", "decays": [0.9, 0, 1, 0.5, 0.1, 1, 1, 0.7, 0, 0.3, 0.2, 0.9]},
    {"family": "Toeplitz"},
    {"family": "Toeplitz", "alpha": np.linspace(-1, 1, 2 * T - 1) ** 3},
    {"family": "Fourier"},
    *[{"family": "low rank", "rank": rank, "seed": rank} for rank in (1, 3, 8)],
    *[{"family": "banded", "window": window} for window in (0, 3, T - 1)],
    *[{"family": "dilated", "window": window, "dilation": gap} for window, gap in [(0, 1), (2, 3), (5, 4)]],
    *[{"family": "block diagonal", "blocks": blocks} for blocks in (1, 4, T)],
    *[{"family": "log-linear", "gamma": gamma, "growth": growth} for gamma in (0, 0.9) for growth in (0, 1, 2)],
]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_mask_is_its_definition(state):
    explorer = MaskExplorer(TEXT, **state)
    L = oracle(explorer)
    assert_close(explorer.L, L)
    assert_close(explorer.mask.dense(L.dtype), L)
    assert_close(explorer.M, L * explorer.G)
    assert_close(explorer.weights, (L * explorer.G)[explorer.target])
    singular = [np.linalg.svd(L[k:, :k], compute_uv=False) for k in range(1, T)]
    assert explorer.ranks == [int((values > 1e-10 * values[0]).sum()) for values in singular]
    assert explorer.cost == explorer.mask.cost()


def test_every_family_is_among_the_states():
    assert list(dict.fromkeys(state["family"] for state in STATES)) == FAMILIES


@pytest.mark.parametrize(
    ("family", "operations"), [("decay", T * T + T * (T - 1)), ("Fourier", 6 * T * T + 2 * T * (T - 1))]
)
def test_dense_cost_counts_multiplications_and_additions(family, operations):
    assert MaskExplorer(TEXT, family=family).dense_cost == operations


def test_scores_count_equal_words():
    words = TEXT.split()
    G = [[sum(i <= min(t, s) and words[t - i] == words[s - i] for i in range(3)) for s in range(T)] for t in range(T)]
    assert MaskExplorer(TEXT).G.tolist() == G
    assert G[9][1] == 2


def test_random_scores_and_factors_come_from_the_seed():
    first, second, other = (MaskExplorer(TEXT, seed=seed, scores="random", family="low rank") for seed in (1, 1, 2))
    assert first.G.tolist() == second.G.tolist() != other.G.tolist()
    assert first.L.tolist() == second.L.tolist() != other.L.tolist()
    Q, K = torch.tensor(first._Q).double(), torch.tensor(first._K).double()
    assert torch.linalg.matrix_rank(first.G, rtol=1e-10) == Q.shape[1] == 4
    torch.testing.assert_close(first.G, Q @ K.T, rtol=1e-6, atol=1e-6)
    for factor in (first._U, first._V):
        assert np.abs(factor).max(0).tolist() == [1] * 8


def test_decays_forget_at_the_end_of_a_sentence():
    assert MaskExplorer(TEXT).decays == [0.98] * 5 + [0.6] + [0.98] * 5 + [0.6]


def test_the_text_is_the_zen_of_python():
    explorer = MaskExplorer()
    assert explorer._words[:5] == ["beautiful", "is", "better", "than", "ugly."]
    assert len(explorer._words) == 64
    assert explorer._words[explorer.target] == "than"  # of "sparse is better than", the fifth that is better
    assert (explorer.weights > 0).sum() == 6


def test_state_is_read_and_set():
    explorer = MaskExplorer(TEXT)
    explorer.decays = 0.5
    explorer.alpha = torch.linspace(1, 0, T)
    assert explorer.decays == [0.5] * T
    assert explorer.alpha[: T - 1] == [0] * (T - 1)
    assert explorer.alpha[T - 1] == 1
    explorer.alpha = [0.5] * (2 * T - 1)
    assert explorer.alpha == [0.5] * (2 * T - 1)
    explorer.family, explorer.gamma, explorer.target = "decay", 1, 3
    assert explorer.gamma == 1.0
    assert explorer.weights.tolist() == explorer.G[3].tolist()[:4] + [0] * 8


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match=r"^MaskExplorer: expected some of family, .*, scale, got gama$"):
        MaskExplorer(gama=0.5)


def test_two_words_are_enough():
    explorer = MaskExplorer("a a")
    for explorer.family in FAMILIES:
        assert explorer.ranks == [int(bool(explorer.L[1, 0]))]
