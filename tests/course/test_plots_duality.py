"""Pictures of the duality: every block has its factors, every model its place."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from smalearn.course import plots
from smalearn.course.plots.duality import STEPS, four_steps, venn

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def style():
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_every_block_has_the_factors_of_its_steps(chunks):
    ax = four_steps(chunks, title="M")
    assert ax.get_title(loc="left") == "M"
    found = {}
    for patch in ax.patches:
        colour = to_hex(patch.get_facecolor())
        step = STEPS.index(colour) + 1 if colour in STEPS else 0
        middle = int(patch.get_y() + patch.get_height() / 2), int(patch.get_x() + patch.get_width() / 2)
        found.setdefault(middle, set()).add(step)
    assert found.keys() == {(row, column) for row in range(chunks) for column in range(row + 1)}
    for (row, column), steps in found.items():
        assert steps - {0} == ({1} if row == column else {2, 3, 4})
    given = plt.figure().add_subplot()
    assert four_steps(chunks, given) is given


def test_four_steps_needs_chunks():
    with pytest.raises(ValueError, match="four_steps: chunks must be an integer ≥ 1, got 0"):
        four_steps(0)


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
