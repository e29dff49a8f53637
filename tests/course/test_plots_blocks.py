"""Blocks of a matrix and their singular values: what is drawn is what is there."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from smalearn import ShapeError
from smalearn.course import plots
from smalearn.course.plots.blocks import FLOOR, decades, outlined, spectra
from smalearn.testing import random_tensors

matplotlib.use("Agg")
OUTLINES = {"future": ((3, 6), (0, 3)), "diagonal": ((0, 2), (0, 2))}


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def test_outlines_lie_on_their_blocks():
    (M,) = random_tensors([(6, 6)])
    ax = outlined(M, OUTLINES, title="M")
    assert ax.get_title(loc="left") == "M"
    future, diagonal = ax.patches
    assert future.get_bbox().extents.tolist() == [-0.5, 2.5, 2.5, 5.5]
    assert diagonal.get_bbox().extents.tolist() == [-0.5, -0.5, 1.5, 1.5]
    assert [text.get_text() for text in ax.texts] == ["future", "diagonal"]
    assert [text.get_position() for text in ax.texts] == [(1.0, 4.0), (0.5, 0.5)]
    assert np.allclose(ax.images[0].get_array(), M)
    assert future.get_edgecolor() != diagonal.get_edgecolor()


def test_singular_values_are_relative_to_the_largest():
    left, right = random_tensors([(6, 2), (2, 5)])
    ax = spectra({"rank 2": left @ right, "diagonal": torch.diag(torch.tensor([8.0, 4.0, 2.0]))})
    low, diagonal = (line.get_ydata() for line in ax.lines[:2])
    assert (low > 1e-12).tolist() == [True, True, False, False, False]
    assert diagonal.tolist() == [1.0, 0.5, 0.25]
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["rank 2", "diagonal"]


def test_a_singular_value_of_zero_is_drawn_at_the_floor():
    ax = spectra({"singular": torch.diag(torch.tensor([1.0, 0.0]))})
    assert ax.lines[0].get_ydata().tolist() == [1.0, FLOOR]
    assert ax.get_ylim()[0] < FLOOR


def test_exponential_growth_is_straight_and_ends_where_it_is_not_finite():
    x = list(range(6))
    ax = decades({"growth": (x, [10.0**k for k in x]), "broken": (x, [1.0, 2.0, float("inf"), float("nan"), 0, -1])})
    growth, broken = ax.lines
    ax.figure.draw_without_rendering()
    heights = ax.transData.transform(growth.get_xydata())[:, 1]
    assert np.allclose(np.diff(heights, n=2), 0)
    assert np.isfinite(broken.get_ydata()).tolist() == [True, True, False, False, False, False]
    assert ax.get_yscale() == "log"


def test_colours_agree_and_text_is_inside():
    (M,) = random_tensors([(6, 6)])
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    assert outlined(M, OUTLINES, left) is left
    assert spectra({name: M[slice(*rows), slice(*columns)] for name, (rows, columns) in OUTLINES.items()}, right)
    for patch, line in zip(left.patches, right.lines, strict=False):
        assert matplotlib.colors.same_color(patch.get_edgecolor(), line.get_color())
    figure.draw_without_rendering()
    frame = figure.bbox
    for text in [*left.texts, right.xaxis.label, right.yaxis.label]:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1


@pytest.mark.parametrize("spans", [((0, 7), (0, 3)), ((2, 2), (0, 3)), ((0, 3), (-1, 3))])
def test_blocks_must_lie_within(spans):
    with pytest.raises(ValueError, match=r"outlined: block 'b' must be a part of \(6, 6\), not empty, got"):
        outlined(torch.ones(6, 6), {"b": spans})


def test_errors():
    with pytest.raises(ShapeError, match=r"outlined: M needs axes \(T, S\)"):
        outlined(torch.ones(3), {})
    with pytest.raises(ShapeError, match=r"spectra: M needs axes \(T, S\)"):
        spectra({"a": torch.ones(3)})
    with pytest.raises(ValueError, match="outlined: M must be real"):
        outlined(torch.ones(3, 3, dtype=torch.complex64), {})
    with pytest.raises(ValueError, match="spectra: M must be real"):
        spectra({"a": torch.ones(3, 3, dtype=torch.complex64)})
    with pytest.raises(ShapeError, match=r"decades: curve 'a' needs one y for each x, got shapes \(2,\) and \(3,\)"):
        decades({"a": ([1, 2], [1, 2, 3])})
    with pytest.raises(ValueError, match="spectra: matrices, expected at least one, got none"):
        spectra({})
    with pytest.raises(ValueError, match="spectra: matrix 'a' must be finite and not zero"):
        spectra({"a": torch.full((2, 2), torch.nan)})
    with pytest.raises(ValueError, match="spectra: matrix 'a' must be finite and not zero"):
        spectra({"a": torch.zeros(2, 2)})
