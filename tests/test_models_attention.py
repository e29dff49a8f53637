"""What is particular to attention mixers: levels, scales, groups, RoPE, windows, and the limit of the context."""

import copy

import pytest
import torch
from einops import rearrange
from registry_models import build, loop, sequence
from torch.nn import functional

from smalearn import ShapeError
from smalearn.models import Block, MultiLevelAttention, SequenceModel, SoftmaxAttention, WindowAttention
from smalearn.testing import assert_close, relative_rms


def test_one_level_is_standard_attention():
    torch.manual_seed(0)
    standard, one = SoftmaxAttention(24, 3).double(), MultiLevelAttention(24, 3, (8,), 20).double()
    x = sequence(standard, 2)
    one.load_state_dict(standard.state_dict())
    assert_close(one(x), standard(x))
    split = build("levels")
    split.load_state_dict(standard.state_dict())
    assert relative_rms(split(x), standard(x)) > 1e-3
    assert_close(split(x)[:, :5], standard(x)[:, :5])  # within the first block of all levels nothing is left out


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


def test_groups_are_repeated_keys():
    """Heads with the keys and values of their group, written out for each: the same, but for the size of the cache."""
    grouped = build("levels-groups")
    x = sequence(grouped, 2)
    whole = MultiLevelAttention(24, 4, (2, 0, 4), 20, rope=True).double()
    Q, K, V = grouped.in_proj.weight.split(grouped.widths)
    K, V = (w.unflatten(0, (2, 6)).repeat_interleave(2, 0).flatten(0, 1) for w in (K, V))
    whole.load_state_dict({"in_proj.weight": torch.cat([Q, K, V]), "out_proj.weight": grouped.out_proj.weight})
    assert_close(whole(x), grouped(x))
    assert whole.start(2).nbytes == 2 * grouped.start(2).nbytes
    # Both savings multiply: 4 heads by 2 groups, and 6 columns of 20 keys by 2 of 20, none of 10 and 4 of 5.
    full = SoftmaxAttention(24, 4, 20).double()
    assert grouped.start().key_bytes * (2 * 6 * 20) == full.start().key_bytes * (2 * 20 + 4 * 5)


@pytest.mark.parametrize("name", ["levels-rope", "levels-groups", "softmax-rope", "window-rope"])
def test_rope_needs_no_positions_in_the_tokens(name):
    """Order shows in one layer, where it is rotated; two equal tokens in other places weigh differently."""
    mixer = build(name)
    x = sequence(mixer, length=4)
    swapped = x[[1, 0, 2, 3]]
    blind = copy.deepcopy(mixer)
    blind.rope = False
    assert relative_rms(mixer(swapped)[3], mixer(x)[3]) > 1e-3
    assert name.startswith("window") or relative_rms(blind(swapped)[2], blind(x)[2]) < 1e-12


def test_operands_are_those_of_the_attention():
    mixer = build("levels-groups")
    x = sequence(mixer, 2)
    Q, K, V = mixer.operands(x)
    assert Q.shape == (2, 2, 2, 17, 6)
    assert K.shape == V.shape == (2, 2, 1, 17, 6)
    assert_close(mixer.out_proj(rearrange(mixer.attend(Q, K, V), "... g h t p -> ... t (g h p)")), mixer(x))
    with pytest.raises(ShapeError, match=r"^MultiLevelAttention.operands: axis 'd' of x is 23, expected 24"):
        mixer.operands(x[..., 1:])


def test_global_and_window_layers_in_one_model():
    """A layer of each kind; the last output sees all through the global one, and only a stack of windows without it."""

    def seen(*mixers):
        torch.manual_seed(0)
        net = SequenceModel(12, [Block(mixer) for mixer in mixers]).double()
        x = torch.arange(17) % 11
        changed = [(net(torch.where(torch.arange(17) == t, 11, x)) - net(x))[-1].abs().max() > 1e-9 for t in range(16)]
        return sum(map(bool, changed)) + 1

    def window():
        return WindowAttention(24, 3, 3, rope=True)

    assert seen(window(), window()) == 7
    assert seen(window(), window(), window()) == 10
    assert seen(SoftmaxAttention(24, 3, 17, rope=True), window(), window()) == 17
    assert seen(window(), MultiLevelAttention(24, 3, (4, 2, 2), 17, rope=True)) == 17


@pytest.mark.parametrize("name", ["levels", "softmax-rope"])
def test_a_sequence_longer_than_the_context(name):
    mixer = build(name)
    x = sequence(mixer, 2, length=21)
    kind, context = type(mixer).__name__, mixer.context
    with pytest.raises(ShapeError, match=rf"^{kind}.forward: 21 tokens, expected at most {context}, the context"):
        mixer(x)
    _, cache = mixer.prefill(x[:, :context], mixer.start(2))
    with pytest.raises(
        ShapeError, match=rf"^{kind}.step: {context + 1} tokens, expected at most {context}, the context"
    ):
        mixer.step(x[:, context], cache)
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: {context + 2} tokens, expected at most {context}"):
        mixer.prefill(x[:, :2], cache)


def test_a_window_has_no_longest_sequence():
    mixer = build("window")
    assert mixer(sequence(mixer, length=100)).shape == (100, 24)
