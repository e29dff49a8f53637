"""The benchmark of the GPU programs: the whole harness at tiny sizes on a CPU, its peers' layouts, and its floor."""

import importlib.util
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from triton_marks import needs_gpu

import benchmarks as bench
from benchmarks import device, device_peers, device_ssd
from benchmarks.contest import CannotRunError, speedups
from benchmarks.device import WAYS, floor
from benchmarks.device_peers import GLA, LAYERS, SSD, STEPS
from benchmarks.device_ssd import FEW, GROWTH, LARGE, MAMBA, OURS, SIZES, STEP, work
from benchmarks.implementation import Implementation
from benchmarks.problem import Problem, recurrence
from smalearn.fast import tile
from smalearn.fast.triton import launch, ssd_tiles
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close

TINY = device_ssd.TINY[0]
PEERS = {one.name: one for one in (*SSD, *GLA, *LAYERS, *STEPS)}
RATES = {"copy": 1e9, "gemm": 1e12}
problem_of = partial(Problem, views=True, backward=True, dtype=torch.bfloat16, device="cuda")


def entries(*implementations, problem=TINY, rounds=1):
    """What a comparison says of implementations in each way."""
    parts = device.measure(problem, implementations, floor(work(problem), RATES), rounds)
    return [part["contestants"] for part in parts]


@pytest.fixture(autouse=True)
def judged_anew():
    """No verdict of another test counts."""
    device.forget()


# The whole


@pytest.mark.full
def test_all_that_can_run_here_are_right_timed_and_shown():
    result = device_ssd.benchmark("cpu", rounds=2)
    assert json.loads(json.dumps(result, allow_nan=False))["contests"] == result["contests"]
    assert result["command"] == "smalearn bench ssd --device cpu"
    assert result["targets"] == []
    assert (result["machine"]["clock"], result["device"]["runs in"]) == ("perf_counter", device.where("cpu"))
    assert set(device.LIBRARIES) <= set(result["device"])
    assert [part["problem"] for part in result["contests"]] == [f"{TINY.title}, {way}" for way in WAYS]
    names = ["ssd_triton", "ssd_chunked", "softmax attention (torch)"]
    for part in result["contests"]:
        least, *others = part["contestants"].items()
        assert least[0] == "floor"
        assert [name for name, _ in others] == names
        assert all(entry["tolerated"] and entry["error"] < 1e-6 for _, entry in others)
        assert all(len(entry["seconds"]) == 2 and min(entry["seconds"]) > 0 for _, entry in others)
        assert {base: list(ratios) for base, ratios in part["speedups"].items()} == {"floor": names, OURS: names[1:]}
    assert [part["bytes"] for part in result["memory"]] == [{name: {"peak": None} for name in names}]
    assert [(one["batch"], one["steps"]) for one in result["decode"]] == [(1, 2), (2, 2)]
    for one in result["decode"]:
        assert list(one["contestants"]) == ["floor", "ssd_step_triton_", "einsums"]
        assert all(len(entry["seconds"]) == 2 for entry in one["contestants"].values())
        assert not one["captured"]
    lines = bench.table(result).splitlines()
    assert lines[-1] == device.NOTE
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
    moved = Counter()
    for event in events:
        moved[event.operand] += event.bytes
    shared = (moved["b"] + moved["c"]) / heads  # each head has read them, and has computed their scores
    assert work(problem)["forward"][0] == moved["x"] + moved["y"] + moved["log_a"] + shared
    scores = 2 * 64 * 64 * 128 * (heads - 1)
    assert work(problem)["forward"][1] == sum(event.flops for event in events) - scores


def test_the_floor_is_the_slower_of_bytes_and_flops():
    size, flops = work(TINY)["backward"]
    assert floor(work(TINY), {"copy": 2.0, "gemm": 1e30})["backward"] == size / 2
    assert floor(work(TINY), {"copy": 1e30, "gemm": 4.0})["backward"] == flops / 4
    X, log_a, B, C = TINY.inputs()[0]
    assert size == 3 * X.nbytes + 2 * log_a.nbytes + 2 * (B.nbytes + C.nbytes)


def test_the_usual_sizes():
    assert len({problem.title for problem in SIZES + GROWTH}) == 10
    assert [problem.length for problem in GROWTH] == [2**k for k in (10, 12, 14, 16, 18)]
    assert {problem.batch * problem.length for problem in GROWTH} == {2**18}
    named = {one.title: (one.batch, one.heads, one.length) for one in SIZES}
    assert [named[title] for title in (*LARGE, FEW)] == [(8, 80, 2048), (8, 80, 8192), (1, 24, 65536)]


def test_the_parts_of_a_gpu_come_in_the_order_of_their_worth(monkeypatch):
    """On a GPU that does nothing: every part is there, of the growth the forward alone."""
    done = []
    monkeypatch.setattr(device, "about", lambda on: {})
    monkeypatch.setattr(device, "rates", lambda on, rounds: RATES)
    monkeypatch.setattr(device_ssd, "memory", lambda _, entrants: done.append(len(entrants)) or made()["memory"][0])
    monkeypatch.setattr(device_ssd, "decode", lambda *_: done.append("decode") or NOTHING["decode"][0])

    def measure(problem, entrants, least, rounds, suffix=""):
        if entrants:
            done.append((problem, len(entrants), list(least), *filter(None, [suffix])))
        return []

    for module in (device, device_ssd):
        monkeypatch.setattr(module, "measure", measure)
    assert not any(row["met"] for row in device_ssd.benchmark("cuda")["targets"] if "memory" not in row["what"])
    sizes, growth = ([(one, len(SSD), list(WAYS)) for one in SIZES], [(one, 3, ["forward"]) for one in GROWTH])
    layers = [(one, len(LAYERS), list(WAYS)) for one in SIZES[1:3]]
    beside = [(one, 2, list(WAYS), f", beside {peer.name}") for peer in GLA for one in SIZES[:3]]
    assert done == [*sizes, *2 * [len(SSD)], *6 * ["decode"], *growth, *layers, *beside, *2 * [len(GLA)]]
    assert not any("fla" in one.name for one in (*SSD, *LAYERS, *STEPS))


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


def stub(monkeypatch, **modules):
    """Modules of libraries that are not here."""
    for name, contents in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("__", "."), SimpleNamespace(**contents))


@pytest.mark.full
def test_peers_are_called_as_they_are_meant(monkeypatch):
    """Stand-ins compute the function of each peer; the error is that of float32."""

    def exactly(name, *arguments):
        peer = PEERS[name]
        return peer.laid_out([peer.exact(*peer.laid_out(arguments))])[0]

    def scan(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
        assert (A.tolist(), chunk_size, dt_softplus) == ([-1.0] * x.shape[2], 256, D is not None)
        if dt_softplus:
            return exactly(LAYERS[0].name, x, dt, A, B, C, D, z, dt_bias)
        return exactly(MAMBA, x, dt, B, C)

    def gla(q, k, v, g, scale):
        assert (q.shape[2], scale) == (v.shape[2], 1.0)
        return exactly("fla chunk_simple_gla", v, g, k, q), None

    def update(state, x, dt, A, B, C, D, dt_bias):
        assert (dt.shape, A.shape, set(A.unique().tolist())) == (x.shape, state.shape[1:], {-1.0})
        assert (D.shape, D.abs().max(), dt_bias.stride()[-1], A.stride()[1:]) == (x.shape[1:], 0, 0, (0, 0))
        return device_peers._step_sizes_exactly(x, dt, A, B, C, D, state)

    stub(monkeypatch, fla__ops__simple_gla={"chunk_simple_gla": gla, "fused_chunk_simple_gla": gla})
    stub(monkeypatch, mamba_ssm={}, mamba_ssm__ops__triton__ssd_combined={"mamba_chunk_scan_combined": scan})
    stub(monkeypatch, mamba_ssm__ops__triton__selective_state_update={"selective_state_update": update})
    theirs = [replace(one, anywhere=True) for one in PEERS.values() if one.name.split()[0] in ("fla", "mamba_ssm,")]
    theirs += [replace(SSD[1], anywhere=True)]
    assert len(theirs) == 4
    for way in entries(*theirs):
        assert [entry["tolerated"] and len(entry["seconds"]) for entry in list(way.values())[1:]] == [1] * 4
    part = device_ssd.decode(TINY, [replace(STEPS[1], anywhere=True)], 1, RATES)
    assert part["contestants"][STEPS[1].name]["tolerated"]


def test_mamba_ssm_is_imported_without_its_own_init(tmp_path, monkeypatch):
    """Its `__init__` asks for a CUDA extension."""
    triton = tmp_path / "mamba_ssm/ops/triton"
    triton.mkdir(parents=True)
    (tmp_path / "mamba_ssm/__init__.py").write_text("raise ImportError('selective_scan_cuda')", encoding="utf-8")
    for folder in (triton.parent, triton):
        (folder / "__init__.py").touch()
    (triton / "ssd_combined.py").write_text("mamba_chunk_scan_combined = 5", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    assert device_peers._mamba_ssm("ssd_combined").mamba_chunk_scan_combined == 5
    assert device_peers._mamba_ssm("ssd_combined").mamba_chunk_scan_combined == 5
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.full
def test_a_peer_that_is_not_here_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.ssd_combined", None)
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops.triton.selective_state_update", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    peers = [replace(one, anywhere=True) for one in (SSD[1], STEPS[1])]
    found = entries(peers[0])[0] | device_ssd.decode(TINY, peers[1:], 1, RATES)["contestants"]
    assert all("ModuleNotFoundError" in found[one.name]["absent"] for one in peers)


@pytest.mark.parametrize("there", [True, False])
def test_where_programs_run(there, monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: there)
    monkeypatch.setattr(launch, "interprets", lambda: there)
    assert device.where("cpu") == ("Triton's interpreter" if there else "tile machine")
    assert device.where("cuda") == "GPU"
    assert device.can_run("cpu") is None


def test_without_triton_the_tile_machine_takes_part(monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: False)
    assert device.judged(SSD[0], TINY, True)[1]
    assert device_ssd.decode(replace(TINY, batch=1), STEPS[:1], 1, RATES)["contestants"][STEP]["tolerated"]


def test_long_and_large_problems_are_for_some():
    large = problem_of(batch=256, heads=128, length=1024, head_dim=64, state=128)
    assert [one.name for one in (*SSD, *GLA, *LAYERS) if one.takes(large)] == ["ssd_triton", LAYERS[0].name]
    middle = replace(large, batch=8)
    assert all(one.takes(middle) for one in (*SSD, *GLA))
    assert not PEERS["softmax attention (torch)"].takes(replace(middle, length=65536, batch=1))


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


full = partial(pytest.param, marks=pytest.mark.full)


class OutOfResources(Exception):  # noqa: N818
    """As Triton's, which is no RuntimeError."""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nAnd more"), "OutOfMemoryError: CUDA out of memory."),
        full(OutOfResources("shared memory, Required: 3"), "OutOfResources: shared memory, Required: 3"),
        full(RuntimeError("at 3:7:\n  x = 1\n      ^\nno such\n"), "RuntimeError: at 3:7: no such"),
        full(AssertionError(), "AssertionError: "),
        full(ImportError("no module"), "ImportError: no module"),
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


def test_everybody_is_judged_once_for_all_lengths_beyond_the_gate(monkeypatch):
    monkeypatch.setattr(device, "GATE", 20)
    monkeypatch.setattr(device, "HEADS", 1)
    lengths = []

    def run(X, *others):
        lengths.append((X.shape[1], X.shape[2]))
        return recurrence(X, *others)

    one = Implementation("one", lambda: run)
    for length in (30, 40):
        assert device.judged(one, replace(TINY, length=length), False)[1]
    assert lengths == [(1, 20)]
    assert device.judged(one, TINY, True)[1]
    device.forget()
    assert device.judged(one, TINY, False)[1]
    assert lengths == 3 * [(1, 20)]
    with pytest.raises(CannotRunError, match="RuntimeError: twice"):
        device.judged(Implementation("fails", lambda: cannot), TINY, False)
    with pytest.raises(CannotRunError, match="RuntimeError: twice"):
        device.judged(Implementation("fails", lambda: cannot), replace(TINY, length=30), False)


def cannot(*operands):
    raise RuntimeError("twice")


def test_ours_is_wrong_if_it_is_wrong_beyond_the_gate(monkeypatch):
    """The answer is wrong at a length that only the second comparison has."""
    monkeypatch.setattr(device, "GATE", 20)

    def load():
        return lambda X, *others: ssd_recurrent(X, *others)[0] * (1 if X.shape[2] == 20 else 1.01)

    ours = Implementation(OURS, load, at_length=SSD[0].at_length)
    assert not device.judged(ours, TINY, False)[1]
    assert device.judged(replace(ours, at_length=None), TINY, False)[1]
    assert SSD[0].at_length


def test_ours_is_compared_at_a_full_length_once():
    lengths = []

    def exact(X, *others):
        lengths.append(X.shape)
        return recurrence(X, *others)

    ours = Implementation("ours", lambda: recurrence, at_length=exact)
    for _ in range(2):
        errors, tolerated = device.judged(ours, TINY, False)
        assert (len(errors), tolerated) == (2, True)
    assert lengths == [(1, 1, TINY.length, TINY.head_dim)]
    device.forget()
    assert device.judged(ours, TINY, False)[1]
    assert len(lengths) == 2


@pytest.mark.full
def test_a_slow_peer_meets_ours_alone_and_its_seconds_are_shown(capsys):
    """A stand-in that is stopped while it starts: the contests before it are there, and who was slow is seen."""

    def stopped():
        raise KeyboardInterrupt

    ours, right, slow = (Implementation(name, lambda: recurrence, base=name == "ours") for name in ("ours", "b", "c"))
    fails = replace(right, name="fails", load=lambda: cannot)
    least = {"forward": 1.0}
    assert list(device.measure(TINY, (ours, right, fails), least, 1))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{TINY.title}, forward"
    found = [re.fullmatch(r"  (.+): \d+\.\d s to enter", line)[1] for line in lines[1:]]
    assert found == ["ours", "b", "fails"]
    (part,) = device.measure_beside(TINY, ours, slow, least, 1)
    assert part["problem"] == f"{TINY.title}, forward, beside c"
    assert list(part["contestants"]) == ["floor", "ours", "c"]
    assert list(device.measure_beside(TINY, ours, replace(slow, longest=TINY.length - 1), least, 1)) == []
    with pytest.raises(KeyboardInterrupt):
        next(device.measure_beside(TINY, ours, replace(slow, load=stopped), least, 1))


def test_a_wrong_step_is_not_timed():
    def load():
        return lambda *operands: device_peers._step_exactly(*operands) + 1

    off = Implementation("wrong", load, exact=device_peers._step_exactly)
    entry = device_ssd.decode(TINY, [off], 1, RATES)["contestants"]["wrong"]
    assert not entry["tolerated"]
    assert "seconds" not in entry


def test_samples_of_a_device_are_taken_between_two_events(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, other):
            return 7.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("sleep"), raising=False)
    assert device.sample("cuda", lambda prepared: log.append(prepared), lambda: log.append("prepare") or "run") == 0.007
    assert log == ["prepare", "wait", "sleep", "event", "run", "event", "wait"]


def test_what_a_gpu_is_is_read_from_the_driver(monkeypatch):
    properties = SimpleNamespace(name="G", major=9, minor=0, multi_processor_count=3, total_memory=5, L2_cache_size=100)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(device.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="570.1\n570.1\n"))
    part = device.about("cuda")
    assert (part["name"], part["capability"], part["driver"]) == ("G", "sm90", "570.1")
    assert [device.sets("cuda", size) for size in (1000, 200, 199, 50)] == [2, 2, 3, 5]  # no cache holds the next
    assert device.sets("cpu", 50) == 1

    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(device.subprocess, "run", missing)
    assert device.about("cuda")["driver"] is None


def test_memory_is_the_peak_above_what_is_held(monkeypatch):
    held = {"memory_allocated": 30, "max_memory_allocated": 100}
    for name, value in held.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    for name in ("reset_peak_memory_stats", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    assert device._peak("cuda", lambda: None) == 70
    assert device._peak("cuda", cannot) is None
    assert device._peak("cpu", lambda: None) is None


# What follows from the samples


def made(faster=3.0, slower=2.5, memory=0.5, step=1.0, over=1.2):
    """A result with these ratios: ours over mamba_ssm, over the floor, its memory, the best step, its bytes."""
    times = {"floor": {"seconds": [1.0]}, OURS: {"error": 0, "seconds": [slower, slower, 99.0]}}
    times[MAMBA] = {"error": 0, "seconds": [slower * faster]}
    ratios = speedups(times, ["floor", OURS], lambda samples: sorted(samples)[len(samples) // 2])
    titles = (*LARGE, FEW)
    bytes_of = {OURS: {"peak": memory * 10}, MAMBA: {"peak": 10}}
    return {
        "contests": [
            {"problem": f"{title}, {way}", "speedups": one}  # the whole layer has contests of the same sizes
            for one in (ratios, {"mamba2_ssd, whole layer": {}})
            for title in titles
            for way in WAYS
        ],
        "memory": [{"problem": f"Memory, {title}, {OURS}", "bytes": bytes_of} for title in titles],
        "decode": [
            {"batch": 1, "captured": False, "speedups": {STEP: {"einsums": 0.1}}},
            {"batch": 64, "captured": True, "speedups": {"floor": {STEP: over}, STEP: {"einsums": 9.0, "peer": step}}},
        ],
    }


NOTHING = {"contests": [], "memory": [], "decode": [{"batch": 64, "captured": True, "speedups": {}}]}


@pytest.mark.parametrize(
    ("result", "missed"),
    [
        (made(), 0),
        (made(faster=2.4), 2),
        (made(faster=1.9), 5),
        (made(slower=2.6), 2),
        (made(memory=0.6), 2),
        (made(step=0.9), 1),
        (made(over=1.3), 1),
        (NOTHING, 11),
    ],
)
def test_all_targets_can_be_met_and_missed(result, missed):
    rows = device_ssd.targets(result)
    assert len(rows) == 2 * 2 + 1 + 2 * 2 + 2
    assert sum(not row["met"] for row in rows) == missed


def test_memory_is_reported_of_those_that_are_right():
    wrong = replace(SSD[0], name="wrong", load=lambda: lambda *operands: 2 * ssd_tiles(*operands)[0])
    failing = replace(SSD[0], name="failing", load=lambda: None)
    assert list(device_ssd.memory(TINY, [SSD[0], wrong, failing])["bytes"]) == [SSD[0].name]
