"""One layer with structured scores: its closed form, its training, and what its runs say they measured."""

import math
from dataclasses import asdict, replace
from fractions import Fraction

import pytest
import torch

from experiments.bottleneck import FULL, Timing, jobs, run
from smalearn.course.ch10.layer import OneLayer, Setting, batch, build, linear_error, title, training
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import LowRank

MODELS = [("low rank", 1, (3,)), ("low rank", 4, (2,)), ("BTT", 2, (1,)), ("BTT", 1, (2,)), ("MLR", 3, (1, 1, 2))]
SPHERE = Setting("nearest", 8, 5, tuple(MODELS), steps=4, seeds=1, batch=6, tests=7)
LINE = replace(SPHERE, task="regression")


# ---------------------------------------------------------------- one layer


@pytest.mark.claim("003:full-rank-head", "smalearn.course.ch10.layer.OneLayer.forward")
@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: title(*model))
def test_the_layer_is_its_formula(model, softmax):
    layer = build(model, replace(SPHERE, softmax=softmax), 0).double()
    for parameter in (layer.shares, layer.log_scale):
        parameter.data = random_tensors([tuple(parameter.shape)], seed=7)[0]
    query, X, V = random_tensors([(2, 8), (2, 5, 8), (2, 5, 3)], seed=1)
    expected = torch.zeros(2, 3).double()
    for M, share, log_scale in zip(layer.weights, layer.shares, layer.log_scale, strict=True):
        logits = log_scale.exp() * torch.einsum("ed,ecd->ec", query @ M.dense().mT, X)
        expected = expected + share * torch.einsum("ec,ecp->ep", logits.softmax(-1) if softmax else logits, V)
    assert_close(layer(query, X, V), expected)


@pytest.mark.parametrize(("rank", "heads"), [(2, 1), (8, 1), (1, 8), (2, 4)])
def test_linear_attention_has_its_closed_form(rank, heads):
    """M = d/(N + d + 1) times a projection, cut into heads: three standard errors around the formula."""
    dim, points = 8, 12
    eye = torch.eye(dim, dtype=torch.float64)
    parts = [eye[:, h * rank : (h + 1) * rank] for h in range(heads)]
    scale = dim / (points + dim + 1)
    layer = OneLayer([LowRank(scale * part, part) for part in parts], torch.ones(heads).double(), softmax=False)
    inputs, answers = batch(replace(LINE, points=points), 40000, seed=3)
    with torch.no_grad():
        errors = (layer(*(part.double() for part in inputs)) - answers).square()[:, 0]
    expected = linear_error(rank * heads, dim, points)
    assert expected == pytest.approx(1 - Fraction(rank * heads, dim) * Fraction(12, 21), rel=1e-12)
    assert abs(errors.mean() - expected) < 3 * errors.std() / 200


def test_a_seed_is_the_model():
    for model in MODELS:
        first, again, other = (build(model, SPHERE, seed).weights[-1].L for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    first, second, *_ = build(MODELS[1], SPHERE, 0).weights
    assert not torch.equal(first.L, second.L)
    assert build(MODELS[1], LINE, 0).shares.tolist() == [1, -1, 1, -1]


def test_training_is_adam_with_a_falling_rate():
    layer, model = build(MODELS[1], SPHERE, 0), build(MODELS[1], SPHERE, 0)
    optimizer = torch.optim.Adam(model.parameters())
    for step, done in enumerate(training(layer, SPHERE, seed=2)):
        assert done == step + 1
        optimizer.param_groups[0]["lr"] = 2e-2 * (1 + math.cos(math.pi * step / 4)) / 2
        inputs, answers = batch(SPHERE, 6, 2 * 10**6 + step)
        optimizer.zero_grad()
        (model(*inputs) - answers).square().sum(1).mean().backward()
        optimizer.step()
        for parameter, reference in zip(layer.parameters(), model.parameters(), strict=True):
            assert_close(parameter, reference)
    assert done == SPHERE.steps


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("model", MODELS[:2], ids=lambda model: title(*model))
def test_errors_and_accuracy_are_measured_on_the_test(model):
    record = run(model, asdict(SPHERE), seed=3)
    layer = build(model, SPHERE, 3)
    for _ in training(layer, SPHERE, 3):
        pass
    (query, X, V), answers = batch(SPHERE, 7, seed=-1)
    with torch.no_grad():
        error = (layer(query, X, V) - answers).square().sum(-1).mean().item()
        most = layer.attention(query, X).argmax(-1)
    assert record["error"] == pytest.approx(error, abs=1e-4)
    right = [torch.equal(points[k], answer) for points, k, answer in zip(X, most, answers, strict=True)]
    assert record["accuracy"] == pytest.approx(sum(right) / 7, abs=1e-4)
    assert record["macs"] == layer.count(5, 8)
    assert record["parameters"] == sum(p.numel() for p in layer.parameters())


def test_the_jobs_are_of_sizes_that_fit():
    listed = list(jobs(FULL).values())
    seeds = [job["seed"] for job in listed if job["kind"] == "run"]
    assert seeds == sorted(seeds)
    assert len(listed) - len(seeds) == 2
    for setting in FULL.values():
        if not isinstance(setting, Timing):
            assert len({title(*model) for model in setting.models}) == len(setting.models)
            assert all(build(model, setting, 0).weights for model in setting.models)
