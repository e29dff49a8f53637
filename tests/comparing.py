"""Several tensors beside several, and a fixture for tests that look at what is not written."""

import math

import pytest
import torch

from smalearn.testing import assert_close, random_tensors


def all_close(actual, expected, tolerance=None):
    """Assert that there are as many tensors as expected, each close to its own."""
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs, tolerance)


def same_slope(ours, theirs, tolerance, rounding=1e-14):
    """Assert that two gradients are the same; where theirs is zero but for rounding, so is ours."""
    assert ours.shape == theirs.shape
    if theirs.numel() and theirs.abs().max() < 1e-14:
        assert ours.abs().max() < rounding
    else:
        assert_close(ours, theirs, tolerance)


def same_function(ours, theirs, leaves, of_gradients=None):
    """Assert that two results are the same, and so are the gradients of all leaves for a random functional of them."""
    assert_close(ours, theirs)
    weights, imaginary = random_tensors([theirs.shape] * 2, seed=2)
    weights = torch.complex(weights, imaginary) if theirs.is_complex() else weights
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    grads = (torch.autograd.grad((y * weights).real.sum(), leaves, **options) for y in (ours, theirs))
    all_close(*grads, of_gradients)


def second_derivative(form, operands, first, second):
    """The gradient by one operand of the squared gradient by another of the squares of a result."""
    leaves = [x.detach().clone().requires_grad_() for x in operands]
    (slope,) = torch.autograd.grad(form(*leaves).square().sum(), leaves[first], create_graph=True)
    return torch.autograd.grad(slope.square().sum(), leaves[second])[0]


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
