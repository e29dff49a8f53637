"""The benchmark `ssd`: its oracle, its contestants' layouts and answers, and what follows from the samples."""

import json
import math
import pickle
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smalearn.lab import bench
from smalearn.lab.bench import SSDProblem, parts, ssd, timing
from smalearn.lab.bench.contestants import Contestant
from smalearn.lab.bench.problem import DECAYS
from smalearn.lab.bench.ssd_contestants import CONTESTANTS, textbook
from smalearn.ssd import ssd_quadratic, ssd_recurrent
from smalearn.testing import assert_close

TINY = SSDProblem(length=128, heads=2, head_dim=3, state=4)
OTHERS = (replace(TINY, length=64), replace(TINY, length=192, heads=1))
NAMES = {contestant.name: contestant for contestant in CONTESTANTS}
LIBRARIES = {"fla": "fla", "transformers": "transformers", "mamba_ssm": "mamba_ssm"}


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


def quadratic():
    return lambda *inputs: ssd_quadratic(*inputs)[0]


def wrong_gradient():
    return lambda X, log_a, B, C: ssd_quadratic(X, log_a, B.detach() + 0 * B, C)[0]


def not_a_number():
    return lambda *inputs: ssd_quadratic(*inputs)[0] * math.nan


def missing():
    raise ModuleNotFoundError("No module named 'elsewhere'")


# The problem and its answer


@pytest.mark.parametrize("decay", DECAYS)
def test_the_oracle_is_the_masked_product(decay):
    task = replace(TINY, length=100, decay=decay, backward=True)  # no multiple of its segments
    arguments, dY = task.inputs()
    X, log_a, B, C = leaves = [x.double().requires_grad_() for x in arguments]
    between = log_a[..., :, None].expand(1, 2, 100, 100).tril(-1).cumsum(-2)  # sums of what lies between, from below
    Y = (between.exp().tril() * (C @ B.mT)) @ X
    expected = [Y, *torch.autograd.grad(Y, leaves, dY.double())]
    found = task.oracle()
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == torch.float64
        assert_close(actual, wanted.detach())
    assert_close(found[0], ssd_recurrent(*(x.double() for x in arguments))[0])
    (forward,) = replace(task, backward=False).oracle()
    assert torch.equal(forward, found[0])


@pytest.mark.parametrize(("decay", "mean"), [("mean -2", -2), ("mean -5", -5), ("mean -20", -20)])
def test_decays_are_as_strong_as_they_say(decay, mean):
    log_a = replace(TINY, length=4096, decay=decay).inputs()[0][1]
    assert (log_a <= 0).all()
    assert log_a.mean().item() == pytest.approx(mean, rel=0.02)


def test_resets_are_rare_and_among_weak_decays():
    log_a = replace(TINY, length=4096, decay="5 % at -1e4, others -0.01").inputs()[0][1]
    assert set(log_a.unique().tolist()) == {-1e4, torch.tensor(-0.01).item()}
    assert (log_a == -1e4).float().mean().item() == pytest.approx(0.05, abs=0.01)


def test_inputs_are_float32_and_heads_share_the_maps():
    (X, log_a, B, C), dY = TINY.inputs()
    assert (X.shape, log_a.shape, B.shape, C.shape) == ((1, 2, 128, 3), (1, 2, 128), (1, 1, 128, 4), (1, 1, 128, 4))
    assert dY.shape == X.shape
    assert {x.dtype for x in (X, log_a, B, C, dY)} == {torch.float32}
    assert str(replace(TINY, backward=True)) == "T = 128, 2 heads, P = 3, N = 4: forward + backward"


# Contestants


@pytest.mark.parametrize("name", NAMES)
def test_contestants_can_be_sent_to_processes_of_their_own(name):
    sent = pickle.loads(pickle.dumps(NAMES[name]))
    assert repr(sent) == repr(NAMES[name])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_contestant_is_right(name, backward):
    library = LIBRARIES.get(name.split()[0])
    if library:
        pytest.importorskip(library, reason=f"needs a peer: {library}")
    found = compete(replace(TINY, backward=backward), [NAMES[name]])[name]
    assert found["tolerated"], found
    assert len(found["seconds"]) == 2


def test_the_textbook_agrees_where_chunks_matter():
    inputs = [x.double() for x in replace(TINY, length=320).inputs()[0]]
    every_head = [x.expand(-1, 2, *x.shape[2:]).transpose(1, 2) for x in inputs]
    assert_close(textbook(*every_head).transpose(1, 2), ssd_recurrent(*inputs)[0])


def test_the_listing_of_mamba_ssm_is_called_like_the_textbook(monkeypatch):
    """The library needs a GPU to be imported; this is how its listing would be called."""
    calls = []

    def ssd_minimal_discrete(X, A, B, C, block_len):
        calls.append((X.shape, A.shape, B.shape, C.shape, block_len))
        return textbook(X, A, B, C), None

    module = types.SimpleNamespace(ssd_minimal_discrete=ssd_minimal_discrete)
    monkeypatch.setitem(sys.modules, "mamba_ssm.modules.ssd_minimal", module)
    monkeypatch.setitem(sys.modules, "mamba_ssm.modules", types.ModuleType("mamba_ssm.modules"))
    monkeypatch.setitem(sys.modules, "mamba_ssm", types.ModuleType("mamba_ssm"))
    name = "mamba_ssm ssd_minimal_discrete"
    assert compete(replace(TINY, backward=True), [NAMES[name]])[name]["tolerated"]
    assert calls[0] == ((1, 128, 2, 3), (1, 128, 2), (1, 128, 2, 4), (1, 128, 2, 4), 64)


def test_what_heads_share_is_given_once_for_each_and_its_gradients_are_summed():
    seen = []

    def load():
        def run(X, log_a, B, C):
            seen.extend([X.shape, log_a.shape, B.shape, B.is_contiguous()])
            return ssd_quadratic(*(x.transpose(1, 2) for x in (X, log_a, B, C)))[0].transpose(1, 2)

        return run

    found = compete(replace(TINY, backward=True), [Contestant("turned", load, time_first=True, every_head=True)])
    assert found["turned"]["tolerated"]
    assert seen[:4] == [(1, 128, 2, 3), (1, 128, 2), (1, 128, 2, 4), True]


def test_a_wrong_gradient_of_a_shared_map_is_not_timed():
    found = compete(replace(TINY, backward=True), [Contestant("right", quadratic), Contestant("wrong", wrong_gradient)])
    assert found["right"]["tolerated"]
    assert not found["wrong"]["tolerated"]
    assert "seconds" not in found["wrong"]


# Parts


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(parts, "process", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(ssd, "process", lambda: ThreadPoolExecutor(1))


@pytest.mark.usefixtures("threads")
def test_the_fast_one_stays_accurate_under_any_decay():
    found = ssd.accuracy(replace(TINY, length=256), [NAMES["fast.ssd"], NAMES["textbook"]])
    assert list(found["errors"]) == list(DECAYS)
    for errors in found["errors"].values():
        assert list(errors["fast.ssd"]) == ["Y", "dX", "dlog_a", "dB", "dC"]
        assert max(errors["fast.ssd"].values()) < 2e-6
    assert max(found["errors"]["gate"]["textbook"].values()) < 2e-6
    assert min(found["errors"]["5 % at -1e4, others -0.01"]["textbook"].values()) > 1e-4


@pytest.mark.usefixtures("threads")
def test_accuracy_shows_nan_and_leaves_out_who_is_absent():
    found = ssd.accuracy(TINY, [Contestant("nan", not_a_number), Contestant("peer", missing)])
    assert all(list(errors) == ["nan"] for errors in found["errors"].values())
    assert found["errors"]["gate"]["nan"]["Y"] is None


def test_multiply_adds_are_those_of_the_products():
    counted = []

    def product(m, k, n):
        counted.append(m * k * n)

    task = replace(TINY, length=96)
    for _ in range(96 // 32):
        product(32, task.state, 32)  # C B^T
        for _ in range(task.heads):
            product(32, 32, task.head_dim)  # inside
            product(32, task.state, task.head_dim)  # C H
            product(task.state, 32, task.head_dim)  # B^T X
    assert ssd.multiply_adds(task) == sum(counted)


def constant_times(monkeypatch, **medians):
    """Samples around the given medians, whatever is run."""

    def samples(runs, rounds):
        for run in runs.values():
            run()
        return {name: [medians[name], medians[name], 9.0] for name in runs}

    monkeypatch.setattr(ssd, "_race_in_place", samples)


def test_efficiency_is_a_ratio_of_rates(monkeypatch):
    monkeypatch.setattr(ssd, "GEMM", 32)
    constant_times(monkeypatch, **{"fast.ssd": 2.0, "product": 0.5})
    found = ssd.efficiency(TINY, 3)
    assert found["fraction"] == pytest.approx((ssd.multiply_adds(TINY) / 2.0) / (32**3 / 0.5))
    assert found["gemm"] == 32


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_compares_steps_that_agree(monkeypatch, batch):
    constant_times(monkeypatch, ssd_step_=0.25, einsum=0.5)
    found = ssd.decode(TINY, batch, 3)
    assert found["tolerated"], found
    assert found["ratio"] == 0.5


def test_decoding_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(ssd, "ssd_step_", lambda x, log_a, B, C, state: x)
    found = ssd.decode(TINY, 1, 3)
    assert not found["tolerated"]
    assert "seconds" not in found


def test_layouts_compare_views_with_contiguous_tensors(monkeypatch):
    constant_times(monkeypatch, views=1.5, contiguous=1.0)
    seen = []
    monkeypatch.setattr(ssd.fast, "ssd", lambda *x: seen.append(x) or ssd_quadratic(*x))
    assert ssd.layouts(replace(TINY, backward=True), 3)["ratio"] == 1.5
    views, contiguous = seen
    assert all(torch.equal(*pair) for pair in zip(views, contiguous, strict=True))
    assert [x.stride()[1] < x.stride()[2] for x in (views[0], contiguous[0])] == [True, False]


def test_samples_in_this_process_leave_out_the_first():
    calls = []
    times = ssd._race_in_place({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert {name: len(one) for name, one in times.items()} == {"a": 3, "b": 3}
    assert len(calls) == 8


# The whole


@pytest.fixture
def result(monkeypatch, threads):
    """The whole benchmark at tiny sizes, in threads."""
    monkeypatch.setattr(ssd, "GEMM", 32)
    chosen = (*CONTESTANTS[:3], Contestant("nan", not_a_number), Contestant("peer", missing))
    monkeypatch.setattr(ssd, "CONTESTANTS", chosen)
    return ssd.benchmark([TINY, *OTHERS], [64, 128, 256], rounds=3)


def test_the_result_can_be_stored_and_has_every_part(result):
    text = json.dumps(result)
    assert json.dumps(json.loads(text)) == text
    assert [part["problem"] for part in result["contests"]][:2] == [
        "T = 128, 2 heads, P = 3, N = 4: forward",
        "T = 128, 2 heads, P = 3, N = 4: forward + backward",
    ]
    assert len(result["contests"]) == 6
    assert result["growth"]["lengths"] == [64, 128, 256]
    assert [part["length"] for part in result["memory"]] == [128, 192]
    assert len(result["targets"]) == 6 + 1 + 2 + 2 + 1 + 2 + 2
    assert result["command"].split()[-1] in bench.BENCHMARKS


def test_the_table_shows_every_part(result):
    result["accuracy"]["errors"] = {"mild": {"fast.ssd": dict.fromkeys(ssd.PARTS, 1e-7) | {"dB": None}}}
    result["decode"][0] = {"batch": 1, "seconds": {"ssd_step_": [0.001, 0.002, 0.1], "einsum": [0.003]}}
    result["decode"][1] = {"batch": 8}
    result["memory"][0] = {"length": 5, "unit": 2**20, "bytes": {"x": {"saved": 3 * 2**20, "peak": None}}}
    lines = bench.table(result).splitlines()
    assert lines[lines.index("T = 128, 2 heads, P = 3, N = 4: forward") + 4].startswith("  nan    ")
    assert "Relative errors against float64, T = 192" in " ".join(lines)
    (row,) = (line for line in lines if line.startswith("  mild"))
    assert row.split() == ["mild", "fast.ssd", "1.0e-07", "1.0e-07", "1.0e-07", "NaN", "1.0e-07"]
    assert "20 steps of decoding, batch 1: ssd_step_ 2.00 ms, einsum 3.00 ms" in lines
    assert "20 steps of decoding, batch 8: not reported" in lines
    assert "  x                               saved     3.0 MiB (3.0)     peak unknown" in lines
    assert any(line.startswith("Exponent of the forward's time, T = [64, 128, 256]: ") for line in lines)
    assert len(lines) == lines.index("Targets") + 1 + len(result["targets"])


def made(**changes):
    """A result with all targets just met."""
    contest = {"problem": "p", "speedups": {"fast.ssd": {"a": 5.0, "b": 4.0}, "ssd_chunked": {"a": 9.0}}}
    errors = {"mild": {"fast.ssd": {"Y": 1e-7, "dX": 2e-6}, "textbook": {"Y": None}}}
    return {
        "contests": [contest] * 6,
        "accuracy": {"errors": errors},
        "growth": {"exponents": {"against T": 1.1, "against clone": 1.0}},
        "memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": 60}}}] * 2,
        "efficiency": {"gemm": 4, "fraction": 0.55},
        "decode": [{"batch": 1, "ratio": 0.6}, {"batch": 8, "ratio": 0.5}],
        "layouts": [{"problem": "p", "ratio": 1.1}] * 2,
    } | changes


MISSED = [
    ({"contests": [{"problem": "p", "speedups": {"fast.ssd": {"a": 5.0, "b": 1.79}}}] * 6}, 6),
    ({"contests": [{"problem": "p", "speedups": {"ssd_chunked": {"a": 9.0}}}] * 6}, 6),
    ({"accuracy": {"errors": {"mild": {"fast.ssd": {"Y": 1e-7, "dX": 2.1e-6}}}}}, 1),
    ({"accuracy": {"errors": {"mild": {"fast.ssd": {"Y": 1e-7, "dX": None}}}}}, 1),
    ({"growth": {"exponents": {"against T": 1.2, "against clone": 1.2}}}, 2),
    ({"memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": 61}}}] * 2}, 2),
    ({"memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": None}}}] * 2}, 2),
    ({"efficiency": {"gemm": 4, "fraction": 0.54}}, 1),
    ({"decode": [{"batch": 1}, {"batch": 8, "ratio": 0.61}]}, 2),
    ({"layouts": [{"problem": "p", "ratio": 1.11}] * 2}, 2),
]


def test_all_targets_can_be_met():
    found = ssd.targets(made())
    assert len(found) == 16
    assert all(row["met"] for row in found)
    assert [row["measured"] for row in found][:7] == [4.0] * 6 + [2e-6]


@pytest.mark.parametrize(("changes", "count"), MISSED)
def test_each_target_can_be_missed(changes, count):
    assert sum(not row["met"] for row in ssd.targets(made(**changes))) == count


def test_the_recorded_result_is_one_of_this_benchmark():
    text = (Path(__file__).parents[2] / "assets/results/ssd.json").read_text(encoding="utf-8")
    assert len(text) < 300_000
    stored = json.loads(text)
    expected = [replace(problem, backward=backward) for problem in ssd.PROBLEMS for backward in (False, True)]
    assert [SSDProblem(**part["sizes"]) for part in stored["contests"]] == expected
    for part in stored["contests"]:
        there = {name: entry for name, entry in part["contestants"].items() if "absent" not in entry}
        assert set(NAMES) - set(there) <= {"mamba_ssm ssd_minimal_discrete"}
        assert all(entry["tolerated"] and len(entry["seconds"]) >= 3 for entry in there.values())
        assert part["speedups"] == parts.speedups(there, ["fast.ssd", "ssd_chunked"])
    assert tuple(stored["growth"]["lengths"]) == ssd.LENGTHS
    assert stored["targets"] == ssd.targets(stored)
