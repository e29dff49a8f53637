"""The Python half of the weight explorer: its weights against plain products, costs and ranks, and what it refuses."""

import base64
import itertools
import math

import numpy as np
import pytest
import torch

from smalearn.course.widgets.weight_explorer import (
    BLOCKS,
    DIMS,
    FAMILIES,
    MAX_RANK,
    WeightExplorer,
)
from smalearn.testing import assert_close

SIZES = [(8, 1, 1), (16, 4, 2), (16, 16, 1), (8, 32, 3), (32, 2, 4)]


def numbers(explorer):
    """What the browser gets, one after the other."""
    return np.frombuffer(base64.b64decode(explorer._draws), "<f4").astype(float)


def matrix(explorer):
    """M from these numbers, in loops over blocks."""
    given, D, r = numbers(explorer), explorer.dim, explorer.rank
    p = min(explorer.blocks, D)
    a = D // p
    start = 0

    def take(*shape):
        nonlocal start
        start += math.prod(shape)
        return given[start - math.prod(shape) : start].reshape(shape)

    M = np.zeros((D, D))
    if explorer.family == "low rank":
        L, R = take(D, r), take(D, r)
        M = L @ R.T
    elif explorer.family == "block diagonal":
        W = take(p, a, a)
        for k in range(p):
            M[k * a : (k + 1) * a, k * a : (k + 1) * a] = W[k]
    elif explorer.family == "block low rank":
        L, R = take(p, a, r), take(p, a, r)
        for k in range(p):
            M[k * a : (k + 1) * a, k * a : (k + 1) * a] = L[k] @ R[k].T
    elif explorer.family == "multi-level":
        count = int(math.log2(p)) + 1
        L, R = take(D, r * count), take(D, r * count)
        for i in range(count):
            for k in range(2**i):
                rows = slice(k * D // 2**i, (k + 1) * D // 2**i)
                M[rows, rows] += L[rows, i * r : (i + 1) * r] @ R[rows, i * r : (i + 1) * r].T
    elif explorer.family == "block tensor train":
        L, R = take(p, a, p, r), take(p, a, p, r)
        for j, k in itertools.product(range(p), range(p)):
            M[j::p, k * a : (k + 1) * a] = L[j, :, k] @ R[k, :, j].T
    elif explorer.family == "Kronecker":
        M = np.kron(take(p, p), take(a, a))
    else:
        M = np.eye(D)
        for i in range(int(math.log2(D))):
            M = butterfly_round(take(D // 2, 2, 2), D, 2**i) @ M
    return torch.from_numpy(M)


def butterfly_round(pairs, D, width):
    """Features that differ in one bit meet."""
    F = np.zeros((D, D))
    for number, pair in enumerate(pairs):
        low = number // width * 2 * width + number % width
        F[np.ix_([low, low + width], [low, low + width])] = pair
    return F


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "blocks", "rank"), SIZES)
def test_matrix_is_made_of_what_the_browser_gets(family, dim, blocks, rank):
    explorer = WeightExplorer(family, dim, blocks, rank)
    assert_close(explorer.matrix, matrix(explorer))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_has_the_rank_of_its_bound(family):
    explorer = WeightExplorer(family)
    for explorer.dim, explorer.blocks, explorer.rank in itertools.product(DIMS, BLOCKS, range(1, MAX_RANK + 1)):
        assert explorer.measured_rank == explorer.weight.rank_bound


def test_a_train_leads_from_low_rank_to_every_matrix():
    explorer = WeightExplorer("block tensor train", 16, 1, 1)
    found = []
    for p in BLOCKS[:5]:
        explorer.blocks = p
        found.append((explorer.weight.num_parameters, explorer.measured_rank))
    assert found == [(32, 1), (64, 4), (128, 16), (256, 16), (512, 16)]


def test_numbers_of_the_factors_are_sent_in_few_bytes():
    assert len(WeightExplorer()._draws) < 45_000
