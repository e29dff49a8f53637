"""The fast delta rule of the CPU against the loop in float64: outputs, gradients, blocks, heads, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles_delta import KINDS, alike, expected, inputs
from oracles_ssd import gradients
from test_linear_attention_delta import check, check_float32

from smalearn import ShapeError, fast
from smalearn.fast.cpu import delta
from smalearn.linear_attention import delta_rule_chunked
from smalearn.testing import assert_close, random_tensors, relative_rms


@pytest.fixture
def small_blocks(monkeypatch):
    """One chunk of four tokens and one head at a time, so that short sequences have many blocks and parts."""
    monkeypatch.setattr(delta, "CACHE", 1)
    monkeypatch.setattr(delta, "CHUNK_LEN", 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 1, 5, 15, 16, 17, 97, 211])
def test_lengths(length, kind):
    check(fast.delta_rule, inputs(length, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 17, 33])
def test_many_blocks(length, kind, small_blocks):
    check(fast.delta_rule, inputs(length, kind, (3, 2)))


@pytest.mark.parametrize("kind", ["none", "mild", "resets"])
@pytest.mark.parametrize(
    ("leading", "shared"),
    [
        ((), ()),
        ((2,), (2,)),
        ((2,), (1,)),
        ((2, 4), (2, 4)),
        ((2, 4), (2, 1)),
        ((2, 4), (1, 4)),
        ((2, 2, 3), (2, 2, 1)),
        ((2, 1, 3, 2), (2, 1, 3, 2)),
        ((0, 2), (0, 1)),
    ],
)
def test_leading_axes_and_groups(leading, shared, kind):
    check(fast.delta_rule, inputs(37, kind, leading, shared))


def test_operands_that_heads_share():
    Q, K, V, beta, log_a, H = inputs(37, "resets", (2, 3))
    check(fast.delta_rule, [Q, K, V, beta[0, 0], log_a, H])
    check(fast.delta_rule, [Q, K, V[:, :1], beta, log_a[:1], H[0]])
    check(fast.delta_rule, [Q, K[:1, :1], V[:, :1], beta[0], None, None])


def test_outputs_of_many_readers_share_one_state():
    """Q alone has the axis of heads: the state has none."""
    _, K, V, beta, log_a, H = inputs(37, leading=(2, 1))
    Q = inputs(37, leading=(2, 3))[0]
    Y, state = fast.delta_rule(Q, K, V, beta, log_a, H)
    assert (Y.shape, state.shape) == ((2, 3, 37, 3), (2, 1, 3, 4))
    for actual, readable in zip((Y, state), delta_rule_chunked(Q, K, V, beta, log_a, H), strict=True):
        assert_close(actual, readable)


def test_a_gate_for_each_key_feature_takes_the_readable_form():
    Q, K, V, beta, _, H = inputs(37, leading=(2,))
    (gate,) = random_tensors([(2, 37, 4)], seed=3)
    check(fast.delta_rule, [Q, K, V, beta, -gate.abs(), H])


@given(
    length=st.integers(1, 120),
    leading=st.sampled_from([(), (2,), (2, 3)]),
    strongest=st.sampled_from([0.0, -1.0, -1e2, -1e4, -float("inf")]),
    strength=st.sampled_from([0.0, 1.0, 2.0, None]),
    seed=st.integers(0, 99),
)
def test_any_mixture_of_decays(length, leading, strongest, strength, seed):
    Q, K, V, beta, _, H = inputs(length, "none", leading, strength=strength)
    mild, where = random_tensors([(*leading, length)] * 2, seed=seed)
    check(fast.delta_rule, [Q, K, V, beta, torch.where(where > 1, strongest, -0.1 * mild.abs()), H], 1e-11)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["none", "resets", "strong"])
def test_float32_with_unit_keys(strength, kind):
    check_float32(fast.delta_rule, inputs(1000, kind, (2,), state=32, head_dim=16, strength=strength), 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("strength", "times"), [(1.0, 2), (None, 2), (2.0, 6)])
@pytest.mark.parametrize("correlated", [0.0, 0.05, 0.5])
def test_float32_with_keys_that_are_alike(correlated, strength, times, seed):
    check_float32(fast.delta_rule, [x.double() for x in alike(1000, correlated, strength, seed)], times)


@pytest.mark.parametrize("kind", ["none", "mild", "strong", "resets"])
def test_float32_gradients_keep_their_digits(kind):
    operands = inputs(200, kind, (2,), state=16, head_dim=8)
    narrow = [x if x is None else x.float() for x in operands]
    for actual, truth in zip(gradients(fast.delta_rule, narrow), gradients(expected, operands), strict=True):
        assert relative_rms(actual.double(), truth) < 5e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(dtype):
    operands = inputs(40, leading=(2,), dtype=dtype)
    results = gradients(fast.delta_rule, operands)
    wide = gradients(fast.delta_rule, [x.float() for x in operands])
    assert [x.dtype for x in results] == [dtype, torch.float32, *[dtype] * 6]
    for actual, exact in zip(results, wide, strict=True):
        assert_close(actual.float(), exact.to(actual.dtype).float(), 1e-2)


def test_beta_and_decay_may_be_float32():
    Q, K, V, beta, log_a, H = (x.bfloat16() for x in inputs(20))
    Y, _ = fast.delta_rule(Q, K, V, beta.float(), log_a.float(), H.float())
    assert_close(Y.float(), fast.delta_rule(Q, K, V, beta, log_a, H)[0].float(), 1e-2)


def test_two_calls_give_the_same_bits_and_a_reset_forgets():
    Q, K, V, beta, log_a, H = inputs(50, leading=(2,), dtype=torch.float32)
    log_a[:, 20] = -float("inf")
    first = fast.delta_rule(Q, K, V, beta, log_a, H)[0]
    assert torch.equal(first, fast.delta_rule(Q, K, V, beta, log_a, H)[0])
    other = V.clone()
    other[:, :20] += 1e3
    assert torch.equal(fast.delta_rule(Q, K, other, beta, log_a, -H)[0][:, 20:], first[:, 20:])


def test_operands_are_not_changed():
    operands = inputs(50, "resets", (2,), dtype=torch.float32)
    before = [x.clone() for x in operands]
    gradients(fast.delta_rule, operands)
    assert all(torch.equal(x, y) for x, y in zip(operands, before, strict=True))


def test_layout_of_the_output_is_that_of_values():
    Q, K, V, beta, log_a, _ = inputs(50, leading=(2, 3))
    V = V.transpose(1, 2).contiguous().transpose(1, 2)
    assert fast.delta_rule(Q, K, V, beta, log_a)[0].stride() == V.stride()


def test_it_keeps_one_state_for_a_block():
    """Memory for the backward: the operands, and less than a state for each chunk."""
    saved = []
    operands = [x.requires_grad_() for x in inputs(4096, leading=(4,), dtype=torch.float32, state=16, head_dim=16)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        fast.delta_rule(*operands)
    assert sum(saved) < sum(x.numel() for x in operands) + 4 * 16 * 16 * 4096 // delta.CHUNK_LEN // 4


def test_wrong_arguments():
    Q, K, V, beta, log_a, H = inputs(6, leading=(2,))
    with pytest.raises(ShapeError, match="delta_rule: axis 't' is 6 in Q but 5 in beta"):
        fast.delta_rule(Q, K, V, beta[:, 1:], log_a, H)
    with pytest.raises(ValueError, match=r"delta_rule: beta must be from 0 to 2, got .* to 3"):
        fast.delta_rule(Q, K, V, beta.clamp(max=1) + 2, log_a, H)
