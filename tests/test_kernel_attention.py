import math

import pytest
import torch
import torch.nn.functional as F

from smalearn import ShapeError
from smalearn.kernel_attention import softmax_attention, softmax_weights
from smalearn.masks import BandedMask, CausalMask
from smalearn.testing import assert_close, random_tensors


def loop(Q, K, V, L):
    """One row at a time, with Python's exp: the definition."""
    Y = torch.zeros(Q.shape[0], V.shape[1], dtype=torch.float64)
    for t in range(Q.shape[0]):
        weights = [L[t, s].item() * math.exp(Q[t] @ K[s]) for s in range(K.shape[0])]
        for s, weight in enumerate(weights):
            Y[t] += weight / (sum(weights) or 1) * V[s]
    return Y


MASKS = {
    "ones": torch.ones(5, 7, dtype=torch.float64),
    "causal": CausalMask(5, 7),
    "banded": BandedMask(5, 7, 1),
    "positive": random_tensors([(5, 7)], seed=9)[0].exp(),
    "decay with zeros": random_tensors([(5, 7)], seed=9)[0].exp().tril(),
    "empty rows": torch.ones(5, 7, dtype=torch.float64).tril(-2),
}


@pytest.mark.parametrize("name", MASKS)
def test_against_the_loop(name):
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    L = MASKS[name]
    dense = L if isinstance(L, torch.Tensor) else L.dense(torch.float64)
    assert_close(softmax_attention(Q, K, V, L), loop(Q, K, V, dense))
    M = softmax_weights(Q, K, L)
    assert (M >= 0).all()
    filled = dense.sum(-1) > 0
    assert_close(M.sum(-1), filled.double())
    assert torch.equal(M[dense == 0], torch.zeros_like(M[dense == 0]))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch(causal):
    Q, K, V = random_tensors([(2, 4, 6, 3), (2, 4, 6, 3), (2, 4, 6, 5)])
    ours = softmax_attention(Q, K, V, CausalMask(6) if causal else None)
    assert_close(ours, F.scaled_dot_product_attention(Q, K, V, is_causal=causal, scale=1.0))


def test_masks_with_leading_axes_broadcast():
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    L = torch.stack([MASKS["ones"], MASKS["positive"]])
    Y = softmax_attention(Q, K, V, L)
    assert_close(Y[1], softmax_attention(Q, K, V, L[1]))


@pytest.mark.parametrize("name", [None, "causal", "decay with zeros", "empty rows"])
def test_gradients(name):
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)], grad=True)
    L = MASKS[name] if name else None
    assert torch.autograd.gradcheck(lambda *qkv: softmax_attention(*qkv, L), (Q, K, V))


def test_gradient_of_a_positive_mask_and_none_at_structural_zeros():
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    L = MASKS["positive"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda L: softmax_attention(Q, K, V, L), L)
    L = MASKS["decay with zeros"].clone().requires_grad_()
    softmax_attention(Q, K, V, L).square().sum().backward()
    assert torch.isfinite(L.grad).all()
    assert torch.equal(L.grad[L == 0], torch.zeros_like(L.grad[L == 0]))


def test_huge_scores_and_tiny_masks_stay_finite():
    Q, K, V = (x.float() for x in random_tensors([(5, 3), (7, 3), (7, 2)]))
    assert torch.isfinite(softmax_attention(1e4 * Q, K, V, CausalMask(5, 7))).all()
    L = torch.full((5, 7), 1e-38)
    assert_close(softmax_attention(Q, K, V, L), softmax_attention(Q, K, V), tolerance=1e-5)


@pytest.mark.parametrize(("target", "source"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_short_sequences(target, source):
    Q, K, V = random_tensors([(target, 3), (source, 3), (source, 2)])
    for L in (None, CausalMask(target, source)):
        assert_close(softmax_attention(Q, K, V, L), loop(Q, K, V, torch.ones(target, source)))


def test_errors():
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    with pytest.raises(ShapeError, match="softmax_attention: axis 'n' is 3 in Q but 2 in K"):
        softmax_attention(Q, K[:, :2], V)
    with pytest.raises(ShapeError, match=r"softmax_attention: Q needs trailing axes \(T, N\), got shape \(3,\)"):
        softmax_attention(Q[0], K, V)
    with pytest.raises(ShapeError, match="softmax_attention: axis 't' is 5 in Q but 7 in L"):
        softmax_attention(Q, K, V, CausalMask(7))
    with pytest.raises(ShapeError, match="softmax_weights: axis 's' is 7 in K but 5 in L"):
        softmax_weights(Q, K, CausalMask(5))
    with pytest.raises(ValueError, match="softmax_attention: L must be non-negative, because"):
        softmax_attention(Q, K, V, -MASKS["ones"])
    with pytest.raises(ValueError, match=r"softmax_attention: K is torch.float32 but Q is torch.float64"):
        softmax_attention(Q, K.float(), V)
