import pytest
import torch
from registry_masks import MASKS

from smalearn.masks import CausalMask, SparseMask
from smalearn.sma import sma_linear, sma_quadratic, sma_sparse
from smalearn.testing import assert_close, random_tensors

IDS = [f"{mask!r}-{index}" for index, (mask, _) in enumerate(MASKS)]
SPARSE = [(mask, entry) for mask, entry in MASKS if isinstance(mask, SparseMask)]


@pytest.mark.parametrize(("mask", "entry"), MASKS, ids=IDS)
@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_linear_mode_is_the_quadratic_mode_for_every_mask(mask, entry, leading):
    target, source = mask.shape
    Q, K, V = random_tensors([(*leading, target, 3), (*leading, source, 3), (source, 2)])
    expected = sma_quadratic(Q, K, V, mask)
    assert_close(sma_linear(Q, K, V, mask), expected)
    assert_close(sma_linear(Q, K, V, mask.dense(torch.float64)), expected)
    assert_close(sma_linear(Q, K, V, mask.dense(torch.bool)), expected)
    assert_close(sma_linear(Q.float(), K.float(), V.float(), mask), expected)


@pytest.mark.parametrize(("mask", "entry"), SPARSE, ids=[f"{mask!r}" for mask, _ in SPARSE])
@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_sparse_form_is_the_quadratic_form(mask, entry, leading):
    target, source = mask.shape
    Q, K, V = random_tensors([(*leading, target, 3), (*leading, source, 3), (source, 2)])
    assert_close(sma_sparse(Q, K, V, mask), sma_quadratic(Q, K, V, mask))


def test_masks_that_do_not_fit():
    Q, K, V = random_tensors([(5, 3), (5, 3), (5, 2)])
    for function in (sma_quadratic, sma_linear):
        for L in (torch.ones(5, 5), CausalMask(6)):
            with pytest.raises(ValueError, match=rf"^{function.__name__}: .*\bL\b"):
                function(Q, K, V, L)
    with pytest.raises(TypeError, match=r"^sma_sparse: L must be a SparseMask, got CausalMask; use sma_quadratic"):
        sma_sparse(Q, K, V, CausalMask(5))
