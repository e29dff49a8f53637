"""The benchmark of multi-level attention: nothing wrong is timed, and what is reported follows from the samples."""

import statistics

import pytest
import torch

from smalearn.fast import multilevel_attention
from smalearn.lab.bench import multilevel
from smalearn.lab.bench.multilevel import EQUAL, LOOP, PAPER, STANDARD
from smalearn.multilevel import key_numbers, score_macs
from smalearn.testing import assert_close, random_tensors

NAMES = [STANDARD, EQUAL, PAPER, LOOP]


def test_the_oracle_is_attention_with_its_gradients(monkeypatch):
    monkeypatch.setattr(multilevel, "ROWS", 16)
    Q, K, V, dY = random_tensors([(2, 50, 6), (2, 50, 6), (2, 50, 3), (2, 50, 3)])
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    Y = multilevel_attention(*leaves, (4, 2), (60, 6))
    expected = [Y, *torch.autograd.grad(Y, leaves, dY)]
    for answer, reference in zip(multilevel.oracle(Q, K, V, dY, (4, 2), (60, 6)), expected, strict=True):
        assert_close(answer, reference, 1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [128, 150])
def test_implementations_compute_what_their_name_says(name, length):
    *operands, dY = (x.double() for x in multilevel._inputs(length, 2))
    ranks, block_lens = multilevel._levels(name, length)
    assert ranks == {STANDARD: (64,), PAPER: (32, 8, 6, 4, 4, 4, 4, 2)}.get(name, (8,) * 8)
    expected = multilevel.oracle(*operands, dY, ranks, block_lens)
    part = multilevel._run(multilevel.form(name, length), operands, dY)()
    for answer, reference in zip(part, expected, strict=True):
        assert_close(answer, reference, 1e-11)


@pytest.mark.parametrize("backward", [False, True])
def test_a_comparison(monkeypatch, backward):
    monkeypatch.setattr(multilevel, "LOOPS", {130: 3})
    part = multilevel.compare(130, 2, backward, 4)
    assert set(part["errors"]) == set(part["seconds"]) == set(NAMES)
    assert all(len(times) == 4 for times in part["seconds"].values())
    for name in NAMES[1:]:
        for ratio, least in zip(part["ratios"][name], (min, statistics.median), strict=True):
            assert ratio == least(part["seconds"][name]) / least(part["seconds"][STANDARD])
    assert set(multilevel.compare(131, 2, backward, 1)["seconds"]) == set(NAMES[:3])


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
def test_a_wrong_answer_is_not_timed(monkeypatch, factor):
    monkeypatch.setattr(multilevel, "multilevel_attention", lambda *args: multilevel_attention(*args) * factor)
    part = multilevel.compare(130, 2, True, 2)
    assert set(part["errors"]) == set(NAMES[:3])
    assert set(part["seconds"]) == {STANDARD}
    assert part["ratios"] == {}


def test_a_wrong_gradient_is_not_timed(monkeypatch):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dx):
            return dx * (1 + 1e-3)

    monkeypatch.setattr(multilevel, "multilevel_attention", lambda *args: Wrong.apply(multilevel_attention(*args)))
    assert EQUAL in multilevel.compare(130, 2, False, 2)["seconds"]
    assert EQUAL not in multilevel.compare(130, 2, True, 2)["seconds"]


def test_decoding(monkeypatch):
    part = multilevel.decode(256, 3, 4)
    ranks, block_lens = multilevel._levels(EQUAL, 256)
    assert part["tolerated"]
    assert part["key_bytes"] == part["expected_bytes"] == 4 * 3 * key_numbers(256, ranks, block_lens)
    assert part["full_bytes"] == part["value_bytes"] == 4 * 3 * 256 * 64
    assert all(len(times) == 3 for times in part["seconds"].values())
    assert part["ratio"] == min(part["seconds"][EQUAL]) / min(part["seconds"][STANDARD])


def test_decoding_from_a_wrong_cache_is_not_timed(monkeypatch):
    read = multilevel.KeyCache.read

    def wrong(self, Q, K, V):
        Y, cache = read(self, Q, K, V)
        return Y * (1 + 1e-3), cache

    monkeypatch.setattr(multilevel.KeyCache, "read", wrong)
    part = multilevel.decode(256, 3, 4)
    assert not part["tolerated"]
    assert "seconds" not in part
    assert "ratio" not in part


def test_every_step_of_decoding_is_the_last_row(monkeypatch):
    ranks, block_lens = multilevel._levels(EQUAL, 150)
    Q, K, V, dY = multilevel._inputs(150, 2)
    cache = multilevel.KeyCache((1, 2), ranks, block_lens, 64).append(K[..., :140, :], V[..., :140, :])
    steps = multilevel.steps_with_cache(cache, Q, K, V, 140), multilevel.steps_with_all(Q, K, V, 140)
    for step, name in zip(steps, (EQUAL, STANDARD), strict=True):
        whole = multilevel.oracle(Q, K, V, dY, *multilevel._levels(name, 150))[0]
        for position in range(140, 150):
            assert_close(next(step), whole[..., position : position + 1, :])


def test_memory_is_that_of_one_implementation(monkeypatch):
    grown = []
    monkeypatch.setattr(multilevel, "grown_bytes", lambda run: grown.append(len(run())) or 12)
    assert multilevel.growth_of(LOOP, 130, 2, True) == 12
    assert multilevel.growth_of(EQUAL, 130, 2, False) == 12
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


def test_long_sequences_have_fewer_rounds_on_one_thread(monkeypatch, two_threads):
    sizes, stand_in = [], {"backward": False, "ratios": {}}

    def compare(length, heads, backward, rounds):
        sizes.append((length, rounds, torch.get_num_threads()))
        return stand_in | {"length": length}

    monkeypatch.setattr(multilevel, "compare", compare)
    monkeypatch.setattr(multilevel, "memory", lambda *_: {"length": 1, "backward": False, "bytes": {EQUAL: 1, LOOP: 1}})
    monkeypatch.setattr(multilevel, "decode", lambda *_: {"context": 1, "key_bytes": 0, "expected_bytes": 0})
    multilevel.benchmark((1024, 4096, 16384), rounds=31)
    assert torch.get_num_threads() == 2
    assert sizes[::2] == [(1024, 31, 1), (4096, 15, 1), (16384, 5, 1)]


def test_the_table_shows_times_errors_and_memory():
    part = {
        "length": 130,
        "backward": False,
        "errors": {STANDARD: 1e-7, EQUAL: 1e-7, LOOP: 1e-3},
        "seconds": {STANDARD: [0.003, 0.001, 0.002], EQUAL: [0.0005]},
        "ratios": {EQUAL: [0.5, 0.25]},
    }
    sizes = {"key_bytes": 2**20, "expected_bytes": 2**20, "full_bytes": 2**22, "value_bytes": 2**22}
    steps = {"context": 256, "heads": 8, "seconds": {EQUAL: [0.002, 0.001], STANDARD: [0.004]}} | sizes
    memory = {"length": 130, "backward": False, "bytes": {STANDARD: None, EQUAL: 2**20}}
    result = {"heads": 2, "contests": [part], "memory": [memory], "decode": steps}
    (title, rows), (second, sizes), (last, decoding) = multilevel.sections(result)
    standard, equal, loop = rows
    assert title == "T = 130, forward, 2 heads"
    assert standard == [STANDARD, "error 1e-07", "least 1.00 ms", "median 2.00 ms"]
    assert equal[2:5] == ["least 0.50 ms", "median 0.50 ms", "0.50 of standard"]
    needed = score_macs(130, *multilevel._levels(EQUAL, 130)) / (64 * 130 * 131 / 2)
    assert equal[5].startswith(f"scores {needed:.3f} of its multiply-adds, ")
    assert loop == (LOOP, "error 1e-03", "not reported")
    assert (second, sizes) == ("Memory of forward, T = 130", [(STANDARD, "unknown"), (EQUAL, "1.0 MiB")])
    assert last == "Decoding at T = 256, 8 heads"
    assert decoding == [
        (f"{EQUAL} 1.00 ms, {STANDARD} 4.00 ms",),
        ("keys 1.0 MiB, by the formula 1.0 MiB, all keys 4.0 MiB, values 4.0 MiB",),
    ]
    *_, (_, decoding) = multilevel.sections(result | {"decode": steps | {"seconds": {}}})
    assert decoding[0] == ("not reported",)
