"""The benchmark of masks: no wrong product is timed, and what is reported follows from the samples."""

import json
import statistics
from pathlib import Path

import pytest
import torch

from smalearn.lab import bench
from smalearn.lab.bench import masks
from smalearn.masks import CausalMask, DecayMask


class WrongMask(CausalMask):
    def _product(self, x):
        return super()._product(x) * (1 + 1e-3)


class BrokenMask(CausalMask):
    def _product(self, x):
        return super()._product(x) * torch.nan


@pytest.fixture
def result():
    return masks.benchmark(length=64, columns=3, rounds=3)


@pytest.mark.parametrize("name", masks.FAMILIES)
def test_every_family_is_right_at_many_chunks(name):
    found = masks.race(masks.FAMILIES[name], 700, 5, 2)
    assert found["tolerated"], found
    assert found["error"] < 1e-6
    assert {key: len(times) for key, times in found["seconds"].items()} == {"structured": 2, "dense": 2, "cumsum": 2}


def test_the_semiseparable_mask_of_the_contest_has_resets():
    log_a = masks.FAMILIES["1-semiseparable"](4096).log_a
    assert log_a.isinf().sum() == 4
    assert (log_a <= 0).all()


@pytest.mark.parametrize("wrong", [WrongMask, BrokenMask])
def test_a_wrong_product_is_not_timed(wrong):
    found = masks.race(wrong, 64, 3, 2)
    assert not found["tolerated"]
    assert "seconds" not in found
    assert "speedups" not in found


def test_speedups_are_ratios_of_medians(monkeypatch):
    spent = {"structured": 2.0, "dense": 10.0, "cumsum": 1.0}
    monkeypatch.setattr(masks, "interleaved", lambda turns, rounds: {name: [99, spent[name], 0.1] for name in turns})
    found = masks.race(CausalMask, 64, 3, 3)
    assert found["speedups"] == {"dense": 5.0, "cumsum": 0.5}


def test_a_turn_measures_the_second_of_two_runs(monkeypatch):
    calls = []
    monkeypatch.setattr(masks, "seconds", lambda run: run() or len(calls))
    turns = masks._turns(one=lambda: calls.append(1))
    assert turns["one"]() == 2


def test_the_exponent_is_the_median_of_three_sweeps(monkeypatch):
    powers = iter([1.0, 3.0, 2.0])

    def fake(turns, rounds):
        power = next(powers)
        return {(name, T): [float(T) ** (power if name == "structured" else 1.0)] for name, T in turns}

    monkeypatch.setattr(masks, "interleaved", fake)
    found = masks.growth(lambda T: DecayMask(T, 0.5), [64, 128, 256], 3, 9)
    assert [sweep["exponent"] for sweep in found["sweeps"]] == pytest.approx([1.0, 3.0, 2.0])
    assert found["exponent"] == pytest.approx(2.0)
    assert found["lengths"] == [64, 128, 256]


def test_targets_compare_with_what_was_measured():
    def contest(dense, cumsum=1.0):
        return {"speedups": {"dense": dense, "cumsum": cumsum}}

    contests = {
        "causal": contest(20.0),
        "decay": contest(19.0),
        "1-semiseparable": contest(11.0, 0.25),
        "Toeplitz": {"tolerated": False},
        "Fourier": contest(5.5),
    }
    growths = dict(zip(masks.FAMILIES, ({"exponent": p} for p in (1.0, 1.2, 1.1, 1.2, 1.3)), strict=True))
    found = masks.targets({"contests": contests, "growth": growths})
    rows = [(row["target"], row["measured"], row["met"]) for row in found]
    assert rows == [
        (20, 20.0, True),
        (20, 19.0, False),
        (10, 11.0, True),
        (5, None, False),
        (5, 5.5, True),
        (5, 4.0, True),
        (1.1, 1.0, True),
        (1.1, 1.2, False),
        (1.1, 1.1, True),
        (1.25, 1.2, True),
        (1.25, 1.3, False),
    ]
    contests["1-semiseparable"] = {"tolerated": False}
    assert masks.targets({"contests": contests, "growth": growths})[5]["measured"] is None


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert result["command"] == "smalearn bench masks"
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert set(result["contests"]) == set(result["growth"]) == set(masks.FAMILIES)
    assert all(part["lengths"] == [64, 128, 256, 512] for part in result["growth"].values())


def test_all_is_measured_on_one_thread(monkeypatch):
    threads = []
    for part in ("race", "growth"):
        monkeypatch.setattr(masks, part, lambda *_: threads.append(torch.get_num_threads()) or {"exponent": 1.0})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(KeyError):  # what stands in for a contest has no result
        masks.table(masks.benchmark(64, 3, 3))
    assert threads == [1] * 10
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_the_table_shows_times_errors_and_targets(result):
    result["contests"]["causal"] |= {
        "error": 1e-7,
        "seconds": {"structured": [0.001], "dense": [0.02], "cumsum": [0.001]},
        "speedups": {"dense": 20.0, "cumsum": 1.0},
    }
    result["contests"]["decay"] = {"length": 64, "columns": 3, "error": 1e-3, "tolerated": False}
    result["growth"]["causal"]["sweeps"] = [{"exponent": p} for p in (1.0, 1.04, 0.9)]
    result["targets"] = [
        {"what": "speed, at least", "target": 20, "measured": None, "met": False},
        {"what": "exponent, at most", "target": 1.1, "measured": 1.04, "met": True},
    ]
    lines = bench.table(result).splitlines()
    assert f"torch: {torch.__version__}" in lines
    times = "structured 1.00 ms, dense 20.00 ms, cumsum 1.00 ms"
    assert f"causal           T = 64, 3 columns   error 1e-07   {times}   faster than dense by 20.0" in lines
    assert "decay            T = 64, 3 columns   error 1e-03   not reported" in lines
    assert "causal           time ∝ clone^p, T = 64 to 512: p = 1.00, 1.04, 0.90" in lines
    assert lines[-2:] == ["  MISSED speed, at least 20: unknown", "  met    exponent, at most 1.1: 1.04"]


def test_the_recorded_result_is_one_of_this_benchmark():
    stored = json.loads((Path(__file__).parents[2] / "assets/results/masks.json").read_text(encoding="utf-8"))
    assert set(stored["contests"]) == set(stored["growth"]) == set(masks.FAMILIES)
    for contest in stored["contests"].values():
        assert (contest["length"], contest["columns"], contest["tolerated"]) == (4096, 64, True)
        assert all(len(times) >= 21 for times in contest["seconds"].values())
        medians = {name: statistics.median(times) for name, times in contest["seconds"].items()}
        assert contest["speedups"]["dense"] == medians["dense"] / medians["structured"]
    for part in stored["growth"].values():
        assert part["lengths"] == [4096, 8192, 16384, 32768]
        assert part["exponent"] == statistics.median(sweep["exponent"] for sweep in part["sweeps"])
    assert stored["targets"] == masks.targets(stored)
