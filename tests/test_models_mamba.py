"""What is particular to the Mamba blocks: projections, step sizes, initial values, cuts by heads."""

import copy
import itertools
import math

import pytest
import torch
from registry_models import build, mamba2_loop, sequence
from torch.nn import functional

from smalearn import ShapeError
from smalearn.models import Mamba1, Mamba2, initial_dt_bias
from smalearn.ssd import ssd_quadratic, ssd_recurrent
from smalearn.testing import assert_close


@pytest.mark.parametrize("form", [ssd_quadratic, ssd_recurrent])
def test_operands_are_for_every_form_of_ssd(form):
    block = build("mamba2-groups")
    x = sequence(block, 2)
    X, log_a, B, C = block.operands(x)
    assert X.shape == (2, 3, 4, 17, 2)
    assert log_a.shape == (2, 3, 4, 17)
    assert B.shape == C.shape == (2, 3, 1, 17, 3)
    _, cache = block.prefill(x, block.start(2))
    assert_close(form(X, log_a, B, C)[1], cache.state)


def test_operands_are_checked():
    for name in ("mamba2", "mamba1"):
        with pytest.raises(ShapeError, match="operands: axis 'd'"):
            build(name).operands(torch.zeros(4, 9).double())


def test_step_sizes_are_kept_within_limits():
    block = build("mamba2")
    x = sequence(block)
    block.dt_limits = (0.02, 0.05)
    assert_close(block(x), mamba2_loop(block, x))
    dt = (-block.operands(x)[1] / block.A_log.exp()[:, None]).detach()
    assert dt.min() == pytest.approx(0.02)
    assert dt.max() == pytest.approx(0.05)


@pytest.mark.parametrize(
    "limits", [(0.1, 0.001), (-0.1, 0.1), (-1.0, -0.5), (math.nan, 1.0), (0.0, math.nan), (math.inf, math.inf)]
)
def test_limits_are_a_range_of_step_sizes(limits):
    block = build("mamba2")
    with pytest.raises(ValueError, match="Mamba2: dt_limits must be two numbers, 0 ≤ least ≤ greatest, got"):
        block.dt_limits = limits
    assert block.dt_limits == (0.0, math.inf)
    for wrong in (0.1, (0.1,), ("0", "1")):
        with pytest.raises(TypeError, match="Mamba2: dt_limits"):
            block.dt_limits = wrong
    block.dt_limits = [0.5, 0.5]  # a fixed step size
    dt = -copy.deepcopy(block).operands(sequence(block))[1] / block.A_log.exp()[:, None]
    assert_close(dt, torch.full_like(dt, 0.5))


def test_initial_values():
    torch.manual_seed(0)
    block = Mamba2(512, head_dim=1)
    dt = functional.softplus(block.dt_bias)
    assert dt.min() >= 0.99e-3
    assert dt.max() <= 0.101
    # log-uniform: a quarter of the range of the logarithm holds a quarter of the steps
    parts = torch.histc(dt.log(), 4, math.log(1e-3), math.log(0.1)) / len(dt)
    assert parts.sub(0.25).abs().max() < 0.05
    A = block.A_log.exp()
    assert A.min() >= 1
    assert A.max() <= 16
    assert torch.histc(A, 5, 1, 16).div(len(A)).sub(0.2).abs().max() < 0.05
    assert torch.equal(block.D, torch.ones(1024))
    older = Mamba1(32, state=4)
    assert older.rank == 2
    assert torch.equal(older.A_log.exp().round(), torch.tensor([1.0, 2, 3, 4]).repeat(64, 1))


def test_bias_inverts_the_softplus():
    torch.manual_seed(0)
    dt = functional.softplus(initial_dt_bias(1000, 1e-4, 1.0).double())
    assert 1e-4 * 0.99 < dt.min() < 2e-4
    assert 0.9 < dt.max() < 1.01


@pytest.mark.parametrize("name", ["mamba1", "mamba2"])
def test_finite_at_extreme_parameters(name):
    """A_log and the bias of dt where a diverging run takes them: e^100 overflows in float32, e^-100 underflows."""
    for A_log, bias in itertools.product((-300.0, 100.0, 300.0), repeat=2):
        block = build(name).float()
        with torch.no_grad():
            block.A_log.view(-1)[::2] = A_log
            (block.dt_bias if name == "mamba2" else block.dt_proj.bias)[1:] = bias
        x = sequence(block).float()
        Y = block(x)
        grads = torch.autograd.grad(Y.square().sum(), list(block.parameters()))
        assert all(torch.isfinite(tensor).all() for tensor in (Y, *grads))
