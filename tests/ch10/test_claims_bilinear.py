"""The claims of chapter 10 on attention with structured scores, in the order of claims.toml."""

import pytest
import torch
from torch.nn import functional

from ch10.test_claims import F64, regroup
from ch10.test_claims import sides as factor_sides
from smalearn.multilevel import rope
from smalearn.scores.bilinear import BilinearAttention, Logits, bilinear_attention, bilinear_weights
from smalearn.scores.factors import score_factors
from smalearn.scores.orders import score_costs
from smalearn.testing import assert_close, random_tensors, relative_rms
from smalearn.weights import BlockTensorTrain, Butterfly, Kronecker, LowRank, MultiLevelLowRank


def low_ranks(heads, dim, r):
    return [LowRank.random(dim, dim, r, seed, F64) for seed in range(heads)]


def multi_levels(heads, dim=16, ranks=(2, 1, 3), blocks=(1, 2, 4)):
    return [MultiLevelLowRank.random((dim, dim), ranks, blocks, seed, F64) for seed in range(heads)]


def trains(heads, sizes=(4, 4, 4, 4), s=1):
    return [BlockTensorTrain.random(sizes, s, seed, F64) for seed in range(heads)]


FORMS = {"low rank": low_ranks(3, 16, 4), "levels": multi_levels(3), "trains": trains(3, (2, 8, 8, 2), 2)}


def sides(weight):
    """For each level of multi-level low rank its two direct sums, in full."""
    levels = zip(weight.blocks, weight.L.split(weight.ranks, 1), weight.R.split(weight.ranks, 1), strict=True)
    return [[torch.block_diag(*F.detach().chunk(p)) for F in pair] for p, *pair in levels]


def train_sides(weight):
    """P_L (⊕ L_b), P_R and (⊕ R_c^T) of a train, in full."""
    L, R = weight.L.detach(), weight.R.detach()
    left, right = factor_sides(L, R)
    return left, regroup(L.shape[2], L.shape[0], L.shape[3]), right


def softmax_rows(S, causal):
    """Row by row, over the sources that a token sees and no others."""
    rows = [row[: t + 1 if causal else None].softmax(0) for t, row in enumerate(S)]
    return torch.stack([functional.pad(row, (0, len(S) - len(row))) for row in rows])


def values_and_out(layer):
    """W_V and W_O of every head, (D, r) each."""
    W_V = layer.values.weight.detach().mT.unflatten(1, (layer.kv_heads, -1)).unbind(1)
    W_O = layer.out.weight.detach().unflatten(1, (layer.heads, -1)).unbind(1)
    return zip(W_V, W_O, strict=True)


# ------------------------------------------------------------------------------------------- Eqs. (1) to (3), and (B)


@pytest.mark.claim("003:eq1", "smalearn.scores.bilinear.BilinearAttention.forward")
@pytest.mark.claim("003:eq1", "smalearn.scores.tiled.tiled_attention")
@pytest.mark.parametrize(("dim", "heads", "causal"), [(12, 3, False), (8, 2, True), (5, 1, False)])
def test_heads_add_up(dim, heads, causal):
    """Erratum: the formula has neither scale nor mask."""
    weights = low_ranks(heads, dim, dim // heads)
    layer = BilinearAttention(dim, heads, weights, logits=Logits(scale=1.0, causal=causal)).double()
    (X,) = random_tensors([(7, dim)])
    found, every, summed = layer(X).detach(), [], torch.zeros(7, dim, dtype=F64)
    for weight, (W_V, W_O) in zip(weights, values_and_out(layer), strict=True):
        W_Q, W_K = weight.L.detach(), weight.R.detach()
        summed += softmax_rows(X @ W_Q @ W_K.mT @ X.mT, causal) @ X @ (W_V @ W_O.mT)
        every.append(functional.scaled_dot_product_attention(X @ W_Q, X @ W_K, X @ W_V, is_causal=causal, scale=1.0))
    assert_close(found, summed)
    assert_close(found, torch.cat(every, 1) @ torch.cat([W_O.mT for _, W_O in values_and_out(layer)]))


@pytest.mark.claim("003:eq3", "smalearn.scores.bilinear.BilinearAttention.forward")
@pytest.mark.claim("003:eq3", "smalearn.scores.bilinear.bilinear_attention")
@pytest.mark.parametrize("form", FORMS)
def test_only_the_score_is_replaced(form):
    layer = BilinearAttention(16, 1, FORMS[form][:1], logits=Logits(0.3, causal=False)).double()
    (X,) = random_tensors([(6, 16)])
    ((W_V, W_O),) = values_and_out(layer)
    M = FORMS[form][0].dense().detach()
    assert_close(layer(X), softmax_rows(0.3 * X @ M @ X.mT, False) @ X @ (W_V @ W_O.mT))
    V = torch.stack([X @ W_V] * 3)
    for weight, Y in zip(FORMS[form], bilinear_attention(X, FORMS[form], V, Logits(0.3)), strict=True):
        assert_close(Y, softmax_rows(0.3 * X @ weight.dense().detach() @ X.mT, True) @ X @ W_V)


@pytest.mark.claim("008:mla", "smalearn.scores.bilinear.bilinear_attention")
def test_mla_keeps_one_short_row_for_all_heads():
    X, W_D, *others = random_tensors([(6, 16), (16, 5), *[(16, 3), (5, 3), (5, 4)] * 2])
    heads = [others[:3], others[3:]]
    C, weights = X @ W_D, [LowRank(W_Q, W_D @ W_U) for W_Q, W_U, _ in heads]
    V = torch.stack([C @ W_V for *_, W_V in heads])
    for (W_Q, W_U, W_V), M, Y in zip(heads, weights, bilinear_attention(X, weights, V, Logits(0.1)), strict=True):
        assert_close(softmax_rows(0.1 * (X @ (W_Q @ W_U.mT)) @ C.mT, True) @ C @ W_V, Y)
        assert torch.linalg.matrix_rank(M.dense()) == 3


@pytest.mark.claim("008:mla-rope", "smalearn.multilevel.rope.rope")
def test_a_rotation_stands_between_query_and_key():
    X, C, W_Q, W_U = random_tensors([(6, 16), (6, 5), (16, 4), (5, 4)])
    scores, one = rope(X @ W_Q) @ rope(C @ W_U).mT, torch.eye(4, dtype=F64)
    forms = [W_Q @ rope(one, torch.full((4,), n)) @ W_U.mT for n in range(6)]
    by_distance = [[X[i] @ forms[i - j] @ C[j] for j in range(i + 1)] for i in range(6)]
    for row, expected in zip(scores, by_distance, strict=True):
        assert_close(row[: len(expected)], torch.stack(expected))
    assert min(relative_rms(M, forms[0]) for M in forms[1:]) > 0.1


@pytest.mark.claim("003:gqa-bilinear", "smalearn.scores.factors.score_factors")
@pytest.mark.parametrize(
    ("weights", "width"), [(multi_levels(4), 2 + 2 * 1 + 4 * 3), (trains(4, (2, 8, 4, 4), 3), 3 * 8 * 4)]
)
def test_scores_are_longer_queries_and_keys_that_groups_may_share(weights, width):
    """Erratum: keys of Σ p_l r_l or s·b·c numbers. With the form on the query side the token itself is the key."""
    (X,) = random_tensors([(2, 5, 16)])
    Q, K = score_factors(X, weights, "both")
    assert Q.shape == K.shape == (2, 4, 5, width)
    for i, weight in enumerate(weights):
        M = weight.dense().detach()
        assert_close(Q[:, i] @ K[:, i].mT, X @ M @ X.mT)
        U = X @ M  # u = M^T x for every query: D numbers, and x is cached once for all heads
        assert_close(U @ X.mT, Q[:, i] @ K[:, i].mT)
    layer = BilinearAttention(16, 4, weights, kv_heads=2).double()
    tied = list(layer.scores)
    assert [id(w.R) for w in tied] == [id(tied[i].R) for i in (0, 0, 2, 2)]
    assert tied[0].R is not tied[2].R
    Q, K = score_factors(X, tied, "both")
    assert (Q.shape, K.shape) == ((2, 4, 5, width), (2, 2, 5, width))
    for i, weight in enumerate(tied):
        assert_close(Q[:, i] @ K[:, i // 2].mT, X @ weight.dense() @ X.mT)


@pytest.mark.claim("003:eq12-13", "smalearn.scores.factors.score_factors")
@pytest.mark.parametrize(("ranks", "blocks"), [((4,), (1,)), ((2, 1, 3), (1, 2, 4)), ((1, 2), (4, 16))])
def test_projections_of_levels(ranks, blocks):
    weights = multi_levels(3, 16, ranks, blocks)
    (X,) = random_tensors([(2, 5, 16)])
    Q, K = score_factors(X, weights, "both")
    widths = [r * p for r, p in zip(ranks, blocks, strict=True)]
    assert Q.shape == K.shape == (2, 3, 5, sum(widths))
    for i, weight in enumerate(weights):
        for (left, right), Q_l, K_l in zip(sides(weight), Q.split(widths, -1), K.split(widths, -1), strict=True):
            assert_close(Q_l[:, i], X @ left)
            assert_close(K_l[:, i].mT, right.mT @ X.mT)


@pytest.mark.claim("003:eq14", "smalearn.scores.bilinear.bilinear_weights")
@pytest.mark.claim("003:eq17", "smalearn.scores.bilinear.bilinear_weights")
@pytest.mark.parametrize(
    "weights",
    [multi_levels(2), multi_levels(2, blocks=(2, 8, 16)), trains(2), trains(2, (8, 2, 2, 8), 3)],
    ids=["levels", "levels of small blocks", "train", "train of rank 3"],
)
def test_weights_are_causal_by_minus_infinity(weights):
    """Erratum: a 0/1 mask inside the softmax lets the future in; and (T, T) weights are no output yet."""
    (X,) = random_tensors([(5, 16)])
    found = bilinear_weights(X, weights, Logits(1.0))
    assert found.shape == (2, 5, 5)
    for W, weight in zip(found, weights, strict=True):
        if isinstance(weight, BlockTensorTrain):
            left, P_R, right = train_sides(weight)
            S = X @ left @ P_R @ right @ X.mT
        else:
            S = sum(X @ left @ right.mT @ X.mT for left, right in sides(weight))
        assert_close(W, softmax_rows(S, True))
    assert_close(found.sum(-1), torch.ones(2, 5, dtype=F64))
    later = X.clone()
    later[3:] += 1
    assert torch.equal(bilinear_weights(later, weights, Logits(1.0))[:, :3], found[:, :3])
    assert found.triu(1).eq(0).all()


@pytest.mark.claim("003:eq15-16", "smalearn.scores.factors.score_factors")
@pytest.mark.parametrize(("sizes", "s"), [((4, 4, 4, 4), 1), ((2, 8, 4, 4), 2), ((8, 2, 2, 8), 3)])
def test_projections_of_trains(sizes, s):
    """Erratum: P_L comes before the blocks W_Q. Columns are (s, b, c), on both sides."""
    weights, (a, b, c, d) = trains(3, sizes, s), sizes
    (X,) = random_tensors([(2, 5, 16)])
    Q, K = score_factors(X, weights, "both")
    assert Q.shape == K.shape == (2, 3, 5, s * b * c)
    for i, weight in enumerate(weights):
        left, P_R, right = train_sides(weight)
        assert_close(Q[:, i], (X @ left).unflatten(-1, (b, c, s)).movedim(-1, -3).flatten(-3))
        assert_close(K[:, i], (X @ right.mT).unflatten(-1, (c, b, s)).permute(0, 1, 4, 3, 2).flatten(-3))
        assert_close(Q[:, i] @ K[:, i].mT, X @ left @ P_R @ right @ X.mT)
        without = X @ torch.block_diag(*(block.reshape(a, c * s) for block in weight.L.detach()))
        assert not torch.allclose(without, X @ left)
    heads, r = 8, 16 // 8
    if a == b == c == d:
        assert Q.shape[-1] / r == s * heads


@pytest.mark.claim("003:value-form", "smalearn.scores.bilinear.BilinearAttention.forward")
def test_values_may_be_structured_and_heads_may_differ():
    scoring = [*low_ranks(1, 16, 4), *trains(1), *multi_levels(1), Kronecker.random((4, 4, 4, 4), 5, F64)]
    value = [Butterfly.random(16, 1, F64), *trains(1, (2, 8, 8, 2)), *low_ranks(2, 16, 4)]
    layer = BilinearAttention(16, 4, scoring, value, logits=Logits(0.5))
    (X,) = random_tensors([(2, 7, 16)])
    expected = torch.zeros(2, 7, 16, dtype=F64)
    for i, (score, weight) in enumerate(zip(scoring, value, strict=True)):
        for j in range(2):
            W = softmax_rows(0.5 * X[j] @ score.dense().detach() @ X[j].mT, True)
            expected[j] += W @ X[j] @ weight.dense().detach().mT
        assert layer.scores[i] is score
    assert_close(layer(X), expected)
    numbers = 2 * 16 * 4, 2 * 64, 2 * 16 * 6, 16 + 16, 2 * 16 * 4, 2 * 16 * 8, 2 * 16 * 4, 2 * 16 * 4
    assert sum(p.numel() for p in layer.parameters()) == sum(numbers)
    assert [score_costs(w, 7)["keys"].macs - 49 * 16 for w in scoring] == [7 * w.macs for w in scoring]
