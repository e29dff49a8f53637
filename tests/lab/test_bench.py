"""Parts that all benchmarks share: clocks, rounds, records, targets, tables; and records are what the code makes."""

import importlib
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smalearn.data import recorded
from smalearn.lab import bench
from smalearn.lab.bench import bilinear, linear_attention, masks, multilevel, report, ssd, timing, training, weights
from smalearn.lab.bench.implementation import Run
from smalearn.lab.bench.problem import Problem

TINY = Problem(length=128, heads=2, head_dim=3, state=4)
SIZES = {
    "bilinear": {"dim": 64, "length": 33, "heads": 4, "rounds": 2},
    "linear-attention": {"problem": replace(TINY, shared=False), "rounds": 3},
    "masks": {"length": 64, "columns": 3, "rounds": 3},
    "multilevel": {"lengths": (130, 300), "heads": 2, "context": 256, "rounds": 3},
    "ssd": {"problems": [TINY, replace(TINY, length=64), replace(TINY, length=192, heads=1)], "lengths": [64, 128]},
    "training": {"problem": TINY, "states": (2, 4, 8), "dim": 16, "batch": (2, 21), "rounds": 3},
    "weights": {"dims": (256,), "batch": 3, "rounds": 2},
}
SIZES["ssd"]["rounds"] = 3
MODULES = {name: importlib.import_module(f"smalearn.lab.bench.{name.replace('-', '_')}") for name in SIZES}


def here(monkeypatch):
    """Run everything in this process, with small products."""
    for module in (importlib.import_module("smalearn.lab.bench.implementation"), ssd):
        monkeypatch.setattr(module, "processes", lambda names: _Here(names))
    for module in (importlib.import_module("smalearn.lab.bench.implementation"), multilevel):
        monkeypatch.setattr(module, "alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(ssd, "GEMM", 32)
    monkeypatch.setattr(multilevel, "LOOPS", {130: 3})


class _Here(dict):
    def __init__(self, names):
        super().__init__(dict.fromkeys(names, Run))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def numbers(part):
    """All numbers in a record's times."""
    if isinstance(part, dict):
        part = list(part.values())
    return [number for one in part for number in numbers(one)] if isinstance(part, list) else [part]


# The records of all benchmarks


@pytest.mark.parametrize("name", SIZES)
def test_a_record_can_be_stored_shown_and_judged(name, monkeypatch, two_threads):
    here(monkeypatch)
    result = bench.BENCHMARKS[name](**SIZES[name])
    assert torch.get_num_threads() == 2
    assert json.loads(json.dumps(result)) == result
    assert (result["command"], result["rounds"]) == (f"smalearn bench {name}", SIZES[name]["rounds"])
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    stored = recorded(name.replace("-", "_"))
    assert result.keys() == stored.keys()
    if name != "training":
        assert [row["what"].split(":")[-1] for row in result["targets"]]
        assert result["targets"] == MODULES[name].targets(result)
    lines = bench.table(result).splitlines()
    assert f"torch: {torch.__version__}" in lines
    for title, rows in MODULES[name].sections(result):
        assert title in lines
        assert all(cell in "\n".join(lines) for row in rows for cell in row)


@pytest.mark.parametrize("name", SIZES)
def test_what_is_recorded_follows_from_its_samples(name):
    stored = recorded(name.replace("-", "_"))
    assert stored["command"] == f"smalearn bench {name}"
    if name != "training":
        assert stored["targets"] == MODULES[name].targets(stored)
    assert bench.table(stored).count("\n") > 15
    parts = stored.get("contests", [])
    for part in parts.values() if isinstance(parts, dict) else parts:
        if "contestants" in part:
            present = {one: entry for one, entry in part["contestants"].items() if "absent" not in entry}
            assert all(entry["tolerated"] and len(entry["seconds"]) >= 3 for entry in present.values())
            assert part["speedups"] == report.speedups(present, list(part["speedups"]))
        if name in ("masks", "weights"):
            middle = report.medians(part["seconds"])
            assert part["speedups"]["dense"] == middle["dense"] / middle["structured"]
            assert all(len(samples) >= 21 for samples in part["seconds"].values())


def test_recorded_sizes_are_the_usual_ones():
    ways = [(one, way) for one in ssd.PROBLEMS for way in (False, True)]
    assert [part["sizes"] for part in recorded("ssd")["contests"]] == [replace(p, backward=w).sizes() for p, w in ways]
    usual = [part["sizes"] for part in recorded("linear_attention")["contests"]]
    assert usual == [
        replace(linear_attention.PROBLEM, decay=decay, backward=way).sizes()
        for way in (False, True)
        for decay in (None, "gate")
    ]
    assert tuple(recorded("ssd")["growth"]["lengths"]) == ssd.LENGTHS
    assert {(part["length"], part["columns"]) for part in recorded("masks")["contests"].values()} == {(4096, 64)}
    assert list(recorded("masks")["contests"]) == list(recorded("masks")["growth"]) == list(masks.FAMILIES)
    families = [(part["family"], part["dim"]) for part in recorded("weights")["contests"]]
    assert families == [(name, dim) for dim in (1024, 4096) for name in weights.FAMILIES]
    assert list(recorded("bilinear")["seconds"]) == [bilinear.SDPA, *bilinear.FORMS]
    part, models = recorded("training")["growth"], recorded("training")["steps"]["models"]
    assert (part["states"], list(part["slopes"])) == (list(training.STATES), list(training.ROUTES))
    assert list(models) == list(training.MODELS)


def test_all_is_measured_on_one_thread(two_threads):
    result = report.record("x", 3, lambda: {"threads": torch.get_num_threads()}, lambda result: [result["threads"]])
    assert (result["threads"], result["targets"], torch.get_num_threads()) == (1, [1], 2)
    assert list(result) == ["command", "machine", "rounds", "threads", "load_at_the_end", "targets"]


# Targets and tables


@pytest.mark.parametrize(("measured", "least", "most"), [(1.9, True, False), (1.8, True, True), (None, False, False)])
def test_targets_are_bounds(measured, least, most):
    rows = [bound("speed", 1.8, measured) for bound in (report.at_least, report.at_most)]
    assert [row["met"] for row in rows] == [least, most]
    assert rows[0] == {"what": "speed, at least", "target": 1.8, "measured": measured, "met": least}


def test_speedups_are_ratios_of_medians():
    entries = {
        "ours": {"seconds": [1.0, 2.0, 90.0]},
        "peer": {"seconds": [6.0, 5.0, 1.0]},
        "wrong": {"tolerated": False},
        "gone": {"absent": "why"},
    }
    assert report.speedups(entries, ["ours", "wrong"]) == {"ours": {"peer": 2.5}}


def test_a_table_has_its_cells_below_each_other():
    rows = [("a", "1.00 ms", "x"), ("long", "absent: no such library"), ("b", "12.00 ms", "y")]
    targets = [report.at_least("speed", 1.8, None), report.at_most("bytes", 0.125, 0.04)]
    lines = report.render({"machine": {"torch": "2"}, "targets": targets}, [("title", rows)]).splitlines()
    assert lines == [
        "torch: 2",
        "",
        "title",
        "  a      1.00 ms    x",
        "  long   absent: no such library",
        "  b      12.00 ms   y",
        "",
        "Targets",
        "  MISSED   speed, at least 1.8: unknown",
        "  met      bytes, at most 0.125: 0.04",
    ]


# Times and memory


def test_every_round_measures_everything_in_an_order_of_its_own():
    calls = []
    samples = timing.interleaved({name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}, 8)
    rounds = [calls[i : i + 3] for i in range(0, 24, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert sorted(number for one in samples.values() for number in one) == list(range(1, 25))


def test_what_is_slow_is_measured_in_few_rounds():
    samplers = dict.fromkeys(("quick", "slow"), float)
    samples = timing.interleaved(samplers, 7, {"slow": 3})
    assert {name: len(one) for name, one in samples.items()} == {"quick": 7, "slow": 3}


def test_waiting_is_not_counted_where_the_system_can_tell():
    limit = 0.01 if timing.CLOCK is time.process_time else math.inf
    assert timing.seconds(lambda: time.sleep(0.05)) < limit


@pytest.mark.parametrize(("taken", "runs"), [(0.01, 2), (3.0, 1)])
def test_a_short_run_is_timed_after_a_warm_up(monkeypatch, taken, runs):
    clock, calls = iter([0.0, taken, 10.0, 10.0 + taken / 2]), []
    monkeypatch.setattr(timing, "CLOCK", lambda: next(clock))
    assert timing.warm_seconds(lambda: calls.append(1)) == pytest.approx(taken / runs)
    assert len(calls) == runs


def test_slope_is_the_exponent():
    assert timing.slope([1, 2, 4, 8], [3 * x**1.5 for x in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_saved_bytes_counts_each_storage_once():
    x = torch.ones(8, requires_grad=True)  # 32 bytes, saved twice by x * x, once more by the view
    y = torch.ones(4)  # 16 bytes
    assert timing.saved_bytes(lambda: (x * x)[:4] * y) == 48


def test_the_peak_counts_what_is_freed_within_the_run_and_not_before():
    def small():
        return [torch.ones(2**13) for _ in range(512)]  # 16 MiB in blocks that the C library keeps when they are freed

    torch.ones(2**25)  # 128 MiB, freed before
    last = small()[-1]
    large, many = timing.grown_bytes(lambda: torch.ones(2**24) + 1), timing.grown_bytes(small)
    if sys.platform == "linux":
        assert abs(large - 2**27) < 2**22  # two tensors of 64 MiB; Linux counts pages lazily
        assert abs(many - 2**24) < 2**22, last.shape
    else:
        assert large is many is None


def test_what_the_system_does_not_report_is_none(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    monkeypatch.setattr(Path, "write_text", missing)
    assert timing.grown_bytes(lambda: None) is None
    assert timing.machine()["cpu"]
    assert timing.machine()["load"] is None
