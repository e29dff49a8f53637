"""Parts that all benchmarks share: contests, clocks, records, targets, tables; and records are what the code makes."""

import importlib
import json
import math
import os
import statistics
import sys
import time as clocks
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import benchmarks as bench
from benchmarks import bilinear, masks, records, report, ssd, training
from benchmarks import contest as contests
from benchmarks.contest import checked, contest, every_kth, judge, unchecked
from benchmarks.problem import Problem
from smalearn.course import timing
from smalearn.data import recorded, recorded_cpus
from smalearn.data.included import CPU

TINY = Problem(length=128, heads=2, head_dim=3, state=4)
SIZES = {
    "bilinear": {"dim": 64, "length": 33, "heads": 4, "rounds": 2},
    "delta-rule": {"problems": [replace(TINY, shared=False, head_dim=4)], "rounds": 3},
    "linear-attention": {"problem": replace(TINY, shared=False), "rounds": 3},
    "masks": {"length": 64, "columns": 3, "rounds": 3},
    "multilevel": {"lengths": (130, 300), "heads": 2, "context": 256, "rounds": 3},
    "ssd": {"problems": [TINY, replace(TINY, length=64), replace(TINY, length=192, heads=1)], "lengths": [64, 1024]},
    "training": {"problem": TINY, "states": (2, 4, 8), "dim": 16, "batch": (2, 21), "rounds": 3},
    "weights": {"dims": (256,), "batch": 3, "rounds": 2},
}
SIZES["ssd"]["rounds"] = 3
MODULES = {name: importlib.import_module(f"benchmarks.{name.replace('-', '_')}") for name in SIZES}


# The records of all benchmarks


def parts(result, mark="contestants"):
    """All contests in a record, or whatever has a mark."""
    if isinstance(result, list | dict) and mark in result:
        return [result]
    inner = result.values() if isinstance(result, dict) else result if isinstance(result, list) else []
    return [part for one in inner for part in parts(one, mark)]


def ratios_follow(name, part):
    """Check the speedups of a contest; those of its entries that are timed."""
    entries = {one: entry for one, entry in part["contestants"].items() if "seconds" in entry}
    statistic = min if name == "multilevel" else statistics.median
    assert part["speedups"] == contests.speedups(entries, list(part["speedups"]), statistic)
    return entries


def exponents_follow(result):
    """Check the exponents of growths by their samples."""
    for part in parts(result, "exponents"):
        times = [[statistics.median(one) for one in seconds] for seconds in part["seconds"].values()]
        exponents = timing.slope(part["lengths"], times[0]), timing.slope(*times[::-1])
        assert exponents == pytest.approx([part["exponents"][clock] for clock in ("against T", "against clone")])


@pytest.mark.parametrize("name", ["ssd", *(pytest.param(one, marks=pytest.mark.full) for one in SIZES if one != "ssd")])
def test_a_record_can_be_stored_shown_and_judged(name, here, two_threads):
    result = bench.BENCHMARKS[name](**SIZES[name])
    assert torch.get_num_threads() == 2
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["command"], result["rounds"]) == (f"smalearn bench {name}", SIZES[name]["rounds"])
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert result.keys() == recorded(name.replace("-", "_")).keys()
    assert [row["what"].split(":")[-1] for row in result["targets"]]
    assert result["targets"] == MODULES[name].targets(result)
    exponents_follow(result)
    for part in parts(result):
        entries = ratios_follow(name, part)
        if part not in result.get("accuracy", []):  # there some peers are wrong
            assert all(one in entries or "absent" in entry for one, entry in part["contestants"].items())
    lines = bench.table(result).splitlines()
    assert f"torch: {torch.__version__}" in lines
    shown = list(report.sections(result))
    assert len(shown) >= len(parts(result)) > 0
    for title, rows in shown:
        assert title in lines
        assert all(cell in "\n".join(lines) for row in rows for cell in row)


RECORDS = [(name, cpu) for name in SIZES for cpu in recorded_cpus(name.replace("-", "_"))]


@pytest.mark.parametrize(("name", "cpu"), RECORDS)
def test_what_is_recorded_follows_from_its_samples(name, cpu):
    stored = recorded(name.replace("-", "_"), cpu)
    assert stored["command"] == f"smalearn bench {name}"
    assert records.cpu_folder(stored["machine"]) == cpu
    assert stored["targets"] == MODULES[name].targets(stored)
    assert bench.table(stored).count("\n") > 15
    exponents_follow(stored)
    for part in parts(stored):
        entries = ratios_follow(name, part)
        assert all(entry.get("tolerated", True) and len(entry["seconds"]) >= 3 for entry in entries.values())
        if name in ("masks", "weights"):
            assert all(len(entry["seconds"]) >= 21 for entry in entries.values())


@pytest.mark.parametrize("cpu", recorded_cpus("ssd"))
def test_recorded_sizes_are_the_usual_ones(cpu):
    found = {name: recorded(name, cpu) for name in ("ssd", "masks", "bilinear", "training")}
    sizes = [part["sizes"] for part in found["ssd"]["contests"]]
    assert sizes == [replace(one, backward=way).sizes() for one in ssd.PROBLEMS for way in (False, True)]
    assert list(found["masks"]["contests"]) == list(found["masks"]["growth"]) == list(masks.FAMILIES)
    assert list(found["bilinear"]["contests"][0]["contestants"]) == [bilinear.SDPA, *bilinear.FORMS]
    part, steps = found["training"]["growth"], found["training"]["steps"]
    assert (part["states"], list(part["slopes"])) == (list(training.STATES), list(training.ROUTES))
    assert list(steps["contestants"]) == list(training.MODELS)


def test_all_is_measured_on_one_thread(two_threads):
    result = report.record(
        "x", 3, lambda finish: {"threads": torch.get_num_threads()}, lambda result: [result["threads"]]
    )
    assert (result["threads"], result["targets"], torch.get_num_threads()) == (1, [1], 2)
    assert list(result) == ["command", "machine", "rounds", "threads", "load_at_the_end", "targets"]


# Records by CPU


@pytest.mark.parametrize(
    ("cpu", "instructions", "folder"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "AVX512", "intel-xeon-platinum-8481c-avx512"),
        ("AMD Ryzen 7 5800X 8-Core Processor", "AVX2", "amd-ryzen-7-5800x-avx2"),
    ],
)
def test_a_cpu_has_a_folder_of_its_own(cpu, instructions, folder, tmp_path):
    machine = {"cpu": cpu, "instructions": instructions, "model": "cpu family 1, model 2"}
    file = records.place_of(tmp_path, "linear-attention", machine)
    assert file == tmp_path / "cpu" / folder / "linear_attention.json"
    file.parent.mkdir(parents=True)
    for there in (machine, {"cpu": cpu, "instructions": instructions}):  # older records do not say the model
        file.write_text(json.dumps({"machine": there}), encoding="utf-8")
        assert records.place_of(tmp_path, "linear-attention", machine) == file
    for fact in machine:
        file.write_text(json.dumps({"machine": machine | {fact: "another"}}), encoding="utf-8")
        with pytest.raises(ValueError, match=r"holds times of .*another.*: name another file"):
            records.place_of(file, "linear-attention", machine)


def test_a_result_is_shown_beside_those_of_all_cpus():
    stored = recorded("linear_attention", CPU)
    assert len(records.beside("linear-attention")) == len(recorded_cpus("linear_attention")) > 1
    what = stored["targets"][0]["what"]
    last = recorded("linear_attention", recorded_cpus("linear_attention")[-1])["targets"][0]["measured"]
    (shown,) = (line.split()[-1] for line in bench.table(stored).splitlines() if what in line)
    assert shown == report.number(last)


# Contests


def fails(error):
    raise error


def test_only_the_right_ones_are_timed():
    ones, samples = torch.ones(2), iter(range(1, 100))
    entrants = {
        "right": partial(checked, lambda: [ones, ones], [ones, ones], lambda run: float(next(samples))),
        "wrong": partial(checked, lambda: ones * 1.001, [ones]),
        "not a number": partial(checked, lambda: [ones, ones * math.nan], [ones, ones]),
        "missing": lambda: fails(ModuleNotFoundError("No module named 'elsewhere'")),
        "large": lambda: fails(torch.OutOfMemoryError("CUDA out of memory.\nAnd more")),
        "late": lambda: ([0.0], True, lambda: fails(torch.OutOfMemoryError("full"))),
        "a copy": partial(unchecked, ones.clone),
    }
    part = contest("p", entrants, 3, ["right", "a copy", "wrong"])
    assert part["problem"] == "p"
    right, wrong, nan, missing, large, late, copy = part["contestants"].values()
    assert right == {"error": 0.0, "errors": [0.0, 0.0], "tolerated": True, "seconds": [2.0, 3.0, 4.0]}
    assert wrong == {"error": pytest.approx(1e-3, rel=1e-3), "tolerated": False}
    assert nan == {"error": None, "errors": [0.0, None], "tolerated": False}
    assert missing == {"absent": "ModuleNotFoundError: No module named 'elsewhere'"}
    assert large == {"absent": "OutOfMemoryError: CUDA out of memory."}
    assert late == {"absent": "OutOfMemoryError: full"}
    assert list(copy) == ["seconds"]
    assert {base: list(others) for base, others in part["speedups"].items()} == {"right": [], "a copy": ["right"]}


def test_speedups_are_ratios_of_medians():
    entries = {
        "ours": {"error": 0.0, "seconds": [1.0, 2.0, 90.0]},
        "peer": {"error": 0.0, "seconds": [6.0, 5.0, 1.0]},
        "floor": {"seconds": [0.5]},
        "wrong": {"error": 1.0, "tolerated": False},
        "gone": {"absent": "why"},
    }
    ratios = contests.speedups(entries, ["ours", "wrong", "floor"], statistics.median)
    assert ratios == {"ours": {"peer": 2.5}, "floor": {"ours": 4.0, "peer": 10.0}}
    assert contests.speedups(entries, ["ours"], min)["ours"]["peer"] == 1.0
    part = {"speedups": {"ours": {"peer": 2.5, "other": 1.5}, "floor": {}}}
    assert [contests.best(part, base) for base in ("ours", "floor", "nobody")] == [1.5, None, None]
    assert contests.ratio(part, "ours", "peer") == 2.5
    assert contests.ratio(part, "ours", "x") is contests.ratio(part, "x", "ours") is None


def test_errors_are_compared_with_the_tolerance_of_their_dtype_or_with_one():
    one, half = torch.ones(2), torch.ones(2, dtype=torch.float16)
    assert judge([one, 1.5 * one], [one, one]) == ([0.0, 0.5], False)
    assert judge([one], [one]) == ([0.0], True)
    assert judge([half * 1.001, one * 1.001], [one, one], 1e-2)[1]
    assert not judge([half * 1.001, one * 1.1], [one, one], 1e-2)[1]
    for answers in ([one * math.nan, one], [one, one * math.inf]):
        assert not judge(answers, [one, one])[1]
    with pytest.raises(ValueError, match="zip"):
        judge([one], [one, one])


def test_what_is_slow_has_three_samples(monkeypatch):
    assert [every_kth(taken, 9, 60.0) for taken in (0.0, 6.0, 14.0, 1e9)] == [1, 1, 3, 4]
    assert every_kth(1e9, 2) == 1
    entrants = {"quick": lambda: (None, True, lambda: 1e-3), "slow": lambda: (None, True, lambda: 9e9)}
    part = contest("p", entrants, 7, [])["contestants"]
    assert {name: len(one["seconds"]) for name, one in part.items()} == {"quick": 7, "slow": 3}


# Targets and tables


def test_targets_are_bounds():
    for measured, least, most in ((1.9, True, False), (1.8, True, True), (None, False, False)):
        rows = [bound("speed", 1.8, measured) for bound in (report.at_least, report.at_most)]
        assert [row["met"] for row in rows] == [least, most]
    assert rows[0] == {"what": "speed, at least", "target": 1.8, "measured": None, "met": False}


SHOWN = """\
torch: 2

a product; share 0.5; key_bytes 1.0 MiB
  ours     2.000 ms       1.500 to 2.500   least 1.000   error 2e-07                      1e-07 2e-07
  a peer   4.000 ms       4.000 to 4.000   least 4.000   error 1e-07   parameters 1,234   2.00 × ours
  wrong    not reported   error unknown
  gone     absent: ImportError: no

Exponent of the time of x, T = [4, 8]: 1.00 against T

Memory; in brackets, in units of the bytes of X
  x   saved 3.0 MiB (3.0)   peak unknown

Targets
  MISSED   speed, at least 1.8: unknown
  met      bytes, at most 0.125: 0.04

no more"""
RESULT = {
    "machine": {"torch": "2"},
    "contests": [
        {
            "problem": "a product",
            "share": 0.5,
            "key_bytes": 2**20,
            "backward": True,
            "contestants": {
                "ours": {"error": 2e-7, "errors": [1e-7, 2e-7], "tolerated": True, "seconds": [0.001, 0.003, 0.002]},
                "a peer": {"error": 1e-7, "tolerated": True, "seconds": [0.004], "parameters": 1234},
                "wrong": {"error": None, "tolerated": False},
                "gone": {"absent": "ImportError: no"},
            },
            "speedups": {"ours": {"a peer": 2.0}},
        }
    ],
    "growth": {"x": {"lengths": [4, 8], "seconds": {"x": []}, "exponents": {"against T": 1.0}}},
    "memory": {"problem": "Memory", "unit": 2**20, "bytes": {"x": {"saved": 3 * 2**20, "peak": None}}},
    "note": "no more",
    "targets": [report.at_least("speed", 1.8, None), report.at_most("bytes", 0.125, 0.04)],
}


def test_a_table_has_its_cells_below_each_other():
    assert report.table(RESULT, {}) == SHOWN


def without_times(part):
    """A result in which nothing was right, and the system reported no memory."""
    if not isinstance(part, dict):
        return [without_times(one) for one in part] if isinstance(part, list) else part
    none = {"speedups": {}, "slopes": {}, "fraction": None, "peak": None, "error": None}
    return {key: none[key] if key in none else without_times(one) for key, one in part.items()}


@pytest.mark.parametrize("name", SIZES)
def test_what_was_not_measured_is_not_met(name):
    rows = MODULES[name].targets(without_times(recorded(name.replace("-", "_"))))
    others = [row for row in rows if not any(word in row["what"] for word in ("exponent", "saved bytes", "formula"))]
    assert {(row["measured"], row["met"]) for row in others} == {(None, False)}


# Times and memory


def test_every_round_measures_everything_in_an_order_of_its_own():
    calls = []
    samples = timing.interleaved({name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}, 8)
    rounds = [calls[i : i + 3] for i in range(0, 24, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert sorted(number for one in samples.values() for number in one) == list(range(1, 25))


def test_waiting_is_not_counted_where_the_system_can_tell():
    limit = 0.01 if timing.CLOCK is clocks.process_time else math.inf
    assert timing.seconds(lambda: clocks.sleep(0.05)) < limit


@pytest.mark.parametrize(("taken", "runs"), [(0.01, 2), (3.0, 1)])
def test_a_short_run_is_timed_after_a_warm_up(monkeypatch, taken, runs):
    clock, calls = iter([0.0, taken, 10.0, 10.0 + taken / 2]), []
    monkeypatch.setattr(timing, "CLOCK", lambda: next(clock))
    assert timing.warm_seconds(lambda: calls.append(1)) == pytest.approx(taken / runs)
    assert len(calls) == runs


def test_slope_is_the_exponent_and_quartiles_are_of_samples():
    assert timing.slope([1, 2, 4, 8], [3 * x**1.5 for x in (1, 2, 4, 8)]) == pytest.approx(1.5)
    assert timing.quartiles([3.0, 1.0, 2.0, 5.0, 4.0]) == [2.0, 3.0, 4.0]
    assert timing.quartiles([3.0]) == [3.0, 3.0, 3.0]


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


def test_what_a_cpu_says_of_itself(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "exists", lambda self: True)
    for text, model in (
        ("processor : 0\ncpu family : 26\nmodel : 2\nmodel name : AMD\n\n", "cpu family 26, model 2"),
        ("CPU implementer : 0x41\nCPU part : 0xd40\n", "CPU implementer 0x41, CPU part 0xd40"),
    ):
        monkeypatch.setattr(Path, "read_text", lambda self, encoding, text=text: text)
        assert timing.machine()["model"] == model


def test_what_the_system_does_not_report_is_none(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    monkeypatch.setattr(Path, "write_text", missing)
    assert timing.grown_bytes(lambda: None) is None
    assert timing.machine()["cpu"]
    assert timing.machine()["load"] is None
