"""The way between two tokens goes up to the smallest block that holds both, and no higher."""

import matplotlib
import pytest
from matplotlib import pyplot as plt

from smalearn.course.plots.trees import block_tree

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize(
    ("pair", "highest"),
    [((0, 1), 1), ((3, 4), 3), ((4, 7), 2), ((2, 2), 1)],
)
def test_a_way_goes_up_to_the_block_that_is_shared(pair, highest):
    ax = block_tree(8, (8, 4, 2), [pair])
    (way,) = ax.lines
    heights = way.get_ydata().tolist()
    assert max(heights) == highest
    assert heights == heights[::-1]
    assert [way.get_xdata()[0], way.get_xdata()[-1]] == list(pair)
    assert heights[0] == 0


def test_a_node_stands_over_the_middle_of_its_block():
    ax = block_tree(6, (8, 4, 2), [(0, 5)])  # the last block of four has two tokens
    assert ax.lines[0].get_xydata().tolist() == [[0, 0], [0.5, 1], [1.5, 2], [2.5, 3], [4.5, 2], [4.5, 1], [5, 0]]
    ends = {tuple(map(tuple, segment)) for segment in ax.collections[0].get_segments()}
    assert ((2.5, 3), (1.5, 2)) in ends
    assert ((2.5, 1), (3, 0)) in ends
    assert [label.get_text() for label in ax.get_yticklabels()] == ["blocks of 8", "blocks of 4", "blocks of 2"]


def test_errors():
    with pytest.raises(ValueError, match="block_tree: each of block_lens must be a multiple of the next, got"):
        block_tree(8, (8, 3))
    with pytest.raises(ValueError, match=r"block_tree: tokens of pairs must be in 0 … 7, got 8"):
        block_tree(8, (8, 4), [(1, 8)])
    figure, ax = plt.subplots()
    assert block_tree(4, (4, 2), (), ax) is ax
    assert plt.get_fignums() == [figure.number]
