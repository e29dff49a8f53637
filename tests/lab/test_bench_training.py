"""The benchmark of training: all routes are one function, models are of one size, and slopes follow from samples."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from smalearn.data import recorded
from smalearn.lab import bench
from smalearn.lab.bench import training
from smalearn.lab.bench.problem import SSDProblem
from smalearn.lab.bench.timing import SHORT
from smalearn.models import Block, Mamba1, Mamba2, SequenceModel, SoftmaxAttention
from smalearn.testing import assert_close, random_tensors

TINY = SSDProblem(length=33, heads=2, head_dim=3, backward=True)


@pytest.fixture(scope="module")
def result():
    return training.benchmark(TINY, (2, 4, 8), dim=16, texts=(2, 21), rounds=3)


@pytest.mark.parametrize("name", training.ROUTES)
@pytest.mark.parametrize("decay", ["gate", "5 % at -1e4, others -0.01"])
def test_all_routes_are_one_function(name, decay):
    problem = replace(TINY, state=5, decay=decay)
    arguments, dY = problem.inputs()
    leaves = [x.double().requires_grad_() for x in arguments]
    Y = training.ROUTES[name](*leaves)
    for found, expected in zip([Y, *torch.autograd.grad(Y, leaves, dY.double())], problem.oracle(), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("fused", "plain"),
    [
        (training.FusedAttention(8, heads=2), SoftmaxAttention(8, heads=2)),
        (training.ScannedMamba1(8, 3), Mamba1(8, 3)),
    ],
    ids=["attention", "Mamba-1"],
)
def test_the_faster_forms_are_the_mixers_of_the_library(fused, plain):
    plain.load_state_dict(fused.state_dict())
    fused, plain = fused.double(), plain.double()
    (x,) = random_tensors([(2, 13, 8)])
    assert_close(fused(x), plain(x))
    found, expected = (torch.autograd.grad(one(x).square().sum(), list(one.parameters())) for one in (fused, plain))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_models_have_equally_many_parameters(dim):
    sizes = {name: sum(map(training._parameters, build(dim))) for name, build in training.MODELS.items()}
    assert abs(sizes["Transformer"] - sizes["Mamba-2"]) <= dim
    assert sizes["Mamba-1, scan"] == sizes["Mamba-1, loop"]
    if dim == 128:
        assert abs(sizes["Mamba-1, loop"] / sizes["Mamba-2"] - 1) < 0.01
        states = [training.MODELS[name](dim)[0].mixer.cache_shapes()["state"] for name in ("Mamba-2", "Mamba-1, loop")]
        assert [shape[-1] for shape in states] == [64, 16]


def test_a_wrong_route_is_not_timed(monkeypatch):
    right = training.ROUTES["SSD"]
    monkeypatch.setitem(training.ROUTES, "SSD", lambda *x: right(*x) * (1 + 1e-3 * (x[2].shape[-1] == 4)))
    found = training.growth(TINY, (2, 4), 1)
    assert found["errors"]["SSD"][0] < 1e-5 < found["errors"]["SSD"][1]
    assert set(found["seconds"]) == set(found["slopes"]) == {"selective scan", "selective loop"}


def test_a_model_that_decodes_otherwise_is_not_timed(monkeypatch):
    class Wrong(Mamba2):
        def forward(self, x):
            return super().forward(x) * 1.001

    monkeypatch.setitem(training.MODELS, "Mamba-2", lambda dim: [Block(Wrong(dim, 4, 4))])
    found = training.steps(8, (1, 5), 2)["models"]
    assert not found["Mamba-2"]["tolerated"]
    assert "seconds" not in found["Mamba-2"]
    assert all(len(one["seconds"]) == 2 for name, one in found.items() if name != "Mamba-2")


def test_a_step_trains():
    torch.manual_seed(0)
    model = SequenceModel(training.WORDS, training.MODELS["Mamba-2"](16))
    tokens = torch.arange(24).view(2, 12)
    before = copy.deepcopy(model)
    run = training._step(model, tokens)
    losses = []
    for _ in range(5):
        losses.append(training._loss(model(tokens[:, :-1]), tokens).item())
        run()
    assert losses == sorted(losses, reverse=True)
    assert not any(torch.equal(*pair) for pair in zip(before.parameters(), model.parameters(), strict=True))


def test_a_short_turn_measures_the_second_of_two_runs(monkeypatch):
    times = iter([SHORT / 2, 1.0, 2 * SHORT])
    monkeypatch.setattr(training, "seconds", lambda run: next(times))
    turn = training._turn(lambda: None)
    assert (turn(), turn()) == (1.0, 2 * SHORT)


def test_slopes_and_quartiles():
    assert training.quartiles([3.0, 1.0, 2.0, 5.0, 4.0]) == [2.0, 3.0, 4.0]
    assert training.quartiles([3.0]) == [3.0, 3.0, 3.0]


def test_the_slope_of_each_round_follows_from_its_samples(monkeypatch):
    def timed(turns, rounds):
        power = {"SSD": 0, "selective scan": 1, "selective loop": 2}
        return {(name, state): [k * state ** power[name] for k in (1, 2)] for name, state in turns}

    monkeypatch.setattr(training, "interleaved", timed)
    found = training.growth(TINY, (2, 4, 8), 2)
    assert found["seconds"]["selective loop"] == [[4, 8], [16, 32], [64, 128]]
    for name, power in (("SSD", 0), ("selective scan", 1), ("selective loop", 2)):
        assert found["slopes"][name] == pytest.approx([power, power], abs=1e-12)


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert result["command"] == "smalearn bench training"
    assert bench.BENCHMARKS["training"] is training.benchmark
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert result["targets"] == []
    assert result["growth"]["sizes"] == {"length": 33, "heads": 2, "head_dim": 3}
    assert result["growth"]["states"] == [2, 4, 8]
    assert set(result["growth"]["seconds"]) == set(training.ROUTES)
    assert set(result["steps"]["models"]) == set(training.MODELS)
    assert all(one["tolerated"] and len(one["seconds"]) == 3 for one in result["steps"]["models"].values())


def test_all_is_measured_on_one_thread(monkeypatch):
    threads = []
    for part in ("growth", "steps"):
        monkeypatch.setattr(training, part, lambda *_: threads.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        training.benchmark()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1]


def test_the_table_shows_medians_and_their_spread(result):
    result = copy.deepcopy(result)
    result["growth"] |= {
        "states": [16, 32],
        "errors": {"SSD": [1e-7, 2e-7], "selective scan": [1e-7, 1e-3]},
        "seconds": {"SSD": [[0.001, 0.002, 0.003], [0.004, 0.004, 0.004]]},
        "slopes": {"SSD": [0.25, 0.5, 0.75]},
    }
    one = {"parameters": 1234, "error": 1e-7, "tolerated": True, "seconds": [0.1, 0.2, 0.3]}
    result["steps"]["models"] = {"good": one, "bad": {"parameters": 5, "error": 0.1, "tolerated": False}}
    lines = bench.table(result).splitlines()
    for line in (
        f"torch: {torch.__version__}",
        "Forward + backward, T = 33, 2 heads, P = 3",
        "  N                       16         32",
        "  SSD                2.00 ms    4.00 ms   time ∝ N^p: p = 0.50 (0.38 to 0.62)",
        "  selective scan  not reported: error 1e-03",
        "A step of training, D = 16, 2 texts of 21 tokens",
        "  good                1,234 parameters   error 1e-07      200.0 ms (150.0 to 250.0)",
        "  bad                     5 parameters   error 1e-01   not reported",
    ):
        assert line in lines


def test_the_recorded_result_is_one_of_this_benchmark():
    stored = recorded("training")
    part, models = stored["growth"], stored["steps"]["models"]
    assert stored["command"] == "smalearn bench training"
    assert part["states"] == list(training.STATES)
    assert list(part["seconds"]) == list(part["slopes"]) == list(training.ROUTES)
    assert list(models) == list(training.MODELS)
    for times in part["seconds"].values():
        assert [len(samples) for samples in times] == [stored["rounds"]] * len(training.STATES)
    assert all(len(one["seconds"]) == stored["rounds"] >= 21 for one in models.values())
