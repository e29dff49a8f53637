"""The Python half of the block explorer: ranks and bounds; the browser compares its matrix with the script's."""

import random

import pytest

from smalearn.course.widgets import BlockExplorer
from smalearn.course.widgets.block_explorer import KINDS, MAX_LENGTH, MAX_STATE, SEEDS

STRUCTURED = [kind for kind in KINDS if kind != "softmax"]


def blocks(length, count=15):
    """Some blocks: all of M, its corners, and a seeded choice."""
    chance = random.Random(length)
    some = [
        [*sorted(chance.sample(range(length + 1), 2)), *sorted(chance.sample(range(length + 1), 2))]
        for _ in range(count)
    ]
    return [[0, length, 0, length], [length - 1, length, 0, 1], [0, 1, length - 1, length], *some]


@pytest.mark.parametrize("kind", STRUCTURED)
@pytest.mark.parametrize("state", range(1, MAX_STATE + 1))
def test_every_block_has_the_rank_that_it_can_have(kind, state):
    for length in (16, MAX_LENGTH):
        explorer = BlockExplorer(kind, state, length, seed=state % SEEDS)
        for block in blocks(length):
            explorer.block = block
            assert explorer.rank <= explorer.bound, explorer
            if block[3] <= block[0] + 8:  # large triangles are often singular up to rounding
                assert explorer.rank == explorer.bound, explorer
            if block[3] <= block[0] + 1:
                assert explorer.rank <= state


@pytest.mark.parametrize(
    ("block", "bound"),
    [
        ((8, 16, 0, 8), 2),
        ((8, 16, 0, 9), 2),  # with one entry of the diagonal
        ((8, 16, 0, 10), 3),
        ((8, 16, 0, 16), 8),
        ((8, 9, 0, 8), 1),
        ((0, 8, 8, 16), 0),
        ((0, 9, 8, 16), 1),
        ((0, 12, 6, 16), 6),
        ((0, 16, 0, 16), 16),
    ],
)
def test_every_step_above_the_diagonal_may_add_one(block, bound):
    explorer = BlockExplorer(state=2, length=16, block=block)
    assert (explorer.bound, explorer.rank) == (bound, bound)


@pytest.mark.parametrize("state", [2, 4, 6])
def test_blocks_of_softmax_have_full_rank(state):
    explorer = BlockExplorer("softmax", state, 24)
    assert explorer.matrix.sum(1).tolist() == pytest.approx([1] * 24)
    for side in (4, 8, 12):
        explorer.block = (24 - side, 24, 0, side)
        assert explorer.rank == explorer.bound == side


def test_the_browser_may_change_length_and_block_together():
    explorer = BlockExplorer(length=24, block=(16, 24, 2, 5))
    for state in [{"length": 10, "block": [2, 10, 2, 5]}, {"block": [0, 30, 4, 31], "length": 32}]:
        explorer.set_state(state)
        assert {"length": explorer.length, "block": explorer.block} == state


@pytest.mark.parametrize("length", range(1, MAX_LENGTH + 1))
def test_own_block_is_on_or_below_the_diagonal(length):
    top, bottom, left, right = BlockExplorer(length=length).block
    assert 0 <= left < right <= top + 1 <= bottom <= length
