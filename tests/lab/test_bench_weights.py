"""The benchmark of weights: no wrong product is timed, and what is reported follows from the samples."""

import importlib.util
import json
import statistics
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn.lab import bench
from smalearn.lab.bench import weights
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockTensorTrain, Weight

HAS_COLA = importlib.util.find_spec("cola") is not None
RIVALS = [(family, rival) for family, rivals in weights.RIVALS.items() for rival in rivals if rival != weights.COLA]


class WrongTrain(BlockTensorTrain):
    def _product(self, X):
        return super()._product(X) * (1 + 1e-3)


class BrokenTrain(BlockTensorTrain):
    def _product(self, X):
        return super()._product(X) * torch.nan


@pytest.fixture
def result():
    return weights.benchmark(dims=(256,), batch=3, rounds=2)


@pytest.mark.parametrize("name", weights.FAMILIES)
@pytest.mark.parametrize("dim", [256, 1024])
def test_contestants_are_right_and_timed_alike(name, dim):
    found = weights.race(name, dim, 7, 2)
    expected = {"structured", "dense", *weights.RIVALS[name]} - set(found["absent"])
    assert set(found["errors"]) == set(found["seconds"]) == expected
    assert set(found["seconds_trained"]) == expected - {weights.COLA}
    assert max(found["errors"].values()) < 1e-6
    assert all(len(times) == 2 for part in ("seconds", "seconds_trained") for times in found[part].values())
    assert set(found["speedups"]) == expected - {"structured"}


@pytest.mark.parametrize(("family", "rival"), RIVALS)
def test_rivals_multiply_by_the_same_matrix_for_any_rank(family, rival):
    weight = weights.FAMILIES[family](256)
    if family == "BTT":
        weight = BlockTensorTrain.random((3, 4, 2, 6), 3, 0, torch.float64)
    weight = weight.double()
    (x,) = random_tensors([(5, weight.shape[1])])
    assert_close(weights.RIVALS[family][rival](weight)(x), x @ weight.dense().mT)


def test_both_families_hold_as_many_numbers():
    for dim in (1024, 4096):
        train, levels = (weights.FAMILIES[name](dim) for name in ("BTT", "MLR"))
        assert train.num_parameters == levels.num_parameters == 2 * dim * round(dim**0.5)
    assert weights.FAMILIES["MLR"](4096).ranks == weights.RANKS
    assert weights.FAMILIES["MLR"](1024).ranks == (16, 4, 3, 2, 2, 2, 2, 1)


def test_the_absence_of_a_peer_is_reported(monkeypatch):
    def missing(weight):
        raise ImportError("no module named nobody")

    monkeypatch.setitem(weights.RIVALS, "BTT", {"nobody": missing})
    found = weights.race("BTT", 256, 3, 2)
    assert found["absent"] == {"nobody": "ImportError: no module named nobody"}
    assert set(found["seconds"]) == {"structured", "dense"}


@pytest.mark.skipif(not HAS_COLA, reason="needs a peer: CoLA")
def test_cola_multiplies_by_the_same_matrix():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0)
    (x,) = random_tensors([(5, 12)], dtype=torch.float32)
    assert_close(weights.RIVALS["BTT"][weights.COLA](weight)(x), x @ weight.dense().mT)


@pytest.mark.parametrize("wrong", [WrongTrain, BrokenTrain])
def test_a_wrong_product_is_not_timed(wrong, monkeypatch):
    monkeypatch.setitem(weights.FAMILIES, "BTT", lambda dim: wrong.random((16, 16, 16, 16), 1, 0))
    found = weights.race("BTT", 256, 3, 2)
    assert "structured" in found["errors"]
    assert "structured" not in found["seconds"]
    assert "structured" not in found["seconds_trained"]
    assert found["speedups"] == found["speedups_trained"] == {}
    assert found["reached"] is None


def test_ratios_are_of_medians():
    seconds = {"structured": [2.0, 99.0, 1.0], "dense": [20.0, 1.0, 99.0], "einsum": [4.0, 3.0, 5.0]}
    trained = {"structured": [4.0], "dense": [2.0]}
    found = weights._ratios({"saving": 20.0, "seconds": seconds, "seconds_trained": trained})
    assert found == {"speedups": {"dense": 10.0, "einsum": 2.0}, "speedups_trained": {"dense": 0.5}, "reached": 0.5}


def test_a_turn_measures_the_second_of_two_runs(monkeypatch):
    calls = []
    monkeypatch.setattr(weights, "seconds", lambda run: run() or len(calls))
    assert weights._turn(calls.append, "x")() == 2
    assert calls == ["x", "x"]


def test_a_step_of_training_has_gradients_for_input_and_factors():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0, torch.float64)
    (x,) = random_tensors([(3, 12)])
    found = weights._backward(weight, weight)(x)
    y = (x @ weight.dense().mT).detach()
    assert_close(found[0], y @ weight.dense())
    expected = torch.autograd.grad((x @ weight.dense().mT * y).sum(), [weight.L, weight.R])
    for ours, theirs in zip(found[1:], expected, strict=True):
        assert_close(ours, theirs)


def test_targets_compare_with_what_was_measured():
    def contest(family, dim, **speedups):
        return {"family": family, "dim": dim, "speedups": speedups}

    contests = [
        contest("BTT", 1024, dense=4.0, einsum=0.5, **{"bmm with copies": 2.0}),
        contest("BTT", 4096, dense=9.5, einsum=1.5),
        contest("MLR", 1024, dense=3.0, einsum=1.0),
        contest("MLR", 4096),
    ]
    rows = [(row["target"], row["measured"], row["met"]) for row in weights.targets({"contests": contests})]
    assert rows == [
        (4, 4.0, True),
        (1, 0.5, False),
        (10, 9.5, False),
        (1, 1.5, True),
        (1, 1.0, True),
        (1, None, False),
    ]


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert (result["command"], result["batch"], result["rounds"]) == ("smalearn bench weights", 3, 2)
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert [(contest["family"], contest["dim"]) for contest in result["contests"]] == [("BTT", 256), ("MLR", 256)]
    assert result["contests"][0]["saving"] == 256**2 / (2 * 256 * 16)
    assert result["targets"] == weights.targets(result)


def test_all_is_measured_on_one_thread(monkeypatch):
    threads = []
    stand_in = {"family": "BTT", "dim": 1, "speedups": {}}
    monkeypatch.setattr(weights, "race", lambda *_: threads.append(torch.get_num_threads()) or stand_in)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        weights.benchmark((256, 512), 3, 3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1] * 4


def test_the_table_shows_times_errors_and_targets(result):
    result["contests"][0] |= {
        "saving": 16.0,
        "errors": {"structured": 1e-7, "dense": 2e-7, "einsum": 1e-3},
        "absent": {"CoLA": "ModuleNotFoundError: No module named 'cola'"},
        "seconds": {"structured": [0.001], "dense": [0.008]},
        "seconds_trained": {"structured": [0.003]},
        "speedups": {"dense": 8.0},
        "reached": 0.5,
    }
    result["targets"] = [{"what": "speed, at least", "target": 4, "measured": 8.0, "met": True}]
    lines = bench.table(result).splitlines()
    for line in (
        f"torch: {torch.__version__}",
        "BTT, D = 256, 3 vectors: 16.0 times fewer multiply-adds than dense, of which the forward reaches 50%",
        "  structured       error 1e-07   forward 1.00 ms, with backward 3.00 ms",
        "  dense            error 2e-07   forward 8.00 ms   ours is 8.0 times as fast",
        "  einsum           error 1e-03   not reported",
        "  CoLA             absent: ModuleNotFoundError: No module named 'cola'",
        "  met    speed, at least 4: 8",
    ):
        assert line in lines


def test_the_table_of_a_product_that_was_wrong(result):
    result["contests"][0] |= {"seconds": {}, "seconds_trained": {}, "speedups": {}, "reached": None}
    lines = bench.table(result).splitlines()
    assert (
        f"BTT, D = 256, 3 vectors: {result['contests'][0]['saving']:.1f} times fewer multiply-adds than dense" in lines
    )


class Copies(TorchDispatchMode):
    """Counts the numbers that are copied from one place to another."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten.cat):
            self.numbers += out.numel()
        return out


def copies(run: Weight, x):
    with Copies() as counted, torch.no_grad():
        run(x)
    return counted.numbers


def test_ours_copies_only_what_comes_out():
    """At rank 2 the numbers between the factors, two for each feature, are read where they lie."""
    weight = BlockTensorTrain.random((16, 16, 16, 16), 2, 0)
    (x,) = random_tensors([(512, 256)], dtype=torch.float32)
    factors = weight.R.numel()
    assert copies(weight, x) == factors + 2 * x.numel()
    assert copies(weights.RIVALS["BTT"]["bmm with copies"](weight), x) >= 3 * x.numel()


def test_the_recorded_result_is_one_of_this_benchmark():
    stored = json.loads((Path(__file__).parents[2] / "assets/results/weights.json").read_text(encoding="utf-8"))
    assert [(contest["family"], contest["dim"]) for contest in stored["contests"]] == [
        (name, dim) for dim in (1024, 4096) for name in weights.FAMILIES
    ]
    assert (stored["batch"], stored["command"]) == (512, "smalearn bench weights")
    for contest in stored["contests"]:
        assert contest["seconds"].keys() == contest["errors"].keys() >= {"structured", "dense", "einsum"}
        assert all(len(times) >= 21 for part in ("seconds", "seconds_trained") for times in contest[part].values())
        medians = {name: statistics.median(times) for name, times in contest["seconds"].items()}
        assert contest["speedups"]["dense"] == medians["dense"] / medians["structured"]
        assert contest["reached"] == contest["speedups"]["dense"] / contest["saving"]
    assert stored["targets"] == weights.targets(stored)
