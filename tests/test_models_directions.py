"""Hydra against a loop over pairs, and what only it sees: the future."""

import pytest
import torch
from comparing import same_function
from torch.nn import functional

from smalearn import ShapeError
from smalearn.models import Block, Hydra, SequenceModel
from smalearn.testing import assert_close, random_tensors


def build(dim=12, **options):
    torch.manual_seed(0)
    mixer = Hydra(dim, **options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return mixer


def loop(block, x):
    """Every pair of tokens alone, with the formulas of its class."""
    T, (heads,), P, N = len(x), block.D.shape, block.head_dim, block.state
    inner, rows = heads * P, x @ block.in_proj.weight.T
    z, xBC, dt, own = rows.split([inner, inner + 4 * N, 2 * heads, heads], -1)
    taps, around = block.conv.weight[:, 0], block.conv.weight.shape[-1] // 2
    mixed = torch.stack(
        [
            block.conv.bias
            + sum(taps[:, around + k] * xBC[t + k] for k in range(-around, around + 1) if 0 <= t + k < T)
            for t in range(T)
        ]
    )
    X, B, C = functional.silu(mixed).split([inner, 2 * N, 2 * N], -1)
    dt, outputs = torch.log1p(torch.exp(dt + block.dt_bias)), []
    for t in range(T):
        y = []
        for head in range(heads):
            values = X[:, head * P :][:, :P]
            total = (own[t, head] + block.D[head]) * values[t]
            for s in range(T):
                way, between = (0, range(s + 1, t + 1)) if s < t else (1, range(t, s))
                if s != t:
                    steps = dt[:, way * heads + head]
                    decay = torch.exp(-torch.exp(block.A_log[head]) * sum(steps[k] for k in between))
                    score = C[t, way * N :][:N] @ B[s, way * N :][:N]
                    total = total + decay * score * steps[s] * values[s]
            y.append(total)
        u = torch.cat(y) * functional.silu(z[t])
        outputs.append(block.out_proj.weight @ (block.norm.weight * u / (u.square().mean() + 1e-5).sqrt()))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    "options", [{"state": 5, "head_dim": 4}, {"state": 3, "head_dim": 6, "expand": 1, "conv_len": 1}]
)
@pytest.mark.parametrize("length", [2, 9])
def test_it_is_the_loop(options, length):
    mixer = build(**options)
    (x,) = random_tensors([(length, 12)], seed=1)
    same_function(mixer(x.requires_grad_()), loop(mixer, x), [x, *mixer.parameters()])


def test_in_a_model_and_with_leading_axes():
    model = SequenceModel(7, [Block(build(state=3, head_dim=4)) for _ in range(2)]).double()
    tokens = torch.arange(12).reshape(2, 6) % 7
    assert_close(model(tokens)[1], model(tokens[1]))
    assert model(tokens[:, :0]).shape == (2, 0, 7)
    mixer, (x,) = build(state=3, head_dim=4), random_tensors([(1, 12)])
    assert_close(mixer(x), loop(mixer, x))


def test_errors():
    mixer = build(state=3, head_dim=4)
    with pytest.raises(ShapeError, match=r"Hydra.forward: axis 'd'"):
        mixer(torch.zeros(5, 11).double())
    with pytest.raises(ValueError, match=r"Hydra: conv_len must be odd, got 4"):
        Hydra(12, head_dim=4, conv_len=4)
