"""Structured weights one family at a time: the nearest of a matrix, who contains whom, settings, and their errors."""

import itertools
import math

import pytest
import torch
from registry_weights import CASES

from smalearn import ShapeError
from smalearn.testing import assert_close, random_tensors, relative_rms
from smalearn.weights import (
    BlockDiagonal,
    BlockLowRank,
    BlockTensorTrain,
    Butterfly,
    Kronecker,
    Level,
    LowRank,
    Monarch,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    as_btt,
    as_mlbtc,
    as_mlr,
    balanced_sizes,
)

F64 = torch.float64
every_case = pytest.mark.parametrize("case", CASES, ids=repr)


def normal(*shape, seed=7):
    return random_tensors([shape], seed)[0]


def tail(slices, rank):
    """Norm of what a truncated singular value decomposition of every slice leaves."""
    return torch.linalg.svdvals(slices)[..., rank:].norm()


def fourier(n):
    number = torch.arange(n, dtype=F64)
    return torch.exp(-2j * math.pi * number[:, None] * number / n)


def left_over(M, weight):
    return (M - weight.dense()).norm().detach()


# The nearest of a family


@pytest.mark.parametrize(("m", "n", "blocks", "rank"), [(1, 1, 1, 1), (6, 9, 3, 1), (6, 9, 3, 5), (7, 7, 7, 1)])
def test_block_families_from_dense(m, n, blocks, rank):
    M = normal(m, n)
    outside = M.clone()
    tiles = []
    for k in range(blocks):
        tile = outside[k * m // blocks : (k + 1) * m // blocks, k * n // blocks : (k + 1) * n // blocks]
        tiles.append(tile.clone())
        tile.zero_()
    full, cut = BlockDiagonal.from_dense(M, blocks), BlockLowRank.from_dense(M, blocks, rank)
    assert_close(full.W.detach(), torch.stack(tiles))
    assert_close(left_over(M, full) + 1, outside.norm() + 1)
    assert_close(left_over(M, cut) + 1, torch.hypot(outside.norm(), tail(torch.stack(tiles), rank)) + 1)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 4, 2, 5), (2, 2, 7, 3), (5, 1, 1, 7)])
def test_kronecker_from_dense_is_the_nearest(sizes):
    a, b, c, d = sizes
    M = normal(a * b, c * d)
    weight = Kronecker.from_dense(M, sizes)
    blocks = [[M[i * b : (i + 1) * b, k * d : (k + 1) * d].flatten() for k in range(c)] for i in range(a)]
    rearranged = torch.stack([block for row in blocks for block in row])
    assert_close(left_over(M, weight) + 1, tail(rearranged, 1) + 1)


@pytest.mark.full
def test_no_factors_nearby_are_nearer():
    """At a best approximation the gradient of the error vanishes."""
    M = normal(12, 10)
    fits = (
        LowRank.from_dense(M, 3),
        BlockLowRank.from_dense(M, 2, 2),
        BlockTensorTrain.from_dense(M, (3, 4, 2, 5), 2),
        Kronecker.from_dense(M, (3, 4, 2, 5)),
        MultiLevelLowRank.from_dense(M, (1, 1), (1, 2), sweeps=3000),
    )
    for weight in fits:
        grads = torch.autograd.grad((M - weight.dense()).square().sum(), list(weight.parameters()))
        assert max(gradient.abs().max() for gradient in grads) < 1e-6


@pytest.mark.parametrize(
    ("ranks", "blocks"),
    [((2, 1, 1), (1, 2, 4)), ((1, 1, 1, 1), (1, 2, 4, 8)), ((3,), (2,)), ((1, 2), (1, ([3, 13], [4, 4])))],
)
def test_multi_level_errors_never_grow(ranks, blocks):
    M = normal(16, 8)
    errors = [left_over(M, MultiLevelLowRank.from_dense(M, ranks, blocks, sweeps)).item() for sweeps in (1, 2, 3, 9)]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(errors))
    assert len(ranks) == 1 or errors[-1] < errors[0] - 1e-3


def test_one_level_is_fitted_at_once():
    M = normal(6, 9)
    one = MultiLevelLowRank.from_dense(M, [2], [1], sweeps=1)
    assert_close(one.dense(), LowRank.from_dense(M, 2).dense())
    assert_close(MultiLevelLowRank.from_dense(M, [1], [3], 1).dense(), BlockLowRank.from_dense(M, 3, 1).dense())


def test_levels_fit_a_matrix_of_levels_better_than_low_rank_of_equal_cost():
    M = MultiLevelLowRank.random((16, 16), (1, 1, 2), (1, 2, 4), 0, F64).dense().detach()
    fitted = MultiLevelLowRank.from_dense(M, (1, 1, 2), (1, 2, 4), sweeps=400)
    assert fitted.num_parameters == LowRank.from_dense(M, 4).num_parameters
    assert relative_rms(fitted.dense(), M) < 0.1 < 0.3 < relative_rms(LowRank.from_dense(M, 4).dense(), M)


SETTINGS = {Monarch: ["sizes"], Kronecker: ["sizes"], BlockTensorTrain: ["sizes", "rank"], LowRank: ["rank"]}
SETTINGS |= {BlockDiagonal: ["blocks"], BlockLowRank: ["blocks", "rank"], Butterfly: []}
FITTED = [case for case in CASES if case.family in SETTINGS]  # the fit of several levels has tests of its own


@pytest.mark.parametrize("case", FITTED, ids=repr)
def test_what_is_of_a_family_is_found_again(case):
    weight = case.random(5, F64)
    M = weight.dense().detach()
    fitted = case.family.from_dense(M, *(getattr(weight, name) for name in SETTINGS[case.family]))
    assert_close(fitted.dense(), M)
    assert all(x.is_leaf and x.requires_grad for x in fitted.parameters())


def test_the_fast_fourier_transform_is_a_butterfly_after_bit_reversal():
    F = fourier(16)
    reverse = torch.tensor([int(f"{j:04b}"[::-1], 2) for j in range(16)])
    weight = Butterfly.from_dense(F[:, reverse])
    assert_close(weight.dense(), F[:, reverse])
    x = normal(3, 16).to(F.dtype)
    assert_close(weight(x[:, reverse]), torch.fft.fft(x))
    assert relative_rms(Butterfly.from_dense(F).dense(), F) > 0.1


def test_the_factors_of_a_butterfly_have_two_entries_a_row_at_their_distance():
    weight = Butterfly.random(16, 0, F64)
    for i in range(4):
        pattern = weight.factor(i) != 0
        number = torch.arange(16)
        assert torch.equal(pattern, (number[:, None] ^ number) & ~(1 << i) == 0)


def test_levels_that_nest_share_a_pass():
    weight = MultiLevelLowRank.random((256, 256), (8, 4, 2, 1, 1), (1, 2, 4, 8, 64), 0, F64)
    assert weight._groups() == [[0, 1, 2, 3], [4]]
    x = normal(5, 256)
    assert_close(weight(x), x @ weight.dense().mT)
    apart = MultiLevelLowRank.random((256, 256), (1, 1, 1), (2, 3 - 1, ([100, 156], [100, 156])), 0, F64)
    assert apart._groups() == [[0, 1], [2]]
    assert MultiLevelLowRank.random((36, 36), (1, 1), (2, 3), 0)._groups() == [[0], [1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fits_keep_the_dtype(dtype):
    M = normal(12, 10).to(dtype)
    for weight in (
        LowRank.from_dense(M, 12),
        BlockTensorTrain.from_dense(M, (3, 4, 2, 5), 3),
        MultiLevelLowRank.from_dense(M, (12,), (1,)),
    ):
        assert {factor.dtype for factor in weight.parameters()} == {dtype}
        assert relative_rms(weight.dense(), M) < 2 * torch.finfo(dtype).eps


# Who contains whom


@every_case
def test_conversions_are_exact(case):
    weight = case.random(3, F64)
    M = weight.dense().detach()
    trains, levels = (BlockTensorTrain, BlockDiagonal, Kronecker, Butterfly), (LowRank, BlockDiagonal, BlockLowRank)
    converted = [as_mlbtc(weight)]
    for convert, kinds in ((as_btt, trains), (as_mlr, (*levels, MultiLevelLowRank))):
        if isinstance(weight, kinds):
            converted.append(convert(weight))
            assert type(converted[-1]) is {as_btt: BlockTensorTrain, as_mlr: MultiLevelLowRank}[convert]
        else:
            with pytest.raises(TypeError, match=f"{convert.__name__}: {type(weight).__name__} is not a special case"):
                convert(weight)
    for other in converted:
        assert_close(other.dense(), M)
        x = normal(3, case.shape[1])
        assert_close(other(x), x @ M.mT)
        with torch.no_grad():
            for factor in other.parameters():
                factor.zero_()
        assert_close(weight.dense(), M)  # nothing is shared


def test_conversions_want_a_weight_of_the_package():
    with pytest.raises(TypeError, match="as_mlbtc: Linear is not a special case of MultiLevelBlockTensorContraction"):
        as_mlbtc(torch.nn.Linear(2, 2))


def test_a_sum_of_both_kinds_is_a_contraction():
    train = as_mlbtc(BlockTensorTrain.random((3, 4, 2, 6), 1, 0, F64))
    levels = as_mlbtc(MultiLevelLowRank.random((12, 12), (1, 1), (1, 3), 0, F64))
    parts = (train, 0, 2.0), (levels, 1, 0.5)
    kinds = [Level(w.rows[i], w.columns[i], *w._orders(i), alpha) for w, i, alpha in parts]
    both = MultiLevelBlockTensorContraction([train.L[0], levels.L[1]], [train.R[0], levels.R[1]], kinds)
    second = levels.dense() - levels.L[0] @ levels.R[0].mT
    assert_close(both.dense(), 2 * train.dense() + 0.5 * second)


# Sizes, variances


@pytest.mark.parametrize(
    ("m", "n", "sizes"), [(1, 1, (1, 1, 1, 1)), (16, 16, (4, 4, 4, 4)), (32, 7, (4, 8, 1, 7)), (12, 18, (3, 4, 3, 6))]
)
def test_balanced_sizes(m, n, sizes):
    assert balanced_sizes(m, n) == sizes


@pytest.mark.parametrize("size", range(1, 65))
def test_balanced_trains_have_full_rank(size):
    train = BlockTensorTrain.random(balanced_sizes(size, size), 1, 0, F64)
    assert train.rank_bound == size == torch.linalg.matrix_rank(train.dense()).item()


@pytest.mark.parametrize(
    ("weight", "variances"),
    [
        (LowRank.random(400, 900, 50, 0), {"L": 1 / 400, "R": 1 / 900}),
        (BlockDiagonal.random(200, 400, 4, 0), {"W": 1 / 100}),
        (BlockLowRank.random(400, 900, 2, 50, 0), {"L": 1 / 200, "R": 1 / 450}),
        (BlockTensorTrain.random((20, 15, 10, 25), 2, 0), {"L": 1 / 20, "R": 1 / 25}),
        (Monarch.random((30, 15, 20, 25), 0), {"L": 1 / 20, "R": 1 / 25}),
        (Butterfly.random(1024, 0), {"B": 1 / 2}),
        (Kronecker.random((80, 90, 100, 110), 0), {"A": 1 / 100, "B": 1 / 110}),
        (
            MultiLevelBlockTensorContraction.random([(40, 20)], [Level((100, 200), (100,) * 4)], 0),
            {"L.0": 1 / 40, "R.0": 1 / 100},
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_variances(weight, variances):
    assert dict(weight.named_parameters()).keys() == variances.keys()
    for name, factor in weight.named_parameters():
        assert factor.var().item() == pytest.approx(variances[name], rel=0.08)
        assert abs(factor.mean().item()) < 4 * math.sqrt(variances[name] / factor.numel())


def test_variances_of_the_blocks_of_levels():
    weight = MultiLevelLowRank.random((600, 900), (40, 40), (1, ([200, 400], [300, 600])), 0)
    for factor, expected in (
        (weight.L[:, :40], 1 / 600),
        (weight.L[:200, 40:], 1 / 200),
        (weight.L[200:, 40:], 1 / 400),
        (weight.R[:, :40], 1 / 900),
        (weight.R[:300, 40:], 1 / 300),
        (weight.R[300:, 40:], 1 / 600),
    ):
        assert factor.var().item() == pytest.approx(expected, rel=0.08)


def test_repr_shows_settings_and_factors():
    assert repr(LowRank.random(3, 4, 2, 0)) == "LowRank(3, 4, L: (3, 2), R: (4, 2))"
    weight = BlockTensorTrain.random((3, 4, 2, 6), 2, 0)
    assert repr(weight) == "BlockTensorTrain(12, 12, rank=2, L: (4, 3, 2, 2), R: (2, 6, 4, 2))"
    assert repr(Monarch.random((1, 2, 2, 1), 0)) == "Monarch(2, 2, L: (2, 1, 2, 1), R: (2, 1, 2, 1))"
    weight = MultiLevelLowRank.random((4, 8), (2, 1), (1, 4), 0)
    assert repr(weight) == "MultiLevelLowRank(4, 8, ranks=(2, 1), blocks=(1, 4), L: (4, 3), R: (8, 3))"
    weight = as_mlbtc(LowRank.random(3, 4, 2, 0))
    assert repr(weight) == "MultiLevelBlockTensorContraction(3, 4, blocks=[(1, 1)], L.0: (3, 2), R.0: (4, 2))"


# Errors

O = torch.ones  # noqa: E741
as_contraction = MultiLevelBlockTensorContraction
NAME = as_contraction.__name__


def contraction(L=(4, 2), R=(6, 2), rows=(2, 2), columns=(3, 3), **fixed):
    return MultiLevelBlockTensorContraction([O(L)], [O(R)], [Level(rows, columns, **fixed)])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: BlockDiagonal.random(12, 18, 4, 0), ValueError, "m = 12 and n = 18, got 4; what fits: 1, 2, 3, 6$"),
        (lambda: BlockDiagonal.random(2, 2, True, 0), ValueError, "m = 2 and n = 2, got True; what fits: 1, 2"),
        (lambda: BlockDiagonal.from_dense(O(5, 7), 5), ValueError, "m = 5 and n = 7, got 5; what fits: 1$"),
        (lambda: BlockLowRank.random(4, 4, 3, 1, 0), ValueError, "BlockLowRank.random: blocks must divide m = 4"),
        (lambda: BlockLowRank.from_dense(O(4, 4), 0, 1), ValueError, "from_dense: blocks must divide m = 4 and n = 4"),
        (lambda: BlockTensorTrain.random((3, 4, 2), 1, 0), ValueError, r"random: sizes must be \(a, b, c, d\), got"),
        (lambda: BlockTensorTrain.random((3, 4, 2, 2), 0, 0), ValueError, "BlockTensorTrain.random: rank must be an"),
        (lambda: BlockTensorTrain.from_dense(O(6, 6), (5, 3, 2, 3), 1), ValueError, r"from_dense: \(a, b\) must mul"),
        (lambda: Monarch.from_dense(O(4, 7), (2, 2, 2, 3)), ValueError, r"what fits: \(1, 7\), \(7, 1\)$"),
        (lambda: Monarch(O(4, 3, 2, 2), O(2, 6, 4, 2)), ShapeError, "Monarch: axis 's' must be 1, got 2; use"),
        (lambda: Kronecker.from_dense(O(4, 4), (2, 2, 3, 1)), ValueError, r"\(c, d\) must multiply to 4, got \(3, 1\)"),
        (lambda: Butterfly(O(0, 0, 2, 2)), ShapeError, r"with k ≥ 1, got shape \(0, 0, 2, 2\)"),
        (lambda: Butterfly(torch.tensor(1.0)), ShapeError, r"with k ≥ 1, got shape \(\)"),
        (lambda: Butterfly.random(24, 0), ValueError, "Butterfly.random: n must be a power of two, got 24; the"),
        (lambda: Butterfly.from_dense(O(6, 6)), ValueError, "the size of M must be a power of two, got 6; the nearest"),
        (lambda: Butterfly.from_dense(O(4, 8)), ShapeError, r"Butterfly.from_dense: M must be square, got shape \(4"),
        (lambda: MultiLevelLowRank(O(4, 3), O(4, 3), (1, 1), (1, 2)), ShapeError, "MultiLevelLowRank: axis 'r' of L"),
        (lambda: MultiLevelLowRank.random((4, 4), (1,), (1, 2), 0), ValueError, "MultiLevelLowRank.random: every"),
        (lambda: MultiLevelLowRank.random((4, 4), (), (), 0), ValueError, "every level has a rank and blocks, got 0"),
        (lambda: MultiLevelLowRank.random((4, 6), (1, 1), (1, 4), 0), ValueError, r"random: blocks\[1\] must divide m"),
        (lambda: MultiLevelLowRank.from_dense(O(5, 7), (1,), [([2, 2], [3, 4])]), ValueError, r"blocks\[0\] needs siz"),
        (lambda: MultiLevelLowRank.random((5, 7), (1,), [([5], [3, 4])], 0), ValueError, r"got \[5\] and \[3, 4\]"),
        (lambda: MultiLevelLowRank.random((5, 7), (1,), [([5, 0], [3, 4])], 0), ValueError, r"got \[5, 0\] and \[3, 4"),
        (lambda: MultiLevelLowRank.random((4, 4), (0,), (1,), 0), ValueError, r"MultiLevelLowRank.random: ranks\[0\] "),
        (lambda: MultiLevelLowRank.random((0, 4), (1,), (1,), 0), ValueError, "MultiLevelLowRank.random: m "),
        (lambda: MultiLevelLowRank.from_dense(O(4, 4), (1,), (1,), 0), ValueError, "MultiLevelLowRank.from_dense"),
        (lambda: as_contraction([O(4, 2)], [], []), ValueError, f"{NAME}: L, R and levels need one"),
        (lambda: as_contraction([], [], []), ValueError, "entry for every level, got 0, 0 and 0"),
        (
            lambda: as_contraction([O(4, 1), O(5, 1)], [O(6, 1)] * 2, [Level((4,), (6,))] * 2),
            ShapeError,
            r": .* L\[1\]",
        ),
        (lambda: contraction(rows=(2, 1)), ShapeError, rf"{NAME}: rows of levels\[0\] must sum to 4, got \(2, 1\)"),
        (lambda: contraction(columns=(6, 0)), ShapeError, r"columns of levels\[0\] must sum to 6, got \(6, 0\)"),
        (lambda: contraction(rows=(4,)), ValueError, rf"{NAME}: r'·p' of levels\[0\] must be r·p, got 2·1 and 2·2"),
        (lambda: contraction(left=torch.tensor([0, 1, 1, 2])), ValueError, rf"{NAME}: left of levels\[0\] must be a"),
        (lambda: contraction(right=torch.arange(3)), ValueError, r"right of levels\[0\] must be a permutation of 4"),
        (lambda: MultiLevelBlockTensorContraction.random([(1, 1)], [], 0), ValueError, rf"{NAME}.random: ranks and"),
    ],
)
def test_bad_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()
