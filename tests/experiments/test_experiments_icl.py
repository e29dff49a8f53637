"""The large experiment at toy size: the sum of its parts, widths by μP."""

from dataclasses import asdict, replace

import pytest
import torch

from experiments import icl_regression
from experiments.icl_regression import SMOKE, Setting, build, run, task
from smalearn._checks import ShapeError
from smalearn.data import curriculum, least_squares, regression, regression_prompt
from smalearn.scores import bilinear
from smalearn.testing import assert_close

TOY = replace(SMOKE["d = 5"], layers=2)
MODELS = pytest.mark.parametrize("model", TOY.models, ids=lambda model: f"{model[0]} {model[1]}")


def test_the_model_is_the_sum_of_its_parts():
    """Read in, add positions, blocks, norm, read out at the inputs' rows."""
    torch.manual_seed(1)
    network = build(TOY.models[2], 16, TOY, seed=1).double()
    for parameter in network.parameters():
        if not parameter.any():  # so that its blocks and its output say something
            parameter.data.normal_()
    prompt = regression_prompt(*regression(3, 5, 10, seed=3, dtype=torch.float64))
    x = prompt @ network.read_in.weight.T + network.positions.weight
    for block in network.blocks:
        x = x + block.mixer(block.norm(x))
        x = x + block.mlp(x)
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * network.norm.weight
    assert_close(network(prompt), (x @ network.read_out.weight[0])[:, ::2])
    with pytest.raises(ShapeError, match="Regressor: prompt has at most 20 rows, got 22"):
        network(torch.zeros(1, 22, 5).double())


def test_models_differ_in_their_scores_alone():
    sizes = {}
    for model in TOY.models:
        network = build(model, 64, TOY)
        rest = [p for name, p in network.named_parameters() if ".scores." not in name]
        sizes[model] = sum(p.numel() for p in rest)
        for block in network.blocks:
            assert block.mixer.logits == bilinear.Logits(norm=TOY.norm, causal=True)
            assert len(block.mixer.scores) == model[1]
    assert len(set(sizes.values())) == 1
    ranks = [build(model, 64, TOY).blocks[0].mixer.scores[0].rank_bound for model in TOY.models]
    assert ranks == [8, 64, 64, 4 + 8 + 32]


@MODELS
def test_learning_rates_fall_with_the_width(model):
    """A matrix that takes in D numbers learns at base / D, of a factor's own inputs where it has fewer."""
    networks = [build(model, width, TOY) for width in (64, 256)]
    narrow, wide = (icl_regression.scales(network, TOY) for network in networks)
    for name, _ in networks[1].named_parameters():
        scale = wide.get(name, 1.0)
        if name.endswith(("values.weight", "out.weight", "mlp.1.weight")) or name == "read_out.weight":
            assert scale == TOY.base / 256
        elif name.endswith("mlp.3.weight"):
            assert scale == TOY.base / 1024
        elif ".scores." not in name:
            assert scale == 1
        elif model[0] == "low rank":
            assert scale == TOY.base / 256
        elif model[0] == "BTT":
            assert scale == TOY.base / 16
        else:
            assert scale == TOY.base / 256 * 2 ** int(name[-1])
        if scale != 1 and model[0] != "BTT":
            assert narrow[name] == 4 * scale


def test_the_task_follows_the_curriculum():
    setting = Setting(8, batch=3, every=2)
    batches = task(setting, seed=2)
    for step in (0, 1, 2, 7, 100):
        prompt, y = batches(step)
        active = curriculum(step, 8, every=2)
        assert prompt.shape == (3, 4 * active, 8)
        assert (prompt[..., active:] == 0).all()
        X, values = regression(3, 8, 2 * active, 2 * 10**7 + step, active)
        assert torch.equal(y, values)
        assert torch.equal(prompt, regression_prompt(X, values))
    assert batches(100)[0].shape == (3, 32, 8)


def test_a_run_says_what_it_measured():
    """Of a model that is hardly trained, which predicts 0; a trained one errs otherwise."""
    record = run(TOY.models[0], 16, 1e-9, asdict(TOY), 0)
    assert abs(run(TOY.models[0], 16, 1e-2, asdict(TOY), 0)["error"] - record["error"]) > 1e-3
    network = build(TOY.models[0], 16, TOY, 0)
    assert (record["model"], record["parameters"]) == ("8 × low rank 2", sum(p.numel() for p in network.parameters()))
    X, y = regression(8, 5, 10, seed=-1)
    assert record["errors"] == pytest.approx(y.square().mean(0).tolist(), abs=1e-5)
    assert record["error"] == record["errors"][-1]
    assert record["least squares"] == pytest.approx((least_squares(X, y) - y).square().mean(0).tolist(), abs=1e-4)
    _, y = regression(8, 5, 10, seed=-2)
    assert record["validation_loss"] == pytest.approx(y.square().mean().item(), abs=1e-5)
