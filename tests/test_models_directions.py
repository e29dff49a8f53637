"""Hydra against a loop over pairs, and what only it sees: the future."""

import pytest
import torch
from torch.nn import functional

from smalearn import ShapeError
from smalearn.models import Block, Hydra, SequenceModel
from smalearn.ssm import Quasiseparable, Semiseparable
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
    inputs = [x.requires_grad_(), *mixer.parameters()]
    Y, expected = mixer(x), loop(mixer, x)
    assert_close(Y, expected)
    for ours, theirs in zip(
        torch.autograd.grad(Y.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs, materialize_grads=True, allow_unused=True),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_its_matrix_is_quasiseparable():
    """The response of one head to its values, with the gate, norm and projections aside."""
    mixer = build(state=3, head_dim=12, expand=1)
    (x,) = random_tensors([(20, 12)], seed=1)
    widths = mixer.widths
    _, xBC, dt, own = mixer.in_proj(x).split(widths, -1)
    X, B, C = mixer._convolve(xBC).split(mixer.parts, -1)
    steps = functional.softplus(dt + mixer.dt_bias)
    gates = torch.exp(-mixer.A_log.exp() * steps)
    lower = Semiseparable(gates[:, 0], steps[:, :1] * B[:, :3], C[:, :3])
    # above, s > t: C_t · B_s times the decays of t ... s - 1, so the transpose has B and C exchanged
    upper = Semiseparable(gates[:, 1].roll(1), C[:, 3:], steps[:, 1:] * B[:, 3:])
    M = Quasiseparable(lower, own[:, 0] + mixer.D, upper)
    U = M @ X * functional.silu(mixer.in_proj(x)[:, :12])
    assert_close(mixer(x), mixer.out_proj(functional.rms_norm(U, (12,), eps=1e-5) * mixer.norm.weight))


def test_a_token_sees_what_follows():
    mixer = build(state=3, head_dim=4)
    (x,) = random_tensors([(30, 12)], seed=1)
    changed = x.clone()
    changed[25] += 1
    assert (mixer(changed)[0] - mixer(x)[0]).abs().max() > 1e-9


def test_in_a_model_and_with_leading_axes():
    model = SequenceModel(7, [Block(build(state=3, head_dim=4)) for _ in range(2)]).double()
    tokens = torch.arange(12).reshape(2, 6) % 7
    assert_close(model(tokens)[1], model(tokens[1]))
    assert model(tokens[:, :0]).shape == (2, 0, 7)
    mixer, (x,) = build(state=3, head_dim=4), random_tensors([(1, 12)])
    assert_close(mixer(x), loop(mixer, x))


def test_errors():
    mixer = build(state=3, head_dim=4)
    with pytest.raises(ShapeError, match=r"Hydra.forward: axis 'd' of x is 11, expected 12"):
        mixer(torch.zeros(5, 11).double())
    with pytest.raises(ValueError, match=r"Hydra: conv_len must be odd, got 4"):
        Hydra(12, head_dim=4, conv_len=4)
