"""The claims of chapter 10 on the low-rank bottleneck, one test each or more: what is recorded, and a part live."""

from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from seeds import apart
from torch.utils.flop_counter import FlopCounterMode

from experiments import icl_regression
from experiments.bottleneck import FULL, run
from smalearn.course.ch10.layer import batch, build, linear_error, title
from smalearn.data import full_rank_head, least_squares, nearest_neighbour, recorded, regression, regression_prompt
from smalearn.testing import assert_close

SPHERE, LINEAR = FULL["nearest, d = 16"], FULL["regression, linear"]
SMALL = asdict(replace(FULL["nearest, d = 8"], steps=250, tests=1024))
NARROW, WIDE, TRAIN = "8 × low rank 2", "1 × low rank 16", "8 × BTT 1"


def runs(task, model):
    """What is recorded of a model, seed by seed, made with the settings of this code."""
    result = recorded("bottleneck")
    setting = FULL[task]
    assert result["settings"][task]["steps"] == setting.steps
    found = [result["runs"][f"{task}, {model}, seed {seed}"] for seed in range(setting.seeds)]
    assert len(found) >= 2
    return found


def errors(task, model):
    return [one["error"] for one in runs(task, model)]


def test_one_head_of_full_rank_beats_many_narrow_ones():
    assert apart(errors("nearest, d = 16", WIDE), errors("nearest, d = 16", NARROW))
    sizes = []
    for model in (("low rank", 1, (16,)), ("low rank", 8, (2,))):
        layer = build(model, SPHERE, 0)
        sizes.append(sum(p.numel() for p in layer.weights.parameters()))
    assert sizes == [512, 512]
    full, narrow = (run(("low rank", heads, (8 // heads,)), SMALL, 0)["error"] for heads in (1, 8))
    assert full < narrow / 2


@pytest.mark.claim("003:full-rank-head", "smalearn.course.ch10.layer.linear_error")
def test_without_softmax_heads_add_up():
    for model in LINEAR.models:
        rank = model[1] * model[2][0]
        wanted = 1 - rank / 16 * 32 / (32 + 16 + 1)
        assert linear_error(rank, 16, 32) == pytest.approx(wanted, rel=1e-12)
        for error in errors("regression, linear", title(*model)):
            assert abs(error - wanted) < 0.05  # of 4096 examples, after 1500 steps
    pairs = zip(errors("regression, linear", NARROW), errors("regression, linear", WIDE), strict=True)
    gap = min(errors("nearest, d = 16", NARROW)) - max(errors("nearest, d = 16", WIDE))  # with softmax
    assert max(abs(narrow - wide) for narrow, wide in pairs) < gap / 10


def against_rank(dim):
    """For each seed the error of eight heads at r/d = 1/8, 1/4, 1/2, 3/4, 1."""
    curves = [errors(f"nearest, d = {dim}", f"8 × low rank {dim * k // 8}") for k in (1, 2, 4, 6, 8)]
    return list(zip(*curves, strict=True))


@pytest.mark.parametrize("dim", [8, 16, 32])
@pytest.mark.claim("003:nearest-neighbour", "smalearn.data.nearest.nearest_neighbour")
@pytest.mark.claim("003:nearest-neighbour", "smalearn.data.nearest.full_rank_head")
def test_the_nearest_point_needs_all_directions(dim):
    for curve in against_rank(dim):
        assert min(curve[:4]) > 5 * curve[4]
    queries, X, nearest = nearest_neighbour(500, dim, 16, seed=1, dtype=torch.float64)
    wanted = X[torch.arange(500), nearest]
    assert torch.equal((X @ queries[..., None])[..., 0].argmax(-1), nearest)
    assert torch.equal(torch.cdist(queries[:, None], X)[:, 0].argmin(-1), nearest)
    sharp = [(full_rank_head(queries, X, beta) - wanted).square().sum(-1).mean().item() for beta in (1, 1e2, 1e4, 1e6)]
    assert sharp == sorted(sharp, reverse=True)
    assert sharp[-1] < 1e-3
    assert_close(
        full_rank_head(queries, X, 7.0), (7 * X @ queries[..., None]).softmax(1).mT[:, 0][:, None].matmul(X)[:, 0]
    )


@pytest.mark.claim("003:fig2", "experiments.bottleneck.run")
def test_the_error_falls_where_the_rank_is_that_of_the_points():
    curves = against_rank(16)
    assert len(curves) >= 3
    for curve in curves:
        assert list(curve[1:]) == sorted(curve[1:], reverse=True)
        assert min(curve[:2]) > curve[2]  # below r = d/4 the seeds differ by more than the ranks
        steps = [before - after for before, after in pairwise(curve)]
        assert steps[-1] == max(steps)
    spread = [max(seeds) - min(seeds) for seeds in zip(*curves, strict=True)]
    assert max(spread[2:]) < min(curve[3] - curve[4] for curve in curves) / 5  # beside the drop
    live = [run(("low rank", 8, (rank,)), SMALL, 0) for rank in (1, 6, 8)]
    assert [one["parameters"] for one in live] == [8 * 16 * rank + 16 for rank in (1, 6, 8)]
    assert live[0]["error"] > live[1]["error"] > 2 * live[2]["error"]


@pytest.mark.claim("003:icl-task", "smalearn.data.regression.least_squares")
def test_what_can_be_known_of_a_prompt():
    dim, examples = 4, 6000
    X, y = regression(examples, dim, 2 * dim, seed=3, dtype=torch.float64)
    found = least_squares(X, y)
    missed = (found - y).square()
    for n in range(dim):
        assert abs(missed[:, n].mean() - (1 - n / dim)) < 4 * missed[:, n].std() / examples**0.5
    assert_close(found[:, dim:], y[:, dim:], 1e-7)


@pytest.mark.claim("003:icl-task", "smalearn.data.regression.regression_prompt")
@pytest.mark.claim("003:icl-task", "experiments.icl_regression.Regressor.forward")
def test_predictions_start_at_zero_and_see_the_pairs_before_them():
    X, y = regression(4, 5, 10, seed=3, dtype=torch.float64)
    prompt = regression_prompt(X, y)
    assert torch.equal(prompt[:, ::2], X)
    assert torch.equal(prompt[:, 1::2, 0], y)
    model = icl_regression.build(("BTT", 8, (1,)), 16, icl_regression.Setting(5, layers=2)).double()
    assert (model(prompt) == 0).all()
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.any():
            parameter.data.normal_()
    before = model(prompt)
    changed = prompt.clone()
    changed[:, 9] += 1  # the fifth value
    after = model(changed)
    assert_close(after[:, :5], before[:, :5])
    assert (after[:, 5:] - before[:, 5:]).abs().min() > 1e-9


@pytest.mark.claim("003:fig3a", "experiments.bottleneck.run")
def test_eight_heads_of_trains_do_what_eight_narrow_heads_do_not():
    for dim in (8, 16, 32):
        task = f"nearest, d = {dim}"
        full, train, single, narrow = (
            errors(task, model) for model in (f"1 × low rank {dim}", TRAIN, "1 × BTT 1", f"8 × low rank {dim // 8}")
        )
        assert apart([*train, *single, *full], narrow)
    live = [run(model, SMALL, 1) for model in (("BTT", 8, (1,)), ("BTT", 1, (1,)), ("low rank", 8, (1,)))]
    assert [one["parameters"] for one in live] == [8 * 48 + 16, 48 + 2, 128 + 16]
    assert runs("nearest, d = 16", "1 × BTT 1")[0]["parameters"] == 130
    assert 2 * max(live[0]["error"], live[1]["error"]) < live[2]["error"]


def curve(one, cost):
    """Budgets and errors of a run: a training step costs three forwards of all examples."""
    spent = np.array([int(step) for step in one["errors"]]) * 3 * SPHERE.batch * cost
    return np.log(spent), np.array(list(one["errors"].values()))


@pytest.mark.claim("003:fig3b", "smalearn.course.ch10.layer.OneLayer.count")
def test_structured_scores_win_at_equal_compute():
    costs = {}
    for model in SPHERE.models:
        layer = build(model, SPHERE, 0)
        inputs, _ = batch(SPHERE, 3, 0)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(*inputs)
        costs[title(*model)] = layer.count(16, 16)
        unseen = 16 * model[1]  # the sum over heads, a product with one vector
        assert counter.get_total_flops() == 2 * 3 * (costs[title(*model)] - unseen)
        assert {one["macs"] for one in runs("nearest, d = 16", title(*model))} == {costs[title(*model)]}
    # How many of the 7 budgets it loses: the smallest, for 25 steps; one train is slow to start beside full rank.
    rivals = {(TRAIN, NARROW): 1, ("1 × BTT 1", NARROW): 1, ("1 × MLR 4|4|8", NARROW): 1}
    rivals |= {("4 × MLR 1|1|2", "4 × low rank 4"): 1, ("1 × MLR 4|4|8", WIDE): 1, ("1 × BTT 1", WIDE): 3}
    for (model, other), lost in rivals.items():
        for mine, theirs in zip(runs("nearest, d = 16", model), runs("nearest, d = 16", other), strict=True):
            budgets, their_errors = curve(theirs, costs[other])
            my_errors = np.interp(budgets, *curve(mine, costs[model]))
            assert (my_errors < their_errors)[lost:].all(), (model, other)
