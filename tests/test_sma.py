import pytest
import torch
from registry_masks import MASKS

from smalearn import ShapeError
from smalearn.masks import BandedMask, CausalMask, SparseMask
from smalearn.sma import LINEAR, QUADRATIC, sma_linear, sma_orders, sma_quadratic, sma_sparse
from smalearn.testing import assert_close, random_tensors

IDS = [f"{mask!r}-{index}" for index, (mask, _) in enumerate(MASKS)]
SPARSE = [(mask, entry) for mask, entry in MASKS if isinstance(mask, SparseMask)]


def loop(Q, K, V, L):
    """Equation (12), every axis a loop."""
    (target, features), (source, head_dim) = Q.shape, V.shape
    Y = torch.zeros(target, head_dim, dtype=Q.dtype)
    for t in range(target):
        for s in range(source):
            score = sum(Q[t, n] * K[s, n] for n in range(features))
            Y[t] += L[t, s] * score * V[s]
    return Y


@pytest.mark.parametrize(("mask", "entry"), MASKS, ids=IDS)
def test_quadratic_mode_is_the_loop_for_every_mask(mask, entry):
    target, source = mask.shape
    Q, K, V = random_tensors([(target, 3), (source, 3), (source, 2)])
    expected = loop(Q, K, V, mask.dense(torch.float64))
    assert_close(sma_quadratic(Q, K, V, mask), expected)
    assert_close(sma_quadratic(Q, K, V, mask.dense(torch.float64)), expected)
    assert_close(sma_quadratic(Q.float(), K.float(), V.float(), mask), expected)


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


def test_linear_mode_multiplies_by_a_structured_mask_once_and_never_forms_it(monkeypatch):
    columns = []
    product = CausalMask.matmul
    monkeypatch.setattr(CausalMask, "matmul", lambda self, x: columns.append(tuple(x.shape)) or product(self, x))
    monkeypatch.setattr(CausalMask, "dense", None)
    Q, K, V = random_tensors([(5, 3), (7, 3), (7, 2)])
    assert sma_linear(Q, K, V, CausalMask(5, 7)).shape == (5, 2)
    assert columns == [(7, 6)]


@pytest.mark.parametrize(("mask", "entry"), SPARSE, ids=[f"{mask!r}" for mask, _ in SPARSE])
@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_sparse_form_is_the_quadratic_form(mask, entry, leading):
    target, source = mask.shape
    Q, K, V = random_tensors([(*leading, target, 3), (*leading, source, 3), (source, 2)])
    assert_close(sma_sparse(Q, K, V, mask), sma_quadratic(Q, K, V, mask))


def test_leading_axes_and_a_mask_for_each_head():
    Q, K, V, L = random_tensors([(2, 1, 5, 3), (4, 7, 3), (7, 2), (2, 4, 5, 7)])
    Y = sma_quadratic(Q, K, V, L)
    assert Y.shape == (2, 4, 5, 2)
    assert_close(sma_linear(Q, K, V, L), Y)
    for b in range(2):
        for h in range(4):
            assert_close(Y[b, h], loop(Q[b, 0], K[h], V, L[b, h]))


@pytest.mark.parametrize("function", [sma_quadratic, sma_linear, sma_sparse])
def test_gradients(function):
    mask = BandedMask(5, 6, 1)
    operands = random_tensors([(5, 3), (6, 3), (6, 2)], grad=True)
    assert torch.autograd.gradcheck(lambda *qkv: function(*qkv, mask), operands)


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length):
    Q, K, V = random_tensors([(length, 3), (length, 3), (length, 2)])
    for mask in (CausalMask(length), BandedMask(length, length, 1)):
        assert_close(sma_quadratic(Q, K, V, mask), loop(Q, K, V, torch.ones(length, length)))
        assert_close(sma_linear(Q, K, V, mask), loop(Q, K, V, torch.ones(length, length)))
    assert_close(sma_sparse(Q, K, V, mask), loop(Q, K, V, torch.ones(length, length)))


def test_boolean_mask():
    Q, K, V = random_tensors([(5, 3), (5, 3), (5, 2)])
    L = CausalMask(5).dense(torch.bool)
    assert_close(sma_quadratic(Q, K, V, L), sma_quadratic(Q, K, V, CausalMask(5)))


@pytest.mark.parametrize("function", [sma_quadratic, sma_linear, sma_sparse])
@pytest.mark.parametrize(
    ("shapes", "mask", "message"),
    [
        (((5, 3), (5, 2), (5, 2)), (5, 5), "axis 'n' is 3 in Q but 2 in K"),
        (((5, 3), (5, 3), (4, 2)), (5, 5), "axis 's' is 5 in K but 4 in V"),
        (((5, 3), (5, 3), (5, 2)), (6, 5), "axis 't' is 5 in Q but 6 in L"),
        (((5, 3), (5, 3), (5, 2)), (5, 6), "axis 's' is 5 in K but 6 in L"),
        (((3,), (5, 3), (5, 2)), (5, 5), r"Q needs trailing axes \(T, N\), got shape \(3,\)"),
    ],
)
def test_shape_errors(function, shapes, mask, message):
    with pytest.raises(ShapeError, match=f"{function.__name__}: {message}"):
        function(*random_tensors(shapes), BandedMask(*mask, 1))


def test_other_errors():
    Q, K, V = random_tensors([(5, 3), (5, 3), (5, 2)])
    for function in (sma_quadratic, sma_linear):
        name = function.__name__
        with pytest.raises(ValueError, match=rf"{name}: V is torch.float32 but Q is torch.float64"):
            function(Q, K, V.float(), CausalMask(5))
        with pytest.raises(ValueError, match=rf"{name}: L is torch.float32 but Q is torch.float64"):
            function(Q, K, V, torch.ones(5, 5))
    with pytest.raises(TypeError, match="sma_sparse: L must be a SparseMask, got CausalMask; use sma_quadratic"):
        sma_sparse(Q, K, V, CausalMask(5))


def test_orders_name_both_modes_and_a_running_sum_changes_the_winner():
    dense = sma_orders(4096, 4096, 16, 64)
    scan = sma_orders(4096, 4096, 16, 64, scan=True)
    assert len(dense) == len(scan) == 15
    assert dense[0].name == QUADRATIC
    assert scan[0].name == LINEAR
    assert scan[0].macs == 3 * 4096 * 16 * 64
    assert sma_orders(32, 32, 16, 64, scan=True)[0].name == QUADRATIC
