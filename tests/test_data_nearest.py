"""The nearest point is the nearest, the sphere is uniform, chance is what it should be, and one full head is enough."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalearn.data import full_rank_head, nearest_neighbour
from smalearn.testing import assert_close

SIZES = {
    "examples": st.integers(1, 5),
    "dim": st.integers(2, 20),
    "points": st.integers(1, 17),
    "seed": st.integers(0, 2**62),
}


@given(st.fixed_dictionaries(SIZES))
def test_it_is_what_its_docstring_says(drawn):
    queries, X, nearest = found = nearest_neighbour(**drawn, dtype=torch.float64)
    assert all(map(torch.equal, found, nearest_neighbour(**drawn, dtype=torch.float64)))
    assert not torch.equal(nearest_neighbour(**drawn | {"seed": drawn["seed"] + 1}, dtype=torch.float64)[1], X)
    assert {x.dtype for x in nearest_neighbour(**drawn)[:2]} == {torch.get_default_dtype()}
    assert queries.shape == (drawn["examples"], drawn["dim"])
    assert X.shape == (drawn["examples"], drawn["points"], drawn["dim"])
    assert nearest.dtype == torch.int64
    assert_close(queries.norm(dim=-1), torch.ones(drawn["examples"]).double())
    assert_close(X.norm(dim=-1), torch.ones(X.shape[:2]).double())
    for query, points, k in zip(queries.tolist(), X.tolist(), nearest.tolist(), strict=True):
        distances = [math.dist(query, point) for point in points]
        assert distances[k] == min(distances)


def test_the_points_are_uniform_on_the_sphere():
    """Mean 0, covariance I/d, and E x_1^4 = 3/(d(d + 2)), which the normal distribution does not have."""
    dim = 6
    queries, X, _ = nearest_neighbour(4000, dim, 5, seed=1, dtype=torch.float64)
    for drawn in (queries, X.flatten(0, 1)):
        spread = 5 / len(drawn) ** 0.5
        assert drawn.mean(0).abs().max() < spread
        assert (drawn.mT @ drawn / len(drawn) - torch.eye(dim) / dim).abs().max() < spread / dim
        assert ((drawn**4).mean(0) - 3 / (dim * (dim + 2))).abs().max() < spread / dim


@pytest.mark.parametrize("points", [2, 5, 16])
def test_chance_is_one_in_the_number_of_points(points):
    """Three standard deviations of a binomial; and the answer 0 has error 1."""
    examples = 5000
    _, X, nearest = nearest_neighbour(examples, 4, points, seed=2, dtype=torch.float64)
    counts = torch.bincount(nearest, minlength=points) / examples
    spread = (1 / points * (1 - 1 / points) / examples) ** 0.5
    assert (counts - 1 / points).abs().max() < 4 * spread
    assert_close(X[range(examples), nearest].square().sum(-1), torch.ones(examples).double())


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_the_head_broadcasts_and_has_gradients(leading):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(*leading, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    X = torch.randn(5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    expected = ((2 * queries @ X.mT).exp() / (2 * queries @ X.mT).exp().sum(-1, keepdim=True)) @ X
    assert_close(full_rank_head(queries, X, 2.0), expected)
    assert torch.autograd.gradcheck(lambda q, x: full_rank_head(q, x, 2.0), (queries, X))
