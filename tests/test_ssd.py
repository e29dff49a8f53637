"""The step of state space duality that overwrites its state."""

import pytest
import torch
from oracles_ssd import DECAYS, expected, inputs

from smalearn import ShapeError
from smalearn.fast import ssd_step_
from smalearn.fast.cpu import step
from smalearn.ssd import ssd_step
from smalearn.testing import assert_close, pairwise

KINDS = [kind for kind in DECAYS if kind != "none"]


SHARED = [((), ()), ((2, 4), (2, 1)), ((2, 4), (1, 4)), ((2, 4), ()), ((3,), (3,))]  # leading axes of X; of B and C
CACHES = [1, 1 << 18]  # numbers of states at a time: one group after the other, or all at once
CASES = pairwise({"axes": SHARED, "cache": CACHES, "kind": KINDS})


@pytest.mark.parametrize(("axes", "cache", "kind"), [case.values() for case in CASES])
def test_token_by_token_is_the_recurrence(axes, cache, kind, monkeypatch):
    monkeypatch.setattr(step, "CACHE", cache)
    X, log_a, B, C, state = inputs(9, kind, *axes)
    Y, final = expected(X, log_a, B, C, state)
    for t in range(9):
        y = ssd_step_(X[..., t, :], log_a[..., t], B[..., t, :], C[..., t, :], state)
        assert_close(y, Y[..., t, :])
    assert_close(state, final)


def test_a_step_in_half_precision_keeps_a_float32_state():
    X, log_a, B, C, H = inputs(1, "mild", (2, 3), (2, 1), torch.bfloat16)
    token = X[..., 0, :], log_a[..., 0].float(), B[..., 0, :], C[..., 0, :]
    y, state = ssd_step(*token, H.float())
    overwritten = H.float()
    y_in_place = ssd_step_(*token, overwritten)
    assert (y.dtype, y_in_place.dtype, state.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert_close(y_in_place, y, 4e-3)  # a rounding to bfloat16
    assert_close(overwritten, state)


def test_a_step_in_place_gives_no_gradient_and_no_other_memory():
    X, log_a, B, C, H = (x.requires_grad_() for x in inputs(1, "mild", (2,)))
    state = H.detach().clone()
    where = state.data_ptr()
    y = ssd_step_(X[:, 0], log_a[:, 0], B[:, 0], C[:, 0], state)
    assert not y.requires_grad
    assert state.data_ptr() == where
    assert not torch.equal(state, H)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (torch.zeros(2, 3), ShapeError, r"ssd_step_: .*state"),
        (torch.zeros(4, 3, 2).mT, ValueError, r"ssd_step_: state must be contiguous, got strides \(6, 1, 2\)"),
        (torch.zeros(4, 2, 5), ShapeError, r"ssd_step_: .*state"),
        (torch.zeros(4, 2, 3).double(), ValueError, r"ssd_step_: state"),
    ],
)
def test_a_state_that_cannot_be_overwritten(state, error, message):
    with pytest.raises(error, match=message):
        ssd_step_(torch.ones(4, 2), torch.zeros(4), torch.ones(3), torch.ones(3), state)


def test_a_step_in_place_checks_every_time():
    """Shapes are checked once for each combination; values, and what is no tensor, at every step."""
    x, log_a, B, C, state = torch.ones(4, 2), torch.zeros(4), torch.ones(3), torch.ones(3), torch.zeros(4, 2, 3)
    for _ in range(2):
        ssd_step_(x, log_a, B, C, state)
        with pytest.raises(ValueError, match="ssd_step_: log_a "):
            ssd_step_(x, log_a + 1, B, C, state)
        with pytest.raises(TypeError, match="ssd_step_: B "):
            ssd_step_(x, log_a, [1.0, 1.0, 1.0], C, state)
        with pytest.raises(ValueError, match="ssd_step_: B "):
            ssd_step_(x, log_a, B.double(), C, state)
    assert_close(state, torch.full((4, 2, 3), 2.0))
