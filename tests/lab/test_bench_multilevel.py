"""The benchmark of multi-level attention: nothing wrong is timed, and what is reported follows from the samples."""

import json
import statistics

import pytest
import torch

from smalearn.fast import multilevel_attention
from smalearn.lab import bench
from smalearn.lab.bench import multilevel
from smalearn.lab.bench.multilevel import EQUAL, LOOP, PAPER, STANDARD
from smalearn.multilevel import key_numbers
from smalearn.testing import assert_close, random_tensors

CONTESTANTS = [STANDARD, EQUAL, PAPER, LOOP]


@pytest.fixture
def small(monkeypatch):
    """Memory is measured here, in this process; the length where all levels are computed in full is 130."""

    class Here:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def submit(self, function, *args):
            self.result = lambda: function(*args)
            return self

    monkeypatch.setattr(multilevel, "process", Here)
    monkeypatch.setattr(multilevel, "LOOPS", {130: 3})


@pytest.fixture
def result(small):
    return multilevel.benchmark((130, 300), 2, 256, 3)


def test_the_oracle_is_attention_with_its_gradients(monkeypatch):
    monkeypatch.setattr(multilevel, "ROWS", 16)
    Q, K, V, dY = random_tensors([(2, 50, 6), (2, 50, 6), (2, 50, 3), (2, 50, 3)])
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    Y = multilevel_attention(*leaves, (4, 2), (60, 6))
    expected = [Y, *torch.autograd.grad(Y, leaves, dY)]
    for ours, theirs in zip(multilevel.oracle(Q, K, V, dY, (4, 2), (60, 6)), expected, strict=True):
        assert_close(ours, theirs, 1e-11)


@pytest.mark.parametrize("name", CONTESTANTS)
@pytest.mark.parametrize("length", [128, 150])
def test_contestants_compute_what_their_name_says(name, length):
    *operands, dY = (x.double() for x in multilevel._inputs(length, 2))
    ranks, block_lens = multilevel._levels(EQUAL if name == LOOP else name, length)
    assert ranks == {STANDARD: (64,), PAPER: (32, 8, 6, 4, 4, 4, 4, 2)}.get(name, (8,) * 8)
    expected = multilevel.oracle(*operands, dY, ranks, block_lens)
    found = multilevel._job(multilevel.form(name, length), operands, dY)()
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, 1e-11)


@pytest.mark.parametrize("backward", [False, True])
def test_a_contest(small, backward):
    found = multilevel.contest(130, 2, backward, 4)
    assert set(found["errors"]) == set(found["seconds"]) == set(CONTESTANTS)
    assert all(len(times) == 4 for times in found["seconds"].values())
    for name in CONTESTANTS[1:]:
        for ratio, least in zip(found["ratios"][name], (min, statistics.median), strict=True):
            assert ratio == least(found["seconds"][name]) / least(found["seconds"][STANDARD])
    assert set(multilevel.contest(131, 2, backward, 1)["seconds"]) == set(CONTESTANTS[:3])


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
def test_a_wrong_answer_is_not_timed(monkeypatch, factor):
    monkeypatch.setattr(multilevel, "multilevel_attention", lambda *args: multilevel_attention(*args) * factor)
    found = multilevel.contest(130, 2, True, 2)
    assert set(found["errors"]) == set(CONTESTANTS[:3])
    assert set(found["seconds"]) == {STANDARD}
    assert found["ratios"] == {}


def test_a_wrong_gradient_is_not_timed(monkeypatch):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dx):
            return dx * (1 + 1e-3)

    monkeypatch.setattr(multilevel, "multilevel_attention", lambda *args: Wrong.apply(multilevel_attention(*args)))
    assert EQUAL in multilevel.contest(130, 2, False, 2)["seconds"]
    assert EQUAL not in multilevel.contest(130, 2, True, 2)["seconds"]


def test_decoding(monkeypatch):
    found = multilevel.decode(256, 3, 4)
    ranks, block_lens = multilevel._levels(EQUAL, 256)
    assert found["tolerated"]
    assert found["key_bytes"] == found["expected_bytes"] == 4 * 3 * key_numbers(256, ranks, block_lens)
    assert found["full_bytes"] == found["value_bytes"] == 4 * 3 * 256 * 64
    assert all(len(times) == 3 for times in found["seconds"].values())
    assert found["ratio"] == min(found["seconds"][EQUAL]) / min(found["seconds"][STANDARD])


def test_decoding_from_a_wrong_cache_is_not_timed(monkeypatch):
    read = multilevel.KeyCache.read

    def wrong(self, Q, K, V):
        Y, cache = read(self, Q, K, V)
        return Y * (1 + 1e-3), cache

    monkeypatch.setattr(multilevel.KeyCache, "read", wrong)
    found = multilevel.decode(256, 3, 4)
    assert not found["tolerated"]
    assert "seconds" not in found
    assert "ratio" not in found


def test_every_step_of_decoding_is_the_last_row(monkeypatch):
    ranks, block_lens = multilevel._levels(EQUAL, 150)
    Q, K, V, dY = multilevel._inputs(150, 2)
    cache = multilevel.KeyCache((1, 2), ranks, block_lens, 64).append(K[..., :140, :], V[..., :140, :])
    steps = multilevel._steps_from_cache(cache, Q, K, V, 140), multilevel._steps_of_all(Q, K, V, 140)
    for step, name in zip(steps, (EQUAL, STANDARD), strict=True):
        whole = multilevel.oracle(Q, K, V, dY, *multilevel._levels(name, 150))[0]
        for position in range(140, 150):
            assert_close(step(), whole[..., position : position + 1, :])


def test_memory_is_that_of_one_contestant(monkeypatch):
    grown = []
    monkeypatch.setattr(multilevel, "grown_bytes", lambda run: grown.append(len(run())) or 12)
    assert multilevel.grown_by(LOOP, 130, 2, True) == 12
    assert multilevel.grown_by(EQUAL, 130, 2, False) == 12
    assert grown == [4, 1]


def test_targets_compare_least_times_with_what_was_measured():
    def part(length, backward, **ratios):
        names = {"equal": EQUAL, "paper": PAPER, "loop": LOOP}
        ratios = {names[name]: [ratio, 9.0] for name, ratio in ratios.items()}
        return {"length": length, "backward": backward, "ratios": ratios}

    result = {
        "contests": [
            part(1024, False, equal=0.75, paper=0.92, loop=3.0),
            part(2048, True, equal=0.7),
            part(4096, True),
        ],
        "memory": [{"length": 4096, "backward": False, "bytes": {EQUAL: 10, LOOP: 100}}],
        "decode": {"context": 16384, "key_bytes": 100, "expected_bytes": 100, "ratio": 0.8},
    }
    rows = [(row["target"], row["measured"], row["met"]) for row in multilevel.targets(result)]
    assert rows == [
        (0.78, 0.75, True),
        (0.90, 0.92, False),
        (3, 4.0, True),
        (0.70, 0.7, True),
        (0.86, None, False),
        (0.70, None, False),
        (0.86, None, False),
        (10, None, False),
        (0.125, 0.1, True),
        (0.75, 0.8, False),
        (0, 0, True),
    ]
    result["memory"][0]["bytes"] = {EQUAL: None, LOOP: None}
    result["decode"] |= {"key_bytes": 99}
    assert [row["measured"] for row in multilevel.targets(result)][-3:] == [None, 0.8, 1]


def test_the_result_can_be_stored_and_says_where_it_was_measured(result):
    assert json.loads(json.dumps(result)) == result
    assert (result["command"], result["heads"], result["rounds"]) == ("smalearn bench multilevel", 2, 3)
    assert {"cpu", "cores", "torch", "python", "date", "load"} <= set(result["machine"])
    sizes = [(part["length"], part["backward"]) for part in result["contests"]]
    assert sizes == [(130, False), (130, True), (300, False), (300, True)]
    assert [(part["length"], part["backward"]) for part in result["memory"]] == [(130, False), (130, True)]
    assert result["decode"]["heads"] == 8
    assert result["targets"] == multilevel.targets(result)


def test_long_sequences_have_fewer_rounds_on_one_thread(monkeypatch):
    asked, stand_in = [], {"backward": False, "ratios": {}}

    def contest(length, heads, backward, rounds):
        asked.append((length, rounds, torch.get_num_threads()))
        return stand_in | {"length": length}

    monkeypatch.setattr(multilevel, "contest", contest)
    monkeypatch.setattr(multilevel, "memory", lambda *_: {"length": 1, "backward": False, "bytes": {EQUAL: 1, LOOP: 1}})
    monkeypatch.setattr(multilevel, "decode", lambda *_: {"context": 1, "key_bytes": 0, "expected_bytes": 0})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        multilevel.benchmark((1024, 4096, 16384), rounds=31)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert asked[::2] == [(1024, 31, 1), (4096, 15, 1), (16384, 5, 1)]


def test_the_table_shows_times_errors_memory_and_targets(result):
    first = result["contests"][0]
    first["errors"] |= {STANDARD: 1e-7, LOOP: 1e-3}
    first["seconds"] = {STANDARD: [0.003, 0.001, 0.002], EQUAL: [0.0005]}
    first["ratios"] = {EQUAL: [0.5, 0.25]}
    result["memory"][0]["bytes"] = {STANDARD: None, EQUAL: 2**20}
    sizes = {"key_bytes": 2**20, "expected_bytes": 2**20, "full_bytes": 2**22, "value_bytes": 2**22}
    result["decode"] |= {"seconds": {EQUAL: [0.002, 0.001], STANDARD: [0.004]}} | sizes
    result["targets"] = [{"what": "speed, at most", "target": 0.78, "measured": 0.5, "met": True}]
    lines = bench.table(result).splitlines()
    for line in (
        f"torch: {torch.__version__}",
        "T = 130, forward, 2 heads",
        f"  {STANDARD} error 1e-07   least 1.00 ms, median 2.00 ms",
        f"  {LOOP:28} error 1e-03   not reported",
        f"Memory of forward, T = 130: {STANDARD} unknown, {EQUAL} 1.0 MiB",
        f"Decoding at T = 256, 8 heads: {EQUAL} 1.00 ms, {STANDARD} 4.00 ms",
        "  keys 1.0 MiB, by the formula 1.0 MiB, all keys 4.0 MiB, values 4.0 MiB",
        "  met    speed, at most 0.78: 0.5",
    ):
        assert line in lines
    (ours,) = (line for line in lines if line.startswith(f"  {EQUAL} ") and "least 0.50 ms" in line)
    assert "0.50 of standard   scores 0." in ours
    del result["decode"]["seconds"]
    assert "Decoding at T = 256, 8 heads: not reported" in bench.table(result)
