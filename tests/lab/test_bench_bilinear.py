"""The benchmark of structured scores: no wrong layer is timed, and what is reported follows from the samples."""

import json

import pytest
import torch

from smalearn.lab import bench
from smalearn.lab.bench import bilinear
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockTensorTrain

NAMES = {bilinear.SDPA, *bilinear.FORMS}
TRAIN = "BTT, s = 1"


class WrongTrain(BlockTensorTrain):
    def dense(self):
        return super().dense() * (1 + 1e-1)


class BrokenTrain(BlockTensorTrain):
    def dense(self):
        return super().dense() * torch.nan


@pytest.fixture
def result():
    return bilinear.benchmark(dim=64, length=33, heads=4, rounds=2)


def test_all_layers_are_right_and_timed(result):
    assert set(result["errors"]) == set(result["seconds"]) == set(result["seconds_trained"]) == NAMES
    assert max(result["errors"].values()) < 1e-6
    assert all(len(times) == 2 for part in ("seconds", "seconds_trained") for times in result[part].values())
    assert set(result["slower"]) == set(result["slower_trained"]) == set(bilinear.FORMS)
    assert (result["dim"], result["length"], result["heads"]) == (64, 33, 4)


@pytest.mark.parametrize("wrong", [WrongTrain, BrokenTrain])
def test_a_wrong_layer_is_not_timed(wrong, monkeypatch):
    monkeypatch.setitem(bilinear.FORMS, TRAIN, lambda dim, heads, seed: wrong.random((8, 8, 8, 8), 1, seed))
    found = bilinear.race(64, 9, 4, 2)
    assert TRAIN in found["errors"]
    assert all(TRAIN not in found[key] for key in ("seconds", "seconds_trained", "slower", "slower_trained"))


def test_without_standard_attention_nothing_is_slower():
    assert bilinear._slower({TRAIN: [1.0]}) == {}
    assert bilinear._slower({bilinear.SDPA: [2.0, 1.0, 9.0], TRAIN: [3.0, 3.0, 0.0]}) == {TRAIN: 1.5}


def test_standard_attention_is_its_definition():
    layer = bilinear.StandardAttention(16, 4).double()
    (x,) = random_tensors([(2, 7, 16)])
    assert_close(layer(x)[1], bilinear._definition(layer, x[1]))


def test_a_step_has_gradients_for_input_and_parameters():
    layer = bilinear.StandardAttention(16, 4).double()
    (x,) = random_tensors([(7, 16)], grad=True)
    y = layer(x)
    expected = torch.autograd.grad((y * y.detach()).sum(), [x, *layer.parameters()])
    for ours, theirs in zip(bilinear._step(layer)(x), expected, strict=True):
        assert_close(ours, theirs)


def test_levels_are_scaled_to_the_numbers_of_a_head():
    weight = bilinear.FORMS["MLR"](512, 8, 0)
    assert weight.ranks == bilinear.RANKS
    assert weight.num_parameters == bilinear.FORMS["low rank"](512, 8, 0).num_parameters


@pytest.mark.parametrize(("measured", "met"), [(1.6, True), (1.8, False), (None, False)])
def test_the_target_is_a_bound_from_above(measured, met):
    found = {"dim": 512, "length": 512, "heads": 8, "slower_trained": {TRAIN: measured} if measured else {}}
    (row,) = bilinear.targets(found)
    assert (row["target"], row["measured"], row["met"]) == (1.7, measured, met)
    assert row["what"].startswith("BTT, s = 1, D = 512, T = 512, H = 8: time of a forward and backward")


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert (result["command"], result["rounds"]) == ("smalearn bench bilinear", 2)
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert result["targets"] == bilinear.targets(result)
    assert bench.BENCHMARKS["bilinear"] is bilinear.benchmark


def test_all_is_measured_on_one_thread(monkeypatch):
    threads = []
    monkeypatch.setattr(bilinear, "_turn", lambda run, x: lambda: threads.append(torch.get_num_threads()) or 1.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        bilinear.benchmark(16, 3, 2, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


def test_a_turn_measures_the_second_of_two_runs(monkeypatch):
    calls = []
    monkeypatch.setattr(bilinear, "seconds", lambda run: run() or len(calls))
    assert bilinear._turn(calls.append, "x")() == 2
    assert calls == ["x", "x"]


def test_the_table_shows_times_errors_and_targets(result):
    result |= {
        "errors": {bilinear.SDPA: 1e-7, TRAIN: 2e-7, "MLR": 1e-3},
        "seconds": {bilinear.SDPA: [0.002], TRAIN: [0.003]},
        "seconds_trained": {bilinear.SDPA: [0.004], TRAIN: [0.006]},
        "slower_trained": {TRAIN: 1.5},
        "targets": [{"what": "time, at most", "target": 1.7, "measured": 1.5, "met": True}],
    }
    lines = bench.table(result).splitlines()
    for line in (
        f"torch: {torch.__version__}",
        "causal attention, D = 64, T = 33, 4 heads",
        "  standard, SDPA   error 1e-07   forward 2.0 ms, with backward 4.0 ms",
        "  BTT, s = 1       error 2e-07   forward 3.0 ms, with backward 6.0 ms   1.50 times standard, SDPA",
        "  MLR              error 1e-03   not reported",
        "  met    time, at most 1.7: 1.5",
    ):
        assert line in lines
