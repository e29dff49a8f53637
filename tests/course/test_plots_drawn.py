"""What is drawn is what was given: costs, times, kernels, programs, families, trees, and the way through a train."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from test_plots import (  # noqa: F401
    ARROWS,
    BOXES,
    CONTEST,
    FAMILIES,
    LEVELS,
    LONG,
    ROOFS,
    TILE,
    boxes,
    overlaps,
    style,
)

from smalearn.course import plots
from smalearn.course.plots.duality import STEPS
from smalearn.course.plots.flow import flow
from smalearn.course.plots.kernels import Design, Span, hierarchy, offsets, roofline, timeline
from smalearn.course.plots.results import times
from smalearn.course.plots.trees import block_tree
from smalearn.course.plots.weights import fits, inclusion, train_path


def words(texts):
    return [text.get_text() for text in texts]


# Costs and times


def test_costs_draws_the_numbers_and_the_slopes():
    ax = plots.costs({"a": ([1, 10], [4, 40]), "b": ([10, 64], [2, 3])}, slopes=[2])
    a, b, guide = ax.lines
    assert a.get_xydata().tolist() == [[1, 4], [10, 40]]
    assert b.get_xydata().tolist() == [[10, 2], [64, 3]]
    np.testing.assert_allclose(guide.get_xydata(), [[1, 1], [64, 64**2]])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    ax.figure.draw_without_rendering()
    assert {"2", "64"} <= set(words(ax.get_xticklabels()))
    named = {text.get_text(): tuple(text.xy) for text in ax.texts}
    assert named == {"a": (10, 40), "b": (64, 3), "slope 2": (64, 64**2)}
    plots.costs({"more": ([1, 2], [5, 6])}, ax)
    assert words(ax.texts) == ["b", "a", "slope 2", "more"]


def test_cost_curves_differ_without_colour_and_their_names_stand_apart():
    ax = plots.costs({f"curve {k}": ([1, 10, 100], [2, 20 + k, 200 + k]) for k in range(7)})
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.lines}) == 7
    assert len({line.get_color() for line in ax.lines}) == 7
    ax.figure.draw_without_rendering()
    assert not overlaps(ax.texts)
    heights = [box.y0 for box in boxes(ax.texts)]
    assert heights == sorted(heights)


def test_exponential_growth_is_straight_and_ends_where_it_is_not_finite():
    x = range(6)
    ax = plots.decades({"growth": (x, [10.0**k for k in x]), "broken": (x, [1, 2, np.inf, np.nan, 0, -1])})
    growth, broken = ax.lines
    ax.figure.draw_without_rendering()
    np.testing.assert_allclose(np.diff(ax.transData.transform(growth.get_xydata())[:, 1], n=2), 0, atol=1e-9)
    assert np.isfinite(broken.get_ydata()).tolist() == [True, True, False, False, False, False]
    assert words(ax.get_legend().get_texts()) == ["growth", "broken"]


@pytest.mark.full
def test_three_maps_end_near_the_exponential():
    for ax in plots.three_maps(1.0, draws=4000).axes:
        *_, total, exact = ax.lines
        middle = np.abs(total.get_xdata()) < 1
        np.testing.assert_allclose(total.get_ydata()[middle], exact.get_ydata()[middle], rtol=0.15, atol=0.05)


def test_fits_draws_errors_over_sizes():
    curves = {"low rank": ([0.25, 0.5], [0.8, 0.6]), "train": ([0.5], [0.0])}
    ax = fits(curves)
    for line, points in zip(ax.lines, curves.values(), strict=False):
        assert line.get_xydata().tolist() == np.transpose(points).tolist()
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines[:2]}) == 2
    assert words(ax.get_legend().get_texts()) == list(curves)
    assert list(ax.lines[2].get_xdata()) == [1, 1]
    assert [ax.xaxis.get_major_formatter()(x) for x in (0.125, 2)] == ["1/8", "2"]
    assert fits(curves, legend=False).get_legend() is None


def test_bars_are_medians_with_the_fastest_on_top_and_ours_in_colour():
    ax = times(CONTEST)
    names = ax.get_yticklabels()
    assert words(names) == ["fast.ssd", "transformers mamba2_chunk_scan", "ssd_chunked", "textbook"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([29, 43.5, 50, 100])
    assert ax.get_xlim()[0] == 0
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_title("left") == "T = 16384, 24 heads, P = 64, N = 128\nforward + backward"
    fast, peer, chunked, textbook = (bar.get_facecolor() for bar in ax.patches)
    assert peer == textbook
    assert len({fast, peer, chunked}) == 3
    assert [label.get_fontweight() for label in names] == ["bold", "normal", "bold", "normal"]
    assert ax.collections[0].get_segments()[0][:, 0].tolist() == pytest.approx([28, 30]), "the middle half"
    assert times(CONTEST, title="one thread").get_title("left") == "one thread"


def test_peers_are_labelled_by_the_first_of_ours():
    assert words(times(CONTEST).texts) == ["29 ms", "43.5 ms, 1.5 ×", "50 ms", "100 ms, 3.4 ×"]
    assert words(times(LONG).texts)[-1] == "20,300 ms, 700 ×"
    assert words(times(CONTEST | {"speedups": {}}).texts)[0] == "29 ms"


# Kernels


def test_every_level_has_its_figures():
    ax = hierarchy(LEVELS)
    assert words(ax.texts) == [
        *("registers", "256 kB"),
        *("cache", "50 MB", "5.5 TB/s"),
        *("memory", "80 GB", "3 TB/s"),
    ]
    frames = [patch.get_bbox() for patch in ax.patches]
    widths, logs = np.array([box.width for box in frames]), np.log([level.size for level in LEVELS])
    assert np.allclose(np.diff(widths) / (widths[-1] - widths[0]), np.diff(logs) / (logs[-1] - logs[0]))
    assert widths[0] == hierarchy(LEVELS[:1]).patches[0].get_bbox().width < widths[-1] == 1
    assert [box.y0 for box in frames] == sorted((box.y0 for box in frames), reverse=True)


def test_designs_stand_under_their_roofs():
    designs = {
        "starved": Design(10, 10, "matrix"),
        "busy": Design(10_000, 10, "matrix"),
        "scalar": Design(10_000, 10, "vector"),
    }
    ax = roofline(designs, 10.0, ROOFS)
    matrix, vector, *points = ax.lines
    starved, busy, _ = points
    assert [point.get_xydata().tolist() for point in points] == [[[1, 10]], [[1000, 1000]], [[1000, 100]]]
    assert matrix.get_ydata()[1:].tolist() == [1000, 1000]
    assert matrix.get_xdata()[1] == 100
    assert vector.get_xydata()[1].tolist() == [10, 100]
    assert np.allclose(matrix.get_ydata()[0], 10 * matrix.get_xdata()[0])
    assert starved.get_color() != busy.get_color()
    assert words(ax.get_legend().get_texts()) == ["starved", "busy", "scalar"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_who_waits_is_what_lies_between_the_work():
    rows = {"a": [Span("read", 0, 2), Span("write", 2, 5)], "b": [Span("read", 1, 2), Span("write", 4, 4.5)], "c": []}
    ax = timeline(rows)
    bars = [(round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert bars == [(0, 0, 2), (0, 2, 3), (1, 0, 1), (1, 1, 1), (1, 2, 2), (1, 4, 0.5)]
    assert [bars.get_label() for bars in ax.containers] == ["read", "write", "waits", "read", "waits", "write"]
    assert words(ax.get_legend().get_texts()) == ["read", "write", "waits"]
    assert words(ax.get_yticklabels()) == ["a", "b", "c"]
    colours = [bar.get_facecolor() for bar in ax.patches]
    assert colours[0] == colours[3] != colours[1] == colours[5]
    assert colours[2] == colours[4] not in (colours[0], colours[1])
    assert ax.get_ylim() == (2.5, -0.5)


def test_offsets_are_written_where_a_mask_lets_through():
    ax = offsets(TILE)
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [
        ("0", (0, 0)),
        ("1", (1, 0)),
        ("4", (0, 1)),
        ("5", (1, 1)),
    ]
    assert len([patch for patch in ax.patches if patch.get_alpha() == 1]) == 5


# Duality, programs, families


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_every_block_has_the_factors_of_its_steps(chunks):
    found = {}
    for patch in plots.four_steps(chunks).patches:
        colour = to_hex(patch.get_facecolor())
        step = STEPS.index(colour) + 1 if colour in STEPS else 0
        middle = int(patch.get_y() + patch.get_height() / 2), int(patch.get_x() + patch.get_width() / 2)
        found.setdefault(middle, set()).add(step)
    assert found.keys() == {(row, column) for row in range(chunks) for column in range(row + 1)}
    for (row, column), steps in found.items():
        assert steps - {0} == ({1} if row == column else {2, 3, 4})


def test_a_border_cuts_a_decay_in_two():
    above, _, mask, beside = plots.border(-torch.arange(1.0, 7.0) / 10, 4).axes
    until, since = [bar.get_height() for bar in above.patches], [bar.get_width() for bar in beside.patches]
    np.testing.assert_allclose(mask.images[0].get_array()[4:, :4], np.outer(since, until))
    assert mask.patches[0].get_bbox().bounds == (-0.5, 3.5, 4, 2)


def test_members_stand_in_their_regions():
    ax = plots.venn(["a", "b", "c"], ["c", "d"], ("left", "right"), both="shared")
    centres = [circle.center[0] for circle in ax.patches[::2]]
    first, second, _, *members = ax.texts
    assert words(ax.texts) == ["left", "right", "shared", "a", "b", "c", "d"]
    assert [first.get_position()[0], second.get_position()[0]] == centres
    for text in members:
        x, y = text.get_position()
        within = [np.hypot(x - centre, y) < ax.patches[0].radius for centre in centres]
        assert within == [text.get_text() in names for names in ("abc", "cd")]
    assert members[0].get_position()[1] > members[1].get_position()[1]


def test_every_box_and_every_arrow_is_drawn_once():
    ax = flow(BOXES, ARROWS, mixing=["conv"])
    assert sorted(filter(None, words(ax.texts))) == ["(T, D)", "conv", "x", "y"]
    drawn = {text.get_text(): text for text in ax.texts if text.get_text() in BOXES}
    assert {name: text.get_position() for name, text in drawn.items()} == BOXES
    assert sum(getattr(text, "arrow_patch", None) is not None for text in ax.texts) == 2
    colours = {name: text.get_bbox_patch().get_facecolor() for name, text in drawn.items()}
    assert colours["x"] == colours["y"] != colours["conv"]


def test_a_family_stands_above_all_that_it_contains():
    ax = inclusion(FAMILIES)
    place = {text.get_text(): list(text.get_position()) for text in ax.texts}
    heights = {"Kronecker": 0, "low rank": 0, "Monarch": 1, "train": 2, "union": 3}
    assert {name: height for name, (_, height) in place.items()} == heights
    for line, pair in zip(ax.lines, FAMILIES, strict=True):
        assert line.get_xydata().tolist() == [place[name] for name in pair]
    assert len({tuple(p) for p in place.values()}) == len(place)


# Trees and trains


def test_a_node_stands_over_the_middle_of_its_block():
    ax = block_tree(6, (8, 4, 2), [(0, 5), (2, 3)])  # the last block of four has two tokens
    whole, short = (way.get_xydata().tolist() for way in ax.lines)
    assert whole == [[0, 0], [0.5, 1], [1.5, 2], [2.5, 3], [4.5, 2], [4.5, 1], [5, 0]]
    assert short == [[2, 0], [2.5, 1], [3, 0]]  # up to the block that both share
    ends = {tuple(map(tuple, segment)) for segment in ax.collections[0].get_segments()}
    assert {((2.5, 3), (1.5, 2)), ((2.5, 1), (3, 0))} <= ends
    assert words(ax.get_yticklabels()) == ["blocks of 8", "blocks of 4", "blocks of 2"]


def test_the_path_of_a_train_goes_through_its_blocks():
    """From column (k, h) = (2, 0) to row (i, j) = (1, 0): block 2 of R, wire 0 of it, block 0 of L."""
    sizes = a, b, c, d = 2, 3, 4, 2
    ax = train_path(sizes, column=4, row=3)
    (path,) = ax.lines
    counts = [(c, d), (c, b), (b, c), (b, a), (a, b)]
    places = [(2, 0), (2, 0), (0, 2), (0, 1), (1, 0)]

    def height(group, member, count, size):
        gaps = [n + 0.6 * (n // size) for n in range(count * size)]
        return 1 - (gaps[group * size + member] + 0.5) / (gaps[-1] + 1)

    wanted = [height(*place, *count) for place, count in zip(places, counts, strict=True)]
    assert path.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert path.get_ydata().tolist() == pytest.approx(wanted)
    assert [len(part.get_segments()) for part in ax.collections] == [c * d * b, c * b, b * c * a, b * a]
    for stage, part in enumerate(ax.collections):  # the path runs along wires that are there
        assert any(np.allclose(path.get_xydata()[stage : stage + 2], segment) for segment in part.get_segments())
    features, mixed, out = ax.child_axes
    shades = [np.asarray(table.collections[0].get_array()).ravel().tolist() for table in (features, mixed, out)]
    assert shades == [[0, 0, 0, 0, 2, 1, 0, 0], [0, 0, 0, 0, 0, 0, 2, 1, 1, 0, 0, 0], [1, 0, 0, 2, 0, 0]]
    assert words(features.texts) == [str(n) for n in range(8)]
    assert not mixed.texts
