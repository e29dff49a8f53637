"""The claims of appendix A, one test each or more, in the order of claims.toml."""

import math

import pytest
import torch
from ch10.test_claims import F64, entries, equal_levels, normal, powers, rank, slices, square_train
from counting import counted
from registry_weights import factors
from torch.linalg import matrix_rank

from smalearn.course.chA.nearest import nearest_train
from smalearn.course.chA.trains import kronecker_as_train
from smalearn.testing import assert_close, random_tensors, relative_rms
from smalearn.weights import (
    BlockTensorTrain,
    Butterfly,
    Kronecker,
    Level,
    LowRank,
    Monarch,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    as_btt,
)


@pytest.mark.claim("003:table1-flops", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:table1-flops", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize("dim", [16, 64, 256])
def test_one_multiply_add_for_each_number(dim):
    """A form is one forward and D multiply-adds more; the contrast is a Kronecker product."""
    x, y = random_tensors([(dim,), (dim,)])
    root = math.isqrt(dim)
    W = normal(dim, dim)
    families = {
        "low rank": (LowRank.random(dim, dim, 3, 0, F64), lambda L, R: L @ R.mT),
        "MLR": (powers(dim, (2, 1, 1)), lambda L, R: equal_levels(L, R, (2, 1, 1), (1, 2, 4))),
        "BTT": (square_train(dim), lambda L, R: torch.einsum("bacs,cdbs->abcd", L, R).reshape(dim, dim)),
    }
    dense_macs = counted(torch.matmul, x[None] @ W, y[:, None])[0].macs + W.numel()
    assert 1 <= dense_macs / W.numel() <= 2
    for weight, matrix in families.values():
        counter, product = counted(weight, y)
        M = matrix(*factors(weight))
        assert_close(product, M @ y)
        assert_close(weight.bilinear(x, y), x @ M @ y)
        assert counter.products == weight.macs == weight.num_parameters
        assert 1 <= (weight.macs + dim) / weight.num_parameters <= 2
    kronecker = Kronecker.random((root,) * 4, 0, F64)
    assert counted(kronecker, y)[0].products == kronecker.macs == root * kronecker.num_parameters


@pytest.mark.claim("003:btt-universal", "smalearn.weights.base.truncated")
@pytest.mark.claim("003:btt-universal", "smalearn.course.chA.nearest.nearest_train")
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4, 4, 4, 4), (3, 4, 2, 6), (8, 2, 2, 8), (1, 7, 5, 1)])
def test_every_matrix_is_a_train(sizes):
    a, b, c, d = sizes
    M = normal(a * b, c * d)
    spectrum = torch.linalg.svdvals(slices(M, *sizes))
    for s in range(1, min(a, d) + 2):
        weight = BlockTensorTrain.from_dense(M, sizes, s)
        near = weight.dense().detach()
        assert (weight.sizes, weight.rank) == (sizes, s)
        assert_close((M - near).norm() + 1, spectrum[..., s:].norm() + 1)
        assert_close(nearest_train(M, sizes, s), near)
        if s == 1:
            assert_close(Monarch.from_dense(M, sizes).dense(), near)
        if s == min(a, d):
            assert_close(near, M)
            assert_close(MultiLevelBlockTensorContraction.from_dense(M, sizes, s).dense(), M)
            assert len(set(sizes)) > 1 or weight.num_parameters == 2 * a * (a * b) ** 1.5 == 2 * M.numel()


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.kronecker.Kronecker.dense")
@pytest.mark.claim("003:btt-special-cases", "smalearn.course.chA.trains.kronecker_as_train")
@pytest.mark.parametrize(("a", "b", "c", "d"), [(4, 4, 4, 4), (3, 4, 2, 5), (1, 5, 3, 2)])
def test_a_kronecker_product_is_a_train(a, b, c, d):
    weight = Kronecker.random((a, b, c, d), 0, F64)
    A, B = factors(weight)
    M = torch.cat([torch.cat([A[i, k] * B for k in range(c)], 1) for i in range(a)])
    assert_close(weight.dense(), M)
    assert_close(entries(*kronecker_as_train(A, B)), M)
    assert_close(entries(*factors(as_btt(weight))), M)
    assert matrix_rank(slices(M, a, b, c, d)).max() == 1
    L, R = factors(as_btt(weight))
    assert_close(Kronecker(L[0, :, :, 0], R[0, :, :, 0].mT).dense(), M)  # and back


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.butterfly.Butterfly.dense")
@pytest.mark.parametrize(("dim", "numbers", "as_train"), [(16, 128, 128), (64, 768, 1024)])
def test_a_butterfly_is_a_train_that_holds_as_many_numbers_at_16_alone(dim, numbers, as_train):
    weight, M, root = Butterfly.random(dim, 0, F64), torch.eye(dim, dtype=F64), math.isqrt(dim)
    for i in range(dim.bit_length() - 1):
        M = weight.factor(i).detach() @ M
    assert_close(weight.dense(), M)
    train = as_btt(weight)
    assert_close(entries(*factors(train)), M)
    assert (weight.num_parameters, train.num_parameters) == (numbers, as_train)
    assert matrix_rank(slices(M, root, root, root, root), rtol=1e-9).max() == 1
    assert_close(Butterfly.from_dense(M).dense(), M)  # and back


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.base.truncated")
def test_the_fourier_transform_needs_its_columns_regrouped():
    number = torch.arange(16)
    fourier = torch.polar(torch.ones(16, 16, dtype=F64), -math.tau / 16 * (number[:, None] * number % 16).double())
    regrouped = fourier[:, number.view(4, 4).mT.flatten()]
    sizes = (4, 4, 4, 4)
    assert matrix_rank(slices(regrouped, *sizes), rtol=1e-9).max() == 1
    assert matrix_rank(slices(fourier, *sizes)).min() == 4
    assert_close(Monarch.from_dense(regrouped, sizes).dense(), regrouped)
    assert relative_rms(Monarch.from_dense(fourier, sizes).dense(), fourier) > 0.1


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.lowrank.LowRank.dense")
def test_low_rank_is_one_level():
    L, R = random_tensors([(7, 3), (5, 3)])
    one, low = MultiLevelLowRank(L, R, [3], [1]), LowRank(L, R)
    assert_close(one.dense(), low.dense())


@pytest.mark.claim("003:structured-layers", "smalearn.weights.base.truncated")
def test_structure_pays_where_the_matrix_has_it():
    M, I, sizes = normal(64, 64), torch.eye(64, dtype=F64), (8, 8, 8, 8)  # noqa: E741
    train, low = BlockTensorTrain.from_dense(M, sizes, 1), LowRank.from_dense(M, 8)
    assert train.num_parameters == low.num_parameters == 1024
    errors = relative_rms(train.dense(), M), relative_rms(low.dense(), M)
    assert errors == pytest.approx((0.788, 0.791), abs=0.01)
    assert errors[0] == pytest.approx(errors[1], rel=0.02)
    assert_close(BlockTensorTrain.from_dense(I, sizes, 1).dense(), I)
    assert relative_rms(LowRank.from_dense(I, 8).dense(), I) == pytest.approx(math.sqrt(56 / 64), abs=1e-9)
    number = torch.arange(64)
    waves = torch.cos(math.tau / 64 * (number[:, None] * number).double())[:, number.view(8, 8).mT.flatten()]
    assert_close(BlockTensorTrain.from_dense(waves, sizes, 2).dense(), waves)
    assert rank(waves) == 33
    assert LowRank.from_dense(waves, 33).num_parameters > waves.numel()
    distance = 1 / (1 + (number[:, None] - number).abs().double())
    corner = distance[:8, :8]
    assert all(torch.equal(distance[k : k + 8, k : k + 8], corner) for k in range(0, 64, 8))
    assert relative_rms(Kronecker.from_dense(distance, sizes).dense(), distance) == pytest.approx(0.30, abs=0.005)
    assert relative_rms(torch.kron(torch.eye(8, dtype=F64), corner), distance) == pytest.approx(0.43, abs=0.005)


# ------------------------------------------------------------------------------------------------------- the union


def contraction(L, R, given):
    """Definition 3.1 with permutation matrices."""
    M = 0
    for L_l, R_l, level in zip(L, R, given, strict=True):
        left, right = torch.block_diag(*L_l.split(level.rows)), torch.block_diag(*R_l.split(level.columns)).mT
        P_L, P_R = (
            torch.eye(size, dtype=F64)[torch.arange(size) if order is None else order]
            for size, order in ((len(left), level.left), (len(right), level.right))
        )
        M = M + level.alpha * P_L @ left @ P_R @ right
    return M


def shuffled(size, seed):
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.claim("003:def3.1", "smalearn.weights.mlbtc.MultiLevelBlockTensorContraction.dense")
@pytest.mark.claim("003:def3.1", "smalearn.weights.base.Weight.forward")
def test_the_union_of_levels_and_trains():
    """Erratum: both permutations belong to a level; here levels have other sizes and orders than one another."""
    given = [
        Level((2, 3, 4), (5, 6), shuffled(9, 0), shuffled(12, 1), -0.5),
        Level((3, 3, 3), (11,), shuffled(9, 2), shuffled(3, 3)),
        Level((9,), (4, 7), alpha=2.0),
    ]
    ranks = [(4, 6), (1, 3), (4, 2)]
    L = [normal(9, left, seed=i) for i, (left, _) in enumerate(ranks)]
    R = [normal(11, right, seed=9 + i) for i, (_, right) in enumerate(ranks)]
    weight = MultiLevelBlockTensorContraction(L, R, given)
    M, x = contraction(L, R, given), normal(3, 11)
    assert_close(weight.dense(), M)
    assert_close(weight(x), x @ M.mT)
    assert weight.num_parameters == sum(9 * left + 11 * right for left, right in ranks)
    with pytest.raises(ValueError, match="r'·p' of levels"):
        MultiLevelBlockTensorContraction(L[:1], [R[1]], given[:1])


@pytest.mark.claim("003:mlbtc-cases", "smalearn.weights.mlbtc.MultiLevelBlockTensorContraction.dense")
@pytest.mark.parametrize(("ranks", "blocks"), [((3,), (1,)), ((1, 2), (1, 3)), ((1, 1, 2), (1, 2, 4))])
def test_levels_in_the_union(ranks, blocks):
    """α_l = 1, no permutation, p' = p, r' = r."""
    weight = MultiLevelLowRank.random((12, 24), ranks, blocks, 0, F64)
    L, R = factors(weight)
    given = [Level((12 // p,) * p, (24 // p,) * p) for p in blocks]
    same = MultiLevelBlockTensorContraction(L.split(ranks, 1), R.split(ranks, 1), given)
    assert_close(same.dense(), equal_levels(L, R, ranks, blocks))


@pytest.mark.claim("003:mlbtc-cases", "smalearn.weights.mlbtc.MultiLevelBlockTensorContraction.dense")
@pytest.mark.claim("003:mlbtc-cases", "smalearn.weights.base.truncated")
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (3, 4, 2, 6)])
def test_trains_and_all_matrices_in_the_union(sizes):
    """One level, p' = b, p = c, r' = c·s, r = b·s, blocks of a rows and d columns; with s = min(a, d) any matrix."""
    a, b, c, d = sizes
    M = normal(a * b, c * d)
    for s in (1, 2, min(a, d)):
        L, R = factors(BlockTensorTrain.from_dense(M, sizes, s))
        right = torch.arange(c * b * s).view(c, b, s).transpose(0, 1).flatten()
        level = Level((a,) * b, (d,) * c, torch.arange(b * a).view(b, a).mT.flatten(), right)
        left, inner = L.reshape(a * b, c * s), R.reshape(c * d, b * s)
        same = MultiLevelBlockTensorContraction([left], [inner], [level])
        assert left.shape[1] * b == inner.shape[1] * c == b * c * s
        assert_close(same.dense(), entries(L, R))
    assert_close(same.dense(), M)
