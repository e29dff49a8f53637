"""Scans: three algorithms of one recurrence, exact at γ = 0 and 1, at resets, and after strong decays."""

import math

import oracles_mixing as oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalearn.masks import (
    CausalMask,
    DecayMask,
    SemiseparableMask,
    decay_matrix,
    scan_associative,
    scan_chunked,
    scan_recurrent,
    segsum,
)
from smalearn.testing import assert_close, random_tensors

SCANS = [scan_recurrent, scan_chunked, scan_associative]
LENGTHS = [0, 1, 2, 15, 16, 17, 31, 256, 257, 331]


def mixed(*shape, dtype=torch.float64, seed=4):
    """Mild decays with a reset and a decay by exp(-1e4) among them."""
    log_a = -random_tensors([shape], seed)[0].abs() / 8
    log_a[..., 3::13], log_a[..., 7::17] = -torch.inf, -1e4
    return log_a.to(dtype)


@given(st.data())
def test_scans_agree_for_any_decays_and_chunks(data):
    length = data.draw(st.integers(0, 70))
    decay = st.one_of(st.floats(-3, 0), st.sampled_from([0.0, -1e4, -math.inf]))
    log_a = torch.tensor(data.draw(st.lists(decay, min_size=length, max_size=length)), dtype=torch.float64)
    (x,) = random_tensors([(length, 2)])
    expected = oracles.scan(x, log_a)
    assert_close(scan_chunked(x, log_a, data.draw(st.integers(2, 80))), expected)
    assert_close(scan_associative(x, log_a), expected)
    assert_close(decay_matrix(log_a) @ x, expected)


def test_parameters_in_half_precision_are_computed_in_float32():
    gamma, log_a = torch.tensor(0.99).bfloat16(), mixed(300).bfloat16()
    for narrow, wide in (
        (DecayMask(300, gamma), DecayMask(300, gamma.double())),
        (SemiseparableMask(log_a), SemiseparableMask(log_a.double())),
    ):
        assert_close(narrow.dense(torch.float32), wide.dense(torch.float64))
        (x,) = random_tensors([(300, 2)])
        assert_close(narrow.matmul(x), wide.matmul(x))


@pytest.mark.parametrize("scan", [scan_recurrent, scan_chunked, scan_associative])
def test_complex_decays_with_resets(scan):
    (x,) = random_tensors([(12, 2)])
    log_a = torch.complex(-torch.arange(12.0).double() / 9, torch.arange(12.0).double())
    log_a[[1, 2, 7]] = complex(-torch.inf, 0)
    expected = scan_recurrent(x[7:].to(torch.complex128), log_a[7:])
    result = scan(x.to(torch.complex128), log_a)
    assert not result.isnan().any()
    assert_close(result[7:], expected)


@pytest.mark.parametrize(("target", "source"), [(65, 65), (300, 100), (100, 300), (4200, 4200)])
def test_running_sums_over_many_chunks(target, source):
    x, y = random_tensors([(2, source, 3), (2, target, 3)])
    L = torch.ones(target, source, dtype=torch.float64).tril()
    assert_close(CausalMask(target, source).matmul(x), L @ x)
    assert_close(CausalMask(target, source).transpose_matmul(y), L.mT @ y)
    assert_close(CausalMask(target, source).matmul(x.float()), L @ x)


def test_running_sums_of_integers_count():
    for dtype in (torch.int64, torch.int32):
        counts = CausalMask(200).matmul(torch.ones(200, 1, dtype=dtype))
        assert counts.dtype == dtype
        assert torch.equal(counts[:, 0], torch.arange(1, 201, dtype=dtype))


def test_segment_sums_have_leading_axes_and_both_dtypes():
    log_a = mixed(2, 4, 11)
    assert segsum(log_a.float()).dtype == torch.float32
    assert_close(segsum(log_a)[1, 2].exp(), oracles.decays(log_a[1, 2].exp()))


# The constant decay


@pytest.mark.parametrize("length", [1, 2, 16, 17, 300])
def test_decay_one_is_causal_and_decay_zero_the_identity(length):
    (x,) = random_tensors([(length, 3)])
    assert torch.equal(DecayMask(length, 1.0).dense(), CausalMask(length).dense())
    assert_close(DecayMask(length, 1.0).matmul(x), CausalMask(length).matmul(x))
    assert torch.equal(DecayMask(length, 0.0).dense(), torch.eye(length))
    assert torch.equal(DecayMask(length, 0.0).matmul(x), x)
    assert torch.equal(DecayMask(length, 0.0).transpose_matmul(x), x)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("length", [2, 17, 300])
def test_gradient_of_gamma_is_that_of_its_powers(value, length):
    """dL[t, s]/dγ = (t-s) γ^(t-s-1); at γ = 0 that is the first diagonal below."""
    x, dY = random_tensors([(length, 3), (length, 3)])
    steps = torch.arange(length, dtype=torch.float64)
    offsets = steps[:, None] - steps
    slope = torch.where(offsets > 0, offsets * value ** (offsets - 1).clamp(min=0), 0)
    expected = (dY * (slope @ x)).sum()
    for run in (DecayMask.matmul, lambda mask, x: mask.dense(torch.float64) @ x):
        gamma = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        (outputs,) = torch.autograd.grad(run(DecayMask(length, gamma), x), gamma, dY)
        assert_close(outputs, expected)


def test_long_float32_products_keep_their_digits():
    (x,) = random_tensors([(5000, 2)])
    gamma, log_a = torch.tensor(0.9999), mixed(5000).float() / 100
    assert_close(DecayMask(5000, gamma).matmul(x.float()), DecayMask(5000, gamma.double()).matmul(x))
    assert_close(SemiseparableMask(log_a).matmul(x.float()), oracles.scan(x, log_a.double()))
