"""Softmax attention by tiles: groups of heads, what is computed and kept, and what does not fit.

Values and gradients of equal heads are asked in `test_conformance`.
"""

import pytest
import torch
from comparing import same_function
from counting import Counter
from torch.autograd import grad

from smalearn import ShapeError
from smalearn.course.timing import saved_bytes
from smalearn.kernel_attention import softmax_attention
from smalearn.scores import tiled
from smalearn.scores.tiled import tiled_attention
from smalearn.testing import assert_close, pairwise, random_tensors

F64 = torch.float64
TILES = {
    "heads": [(3, 3, 3), (1, 3, 3), (4, 2, 2), (4, 4, 1), (1, 1, 1)],
    "length": [1, 33, 64, 131],
    "causal": [True, False],
}


@pytest.mark.parametrize(("heads", "length", "causal"), [case.values() for case in pairwise(TILES)], ids=str)
def test_tiles_are_softmax_attention(heads, length, causal):
    """In groups of heads, and where there are more keys than queries."""
    lengths = length, *[length if causal else length + 3] * 2
    Q, K, V = random_tensors([(2, *shape) for shape in zip(heads, lengths, (5, 5, 4), strict=True)], grad=True)
    K_, V_ = (F.repeat_interleave(max(heads) // F.shape[1], 1) for F in (K, V))
    L = torch.ones(length, length, dtype=F64).tril() if causal else None
    same_function(tiled_attention(Q, K, V, causal), softmax_attention(Q, K_, V_, L), (Q, K, V))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_sequences_one_by_one_are_the_same(heads, causal, monkeypatch):
    Q, K, V = random_tensors([(3, heads, 70, 5), (3, 2, 70, 5), (3, 2, 70, 4)], grad=True)
    together = tiled_attention(Q, K, V, causal)
    monkeypatch.setattr(tiled, "TOGETHER", 1)
    same_function(tiled_attention(Q, K, V, causal), together, (Q, K, V))


def test_half_of_the_square_is_never_computed():
    length, width = 16 * tiled.TILE, 3
    Q, K, V = random_tensors([(1, length, width), (1, length, width), (1, length, 2)])
    macs = []
    for causal in (True, False):
        with Counter() as calls:
            tiled._forward([Q[None], K[None], V[None]], (causal,), False)  # an operation shows none of it
        macs.append(calls.products)
    assert macs[1] == length**2 * (width + 2)
    assert macs[0] / macs[1] == (1 + 1 / 16) / 2


@pytest.mark.parametrize("width", [4, 5])  # of values: that of queries, or another
def test_a_backward_keeps_no_weights(width):
    Q, K, V = random_tensors([(2, 200, 4), (2, 200, 4), (2, 200, width)], dtype=torch.float32, grad=True)
    kept = saved_bytes(lambda: tiled_attention(Q, K, V))
    assert kept == 4 * (Q.numel() + K.numel() + 2 * V.numel())


def test_huge_logits_and_a_masked_future_of_infinities():
    Q, K, V = random_tensors([(1, 40, 4), (1, 40, 4), (1, 40, 3)], grad=True)
    Y = tiled_attention(1e4 * Q, K, V)
    assert_close(Y, softmax_attention(1e4 * Q, K, V, torch.ones(40, 40, dtype=F64).tril()))
    assert all(torch.isfinite(g).all() for g in grad(Y.square().sum(), (Q, K, V)))
    assert_close(Y[:, 0], V[:, 0])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 5, 3), (1, 6, 3), (1, 6, 2)), "as many keys as queries, got 6 and 5"),
        (((3, 5, 3), (2, 5, 3), (3, 5, 2)), "must divide those of Q, or Q have one, got 3, 2, 3 of Q, K, V"),
        (((2, 5, 3), (4, 5, 3), (4, 5, 2)), "must divide those of Q, or Q have one, got 2, 4, 4 of Q, K, V"),
    ],
)
def test_tiles_say_what_does_not_fit(shapes, message):
    with pytest.raises(ShapeError, match=message):
        tiled_attention(*random_tensors(shapes))
