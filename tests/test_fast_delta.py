"""The fast delta rule against the loop in float64: blocks and memory on a CPU, digits everywhere."""

import pytest
import torch
from oracles_delta import KINDS, alike, check, check_float32, inputs
from triton_marks import needs_triton

from smalearn import fast
from smalearn.course.timing import saved_bytes
from smalearn.fast.cpu import delta
from smalearn.fast.triton import delta_rule_tiles, delta_rule_triton


@pytest.fixture
def small_blocks(monkeypatch):
    """One chunk of four tokens and one head at a time, so that short sequences have many blocks and parts."""
    monkeypatch.setattr(delta, "CACHE", 1)
    monkeypatch.setattr(delta, "CHUNK_LEN", 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 17, 33])
def test_many_blocks(length, kind, small_blocks):
    check(fast.delta_rule, inputs(length, kind, (3, 2)))


@pytest.mark.parametrize("form", [fast.delta_rule, delta_rule_tiles])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["none", "resets", "strong"])
def test_float32_with_unit_keys(strength, kind, form):
    check_float32(form, inputs(1000, kind, (2,), state=32, head_dim=16, strength=strength), 2)


@pytest.mark.parametrize(
    ("form", "length"),
    [(fast.delta_rule, 1000), (delta_rule_tiles, 300), pytest.param(delta_rule_triton, 300, marks=needs_triton)],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize(("strength", "times"), [(1.0, 2), (None, 2), (2.0, 6)])
@pytest.mark.parametrize("correlated", [0.0, 0.05, 0.5])
def test_float32_with_keys_that_are_alike(correlated, strength, times, seed, form, length):
    """All strengths 2 are reflections that keep every error; powers of A would reach 10^6 here and cancel."""
    check_float32(form, [x.double() for x in alike(length, correlated, strength, seed)], times)


def test_layout_of_the_output_is_that_of_values():
    Q, K, V, beta, log_a, _ = inputs(50, leading=(2, 3))
    V = V.transpose(1, 2).contiguous().transpose(1, 2)
    assert fast.delta_rule(Q, K, V, beta, log_a)[0].stride() == V.stride()


def test_it_keeps_one_state_for_a_block():
    """Memory for the backward: the operands, and less than a state for each chunk."""
    operands = [x.requires_grad_() for x in inputs(4096, leading=(4,), dtype=torch.float32, state=16, head_dim=16)]
    states = 4 * 16 * 16 * 4096 // delta.CHUNK_LEN // 4
    assert saved_bytes(lambda: fast.delta_rule(*operands)) < sum(x.nbytes for x in operands) + 4 * states
