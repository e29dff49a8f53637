"""Forecasts run at toy size; their attention is the definition pair by pair; what is better has its interval."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from comparing import same_function

from experiments import forecast
from experiments.encoders import (
    CrossAttention,
    EncoderDecoder,
    Forecaster,
    LevelAttention,
    RelativeBias,
    Repeat,
    buckets,
)
from experiments.forecast import FULL, SMOKE, quantise, run, table
from smalearn.course.results import changes, slopes
from smalearn.data import Series, Source, load_series, split_series
from smalearn.models import Block
from smalearn.multilevel import multilevel_scores
from smalearn.testing import assert_close

HOURS, BINS = SMOKE["12 hours"], SMOKE["bins, D = 8"]


def test_a_run_has_the_series_it_says_or_none(monkeypatch):
    other = Series(torch.zeros(1, 1), ("a",), Source("seasonal", "in place of it", "", ""))
    monkeypatch.setattr(forecast, "load_series", lambda name: other)
    with pytest.raises(ValueError, match="run: series must be ETTh1, got seasonal: in place of it"):
        run("16", asdict(FULL["96 hours"]), 0)


def test_a_run_says_all_that_the_chapter_draws(smoke):
    result = smoke("forecast").result
    assert result["settings"]["data"] == {"seasonal": asdict(load_series("seasonal").source)}
    for one in result["runs"].values():
        assert ("error" in one) == (not one["bins"])
        assert len(one["losses"]) == (one["parameters"] > 0)
        assert (one["rows"], one["columns"]) == (17_420, 7)


def test_costs_are_those_of_a_count_pair_by_pair(smoke):
    """Two layers, two heads of 4 features. An encoder of 36 hours sees all pairs; a decoder those before."""

    def count(length, ranks, sizes, causal):
        pairs = [(i, j) for i in range(length) for j in range(i + 1 if causal else length)]
        return sum(r * sum(i // b == j // b for i, j in pairs) for r, b in zip(ranks, sizes, strict=True))

    runs = smoke("forecast").result["runs"]
    for ranks, sizes in (((4,), (36,)), ((2, 2), (36, 18))):
        one = runs[f"12 hours, {'|'.join(map(str, ranks))}, seed 0"]
        assert one["score_macs"] == 4 * count(36, ranks, sizes, False)
    for ranks, both, past in (((4,), (8,), (4,)), ((2, 1, 1), (8, 4, 2), (4, 2, 1))):
        one = runs[f"bins, D = 8, {'|'.join(map(str, ranks))}, seed 0"]
        assert one["score_macs"] == 4 * (count(8, ranks, both, False) + count(4, ranks, past, True))


# ---------------------------------------------------------------- data of a run


def test_windows_begin_anywhere():
    part = torch.arange(60.0)[:, None].expand(-1, 2)
    starts = torch.cat([forecast._drawn(part, HOURS, seed)[0][:, 0, 0] for seed in range(100)])
    assert starts.unique().tolist() == list(range(60 - HOURS.context - HOURS.horizon + 1))


def test_a_run_learns_from_the_first_months_and_is_tested_on_the_last(monkeypatch):
    seen = []
    marked = replace(load_series("seasonal"), values=torch.arange(17_420.0)[:, None].expand(-1, 7).contiguous())
    known, _, unseen = split_series(marked.values, HOURS.context)

    def spy(model, task, plan):
        seen.extend(task(0))
        raise KeyboardInterrupt

    monkeypatch.setattr(forecast, "load_series", lambda name: marked)
    monkeypatch.setattr(forecast, "trained", spy)
    monkeypatch.setattr(forecast, "mean_loss", lambda model, inputs, targets, *_, **__: seen.append(targets) or 1.0)
    with pytest.raises(KeyboardInterrupt):
        run("4", asdict(HOURS), 0)
    run("last value", asdict(HOURS), 0)
    *drawn, targets = seen
    assert known.min() <= min(part.min() for part in drawn) <= max(part.max() for part in drawn) <= known.max()
    assert (targets.min(), targets.max(), len(targets)) == (unseen[HOURS.context, 0], unseen.max(), HOURS.tests)


def test_bins_are_cut_after_scaling_by_what_is_known():
    series = torch.tensor([[1.0, -3.0, 2.0, 100.0, -100.0], [0.5, -1.5, 1.0, 50.0, -50.0], [0.0, 0.0, 0.0, 1.0, 0.0]])
    tokens = quantise(series, context=3, bins=8)
    assert tokens.tolist()[0] == [4, 2, 5, 7, 0]  # units of 2: 0.5, -1.5, 1, and beyond
    assert tokens[0].tolist() == tokens[1].tolist()
    assert tokens[2].tolist() == [4, 4, 4, 7, 4]


def test_tokens_are_of_one_column_and_the_target_is_the_rest():
    part = torch.arange(200.0)[:, None] + torch.tensor([0.0, 1000.0, 2000.0])
    setting = replace(BINS, bins=4096)
    inputs, targets = forecast._batch(part, torch.tensor([0, 1, 2, 3]), setting)
    assert inputs.shape == (4, 8 + 4 - 1)
    assert targets.shape == (4, 4)
    assert torch.equal(inputs[:, 8:], targets[:, :-1])
    for k in range(4):
        series = part[k : k + 12, k % 3][None]
        assert torch.equal(torch.cat([inputs[k], targets[k, -1:]]), quantise(series, 8, 4096)[0])


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [(4,), (2, 2), (2, 1, 1), (0, 3, 1)])
def test_attention_is_softmax_of_scores_and_bias_pair_by_pair(ranks, causal):
    torch.manual_seed(0)
    bias = RelativeBias(2, causal, count=8, reach=10).double()
    torch.nn.init.normal_(bias.values)
    layer, x = LevelAttention(8, 2, ranks, 13, causal, bias).double(), torch.randn(3, 13, 8, dtype=torch.float64)
    x.requires_grad_()
    Q, K, V = (part[:, :, 0] for part in layer.operands(x))
    scores = multilevel_scores(Q, K, layer.ranks, layer.block_lens)
    which = buckets(13, 8, 10, causal)
    added = torch.stack([torch.stack([bias.values[h][which[i]] for i in range(13)]) for h in range(2)])
    scores = scores + added
    if causal:
        scores = scores.masked_fill(torch.ones(13, 13).triu(1).bool(), -math.inf)
    expected = layer.out_proj((scores.softmax(-1) @ V).transpose(1, 2).flatten(2))
    same_function(layer(x), expected, [x, bias.values])


def test_buckets_of_keys_before_alone_are_exact_near_and_logarithmic_far():
    """In the words of T5; those of both sides are a claim of chapter 11."""
    numbers = buckets(200, 32, 128, causal=True)
    for distance in (*range(40), 100, 127, 128, 199):
        far = 16 + math.floor(math.log(max(distance, 1) / 16) / math.log(128 / 16) * 16 + 1e-9)
        assert numbers[199, 199 - distance] == (distance if distance < 16 else min(31, far))
    assert (numbers.triu(1) == 0).all()


def test_a_forecaster_knows_nothing_of_what_comes_and_all_of_what_was():
    torch.manual_seed(0)
    mixer = LevelAttention(8, 2, (2, 2), 18, causal=False)
    model, x = Forecaster(3, 12, 6, [Block(mixer, 8)]), torch.randn(2, 12, 3, requires_grad=True)
    y = model(x)
    assert y.shape == (2, 6, 3)
    (grad,) = torch.autograd.grad(y[0, 0, 0], x)
    assert (grad[0].abs().sum(-1) > 0).all()
    assert grad[1].abs().max() == 0
    assert torch.allclose(model(x + 5), y + 5, atol=1e-5)  # changes are forecast, not levels


@pytest.mark.parametrize(("period", "hours"), [(1, [9] * 7), (4, [6, 7, 8, 9, 6, 7, 8])])
def test_what_learns_nothing_repeats(period, hours):
    x = torch.arange(10.0)[None, :, None].expand(2, -1, 3)
    assert Repeat(period, 7)(x)[1, :, 2].tolist() == hours


def test_cross_attention_is_a_sum_over_the_memory():
    torch.manual_seed(0)
    layer = CrossAttention(8, 2).double()
    x, memory = torch.randn(2, 5, 8).double(), torch.randn(2, 7, 8).double()
    K, V = layer.memory(memory).chunk(2, -1)
    expected = torch.zeros(2, 5, 8, dtype=torch.float64)
    for h in range(2):
        part = slice(4 * h, 4 * h + 4)
        weights = (layer.query(x)[..., part] @ K[..., part].mT / 2).softmax(-1)
        expected[..., part] = weights @ V[..., part]
    assert_close(layer(x, memory), layer.out(expected))


@pytest.mark.parametrize("ranks", [(4,), (2, 1, 1)])
def test_the_decoder_sees_all_that_is_known_and_nothing_that_comes(ranks):
    torch.manual_seed(0)
    model = EncoderDecoder(16, 8, 4, ranks, {"dim": 8, "heads": 2, "layers": 2, "mlp": 8}).double()
    tokens = torch.randint(16, (1, 11))
    before = model(tokens)
    assert before.shape == (1, 4, 16)
    for place in range(11):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % 16
        moved = (model(changed) - before).abs().amax((0, -1)) > 1e-12
        first = max(0, place - 7)
        assert moved.tolist() == [k >= first for k in range(4)], place


# ---------------------------------------------------------------- changes


def result():
    settings = {f"{h} hours": {"ranks": ["4", "2|2"], "horizon": h, "bins": 0} for h in (10, 20)}
    settings |= {"bins": {"ranks": ["4", "2|2"], "horizon": 9, "bins": 8}, "data": {}}
    runs = {}
    for title, setting in settings.items():
        for seed in (0, 1) if title != "data" else ():
            for ranks in ("4", "2|2", "last value"):
                h = setting["horizon"]
                loss = 1.0 + seed if ranks == "4" else (1.0 + seed) * (1 - 0.01 * h) if "|" in ranks else 5.0
                one = {"ranks": ranks, "seed": seed, "loss": loss, "score_macs": 12, "seconds": 2.0}
                runs[f"{title}, {ranks}, seed {seed}"] = one | ({} if setting["bins"] else {"error": loss})
    return {"settings": settings, "runs": runs}


def test_changes_are_of_the_seeds_that_both_have():
    partial = result()
    del partial["runs"]["10 hours, 4, seed 1"]
    assert changes(partial)["10 hours", "2|2"] == pytest.approx([-0.1])


def test_slopes_say_whether_the_advantage_grows():
    assert slopes(result())["2|2"] == pytest.approx((-0.01, -0.01))
    assert slopes({"settings": {}, "runs": {}}) == {}


def test_the_table_has_a_line_for_each_change():
    lines = table(result()).splitlines()
    assert "20 hours, 2|2: -20.00 % of the standard's loss (-20.00 % to -20.00 %)" in lines
    single = result()
    single["runs"] = {name: one for name, one in single["runs"].items() if name.endswith("0")}
    assert table(single).splitlines()[-1] == "bins, 2|2: -9.00 % of the standard's loss (one seed)"
