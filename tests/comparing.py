"""Several tensors beside several, and a fixture for tests that look at what is not written."""

import math

import pytest
import torch

from smalearn.testing import assert_close, random_tensors


def all_close(actual, expected, tolerance=None):
    """Assert that there are as many tensors as expected, each close to its own."""
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs, tolerance)


def same_function(ours, theirs, leaves, of_gradients=None):
    """Assert that two results are the same, and so are the gradients of all leaves for a random functional of them."""
    assert_close(ours, theirs)
    (weights,) = random_tensors([theirs.shape], seed=2)
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    grads = (torch.autograd.grad((y * weights.to(y)).real.sum(), leaves, **options) for y in (ours, theirs))
    all_close(*grads, of_gradients)


@pytest.fixture
def fresh_memory_is_not_a_number(monkeypatch):
    """What a function forgets to write is seen."""

    def filled(allocate):
        def fill(*args, **kwargs):
            x = allocate(*args, **kwargs)
            return x.fill_(math.nan) if x.is_floating_point() else x

        return fill

    for owner, name in ((torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))
