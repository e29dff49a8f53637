"""In-context regression has the moments it states, its baseline the error of least squares, and nothing looks ahead."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalearn.data import curriculum, least_squares, regression, regression_prompt
from smalearn.testing import assert_close, random_tensors


@st.composite
def sizes(draw):
    dim = draw(st.integers(1, 12))
    return {
        "examples": draw(st.integers(1, 4)),
        "dim": dim,
        "points": draw(st.integers(1, 2 * dim)),
        "seed": draw(st.integers(0, 2**62)),
        "active": draw(st.none() | st.integers(1, dim)),
    }


@pytest.mark.claim("003:icl-task", "smalearn.data.regression.regression")
@given(sizes())
def test_it_is_what_its_docstring_says(drawn):
    X, y = regression(**drawn, dtype=torch.float64)
    dim, active = drawn["dim"], drawn["active"] or drawn["dim"]
    assert X.shape == (drawn["examples"], drawn["points"], dim)
    assert y.shape == X.shape[:2]
    assert (X[..., active:] == 0).all()
    assert (X[..., :active] != 0).all()
    if drawn["points"] > active:  # one w for all pairs of an example
        assert_close(X @ (torch.linalg.pinv(X) @ y[..., None]), y[..., None], 1e-8)
    for dtype in (None, torch.float64):
        first, again = (regression(**drawn, dtype=dtype) for _ in range(2))
        assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
        assert first[0].dtype == first[1].dtype == (dtype or torch.get_default_dtype())
        assert not torch.equal(regression(**drawn | {"seed": drawn["seed"] + 1}, dtype=dtype)[0], first[0])


@pytest.mark.parametrize("active", [1, 3, 8])
def test_moments(active):
    """E x = 0, E x x^T = I/a on the active coordinates, E y = 0 and E y² = 1, five standard errors around them."""
    X, y = regression(20000, 8, 2, seed=5, active=active, dtype=torch.float64)
    x, spread = X.flatten(0, 1)[:, :active], 5 / 40000**0.5
    assert x.mean(0).abs().max() < spread / active**0.5
    expected = torch.eye(active).double() / active
    assert (x.mT @ x / len(x) - expected).abs().max() < 2**0.5 * spread / active
    assert y.mean().abs() < spread * 2**0.5
    fourth = 3 * (1 + 2 / active)  # of y, given |w|² a chi-square with E|w|⁴ = a(a + 2)
    assert (y.square().mean() - 1).abs() < spread * (2 * fourth) ** 0.5
    # Each example has a w of its own, independent of its x.
    assert (X[:, 0] * y[:, :1]).mean(0).abs().max() < 5 * (fourth / active / 20000) ** 0.5


def test_least_squares_is_the_shortest_solution():
    X, y = regression(3, 5, 9, seed=1, dtype=torch.float64)
    predictions = least_squares(X, y)
    assert (predictions[:, 0] == 0).all()
    for example in range(3):
        for n in range(1, 9):
            w = torch.linalg.lstsq(X[example, :n], y[example, :n, None], driver="gelsd").solution[:, 0]
            assert_close(predictions[example, n], X[example, n] @ w, 1e-9)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 100))
def test_nothing_looks_ahead(dim, points, seed):
    """A pair changes the rows of the prompt from its own on, and the predictions after it."""
    X, y = regression(2, dim, points, seed, dtype=torch.float64)
    prompt, predictions = regression_prompt(X, y), least_squares(X, y)
    assert prompt.shape == (2, 2 * points, dim)
    for i in range(points):
        changed_X, changed_y = X.clone(), y.clone()
        changed_y[:, i] += 1
        assert torch.equal(regression_prompt(X, changed_y)[:, : 2 * i + 1], prompt[:, : 2 * i + 1])
        assert torch.equal(least_squares(X, changed_y)[:, : i + 1], predictions[:, : i + 1])
        changed_X[:, i] += 1
        assert torch.equal(regression_prompt(changed_X, y)[:, : 2 * i], prompt[:, : 2 * i])
        assert torch.equal(least_squares(changed_X, y)[:, :i], predictions[:, :i])


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_the_prompt_holds_the_pairs_in_turn(leading):
    X, y = random_tensors([(*leading, 5, 3), (*leading, 5)])
    prompt = regression_prompt(X, y)
    assert torch.equal(prompt[..., 0::2, :], X)
    assert torch.equal(prompt[..., 1::2, 0], y)
    assert (prompt[..., 1::2, 1:] == 0).all()


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 50), st.integers(1, 20))
def test_the_curriculum_grows_to_all_coordinates_and_stops(dim, first, every, updates):
    options = {"first": first, "every": every, "updates": updates}
    sizes = [curriculum(step, dim, **options) for step in range(every * (updates + 2))]
    assert sizes[0] == min(first, dim)
    assert sizes == sorted(sizes)
    assert set(sizes[every * updates :]) == {dim}
    assert all(len(set(sizes[k : k + every])) == 1 for k in range(0, len(sizes), every))
    steps = [after - before for before, after in zip(sizes[::every], sizes[every::every], strict=False)]
    grown = [step for step in steps if step]
    assert len(set(grown[:-1])) <= 1  # equal increments, the last one at most as large
    assert not grown or grown[-1] <= grown[0]


def test_the_papers_curriculum():
    """16 coordinates come one by one; 128 nine by nine, at 30,000 of 500,000 steps at the latest."""
    assert [curriculum(2000 * k, 16) for k in range(13)] == [*range(4, 17)]
    assert [curriculum(2000 * k, 128) for k in (0, 1, 13, 14)] == [4, 13, 121, 128]
    assert [curriculum(step, 64) for step in (0, 1999, 2000, 4000, 30000)] == [4, 4, 8, 12, 64]


def test_more_coordinates_than_there_are():
    with pytest.raises(ValueError, match="regression: active must be at most dim = 3, got 4"):
        regression(2, 3, 4, 0, active=4)
