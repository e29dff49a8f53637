"""The benchmark of masks: no wrong product is timed, and what is reported follows from the samples."""

import pytest
import torch

from smalearn.lab.bench import masks
from smalearn.masks import CausalMask, DecayMask


@pytest.mark.parametrize("name", masks.FAMILIES)
def test_every_family_is_right_at_many_chunks(name):
    part = masks.compare(masks.FAMILIES[name], 700, 5, 2)
    assert part["tolerated"], part
    assert part["error"] < 1e-6
    assert {key: len(times) for key, times in part["seconds"].items()} == {"structured": 2, "dense": 2, "cumsum": 2}


def test_the_semiseparable_mask_has_resets():
    log_a = masks.FAMILIES["1-semiseparable"](4096).log_a
    assert log_a.isinf().sum() == 4
    assert (log_a <= 0).all()


@pytest.mark.parametrize("factor", [1 + 1e-3, torch.nan])
def test_a_wrong_product_is_not_timed(factor, monkeypatch):
    class Wrong(CausalMask):
        def _product(self, x):
            return super()._product(x) * factor

    part = masks.compare(Wrong, 64, 3, 2)
    assert not part["tolerated"]
    assert part.keys().isdisjoint({"seconds", "speedups"})


def test_speedups_are_ratios_of_medians(monkeypatch):
    spent = {"structured": 2.0, "dense": 10.0, "cumsum": 1.0}
    monkeypatch.setattr(
        masks, "interleaved", lambda samplers, rounds: {name: [99, spent[name], 0.1] for name in samplers}
    )
    assert masks.compare(CausalMask, 64, 3, 3)["speedups"] == {"dense": 5.0, "cumsum": 0.5}


def test_the_exponent_is_the_median_of_three_sweeps(monkeypatch):
    powers = iter([1.0, 3.0, 2.0])

    def fake(samplers, rounds):
        power = next(powers)
        return {(name, T): [float(T) ** (power if name == "structured" else 1.0)] for name, T in samplers}

    monkeypatch.setattr(masks, "interleaved", fake)
    part = masks.growth(lambda T: DecayMask(T, 0.5), [64, 128, 256], 3, 9)
    assert [sweep["exponent"] for sweep in part["sweeps"]] == pytest.approx([1.0, 3.0, 2.0])
    assert part["exponent"] == pytest.approx(2.0)
    assert part["lengths"] == [64, 128, 256]


def test_targets_compare_with_what_was_measured():
    ratios = {"causal": 20.0, "decay": 19.0, "1-semiseparable": 11.0, "Fourier": 5.5}
    parts = {name: {"speedups": {"dense": one, "cumsum": 0.25}} for name, one in ratios.items()} | {"Toeplitz": {}}
    growths = dict(zip(masks.FAMILIES, ({"exponent": p} for p in (1.0, 1.2, 1.1, 1.2, 1.3)), strict=True))
    parts = {name: parts[name] for name in masks.FAMILIES}
    rows = masks.targets({"contests": parts, "growth": growths})
    assert [(row["target"], row["measured"], row["met"]) for row in rows] == [
        (20, 20.0, True),
        (20, 19.0, False),
        (10, 11.0, True),
        (5, None, False),
        (5, 5.5, True),
        (5, 4.0, True),
        (1.1, 1.0, True),
        (1.1, 1.2, False),
        (1.1, 1.1, True),
        (1.25, 1.2, True),
        (1.25, 1.3, False),
    ]
    parts["1-semiseparable"] = {"tolerated": False}
    assert masks.targets({"contests": parts, "growth": growths})[5]["measured"] is None


def test_the_table_shows_times_errors_and_exponents():
    sizes = {"length": 64, "columns": 3}
    times = {"structured": [0.001], "dense": [0.02], "cumsum": [0.001]}
    parts = {"causal": sizes | {"error": 1e-7, "seconds": times, "speedups": {"dense": 20.0}}}
    parts["decay"] = sizes | {"error": 1e-3, "tolerated": False}
    growths = {"causal": {"lengths": [64, 512], "sweeps": [{"exponent": p} for p in (1.0, 1.04, 0.9)]}}
    (_, products), (_, rows) = masks.sections({"contests": parts, "growth": growths})
    shown = ("structured 1.00 ms", "dense 20.00 ms", "cumsum 1.00 ms", "faster than dense by 20.0")
    assert products == [
        ("causal", "T = 64, 3 columns", "error 1e-07", *shown),
        ("decay", "T = 64, 3 columns", "not reported: error 1e-03"),
    ]
    assert rows == [("causal", "time ∝ clone^p, T = 64 to 512: p = 1.00, 1.04, 0.90")]
