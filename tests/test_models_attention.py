"""What is particular to attention mixers: levels, scales, groups, RoPE, windows, and the limit of the context."""

import pytest
import torch
from einops import rearrange
from registry_models import build, loop, sequence
from torch.nn import functional

from smalearn import ShapeError
from smalearn.testing import assert_close


@pytest.mark.parametrize("name", ["softmax", "softmax-rope"])
def test_standard_attention_is_that_of_pytorch(name, monkeypatch):
    """Whole sequences, in training and before decoding, are one call; the scale is applied once."""
    calls, fused = [], functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda *args, **how: calls.append(how) or fused(*args, **how)
    )
    mixer = build(name)
    x = sequence(mixer, 2)
    assert_close(mixer.prefill(x, mixer.start(2))[0], mixer(x))
    assert [how["is_causal"] for how in calls] == [True, True]
    mixer.scales = (0.0,)
    even = mixer.operands(x)[2].expand_as(mixer.operands(x)[0]).cumsum(-2) / torch.arange(1, 18)[:, None]
    assert_close(mixer.attend(*mixer.operands(x)), even)


def test_without_a_context_the_cache_grows():
    """By doubling, so that a step seldom copies; with one all room is there from the start."""
    mixer, limited = build("softmax"), build("softmax-context")
    x = sequence(mixer, length=20)
    cache, fixed, rooms = mixer.start(), limited.start(), []
    with torch.no_grad():
        for token in x:
            _, cache = mixer.step(token, cache)
            _, fixed = limited.step(token, fixed)
            rooms.append(cache.nbytes // (8 * 2 * 12))
            assert fixed.nbytes == 8 * 2 * 12 * 20
    assert rooms == [1, 2, 4, 4, *[8] * 4, *[16] * 8, *[32] * 4]
    assert cache.length == fixed.length == 20


def test_scales_belong_to_levels():
    mixer = build("levels-groups")
    x = sequence(mixer, length=7)
    assert mixer.scales == (6**-0.5,) * 3
    mixer.scales = (1 / 2, 0.0, 1 / 4)
    assert_close(mixer(x), loop(mixer, x))


def test_operands_are_those_of_the_attention():
    mixer = build("levels-groups")
    x = sequence(mixer, 2)
    Q, K, V = mixer.operands(x)
    assert Q.shape == (2, 2, 2, 17, 6)
    assert K.shape == V.shape == (2, 2, 1, 17, 6)
    assert_close(mixer.out_proj(rearrange(mixer.attend(Q, K, V), "... g h t p -> ... t (g h p)")), mixer(x))
    with pytest.raises(ShapeError, match=r"^MultiLevelAttention.operands: axis 'd'"):
        mixer.operands(x[..., 1:])


@pytest.mark.parametrize("name", ["levels", "softmax-rope"])
def test_a_sequence_longer_than_the_context(name):
    mixer = build(name)
    x = sequence(mixer, 2, length=21)
    kind, context = type(mixer).__name__, mixer.context
    with pytest.raises(ShapeError, match=rf"^{kind}.forward: 21 tokens, expected at most {context}, the context"):
        mixer(x)
    _, cache = mixer.prefill(x[:, :context], mixer.start(2))
    with pytest.raises(ShapeError, match=rf"^{kind}.step: {context + 1} tokens, expected at most {context}, the"):
        mixer.step(x[:, context], cache)
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: {context + 2} tokens, expected at most {context}"):
        mixer.prefill(x[:, :2], cache)


def test_a_window_has_no_longest_sequence():
    mixer = build("window")
    assert mixer(sequence(mixer, length=100)).shape == (100, 24)
