"""The Python half of the chunk explorer: its factors against the algorithm, its costs against counting."""

import math
import random

import pytest
import torch

from smalearn.course.widgets import ChunkExplorer
from smalearn.course.widgets.chunk_explorer import best_chunk_len, chunked_macs
from smalearn.linear_attention import linear_attention_chunked
from smalearn.testing import assert_close, random_tensors


def test_factors_are_what_the_chunked_algorithm_computes():
    """The last output through the final state of each chunk before, the state of the last chunk left out."""
    explorer = ChunkExplorer(length=20, chunk_len=5, decay=0.7)
    left, centre, right = explorer.factors
    (X,) = random_tensors([(20, 3)])
    states = torch.stack([right[5 * c : 5 * c + 5].mT @ X[5 * c : 5 * c + 5] for c in range(4)])
    passed = torch.einsum("ij,jnp->inp", centre, states)
    inside = explorer.matrix * torch.block_diag(*[torch.ones(5, 5, dtype=torch.float64)] * 4)
    Y = inside @ X + torch.cat([left[5 * c : 5 * c + 5] @ passed[c] for c in range(4)])
    draw = explorer._draws[0]
    B, C, u = (torch.tensor(draw[name], dtype=torch.float64)[:20] for name in "BCu")
    assert_close(Y, linear_attention_chunked(C, B, X, u * math.log(0.7), chunk_len=5)[0])


def test_no_decay_and_a_reset_are_exact():
    explorer = ChunkExplorer(length=7, chunk_len=3, decay=1.0)
    B, C = (torch.tensor(explorer._draws[0][name], dtype=torch.float64)[:7] for name in "BC")
    assert_close(explorer.matrix, (C @ B.mT).tril())
    explorer.decay = 0
    assert_close(explorer.matrix, torch.diag((C * B).sum(1)))
    left, centre, _ = explorer.factors
    assert torch.equal(left, torch.zeros_like(left))
    assert torch.equal(centre, torch.eye(3, dtype=torch.float64).roll(1, 0).tril(-1))


def counted(T, Q, N, P):
    """Multiply-adds of every chunk's matrix products, chunk by chunk."""
    return [
        sum(Q * Q * N + Q * Q * P for _ in range(T // Q)),
        sum(Q * N * P for _ in range(T // Q)),
        sum(N * P for _ in range(T // Q)),
        sum(Q * N * P for _ in range(T // Q)),
    ]


@pytest.mark.parametrize("sizes", [(4096, 64, 64, 64), (60, 5, 3, 7), (8, 8, 2, 1), (12, 1, 4, 4), (1, 1, 1, 1)])
def test_costs_are_counted(sizes):
    assert chunked_macs(*sizes) == counted(*sizes)
    T, Q, N, P = sizes
    assert sum(chunked_macs(*sizes)) == T * Q * (N + P) + 2 * T * N * P + (T / Q) * N * P
    explorer = ChunkExplorer(length=T, chunk_len=Q, state=N, head_dim=P)
    assert explorer.costs == chunked_macs(*sizes)


def test_a_chunk_longer_than_the_sequence_costs_as_the_whole():
    assert chunked_macs(10, 64, 3, 2) == chunked_macs(10, 10, 3, 2)


def test_best_chunk_len_costs_least():
    chance = random.Random(0)
    for _ in range(60):
        T, N, P = chance.randint(1, 400), chance.randint(1, 512), chance.randint(1, 512)
        best = min(range(1, T + 1), key=lambda Q: sum(chunked_macs(T, Q, N, P)))
        assert best_chunk_len(T, N, P) == best == ChunkExplorer(length=T, state=N, head_dim=P).best
    assert {best_chunk_len(2**power, 64, 64) for power in range(3, 18)} == {6}
