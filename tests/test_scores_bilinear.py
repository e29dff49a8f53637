"""Attention with structured scores: every family and every order against dense matrices, head by head."""

import copy

import pytest
import torch
from comparing import same_function
from counting import Counter
from covering import with_each
from registry_weights import CASES
from torch.autograd import grad

from smalearn import ShapeError
from smalearn.scores import BilinearAttention, Logits, bilinear_attention, bilinear_scores, bilinear_weights
from smalearn.scores.factors import ORDERS, has_levels, normed_factors, orders_of, score_factors
from smalearn.scores.orders import btt_costs, cheapest, level_costs, score_costs, score_width
from smalearn.testing import assert_close, pairwise, random_tensors
from smalearn.weights import (
    BlockDiagonal,
    BlockLowRank,
    BlockTensorTrain,
    Butterfly,
    Kronecker,
    LowRank,
    MultiLevelLowRank,
    as_mlbtc,
)

F64 = torch.float64
SQUARE = [case for case in CASES if case.shape[0] == case.shape[1]]
LEADING = [(), (2,), (2, 4)]
DRAWS = {
    "standard": None,
    "train": lambda seed: BlockTensorTrain.random((2, 8, 4, 4), 1, seed),
    "levels": lambda seed: MultiLevelLowRank.random((16, 16), [2, 1, 1], [1, 2, 4], seed),
    "uneven": lambda seed: MultiLevelLowRank.random((16, 16), [2, 3], [1, ([3, 13], [9, 7])], seed),
    "contraction": lambda seed: as_mlbtc(BlockTensorTrain.random((4, 4, 4, 4), 1, seed)),
    "blocks": lambda seed: BlockLowRank.random(16, 16, 4, 2, seed),
    "Kronecker": lambda seed: Kronecker.random((4, 4, 4, 4), seed),
}


def heads_of(case, count=3, dtype=F64):
    return [case.random(seed, dtype) for seed in range(count)]


def dense_scores(X, weights):
    """One head after the other, with the whole matrix."""
    return torch.stack([X @ weight.dense() @ X.mT for weight in weights], -3)


def masked(S, causal):
    """Scores with -inf for later tokens."""
    later = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1)
    return S.masked_fill(later, -torch.inf) if causal else S


def layer_oracle(layer, x):
    """A layer of standard values head by head: dense scores, one softmax for each, one after the other."""
    r, shared, y = layer.head_dim, layer.heads // layer.kv_heads, 0
    for i, weight in enumerate(layer.scores):
        scale = layer.logits.scale if layer.logits.scale is not None else score_width(weight) ** -0.5
        W = masked(scale * x @ weight.dense() @ x.mT, layer.logits.causal).softmax(-1)
        W_V = layer.values.weight[i // shared * r :][:r]
        y = y + W @ (x @ W_V.mT) @ layer.out.weight[:, i * r : (i + 1) * r].mT
    return y


class Products(Counter):
    """Counts no product by a number."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(not getattr(x, "ndim", 0) for x in args[:2]):
            return function(*args, **(kwargs or {}))
        return super().__torch_dispatch__(function, types, args, kwargs)


# ----------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(("case", "leading"), with_each(LEADING, SQUARE, lambda case: case.family), ids=repr)
def test_every_order_gives_the_dense_scores(case, leading):
    weights = heads_of(case)
    (X,) = random_tensors([(*leading, 5, case.shape[0])], grad=True)
    expected = dense_scores(X, weights)
    inputs = [X, *(factor for weight in weights for factor in weight.parameters())]
    for order in (None, *orders_of(weights[0])):
        same_function(bilinear_scores(X, weights, order), expected, inputs)


@pytest.mark.parametrize("case", SQUARE, ids=repr)
def test_a_single_weight_has_no_axis_of_heads(case):
    (weight,) = heads_of(case, 1)
    (X,) = random_tensors([(2, 7, case.shape[0])])
    for order in orders_of(weight):
        assert_close(bilinear_scores(X, weight, order), X @ weight.dense() @ X.mT)
    expected = masked(score_width(weight) ** -0.5 * X @ weight.dense() @ X.mT, True).softmax(-1)
    assert_close(bilinear_weights(X, weight), expected)


@pytest.mark.parametrize("case", SQUARE, ids=repr)
def test_costs_are_what_is_computed(case):
    (weight,) = heads_of(case, 1)
    (X,) = random_tensors([(5, case.shape[0])])
    costs = score_costs(weight, 5)
    assert set(costs) == set(orders_of(weight)) <= set(ORDERS)
    assert costs[cheapest(weight, 5)].macs == min(cost.macs for cost in costs.values())
    for order, cost in costs.items():
        with Products() as calls, torch.no_grad():
            bilinear_scores(X, weight, order)
        assert calls.macs == cost.macs, order


def test_the_dense_order_pays_for_more_numbers_than_the_matrix_has():
    assert cheapest(LowRank.random(8, 8, 8, 0), 100) == "dense"
    assert cheapest(LowRank.random(8, 8, 2, 0), 100) == "both"
    assert cheapest(BlockTensorTrain.random((8, 2, 2, 8), 1, 0), 100) == "both"
    assert cheapest(BlockTensorTrain.random((4, 4, 4, 4), 1, 0), 0) == "keys"


def test_the_width_of_a_score():
    weights = [BlockLowRank.random(8, 8, 4, 2, 0), Butterfly.random(8, 0), BlockDiagonal.random(8, 8, 2, 0)]
    levels = MultiLevelLowRank.random((8, 8), [3, 1], [1, 4], 0)
    train = BlockTensorTrain.random((2, 4, 2, 4), 3, 0)
    every = [*weights, levels, as_mlbtc(levels), train, as_mlbtc(train), LowRank.random(8, 8, 3, 0)]
    assert [score_width(weight) for weight in every] == [8, 8, 8, 7, 7, 8, 8, 3]
    assert [has_levels(weight) for weight in every] == [True, False, False, True, True, False, False, True]


@pytest.mark.parametrize("name", ["train", "levels", "blocks", "Kronecker"])
def test_all_heads_are_computed_at_once(name):
    (X,) = random_tensors([(5, 16)], dtype=torch.float32)
    counts = []
    for heads in (2, 8):
        weights = [DRAWS[name](seed) for seed in range(heads)]
        for order in ("keys", "both")[: len(orders_of(weights[0]))]:
            if order in orders_of(weights[0]):
                with Counter() as calls, torch.no_grad():
                    bilinear_scores(X, weights, order)
                counts.append(calls.calls)
    half = len(counts) // 2
    assert counts[:half] == counts[half:]


# --------------------------------------------------------------------------------------------------------- the layer


@pytest.mark.parametrize(
    ("name", "logits", "length"),
    [
        case.values()
        for case in pairwise({"name": DRAWS, "logits": [Logits(), Logits(0.2, causal=False)], "length": [1, 33, 97]})
    ],
    ids=str,
)
def test_the_layer_is_its_heads_one_by_one(name, logits, length):
    torch.manual_seed(length)
    layer = BilinearAttention(16, 4, DRAWS[name], logits=logits).double()
    (x,) = random_tensors([(2, length, 16)], grad=True)
    leaves = [x, *layer.parameters()] if length == 33 else [x]
    same_function(layer(x), layer_oracle(layer, x), leaves)


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_the_layer_takes_any_leading_axes_in_float32(name, leading):
    layer = BilinearAttention(16, 4, DRAWS[name]).float()
    (x,) = random_tensors([(*leading, 9, 16)], dtype=torch.float32)
    assert layer(x).dtype == torch.float32
    assert_close(layer(x), layer_oracle(copy.deepcopy(layer).double(), x.double()))


@pytest.mark.parametrize("leading", [(0,), (3,)])
@pytest.mark.parametrize("name", ["standard", "train", "levels"])
def test_nothing_in_nothing_out(name, leading):
    layer = BilinearAttention(16, 4, DRAWS[name])
    assert layer(torch.zeros(*leading, 0 if leading == (3,) else 5, 16)).numel() == 0


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", ["standard", "train", "levels", "contraction", "blocks"])
def test_groups_share_keys_and_values(name, kv_heads):
    layer = BilinearAttention(16, 4, DRAWS[name], kv_heads=kv_heads).double()
    (x,) = random_tensors([(2, 9, 16)], grad=True)
    same_function(layer(x), layer_oracle(layer, x), [x, *layer.parameters()])
    own = BilinearAttention(16, 4, DRAWS[name])
    keys = sum(p.numel() for n, p in own.named_parameters() if ".R" in n) + 16 * 16
    saved = sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in layer.parameters())
    assert saved == keys * (4 - kv_heads) // 4


@pytest.mark.parametrize("name", ["standard", "levels", "train", "Kronecker"])
def test_layer_norm_in_the_layer(name):
    torch.manual_seed(0)
    layer = BilinearAttention(16, 4, DRAWS[name], logits=Logits(norm=8.0)).double()
    (x,) = random_tensors([(2, 9, 16)], grad=True)
    Q, K = normed_factors(x, list(layer.scores), 8.0)
    W = masked(Q @ K.mT, True).softmax(-1)
    V = layer.values(x).unflatten(-1, (4, 4)).transpose(-2, -3)
    expected = layer.out((W @ V).transpose(-2, -3).flatten(-2))
    assert_close(bilinear_weights(x, list(layer.scores), Logits(norm=8.0)), W)
    same_function(layer(x), expected, [x, *layer.parameters()], 1e-11)


def test_layer_norm_of_levels_held_apart_is_the_same():
    weights = [DRAWS["levels"](seed).double() for seed in range(2)]
    (X,) = random_tensors([(5, 16)])
    (Q, K), (Q_, K_) = (normed_factors(X, form, 2.0) for form in (weights, [as_mlbtc(w) for w in weights]))
    assert_close(Q @ K.mT, Q_ @ K_.mT)
    assert_close(normed_factors(X, weights[0], 2.0)[0], Q[0])


def test_layer_norm_of_a_zero_token_is_zero_with_finite_gradients():
    X = torch.zeros(3, 16, dtype=F64, requires_grad=True)
    Q, K = normed_factors(X, [BlockTensorTrain.random((4, 4, 4, 4), 1, 0, F64)], 1.0)
    assert (Q @ K.mT).eq(0).all()
    assert torch.isfinite(grad((Q + K).sum(), X)[0]).all()


def test_groups_of_heads_share_structured_values():
    value = [DRAWS["train"](1), DRAWS["Kronecker"](2)]
    layer = BilinearAttention(16, 4, DRAWS["train"], value, 2).double()
    (x,) = random_tensors([(7, 16)])
    W = [masked(0.25 * x @ weight.dense() @ x.mT, True).softmax(-1) for weight in layer.scores]
    assert_close(layer(x), sum(W[i] @ x @ value[i // 2].double().dense().mT for i in range(4)))


def test_two_layers_may_share_their_scores():
    first = BilinearAttention(16, 4, DRAWS["levels"])
    second = BilinearAttention(16, 4, first.scores)
    assert all(p is q for p, q in zip(first.scores.parameters(), second.scores.parameters(), strict=True))


def test_torchs_seed_decides_the_draw():
    layers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        layers.append(BilinearAttention(16, 4, DRAWS["train"]))
    first, same, other = ([p.detach() for p in layer.parameters()] for layer in layers)
    assert all(torch.equal(p, q) for p, q in zip(first, same, strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(first, other, strict=True))
    M = [weight.dense() for weight in layers[0].scores]
    assert not torch.equal(M[0], M[1])


# --------------------------------------------------------------------------------------------------------- messages


def square(dim=16, seed=0):
    return LowRank.random(dim, dim, 2, seed, F64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((16, 3), ValueError, "BilinearAttention: heads must divide dim = 16, got 3"),
        ((16, 4, None, None, 3), ValueError, "BilinearAttention: kv_heads must divide heads = 4, got 3"),
        ((16, 2, [square()]), ValueError, "BilinearAttention: scoring needs 2 weights, got 1"),
        ((16, 2, None, [square()]), ValueError, "BilinearAttention: value needs 2 weights, got 1"),
        ((16, 1, square()), TypeError, "BilinearAttention: scoring must be a function or a list, got one LowRank"),
        ((16, 1, [square(8)]), ShapeError, r"weight 0 of scoring must be \(16, 16\), got \(8, 8\)"),
        ((16, 1, None, lambda seed: square(8)), ShapeError, r"weight 0 of value must be \(16, 16\), got \(8, 8\)"),
        ((16, 4, DRAWS["Kronecker"], None, 2), ValueError, "one structure with a factor R, got Kronecker"),
        ((16, 2, [square(), DRAWS["train"](0)], None, 1), ValueError, "one structure with a factor R, got"),
    ],
)
def test_the_layer_says_what_does_not_fit(arguments, error, message):
    with pytest.raises(error, match=message):
        BilinearAttention(*arguments)


(X,) = random_tensors([(5, 16)])
(V,) = random_tensors([(2, 6, 3)])
UNLIKE = [square(), DRAWS["train"](0).double()]
KRONECKER, FLAT = DRAWS["Kronecker"](0).double(), MultiLevelLowRank.random((16, 16), [2, 1], [1, 1], 0, F64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bilinear_scores(X, []), ValueError, "bilinear_scores: weights needs one weight or more, got none"),
        (lambda: bilinear_attention(X, [], V), ValueError, "bilinear_attention: weights needs one weight or more"),
        (lambda: bilinear_weights(X, [square(), square(8)]), ShapeError, r"weight 1 must be \(16, 16\) for X, got \(8"),
        (lambda: score_factors(X, UNLIKE, "keys"), ShapeError, "weights must have one structure, got LowRank.*, Block"),
        (lambda: bilinear_scores(X, KRONECKER, order="both"), ValueError, "order .* one of keys, dense, got 'both'"),
        (lambda: bilinear_attention(X, [square()] * 3, V), ShapeError, "heads of V must divide the 3 weights, got 2"),
        (lambda: Logits(scale=0.5, norm=1.0), ValueError, "Logits: either scale or norm, got scale=0.5 and norm=1.0"),
        (lambda: bilinear_weights(X, [square()], Logits(norm=1.0), "keys"), ValueError, "layer norm fixes the order"),
        (lambda: normed_factors(X, [FLAT], 1.0), ValueError, "layer norm needs 2 numbers or more, got 1 of a level"),
        (lambda: BilinearAttention(16, 4)(torch.zeros(3, 8)), ShapeError, "BilinearAttention: x "),
        (lambda: level_costs(4, 8, [1, 2], [1]), ValueError, "every level has a rank and blocks, got 2 ranks, 1"),
        (lambda: level_costs(4, 8, []), ValueError, "level_costs: every level has a rank and blocks, got 0 ranks"),
        (lambda: level_costs(4, 8, [1], [3]), ValueError, r"level_costs: blocks\[0\] must divide dim = 8, got 3"),
        (lambda: btt_costs(4, (2, 2, 2), 1), ValueError, r"btt_costs: sizes must be \(a, b, c, d\), got \(2, 2, 2\)"),
    ],
)
def test_scores_say_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()
