"""Entrywise products of masks, and the masks that models are known by."""

import pytest
import torch

from smalearn.masks import (
    BandedMask,
    BlockDiagonalMask,
    CausalMask,
    DecayMask,
    FourierMask,
    HadamardMask,
    HierarchicalMask,
    IntersectionMask,
    LowRankMask,
    SemiseparableMask,
    ToeplitzMask,
    hadamard,
    retnet_decays,
    rotary_decay_mask,
)
from smalearn.sma import sma_linear, sma_quadratic, sma_sparse
from smalearn.testing import assert_close, random_tensors

T = 33
U, V, COLUMN, ROW, LOG_A = random_tensors([(T, 2), (T, 2), (T,), (T,), (T,)])
LOG_A = -LOG_A.abs()
LOG_A[4] = -torch.inf
GAMMA = torch.tensor([0.5, 0.9], dtype=torch.float64)
FACTORS = {
    "low rank": LowRankMask(U, V),
    "causal": CausalMask(T),
    "decay": DecayMask(T, 0.75),
    "decays": DecayMask(T, GAMMA),
    "identity": DecayMask(T, 0.0),
    "semiseparable": SemiseparableMask(LOG_A),
    "hierarchical": HierarchicalMask(LOG_A.roll(3), COLUMN[:, None] * torch.linspace(1, 2, 7)),
    "causal Toeplitz": ToeplitzMask(COLUMN),
    "Toeplitz": ToeplitzMask(COLUMN, ROW),
    "Fourier": FourierMask(T),
    "banded": BandedMask(T, T, 3),
    "blocks": BlockDiagonalMask(T, T, 3),
}
SCANS = ["causal", "decay", "decays", "identity"]
PRODUCTS = {
    HadamardMask: [("low rank", name) for name in FACTORS],
    CausalMask: [("causal", "causal")],
    DecayMask: [(one, other) for one in SCANS for other in SCANS if (one, other) != ("causal", "causal")],
    SemiseparableMask: [("semiseparable", name) for name in [*SCANS, "semiseparable"]],
    HierarchicalMask: [("hierarchical", name) for name in [*SCANS, "semiseparable"]],
    ToeplitzMask: [
        (one, other) for one in ("Toeplitz", "causal Toeplitz") for other in [*SCANS, "Toeplitz", "causal Toeplitz"]
    ],
    IntersectionMask: [(one, other) for one in ("banded", "blocks") for other in ("causal", "banded", "blocks")],
}
KNOWN = [(family, pair) for family, pairs in PRODUCTS.items() for pair in pairs]
every_product = pytest.mark.parametrize(
    ("family", "pair"), KNOWN, ids=[" ∘ ".join(pair).replace(" ", "-") for _, pair in KNOWN]
)


def dense(name):
    dtype = torch.complex128 if FACTORS[name].is_complex else torch.float64
    return FACTORS[name].dense(dtype)


@every_product
def test_products_of_masks_are_entrywise(family, pair):
    expected = dense(pair[0]) * dense(pair[1])
    for one, other in (pair, pair[::-1]):
        L = FACTORS[one] * FACTORS[other]
        assert type(L) is family
        assert L.shape == expected.shape
        assert_close(L.dense(expected.dtype), expected)
        (x,) = random_tensors([(T, 3)])
        x = x.to(expected.dtype)
        assert_close(L.matmul(x), expected @ x)
        assert_close(L.transpose_matmul(x), expected.mT @ x)
        assert_close(sma_linear(x, x, x, L), sma_quadratic(x, x, x, expected))


def test_the_other_pairs_are_refused():
    known = {frozenset(pair) for _, pair in KNOWN}
    refused = [(one, other) for one in FACTORS for other in FACTORS if frozenset((one, other)) not in known]
    assert ("Fourier", "decay") in refused
    assert ("banded", "Toeplitz") in refused
    for one, other in refused:
        L1, L2 = FACTORS[one], FACTORS[other]
        names = f"{type(L1).__name__} ∘ {type(L2).__name__}"
        message = rf"hadamard: no fast product is known for {names}; multiply L1.dense\(\) \* L2.dense\(\)"
        with pytest.raises(TypeError, match=message):
            hadamard(L1, L2)


def test_shapes_must_agree():
    with pytest.raises(TypeError, match="unsupported operand"):
        CausalMask(3) * torch.ones(3, 3)


def test_a_rectangular_causal_mask_cuts_a_toeplitz_mask_and_is_no_decay():
    column, row = random_tensors([(5,), (7,)])
    L = ToeplitzMask(column, row) * CausalMask(5, 7)
    assert_close(L.dense(torch.float64), ToeplitzMask(column, row).dense(torch.float64).tril())
    band = BandedMask(5, 7, 1) * CausalMask(5, 7)
    assert torch.equal(band.dense(), BandedMask(5, 7, 1).dense().tril())


def test_products_carry_gradients_to_both_factors():
    gamma, column, log_a = GAMMA.clone(), COLUMN[:9].clone(), LOG_A[5:14].clone()
    leaves = [one.requires_grad_() for one in (gamma, column, log_a)]
    (x,) = random_tensors([(9, 2)])
    assert torch.autograd.gradcheck(lambda g, c, a: (DecayMask(9, g) * ToeplitzMask(c)).matmul(x), leaves)
    assert torch.autograd.gradcheck(lambda g, c, a: (DecayMask(9, g) * SemiseparableMask(a)).matmul(x), leaves)


def test_low_rank_takes_one_product_for_each_rank(monkeypatch):
    columns = []
    product = DecayMask.matmul
    monkeypatch.setattr(DecayMask, "matmul", lambda self, x: columns.append(x.shape[-1]) or product(self, x))
    (x,) = random_tensors([(T, 5)])
    (FACTORS["low rank"] * FACTORS["decay"]).matmul(x)
    assert columns == [2 * 5]


def test_a_causal_window_has_no_other_ones():
    L = BandedMask(T, T, 3) * CausalMask(T)
    assert L.cost() == sum(min(t, 3) + 1 for t in range(T))
    (x,) = random_tensors([(T, 3)])
    assert_close(sma_sparse(x, x, x, L), sma_quadratic(x, x, x, L))
    assert repr(L) == "BandedMask(33, 33, window=3) * CausalMask(33, 33)"


# Masks of models


def test_retnet_decays():
    assert_close(retnet_decays(3), torch.tensor([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128]))


@pytest.mark.parametrize("gamma", [0.9, 1.0, 0.0])
def test_rotation_and_decay_are_one_complex_mask(gamma):
    """Turned queries and keys under a real decay are the real part of attention under the complex mask."""
    theta = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    Q, K, V = random_tensors([(T, 3, 2), (T, 3, 2), (T, 2)])  # three frequencies, each with two coordinates
    turns = torch.arange(T)[:, None] * theta
    rotation = torch.stack(
        [torch.stack([turns.cos(), -turns.sin()], -1), torch.stack([turns.sin(), turns.cos()], -1)], -2
    )
    turned_q, turned_k = (torch.einsum("tnij, tnj -> tni", rotation, x).flatten(1) for x in (Q, K))
    expected = sma_quadratic(turned_q, turned_k, V, DecayMask(T, gamma))
    L = rotary_decay_mask(T, gamma, theta)
    assert L.shape == (3, T, T)
    q, k = (torch.view_as_complex(x).mT[..., None] for x in (Q, K))  # (frequency, T, 1)
    for mode in (sma_quadratic, sma_linear):
        Y = mode(q, k.conj(), V + 0j, L)
        assert_close(Y.sum(0).real, expected)


def test_rotary_decay_has_a_gamma_for_each_head():
    gamma = torch.tensor([0.5, 0.75], dtype=torch.float64)
    L = rotary_decay_mask(5, gamma[:, None], torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert L.shape == (2, 3, 5, 5)
    z = torch.polar(gamma[1], torch.tensor(0.3).double())
    assert_close(L.dense(torch.complex128)[1, 2, 4, 1], z * z * z, tolerance=1e-7)


def test_numbers_are_angles_and_decays_in_double_precision():
    exact = torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    assert_close(
        rotary_decay_mask(10, 0.9, 0.3).dense(torch.complex128), rotary_decay_mask(10, *exact).dense(torch.complex128)
    )
