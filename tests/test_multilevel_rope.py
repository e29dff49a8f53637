"""RoPE against a loop over complex numbers; what a rotation keeps, and what a split must not cut."""

import cmath
import math

import pytest
import torch

from smalearn import ShapeError
from smalearn.multilevel import rope, rope_levels
from smalearn.testing import assert_close, random_tensors


def rope_loop(x, positions, base=10000.0):
    """Each pair of features as one complex number, turned."""
    y = torch.empty_like(x)
    features = x.shape[-1]
    for t, position in enumerate(positions):
        for k in range(features // 2):
            rotation = cmath.exp(1j * float(position) * base ** (-2 * k / features))
            z = complex(x[t, 2 * k], x[t, 2 * k + 1]) * rotation
            y[t, 2 * k], y[t, 2 * k + 1] = z.real, z.imag
    return y


@pytest.mark.parametrize("length", [0, 1, 2, 7, 33])
@pytest.mark.parametrize("features", [2, 8])
def test_rope_is_the_loop(length, features):
    (x,) = random_tensors([(length, features)])
    assert_close(rope(x), rope_loop(x, range(length)))
    positions = torch.randint(-1000, 20000, (length,), generator=torch.Generator().manual_seed(0))
    assert_close(rope(x, positions, base=50.0), rope_loop(x, positions, 50.0))


@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_leading_axes_have_their_own_positions_or_share_them(leading):
    (x,) = random_tensors([(*leading, 5, 6)])
    shared = torch.tensor([3, 1, 4, 1, 5])
    own = torch.arange(math.prod(leading) * 5).reshape(*leading, 5)
    for rotated, positions in ((rope(x, shared), shared.expand(*leading, 5)), (rope(x, own), own)):
        pairs = zip(x.reshape(-1, 5, 6), positions.reshape(-1, 5), strict=True)
        assert_close(rotated.reshape(-1, 5, 6), torch.stack([rope_loop(*pair) for pair in pairs]))


def test_gradient_is_that_of_the_loop():
    x, weights = random_tensors([(7, 6)] * 2)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((rope(leaf) * weights).sum(), leaf)
    assert_close(gradient, rope_loop(weights, [-t for t in range(7)]))  # the transpose of a rotation turns back
    assert torch.autograd.gradcheck(lambda x: rope_levels(x, (4, 0, 2)), leaf)


@pytest.mark.parametrize("ranks", [(6,), (4, 2), (2, 0, 4), (0, 6)])
def test_levels_are_rotated_alone(ranks):
    (x,) = random_tensors([(2, 9, 6)])
    expected = torch.cat([rope(part) for part in x.split(ranks, -1)], -1)
    assert torch.equal(rope_levels(x, ranks), expected)
    positions = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2, 100])
    expected = torch.cat([rope(part, positions, 77.0) for part in x.split(ranks, -1)], -1)
    assert torch.equal(rope_levels(x, ranks, positions, 77.0), expected)


def test_far_positions_are_exact_in_float32():
    (x,) = random_tensors([(4, 8)], dtype=torch.float32)
    positions = torch.tensor([10**5, 10**6, 10**7, 2**30 + 1])
    assert rope(x, positions).dtype == torch.float32
    assert_close(rope(x, positions), rope_loop(x.double(), positions))


def test_half_precision_is_rounded_once():
    (x,) = random_tensors([(33, 8)], dtype=torch.bfloat16)
    assert torch.equal(rope(x), rope(x.float()).bfloat16())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: rope(x[:, :5]), ShapeError, "^rope: axis 'n' of x is 5, expected an even number"),
        (lambda x: rope(x, base=0.0), ValueError, r"^rope: base must be positive, got 0\.0"),
        (lambda x: rope_levels(x, (3, 1, 2)), ValueError, r"^rope_levels: ranks must be even, got 3\|1\|2: an odd"),
        (lambda x: rope_levels(x, (4, 4)), ShapeError, r"^rope_levels: axis 'n' of x is 6, expected 8, the sum of"),
        (lambda x: rope_levels(x, (6,), base=-1), ValueError, "^rope_levels: base must be positive, got -1"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.zeros(5, 6))


def test_compiled_the_table_is_one_operation():
    """Inductor would compute its cosines again for every sequence and head."""
    targets = []

    def note(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    x = torch.randn(2, 3, 5, 4)
    torch._dynamo.reset()
    assert_close(torch.compile(rope, backend=note, fullgraph=True)(x), rope(x), 1e-6)
    assert "smalearn.cos_and_sin.default" in targets
    assert not {"cos", "sin"} & set(targets)
