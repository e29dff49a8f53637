"""Several tensors beside several, and a fixture for tests that look at what is not written."""

import math

import pytest
import torch

from smalearn.testing import assert_close


def all_close(actual, expected, tolerance=None):
    """Assert that there are as many tensors as expected, each close to its own."""
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs, tolerance)


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
