"""Numbers of blocks, multiply-adds and keys of multi-level scores, and what does not fit.

The scores against a loop over pairs are claims of chapter 11.
"""

import pytest
import torch

from smalearn import ShapeError
from smalearn.multilevel import batched_scores, halving_blocks, level_counts, multilevel_scores, parse_ranks, score_macs
from smalearn.testing import random_tensors


def test_numbers_of_blocks_are_as_good_as_their_lengths():
    ranks = (2, 1, 2)
    Q, K = random_tensors([(2, 9, 5), (2, 9, 5)])
    lengths = [torch.arange(9) // size for size in (16, 4, 2)]
    assert torch.equal(multilevel_scores(Q, K, ranks, lengths), multilevel_scores(Q, K, ranks, (16, 4, 2)))
    assert torch.equal(multilevel_scores(Q, K, ranks, (16, lengths[1], 2)), multilevel_scores(Q, K, ranks, (16, 4, 2)))


def test_macs_of_the_scores():
    for length in (1, 5, 24, 29):
        d = level_counts(length, (32, 8, 4))
        ends = torch.tensor([0, 3, 3, 5])
        assert score_macs(length, (3, 0, 2), (32, 8, 4), causal=False) == ends[d].sum()
        assert score_macs(length, (3, 0, 2), (32, 8, 4)) == ends[d].tril().sum()


Q, K = random_tensors([(9, 4)] * 2)
crossing, SHORT = torch.arange(9) // 2, torch.arange(8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: multilevel_scores(Q, K, (2, 1), (12, 3)), ShapeError, "multilevel_scores: axis 'n' of Q and K must"),
        (lambda: batched_scores(Q, K, (2, 1), (12, 3)), ShapeError, "batched_scores: axis 'n' of Q and K must be"),
        (lambda: multilevel_scores(Q, K, (2, 2), (10, 4)), ValueError, r"multilevel_scores: block_lens\[1\] must div"),
        (lambda: batched_scores(Q, K, (2, 2), (10, 4)), ValueError, r"batched_scores: block_lens\[1\] must divide"),
        (lambda: level_counts(9, (9, SHORT)), ShapeError, r"level_counts: block_lens\[1\] must have shape"),
        (lambda: multilevel_scores(Q, K, (2, 2), (9, Q[:, 0])), ValueError, r".*block_lens\[1\] must hold integers"),
        (lambda: level_counts(9, (9, 3, crossing)), ValueError, r"level_counts: block_lens\[2\] must nest in block"),
        (lambda: multilevel_scores(Q, K, (2, 2), (crossing, 9)), ValueError, r".*block_lens\[0\] must hold .*, got 5"),
        (lambda: level_counts(9, ()), ValueError, "level_counts: block_lens must have at least one level, got none"),
        (lambda: halving_blocks(7, 4), ValueError, "halving_blocks: 4 levels need context ≥ 8, a token a block, got 7"),
    ],
)
def test_what_does_not_fit_is_said(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.parametrize("text", ["", "8|", "8|-1", "8|x", "8,4", "4|²"])
def test_messages_of_parse_ranks(text):
    with pytest.raises(ValueError, match=r"^parse_ranks: expected integers ≥ 0 separated by '\|', got '"):
        parse_ranks(text)
