"""The delta rule and multi-level attention on a device; the rows that records come to, and where records lie."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from counting import moved
from triton_marks import needs_gpu, needs_triton

import benchmarks as bench
from benchmarks import contest, device, device_delta_rule, device_multilevel, device_ssd, records, report
from benchmarks.contest import speedups
from smalearn import data
from smalearn.data import included
from smalearn.fast import tile
from smalearn.fast.triton import delta_rule_tiles, launch
from smalearn.multilevel import halving_blocks, score_macs
from smalearn.testing import assert_close, relative_rms

pytestmark = pytest.mark.usefixtures("judged_anew")
MODULES = {"delta-rule": device_delta_rule, "multilevel": device_multilevel, "ssd": device_ssd}
TINY_DELTA, TINY_LEVELS = device_delta_rule.TINY[0], device_multilevel.TINY[0]
ENTRANTS = {"delta-rule": device_delta_rule.DELTA_RULE, "multilevel": device_multilevel.ATTENTIONS}
H200 = {"name": "NVIDIA H200"}


# The whole


def is_whole(result, name):
    """Check a record of tiny sizes: everybody who is here is right and timed, the base first."""
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["command"].startswith(f"smalearn bench {name} --device ")
    part, *beside = result["contests"]
    floor, ours, *_ = part["contestants"]
    assert (floor, ours) == ("floor", ENTRANTS[name][0].name)
    assert list(part["speedups"]) == ["floor", ours]
    assert [one["problem"] for one in beside] == [part["problem"] + device_delta_rule.BESIDE] * len(beside)
    row, *_ = report.summary(result)
    assert (row.problem, row.ours, list(row.times_as_fast)) == (part["problem"], ours, list(part["speedups"][ours]))
    assert row.problem in bench.table(result)
    return part["contestants"]


@needs_triton
@pytest.mark.parametrize("name", ["delta-rule", pytest.param("multilevel", marks=pytest.mark.full)])
def test_all_that_can_run_here_are_right_timed_and_shown(name):
    result = MODULES[name].benchmark("cpu", rounds=2)
    for entry in list(is_whole(result, name).values())[1:]:
        assert entry["error"] < 1e-6
        assert len(entry["seconds"]) == result["rounds"]
    assert (result["targets"], result["note"]) == ([], device.NOTE)


@needs_gpu
@pytest.mark.parametrize("name", ENTRANTS)
def test_the_whole_on_a_gpu(name):
    small = {"batch": 2, "length": 1000, "dtype": torch.bfloat16, "device": "cuda"}
    problem = replace(MODULES[name].TINY[0], state=64, head_dim=64, **small)
    result = MODULES[name].benchmark("cuda", [problem], rounds=3)
    entries = is_whole(result, name)
    assert all(entries[one.name]["tolerated"] for one in ENTRANTS[name])
    assert len(result["contests"]) == (2 if name == "delta-rule" else 1)
    assert result["device"]["name"] == device.gpu_name("cuda")
    assert result["targets"]


def test_without_triton_the_tile_machine_runs_the_delta_rule(monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: False)
    assert device.judged(device_delta_rule.DELTA_RULE[0], TINY_DELTA, False)[1]
    (part,) = device.measure(TINY_LEVELS, device_multilevel.ATTENTIONS[:1], {"forward": 1.0}, 1)
    assert "Triton is missing" in part["contestants"][device_multilevel.OURS]["absent"]


@pytest.mark.full
def test_fla_takes_part_in_the_delta_rule_when_all_others_are_through(monkeypatch):
    """A stand-in that can be found on a CPU; it is absent, or it stops the benchmark."""
    fla, ours = replace(device_delta_rule.FLA, anywhere=True), device_delta_rule.OURS
    monkeypatch.setattr(device_delta_rule, "FLA", fla)
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    problems = [TINY_DELTA, replace(TINY_DELTA, length=41)]
    parts = device_delta_rule.benchmark("cpu", problems, rounds=1)["contests"]
    titles = [f"{one.title}, forward" for one in problems]
    assert [part["problem"] for part in parts] == titles + [f"{title}, beside {fla.name}" for title in titles]
    assert list(parts[2]["contestants"])[1:] == [ours, fla.name]
    assert "ModuleNotFoundError" in parts[2]["contestants"][fla.name]["absent"]

    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(device_delta_rule, "FLA", replace(fla, load=stopped))
    finished = bench.run("delta-rule", "cpu")["finished"]
    assert [part["problem"] for part in finished] == titles[:1]


# Implementations


def test_one_level_is_attention_and_eight_are_not():
    levels, one, standard = (x.exact(*TINY_LEVELS.inputs()[0]) for x in device_multilevel.ATTENTIONS)
    assert_close(one, standard)
    assert relative_rms(levels, one) > 0.1


# The least work


def test_bytes_of_the_delta_rule_are_what_the_program_moves_once():
    problem = replace(TINY_DELTA, length=64, dtype=torch.float16)
    with tile.recording() as events:
        delta_rule_tiles(*device_delta_rule.delta_operands(*problem.inputs()[0]))
    bytes = moved(events)
    size, flops = device_delta_rule.work(problem)["forward"]
    twice = sum(bytes[name] for name in ("k", "beta", "log_a"))
    assert size == sum(bytes[name] for name in ("q", "v", "y")) + twice / 2
    assert flops < sum(event.flops for event in events)  # which has T, too


def test_work_of_attention_counts_pairs():
    T, P = TINY_LEVELS.length, TINY_LEVELS.head_dim
    blocks = halving_blocks(T, 8)
    pairs = [sum(t // size == s // size for t in range(T) for s in range(t + 1)) for size in blocks]
    assert score_macs(T, device_multilevel.RANKS, blocks) == sum(8 * count for count in pairs)
    size, flops = device_multilevel.work(TINY_LEVELS)["forward"]
    assert flops == 4 * (2 * sum(8 * count for count in pairs) + 2 * P * T * (T + 1) // 2)
    V, _, K, Q = TINY_LEVELS.inputs()[0]
    assert size == Q.nbytes + K.nbytes + 2 * V.nbytes + 4 * T * 4


# What follows from the samples


def test_a_record_comes_to_rows_whether_it_is_whole_or_stopped():
    times = {"floor": [1.0], "ours": [2.0], "peer": [3.0], "other": [1.0]}
    entries = {name: {"seconds": one} | ({"error": 0.0} if name != "floor" else {}) for name, one in times.items()}
    part = {"problem": "p", "contestants": entries, "speedups": speedups(entries, ["floor", "ours"], max)}
    row = ("p", "ours", 2000.0, {"peer": 1.5, "other": 0.5}, 0.5)
    assert list(report.summary({"contests": [part]})) == [row]
    steps = {"problem": "steps", "contestants": {"ours": {"error": 0.0, "seconds": [0.5]}}, "speedups": {"ours": {}}}
    failed = {"problem": "f", "contestants": {"ours": {"absent": "why"}}, "speedups": {"floor": {}}}
    failed["contestants"]["floor"] = {"seconds": [1.0]}
    memory = {"problem": "Memory", "unit": 1, "bytes": {}}
    stopped = {"machine": {}, "device": H200, "finished": [part, failed, memory, steps], "targets": []}
    assert list(report.summary(stopped)) == [row, ("steps", "ours", 500.0, {}, None)]
    lines = report.table(stopped, {}).splitlines()
    assert lines[lines.index("Ours, and how many times as fast as its peers") + 1 :] == [
        "  p       ours   2000.000 ms   50% of the floor   1.50 × peer, 0.50 × other",
        "  steps   ours   500.000 ms",
    ]


def test_a_stopped_record_says_the_device(monkeypatch):
    monkeypatch.setattr(device, "about", lambda on: H200)

    def stop(rates, finish):
        finish({"problem": "p"})
        raise KeyboardInterrupt

    monkeypatch.setitem(
        bench.DEVICE_BENCHMARKS, "multilevel", lambda on, keep: device.record("multilevel", on, 2, stop, list)
    )
    result = bench.run("multilevel", "cpu")
    assert result["finished"] == [{"problem": "p"}]
    assert (result["device"], result["command"]) == (H200, "smalearn bench multilevel --device cpu")
    assert set(result["rates"]) == {"copy", "gemm"}


# Records by GPU


def test_a_gpu_has_a_folder_of_its_own(tmp_path):
    file = records.place_of(tmp_path, "delta-rule", None, "NVIDIA H200")
    assert file == tmp_path / "gpu/nvidia-h200/delta_rule.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"machine": {}, "device": H200}), encoding="utf-8")
    assert records.place_of(file, "delta-rule", None, "NVIDIA H200") == file
    with pytest.raises(ValueError, match="holds times of NVIDIA H200: name another file"):
        records.place_of(file, "delta-rule", None, "NVIDIA H100")


def test_records_of_gpus_follow_from_their_samples():
    results = included.RESULTS
    for file in sorted(results.glob("gpu/*/*.json")):
        stored, name = data.recorded(file.relative_to(results).with_suffix("").as_posix()), file.stem.replace("_", "-")
        assert records.place_of(results, name, None, stored["device"]["name"]) == file
        assert stored["command"] == f"smalearn bench {name} --device cuda"
        whole = "finished" not in stored
        assert stored["targets"] == (MODULES[name].targets(stored) if whole else [])
        assert list(report.summary(stored))
        contests = stored["contests"] + stored.get("decode", []) if whole else stored["finished"]
        for part in [one for one in contests if "contestants" in one]:
            timed = {one: entry for one, entry in part["contestants"].items() if "seconds" in entry}
            assert part["speedups"] == speedups(timed, list(part["speedups"]), contest.statistics.median)
            assert all(len(entry["seconds"]) >= 3 for entry in timed.values())
