"""The arrays, wires, families and errors behind the pictures of structured weights, and the functions' errors."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from smalearn import ShapeError
from smalearn.course import plots
from smalearn.course.plots.weights import fits, gallery, inclusion, train_path
from smalearn.testing import random_tensors
from smalearn.weights import BlockDiagonal, LowRank

matplotlib.use("Agg")

WEIGHTS = {"blocks": BlockDiagonal.random(6, 9, 3, 0), "low rank": LowRank.random(4, 4, 1, 0)}
CURVES = {"low rank": ([0.25, 0.5], [0.8, 0.6]), "train": ([0.5], [0.0])}


@pytest.fixture(autouse=True)
def style():
    assert not plt.get_fignums()
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def test_a_gallery_shows_the_matrices_and_their_zeros():
    (dense,) = random_tensors([(5, 3)])
    axes = gallery(WEIGHTS | {"dense": dense}, ["one", "two", "three"])
    matrices = [*(weight.dense().detach() for weight in WEIGHTS.values()), dense]
    for ax, title, caption, M in zip(axes, [*WEIGHTS, "dense"], ("one", "two", "three"), matrices, strict=True):
        image = ax.images[0]
        assert np.array_equal(image.get_array().filled(0), M.double().numpy())
        assert np.array_equal(np.ma.getmaskarray(image.get_array()), (M == 0).numpy())
        low, high = image.get_clim()
        assert -low == high == pytest.approx(M.abs().max().item())
        assert (ax.get_title(), ax.get_xlabel()) == (title, caption)


def test_a_gallery_may_have_no_captions_and_given_axes():
    figure, given = plt.subplots(1, 2)
    axes = gallery(WEIGHTS, axes=given)
    assert list(axes) == list(given)
    assert plt.get_fignums() == [figure.number]
    assert gallery({"nothing": torch.zeros(2, 2)})[0].images[0].get_clim() == (-1, 1)
    outlier = torch.cat([torch.ones(98), torch.zeros(1), 50 * torch.ones(1)]).view(10, 10)  # all others would be pale
    limit = 3 * ((98 + 50**2) / 99) ** 0.5
    assert gallery({"outlier": outlier})[0].images[0].get_clim() == pytest.approx((-limit, limit))


def test_the_path_of_a_train_goes_through_its_blocks():
    """From column (k, h) = (2, 0) to row (i, j) = (1, 0): block 2 of R, wire 0 of it, block 0 of L."""
    sizes = a, b, c, d = 2, 3, 4, 2
    ax = train_path(sizes, column=4, row=3)
    (path,) = ax.lines
    counts = [(c, d), (c, b), (b, c), (b, a), (a, b)]
    places = [(2, 0), (2, 0), (0, 2), (0, 1), (1, 0)]

    def height(group, member, count, size):
        order = [divmod(n, size) for n in range(count * size)]
        heights = sorted((y for y in path_of(ax, order, size)), reverse=True)
        return heights[group * size + member]

    def path_of(ax, order, size):
        gaps = [n + 0.6 * group for n, (group, _) in enumerate(order)]
        return [1 - (gap + 0.5) / (gaps[-1] + 1) for gap in gaps]

    wanted = [height(*place, *count) for place, count in zip(places, counts, strict=True)]
    assert path.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert path.get_ydata().tolist() == pytest.approx(wanted)
    wires = [len(part.get_segments()) for part in ax.collections]
    assert wires == [c * d * b, c * b, b * c * a, b * a]
    for stage, part in enumerate(ax.collections):
        lit = [tuple(point) for point in path.get_xydata()[stage : stage + 2]]
        ends = [[tuple(point) for point in segment] for segment in part.get_segments()]
        assert any(np.allclose(lit, end) for end in ends)  # the path runs along wires that are there


def test_the_tables_of_a_train_mark_what_is_mixed():
    features, mixed, out = train_path((2, 3, 4, 2), column=4, row=3).child_axes
    shades = [
        np.asarray(table.collections[0].get_array()).reshape(shape)
        for table, shape in zip((features, mixed, out), ((4, 2), (4, 3), (2, 3)), strict=True)
    ]
    assert shades[0].tolist() == [[0, 0], [0, 0], [2, 1], [0, 0]]
    assert shades[1].tolist() == [[0, 0, 0], [0, 0, 0], [2, 1, 1], [0, 0, 0]]
    assert shades[2].tolist() == [[1, 0, 0], [2, 0, 0]]
    assert [text.get_text() for text in features.texts] == [str(n) for n in range(8)]
    assert not mixed.texts


def test_a_family_stands_above_all_that_it_contains():
    edges = [("Monarch", "train"), ("train", "union"), ("low rank", "union"), ("Kronecker", "Monarch")]
    ax = inclusion(edges)
    height = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert height == {"Kronecker": 0, "low rank": 0, "Monarch": 1, "train": 2, "union": 3}
    place = {text.get_text(): list(text.get_position()) for text in ax.texts}
    for line, pair in zip(ax.lines, edges, strict=True):
        assert line.get_xydata().tolist() == [place[name] for name in pair]
    assert len({tuple(p) for p in place.values()}) == len(place)


def test_fits_draws_errors_over_sizes():
    ax = fits(CURVES, title="noise")
    for line, (sizes, errors) in zip(ax.lines, CURVES.values(), strict=False):
        assert line.get_xydata().tolist() == [list(point) for point in zip(sizes, errors, strict=True)]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines[:2]}) == 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(CURVES)
    assert list(ax.lines[2].get_xdata()) == [1, 1]
    assert ax.get_title(loc="left") == "noise"
    assert (ax.xaxis.get_major_formatter()(0.125), ax.xaxis.get_major_formatter()(2)) == ("1/8", "2")
    assert fits(CURVES, legend=False).get_legend() is None


def test_pictures_draw_in_given_axes():
    figure, axes = plt.subplots(1, 3)
    assert train_path((1, 1, 1, 1), 0, 0, axes[0]) is axes[0]
    assert inclusion([("a", "b")], axes[1]) is axes[1]
    assert fits(CURVES, axes[2]) is axes[2]
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: gallery({}), ValueError, "gallery: matrices, expected at least one, got none"),
        (lambda: gallery(WEIGHTS, ["one"]), ShapeError, "gallery: captions, expected 2, one for each matrix, got 1"),
        (
            lambda: gallery(WEIGHTS, axes=[None] * 3),
            ShapeError,
            "gallery: axes, expected 2, one for each matrix, got 3",
        ),
        (lambda: gallery({"x": torch.ones(3)}), ShapeError, "gallery: "),
        (lambda: gallery({"x": torch.ones(2, 2) * 1j}), ValueError, "gallery: "),
        (
            lambda: train_path((2, 2, 0, 2), 0, 0),
            ValueError,
            r"train_path: sizes must be at least 1, got \(2, 2, 0, 2\)",
        ),
        (lambda: train_path((2, 2, 2, 3), 6, 0), ValueError, "train_path: column must be in 0 … 5, got 6"),
        (lambda: train_path((2, 2, 2, 3), 0, -1), ValueError, "train_path: row must be in 0 … 3, got -1"),
        (lambda: inclusion([]), ValueError, "inclusion: edges, expected at least one pair, got none"),
        (lambda: inclusion([("a", "b"), ("b", "a")]), ValueError, "inclusion: edges, expected no circle of families"),
        (lambda: fits({}), ValueError, "fits: curves, expected at least one, got none"),
        (lambda: fits({"x": ([1, 2], [0.5])}), ShapeError, "fits: 'x' has 2 sizes but 1 errors"),
        (lambda: fits({"x": ([0], [0.5])}), ValueError, "fits: 'x' needs sizes above 0 and finite errors ≥ 0"),
        (lambda: fits({"x": ([1], [-0.5])}), ValueError, "fits: 'x' needs sizes above 0 and finite errors ≥ 0"),
        (lambda: fits({"x": ([1], [float("nan")])}), ValueError, "fits: 'x' needs sizes above 0 and finite errors"),
    ],
)
def test_errors(draw, error, message):
    with pytest.raises(error, match=message):
        draw()
    assert not plt.get_fignums()
