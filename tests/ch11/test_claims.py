"""The claims of chapter 11, one test each or more, in the order of claims.toml; experiments stand elsewhere."""

import itertools
import math
import random

import matplotlib
import pytest
import torch
from cells import shown
from counting import counted, slope
from matplotlib import pyplot as plt
from oracles_mixing import attention, causal_softmax, matrix, softmax
from oracles_multilevel import loop, loop_scores
from torch.linalg import matrix_rank

from smalearn import ShapeError
from smalearn.course.ch11.blocks import block_level
from smalearn.course.ch11.parts import merge
from smalearn.course.ch11.scores import level_scores, shared_levels
from smalearn.course.plots.weights import gallery
from smalearn.data import zen_of_python
from smalearn.fast import multilevel_attention
from smalearn.multilevel import (
    batched_scores,
    halving_blocks,
    level_counts,
    multilevel_scores,
    parse_ranks,
    receptive_field,
    score_macs,
    window_attention,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

matplotlib.use("Agg")

F64 = torch.float64
PAPER, EQUAL = (32, 8, 6, 4, 4, 4, 4, 2), (8,) * 8
ALLOCATIONS = {
    "one level": ((4,), (13,)),
    "two levels": ((2, 3), (16, 8)),
    "halves": ((2, 1, 2), (16, 8, 4)),
    "thirds, the last not full": ((1, 2, 1, 1), (36, 12, 4, 1)),
    "a level without columns": ((2, 0, 3), (16, 4, 2)),
    "columns only where there is no other level": ((0, 2, 0), (16, 8, 2)),
    "equal levels": ((1, 2, 1), (16, 4, 4)),
    "a context far longer than the text": ((2, 2), (64, 32)),
}


def normal(*shapes, seed=0):
    return random_tensors(list(shapes), seed)


def allowing(Q, K, V, allowed):
    """Softmax attention, pair by pair, to the keys that are allowed."""
    return attention(Q, K, V, lambda score, i, j: score.exp() * allowed(i, j))


# ------------------------------------------------------------------------------------------------ before levels


@pytest.mark.claim("003:order-agnostic", "smalearn.fast.multilevel.multilevel_attention")
def test_attention_knows_no_order_until_something_tells_it():
    X, places, W_Q, W_K, W_V = normal((12, 6), (12, 6), (6, 4), (6, 4), (6, 3))
    order = torch.tensor([3, 0, 7, 1, 11, 5, 2, 9, 6, 4, 10, 8])

    def layer(X, ranks=(4,), lens=(12,), causal=False, add=0):
        return multilevel_attention((X + add) @ W_Q, (X + add) @ W_K, X @ W_V, ranks, lens, causal)

    assert_close(layer(X[order]), layer(X)[order])
    assert_close(layer(X), softmax(X @ W_Q, X @ W_K, X @ W_V))
    for other in ({"causal": True}, {"add": places}, {"ranks": (2, 2), "lens": (12, 6)}):
        assert relative_rms(layer(X[order], **other), layer(X, **other)[order]) > 0.01


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("w", [0, 1, 6])
@pytest.mark.claim("003:swa", "smalearn.multilevel.window.window_attention")
def test_a_window_has_so_many_keys_and_no_more(causal, w):
    T = 23
    Q, K, V = normal((T, 5), (T, 5), (T, 3))

    def allowed(i, j):
        return abs(i - j) <= w and (j <= i or not causal)

    assert_close(window_attention(Q, K, V, w, causal), allowing(Q, K, V, allowed))
    weights = window_attention(Q, K, torch.eye(T, dtype=F64), w, causal)
    assert (weights > 0).tolist() == [[allowed(i, j) for j in range(T)] for i in range(T)]
    assert (weights[w : T - w] != 0).sum(1).tolist() == [w + 1 if causal else 2 * w + 1] * (T - 2 * w)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.claim("003:swa", "smalearn.multilevel.window.window_attention")
def test_a_window_costs_a_multiple_of_the_length(causal):
    """Twice the tokens, twice the cost, and 2·w + c, or w + c, keys for each of them."""
    keys = (1 if causal else 2) * 8 + 8
    for length in (64, 128, 1024):
        Q, K, V = normal((length, 4), (length, 4), (length, 6))
        counter, Y = counted(window_attention, Q, K, V, 8, causal)
        assert counter.products == length * keys * (4 + 6)
        assert_close(Y[:1], (Q[:1] @ K[: 1 if causal else 9].mT).softmax(-1) @ V[: 1 if causal else 9])


@pytest.mark.parametrize(
    ("stack", "length"),
    [
        *(([3], 16), ([3, 3, 3], 16), ([2, 5], 16), ([None, 3, 3], 16), ([3, None], 16), ([0, 0], 16)),
        *(([], 9), ([5, 5], 9), ([None], 9), ([0, 1], 9)),
    ],
)
@pytest.mark.claim("003:local-global", "smalearn.multilevel.window.receptive_field")
def test_windows_add_up_and_one_global_layer_sees_all(stack, length):
    (x,) = normal((length, 4))
    y = x.requires_grad_()
    for w in stack:
        y = y + window_attention(y, y, y, length if w is None else w, causal=True)
    (gradient,) = torch.autograd.grad(y[-1].square().sum(), x)
    reach = length if None in stack else min(length, 1 + sum(stack))
    assert receptive_field(stack, length) == reach
    assert (gradient != 0).any(1).tolist() == [False] * (length - reach) + [True] * reach


@pytest.mark.claim("003:hierarchical", "smalearn.multilevel.levels.score_macs")
def test_levels_are_quadratic_and_pooling_is_not():
    space = shown("11", "pooled", math=math, score_macs=score_macs, halving_blocks=halving_blocks)
    lengths = [4**k for k in range(5, 9)]
    for ranks in (PAPER, EQUAL):
        share = sum(rank / 2**level for level, rank in enumerate(ranks))
        for T in lengths:
            assert score_macs(T, ranks, halving_blocks(T, 8), causal=False) == T**2 * share
    assert slope(lambda T: space["pooled_macs"](T, 64), *lengths) == pytest.approx(1.5, abs=1e-12)


@pytest.mark.claim("003:hierarchical", "smalearn.multilevel.scores.multilevel_scores")
def test_pooling_compares_other_things():
    Q, K = normal((16, 6), (16, 6))
    assert_close(multilevel_scores(Q, K, (6, 0, 0), (16, 8, 4)), Q @ K.mT)
    means = K.view(4, 4, 6).mean(1).repeat_interleave(4, 0)
    near = shared_levels(16, (16, 4)) == 2
    pooled = torch.where(near, Q @ K.mT, Q @ means.mT)
    assert relative_rms(pooled, Q @ K.mT) > 0.5
    levels = multilevel_scores(Q, K, (3, 3), (16, 4))
    assert len({round(x, 9) for x in levels[0, 4:8].tolist()}) == 4  # every far token keeps a score of its own
    assert len({round(x, 9) for x in pooled[0, 4:8].tolist()}) == 1


# --------------------------------------------------------------------------------------------------- the scores


@pytest.mark.claim("003:two-level", "smalearn.multilevel.scores.multilevel_scores")
@pytest.mark.claim("003:two-level", "smalearn.course.ch11.scores.shared_levels")
def test_two_levels_are_two_forms():
    D, r_1, r_2 = 9, 2, 3
    X, L_1, R_1, L_2, R_2 = normal((14, D), (D, r_1), (D, r_1), (D, r_2), (D, r_2))
    far, near = L_1 @ R_1.mT, L_1 @ R_1.mT + L_2 @ R_2.mT
    assert (matrix_rank(far), matrix_rank(near)) == (r_1, r_1 + r_2)
    Q, K = X @ torch.cat([L_1, L_2], 1), X @ torch.cat([R_1, R_2], 1)
    S, d = multilevel_scores(Q, K, (r_1, r_2), (14, 7)), shared_levels(14, (14, 7))
    for i, j in itertools.product(range(14), repeat=2):
        assert d[i, j] == (2 if i // 7 == j // 7 else 1)
        assert_close(S[i, j], X[i] @ (near if d[i, j] == 2 else far) @ X[j])


@pytest.mark.parametrize("name", ALLOCATIONS)
@pytest.mark.claim("003:eq9", "smalearn.multilevel.scores.multilevel_scores")
@pytest.mark.claim("003:eq9", "smalearn.course.ch11.scores.level_scores")
def test_equation_9_pair_by_pair(name):
    ranks, block_lens = ALLOCATIONS[name]
    X, L, R = normal((13, 7), (7, sum(ranks)), (7, sum(ranks)))

    def form(i, j):
        d = sum(i // size == j // size for size in block_lens)
        M = sum(L_l @ R_l.mT for L_l, R_l in zip(L.split(ranks, 1)[:d], R.split(ranks, 1)[:d], strict=True))
        return X[i] @ M @ X[j]

    expected = matrix(form, 13)
    for scores in (multilevel_scores, batched_scores, level_scores):
        assert_close(scores(X @ L, X @ R, ranks, block_lens), expected)


@pytest.mark.parametrize(("length", "block_lens"), [(16, (16, 8, 4, 2)), (11, (12, 6, 3)), (10, (30, 10, 5, 1))])
@pytest.mark.claim("003:eq9", "smalearn.multilevel.levels.level_counts")
@pytest.mark.claim("003:eq9", "smalearn.course.ch11.scores.shared_levels")
def test_d_is_a_distance_in_a_tree(length, block_lens):
    d = level_counts(length, block_lens)
    assert torch.equal(d, shared_levels(length, block_lens))
    for i, j in itertools.product(range(length), repeat=2):
        assert d[i, j] == sum(i // size == j // size for size in block_lens)
        assert all(d[i, k] >= min(d[i, j], d[j, k]) for k in range(length))
    assert length != 16 or (d[0, 1], d[7, 8]) == (4, 1)  # neighbours may be far


@pytest.mark.claim("003:batched-score", "smalearn.multilevel.scores.batched_scores")
def test_batched_products_are_equation_9_with_its_gradients():
    T, D, ranks, block_lens = 16, 12, (2, 2, 2, 2), (16, 8, 4, 2)
    X, L, R, dS = normal((T, D), (D, 8), (D, 8), (T, T))
    found, leaves = [], [x.requires_grad_() for x in (X, L, R)]
    for form in (batched_scores, loop_scores):
        S = form(X @ L, X @ R, ranks, block_lens)
        found.append([S.detach(), *torch.autograd.grad(S, leaves, dS)])
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected)
    assert matrix_rank(found[0][0]) == 16 > D > matrix_rank((X @ L @ (X @ R).mT).detach())


@pytest.mark.claim("003:batched-score", "smalearn.course.ch11.parts.merge")
def test_the_recursion_of_the_chapter():
    space = shown("11", "recursion-run", math=math, merge=merge)
    ranks, block_lens = (2, 2, 1, 3), halving_blocks(32, 4)
    Q, K, V = normal((32, 8), (32, 8), (32, 3))
    S = loop_scores(Q, K, ranks, block_lens)
    Y, lse = space["recursive"](Q, K, V, ranks)
    assert_close(Y, loop(Q, K, V, ranks, block_lens))
    assert_close(lse, torch.stack([S[i, : i + 1].exp().sum().log() for i in range(32)]))


@pytest.mark.claim("003:constraints", "smalearn.multilevel.levels.parse_ranks")
@pytest.mark.claim("003:constraints", "smalearn.multilevel.levels.halving_blocks")
def test_allocations_have_rules():
    ranks = parse_ranks("32|8|6|4|4|4|4|2")
    assert ranks == PAPER
    assert sum(ranks) == 64
    assert halving_blocks(1024, len(ranks)) == tuple(1024 // 2**level for level in range(8))
    assert halving_blocks(100, 3) == (100, 50, 25)
    assert halving_blocks(97, 3) == (100, 50, 25)
    assert (halving_blocks(9, 3), halving_blocks(1, 1), parse_ranks(" 16 | 0 ")) == ((12, 6, 3), (1,), (16, 0))
    Q, V = normal((6, 4), (6, 2))
    for wrong, error, message in (
        (lambda: parse_ranks("32|-8"), ValueError, "expected integers ≥ 0"),
        (lambda: halving_blocks(7, 4), ValueError, "a token a block"),
        (lambda: multilevel_attention(Q, Q, V, (2, 1), (6, 3)), ShapeError, "sum of ranks = 3"),
        (lambda: multilevel_attention(Q, Q, V, (2, 2), (6, 4)), ValueError, "so that blocks nest"),
        (lambda: multilevel_attention(Q, Q, V, (2, 2), (4, 2)), ValueError, "one block of all"),
        (lambda: multilevel_attention(Q, Q, V, (4,), (6, 3)), ValueError, "every level has a rank"),
    ):
        with pytest.raises(error, match=message):
            wrong()


@pytest.mark.claim("003:constraints", "smalearn.fast.multilevel.multilevel_attention")
def test_one_level_is_standard_and_any_length_will_do():
    Q, K, V = normal((19, 6), (19, 6), (19, 4))
    standard = causal_softmax(Q, K, V)
    assert_close(multilevel_attention(Q, K, V, (6,), (19,)), standard)
    assert_close(torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=1.0), standard)
    for length in (1, 7, 13, 19):
        q, k, v = (x[:length] for x in (Q, K, V))
        assert_close(multilevel_attention(q, k, v, (3, 3), (20, 10)), loop(q, k, v, (3, 3), (20, 10)))


@pytest.mark.claim("003:dynamic-blocks", "smalearn.multilevel.scores.multilevel_scores")
@pytest.mark.claim("003:dynamic-blocks", "smalearn.multilevel.levels.level_counts")
def test_blocks_may_follow_the_text():
    space = shown("11", "dynamic-blocks", zen_of_python=zen_of_python, level_counts=level_counts)
    lines, levels = space["lines"], space["nested"]
    assert [word for line in lines for word in line] == zen_of_python().partition("\n\n")[2].split()
    T = len(levels[0])
    d = level_counts(T, levels)
    start = 0
    for line in lines:  # d > 1 is block diagonal, a block for each line
        end = start + len(line)
        assert (d[start:end, start:end] >= 2).all()
        assert (d[start:end, :start] == 1).all()
        start = end
    Q, K = normal((T, 4), (T, 4))
    assert_close(multilevel_scores(Q, K, (1, 1, 2), levels), loop_scores(Q, K, (1, 1, 2), levels))
    with pytest.raises(ValueError, match=r"must nest in block_lens\[1\], got a block that reaches over a border"):
        level_counts(T, [*levels[:2], levels[2].roll(1)])


# ------------------------------------------------------------------------------------------------------ appendix D


def nested(rng, length, levels):
    """Block numbers of levels whose borders are drawn at random, each among those of the next."""
    borders, found = [], []
    for level in range(levels):
        found.append(torch.tensor([sum(border <= token for border in borders) for token in range(length)]))
        borders += rng.sample(range(1, length), level + 1)
    return found


@pytest.mark.parametrize("levels", range(1, 6))
@pytest.mark.claim("003:lemmaD1", "smalearn.multilevel.scores.batched_scores")
@pytest.mark.claim("003:lemmaD1", "smalearn.multilevel.scores.multilevel_scores")
@pytest.mark.claim("003:lemmaD1", "smalearn.course.ch11.blocks.block_level")
def test_lemma_D1_for_any_number_of_levels(levels):
    rng, length, D = random.Random(levels), 17, 6
    ranks = tuple(rng.choice((1, 2, 3)) for _ in range(levels))
    X, L, R = normal((length, D), (D, sum(ranks)), (D, sum(ranks)), seed=levels)
    Q, K = X @ L, X @ R
    splits = Q.split(ranks, 1), K.split(ranks, 1)
    equal = tuple(2 ** (levels - 1 - level) * 17 for level in range(levels))
    uneven = tuple(math.prod((3, 2, 3, 2, 1)[level:]) for level in range(5 - levels, 5))
    for block_lens in (equal, (uneven[0] * 17, *uneven[1:])):
        expected = loop_scores(Q, K, ranks, block_lens)
        assert_close(batched_scores(Q, K, ranks, block_lens), expected)
        parts = zip(*splits, block_lens, strict=True)
        assert_close(sum(block_level(q, k, size) for q, k, size in parts), expected)
    blocks = nested(rng, length, levels)
    assert_close(multilevel_scores(Q, K, ranks, blocks), loop_scores(Q, K, ranks, blocks))


@pytest.mark.claim("003:eq18-25", "smalearn.multilevel.scores.batched_scores")
@pytest.mark.claim("003:eq26", "smalearn.multilevel.scores.batched_scores")
@pytest.mark.claim("003:eq26", "smalearn.multilevel.scores.multilevel_scores")
def test_the_proof_for_two_levels_line_by_line():
    X, L_1, L_2, R_1, R_2 = normal((10, 7), (7, 3), (7, 2), (7, 3), (7, 2))
    X_1, X_2 = X[:5], X[5:]
    Q, K = X @ torch.cat([L_1, L_2], 1), X @ torch.cat([R_1, R_2], 1)
    Q_11, Q_21, Q_22 = Q[:, :3], Q[:5, 3:], Q[5:, 3:]
    K_11, K_21, K_22 = K[:, :3], K[:5, 3:], K[5:, 3:]
    queries = (Q_11, X @ L_1), (Q_21, X_1 @ L_2), (Q_22, X_2 @ L_2)
    for block, named in (*queries, (K_11, X @ R_1), (K_21, X_1 @ R_2), (K_22, X_2 @ R_2)):
        assert_close(block, named)
    S = batched_scores(Q, K, (3, 2), (10, 5))
    assert_close(S, Q_11 @ K_11.mT + torch.block_diag(Q_21 @ K_21.mT, Q_22 @ K_22.mT))
    forms = torch.block_diag(X_1 @ L_2 @ R_2.mT @ X_1.mT, X_2 @ L_2 @ R_2.mT @ X_2.mT)
    assert_close(S, X @ L_1 @ R_1.mT @ X.mT + forms)
    assert_close(multilevel_scores(Q, K, (3, 2), (10, 5)), S)
    assert_close(S[1, 3], X[1] @ (L_1 @ R_1.mT + L_2 @ R_2.mT) @ X[3])  # (18), the same block
    assert_close(S[1, 8], X[1] @ (L_1 @ R_1.mT) @ X[8])


@pytest.mark.claim("003:fig1b", "smalearn.course.ch11.blocks.block_level")
@pytest.mark.claim("003:fig1b", "smalearn.multilevel.levels.level_counts")
def test_the_panels_of_the_figure_sum_to_the_scores(capsys):
    space = {"random_tensors": random_tensors, "relative_rms": relative_rms, "gallery": gallery}
    space |= {"block_level": block_level, "level_scores": level_scores, "matrix_rank": matrix_rank}
    space = shown("11", "lemma-run", "lemma-picture", **space)
    panels = [torch.as_tensor(ax.images[0].get_array().filled(0)) for ax in plt.gcf().axes]
    assert_close(sum(panels[:4]), panels[4])
    assert_close(panels[4], loop_scores(space["Q"], space["K"], (2, 2, 2, 2), (16, 8, 4, 2)))
    assert [matrix_rank(panel) for panel in panels] == [2, 4, 8, 16, 16]
    plt.close("all")
    ones = torch.ones(16, 8, dtype=F64)  # a score of ones counts the columns that a pair uses
    used = multilevel_scores(ones, ones, (2, 2, 2, 2), (16, 8, 4, 2))
    assert torch.equal(used, 2.0 * level_counts(16, (16, 8, 4, 2)))
