"""Window attention against the dense masked softmax; what it computes; how far a stack of windows sees."""

import pytest
import torch
from comparing import same_function
from oracles_multilevel import windowed

from smalearn import ShapeError
from smalearn.kernel_attention import softmax_attention
from smalearn.masks import DilatedMask
from smalearn.multilevel import window_attention
from smalearn.testing import assert_close, random_tensors


@pytest.mark.claim("003:local-global", "smalearn.multilevel.window.window_attention")
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_a_dilated_window_is_a_window_over_every_few_tokens(dilation):
    tensors = random_tensors([(2, 30, 3)] * 3)
    apart = (x.unflatten(-2, (-1, dilation)).movedim(-2, -3) for x in tensors)
    Y = window_attention(*apart, 2).movedim(-3, -2).flatten(-3, -2)
    assert_close(Y, softmax_attention(*tensors, DilatedMask(30, 30, 2, dilation)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "queries"), [(3, 1), (3, 30), (50, 7), (0, 2), (4, 0), (70, 150)])
def test_keys_since_a_number(window, queries, causal):
    length = max(30, queries)
    Q, K, V = random_tensors([(2, length, 3)] * 3)
    last, own = Q[:, length - queries :], torch.arange(length - queries, length)
    for since in (0 * own, own, own // 8 * 8, torch.stack([own - 2, own - 5]), own.int() - 99):
        expected = windowed(last, K, V, window, causal, since)
        assert_close(window_attention(last, K, V, window, causal, since), expected)


def test_a_query_sees_itself():
    Q, K, V = random_tensors([(9, 3)] * 3)
    for since, error, message in (
        (torch.arange(1, 10), ValueError, "since must be at most the number of the query's own key"),
        (torch.zeros(9), ValueError, "since must be int64 or int32"),
        (torch.zeros(8, dtype=torch.long), ShapeError, "axis 's' is 9 in Q but 8 in since"),
        (0, TypeError, "since must be a torch.Tensor"),
    ):
        with pytest.raises(error, match=f"^window_attention: {message}"):
            window_attention(Q, K, V, 3, True, since)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("window", "queries"), [(0, 13), (3, 13), (20, 13), (70, 150), (3, 4), (0, 0), (2, 0)])
def test_gradients(window, queries, causal):
    shapes = [(2, queries, 3), (2, max(queries, 9), 3), (2, max(queries, 9), 2)]
    inputs = random_tensors(shapes, grad=True)
    same_function(window_attention(*inputs, window, causal), windowed(*inputs, window, causal), inputs)


def test_no_square_of_scores_is_stored():
    """The largest tensor that autograd keeps has O(T·w) entries."""
    sizes = []
    Q, K, V = random_tensors([(4096, 4)] * 3, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (sizes.append(x.numel()), x)[1], lambda x: x):
        window_attention(Q, K, V, 8)
    assert max(sizes) <= 4096 * 3 * 8


def test_keys_are_not_copied_for_the_heads_of_a_group():
    """What autograd keeps, scores apart, grows with the heads of a group by their queries alone."""

    def kept(heads, scores):
        tensors = []
        Q, K, V = random_tensors([(heads, 512, 32), (1, 512, 32), (1, 512, 32)], grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (tensors.append(x), x)[1], lambda x: x):
            window_attention(Q, K, V, 16)
        return sum(x.numel() for x in tensors if x.is_floating_point() and x.numel() != scores * heads)

    assert 0 < kept(8, 512 * 48) - kept(1, 512 * 48) <= 7 * 512 * 32


def test_float32_and_large_scores():
    Q, K, V = random_tensors([(100, 3)] * 3, dtype=torch.float32)
    assert_close(window_attention(Q, K, V, 7), windowed(Q.double(), K.double(), V.double(), 7))
    Q = 1e4 * Q
    Y = window_attention(Q, K, V, 7, causal=True)
    assert_close(Y, windowed(Q, K, V, 7, True), 1e-5)
    assert Y.isfinite().all()
