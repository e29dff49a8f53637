"""Maximal update parametrisation: fans, starts, rates and clamps, factor by factor."""

import pytest
import torch
from torch import nn

from smalearn.scores import BilinearAttention
from smalearn.scores.mup import (
    Fan,
    RMSClamp,
    clamp,
    coordinate_check,
    fans,
    init_std,
    initialise,
    learning_rates,
    rms_clamp,
)
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockDiagonal, BlockLowRank, BlockTensorTrain, LowRank, MultiLevelLowRank, as_mlbtc

F64 = torch.float64


def levels(seed):
    return MultiLevelLowRank.random((16, 16), [2, 1], [1, 4], seed)


DRAWS = {
    "low rank": None,
    "blocks": lambda seed: BlockLowRank.random(16, 16, 4, 2, seed),
    "train": lambda seed: BlockTensorTrain.random((2, 8, 4, 4), 2, seed),
    "levels": lambda seed: as_mlbtc(levels(seed)),
    "train as contraction": lambda seed: as_mlbtc(DRAWS["train"](seed)),
}
FANS = {
    "low rank": {"L": (16, 16), "R": (16, 16)},
    "blocks": {"L": (4, 8), "R": (4, 8)},
    "train": {"L": (8, 2), "R": (4, 64)},
    "levels": {"L.0": (16, 8), "R.0": (16, 8), "L.1": (4, 4), "R.1": (4, 4)},
    "train as contraction": {"L.0": (8, 2), "R.0": (4, 64)},
}


@pytest.mark.parametrize("name", DRAWS)
def test_fans_count_what_a_block_takes_in_and_all_heads_give_out(name):
    weight = BilinearAttention(16, 4, DRAWS[name]).scores[0]
    assert fans(weight, 4) == FANS[name]
    assert set(fans(weight)) == {parameter for parameter, _ in weight.named_parameters()}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_start_is_seeded_and_has_its_variance(name, dtype):
    layers = [initialise(BilinearAttention(16, 4, DRAWS[name]).to(dtype), seed) for seed in (1, 1, 2)]
    assert layers[0] is initialise(layers[0], 1)
    first, same, other = (list(layer.parameters()) for layer in layers)
    assert all(torch.equal(p, q) for p, q in zip(first, same, strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(first, other, strict=True))
    for parameter, fan in FANS[name].items():
        drawn = torch.cat([weight.get_parameter(parameter).flatten() for layer in layers for weight in layer.scores])
        assert drawn.square().mean().item() == pytest.approx(init_std(Fan(*fan)) ** 2, rel=0.3)
    for linear in (layers[0].values, layers[0].out):
        assert linear.weight.square().mean().item() == pytest.approx(1 / 16, rel=0.3)


@pytest.mark.parametrize("name", DRAWS)
def test_every_parameter_has_one_rate(name):
    layer = BilinearAttention(16, 4, DRAWS[name])
    groups = learning_rates(layer, 0.01, 32)
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in layer.parameters())
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    for weight in layer.scores:
        for parameter, (inputs, _) in FANS[name].items():
            assert rate[id(weight.get_parameter(parameter))] == 0.01 * 32 / inputs
    assert rate[id(layer.values.weight)] == rate[id(layer.out.weight)] == 0.01 * 2
    assert len({group["lr"] for group in groups}) == len(groups)
    torch.optim.AdamW(groups)


def test_shared_keys_are_counted_once_and_give_out_less():
    layer = BilinearAttention(16, 4, DRAWS["train"], kv_heads=2)
    groups = learning_rates(layer, 0.01, 16)
    assert sum(len(group["params"]) for group in groups) == len(list(layer.parameters())) == 4 + 2 + 2
    wide = BilinearAttention(64, 4, lambda seed: LowRank.random(64, 64, 4, seed), kv_heads=1)
    initialise(wide, 0)
    assert wide.scores[0].R.square().mean().item() == pytest.approx(init_std(Fan(64, 4)) ** 2, rel=0.3)
    assert wide.scores[0].L.square().mean().item() == pytest.approx(init_std(Fan(64, 16)) ** 2, rel=0.3)


def test_structured_values_are_trains():
    layer = BilinearAttention(16, 4, None, DRAWS["train"])
    rates = {id(p): group["lr"] for group in learning_rates(layer, 0.01, 16) for p in group["params"]}
    assert len(rates) == 16
    assert {rates[id(weight.R)] for weight in layer.values} == {0.01 * 4}
    with pytest.raises(TypeError, match="BilinearAttention: no rule for structured values of LowRank"):
        initialise(BilinearAttention(16, 4, None, lambda seed: LowRank.random(16, 16, 4, seed)), 0)


def test_a_clamp_has_the_gradient_of_its_rms():
    W = random_tensors([(4, 3)], grad=True)[0]
    assert torch.autograd.gradcheck(lambda W: rms_clamp(W, Fan(4, 3)), (W,))
    zero = torch.zeros(3, 3, dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(rms_clamp(zero, Fan(4, 3)).sum(), zero)
    assert_close(gradient, torch.ones_like(zero))


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", DRAWS)
def test_a_clamped_layer_is_one_with_clamped_factors(name, kv_heads):
    torch.manual_seed(0)
    layer, plain = (BilinearAttention(16, 4, DRAWS[name], kv_heads=kv_heads).double() for _ in range(2))
    plain.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for factor in layer.scores.parameters():
            factor.mul_(3)
        done = set()
        for weight, other in zip(plain.scores, layer.scores, strict=True):
            for parameter, fan in fans(weight, 4).items():
                fan = fan if parameter.startswith("L") else fans(weight, kv_heads)[parameter]
                if id(weight.get_parameter(parameter)) not in done:
                    weight.get_parameter(parameter).copy_(rms_clamp(other.get_parameter(parameter), fan))
                done.add(id(weight.get_parameter(parameter)))
    assert clamp(layer) is layer
    (x,) = random_tensors([(7, 16)])
    assert_close(layer(x), plain(x))
    assert any(isinstance(module, RMSClamp) for module in layer.modules())
    layer(x).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


class Scaled(nn.Module):
    """Every coordinate times one number of its own."""

    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.scale * x


def test_the_check_measures_the_change_of_the_outputs():
    """One step of Adam moves every number by its rate, whatever the gradient is."""

    def build(dim):
        layer = Scaled(dim)
        return layer, [{"params": layer.parameters(), "lr": 0.1 * dim / 64}]

    changes = coordinate_check(build, (64, 256), steps=1)
    assert list(changes) == [64, 256]
    assert 0.09 < changes[64] < 0.11
    assert 3.6 < changes[256] / changes[64] < 4.4
    assert coordinate_check(build, (64, 256), steps=1) == changes
    assert coordinate_check(build, (64,), steps=1, seed=1)[64] != changes[64]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fans(levels(0)), TypeError, r"fans: MultiLevelLowRank holds its levels in one parameter, use"),
        (lambda: fans(BlockDiagonal.random(4, 4, 2, 0)), TypeError, "fans: no rule for BlockDiagonal"),
        (lambda: initialise(BilinearAttention(16, 4, levels), 0), TypeError, "fans: MultiLevelLowRank holds its"),
        (lambda: clamp(BilinearAttention(16, 4, levels)), TypeError, "fans: MultiLevelLowRank holds its levels"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()
