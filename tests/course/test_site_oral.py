"""What the page of oral questions answers, computed: its text stands in `smalearn/course/site/text/oral.md`."""

import math
from pathlib import Path

import pytest
import torch

from smalearn.course.site import home
from smalearn.testing import random_tensors

TEXT = (Path(home.__file__).parent / "text/oral.md").read_text(encoding="utf-8")
T, N, P = 30, 5, 4
X, B, C, DY = random_tensors([(T, P), (T, N), (T, N), (T, P)])
LOG_A = -random_tensors([(T,)], seed=1)[0].abs()


def model(log_a, X, B, C):
    """Return Y = (L ∘ CBᵀ) X, entry by entry."""
    later = torch.arange(T)[:, None] - torch.arange(T)
    sums = torch.stack([torch.stack([log_a[s + 1 : t + 1].sum() for s in range(T)]) for t in range(T)])
    return (torch.where(later >= 0, sums.exp(), 0) * (C @ B.mT)) @ X


def gradients():
    operands = [one.clone().requires_grad_() for one in (LOG_A, X, B, C)]
    Y = model(*operands)
    Y.backward(DY)
    return Y.detach(), *(one.grad for one in operands)


def test_the_gradient_of_a_decay_is_one_running_sum_from_the_end():
    Y, d_log_a, dX, *_ = gradients()
    terms = (DY * Y).sum(1) - (dX * X).sum(1)
    torch.testing.assert_close(terms.flip(0).cumsum(0).flip(0), d_log_a)


def test_backward_is_a_recurrence_from_the_last_token_to_the_first():
    _, _, dX, *_ = gradients()
    G = torch.zeros(P, N, dtype=X.dtype)
    for t in reversed(range(T)):
        G = (LOG_A[t + 1].exp() if t + 1 < T else 0) * G + torch.outer(DY[t], C[t])
        torch.testing.assert_close(G @ B[t], dX[t])


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
