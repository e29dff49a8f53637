import math

import pytest
import torch
import torch.nn.functional as F
from covering import with_each
from registry_features import INPUTS, MAPS
from torch.utils.flop_counter import FlopCounterMode

from smalearn.kernel_attention import (
    CosFormer,
    EluPlusOne,
    HyperbolicRandom,
    LinearRandomized,
    PositiveRandom,
    RandomFourier,
    gaussian_directions,
    iterated_pinv,
    kernel_attention,
    nystrom,
    segment_means,
    softmax_attention,
    softmax_weights,
)
from smalearn.masks import BandedMask, CausalMask
from smalearn.testing import assert_close, random_tensors


def loop(Q, K, V, kernel, L):
    """One target at a time, with the kernel's definition in plain Python."""
    Y = torch.zeros(Q.shape[0], V.shape[1], dtype=torch.float64)
    for t, q in enumerate(Q.tolist()):
        weights = [L[t, s].item() * kernel(q, k, t, s) for s, k in enumerate(K.tolist())]
        for s, weight in enumerate(weights):
            Y[t] += weight / (sum(weights) or 1) * V[s]
    return Y


def exp(q, k, t, s):
    return math.exp(sum(a * b for a, b in zip(q, k, strict=True)))


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
    assert_close(softmax_attention(Q, K, V, L), loop(Q, K, V, exp, dense))
    M = softmax_weights(Q, K, L)
    assert (M >= 0).all()
    filled = dense.sum(-1) > 0
    assert_close(M.sum(-1), filled.double())
    assert torch.equal(M[dense == 0], torch.zeros_like(M[dense == 0]))


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


# ---------------------------------------------------------------------------------------------- kernel attention


@pytest.mark.parametrize(("name", "mask"), with_each(MASKS, MAPS, lambda name: type(MAPS[name][0])))
def test_kernel_attention_is_the_loop(name, mask):
    phi, kernel = MAPS[name]
    Q, K, V = random_tensors([(5, INPUTS), (7, INPUTS), (7, 2)])
    L = MASKS[mask]
    dense = L if isinstance(L, torch.Tensor) else L.dense(torch.float64)
    Y = kernel_attention(Q, K, V, phi, L)
    assert_close(Y, loop(Q, K, V, kernel, dense), 1e-11)
    if mask == "ones":
        assert_close(kernel_attention(Q, K, V, phi), Y, 1e-11)
    if isinstance(phi, RandomFourier | PositiveRandom) and not isinstance(phi, LinearRandomized):
        assert_close(kernel_attention(Q, K, V, phi.fit(Q, K), L), Y, 1e-11)


@pytest.mark.parametrize("L", [None, CausalMask(6), torch.ones(6, 6).tril().bool()], ids=["none", "causal", "boolean"])
def test_kernel_attention_broadcasts_leading_axes(L):
    Q, K, V = random_tensors([(2, 4, 6, 3), (2, 1, 6, 3), (4, 6, 5)])
    W = gaussian_directions(7, 3, 0, torch.float64)
    phi = HyperbolicRandom(torch.stack([W, 2 * W]).unsqueeze(1))  # other directions for each entry of the batch
    Y = kernel_attention(Q, K, V, phi.fit(Q, K), L)
    assert_close(Y[1, 3], kernel_attention(Q[1, 3], K[1, 0], V[3], HyperbolicRandom(2 * W), L))


@pytest.mark.parametrize("mask", [None, "causal", "decay with zeros", "empty rows"])
@pytest.mark.parametrize("name", ["elu + 1", "Taylor", "positive", "linear randomized"])
def test_kernel_attention_gradients(name, mask):
    Q, K, V = random_tensors([(5, INPUTS), (7, INPUTS), (7, 2)], grad=True)
    L = MASKS[mask] if mask else None
    phi = MAPS[name][0]

    def fitted(Q, K, V):
        return kernel_attention(Q, K, V, phi.fit(Q, K), L)

    assert torch.autograd.gradcheck(fitted, (Q, K, V))


@pytest.mark.parametrize("build", [PositiveRandom, HyperbolicRandom, RandomFourier, LinearRandomized])
def test_fitted_attention_is_finite_for_large_norms(build):
    Q, K, V = (x.float() for x in random_tensors([(20, 16), (30, 16), (30, 4)]))
    Q, K = (1000**0.5 * F.normalize(x, dim=-1) for x in (Q, K))
    phi = build(gaussian_directions(16, 16, 0))
    for L in (None, CausalMask(20, 30)):
        assert kernel_attention(Q, K, V, phi.fit(Q, K), L).isfinite().all()
    one = kernel_attention(Q[:1], K[:1], V[:1], type(phi)(phi.W[:1]).fit(Q[:1], K[:1]))
    assert_close(one, V[:1], 1e-4)


def test_rows_without_weight_are_zero_and_pass_no_nan_back():
    Q = torch.tensor([[-1.0, -2.0], [1.0, 2.0]], requires_grad=True)
    K, V = (x.float().requires_grad_() for x in random_tensors([(4, 2), (4, 3)]))
    Y = kernel_attention(Q, K.abs(), V, CosFormer(2, horizon=4))
    assert torch.equal(Y[0], torch.zeros(3))
    assert (Y[1] != 0).all()
    Y.sum().backward()
    assert all(x.grad.isfinite().all() for x in (Q, K, V))


def test_kernel_attention_is_linear_in_the_length_unless_the_mask_is_a_tensor():
    def flops(length, mask):
        Q, K, V = random_tensors([(length, 3), (length, 3), (length, 4)])
        with FlopCounterMode(display=False) as counter:
            kernel_attention(Q, K, V, EluPlusOne(3), mask and mask(length))
        return counter.get_total_flops()

    assert flops(50, None) == 2 * (50 + 50) * 3 * (4 + 1)
    growth = [flops(100, mask) / flops(50, mask) for mask in (None, CausalMask, lambda T: CausalMask(T).dense().bool())]
    assert growth == [2, 2, 4]


# ------------------------------------------------------------------------------------------- low-rank attention


@pytest.mark.parametrize(("landmarks", "leading"), [(1, ()), (3, (2,)), (4, (2, 3))])
def test_nystrom_is_three_softmax_matrices(landmarks, leading):
    Q, K, V = random_tensors([(*leading, 6, 3), (*leading, 9, 3), (*leading, 9, 2)])
    Q_means, K_means = segment_means(Q, landmarks), segment_means(K, landmarks)
    left, A, right = ((q @ k.mT).softmax(-1) for q, k in [(Q, K_means), (Q_means, K_means), (Q_means, K)])
    exact = left @ torch.linalg.pinv(A) @ right @ V
    assert_close(nystrom(Q, K, V, landmarks, iterations=40), exact, 1e-9)
    Z = A.mT / (A.sum(-2).amax(-1) * A.sum(-1).amax(-1))[..., None, None]
    eye = torch.eye(landmarks, dtype=torch.float64)
    for _ in range(6):
        Z = 0.25 * Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z)))
    assert_close(nystrom(Q, K, V, landmarks), left @ Z @ right @ V, 1e-11)


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (7, 4), (1, 1)])
def test_iterated_pinv_is_the_pseudo_inverse(shape):
    (A,) = random_tensors([(3, *shape)])
    A = A * torch.tensor([1, 1e-6, 1e6], dtype=torch.float64)[:, None, None]  # each with a scale of its own
    Z = iterated_pinv(A, 40)
    for i in range(3):
        assert_close(Z[i], torch.linalg.pinv(A[i]), 1e-9)
    rank_one = A[:, :, :1] * A[:, :1, :]
    for i in range(3):
        assert_close(iterated_pinv(rank_one, 12)[i], torch.linalg.pinv(rank_one[i]), 1e-9)


def test_errors():
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    with pytest.raises(ValueError, match=r"^softmax_attention: L must be non-negative, because"):
        softmax_attention(Q, K, V, -MASKS["ones"])
    with pytest.raises(ValueError, match=r"^nystrom: landmarks must be at most the shorter length 5, got 6"):
        nystrom(Q, K, V, 6)
