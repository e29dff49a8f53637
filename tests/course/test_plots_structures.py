"""The matrices behind the picture of structured masked attention, its labels, and its errors."""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from smalearn import ShapeError
from smalearn.course import plots
from smalearn.course.plots.structures import structured_attention
from smalearn.masks import BandedMask, CausalMask, DecayMask, FourierMask, SemiseparableMask, ToeplitzMask
from smalearn.testing import random_tensors

matplotlib.use("Agg")

T, N, P = 7, 3, 2
Q, K, V, LOG_A, COLUMN = random_tensors([(T, N), (T, N), (T, P), (T,), (T,)])
MASKS = {
    "causal": CausalMask(T),
    "decay": DecayMask(T, 0.5),
    "1-semiseparable": SemiseparableMask(-LOG_A.abs()),
    "Toeplitz": ToeplitzMask(COLUMN, COLUMN),
    "Fourier": FourierMask(T),
    "banded": BandedMask(T, T, 1),
}


@pytest.fixture(autouse=True)
def style():
    assert not plt.get_fignums()
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def panel(ax):
    return torch.from_numpy(ax.images[0].get_array().filled(0))


def test_every_column_shows_the_mask_and_both_modes():
    grid = structured_attention(MASKS, Q, K, V, captions=list("abcdef"))
    assert grid.shape == (3, 6)
    for (label, mask), caption, column in zip(MASKS.items(), "abcdef", grid.T, strict=True):
        L = mask.dense(torch.complex128)
        M = torch.tensor([[(L[t, s] * (Q[t] @ K[s])).real for s in range(T)] for t in range(T)])
        H = torch.einsum("ts,sp,sn->tpn", L, V.to(L), K.to(L)).real.flatten(1)
        for ax, expected in zip(column, (L.real, M, H), strict=True):
            torch.testing.assert_close(panel(ax), expected.double(), rtol=1e-12, atol=1e-12)
        assert (column[0].get_title(), column[2].get_xlabel()) == (label, caption)
    assert [ax.get_ylabel().split("\n")[0] for ax in grid[:, 0]] == ["mask", "quadratic mode", "linear mode"]


def test_exact_zeros_are_grey_and_colours_are_symmetric():
    (ax,) = structured_attention({"causal": CausalMask(T)}, Q, K, V)[0]
    assert np.array_equal(ax.images[0].get_array().mask, ~np.tri(T, dtype=bool))
    low, high = structured_attention({"causal": CausalMask(T)}, Q, K, V)[1, 0].images[0].get_clim()
    assert -low == high == (Q @ K.mT).tril().abs().max()
    assert panel(structured_attention({"nothing": DecayMask(T, 1.0)}, Q, 0 * K, V)[1, 0]).abs().max() == 0


def test_sources_may_differ_from_targets_and_axes_may_be_given():
    figure, axes = plt.subplots(3, 1, squeeze=False)
    grid = structured_attention({"causal": CausalMask(5, T)}, Q[:5], K, V, axes)
    assert [panel(ax).shape for ax in grid[:, 0]] == [(5, T), (5, T), (5, N * P)]
    assert grid[0, 0] is axes[0, 0]
    assert plt.get_fignums() == [figure.number]


def test_texts_do_not_overlap():
    grid = structured_attention(MASKS, Q, K, V, captions=["running sum"] * 6)
    figure = grid[0, 0].figure
    figure.canvas.draw()
    for texts in ([ax.title for ax in grid[0]], [ax.xaxis.label for ax in grid[2]]):
        boxes = [text.get_window_extent() for text in texts]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"masks": {}}, ValueError, "structured_attention: masks, expected at least one, got none"),
        ({"captions": ["one"]}, ShapeError, "captions, expected 6, one for each mask, got 1"),
        ({"masks": {"long": CausalMask(T + 1)}}, ShapeError, "structured_attention: .* L"),
        ({"V": V.float()}, ValueError, "structured_attention: V is torch.float32 but Q is torch.float64"),
        ({"axes": np.empty((3, 2), dtype=object)}, ShapeError, r"axes, expected shape \(3, 6\), got \(3, 2\)"),
    ],
)
def test_errors(change, error, message):
    with pytest.raises(error, match=message):
        structured_attention(**{"masks": MASKS, "Q": Q, "K": K, "V": V} | change)
    assert not plt.get_fignums()
