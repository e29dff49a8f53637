"""The benchmarks `ssd` and `linear-attention`: accuracy, single steps and layouts, and what their targets count."""

import math
from dataclasses import replace

import pytest
import torch
from test_bench import here

from smalearn.lab.bench import linear_attention, ssd
from smalearn.lab.bench.implementation import Implementation, Run
from smalearn.lab.bench.peers import BACKWARDS, SSD
from smalearn.lab.bench.problem import DECAYS, Problem, recurrence
from smalearn.ssd import ssd_quadratic

TINY = Problem(length=128, heads=2, head_dim=3, state=4)


def not_a_number():
    return lambda *operands: recurrence(*operands) * math.nan


def missing():
    raise ModuleNotFoundError("No module named 'elsewhere'")


def test_the_fast_one_stays_accurate_under_any_decay(monkeypatch):
    here(monkeypatch)
    others = Implementation("nan", not_a_number), Implementation("peer", missing)
    errors = ssd.accuracy(replace(TINY, length=256), [SSD[0], SSD[2], *others])["errors"]
    assert list(errors) == list(DECAYS)
    for one in errors.values():
        assert list(one) == ["fast.ssd", "textbook", "nan"]
        assert list(one["fast.ssd"]) == ["Y", "dX", "dlog_a", "dB", "dC"]
        assert max(one["fast.ssd"].values()) < 2e-6
        assert one["nan"]["Y"] is None
    assert max(errors["gate"]["textbook"].values()) < 2e-6
    assert min(errors["5 % at -1e4, others -0.01"]["textbook"].values()) > 1e-4


def test_multiply_adds_are_those_of_the_products():
    products = []
    problem = replace(TINY, length=96)
    for _ in range(96 // 32):
        products.append(32 * problem.state * 32)  # C B^T
        for _ in range(problem.heads):
            products.append(32 * 32 * problem.head_dim)  # inside
            products.append(32 * problem.state * problem.head_dim)  # C H
            products.append(problem.state * 32 * problem.head_dim)  # B^T X
    assert ssd.multiply_adds(problem) == sum(products)


def constant_times(monkeypatch, **medians):
    """Samples around the given medians, whatever is run."""

    def samples(runs, rounds):
        for run in runs.values():
            run()
        return {name: [medians[name], medians[name], 9.0] for name in runs}

    monkeypatch.setattr(ssd, "_timed", samples)


def test_efficiency_is_a_ratio_of_rates(monkeypatch):
    monkeypatch.setattr(ssd, "GEMM", 32)
    constant_times(monkeypatch, **{"fast.ssd": 2.0, "product": 0.5})
    part = ssd.efficiency(TINY, 3)
    assert part["fraction"] == pytest.approx((ssd.multiply_adds(TINY) / 2.0) / (32**3 / 0.5))
    assert part["gemm"] == 32


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_compares_steps_that_agree(monkeypatch, batch):
    constant_times(monkeypatch, ssd_step_=0.25, einsum=0.5)
    part = ssd.decode(TINY, batch, 3)
    assert part["tolerated"], part
    assert part["ratio"] == 0.5


def test_decoding_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(ssd, "ssd_step_", lambda x, log_a, B, C, state: x)
    part = ssd.decode(TINY, 1, 3)
    assert not part["tolerated"]
    assert "seconds" not in part


def test_layouts_compare_views_with_contiguous_tensors(monkeypatch):
    constant_times(monkeypatch, views=1.5, contiguous=1.0)
    seen = []
    compute = property(lambda self: lambda *x: seen.append(x) or ssd_quadratic(*x)[0])
    monkeypatch.setattr(Run, "compute", compute)
    assert ssd.layouts(replace(TINY, backward=True), 3)["ratio"] == 1.5
    views, contiguous = seen
    assert all(torch.equal(*pair) for pair in zip(views, contiguous, strict=True))
    assert [x.stride()[1] < x.stride()[2] for x in (views[0], contiguous[0])] == [True, False]


def test_samples_in_one_process_leave_out_the_first():
    calls = []
    times = ssd._timed({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert {name: len(one) for name, one in times.items()} == {"a": 3, "b": 3}
    assert len(calls) == 8


def made(**changes):
    """A result with all targets just met."""
    part = {"problem": "p", "speedups": {"fast.ssd": {"a": 5.0, "b": 4.0}, "ssd_chunked": {"a": 9.0}}}
    errors = {"mild": {"fast.ssd": {"Y": 1e-7, "dX": 2e-6}, "textbook": {"Y": None}}}
    return {
        "contests": [part] * 6,
        "accuracy": {"errors": errors},
        "growth": {"exponents": {"against T": 1.1, "against clone": 1.0}},
        "memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": 60}}}] * 2,
        "efficiency": {"gemm": 4, "fraction": 0.55},
        "decode": [{"batch": 1, "ratio": 0.6}, {"batch": 8, "ratio": 0.5}],
        "layouts": [{"problem": "p", "ratio": 1.1}] * 2,
    } | changes


MISSED = [
    ({}, 0),
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


@pytest.mark.parametrize(("changes", "count"), MISSED)
def test_each_target_can_be_met_and_missed(changes, count):
    rows = ssd.targets(made(**changes))
    assert len(rows) == 16
    assert sum(not row["met"] for row in rows) == count


def test_linear_attention_counts_the_fast_one_beside_its_fastest_peer():
    def part(backward, **speedups):
        return {"problem": "p", "sizes": {"backward": backward}, "speedups": speedups}

    fast, names = "fast.linear_attention", [one.name for one in BACKWARDS]
    rows = linear_attention.targets(
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
    expected = [(1.8, 1.85), (2.0, 1.9), (1.8, None), (1.8, None), (1.1, 1.2), (1.1, 1.05), (0.125, 0.1), (0.125, 0.2)]
    assert [(row["target"], row["measured"]) for row in rows] == expected


def test_the_table_shows_what_is_not_a_number_or_not_reported():
    part = made(accuracy={"length": 8, "errors": {"mild": {"fast.ssd": dict.fromkeys(ssd.PARTS, 1e-7) | {"dB": None}}}})
    rows = list(ssd._accuracy_rows(part["accuracy"]["errors"]))
    assert rows[1] == ("mild", "fast.ssd", "1.0e-07", "1.0e-07", "1.0e-07", "NaN", "1.0e-07")
    timed = {"batch": 1, "seconds": {"ssd_step_": [0.001, 0.002, 0.1], "einsum": [0.003]}}
    assert ssd._pair_row(timed) == ("20 steps of decoding, batch 1", "ssd_step_ 2.00 ms, einsum 3.00 ms")
    assert ssd._pair_row({"batch": 8}) == ("20 steps of decoding, batch 8", "not reported")
