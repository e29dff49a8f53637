"""The arrays and texts behind pictures of matrices, passages and networks."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, same_color
from test_plots import ATTENTION, SIZES, boxes, decay, mixed_scores, overlaps, style, zen  # noqa: F401

from smalearn import masks
from smalearn.contractions import orders
from smalearn.course import plots
from smalearn.course.plots.blocks import FLOOR
from smalearn.course.plots.matrices import side_by_side
from smalearn.course.plots.structures import structured_attention
from smalearn.course.plots.weights import gallery
from smalearn.testing import random_tensors
from smalearn.weights import BlockDiagonal, LowRank


def drawn(ax):
    """The matrix in a picture, its masked entries 0, and where they are."""
    image = ax.images[0].get_array()
    return image.filled(0), np.ma.getmaskarray(image)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_heatmap_shows_the_matrix(dtype):
    M = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    ax = plots.heatmap(M)
    values, hidden = drawn(ax)
    np.testing.assert_array_equal(values, M.double().numpy())
    np.testing.assert_array_equal(hidden, (M == 0).numpy())
    assert ax.get_xlim() == (-0.5, 2.5)
    assert ax.get_ylim() == (1.5, -0.5)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_aspect()) == ("source s", "target t", 1)
    assert plots.heatmap(torch.ones(4, 64)).get_aspect() == "auto"


def test_heatmap_takes_a_tensor_with_gradient_and_leaves_it_alone():
    (M,) = random_tensors([(4, 5)], grad=True)
    before = M.detach().clone()
    plots.heatmap(M)
    assert torch.equal(M, before)


@pytest.mark.parametrize(
    ("row", "scale", "limits"),
    [
        ([0.25, 2.0], "linear", (0, 2)),
        ([-3.0, 2.0], "linear", (-3, 3)),
        ([-3.0, -2.0], "linear", (-3, 3)),
        ([-1.0, np.inf, np.nan], "linear", (-1, 1)),
        ([0.0, 0.0], "linear", (0, 1)),
        ([0.0, 1e-8, 1.0], "log", (1e-8, 1)),
        ([0.0, 5.0], "log", (0.5, 5)),
        ([1e-320, 1.0], "log", (1e-300, 1)),
        ([1e-320, 1e-310], "log", (1e-300, 1e-280)),
    ],
)
def test_colour_limits(row, scale, limits):
    norm = plots.heatmap([row], scale=scale).images[0].norm
    assert (norm.vmin, norm.vmax) == limits
    assert isinstance(norm, LogNorm) == (scale == "log")


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ([1.0, 2.5], []),
        ([0.0, 2.0], ["2", "0"]),
        ([0.0, 1.5, 2.0], ["0"]),
        ([0.0, 1.0, 3.0], ["3", "1", "0"]),
        ([0.0, np.nan], ["0", "not finite"]),
        ([1.0, -np.inf, 2.5], ["not finite"]),
    ],
)
def test_key_names_dots_and_grey_and_a_single_value(row, names):
    legend = plots.heatmap([row]).get_legend()
    assert [text.get_text() for text in (legend.get_texts() if legend else [])] == names


def test_colour_bar_only_for_several_values_and_of_counts_with_whole_ticks():
    assert len(plots.mask(masks.CausalMask(4)).child_axes) == 0
    (bar,) = plots.mask(decay(4)).child_axes
    assert bar.get_ylim() == (0, 1)
    ax = plots.heatmap([[1, 0, 4], [3, 2, 5]])
    ax.figure.draw_without_rendering()
    (bar,) = ax.child_axes
    assert all(float(place).is_integer() for place in [*bar.get_yticks(), *ax.get_xticks(), *ax.get_yticks()])


def test_entries_that_are_not_finite_are_marked_in_their_place():
    M = mixed_scores()
    ax = plots.heatmap(M)
    np.testing.assert_array_equal(~np.ma.getmaskarray(ax.images[1].get_array()), ~torch.isfinite(M).numpy())
    shades = [ax.get_facecolor(), ax.images[1].cmap(0.0)]
    assert shades == [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    assert not same_color(*shades)


def test_labels_stand_at_their_rows_and_columns():
    ax = plots.heatmap(torch.ones(2, 3), row_labels=["a", "b"], column_labels="xyz")
    assert tick_labels(ax.yaxis) == dict(enumerate("ab"))
    assert tick_labels(ax.xaxis) == dict(enumerate("xyz"))


def test_mask_shows_dense_and_names_the_class():
    for L in (masks.CausalMask(5), masks.BlockDiagonalMask(6, 6, 2), masks.BandedMask(4, 6, 1)):
        ax = plots.mask(L)
        np.testing.assert_array_equal(drawn(ax)[0], L.dense(torch.float64))
        assert ax.get_title(loc="left") == type(L).__name__
    assert plots.mask(torch.ones(2, 2)).get_title(loc="left") == ""
    assert plots.mask(masks.CausalMask(5), title="L").get_title(loc="left") == "L"


def test_matrices_side_by_side_have_one_scale_and_may_show_their_numbers():
    Z = torch.tensor([[3.0, 0, 0], [0, 1, 0]])
    left, right = side_by_side({"Z": Z, "H": Z.cumsum(0) * 2}, xlabel="n", ylabel="t", numbers=True).axes
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0, 6)
    assert [text.get_text() for text in left.texts] == ["3", "0", "0", "0", "1", "0"]
    assert [text.get_color() for text in right.texts][:2] == ["white", "black"]  # readable on dark and on light
    assert (right.get_xlabel(), right.get_ylabel(), right.get_title(loc="left")) == ("n", "t", "H")
    assert not left.get_legend()
    assert not left.child_axes
    *_, bar = side_by_side({"nothing": torch.zeros(2, 2)}, xlabel="n", ylabel="t").axes
    assert bar.get_ylabel() == "dots: exactly 0"


def test_a_gallery_shows_the_matrices_and_their_zeros():
    (dense,) = random_tensors([(5, 3)])
    given = {"blocks": BlockDiagonal.random(6, 9, 3, 0), "low rank": LowRank.random(4, 4, 1, 0), "dense": dense}
    matrices = [M.dense().detach() if hasattr(M, "dense") else M for M in given.values()]
    axes = gallery(given, ["one", "two", "three"], plt.subplots(1, 3)[1], title="Three families")
    assert len(plt.get_fignums()) == 1
    assert axes[0].figure.get_suptitle() == "Three families"
    for ax, title, caption, M in zip(axes, given, ("one", "two", "three"), matrices, strict=True):
        values, hidden = drawn(ax)
        np.testing.assert_array_equal(values, M.double().numpy())
        np.testing.assert_array_equal(hidden, (M == 0).numpy())
        low, high = ax.images[0].get_clim()
        assert -low == high == pytest.approx(M.abs().max().item())
        assert (ax.get_title(), ax.get_xlabel()) == (title, caption)
    assert gallery({"nothing": torch.zeros(2, 2)})[0].images[0].get_clim() == (-1, 1)
    outlier = torch.cat([torch.ones(98), torch.zeros(1), 50 * torch.ones(1)]).view(10, 10)  # all others would be pale
    limit = 3 * ((98 + 50**2) / 99) ** 0.5
    assert gallery({"outlier": outlier})[0].images[0].get_clim() == pytest.approx((-limit, limit))


def test_every_column_of_structured_attention_shows_the_mask_and_both_modes():
    T = 7
    Q, K, V, gates, column = random_tensors([(T, 3), (T, 3), (T, 2), (T,), (T,)])
    kinds = {
        "causal": masks.CausalMask(T),
        "decay": masks.DecayMask(T, 0.5),
        "1-semiseparable": masks.SemiseparableMask(-gates.abs()),
        "Toeplitz": masks.ToeplitzMask(column, column),
        "Fourier": masks.FourierMask(T),
        "banded": masks.BandedMask(T, T, 1),
    }
    grid = structured_attention(kinds, Q, K, V, captions=["running sum"] * 6)
    for (label, mask), column in zip(kinds.items(), grid.T, strict=True):
        L = mask.dense(torch.complex128)
        M = torch.tensor([[(L[t, s] * (Q[t] @ K[s])).real for s in range(T)] for t in range(T)])
        H = torch.einsum("ts,sp,sn->tpn", L, V.to(L), K.to(L)).real.flatten(1)
        for ax, expected in zip(column, (L.real, M, H), strict=True):
            np.testing.assert_allclose(drawn(ax)[0], expected, rtol=1e-12, atol=1e-12)
        assert (column[0].get_title(), column[2].get_xlabel()) == (label, "running sum")
    assert [ax.get_ylabel().split("\n")[0] for ax in grid[:, 0]] == ["mask", "quadratic mode", "linear mode"]
    grid[0, 0].figure.canvas.draw()
    assert not overlaps([ax.title for ax in grid[0]])
    assert not overlaps([ax.xaxis.label for ax in grid[2]])
    low, high = grid[1, 0].images[0].get_clim()
    assert -low == high == (Q @ K.mT).tril().abs().max()
    assert np.array_equal(drawn(grid[0, 0])[1], ~np.tri(T, dtype=bool))
    assert not drawn(structured_attention({"": masks.DecayMask(T, 1.0)}, Q, 0 * K, V)[1, 0])[0].any()
    axes = plt.subplots(3, 1, squeeze=False)[1]
    grid = structured_attention({"causal": masks.CausalMask(5, T)}, Q[:5], K, V, axes)
    assert [drawn(ax)[0].shape for ax in grid[:, 0]] == [(5, T), (5, T), (5, 6)]
    assert grid[0, 0] is axes[0, 0]


def test_outlines_lie_on_their_blocks_in_the_colours_of_their_singular_values():
    (M,) = random_tensors([(6, 6)])
    outlines = {"future": ((3, 6), (0, 3)), "diagonal": ((0, 2), (0, 2))}
    ax = plots.outlined(M, outlines)
    future, diagonal = ax.patches
    assert future.get_bbox().extents.tolist() == [-0.5, 2.5, 2.5, 5.5]
    assert diagonal.get_bbox().extents.tolist() == [-0.5, -0.5, 1.5, 1.5]
    assert {text.get_text(): text.get_position() for text in ax.texts} == {"future": (1, 4), "diagonal": (0.5, 0.5)}
    np.testing.assert_array_equal(drawn(ax)[0], M)
    curves = plots.spectra({name: M[slice(*rows), slice(*columns)] for name, (rows, columns) in outlines.items()})
    for patch, line in zip(ax.patches, curves.lines, strict=False):
        assert same_color(patch.get_edgecolor(), line.get_color())
    assert not same_color(future.get_edgecolor(), diagonal.get_edgecolor())


def test_singular_values_are_relative_to_the_largest_and_end_at_a_floor():
    left, right = random_tensors([(6, 2), (2, 5)])
    low, diagonal, singular = plots.spectra(
        {"rank 2": left @ right, "diagonal": torch.diag(torch.tensor([8.0, 4, 2])), "0": torch.diag(torch.eye(2)[0])}
    ).lines[:3]
    assert (low.get_ydata() > 1e-12).tolist() == [True, True, False, False, False]
    assert low.get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert diagonal.get_ydata().tolist() == [1.0, 0.5, 0.25]
    assert singular.get_ydata().tolist() == [1.0, FLOOR]
    assert singular.axes.get_ylim()[0] < FLOOR


# Passages


def tick_labels(axis):
    return dict(zip(axis.get_ticklocs(), (label.get_text() for label in axis.get_ticklabels()), strict=True))


def test_few_words_are_all_labelled_and_a_long_one_is_cut():
    ax = plots.words(torch.ones(5, 5), "to be or not\nto!")
    assert tick_labels(ax.xaxis) == tick_labels(ax.yaxis) == dict(enumerate(["to", "be", "or", "not", "to!"]))
    assert tick_labels(plots.words([[1.0]], ["x" * 40]).yaxis) == {0: "x" * 16 + "…"}


@pytest.mark.parametrize("lines", [True, False])
def test_many_words_are_labelled_where_they_stand_and_apart(lines):
    ax = plots.words(torch.ones(144, 144), zen() if lines else zen().split())
    ax.figure.draw_without_rendering()
    for axis in (ax.xaxis, ax.yaxis):
        labels = tick_labels(axis)
        assert 12 <= len(labels) <= 40
        assert not overlaps(axis.get_ticklabels())
        for place, label in labels.items():
            assert label.split()[0].rstrip("…") == zen().split()[int(place)]
    assert ("Simple is better…" in tick_labels(ax.yaxis).values()) is lines


def test_attends_lists_the_largest_first_and_ties_by_position():
    M = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0.301, 0.304, 0.395, 0.0001], [0.004, 0, 0, 0]])
    text = plots.attends(M, "a bb ccc d", range(4), top=2)
    assert text == (
        "a 0    <-  1.00 a 0\n"
        "bb 1   <-  0.75 bb 1   0.25 a 0\n"
        "ccc 2  <-  0.40 ccc 2   0.30 a 0\n"  # 0.304 is larger, but prints the same as the earlier 0.301
        "d 3    <-  nothing"
    )
    assert plots.attends(M, ["a", "bb", "ccc", "d"], np.int64(-3)) == "bb 1  <-  0.75 bb 1   0.25 a 0"


# Networks


def wires(ax):
    """Axis letter -> the end points of its wires, and its dot (or None)."""
    found = {}
    for line in ax.lines:
        ends, dots = found.setdefault(line.get_label(), ([], []))
        points = [tuple(np.round(point, 6)) for point in line.get_xydata()]
        if len(points) == 1:
            dots.append(points[0])
        else:
            ends += [points[0], points[-1]]
    return {letter: (set(ends), *dots) for letter, (ends, dots) in found.items()}


def node_places(ax):
    return [tuple(np.round(nodes.get_offsets()[0], 6)) for nodes in ax.collections]


SPECS = ["TN, SN -> TS", "TN, SN, SP -> TP", ATTENTION, "TS, TS -> TS", "TN, TN -> ", "TN, SP -> TNSP", "TS -> T"]


@pytest.mark.parametrize("spec", [*SPECS, "T, ->T"])
def test_every_axis_has_its_ends_and_texts_stand_apart(spec):
    terms, output = spec.replace(" ", "").split("->")
    ax = plots.contraction(spec, SIZES)
    nodes = node_places(ax)
    for letter, (ends, *dot) in wires(ax).items():
        members = {node for node, term in zip(nodes, terms.split(","), strict=True) if letter in term}
        assert members <= ends
        assert len(ends - members - set(dot)) == (letter in output)
        assert bool(dot) == (len(members) + (letter in output) != 2)
    ax.figure.draw_without_rendering()
    assert not overlaps(ax.texts)
    sized = [text for text in ax.texts if " = " in text.get_text()]
    assert {text.get_text() for text in sized} == {f"{axis} = {SIZES[axis]}" for axis in set(terms) - {","}}
    named = {text.get_text()[0]: box.shrunk(0.9, 0.7) for text, box in zip(sized, boxes(sized), strict=True)}
    for line in ax.lines:
        points = line.get_xydata()
        along = points if len(points) > 2 else np.linspace(points[0], points[-1], 50)
        # only a wire between two nodes carries its text, on a white ground
        assert named[line.get_label()].count_contains(ax.transData.transform(along)) == 0 or len(points) > 2
        assert ax.dataLim.padded(0.1).contains(*points.mean(0))
    assert len({line.get_color() for line in ax.lines}) == len(set(terms) - {","})


def test_loose_ends_lead_out_of_the_picture():
    ax = plots.contraction(ATTENTION, names="QKVL")
    Q, _, V, L = node_places(ax)
    (ends, dot), (out,) = wires(ax)["T"], wires(ax)["P"]
    (loose,) = ends - {Q, L, dot}
    assert loose[0] < min(Q[0], L[0])
    (loose,) = out - {V}
    assert loose[0] > V[0]
    assert {text.get_text() for text in ax.texts} == set("TNSPQKVL")
    assert [text.get_text() for text in plots.contraction("TN, SN -> TS").texts] == ["T", "N", "S", "TN", "SN"]


def test_a_filmstrip_ends_in_the_output():
    order = orders(ATTENTION, SIZES, names="QKVL")[0]
    axes = plots.filmstrip(order, names="GMY")
    assert [ax.get_title(loc="left").split("\n")[0] for ax in axes[1:]] == [step.spec for step in order.steps]
    assert {line.get_label() for line in axes[0].lines} == set("TNSP")
    assert {line.get_label() for line in axes[-1].lines} == set("TP")
    names = [{text.get_text() for text in ax.texts} - set("TNSP") for ax in axes]
    assert [len(found) for found in names] == [4, 3, 2, 1]
    assert names[-1] == {"Y"}
