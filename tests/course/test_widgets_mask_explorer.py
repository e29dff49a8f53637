"""The Python half of the mask explorer: scores, defaults and state; the browser compares masks, ranks and costs."""

import numpy as np
import pytest
import torch

from smalearn.course.widgets import MaskExplorer
from smalearn.course.widgets.mask_explorer import FAMILIES

TEXT = "a b c d e. f g h a b c! d"
T = 12


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
