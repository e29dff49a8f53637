"""Pictures of the duality: every block has its factors, every model its place."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from smalearn.course import plots
from smalearn.course.plots.duality import chunk_map, venn

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


@pytest.mark.parametrize(("length", "chunk_len"), [(1, 1), (6, 2), (7, 3), (5, 8), (12, 1)])
def test_every_pair_has_the_colour_of_its_block(length, chunk_len):
    ax = chunk_map(length, chunk_len, title="M")
    assert ax.get_title(loc="left") == "M"
    drawn = ax.images[0].get_array()
    for t in range(length):
        for s in range(length):
            assert drawn[t, s] == (t // chunk_len - s // chunk_len + 1 if s <= t else 0)
    colours = ax.images[0].to_rgba(np.arange(drawn.max() + 1))
    assert len(np.unique(colours, axis=0)) == drawn.max() + 1


def test_blocks_name_their_factors_and_texts_lie_inside():
    ax = chunk_map(8, 3)
    texts = {(text.get_position()[1] // 3, text.get_position()[0] // 3): text.get_text() for text in ax.texts}
    assert texts == {
        (0, 0): "1",
        (1, 0): "4·2",
        (1, 1): "1",
        (2, 0): "4·3·2",
        (2, 1): "4·2",
        (2, 2): "1",
    }
    for text in ax.texts:
        x, y = text.get_position()
        assert x < y or text.get_text() != "1"
    assert [line.get_xydata()[0].tolist() for line in ax.lines[::2]] == [[0, 2.5], [0, 5.5]]
    given = plt.figure().add_subplot()
    assert chunk_map(4, 2, given) is given


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2), "chunk_map: length must be an integer ≥ 1, got 0"),
        ((4, 0.5), "chunk_map: chunk_len must be an integer ≥ 1, got 0.5"),
        ((13, 1), "chunk_map: expected at most 12 chunks, got 13; pass a larger chunk_len"),
    ],
)
def test_chunk_map_errors(sizes, message):
    with pytest.raises(ValueError, match=message):
        chunk_map(*sizes)


def test_members_stand_in_their_regions():
    ax = venn(["a", "b", "c"], ["c", "d"], ("left", "right"), both="shared")
    centres = [circle.center[0] for circle in ax.patches[::2]]
    first, second, both, *members = ax.texts
    assert [text.get_text() for text in (first, second, both)] == ["left", "right", "shared"]
    assert [first.get_position()[0], second.get_position()[0]] == centres
    radius = ax.patches[0].radius
    for text in members:
        x, y = text.get_position()
        within = [np.hypot(x - centre, y) < radius for centre in centres]
        assert within == [text.get_text() in names for names in ("abc", "cd")]
    assert [text.get_text() for text in members] == ["a", "b", "c", "d"]
    assert members[0].get_position()[1] > members[1].get_position()[1]
    given = plt.figure().add_subplot()
    assert venn(["a"], [], ("left", "right"), given) is given


def test_a_name_twice_is_an_error():
    with pytest.raises(ValueError, match="venn: names of a family must differ, got a, a"):
        venn(["b"], ["a", "a"], ("left", "right"))


def test_a_border_cuts_a_decay_in_two():
    log_a = -torch.arange(1.0, 7.0) / 10
    figure = plots.border(log_a, 4)
    above, _, mask, beside = figure.axes
    until, since = [bar.get_height() for bar in above.patches], [bar.get_width() for bar in beside.patches]
    shown = mask.images[0].get_array()
    np.testing.assert_allclose(shown[4:, :4], np.outer(since, until))
    frame = mask.patches[0]
    assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (-0.5, 3.5, 4, 2)
