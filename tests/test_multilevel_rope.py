"""RoPE at positions that are given, and far ones; what a split must not cut.

At the places in a sequence it is asked in `test_conformance`.
"""

import math

import oracles_mixing as oracles
import pytest
import torch

from smalearn import ShapeError
from smalearn.multilevel import rope, rope_levels
from smalearn.testing import assert_close, random_tensors


@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_leading_axes_have_their_own_positions_or_share_them(leading):
    (x,) = random_tensors([(*leading, 5, 6)])
    shared = torch.tensor([3, 1, -1000, 20_000, 5])
    own = torch.arange(math.prod(leading) * 5).reshape(*leading, 5)
    for positions in (shared, own):
        assert_close(rope(x, positions), oracles.rope(x, positions))
        assert_close(rope(x, positions, base=50.0), oracles.rope(x, positions, 50.0))


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
    assert_close(rope(x, positions), oracles.rope(x.double(), positions))


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
