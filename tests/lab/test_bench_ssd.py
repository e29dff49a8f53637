"""The benchmarks `ssd` and `linear-attention`: rates, single steps and layouts, and what their targets count."""

from dataclasses import replace

import pytest
import torch

from smalearn.lab.bench import linear_attention, ssd
from smalearn.lab.bench.implementation import Run, compare
from smalearn.lab.bench.peers import BACKWARDS, SSD
from smalearn.lab.bench.problem import DECAYS, Problem
from smalearn.ssd import ssd_quadratic

TINY = Problem(length=128, heads=2, head_dim=3, state=4)


def test_the_fast_one_stays_accurate_under_any_decay(here):
    problems = [replace(TINY, length=256, decay=decay, backward=True) for decay in DECAYS]
    errors = [part["contestants"] for part in compare(problems, [SSD[0], SSD[2]], 1)]
    assert [len(entries["fast.ssd"]["errors"]) for entries in errors] == [5] * len(DECAYS)
    assert max(entries["fast.ssd"]["error"] for entries in errors) < 2e-6
    textbook = [entries["textbook"] for entries in errors]
    assert textbook[0]["error"] < 2e-6
    assert min(textbook[1]["errors"]) > 1e-4
    assert ["seconds" in one for one in textbook[:2]] == [True, False]


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


def test_efficiency_is_a_ratio_of_rates(monkeypatch):
    monkeypatch.setattr(ssd, "GEMM", 32)
    part = ssd.efficiency(TINY, 3)
    ours, product = (sorted(part["contestants"][name]["seconds"])[1] for name in ("fast.ssd", "product"))
    assert part["fraction"] == pytest.approx((ssd.multiply_adds(TINY) / ours) / (32**3 / product))
    assert part["gemm"] == 32
    monkeypatch.setattr(Problem, "oracle", lambda self: [torch.ones(1, 2, 128, 3)])
    assert ssd.efficiency(TINY, 3)["fraction"] is None


@pytest.mark.parametrize("batch", [1, 3])
def test_decoding_compares_steps_that_agree(batch):
    part = ssd.decode(TINY, batch, 3)
    assert (part["batch"], list(part["speedups"]["einsum"])) == (batch, ["ssd_step_"])
    for entry in part["contestants"].values():
        assert entry["error"] < 1e-6
        assert len(entry["seconds"]) == 3


def test_decoding_that_is_wrong_is_not_timed(monkeypatch):
    monkeypatch.setattr(ssd, "ssd_step_", lambda x, log_a, B, C, state: x)
    part = ssd.decode(TINY, 1, 3)
    assert not part["contestants"]["ssd_step_"]["tolerated"]
    assert part["speedups"] == {"einsum": {}}


def test_layouts_compare_views_with_contiguous_tensors(monkeypatch):
    seen = []
    compute = property(lambda self: lambda *x: seen.append(x) or ssd_quadratic(*x)[0])
    monkeypatch.setattr(Run, "compute", compute)
    part = ssd.layouts(replace(TINY, backward=True), 3)
    assert list(part["speedups"]["contiguous"]) == ["views"]
    assert all(entry["tolerated"] for entry in part["contestants"].values())
    views, contiguous = (next(x for x in seen if (x[0].stride()[1] < x[0].stride()[2]) == way) for way in (True, False))
    assert all(torch.equal(*pair) for pair in zip(views, contiguous, strict=True))


def made(**changes):
    """A result with all targets just met."""
    part = {"problem": "p", "speedups": {"fast.ssd": {"a": 5.0, "b": 4.0}, "ssd_chunked": {"a": 9.0}}}
    return {
        "contests": [part] * 6,
        "accuracy": [errors(1e-7), errors(2e-6)],
        "growth": {"exponents": {"against T": 1.1, "against clone": 1.0}},
        "memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": 60}}}] * 2,
        "efficiency": {"gemm": 4, "fraction": 0.55},
        "decode": [{"batch": batch, "speedups": {"einsum": {"ssd_step_": 0.6}}} for batch in (1, 8)],
        "layouts": [layouts(1.1)] * 2,
    } | changes


def errors(error):
    return {"contestants": {"fast.ssd": {"error": error}, "textbook": {"error": None}}}


def layouts(ratio):
    return {"problem": "p", "speedups": {"contiguous": {"views": ratio}}}


MISSED = [
    ({}, 0),
    ({"contests": [{"problem": "p", "speedups": {"fast.ssd": {"a": 5.0, "b": 1.79}}}] * 6}, 6),
    ({"contests": [{"problem": "p", "speedups": {"ssd_chunked": {"a": 9.0}}}] * 6}, 6),
    ({"accuracy": [errors(1e-7), errors(2.1e-6)]}, 1),
    ({"accuracy": [errors(None), errors(1e-7)]}, 1),
    ({"growth": {"exponents": {"against T": 1.2, "against clone": 1.2}}}, 2),
    ({"memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": 61}}}] * 2}, 2),
    ({"memory": [{"length": 8, "unit": 10, "bytes": {"fast.ssd": {"peak": None}}}] * 2}, 2),
    ({"efficiency": {"gemm": 4, "fraction": 0.54}}, 1),
    ({"decode": [{"batch": 1, "speedups": {}}, {"batch": 8, "speedups": {"einsum": {"ssd_step_": 0.61}}}]}, 2),
    ({"layouts": [layouts(1.11), {"problem": "p", "speedups": {}}]}, 2),
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
