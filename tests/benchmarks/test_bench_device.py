"""The benchmark of the GPU programs: the whole harness at tiny sizes on a CPU, its peers' layouts, and its floor."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from counting import moved
from triton_marks import needs_gpu

import benchmarks as bench
from benchmarks import device, device_peers, device_ssd
from benchmarks.device import WAYS, floor
from benchmarks.device_peers import GLA, LAYERS, SSD, STEPS
from benchmarks.device_ssd import OURS, STEP, work
from benchmarks.implementation import Implementation
from benchmarks.problem import Problem, recurrence
from smalearn.fast import tile
from smalearn.fast.triton import launch, ssd_tiles
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close

pytestmark = pytest.mark.usefixtures("judged_anew")
TINY = device_ssd.TINY[0]
PEERS = {one.name: one for one in (*SSD, *GLA, *LAYERS, *STEPS)}
RATES = {"copy": 1e9, "gemm": 1e12}
problem_of = partial(Problem, views=True, backward=True, dtype=torch.bfloat16, device="cuda")


def entries(*implementations, problem=TINY, rounds=1):
    """What a comparison says of implementations in each way."""
    parts = device.measure(problem, implementations, floor(work(problem), RATES), rounds)
    return [part["contestants"] for part in parts]


# The whole


@pytest.mark.full
def test_all_that_can_run_here_are_right_timed_and_shown():
    result = device_ssd.benchmark("cpu", rounds=2)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["targets"], result["note"]) == ([], device.NOTE)
    assert [part["problem"] for part in result["contests"]] == [f"{TINY.title}, {way}" for way in WAYS]
    names = ["ssd_triton", "ssd_chunked", "softmax attention (torch)"]
    for part in result["contests"]:
        assert list(part["contestants"]) == ["floor", *names]
        assert all(part["contestants"][name]["error"] < 1e-6 for name in names)
        assert {base: list(ratios) for base, ratios in part["speedups"].items()} == {"floor": names, OURS: names[1:]}
    assert [part["bytes"] for part in result["memory"]] == [{name: {"peak": None} for name in names}]
    assert [(one["batch"], one["steps"], one["captured"]) for one in result["decode"]] == [(1, 2, False), (2, 2, False)]
    for one in result["contests"] + result["decode"]:
        assert all(len(entry["seconds"]) == 2 and min(entry["seconds"]) > 0 for entry in one["contestants"].values())
    lines = bench.table(result).splitlines()
    assert sum(line.startswith("  ssd_triton ") and " × floor" in line for line in lines) == 2
    assert sum(line.startswith(f"  {TINY.title}") and "% of the floor" in line for line in lines) == 2


@needs_gpu
def test_the_whole_on_a_gpu():
    problem = problem_of(batch=2, heads=4, head_dim=64, state=128, length=1000)
    result = device_ssd.benchmark("cuda", [problem], rounds=3)
    assert len(result["contests"]) == 2 * (1 + 1 + len(GLA))
    for part in result["contests"][:2]:
        assert set(part["contestants"]) == {"floor", *(one.name for one in SSD)}
        for name in ("ssd_triton", "ssd_chunked", "softmax attention (torch)"):
            assert part["contestants"][name]["tolerated"]
    assert result["memory"][0]["bytes"]["ssd_triton"]["peak"] > 0
    assert result["rates"]["copy"] > 1e11
    assert result["device"]["driver"]
    assert bench.table(result)


# Problems and their floor


@pytest.mark.parametrize("heads", [1, 3])
def test_work_is_what_a_scan_does_without_reading_twice(heads):
    problem = problem_of(length=128, heads=heads, head_dim=32, state=64, dtype=torch.float16, device="cpu")
    with tile.recording() as events, torch.no_grad():
        ssd_tiles(*problem.inputs()[0])
    bytes = moved(events)
    shared = (bytes["b"] + bytes["c"]) / heads  # each head has read them, and has computed their scores
    assert work(problem)["forward"][0] == bytes["x"] + bytes["y"] + bytes["log_a"] + shared
    scores = 2 * 64 * 64 * 128 * (heads - 1)
    assert work(problem)["forward"][1] == sum(event.flops for event in events) - scores


def test_the_floor_is_the_slower_of_bytes_and_flops():
    size, flops = work(TINY)["backward"]
    assert floor(work(TINY), {"copy": 2.0, "gemm": 1e30})["backward"] == size / 2
    assert floor(work(TINY), {"copy": 1e30, "gemm": 4.0})["backward"] == flops / 4
    X, log_a, B, C = TINY.inputs()[0]
    assert size == 3 * X.nbytes + 2 * log_a.nbytes + 2 * (B.nbytes + C.nbytes)


# Implementations


@pytest.mark.parametrize("name", [one.name for one in (*SSD, *GLA) if "attention" not in one.name])
def test_every_implementation_computes_the_same_function(name):
    (X, log_a, B, C), _ = replace(TINY, dtype=torch.float64).inputs()
    expected = ssd_recurrent(X, log_a.double(), B, C)[0]
    assert_close(PEERS[name].exact(*PEERS[name].arguments(X, log_a.double(), B, C)), expected)


@pytest.mark.parametrize("name", [one.name for one in STEPS])
def test_every_step_is_the_same_step(name):
    operands = [x.double() for x in device_ssd._one_token(TINY)]
    x, log_a, B, C, state = operands
    Y, H = ssd_recurrent(x[..., None, :], log_a[..., None], B[..., None, :], C[..., None, :], state)
    own = [x.clone() for x in PEERS[name].arguments(*operands)]
    assert_close(PEERS[name].exact(*own), Y[..., 0, :])
    assert_close(own[-1], H)


@pytest.mark.full
def test_the_whole_layer_is_that_of_mamba2():
    assert all(one[LAYERS[0].name]["error"] < 1e-6 for one in entries(replace(LAYERS[0], anywhere=True)))


def test_without_triton_the_tile_machine_takes_part(monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: False)
    assert device.judged(SSD[0], TINY, True)[1]
    assert device_ssd.decode(replace(TINY, batch=1), STEPS[:1], 1, RATES)["contestants"][STEP]["tolerated"]


# The gate and the times


def test_only_the_right_ones_are_timed():
    def gradient(X, log_a, B, C):
        return recurrence(X, log_a.detach() + 0 * log_a, B, C)

    runs = {"right": recurrence, "wrong": lambda *x: 1.001 * recurrence(*x), "gradient": gradient}
    forward, backward = entries(*(Implementation(name, lambda run=run: run) for name, run in runs.items()), rounds=3)
    for way in (forward, backward):
        assert len(way["right"]["seconds"]) == 3
        assert not way["wrong"]["tolerated"]
        assert "seconds" not in way["wrong"]
    assert forward["gradient"]["tolerated"]
    assert not backward["gradient"]["tolerated"]
    assert "seconds" not in backward["gradient"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nAnd more"), "OutOfMemoryError: CUDA out of memory."),
        (AssertionError(), "AssertionError: "),
        (RuntimeError("at 3:7:\n  x = 1\n      ^\nno such\n"), "RuntimeError: at 3:7: no such"),
    ],
)
def test_whatever_fails_is_absent_and_all_others_are_timed(error, why):
    def fails(*operands):
        raise error

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, X, log_a, B, C):
            return recurrence(X, log_a, B, C)

        @staticmethod
        def backward(ctx, dY):
            raise error

    calls = []

    def later(*operands):
        """Fails in the rounds, not before."""
        calls.append(operands[0].shape)
        return recurrence(*operands) if len(calls) < 4 else fails()

    runs = {"fails": fails, "later": later, "no gradient": Backward.apply, "right": recurrence}
    forward, backward = entries(*(Implementation(name, lambda run=run: run) for name, run in runs.items()))
    assert forward["fails"] == forward["later"] == backward["fails"] == backward["no gradient"] == {"absent": why}
    assert len(forward["no gradient"]["seconds"]) == len(forward["right"]["seconds"]) == 1
    assert len(backward["right"]["seconds"]) == 1
    step = replace(STEPS[2], load=lambda: fails)
    assert device_ssd.decode(TINY, [step], 1, RATES)["contestants"]["einsums"] == {"absent": why}


def test_ours_is_wrong_if_it_is_wrong_beyond_the_gate(monkeypatch):
    """The answer is wrong at a length that only the second comparison has."""
    monkeypatch.setattr(device, "GATE", 20)

    def load():
        return lambda X, *others: ssd_recurrent(X, *others)[0] * (1 if X.shape[2] == 20 else 1.01)

    ours = Implementation(OURS, load, at_length=SSD[0].at_length)
    assert not device.judged(ours, TINY, False)[1]
    assert device.judged(replace(ours, at_length=None), TINY, False)[1]
    assert SSD[0].at_length


def test_a_wrong_step_is_not_timed():
    def load():
        return lambda *operands: device_peers._step_exactly(*operands) + 1

    off = Implementation("wrong", load, exact=device_peers._step_exactly)
    entry = device_ssd.decode(TINY, [off], 1, RATES)["contestants"]["wrong"]
    assert ("seconds" in entry, entry["tolerated"]) == (False, False)


def test_memory_is_reported_of_those_that_are_right():
    wrong = replace(SSD[0], name="wrong", load=lambda: lambda *operands: 2 * ssd_tiles(*operands)[0])
    failing = replace(SSD[0], name="failing", load=lambda: None)
    assert list(device_ssd.memory(TINY, [SSD[0], wrong, failing])["bytes"]) == [SSD[0].name]
