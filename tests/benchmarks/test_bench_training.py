"""The benchmark of training: all routes are one function, models are of one size, and slopes follow from samples."""

import math

import pytest
import torch
from comparing import all_close

from benchmarks import training
from benchmarks.problem import Problem
from smalearn.models import Block, Mamba1, Mamba2, SoftmaxAttention
from smalearn.testing import assert_close, random_tensors

TINY = Problem(length=33, heads=2, head_dim=3, backward=True)


@pytest.mark.parametrize(
    ("fused", "plain"),
    [(training.FusedAttention(8, heads=2), SoftmaxAttention(8, heads=2)), (training.ScannedMamba1(8, 3), Mamba1(8, 3))],
    ids=["attention", "Mamba-1"],
)
def test_the_faster_forms_are_the_mixers_of_the_library(fused, plain):
    plain.load_state_dict(fused.state_dict())
    fused, plain = fused.double(), plain.double()
    (x,) = random_tensors([(2, 13, 8)])
    assert_close(fused(x), plain(x))
    grads, expected = (torch.autograd.grad(one(x).square().sum(), list(one.parameters())) for one in (fused, plain))
    all_close(grads, expected)


def test_a_wrong_route_is_not_timed_and_has_no_slope(here, monkeypatch):
    right = training.ROUTES["SSD"]
    monkeypatch.setitem(training.ROUTES, "SSD", lambda *x: right(*x) * (1 + 1e-3 * (x[2].shape[-1] == 4)))
    part = training.growth(TINY, (2, 4), 1, dict)
    assert ["seconds" in one["contestants"]["SSD"] for one in part["contests"]] == [True, False]
    assert set(training.samples(part)) == set(part["slopes"]) == {"selective scan", "selective loop"}
    ((small,), (large,)) = training.samples(part)["selective scan"]
    assert part["slopes"]["selective scan"] == pytest.approx([math.log2(large / small)])


def test_a_model_that_decodes_otherwise_is_not_timed(monkeypatch):
    class Wrong(Mamba2):
        def forward(self, x):
            return super().forward(x) * 1.001

    monkeypatch.setitem(training.MODELS, "Mamba-2", lambda dim: [Block(Wrong(dim, 4, 4))])
    part = training.steps(8, (1, 5), 2)["contestants"]
    assert not part["Mamba-2"]["tolerated"]
    assert "seconds" not in part["Mamba-2"]
    assert all(len(one["seconds"]) == 2 for name, one in part.items() if name != "Mamba-2")
    assert part["Mamba-1, scan"]["parameters"] == part["Mamba-1, loop"]["parameters"] > 0
