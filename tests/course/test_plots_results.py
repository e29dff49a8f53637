"""Pictures of recorded results: every bar and point is a median of the samples, and everything can be read."""

from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot as plt

from smalearn.course import plots
from smalearn.course.plots.results import growth, times
from smalearn.data import recorded

matplotlib.use("Agg")

CONTEST = {
    "problem": "T = 16384, 24 heads, P = 64, N = 128: forward + backward",
    "speedups": {"fast.ssd": {}, "ssd_chunked": {}},
    "contestants": {
        "fast.ssd": {"seconds": [0.028, 0.027, 0.030, 0.029, 0.9]},
        "ssd_chunked": {"seconds": [0.05, 0.05, 0.06]},
        "textbook": {"seconds": [0.1, 0.2, 0.1]},
        "transformers mamba2_chunk_scan": {"seconds": [0.0435] * 3},
        "wrong": {"error": 1.0, "tolerated": False},
        "peer": {"absent": "ModuleNotFoundError"},
    },
}
LONG = CONTEST | {"contestants": CONTEST["contestants"] | {"slow": {"seconds": [20.3]}}}
SHORT = CONTEST | {"contestants": {"fast.ssd": {"seconds": [0.0024]}, "peer": {"seconds": [0.0021]}}}
GROWTH = {"lengths": [4, 8, 16], "seconds": {"fast.ssd": [[1, 2, 9], [4, 4, 4], [8, 1, 9]], "clone": [[0.1]] * 3}}


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def names(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def assert_readable(ax):
    """All texts are inside the figure, large enough and apart."""
    figure = ax.figure
    figure.draw_without_rendering()
    low, high = ax.get_xlim()
    ticks = [label for place, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True) if low <= place <= high]
    assert len(ticks) >= 2
    shown = [*ax.texts, *ax.get_yticklabels(), *ticks, *ax.findobj(lambda text: text is ax._left_title)]
    shown = [text for text in shown if text.get_text()]
    frames = [matplotlib.text.Text.get_window_extent(text) for text in shown]
    for text, frame in zip(shown, frames, strict=True):
        assert text.get_fontsize() >= 9
        assert figure.bbox.padded(2).containsx(frame.x0)
        assert figure.bbox.padded(2).containsx(frame.x1)
    for one, other in combinations(frames, 2):
        assert not one.shrunk(0.95, 0.9).overlaps(other.shrunk(0.95, 0.9))


def test_bars_are_medians_with_the_fastest_on_top():
    ax = times(CONTEST)
    assert names(ax) == ["fast.ssd", "transformers mamba2_chunk_scan", "ssd_chunked", "textbook"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([29, 43.5, 50, 100])
    assert ax.get_xlim()[0] == 0
    assert ax.get_title("left") == "T = 16384, 24 heads, P = 64, N = 128\nforward + backward"
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_peers_are_labelled_by_the_first_of_ours():
    labels = [text.get_text() for text in times(CONTEST).texts]
    assert labels == ["29 ms", "43.5 ms, 1.5 ×", "50 ms", "100 ms, 3.4 ×"]
    assert [text.get_text() for text in times(LONG).texts][-1] == "20,300 ms, 700 ×"
    alone = CONTEST | {"speedups": {}}
    assert times(alone).texts[0].get_text() == "29 ms"


def test_ours_are_coloured_and_bold():
    ax = times(CONTEST)
    fast, peer, chunked, textbook = (bar.get_facecolor() for bar in ax.patches)
    assert peer == textbook
    assert len({fast, peer, chunked}) == 3
    assert [label.get_fontweight() for label in ax.get_yticklabels()] == ["bold", "normal", "bold", "normal"]


def test_the_thin_line_is_the_middle_half():
    (lines,) = times(CONTEST).collections
    assert lines.get_segments()[0][:, 0].tolist() == pytest.approx([28, 30])


def test_a_title_of_its_own():
    assert times(CONTEST, title="one thread").get_title("left") == "one thread"


def test_a_contest_without_times_is_an_error():
    with pytest.raises(ValueError, match="times: contest, expected a contestant that was timed, got none"):
        times(CONTEST | {"contestants": {"peer": {"absent": "why"}}})


def test_points_are_medians_over_a_line_of_slope_1():
    ax = growth(GROWTH, title="growth")
    ours, clone, guide = ax.lines
    assert ours.get_xdata().tolist() == [4, 8, 16]
    assert ours.get_ydata().tolist() == [2, 4, 8]
    assert clone.get_ydata().tolist() == [0.1] * 3
    assert np.diff(np.log(guide.get_ydata())) == pytest.approx(np.log(4))
    assert (ax.get_ylabel(), ax.get_xlabel(), ax.get_title("left")) == ("seconds", "length T", "growth")


@pytest.mark.parametrize(("draw", "what"), [(times, CONTEST), (times, LONG), (times, SHORT), (growth, GROWTH)])
def test_a_picture_is_drawn_where_it_is_asked_for_and_can_be_read(draw, what):
    assert_readable(draw(what))
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3))
    assert draw(what, right) is right
    assert not left.has_data()


@pytest.mark.parametrize("name", [pytest.param("linear_attention", marks=pytest.mark.full), "ssd"])
def test_recorded_results_can_be_drawn_and_read(name):
    result = recorded(name)
    for contest in result["contests"]:
        assert_readable(times(contest))
    assert_readable(growth(result["growth"]))
