"""The claims of chapter 11 on what levels cost, and on positions, in the order of claims.toml."""

import itertools

import pytest
import torch
from cells import shown
from counting import counted, slope
from oracles_multilevel import loop

from ch11.test_claims import EQUAL, F64, PAPER, normal
from smalearn.course.ch11.costs import causal_macs, kept_keys
from smalearn.course.ch11.rotations import rotate_levels
from smalearn.fast import executed_macs, multilevel_attention
from smalearn.fast.cpu import squares
from smalearn.multilevel import (
    FullCache,
    KeyCache,
    batched_scores,
    halving_blocks,
    key_numbers,
    live_key_numbers,
    multilevel_scores,
    parse_ranks,
    rope,
    rope_levels,
    score_macs,
)
from smalearn.testing import assert_close, random_tensors

SHARES = {
    "32|8|6|4|4|4|4|2": 0.601,
    "8|8|8|8|8|8|8|8": 0.249,
    "48|16": 0.875,
    "40|16|4|4": 0.773,
    "32|10|8|8|4|2": 0.630,
}


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.claim("003:mlr-flops", "smalearn.multilevel.levels.score_macs")
@pytest.mark.claim("003:mlr-flops", "smalearn.course.ch11.costs.causal_macs")
def test_what_scores_cost(name):
    ranks = parse_ranks(name)
    blocks, share = halving_blocks(1024, len(ranks)), sum(rank / 2**level for level, rank in enumerate(ranks))
    assert share / 64 == pytest.approx(SHARES[name], abs=5e-4)
    assert score_macs(1024, ranks, blocks, causal=False) == 1024**2 * share
    causal = score_macs(1024, ranks, blocks)
    assert causal == causal_macs(1024, ranks, blocks) == (1024**2 * share + 1024 * 64) / 2
    if name == "32|8|6|4|4|4|4|2":
        assert share == pytest.approx(38.453, abs=5e-4)
        assert causal / (64 * 1024 * 1025 / 2) == pytest.approx(0.6012, abs=5e-5)
        assert (share + 64) / 128 == pytest.approx(0.80, abs=5e-3)  # with the values
    every = [256, 512, 1024, 2048]
    growth = slope(lambda T: score_macs(T, ranks, halving_blocks(T, len(ranks)), causal=False), *every)
    assert growth == pytest.approx(2, abs=1e-12)


@pytest.mark.claim("003:mlr-flops", "smalearn.multilevel.levels.score_macs")
@pytest.mark.claim("003:mlr-flops", "smalearn.fast.multilevel.executed_macs")
def test_multiply_adds_that_are_really_executed():
    T, V = 256, normal((256, 0))[0]
    for ranks in ((4, 3, 2, 2), (2,) * 4):
        blocks = halving_blocks(T, 4)
        Q, K = normal((T, sum(ranks)), (T, sum(ranks)))
        counter, _ = counted(batched_scores, Q, K, ranks, blocks)
        assert counter.products == score_macs(T, ranks, blocks, causal=False)
        counter, _ = counted(squares.forward, [Q, K, V, None], ranks, blocks, True, False)  # an operation shows none
        assert counter.products == executed_macs(T, ranks, blocks)
        assert score_macs(T, ranks, blocks) == sum(
            rank
            for rank, size in zip(ranks, blocks, strict=True)
            for i in range(T)
            for j in range(i // size * size, i + 1)
        )


@pytest.mark.parametrize(
    ("ranks", "block_lens", "T"), [((4, 2, 1, 1), (32, 16, 8, 4), 29), ((3, 0, 2), (30, 15, 5), 30)]
)
@pytest.mark.claim("003:key-cache", "smalearn.multilevel.cache.KeyCache.read")
@pytest.mark.claim("003:key-cache", "smalearn.course.ch11.costs.kept_keys")
def test_decoding_forgets_keys_and_changes_no_score(ranks, block_lens, T):
    features = sum(ranks)
    Q, K, V = normal((T, features), (T, features), (T, 3))
    expected = loop(Q, K, V, ranks, block_lens)
    cache = KeyCache((), ranks, block_lens, head_dim=3, like=Q)
    for t in range(T):
        y, cache = cache.read(Q[t : t + 1], K[t : t + 1], V[t : t + 1])
        assert_close(y[0], expected[t])
        needed = sum(r for r, b in zip(ranks, block_lens, strict=True) for j in range(t + 1) if j // b == t // b)
        assert cache.key_numbers == kept_keys(t + 1, ranks, block_lens) == needed


@pytest.mark.claim("003:key-cache", "smalearn.multilevel.levels.key_numbers")
@pytest.mark.claim("003:key-cache", "smalearn.multilevel.levels.live_key_numbers")
def test_how_large_the_cache_becomes():
    T, blocks = 1024, halving_blocks(1024, 8)
    K = torch.zeros(T, 64)
    full = FullCache((), 64, T, head_dim=64)
    assert full.key_bytes == 4 * 65_536
    for ranks, numbers, both in ((PAPER, 39_376, 0.80), (EQUAL, 16_320, 0.62), ((64,), 65_536, 1)):
        cache, peak = KeyCache((), ranks, blocks[: len(ranks)], head_dim=64), 0
        for t in range(T):
            cache = cache.append(K[t : t + 1], K[t : t + 1])
            assert cache.key_numbers == live_key_numbers(t + 1, ranks, blocks[: len(ranks)])
            peak = max(peak, cache.key_numbers)
        assert key_numbers(T, ranks, blocks[: len(ranks)]) == peak == numbers
        assert cache.key_bytes == 4 * numbers
        assert cache.value_bytes == full.value_bytes
        assert cache.nbytes / full.nbytes == pytest.approx(both, abs=5e-3)
    assert 65_536 / key_numbers(T, EQUAL, blocks) == pytest.approx(8 / (2 - 2**-7), rel=1e-12)
    assert f"{65_536 / key_numbers(T, EQUAL, blocks):.3f}" == "4.016"


@pytest.mark.claim("003:gqa-mlr", "smalearn.fast.multilevel.multilevel_attention")
@pytest.mark.claim("003:gqa-mlr", "smalearn.multilevel.cache.KeyCache.read")
def test_grouped_queries_and_levels_save_together():
    heads, groups, T, ranks, block_lens = 6, 2, 16, (4, 2, 1, 1), (16, 8, 4, 2)
    Q, K, V = normal((groups, 3, T, 8), (groups, 1, T, 8), (groups, 1, T, 3))
    repeated = multilevel_attention(Q, K.expand_as(Q), V.expand(groups, 3, T, 3), ranks, block_lens)
    grouped = multilevel_attention(Q, K, V, ranks, block_lens)
    assert_close(grouped, repeated)
    for g, h in itertools.product(range(groups), range(3)):
        assert_close(grouped[g, h], loop(Q[g, h], K[g, 0], V[g, 0], ranks, block_lens))
    Y, cache = KeyCache((groups, 1), ranks, block_lens, head_dim=3, like=Q).read(Q, K, V)
    assert_close(Y, grouped)
    standard = FullCache((heads,), 8, T, head_dim=3, like=Q)
    assert standard.key_bytes / cache.key_bytes == heads / groups * (8 * T / key_numbers(T, ranks, block_lens))


# ------------------------------------------------------------------------------------------------------- positions


@pytest.mark.claim("003:rope", "smalearn.multilevel.rope.rope")
def test_rotated_scores_depend_on_the_difference_of_positions():
    q, k = normal((1, 6), (1, 6))
    for i, j, shift in ((0, 0, 3.0), (5, 2, 11.0), (2, 9, 1000.0)):
        places = [torch.tensor([float(place)]) for place in (i, j, i + shift, j + shift)]
        here, there = (rope(q, a) @ rope(k, b).mT for a, b in (places[:2], places[2:]))
        assert_close(here, there)
        turned = torch.zeros(1, 1, dtype=F64)
        for n in range(3):
            a, b = (torch.complex(x[0, 2 * n], x[0, 2 * n + 1]) for x in (q, k))
            angle = torch.tensor((j - i) * 10000 ** (-2 * n / 6), dtype=F64)
            turned += (a.conj() * b * torch.polar(torch.ones_like(angle), angle)).real
        assert_close(here, turned)


def defect(rotated, ranks):
    """The chapter's: by how much scores of constant tokens differ where i - j and d are the same."""
    space = {"random_tensors": random_tensors, "halving_blocks": halving_blocks, "multilevel_scores": multilevel_scores}
    return shown("11", "rope-defect", **space)["defect"](rotated, ranks)


@pytest.mark.claim("003:rope", "smalearn.multilevel.rope.rope_levels")
@pytest.mark.claim("003:rope", "smalearn.course.ch11.rotations.rotate_levels")
def test_levels_and_rotations_are_compatible_where_no_pair_is_cut():
    (x,) = normal((16, 8))
    for ranks in ((4, 2, 2), (2, 4, 2), (2, 0, 6), (8,)):
        alone = torch.cat([rope(part) if part.shape[1] else part for part in x.split(ranks, 1)], 1)
        assert_close(rope_levels(x, ranks), alone)
        assert_close(rotate_levels(x, ranks, torch.arange(16, dtype=F64)), alone)
        assert defect(lambda x, ranks=ranks: rope_levels(x, ranks), ranks) < 1e-12
    halves = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    assert defect(rope, (4, 2, 2)) < 1e-12
    assert defect(rope, (3, 3, 2)) > 0.1
    assert defect(lambda x: rope(x[:, halves])[:, halves.argsort()], (4, 2, 2)) > 0.1
    with pytest.raises(ValueError, match=r"ranks must be even, got 3\|3\|2"):
        rope_levels(x, (3, 3, 2))
