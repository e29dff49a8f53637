"""The claims of chapter 07 on the Mamba-2 block and on recall, one test each or more."""

import math

import pytest
import torch
from torch.nn import functional

from smalearn.course.exercises import registry
from smalearn.data import IGNORE, mqar
from smalearn.kernel_attention import softmax_attention
from smalearn.models import Mamba1, Mamba2, SoftmaxAttention
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close, random_tensors, relative_rms

DIM, STATE, HEAD_DIM, LENGTH = 8, 3, 4, 11


def block(groups=1, expand=2):
    """A Mamba-2 block in float64 whose parameters are all ordinary numbers, so that none hides behind a 1."""
    made = Mamba2(DIM, STATE, HEAD_DIM, expand, groups).double().requires_grad_(False)
    drawn = random_tensors([tuple(parameter.shape) for parameter in made.parameters()], seed=5)
    for parameter, value in zip(made.parameters(), drawn, strict=True):
        parameter.copy_(0.5 * value)
    return made


def text(seed=0):
    return random_tensors([(LENGTH, DIM)], seed=seed)[0]


def operands_by_hand(made, x):
    """dt X, log_a, B and C of a block with one group, the convolution as a loop."""
    _, xBC, dt = (x @ made.in_proj.weight.T).split(made.widths, -1)
    taps = made.conv.weight[:, 0].T
    seen, _ = registry()["7.2"].oracle(xBC, taps, xBC.new_zeros(len(taps) - 1, xBC.shape[1]))
    X, B, C = functional.silu(seen + made.conv.bias).split([made.inner, STATE, STATE], -1)
    dt = functional.softplus(dt + made.dt_bias)
    X = X.unflatten(-1, (-1, HEAD_DIM)) * dt[..., None]
    return X.movedim(1, 0)[None], -(made.A_log.exp() * dt).T[None], B[None, None], C[None, None]


@pytest.mark.claim("004:fig-mamba2-block", "smalearn.models.mamba2.Mamba2.operands")
def test_one_projection_makes_all_operands():
    made, x = block(), text()
    inner, heads = 2 * DIM, 2 * DIM // HEAD_DIM
    assert made.in_proj.weight.shape == (2 * inner + 2 * STATE + heads, DIM)
    assert block(groups=2).in_proj.weight.shape == (2 * inner + 4 * STATE + heads, DIM)
    before = made.operands(x)
    for found, wanted in zip(before, operands_by_hand(made, x), strict=True):
        assert_close(found, wanted)
    made.in_proj.weight[inner : 2 * inner] *= 2  # the rows of X
    X, *others = made.operands(x)
    assert relative_rms(X, before[0]) > 0.1
    for found, same in zip(others, before[1:], strict=True):
        assert torch.equal(found, same)


def test_in_mamba_the_operands_wait_for_one_another():
    torch.manual_seed(0)
    made, x = Mamba1(DIM, STATE).double().requires_grad_(False), text()
    before = made.operands(x)
    made.in_proj.weight[: made.inner] *= 2
    for found, other in zip(made.operands(x), before, strict=True):
        assert relative_rms(found, other) > 1e-3


def half(whole, number):
    """One half of the heads of a block with two groups: its own rows of every weight, its own B and C."""
    part = Mamba2(DIM, STATE, HEAD_DIM, expand=1).double().requires_grad_(False)
    inner, heads = DIM, DIM // HEAD_DIM
    mine = torch.arange(number * inner, (number + 1) * inner)
    group = torch.arange(number * STATE, (number + 1) * STATE)
    own = slice(number * heads, (number + 1) * heads)
    xBC = torch.cat([mine, 2 * inner + group, 2 * inner + 2 * STATE + group])
    dt = 4 * inner + 4 * STATE + torch.arange(number * heads, (number + 1) * heads)
    part.in_proj.weight.copy_(whole.in_proj.weight[torch.cat([mine, 2 * inner + xBC, dt])])
    part.conv.weight.copy_(whole.conv.weight[xBC])
    part.conv.bias.copy_(whole.conv.bias[xBC])
    for name in ("dt_bias", "A_log", "D"):
        getattr(part, name).copy_(getattr(whole, name)[own])
    part.norm.weight.copy_(whole.norm.weight[mine])
    part.out_proj.weight.copy_(whole.out_proj.weight[:, mine])
    return part


@pytest.mark.claim("004:tensor-parallel", "smalearn.models.layers.GatedRMSNorm.forward")
@pytest.mark.claim("004:tensor-parallel", "smalearn.models.mamba2.Mamba2.prefill")
def test_a_block_cut_by_heads():
    whole, x = block(groups=2), text()
    halves = [half(whole, number) for number in range(2)]
    assert_close(sum(part(x) for part in halves), whole(x))
    whole.norm.groups = 1  # one norm over all channels: each half would need the other's sum of squares
    assert relative_rms(sum(part(x) for part in halves), whole(x)) > 1e-2


@pytest.mark.claim("004:mqar-task", "smalearn.data.recall.mqar")
def test_seeds_and_chance():
    examples, pairs = 2000, 8
    inputs, targets = mqar(examples, 64, pairs, 64, seed=2)
    assert torch.equal(inputs, mqar(examples, 64, pairs, 64, seed=2)[0])
    assert not torch.equal(inputs, mqar(examples, 64, pairs, 64, seed=3)[0])
    first = inputs[:, 1:2].expand_as(targets)  # always the first value: right for one of the keys
    asked = targets != IGNORE
    assert (first == targets)[asked].sum() == examples
    assert asked.sum() == examples * pairs


@pytest.mark.claim("004:no-softmax", "smalearn.models.mamba2.Mamba2.state_shape")
def test_one_cache_grows_and_one_does_not():
    state = Mamba2(DIM, STATE, HEAD_DIM).state_shape()
    assert math.prod(state) == 2 * DIM * STATE  # N P for each of 2 DIM / P heads
    attention = SoftmaxAttention(DIM, heads=2)
    for length in (1, 10, 100):
        _, cache = attention.prefill(torch.zeros(length, DIM), attention.start())
        assert cache.nbytes == 4 * length * 2 * DIM


@pytest.mark.claim("004:no-softmax", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.claim("004:no-softmax", "smalearn.ssd.ssd_recurrent")
def test_a_fixed_state_fills_up():
    """Random keys and values of length 1 with N = P = 16: is what a key reads nearest to its own value?"""
    right, attended = {}, {}
    for pairs in (2, 16, 128):
        keys, values = random_tensors([(pairs, 16), (pairs, 16)], seed=pairs)
        keys, values = (x / x.norm(dim=-1, keepdim=True) for x in (keys, values))
        _, state = ssd_recurrent(values, keys.new_zeros(pairs), keys, keys)
        assert_close(state, values.mT @ keys)
        Y = softmax_attention(50 * keys, keys, values)
        assert_close(Y, (50 * keys @ keys.mT).softmax(-1) @ values)
        for found, read in ((right, keys @ state.mT), (attended, Y)):
            found[pairs] = (read @ values.mT).argmax(-1).eq(torch.arange(pairs)).double().mean().item()
    assert right[2] == 1
    assert right[2] > right[16] > right[128]
    assert right[128] < 0.5
    assert attended == {2: 1, 16: 1, 128: 1}
