"""What the page of oral questions answers, computed: its text stands in `smalearn/course/site/text/oral.md`."""

import math
from pathlib import Path

import pytest
import torch

from smalearn.course.site import home
from smalearn.testing import random_tensors

TEXT = (Path(home.__file__).parent / "text/oral.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.9, 2.0])
def test_equal_keys_have_a_tame_inverse_and_wild_powers(beta):
    A = torch.full((32, 32), beta, dtype=torch.float64).tril(-1)
    apart = torch.arange(32)[:, None] - torch.arange(32)
    formula = torch.where(
        apart > 0, -beta * (1 - torch.tensor(beta, dtype=torch.float64)) ** (apart - 1).clamp(min=0), apart == 0
    )
    inverse = torch.linalg.inv(torch.eye(32, dtype=A.dtype) + A)
    torch.testing.assert_close(inverse, formula)
    assert inverse.abs().max() <= 2 < 1e3 < torch.linalg.matrix_power(A, 8).abs().max()


@pytest.mark.parametrize(("features", "pairs"), [(64, 16), (128, 40)])
def test_crosstalk_of_random_keys(features, pairs):
    K, V = random_tensors([(200, pairs, features), (200, pairs, 32)])
    K = torch.nn.functional.normalize(K, dim=-1)
    error = (K @ (K.mT @ V) - V).square().mean().sqrt()
    assert error == pytest.approx(math.sqrt((pairs - 1) / features), rel=0.02)


def test_a_window_has_one_rank_less_than_tokens():
    apart = torch.arange(20)[:, None] - torch.arange(20)
    (values,) = random_tensors([(20, 20)])
    window = values * ((apart >= 0) & (apart < 4))
    assert max(int(torch.linalg.matrix_rank(window[k:, :k])) for k in range(1, 20)) == 3


def test_the_numbers_in_the_text():
    assert "no more than\n5,360 features" in TEXT
    assert 5300 < 100 * (math.exp(4) - 1) <= 5360
    assert 8e8 < 100 * (math.exp(16) - 1) < 9e8
    assert round(math.log(2) / 0.001) == 693
    assert round(math.log(2) / (0.1 * 16), 2) == 0.43
    assert len(TEXT.split()) <= 1500
