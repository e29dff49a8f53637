"""Window attention against the dense masked softmax; what it computes; how far a stack of windows sees."""

import pytest
import torch
from oracles_multilevel import windowed

from smalearn import ShapeError
from smalearn.course.timing import saved_bytes
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


def test_no_square_of_scores_is_kept_and_no_key_is_copied_for_the_heads_of_a_group():
    """What autograd keeps grows with the heads by their queries, and twice by 16 + 2·16 scores for each token."""

    def kept(heads):
        Q, K, V = random_tensors([(heads, 512, 32), (1, 512, 32), (1, 512, 32)], grad=True)
        return saved_bytes(lambda: window_attention(Q, K, V, 16)) // 8

    assert 7 * 512 * 32 < kept(8) - kept(1) <= 7 * 512 * (32 + 2 * 48 + 8)  # with their mask, a byte each


def test_large_scores():
    Q, K, V = random_tensors([(100, 3)] * 3, dtype=torch.float32)
    Q = 1e4 * Q
    Y = window_attention(Q, K, V, 7, causal=True)
    assert_close(Y, windowed(Q, K, V, 7, True), 1e-5)
    assert Y.isfinite().all()
