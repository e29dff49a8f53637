"""The Python half of the weight explorer: ranks and bounds; the browser compares its matrix with the script's."""

import itertools

import pytest

from smalearn.course.widgets.weight_explorer import BLOCKS, DIMS, FAMILIES, MAX_RANK, WeightExplorer


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_has_the_rank_of_its_bound(family):
    explorer = WeightExplorer(family)
    for explorer.dim, explorer.blocks, explorer.rank in itertools.product(DIMS, BLOCKS, range(1, MAX_RANK + 1)):
        assert explorer.measured_rank == explorer.weight.rank_bound


def test_a_train_leads_from_low_rank_to_every_matrix():
    explorer = WeightExplorer("block tensor train", 16, 1, 1)
    found = []
    for p in BLOCKS[:5]:
        explorer.blocks = p
        found.append((explorer.weight.num_parameters, explorer.measured_rank))
    assert found == [(32, 1), (64, 4), (128, 16), (256, 16), (512, 16)]
