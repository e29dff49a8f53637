"""The benchmarks `ssd` and `linear-attention`: rates, single steps and layouts, and what their targets count."""

from dataclasses import replace

import pytest
import torch

from benchmarks import ssd
from benchmarks.implementation import Run, compare
from benchmarks.peers import SSD
from benchmarks.problem import DECAYS, Problem
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
