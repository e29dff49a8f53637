"""The benchmark of weights: no wrong product is timed, and what is reported follows from the samples."""

import importlib.util

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn.lab.bench import weights
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockTensorTrain, Weight

HAS_COLA = importlib.util.find_spec("cola") is not None
OTHERS = [(family, other) for family, others in weights.OTHERS.items() for other in others if other != weights.COLA]


@pytest.mark.parametrize("name", weights.FAMILIES)
@pytest.mark.parametrize("dim", [256, 1024])
def test_implementations_are_right_and_timed_alike(name, dim):
    part = weights.compare(name, dim, 7, 2)
    expected = {"structured", "dense", *weights.OTHERS[name]} - set(part["absent"])
    assert set(part["errors"]) == set(part["seconds"]) == expected
    assert set(part["seconds_trained"]) == expected - {weights.COLA}
    assert max(part["errors"].values()) < 1e-6
    assert all(len(times) == 2 for key in ("seconds", "seconds_trained") for times in part[key].values())
    assert set(part["speedups"]) == expected - {"structured"}


@pytest.mark.parametrize(("family", "other"), OTHERS)
def test_others_multiply_by_the_same_matrix_for_any_rank(family, other):
    weight = weights.FAMILIES[family](256)
    if family == "BTT":
        weight = BlockTensorTrain.random((3, 4, 2, 6), 3, 0, torch.float64)
    weight = weight.double()
    (x,) = random_tensors([(5, weight.shape[1])])
    assert_close(weights.OTHERS[family][other](weight)(x), x @ weight.dense().mT)


def test_both_families_hold_as_many_numbers():
    for dim in (1024, 4096):
        btt, levels = (weights.FAMILIES[name](dim) for name in ("BTT", "MLR"))
        assert btt.num_parameters == levels.num_parameters == 2 * dim * round(dim**0.5)
    assert weights.FAMILIES["MLR"](4096).ranks == weights.RANKS
    assert weights.FAMILIES["MLR"](1024).ranks == (16, 4, 3, 2, 2, 2, 2, 1)


def test_the_absence_of_a_peer_is_reported(monkeypatch):
    def missing(weight):
        raise ImportError("no module named nobody")

    monkeypatch.setitem(weights.OTHERS, "BTT", {"nobody": missing})
    part = weights.compare("BTT", 256, 3, 2)
    assert part["absent"] == {"nobody": "ImportError: no module named nobody"}
    assert set(part["seconds"]) == {"structured", "dense"}


@pytest.mark.skipif(not HAS_COLA, reason="needs a peer: CoLA")
def test_cola_multiplies_by_the_same_matrix():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0)
    (x,) = random_tensors([(5, 12)], dtype=torch.float32)
    assert_close(weights.OTHERS["BTT"][weights.COLA](weight)(x), x @ weight.dense().mT)


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
def test_a_wrong_product_is_not_timed(factor, monkeypatch):
    class Wrong(BlockTensorTrain):
        def _product(self, X):
            return super()._product(X) * factor

    monkeypatch.setitem(weights.FAMILIES, "BTT", lambda dim: Wrong.random((16, 16, 16, 16), 1, 0))
    part = weights.compare("BTT", 256, 3, 2)
    assert "structured" in part["errors"]
    assert "structured" not in part["seconds"]
    assert "structured" not in part["seconds_trained"]
    assert part["speedups"] == part["speedups_trained"] == {}
    assert part["reached"] is None


def test_ratios_are_of_medians():
    seconds = {"structured": [2.0, 99.0, 1.0], "dense": [20.0, 1.0, 99.0], "einsum": [4.0, 3.0, 5.0]}
    trained = {"structured": [4.0], "dense": [2.0]}
    ratios = weights._ratios({"saving": 20.0, "seconds": seconds, "seconds_trained": trained})
    assert ratios == {"speedups": {"dense": 10.0, "einsum": 2.0}, "speedups_trained": {"dense": 0.5}, "reached": 0.5}


def test_a_step_of_training_has_gradients_for_input_and_factors():
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0, torch.float64)
    (x,) = random_tensors([(3, 12)])
    grads = weights.gradients(weight, weight, x)
    y = (x @ weight.dense().mT).detach()
    assert_close(grads[0], y @ weight.dense())
    expected = torch.autograd.grad((x @ weight.dense().mT * y).sum(), [weight.L, weight.R])
    for grad, reference in zip(grads[1:], expected, strict=True):
        assert_close(grad, reference)


def test_targets_compare_with_what_was_measured():
    def part(family, dim, **speedups):
        return {"family": family, "dim": dim, "speedups": speedups}

    parts = [
        part("BTT", 1024, dense=4.0, einsum=0.5, **{"bmm with copies": 2.0}),
        part("BTT", 4096, dense=9.5, einsum=1.5),
        part("MLR", 1024, dense=3.0, einsum=1.0),
        part("MLR", 4096),
    ]
    rows = [(row["target"], row["measured"], row["met"]) for row in weights.targets({"contests": parts})]
    assert rows == [
        (4, 4.0, True),
        (1, 0.5, False),
        (10, 9.5, False),
        (1, 1.5, True),
        (1, 1.0, True),
        (1, None, False),
    ]


def test_the_table_shows_times_errors_and_who_is_missing():
    part = {
        "family": "BTT",
        "dim": 256,
        "saving": 16.0,
        "errors": {"structured": 1e-7, "dense": 2e-7, "einsum": 1e-3},
        "absent": {"CoLA": "ModuleNotFoundError: No module named 'cola'"},
        "seconds": {"structured": [0.001], "dense": [0.008]},
        "seconds_trained": {"structured": [0.003]},
        "speedups": {"dense": 8.0},
        "reached": 0.5,
    }
    ((title, rows),) = weights.sections({"batch": 3, "contests": [part]})
    saving = "BTT, D = 256, 3 vectors: 16.0 times fewer multiply-adds than dense"
    assert title == f"{saving}, of which the forward reaches 50%"
    assert rows == [
        ("structured", "error 1e-07", "forward 1.00 ms", "with backward 3.00 ms"),
        ("dense", "error 2e-07", "forward 8.00 ms", "ours is 8.0 times as fast"),
        ("einsum", "error 1e-03", "not reported"),
        ("CoLA", "absent: ModuleNotFoundError: No module named 'cola'"),
    ]
    ((title, _),) = weights.sections({"batch": 3, "contests": [part | {"reached": None}]})
    assert title == saving


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
    """The numbers between the factors, at rank 2 two for each feature, are read where they lie."""
    weight = BlockTensorTrain.random((16, 16, 16, 16), 2, 0)
    (x,) = random_tensors([(512, 256)], dtype=torch.float32)
    factors = weight.R.numel()
    assert copies(weight, x) == factors + 2 * x.numel()
    assert copies(weights.OTHERS["BTT"]["bmm with copies"](weight), x) >= 3 * x.numel()
