"""A series is split as everybody splits it, scaled by what is known, and forecast only where it was not seen."""

import math

import pytest
import torch

from smalearn._checks import ShapeError
from smalearn.data import load_series, seasonal_series, series_windows, split_series

HOURS = 20 * 30 * 24


@pytest.fixture(scope="module")
def seasonal():
    return load_series("seasonal")


def test_the_drawn_series_is_what_its_formula_says():
    """Days repeat: a day ago says more than half a day and a bit; the noise has the memory and the size it should."""
    x = seasonal_series(40_000, 3, seed=1).double()
    x = x - x.mean(0)
    for column in x.T:
        correlation = [
            float((column[k:] * column[: len(column) - k]).mean() / column.square().mean()) for k in (24, 18)
        ]
        assert correlation[0] > correlation[1] + 0.1
    t = torch.arange(len(x), dtype=torch.float64)
    waves = [part(2 * math.pi * t / period) for period in (12, 24, 168, 8766) for part in (torch.sin, torch.cos)]
    waves = torch.stack([torch.ones_like(t), *waves], 1)
    noise = x - waves @ torch.linalg.lstsq(waves, x).solution
    steps = noise[1:] - 0.95 * noise[:-1]
    assert torch.allclose(steps.std(0), torch.tensor(0.3, dtype=torch.float64), rtol=0.02)
    assert ((steps[1:] * steps[:-1]).mean(0).abs() < 0.02 * 0.3).all()


def test_the_parts_are_12_4_and_4_months():
    values = torch.arange(HOURS + 100, dtype=torch.float64)[:, None]
    known = values[: 12 * 720]
    parts = [part * known.std(correction=0) + known.mean() for part in split_series(values, 96)]
    assert [len(part) for part in parts] == [8640, 2880 + 96, 2880 + 96]
    for part, (first, last) in zip(parts, [(0, 8639), (8640 - 96, 11_519), (11_520 - 96, 14_399)], strict=True):
        assert torch.allclose(part[[0, -1], 0], torch.tensor([first, last], dtype=torch.float64))


def test_only_the_months_to_train_on_say_how_to_scale(seasonal):
    values = seasonal.values.double()
    changed = values.clone()
    changed[12 * 720 :] *= 10
    known, *later = split_series(values, 48)
    again, *others = split_series(changed, 48)
    assert torch.allclose(known.mean(0), torch.zeros(7, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(known.square().mean(0), torch.ones(7, dtype=torch.float64))
    assert torch.equal(known, again)
    for part, other in zip(later, others, strict=True):
        assert not torch.allclose(part, other)


def test_what_cannot_be_split_is_refused():
    values = torch.rand(HOURS, 2)
    with pytest.raises(ShapeError, match=r"split_series: values must be \(T ≥ 14400, C\), got \(14399, 2\)"):
        split_series(values[1:], 96)
    with pytest.raises(ShapeError, match=r"split_series: values must be \(T ≥ 14400, C\), got \(1, 14400, 2\)"):
        split_series(values[None], 96)
    with pytest.raises(ShapeError, match=r"^split_series: values "):
        split_series(values[:, 0], 96)
    for context in (0, 8641):
        with pytest.raises(ValueError, match=f"split_series: context must be .* got {context}"):
            split_series(values, context)
    values[:8640, 1] = 3
    with pytest.raises(ValueError, match="split_series: every column must vary, got column 1 constant in training"):
        split_series(values, 96)


def test_windows_are_what_is_known_and_what_comes():
    part = torch.arange(20)[:, None] * torch.tensor([1, 100])
    inputs, targets = series_windows(part, torch.tensor([0, 5, 13]), context=4, horizon=3)
    assert inputs.shape == (3, 4, 2)
    assert targets.shape == (3, 3, 2)
    assert inputs[:, :, 0].tolist() == [[0, 1, 2, 3], [5, 6, 7, 8], [13, 14, 15, 16]]
    assert targets[:, :, 1].tolist() == [[400, 500, 600], [900, 1000, 1100], [1700, 1800, 1900]]
    assert [x.shape for x in series_windows(part, torch.arange(0), 4, 3)] == [(0, 4, 2), (0, 3, 2)]


@pytest.mark.parametrize("begin", [[-1], [0, 14]])
def test_windows_outside_are_refused(begin):
    with pytest.raises(ValueError, match=r"series_windows: begin must be in 0 to 13, got .* to "):
        series_windows(torch.zeros(20, 1), torch.tensor(begin), 4, 3)
