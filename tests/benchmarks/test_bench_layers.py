"""The benchmarks `masks`, `weights` and `bilinear`: products are right, wrong ones have no time, targets are bounds."""

import importlib.util
import math

import pytest
import torch
from comparing import all_close

from benchmarks import bilinear, masks, weights
from benchmarks.training import FusedAttention
from smalearn.masks import CausalMask
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockTensorTrain

BTT = "BTT, s = 1"
OTHERS = [(family, other) for family, others in weights.OTHERS.items() for other in others if other != weights.COLA]


def scaled(method, factor):
    return lambda self, *x: factor * method(self, *x)


def without_gradient(method, factor):
    return lambda self, X: method(self, X.detach()) + 0 * method(self, X)


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
@pytest.mark.parametrize(
    ("owner", "method", "wrong", "name", "run"),
    [
        (CausalMask, "_product", scaled, "structured", lambda: masks.compare("causal", 64, 3, 2)),
        (BlockTensorTrain, "_product", scaled, "structured", lambda: weights.compare("BTT", 256, False, 3, 2)),
        (BlockTensorTrain, "_product", scaled, "structured", lambda: weights.compare("BTT", 256, True, 3, 2)),
        (BlockTensorTrain, "_product", without_gradient, "structured", lambda: weights.compare("BTT", 256, True, 3, 2)),
        (BlockTensorTrain, "dense", scaled, BTT, lambda: bilinear.compare(64, 9, 4, False, 2)),
        (BlockTensorTrain, "dense", scaled, BTT, lambda: bilinear.compare(64, 9, 4, True, 2)),
    ],
)
def test_a_wrong_product_is_not_timed(owner, method, wrong, name, run, factor, monkeypatch):
    monkeypatch.setattr(owner, method, wrong(getattr(owner, method), factor))
    part = run()
    assert not part["contestants"][name]["tolerated"]
    assert "seconds" not in part["contestants"][name]
    assert all(name != base and name not in others for base, others in part["speedups"].items())
    assert part.get("reached") is None


# Weights


@pytest.mark.parametrize(("family", "other"), OTHERS)
def test_others_multiply_by_the_same_matrix_for_any_rank(family, other):
    weight = weights.FAMILIES[family](256)
    if family == "BTT":
        weight = BlockTensorTrain.random((3, 4, 2, 6), 3, 0, torch.float64)
    weight = weight.double()
    (x,) = random_tensors([(5, weight.shape[1])])
    assert_close(weights.OTHERS[family][other](weight)(x), x @ weight.dense().mT)


@pytest.mark.skipif(importlib.util.find_spec("cola") is None, reason="needs a peer: CoLA")
def test_cola_multiplies_by_the_same_matrix():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0)
    (x,) = random_tensors([(5, 12)], dtype=torch.float32)
    assert_close(weights.OTHERS["BTT"][weights.COLA](weight)(x), x @ weight.dense().mT)


def test_a_step_of_training_has_gradients_for_input_and_factors():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0, torch.float64)
    (x,) = random_tensors([(3, 12)])
    answers = bilinear.once(weight, weight, x, True)
    y = (x @ weight.dense().mT).detach()
    expected = torch.autograd.grad((x @ weight.dense().mT * y).sum(), [weight.L, weight.R])
    all_close(answers, [y, y @ weight.dense(), *expected])
    assert len(bilinear.once(weight, weight, x, False)) == 1


def test_ours_copies_only_what_comes_out():
    """The numbers between the factors, at rank 2 two for each feature, are read where they lie."""
    weight = BlockTensorTrain.random((16, 16, 16, 16), 2, 0)
    (x,) = random_tensors([(512, 256)], dtype=torch.float32)

    def copies(run):
        with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profile:
            run(x)
        copied = [event for event in profile.events() if event.name == "aten::copy_"]
        return sum(math.prod(event.input_shapes[0]) for event in copied)

    assert copies(weight) == weight.R.numel() + 2 * x.numel()
    assert copies(weights.OTHERS["BTT"]["bmm with copies"](weight)) >= 3 * x.numel()


# Structured scores


def test_standard_attention_is_its_definition():
    layer = FusedAttention(16, 4).double()
    (x,) = random_tensors([(2, 7, 16)])
    assert_close(layer(x)[1], bilinear.definition(layer, x[1]))
