"""Pictures of kernels: what is drawn is what was given."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot as plt

from smalearn.course import plots
from smalearn.course.plots.kernels import KINDS, Design, Level, Span, hierarchy, offsets, roofline, timeline, touches
from smalearn.fast.tile import Event

matplotlib.use("Agg")
LEVELS = [Level("registers", 256 * 1024, None), Level("cache", 50 * 2**20, 5.5e12), Level("memory", 80 * 2**30, 3e12)]
ROOFS = {"matrix": 1000.0, "vector": 100.0}
EVENTS = [
    Event((0, 0, 0), "load", "x", np.arange(4), 16, 0),
    Event((0, 0, 0), "dot", "", np.array([16, 16, 16]), 0, 8192),
    Event((1, 0, 0), "load", "x", np.arange(4), 16, 0),
    Event((1, 0, 0), "store", "y", np.arange(4), 16, 0),
]
ROWS = {
    "a": [Span("read", 0, 2), Span("write", 2, 5)],
    "b": [Span("read", 1, 2), Span("write", 4, 4.5)],
    "c": [],
}


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def texts_inside(ax):
    ax.figure.draw_without_rendering()
    frame = ax.figure.bbox
    for text in ax.texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, text.get_text()
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1, text.get_text()


def test_every_level_has_its_figures():
    ax = hierarchy(LEVELS, title="memory")
    assert ax.get_title(loc="left") == "memory"
    assert [text.get_text() for text in ax.texts] == [
        *("registers", "256 kB", "not published"),
        *("cache", "50 MB", "5.5 TB/s"),
        *("memory", "80 GB", "3 TB/s"),
    ]
    boxes = [patch.get_bbox() for patch in ax.patches]
    widths, logs = np.array([box.width for box in boxes]), np.log([level.size for level in LEVELS])
    assert np.allclose(np.diff(widths) / (widths[-1] - widths[0]), np.diff(logs) / (logs[-1] - logs[0]))
    assert widths[0] == hierarchy(LEVELS[:1]).patches[0].get_bbox().width < widths[-1] == 1
    assert [box.y0 for box in boxes] == sorted((box.y0 for box in boxes), reverse=True)
    texts_inside(ax)


def test_designs_stand_under_their_roofs():
    designs = {
        "starved": Design(10, 10, "matrix", published=3.0),
        "busy": Design(10_000, 10, "matrix"),
        "scalar": Design(10_000, 10, "vector"),
    }
    ax = roofline(designs, 10.0, ROOFS, title="t")
    matrix, vector, starved, published, busy, scalar = ax.lines
    assert starved.get_xydata().tolist() == [[1, 10]]
    assert published.get_xydata().tolist() == [[1, 3]]
    assert busy.get_xydata().tolist() == [[1000, 1000]]
    assert scalar.get_xydata().tolist() == [[1000, 100]]
    assert matrix.get_ydata()[1:].tolist() == [1000, 1000]
    assert matrix.get_xdata()[1] == 100
    assert vector.get_xydata()[1].tolist() == [10, 100]
    assert np.allclose(matrix.get_ydata()[0], 10 * matrix.get_xdata()[0])
    assert published.get_markerfacecolor() == "white"
    assert published.get_color() == starved.get_color() != busy.get_color()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "starved",
        "starved, published",
        "busy",
        "scalar",
    ]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    texts_inside(ax)


def test_events_stand_in_order_in_the_row_of_their_operand():
    ax = touches(EVENTS)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "dot", "y"]
    assert [patch.get_x() for patch in ax.patches] == [0, 1, 2, 3]
    assert [round(patch.get_y() + 0.42) for patch in ax.patches] == [0, 1, 0, 2]
    colours = [f"C{KINDS.index(event.kind)}" for event in EVENTS]
    for patch, colour in zip(ax.patches, colours, strict=True):
        assert matplotlib.colors.same_color(patch.get_facecolor(), colour)
    assert [(text.get_text(), text.get_position()[0]) for text in ax.texts] == [
        ("program (0, 0, 0)", 0),
        ("program (1, 0, 0)", 2),
    ]
    assert [line.get_xdata()[0] for line in ax.lines] == [pytest.approx(1.93)]


def test_who_waits_is_what_lies_between_the_work():
    ax = timeline(ROWS, title="two of three")
    assert ax.get_title(loc="left") == "two of three"
    bars = [(round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width()) for bar in ax.patches]
    assert bars == [(0, 0, 2), (0, 2, 3), (1, 0, 1), (1, 1, 1), (1, 2, 2), (1, 4, 0.5)]
    assert [bars.get_label() for bars in ax.containers] == ["read", "write", "waits", "read", "waits", "write"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["read", "write", "waits"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    colours = [bar.get_facecolor() for bar in ax.patches]
    assert colours[0] == colours[3] != colours[1] == colours[5]
    assert colours[2] == colours[4] not in (colours[0], colours[1])
    assert ax.get_ylim() == (2.5, -0.5)


def test_axes_can_be_given():
    for draw in (
        lambda ax: hierarchy(LEVELS, ax),
        lambda ax: roofline({"a": Design(1, 1, "matrix")}, 1.0, ROOFS, ax),
        lambda ax: touches(EVENTS, ax),
        lambda ax: timeline(ROWS, ax),
    ):
        ax = plt.subplots()[1]
        assert draw(ax) is ax


@pytest.mark.parametrize("levels", [[], LEVELS[::-1], [Level("none", 0, None)]])
def test_levels_must_grow(levels):
    with pytest.raises(ValueError, match="hierarchy: levels, expected sizes above 0 that grow, got"):
        hierarchy(levels)


@pytest.mark.parametrize(
    ("designs", "message"),
    [
        ({}, "roofline: designs, expected at least one, got none"),
        ({"a": Design(1, 1, "tensor")}, "roofline: roof of 'a', expected one of matrix, vector, got 'tensor'"),
        ({"a": Design(1, 0, "matrix")}, "roofline: every number must be above 0, got 0"),
        ({"a": Design(1, 1, "matrix", -2)}, "roofline: every number must be above 0, got -2"),
    ],
)
def test_what_a_roofline_refuses(designs, message):
    with pytest.raises(ValueError, match=message):
        roofline(designs, 1.0, ROOFS)


@pytest.mark.parametrize("count", [0, 401])
def test_a_recording_must_be_readable(count):
    with pytest.raises(ValueError, match=f"touches: events, expected 1 to 400, got {count}"):
        touches(EVENTS[:1] * count)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "timeline: rows, expected at least one piece of work, got none"),
        ({"a": []}, "timeline: rows, expected at least one piece of work, got none"),
        ({"a": [Span("x", -1, 2)]}, r"timeline: 'x' of 'a', expected 0 ≤ begin ≤ end, got \(-1, 2\)"),
        ({"a": [Span("x", 0, 2), Span("y", 1, 3)]}, r"timeline: 'y' of 'a', expected 2 ≤ begin ≤ end, got \(1, 3\)"),
        ({"a": [Span("x", 2, 1)]}, r"timeline: 'x' of 'a', expected 0 ≤ begin ≤ end, got \(2, 1\)"),
    ],
)
def test_what_a_timeline_refuses(rows, message):
    with pytest.raises(ValueError, match=message):
        timeline(rows)


def test_offsets_are_written_where_a_mask_lets_through():
    tile = np.array([[0, 1, -1], [4, 5, -1], [-1, -1, -1]])
    ax = offsets(Event((0, 0, 0), "load", "x", tile, 16, 0))
    assert [text.get_text() for text in ax.texts] == ["0", "1", "4", "5"]
    assert [text.get_position() for text in ax.texts] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    grey = [patch for patch in ax.patches if patch.get_alpha() == 1]
    assert len(grey) == 5


@pytest.mark.parametrize("shape", [(4,), (2, 33)])
def test_offsets_of_what_is_no_small_matrix_are_refused(shape):
    with pytest.raises(ValueError, match="offsets: event, expected a tile of two axes and at most 32 × 32, got shape"):
        offsets(Event((0, 0, 0), "load", "x", np.zeros(shape, int), 0, 0))
