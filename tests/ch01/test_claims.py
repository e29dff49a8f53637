"""The claims of chapter 01, one test each, in the order of claims.toml."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from oracles_mixing import causal_softmax, pairs, softmax, under

from smalearn.contractions import contract
from smalearn.kernel_attention import softmax_attention, softmax_weights
from smalearn.masks import BandedMask, BlockDiagonalMask, CausalMask, DilatedMask
from smalearn.sma import LINEAR, QUADRATIC, SMA, sma_orders, sma_quadratic, sma_sparse
from smalearn.testing import assert_close, random_tensors

T, S, N, P = 5, 7, 3, 2
SIZES = [(5, 7, 3, 2), (1, 4, 2, 3), (6, 6, 2, 2)]


def qkv(target=T, source=S, features=N, head_dim=P, leading=()):
    return random_tensors([(*leading, target, features), (*leading, source, features), (*leading, source, head_dim)])


@pytest.mark.claim("000:eq9", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.claim("002:softmax-attention", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_general_attention_is_three_products(sizes, leading):
    Q, K, V = qkv(*sizes, leading=leading)
    M = softmax(Q, K, torch.eye(sizes[1], dtype=torch.float64))
    expected = torch.zeros(*leading, sizes[0], sizes[3], dtype=torch.float64)
    for t, s, p in product(range(sizes[0]), range(sizes[1]), range(sizes[3])):
        expected[..., t, p] += M[..., t, s] * V[..., s, p]
    assert_close(softmax_attention(Q, K, V), expected)
    scaled = F.scaled_dot_product_attention(Q, K, V)  # the usual 1/√N can be absorbed into Q
    assert_close(softmax_attention(Q / math.sqrt(sizes[2]), K, V), scaled)


@pytest.mark.claim("000:softmax-attention", "smalearn.kernel_attention.attention.softmax_weights")
def test_softmax_is_exp_then_normalisation_over_the_sources():
    Q, K, V = qkv()
    M = softmax_weights(Q, K)
    assert (M >= 0).all()
    assert_close(M.sum(-1), torch.ones(T, dtype=torch.float64))
    G = Q @ K.mT
    assert_close(M, G.exp() / G.exp().sum(-1, keepdim=True))
    assert_close(M, torch.softmax(G, -1))
    assert_close(M @ V, F.scaled_dot_product_attention(Q, K, V, scale=1.0))
    # A constant added to a row of G: a column of ones in Q against a constant column in K.
    shifted = torch.cat([Q, torch.ones(T, 1)], -1), torch.cat([K, torch.full((S, 1), 3.0)], -1)
    assert_close(softmax_weights(*shifted), M)
    assert torch.isinf((1e3 * G).exp()).any()
    assert torch.isfinite(softmax_weights(1e3 * Q, K)).all()
    assert_close(softmax_weights(1e3 * Q, K).sum(-1), torch.ones(T, dtype=torch.float64))


@pytest.mark.claim("000:self-attention", "smalearn.kernel_attention.attention.softmax_attention")
def test_self_attention_projects_one_input():
    X, W_Q, W_K, W_V = random_tensors([(T, 4), (4, N), (4, N), (4, P)])
    token_by_token = [torch.stack([x @ W for x in X]) for W in (W_Q, W_K, W_V)]
    assert [tuple(x.shape) for x in token_by_token] == [(T, N), (T, N), (T, P)]
    scores = token_by_token[0] @ token_by_token[1].mT
    assert_close(softmax_attention(X @ W_Q, X @ W_K, X @ W_V), scores.softmax(-1) @ token_by_token[2])


@pytest.mark.claim("000:eq10", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:remark5", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq11", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq13a", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq13b", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq13c", "smalearn.contractions.contract")
@pytest.mark.claim("004:attention-function", "smalearn.contractions.contract")
@pytest.mark.claim("004:eq-sma-quad", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("004:eq-sma", "smalearn.contractions.contract")
@pytest.mark.parametrize("sizes", SIZES)
def test_three_products_are_one_contraction_and_a_double_loop(sizes):
    target, source, features, head_dim = sizes
    Q, K, V = qkv(*sizes)
    (L,) = random_tensors([(target, source)], seed=1)
    masked = under(L, Q, K, V)
    assert_close(contract("TN, SN, SP -> TP", Q, K, V), pairs(Q, K, lambda score, t, s: score) @ V)
    G = contract("TN, SN -> TS", Q, K)
    M = contract("TS, TS -> TS", G, L)
    Y = contract("TS, SP -> TP", M, V)
    assert (G.shape, M.shape, Y.shape) == ((target, source), (target, source), (target, head_dim))
    scores = torch.einsum("tn,sn->ts", Q, K)
    weights = torch.einsum("ts,ts->ts", scores, L)
    assert_close(G, scores)
    assert_close(M, weights)
    for found in (Y, torch.einsum("ts,sp->tp", weights, V), contract(SMA, Q, K, V, L), sma_quadratic(Q, K, V, L)):
        assert_close(found, masked)
    X, square = random_tensors([(target, features), (target, target)])  # self-attention: one input in three places
    assert_close(contract(SMA, X, X, X, square), (square * (X @ X.mT)) @ X)


@pytest.mark.claim("000:remark6", "smalearn.sma.sma_quadratic")
def test_attention_is_a_linear_map_of_the_values():
    Q, K, V = qkv()
    L, V2 = random_tensors([(T, S), (S, P)], seed=1)
    M = sma_quadratic(Q, K, torch.eye(S, dtype=torch.float64), L)
    assert_close(M, L * (Q @ K.mT))
    assert_close(sma_quadratic(Q, K, V, L), torch.stack([M @ V[:, p] for p in range(P)], -1))
    both = sma_quadratic(Q, K, 2 * V + V2, L)
    assert_close(both, 2 * sma_quadratic(Q, K, V, L) + sma_quadratic(Q, K, V2, L))
    assert_close(sma_quadratic(2 * Q, 2 * K, V, L), 4 * sma_quadratic(Q, K, V, L))  # not 2: not linear in (Q, K)


@pytest.mark.claim("000:eq10", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.claim("000:normaliser", "smalearn.sma.sma_quadratic")
@pytest.mark.parametrize("mask", [None, CausalMask(6), BandedMask(6, 6, 2)], ids=repr)
def test_the_normaliser_is_attention_on_ones(mask):
    Q, K, V = qkv(6, 6)
    G = Q @ K.mT
    L = torch.ones(6, 6, dtype=torch.float64) if mask is None else mask.dense(torch.float64)
    eye, one = torch.eye(6, dtype=torch.float64), torch.ones(6, 1, dtype=torch.float64)
    # The identity as keys makes any matrix of kernel values, here exp(G), the score matrix of `sma_quadratic`.
    quotient = sma_quadratic(G.exp(), eye, V, L) / sma_quadratic(G.exp(), eye, one, L)
    assert_close(quotient, softmax_attention(Q, K, V, mask))
    positive = random_tensors([(6, 6)], seed=3)[0].abs()
    assert_close(sma_quadratic(positive, eye, one, L)[:, 0], (positive * L).sum(-1))


@pytest.mark.claim("000:causal-mask", "smalearn.masks.causal.CausalMask.dense")
def test_causal_mask_hides_the_future():
    Q, K, V = qkv(6, 6)
    assert torch.equal(CausalMask(6).dense(), torch.tensor([[float(s <= t) for s in range(6)] for t in range(6)]))
    for function in (softmax_attention, sma_quadratic):
        for operand in (1, 2):

            def only(x, operand=operand, function=function):
                return function(*[x if i == operand else y for i, y in enumerate((Q, K, V))], CausalMask(6))

            jacobian = torch.autograd.functional.jacobian(only, (Q, K, V)[operand])
            influence = jacobian.abs().sum(dim=(1, 3))
            assert torch.equal(influence.triu(1), torch.zeros(6, 6, dtype=torch.float64))
            assert (influence.diagonal()[1:] > 0).all()  # softmax over one source has no derivative


@pytest.mark.claim("000:sparse-masks", "smalearn.sma.sma_sparse")
@pytest.mark.parametrize("mask", [BandedMask(24, 24, 2), DilatedMask(24, 24, 2, 3), BlockDiagonalMask(24, 24, 4)])
def test_sparse_masks_need_only_their_nonzeros(mask):
    Q, K, V = qkv(24, 24)
    L = mask.dense(torch.float64)
    assert_close(sma_sparse(Q, K, V, mask), (L * (Q @ K.mT)) @ V)
    assert mask.cost() == int(L.sum())
    # Scores outside the mask that overflow do no harm, because they are not computed.
    (G,) = random_tensors([(24, 24)], seed=1)
    Q, K = torch.where(L == 1, G, 1e308), 10 * torch.eye(24, dtype=torch.float64)
    assert sma_quadratic(Q, K, V, L).isnan().any()
    assert_close(sma_sparse(Q, K, V, mask), (10 * L * G) @ V)


@pytest.mark.claim("000:sparse-masks", "smalearn.masks.sparse.SparseMask.cost")
def test_sparse_cost_is_linear_in_the_length():
    def costs(mask):
        return [mask(length).cost() for length in (512, 1024)]

    # 2w + 1 ones a row, less those of the w·gap first and last rows that would stand outside.
    assert costs(lambda T: BandedMask(T, T, 4)) == [9 * T - 4 * 5 for T in (512, 1024)]
    assert costs(lambda T: DilatedMask(T, T, 4, 3)) == [9 * T - 3 * 4 * 5 for T in (512, 1024)]
    assert costs(lambda T: BlockDiagonalMask(T, T, T // 16)) == [16 * T for T in (512, 1024)]
    assert costs(lambda T: BlockDiagonalMask(T, T, 1)) == [T**2 for T in (512, 1024)]  # a dense mask: slope 2


@pytest.mark.claim("000:eq12", "smalearn.contractions.contract")
def test_one_contraction_of_four_operands():
    operands = random_tensors([(3, 2), (4, 2), (4, 3), (3, 4)])
    Q, K, V, L = operands
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for t, p, s, n in product(range(3), range(3), range(4), range(2)):
        expected[t, p] += Q[t, n] * K[s, n] * V[s, p] * L[t, s]
    assert_close(contract(SMA, *operands), expected)
    for place in range(4):
        other = random_tensors([operands[place].shape], seed=5)[0]
        mixed, alone = list(operands), list(operands)
        mixed[place], alone[place] = 3 * operands[place] + other, other
        assert_close(contract(SMA, *mixed), 3 * expected + contract(SMA, *alone))


@pytest.mark.claim("002:softmax-attention", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:eq13a", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:eq13b", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:eq13c", "smalearn.sma.sma_orders")
@pytest.mark.parametrize("sizes", [*SIZES, (128, 128, 16, 16)])
def test_costs_of_the_quadratic_order(sizes):
    target, source, features, head_dim = sizes
    order = sma_orders(*sizes).named(QUADRATIC)
    assert [step.spec for step in order.steps] == ["TN, SN -> TS", "TS, TS -> TS", "TS, SP -> TP"]
    assert [step.macs for step in order.steps] == [target * source * size for size in (features, 1, head_dim)]
    assert [step.flops // step.macs for step in order.steps] == [2, 1, 2]
    assert order.macs == target * source * (features + head_dim + 1)
    assert order.peak_elements == target * source
    double = sma_orders(2 * target, 2 * source, features, head_dim).named(QUADRATIC)
    assert [more.macs / once.macs for more, once in zip(double.steps, order.steps, strict=True)] == [4, 4, 4]


@pytest.mark.claim("000:function-vs-algorithm", "smalearn.contractions.Order.run")
def test_every_order_computes_the_same_function():
    Q, K, V, L = random_tensors([(T, N), (S, N), (S, P), (T, S)])
    expected = (L * (Q @ K.mT)) @ V
    table = sma_orders(T, S, N, P)
    assert len(table) == len({order.name for order in table}) == 15
    # Where the second step does not use the first one's result, either may come first.
    assert sum(1 if order.steps[0].result in order.steps[1].operands else 2 for order in table) == 18
    assert {QUADRATIC, LINEAR} <= {order.name for order in table}
    for order in table:
        assert_close(order.run(Q, K, V, L), expected)
    assert [step.spec for step in table.named(LINEAR).steps] == ["SN, SP -> SPN", "SPN, TS -> TPN", "TPN, TN -> TP"]


@pytest.mark.claim("000:order-cost", "smalearn.sma.sma_orders")
def test_order_changes_the_cost():
    table = sma_orders(128, 128, 16, 16)
    assert (table[0].name, table[0].macs, table[0].peak_elements) == (QUADRATIC, 540_672, 128**2)
    assert (table[-1].name, table[-1].macs) == ("((QV)L)K", 12_582_912)
    assert table.named(LINEAR).macs == 4_259_840
    for target, source, features, head_dim in product((1, 2, 9, 64), (3, 8, 9, 64), range(1, 5), range(1, 5)):
        table = sma_orders(target, source, features, head_dim)
        cheaper = table.named(LINEAR).macs < table.named(QUADRATIC).macs
        left = features * head_dim * (1 + Fraction(1, target) + Fraction(1, source))
        assert cheaper == (left < features + head_dim + 1)
        if target == source == 64:
            assert cheaper == (features == 1 or head_dim == 1 or features == head_dim == 2)


@pytest.mark.claim("000:order-cost", "smalearn.sma.sma_orders")
@pytest.mark.parametrize(("features", "head_dim"), [(16, 16), (16, 64), (64, 64), (3, 5)])
def test_a_running_sum_moves_the_crossover(features, head_dim):
    crossover = 3 * features * head_dim / (features + head_dim + 1)
    for length in (math.floor(crossover), math.floor(crossover) + 1):
        table = sma_orders(length, length, features, head_dim, scan=True)
        linear, quadratic = table.named(LINEAR).macs, table.named(QUADRATIC).macs
        assert linear == 3 * length * features * head_dim
        assert quadratic == length**2 * (features + head_dim + 1)
        assert (linear < quadratic) == (length > crossover)


@pytest.mark.claim("002:causal-softmax-training", "smalearn.kernel_attention.attention.softmax_attention")
def test_the_mask_belongs_outside_the_exponential():
    Q, K, V = qkv(6, 6)
    L = CausalMask(6).dense(torch.float64)
    G = (Q @ K.mT).masked_fill(L == 0, -torch.inf)
    assert_close(softmax_attention(Q, K, V, CausalMask(6)), G.softmax(-1) @ V)

    def literal(Q):
        return torch.softmax((Q @ K.mT) * L, -1)

    changed = V.clone()
    changed[-1] += 1
    assert (literal(Q) @ (changed - V))[0].abs().max() > 0.01
    future = [(literal(q) * (1 - L)).sum(-1) for q in (Q, 0 * Q)]
    assert [round(weight.item(), 2) for weight in future[0]] == [0.60, 0.79, 0.45, 0.20, 0.09, 0]
    assert_close(future[1], torch.arange(5, -1, -1) / torch.tensor(6, dtype=torch.float64))
    ours = softmax_attention(Q, K, changed, CausalMask(6)) - softmax_attention(Q, K, V, CausalMask(6))
    assert torch.equal(ours[:-1], torch.zeros(5, P, dtype=torch.float64))


@pytest.mark.claim("002:causal-softmax-inference", "smalearn.kernel_attention.attention.softmax_attention")
def test_decoding_with_a_growing_cache_is_training():
    Q, K, V = qkv(6, 6)
    training = softmax_attention(Q, K, V, CausalMask(6))
    assert_close(training, causal_softmax(Q, K, V))
    for t in range(6):
        assert_close(softmax_attention(Q[t : t + 1], K[: t + 1], V[: t + 1])[0], training[t])
        scores, _, values = sma_orders(1, t + 1, N, P).named(QUADRATIC).steps
        assert scores.macs + values.macs == (t + 1) * (N + P)
