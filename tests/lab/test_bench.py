"""Benchmarks: the gate lets no wrong answer be timed, samples interleave, and what is reported follows from them."""

import json
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from smalearn.lab import bench
from smalearn.lab.bench import linear_attention, parts, problem, timing
from smalearn.lab.bench.contestants import BACKWARDS, CONTESTANTS, Contestant, textbook
from smalearn.linear_attention import linear_attention_parallel
from smalearn.testing import assert_close

TINY = bench.Problem(length=128, heads=2, features=4, head_dim=3)
NAMES = {contestant.name: contestant for contestant in (*CONTESTANTS, *BACKWARDS)}


@pytest.fixture(autouse=True)
def _threads():
    """Contestants set the number of threads of their process, which here is the tests'."""
    with timing.one_thread():
        yield
    timing._JOBS.clear()


def compete(task, contestants, rounds=2):
    """A contest in threads instead of processes."""
    with ThreadPoolExecutor(1) as thread:
        return timing.contest(task, contestants, dict.fromkeys((one.name for one in contestants), thread), rounds)


def ours():
    return partial(linear_attention_parallel)


def slightly_wrong():
    return lambda *inputs: linear_attention_parallel(*inputs) * (1 + 1e-3)


def wrong_gradient():
    return lambda Q, K, V, log_a: linear_attention_parallel(Q, K.detach() + 0 * K, V, log_a)


def not_a_number():
    return lambda *inputs: linear_attention_parallel(*inputs) * math.nan


def missing():
    raise ModuleNotFoundError("No module named 'elsewhere'")


# The problem and its answer


@pytest.mark.parametrize("decay", [False, True])
def test_the_oracle_is_the_masked_product(decay):
    task = replace(TINY, decay=decay, backward=True)
    arguments, dY = task.inputs()
    leaves = [x.double().requires_grad_() for x in arguments if x is not None]
    Q, K, V, *gate = leaves
    exponents = gate[0].cumsum(-1) if gate else Q.new_zeros(Q.shape[:-1])
    L = (exponents[..., :, None] - exponents[..., None, :]).tril().exp().tril()
    Y = (L * (Q @ K.mT)) @ V
    expected = [Y, *torch.autograd.grad(Y, leaves, dY.double())]
    found = task.oracle()
    assert len(found) == len(expected)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == torch.float64
        assert_close(actual, wanted.detach())
    (forward,) = replace(task, backward=False).oracle()
    assert torch.equal(forward, found[0])


def test_inputs_are_float32_and_decay():
    (Q, K, V, log_a), dY = TINY.inputs()
    assert (Q.shape, V.shape, dY.shape, log_a.shape) == ((1, 2, 128, 4), (1, 2, 128, 3), (1, 2, 128, 3), (1, 2, 128))
    assert {x.dtype for x in (Q, K, V, log_a, dY)} == {torch.float32}
    assert (log_a < 0).all()
    assert replace(TINY, decay=False).inputs()[0][3] is None
    assert str(TINY) == "forward, one decay per token"
    assert str(replace(TINY, decay=False, backward=True)) == "forward + backward, no decay"


DECAYED = {decay: replace(TINY, decay=decay) for decay in (False, True)}
ENTRIES = [(one.name, decay) for one in CONTESTANTS for decay, task in DECAYED.items() if one.enters(task)]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("name", "decay"), ENTRIES)
def test_every_contestant_is_right(name, decay, backward):
    if name.startswith("fla"):
        pytest.importorskip("fla", reason="needs a peer: fla-core")
    task = replace(TINY, decay=decay, backward=backward)
    found = compete(task, [NAMES[name]])[name]
    assert found["tolerated"], found
    assert len(found["seconds"]) == 2


def test_the_textbook_agrees_where_chunks_matter():
    inputs = [x.double() for x in TINY.inputs()[0]]
    assert_close(textbook(*inputs), linear_attention_parallel(*inputs))


def test_a_layout_with_time_first_is_given_and_read_back():
    seen = []

    def load():
        def run(Q, K, V, log_a):
            seen.extend([Q.shape, log_a.shape, Q.is_contiguous()])
            turned = [x.transpose(1, 2) for x in (Q, K, V, log_a)]
            return linear_attention_parallel(*turned).transpose(1, 2)

        return run

    found = compete(replace(TINY, backward=True), [Contestant("turned", load, time_first=True)])
    assert found["turned"]["tolerated"]
    assert seen[:3] == [(1, 128, 2, 4), (1, 128, 2), True]


# The gate


@pytest.mark.parametrize(("load", "backward"), [(slightly_wrong, False), (not_a_number, False), (wrong_gradient, True)])
def test_a_wrong_answer_is_not_timed(load, backward):
    task = replace(TINY, backward=backward)
    found = compete(task, [Contestant("right", ours), Contestant("wrong", load)])
    assert found["right"]["tolerated"]
    assert len(found["right"]["seconds"]) == 2
    assert not found["wrong"]["tolerated"]
    assert "seconds" not in found["wrong"]


def test_a_missing_peer_is_absent_with_its_reason():
    found = compete(TINY, [Contestant("peer", missing)])
    assert found == {"peer": {"absent": "ModuleNotFoundError: No module named 'elsewhere'"}}


def test_a_contestant_stays_out_of_contests_it_cannot_enter():
    assert compete(TINY, [Contestant("undecayed", ours, kinds=("no decay",))]) == {}


def test_the_error_is_the_largest_and_nan_counts_as_largest():
    one, two = torch.ones(2), torch.full((2,), math.nan)
    assert problem.judge([one, 1.5 * one], [one, one]) == (0.5, False)
    assert problem.judge([one], [one]) == (0.0, True)
    for answers in ([two, one], [one, two]):
        error, passed = problem.judge(answers, [one, one])
        assert math.isnan(error)
        assert not passed


# Times and memory


def test_every_round_holds_every_turn_in_an_order_of_its_own():
    calls = []
    samples = timing.interleaved({name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}, 8)
    rounds = [calls[i : i + 3] for i in range(0, 24, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert sorted(one for found in samples.values() for one in found) == list(range(1, 25))


def test_seconds_are_those_of_the_run(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(timing, "CLOCK", lambda: now[0])
    assert timing.seconds(lambda: now.append(now.pop() + 0.25)) == 0.25


def test_waiting_is_not_counted_where_the_system_can_tell():
    limit = 0.01 if timing.CLOCK is time.process_time else math.inf
    assert timing.seconds(lambda: time.sleep(0.05)) < limit


def test_slope_is_the_exponent():
    assert timing.slope([1, 2, 4, 8], [3 * x**1.5 for x in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_one_thread_for_a_while():
    torch.set_num_threads(2)
    with timing.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_saved_bytes_counts_each_storage_once():
    x = torch.ones(8, requires_grad=True)  # 32 bytes, saved twice by x * x, once more by the view
    y = torch.ones(4)  # 16 bytes
    assert timing.saved_bytes(lambda: (x * x)[:4] * y) == 48


def test_growth_reports_both_clocks(monkeypatch):
    spent = iter(range(1, 1000))
    monkeypatch.setattr(parts, "seconds", lambda run: run() is not None and float(next(spent)))
    found = parts.growth(CONTESTANTS[0], [replace(TINY, length=length) for length in (64, 128, 256)], rounds=3)
    assert found["lengths"] == [64, 128, 256]
    assert list(found["seconds"]) == ["fast.linear_attention", "clone"]
    assert all(len(one) == 3 for times in found["seconds"].values() for one in times)
    assert set(found["exponents"]) == {"against T", "clone against T", "against clone"}


def test_a_slow_turn_takes_part_in_few_rounds():
    calls = []
    turns = {name: lambda name=name: calls.append(name) or 0.0 for name in ("quick", "slow")}
    samples = timing.interleaved(turns, 7, {"slow": 3})
    assert {name: len(one) for name, one in samples.items()} == {"quick": 7, "slow": 3}
    assert calls.count("slow") == 3


@pytest.mark.parametrize(("patience", "samples"), [(math.inf, 9), (1e-12, 3)])
def test_patience_ends_with_three_samples(monkeypatch, patience, samples):
    monkeypatch.setattr(timing, "PATIENCE", patience)
    found = compete(TINY, [Contestant("right", ours)], rounds=9)
    assert len(found["right"]["seconds"]) == samples


def test_recomputing_saves_less_than_every_state():
    task = replace(TINY, length=512, heads=1, features=16, head_dim=16)
    saved = {one.name: parts.memory_of(one, task)["saved"] for one in BACKWARDS}
    assert saved["linear_attention_recurrent"] >= 4 * 512 * 16 * 16
    assert saved["linear_attention_recomputed"] == 4 * 512 * (3 * 16 + 1)
    blocks = saved["fast.linear_attention"] - saved["linear_attention_recomputed"]  # one state each
    assert 0 < blocks <= 4 * 4 * 16 * 16
    assert blocks % (4 * 16 * 16) == 0


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


def test_peak_is_unknown_where_the_system_does_not_say(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    monkeypatch.setattr(Path, "write_text", missing_file)
    assert timing.grown_bytes(lambda: None) is None
    assert parts.memory_of(CONTESTANTS[0], TINY)["peak"] is None
    assert timing.machine()["cpu"]
    assert timing.machine()["load"] is None


def missing_file(*_, **__):
    raise FileNotFoundError


def test_memory_leaves_out_who_is_absent(monkeypatch):
    monkeypatch.setattr(parts, "process", lambda: ThreadPoolExecutor(1))
    found = parts.memory(TINY, [Contestant("peer", missing), Contestant("right", ours)])
    assert (found["length"], found["unit"]) == (128, 4 * 128 * 2 * 3)
    assert list(found["bytes"]) == ["right"]
    assert found["bytes"]["right"]["saved"] > 0


# The whole


@pytest.mark.full
def test_a_race_runs_in_processes_of_their_own():
    contestants = [NAMES["linear_attention_recomputed"], NAMES["textbook"]]
    (found,) = parts.race([replace(TINY, backward=True)], contestants, 3)
    assert found["problem"] == "forward + backward, one decay per token"
    assert [len(entry["seconds"]) for entry in found["contestants"].values()] == [3, 3]
    assert list(found["speedups"]) == ["linear_attention_recomputed"]
    assert found["speedups"]["linear_attention_recomputed"]["textbook"] > 0
    assert timing._JOBS == {}


def test_speedups_are_ratios_of_medians():
    entries = {
        "ours": {"seconds": [1.0, 2.0, 90.0]},
        "peer": {"seconds": [6.0, 5.0, 1.0]},
        "wrong": {"tolerated": False},
        "gone": {"absent": "why"},
    }
    assert parts.speedups(entries, ["ours", "wrong"]) == {"ours": {"peer": 2.5}}


def test_a_target_is_met_by_the_fast_one_against_its_fastest_peer():
    def part(backward, **speedups):
        return {"problem": "p", "sizes": {"backward": backward}, "speedups": speedups}

    fast, names = "fast.linear_attention", [one.name for one in BACKWARDS]
    found = linear_attention.targets(
        {
            "contests": [
                part(False, **{fast: {"x": 1.9, "y": 1.85}, "linear_attention_chunked": {"x": 1.7}}),
                part(True, **{fast: {"x": 1.9}, "linear_attention_chunked": {"x": 9.0}}),
                part(False, **{fast: {}}),
                part(False),
            ],
            "growth": {"exponents": {"against T": 1.2, "against clone": 1.05}},
            "memory": {"bytes": {name: {"saved": saved} for name, saved in zip(names, [10, 20, 50, 100], strict=True)}},
        }
    )
    assert [(row["target"], row["measured"], row["met"]) for row in found] == [
        (1.8, 1.85, True),
        (2.0, 1.9, False),
        (1.8, None, False),
        (1.8, None, False),
        (1.1, 1.2, False),
        (1.1, 1.05, True),
        (0.125, 0.1, True),
        (0.125, 0.2, False),
    ]


@pytest.fixture
def result(monkeypatch):
    """The whole benchmark at a tiny size, in threads."""
    monkeypatch.setattr(parts, "process", lambda: ThreadPoolExecutor(1))
    peers = (Contestant("wrong", slightly_wrong), Contestant("peer", missing))
    monkeypatch.setattr(linear_attention, "CONTESTANTS", (*CONTESTANTS[:3], *peers))
    return bench.benchmark(TINY, rounds=3)


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    assert [part["problem"] for part in result["contests"]] == [
        "forward, no decay",
        "forward, one decay per token",
        "forward + backward, no decay",
        "forward + backward, one decay per token",
    ]
    assert result["growth"]["lengths"] == [256, 512, 1024, 2048]
    assert result["memory"]["length"] == 512
    assert list(result["memory"]["bytes"]) == [one.name for one in BACKWARDS]
    assert len(result["targets"]) == 8


def test_the_table_shows_times_errors_and_who_is_missing(result):
    result["memory"]["bytes"]["linear_attention_chunked"]["peak"] = None
    result["contests"][0]["contestants"]["textbook"] = {
        "error": 1e-7,
        "tolerated": True,
        "seconds": [0.003, 0.002, 0.1],
    }
    result["contests"][0]["speedups"] = {name: {"textbook": 1.5} for name in ("fast.linear_attention", "b")}
    lines = bench.table(result).splitlines()
    assert f"torch: {torch.__version__}" in lines
    first = lines[lines.index("forward, no decay") + 1 :]
    assert first[2] == "  textbook                            3.00 ms   error 1e-07   ours are faster by 1.50, 1.50"
    assert first[3] == "  wrong                           not reported: error 1e-03"
    assert first[4] == "  peer                            absent: ModuleNotFoundError: No module named 'elsewhere'"
    assert any(line.startswith("Exponent of the forward's time, T = [256, 512, 1024, 2048]: ") for line in lines)
    assert any("linear_attention_chunked" in line and line.endswith("peak unknown") for line in lines)
    result["targets"] = [
        {"what": "speed, at least", "target": 1.8, "measured": None, "met": False},
        {"what": "bytes, at most", "target": 0.125, "measured": 0.04, "met": True},
    ]
    last = bench.table(result).splitlines()[-2:]
    assert last == ["  MISSED speed, at least 1.8: unknown", "  met    bytes, at most 0.125: 0.04"]


def test_the_recorded_result_is_one_of_this_benchmark():
    path = Path(__file__).parents[2] / "assets/results/linear_attention.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    for part in stored["contests"]:
        assert bench.Problem(**part["sizes"]) == replace(
            bench.Problem(), decay=part["sizes"]["decay"], backward=part["sizes"]["backward"]
        )
        assert all(entry["tolerated"] and len(entry["seconds"]) >= 21 for entry in part["contestants"].values())
        ours = [one.name for one in CONTESTANTS if one.ours]
        assert list(part["speedups"]) == ours
        assert part["speedups"] == parts.speedups(part["contestants"], ours)
    assert stored["targets"] == linear_attention.targets(stored)


@pytest.mark.parametrize(("took", "runs"), [(0.01, 2), (3.0, 1)])
def test_a_short_run_counts_the_second_time(monkeypatch, took, runs):
    clock, done = iter([0.0, took, 10.0, 10.0 + took / 2]), []
    monkeypatch.setattr(timing, "CLOCK", lambda: next(clock))
    monkeypatch.setitem(timing._JOBS, "one", lambda: done.append(1))
    assert timing.run_prepared("one") == pytest.approx(took / 2 if runs == 2 else took)
    assert len(done) == runs
