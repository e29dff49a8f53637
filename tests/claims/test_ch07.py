"""The claims of chapter 07, one test each or more, in the order of tests/claims.toml."""

import math
from pathlib import Path

import matplotlib
import nbformat
import pytest
import torch
from matplotlib import pyplot as plt
from registry_weights import CASES
from torch.linalg import matrix_rank
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn import ShapeError
from smalearn.course.exercises.ch07_counts import cheapest_train, generic_rank
from smalearn.course.exercises.ch07_nearest import nearest_train
from smalearn.course.exercises.ch07_products import kronecker_as_train, levels_product, train_product
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
)

matplotlib.use("Agg")

CHAPTER = Path(__file__).parents[2] / "chapters/07_structured_scoring.ipynb"
F64 = torch.float64
PAPER_RANKS = (32, 8, 6, 4, 4, 4, 4, 2)
aten = torch.ops.aten


def normal(*shape, seed=0):
    return random_tensors([shape], seed)[0]


def factors(weight):
    return [x.detach() for x in weight.parameters()]


def rank(M):
    return matrix_rank(M.detach()).item()


def direct_sum(blocks):
    """Blocks along the diagonal of zeros, entry by entry."""
    M = torch.zeros(sum(len(B) for B in blocks), sum(B.shape[1] for B in blocks), dtype=F64)
    row = column = 0
    for B in blocks:
        for i in range(len(B)):
            for j in range(B.shape[1]):
                M[row + i, column + j] = B[i, j]
        row, column = row + len(B), column + B.shape[1]
    return M


def levels(L, R, ranks, rows, columns):
    """Equation (10): rows and columns hold the sizes of the blocks of every level."""
    M, start = 0, 0
    for r, m, n in zip(ranks, rows, columns, strict=True):
        blocks = zip(L[:, start : start + r].split(m), R[:, start : start + r].split(n), strict=True)
        M, start = M + direct_sum([L_k @ R_k.mT for L_k, R_k in blocks]), start + r
    return M


def equal_levels(L, R, ranks, blocks):
    """Equation (4)."""
    sizes = [[[len(F) // p] * p for p in blocks] for F in (L, R)]
    return levels(L, R, ranks, *sizes)


def entries(L, R):
    """M[(a b), (c d)] = Σ_s L[b, a, c, s] R[c, d, b, s] in loops."""
    (b, a, c, s), d = L.shape, R.shape[1]
    M = torch.zeros(a * b, c * d, dtype=F64)
    for i in range(a):
        for j in range(b):
            for k in range(c):
                for h in range(d):
                    M[i * b + j, k * d + h] = sum(L[j, i, k, q] * R[k, h, j, q] for q in range(s))
    return M


def regroup(*sizes):
    """The permutation matrix that swaps the first two axes of a vector of these sizes."""
    size = math.prod(sizes)
    return torch.stack([unit.view(sizes).transpose(0, 1).flatten() for unit in torch.eye(size, dtype=F64)], 1)


def literal(L, R):
    """Equation (5) as it stands: two direct sums and two permutation matrices."""
    (b, a, c, s), d = L.shape, R.shape[1]
    left = direct_sum([L[j].reshape(a, c * s) for j in range(b)])
    right = direct_sum([R[k].reshape(d, b * s).mT for k in range(c)])
    return regroup(b, a) @ left @ regroup(c, b, s) @ right


def slices(M, a, b, c, d):
    """Every b-th row, d columns side by side: (b, c, a, d)."""
    return torch.stack([torch.stack([M[j::b, k * d : (k + 1) * d] for k in range(c)]) for j in range(b)])


class Counter(TorchDispatchMode):
    """Multiply-adds of the matrix products that torch really computes."""

    def __init__(self):
        super().__init__()
        self.macs = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in (aten.bmm, aten.mm):
            self.macs += out.numel() * args[0].shape[-1]
        return out


def counted(function, *args):
    with torch.no_grad(), Counter() as counter:
        result = function(*args)
    return counter.macs, result


def slope(cost, low, high):
    """Exponent of a cost between two sizes."""
    return math.log(cost(high) / cost(low)) / math.log(high / low)


def square_train(dim, s=1, seed=0):
    root = math.isqrt(dim)
    return BlockTensorTrain.random((root,) * 4, s, seed, F64)


def powers(dim, ranks, seed=0):
    """Levels with p_l = 2^(l-1)."""
    return MultiLevelLowRank.random((dim, dim), ranks, [2**i for i in range(len(ranks))], seed, F64)


# ------------------------------------------------------------------------------------ the score and its bottleneck


@pytest.mark.claim("003:eq2", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:eq2", "smalearn.weights.lowrank.LowRank.dense")
@pytest.mark.parametrize(("dim", "r"), [(1, 1), (7, 2), (5, 5), (4, 6)])
def test_a_score_is_a_bilinear_form_of_low_rank(dim, r):
    X, W_Q, W_K = random_tensors([(6, dim), (dim, r), (dim, r)])
    weight = LowRank(W_Q, W_K)
    M, S = weight.dense().detach(), torch.zeros(6, 6, dtype=F64)
    for t in range(6):
        for s in range(6):
            S[t, s] = sum((X[t] @ W_Q[:, k]) * (X[s] @ W_K[:, k]) for k in range(r))
    assert_close(X @ M @ X.mT, S)
    assert_close(weight.bilinear(X[:, None], X), S)
    x, y, z = X[:3]
    assert_close(weight.bilinear(2 * x + y, z), 2 * S[0, 2] + S[1, 2])
    assert_close(weight.bilinear(z, 2 * x + y), 2 * S[2, 0] + S[2, 1])
    assert rank(M) == min(r, dim)
    assert rank(S) <= r


@pytest.mark.claim("003:full-bilinear", "smalearn.weights.base.truncated")
@pytest.mark.claim("003:full-bilinear", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.parametrize(("dim", "r"), [(8, 2), (32, 4)])
def test_any_matrix_is_a_score_at_the_cost_of_its_square(dim, r):
    W, x, y = random_tensors([(dim, dim), (3, dim), (3, dim)])
    whole, low = LowRank.from_dense(W, dim), LowRank.random(dim, dim, r, 0, F64)
    assert_close(whole.dense(), W)
    assert_close(whole.bilinear(x, y), torch.stack([x[i] @ W @ y[i] for i in range(3)]))
    dense = torch.nn.Linear(dim, dim, bias=False, dtype=F64)
    assert (sum(p.numel() for p in dense.parameters()), low.num_parameters) == (dim**2, 2 * dim * r)
    assert (counted(dense, y)[0], counted(low, y)[0]) == (3 * dim**2, 3 * 2 * dim * r)


@pytest.mark.claim("003:lowrank-identity", "smalearn.weights.base.truncated")
def test_no_low_rank_score_is_the_dot_product():
    I, r = torch.eye(16, dtype=F64), 4  # noqa: E741
    for k in range(1, 17):
        error = (I - LowRank.from_dense(I, k).dense()).norm().detach()
        assert error.item() == pytest.approx(math.sqrt(16 - k), abs=1e-9)
    weight = LowRank.random(16, 16, r, 0, F64)
    optimiser = torch.optim.SGD(weight.parameters(), lr=0.1)
    for _ in range(1000):
        optimiser.zero_grad()
        (I - weight.dense()).square().sum().backward()
        optimiser.step()
    reached = (I - weight.dense()).norm().item()
    assert math.sqrt(16 - r) - 1e-9 <= reached < math.sqrt(16 - r) + 1e-6
    sizes = (4, 4, 4, 4)
    for found in (BlockTensorTrain.from_dense(I, sizes, 1), BlockDiagonal.from_dense(I, 16)):
        assert_close(found.dense(), I)
    assert_close(Kronecker.from_dense(I, sizes).dense(), I)
    assert relative_rms(BlockTensorTrain.from_dense(I, (8, 2, 2, 8), 3).dense(), I) > 0.1
    assert_close(BlockTensorTrain.from_dense(I, (8, 2, 2, 8), 4).dense(), I)


@pytest.mark.claim("003:fig1a", "smalearn.weights.lowrank.LowRank.dense")
@pytest.mark.claim("003:fig1a", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:fig1a", "smalearn.weights.btt.BlockTensorTrain.dense")
def test_the_picture_of_the_scores_shows_the_matrices(capsys):
    """The chapter's own cells, run as they stand; colours are of the root of an entry."""
    source = {cell.id: cell.source for cell in nbformat.read(CHAPTER, as_version=4).cells}
    space = {}
    with matplotlib.rc_context():
        for cell in ("setup", "costs-table", "score-run", "score-picture"):
            exec(source[cell], space)
        axes = plt.gcf().axes
        shown = [torch.from_numpy(ax.images[0].get_array().filled(0)) for ax in axes]
        captions = [ax.get_xlabel() for ax in axes]
        plt.close("all")
    low, split, train = space["scores"].values()
    expected = [
        equal_levels(*factors(low), [8], [1]),
        equal_levels(*factors(split), split.ranks, split.blocks),
        entries(*factors(train)),
    ]
    for root, M in zip(shown, expected, strict=True):
        assert_close(root * root.abs(), M)
    assert captions == [f"1024 numbers, rank {k}" for k in (8, 64, 64)]
    assert "scores right: False" not in capsys.readouterr().out


# -------------------------------------------------------------------------------------------- families and Table 1


@pytest.mark.claim("003:structured-definition", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_fewer_numbers_and_a_fast_product(case):
    weight = case.random(1, F64)
    M, x = case.oracle(factors(weight)), normal(3, case.shape[1])
    macs, y = counted(weight, x)
    assert_close(y, x @ M.mT)
    assert weight.num_parameters == case.numbers
    assert macs == 3 * weight.macs == 3 * case.macs


@pytest.mark.claim("003:structured-definition", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.parametrize(("dim", "r"), [(16, 1), (64, 8)])
def test_low_rank_is_structured_while_r_is_small(dim, r):
    weight = LowRank.random(dim, dim, r, 0, F64)
    x, y = random_tensors([(dim,), (dim,)])
    assert_close(weight.bilinear(x, y), x @ equal_levels(*factors(weight), [r], [1]) @ y)
    assert weight.num_parameters == weight.macs == 2 * r * dim < dim**2


@pytest.mark.claim("003:block-diagonal", "smalearn.weights.blockdiagonal.BlockDiagonal.dense")
@pytest.mark.claim("003:block-diagonal", "smalearn.weights.blockdiagonal.BlockLowRank.dense")
@pytest.mark.parametrize("p", [1, 2, 3, 12])
def test_blocks_reach_from_low_rank_to_a_diagonal(p):
    dim = 12
    for r in (1, 2):
        full, low = BlockDiagonal.random(dim, dim, p, 0, F64), BlockLowRank.random(dim, dim, p, r, 0, F64)
        (W,), (L, R) = factors(full), factors(low)
        assert_close(full.dense(), direct_sum(list(W)))
        assert_close(low.dense(), direct_sum([L[k] @ R[k].mT for k in range(p)]))
        assert (full.num_parameters, low.num_parameters) == (dim**2 // p, 2 * dim * r)
        assert (rank(full.dense()), rank(low.dense())) == (dim, min(dim, p * r))
        if p == 1:
            assert_close(low.dense(), L[0] @ R[0].mT)
        if p == dim:
            assert_close(low.dense(), low.dense().diagonal().diag())


@pytest.mark.claim("003:eq4", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:eq4", "smalearn.weights.mlr.MultiLevelLowRank.level")
@pytest.mark.claim("003:eq4", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq4", "smalearn.course.exercises.ch07_products.levels_product")
@pytest.mark.parametrize(("dim", "ranks", "blocks"), [(1, [1], [1]), (12, [2, 1], [1, 3]), (16, [1, 1, 2], [1, 2, 4])])
def test_levels_are_a_sum_of_blocks(dim, ranks, blocks):
    weight = MultiLevelLowRank.random((dim, dim), ranks, blocks, 0, F64)
    L, R = factors(weight)
    M, x = equal_levels(L, R, ranks, blocks), normal(dim, seed=1)
    assert_close(weight.dense(), M)
    assert_close(weight(x), M @ x)
    assert_close(levels_product(L, R, ranks, blocks, x), M @ x)
    number = torch.arange(dim)
    for i, p in enumerate(blocks):
        together = number[:, None] * p // dim == number * p // dim
        assert torch.equal(weight.level(i) != 0, together)


@pytest.mark.claim("003:table1-row1-2", "smalearn.weights.lowrank.LowRank.dense")
@pytest.mark.parametrize(("dim", "r"), [(8, 3), (32, 4), (5, 9)])
def test_table_1_dense_and_low_rank(dim, r):
    weight = LowRank.random(dim, dim, r, 0, F64)
    assert_close(weight.dense(), equal_levels(*factors(weight), [r], [1]))
    assert weight.num_parameters == 2 * dim * r
    assert rank(weight.dense()) == weight.rank_bound == min(r, dim)
    assert (normal(dim, dim).numel(), rank(normal(dim, dim))) == (dim**2, dim)


@pytest.mark.claim("003:table1-row3", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:table1-row3", "smalearn.course.exercises.ch07_counts.generic_rank")
@pytest.mark.parametrize(
    ("ranks", "blocks", "expected", "table"),
    [
        ([1, 1, 2], [1, 2, 4], 11, 11),
        ([2] * 5, [1, 2, 4, 8, 16], 32, 62),
        ([4], [1], 4, 4),
        ([1, 4], [1, 16], 32, 65),
    ],
)
def test_table_1_levels(ranks, blocks, expected, table):
    """Erratum: Σ r_l p_l is a bound; the rank is min(D, Σ p_l min(r_l, D / p_l))."""
    dim = 32
    weight = MultiLevelLowRank.random((dim, dim), ranks, blocks, 0, F64)
    pairs = list(zip(ranks, blocks, strict=True))
    assert weight.num_parameters == 2 * dim * sum(ranks)
    assert rank(weight.dense()) == min(dim, sum(p * min(r, dim // p) for r, p in pairs)) == expected
    assert generic_rank(dim, dim, ranks, blocks) == weight.rank_bound == expected
    assert sum(r * p for r, p in pairs) == table


@pytest.mark.claim("003:table1-row4", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ((4, 4, 4, 4), {1: 16, 2: 16}),
        ((8, 2, 2, 8), {1: 4, 2: 8, 4: 16}),
        ((2, 8, 8, 2), {1: 16}),
        ((3, 4, 2, 6), {1: 8}),
    ],
)
def test_table_1_trains(sizes, ranks):
    """Erratum: the rank is D only if b·c·s ≥ D, and for almost all factors; some factors give less."""
    a, b, c, d = sizes
    for s, expected in ranks.items():
        weight = BlockTensorTrain.random(sizes, s, 0, F64)
        assert rank(weight.dense()) == min(a * b, c * d, b * c * s) == expected
        assert weight.num_parameters == s * (a * b * c + c * d * b)
        if len(set(sizes)) == 1:
            assert weight.num_parameters == 2 * (a * b) ** 1.5 * s
        L, R = factors(weight)
        assert_close(weight.dense(), entries(L, R))
        assert rank(entries(L.index_fill(0, torch.tensor([0]), 0.0), R)) < expected or b == 1


@pytest.mark.claim("003:table1-row4", "smalearn.course.exercises.ch07_counts.cheapest_train")
def test_the_cheapest_train_of_full_rank():
    """Of squares the balanced one; 8 × 32 for D = 256 costs 1.25 times as much."""

    def cost(a, b, c, d, s=1):
        return s * (a * b * c + c * d * b)

    assert cheapest_train(256, 256, 1) == (16, 16, 16, 16)
    assert cost(8, 32, 8, 32) == 1.25 * cost(16, 16, 16, 16) == 1.25 * 2 * 256**1.5
    for m, n, s in [(12, 12, 1), (24, 6, 2), (16, 16, 4)]:
        sizes = cheapest_train(m, n, s)
        assert rank(BlockTensorTrain.random(sizes, s, 0, F64).dense()) == min(m, n)
        pairs = [(b, c) for b in range(1, m + 1) for c in range(1, n + 1) if m % b == n % c == 0]
        full = [cost(m // b, b, c, n // c, s) for b, c in pairs if b * c * s >= min(m, n)]
        assert cost(*sizes, s) == min(full)


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
    dense_macs = counted(torch.matmul, x[None] @ W, y[:, None])[0] + W.numel()
    assert 1 <= dense_macs / W.numel() <= 2
    for weight, matrix in families.values():
        macs, product = counted(weight, y)
        M = matrix(*factors(weight))
        assert_close(product, M @ y)
        assert_close(weight.bilinear(x, y), x @ M @ y)
        assert macs == weight.macs == weight.num_parameters
        assert 1 <= (macs + dim) / weight.num_parameters <= 2
    kronecker = Kronecker.random((root,) * 4, 0, F64)
    assert counted(kronecker, y)[0] == kronecker.macs == root * kronecker.num_parameters


# ------------------------------------------------------------------------------------------------------- trains


TRAINS = [(1, 1, 1, 1, 1), (4, 4, 4, 4, 1), (3, 4, 2, 6, 2), (8, 2, 2, 8, 2), (2, 3, 5, 2, 3)]


@pytest.mark.claim("003:eq5", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:eq5", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq5", "smalearn.course.exercises.ch07_products.train_product")
@pytest.mark.parametrize(("a", "b", "c", "d", "s"), TRAINS)
def test_a_train_is_two_direct_sums_and_two_permutations(a, b, c, d, s):
    weight = BlockTensorTrain.random((a, b, c, d), s, 0, F64)
    L, R = factors(weight)
    M, x = literal(L, R), normal(c * d, seed=1)
    assert (regroup(b, a).shape[0], regroup(c, b, s).shape[0]) == (a * b, c * b * s)
    assert_close(weight.dense(), M)
    assert_close(entries(L, R), M)
    assert_close(weight(x), M @ x)
    assert_close(train_product(L, R, x), M @ x)
    assert matrix_rank(slices(weight.dense().detach(), a, b, c, d)).max() <= s


@pytest.mark.claim("003:btt-universal", "smalearn.weights.base.truncated")
@pytest.mark.claim("003:btt-universal", "smalearn.course.exercises.ch07_nearest.nearest_train")
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (3, 4, 2, 6), (8, 2, 2, 8)])
def test_every_matrix_is_a_train(sizes):
    a, b, c, d = sizes
    M = normal(a * b, c * d)
    spectrum = torch.linalg.svdvals(slices(M, *sizes))
    for s in range(1, min(a, d) + 1):
        weight = BlockTensorTrain.from_dense(M, sizes, s)
        near = weight.dense().detach()
        assert_close((M - near).norm() + 1, spectrum[..., s:].norm() + 1)
        assert_close(nearest_train(M, sizes, s), near)
    assert_close(near, M)
    if len(set(sizes)) == 1:
        assert weight.num_parameters == 2 * a * (a * b) ** 1.5 == 2 * M.numel()


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.kronecker.Kronecker.dense")
@pytest.mark.claim("003:btt-special-cases", "smalearn.course.exercises.ch07_products.kronecker_as_train")
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
def test_a_butterfly_is_a_train():
    weight = Butterfly.random(16, 0, F64)
    M = torch.eye(16, dtype=F64)
    for i in range(4):
        M = weight.factor(i).detach() @ M
    assert_close(weight.dense(), M)
    assert_close(entries(*factors(as_btt(weight))), weight.dense().detach())
    assert matrix_rank(slices(M, 4, 4, 4, 4), rtol=1e-9).max() == 1
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


@pytest.mark.claim("003:structured-layers", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize("case", [case for case in CASES if case.numbers < 400], ids=repr)
def test_a_layer_of_every_family(case):
    weight = case.random(1, F64)
    leaves = [x.requires_grad_() for x in factors(weight)]
    x, target = random_tensors([(4, case.shape[1]), (4, case.shape[0])])
    ours = (weight(x) - target).square().sum()
    theirs = (x @ case.oracle(leaves).mT - target).square().sum()
    found = torch.autograd.grad(ours, list(weight.parameters()), materialize_grads=True)
    expected = torch.autograd.grad(theirs, leaves, materialize_grads=True)
    assert_close(ours, theirs)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    assert weight.num_parameters == case.numbers


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


@pytest.mark.claim("003:btt-special-cases", "smalearn.weights.butterfly.Butterfly.dense")
def test_a_butterfly_and_its_train_hold_as_many_numbers_at_16_alone():
    for dim, numbers, as_train in ((16, 128, 128), (64, 768, 1024)):
        weight = Butterfly.random(dim, 0, F64)
        train = as_btt(weight)
        assert (weight.num_parameters, train.num_parameters) == (numbers, as_train)
        assert_close(entries(*factors(train)), weight.dense())


# ------------------------------------------------------------------------------------------------ structured scores


def check_scores(weights, matrices, dim):
    """Head by head, pair by pair, and for a batch of sequences."""
    X = normal(2, 5, dim, seed=3)
    for weight, M in zip(weights, matrices, strict=True):
        S = torch.stack([x @ M @ x.mT for x in X])
        assert_close(X @ weight(X).mT, S)
        assert_close(weight.bilinear(X[:, :, None], X[:, None]), S)


@pytest.mark.claim("003:eq6", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq6", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.parametrize("ranks", [(3,), (2, 1), (1, 1, 2)])
def test_the_score_of_levels(ranks):
    heads = [powers(16, ranks, seed) for seed in range(3)]
    blocks = [2**i for i in range(len(ranks))]
    check_scores(heads, [equal_levels(*factors(weight), ranks, blocks) for weight in heads], 16)


@pytest.mark.claim("003:eq7", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq7", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:eq7", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.parametrize("s", [1, 2])
def test_the_score_of_a_train(s):
    heads = [square_train(16, s, seed) for seed in range(3)]
    matrices = [literal(*factors(weight)) for weight in heads]
    check_scores(heads, matrices, 16)
    for weight, M in zip(heads, matrices, strict=True):
        assert_close(weight.dense(), M)
        assert rank(weight.dense()) == 16


@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.base.Weight.forward")
def test_full_rank_for_the_numbers_of_low_rank():
    """Erratum: one form is as cheap as in standard attention; all T² scores are not."""
    assert slope(lambda dim: square_train(dim).num_parameters, 16, 1024) == pytest.approx(1.5)
    assert slope(lambda dim: counted(square_train(dim), normal(dim))[0], 16, 1024) == pytest.approx(1.5)
    dim, r, length = 256, sum(PAPER_RANKS), 5
    split, train, low = powers(dim, PAPER_RANKS), square_train(dim), LowRank.random(dim, dim, r, 0, F64)
    assert split.num_parameters == low.num_parameters == 2 * dim * r == 2 * dim * 64
    assert rank(split.dense()) == rank(train.dense()) == dim
    assert rank(low.dense()) == r
    M = equal_levels(*factors(split), PAPER_RANKS, [2**i for i in range(8)])
    L, R = factors(train)
    assert_close(split.dense(), M)
    assert_close(train.dense(), torch.einsum("bacs,cdbs->abcd", L, R).reshape(dim, dim))
    X = normal(length, dim)
    macs, S = counted(lambda: X @ split(X).mT)
    assert_close(S, X @ M @ X.mT)
    W_Q, W_K = factors(low)
    standard = counted(lambda: (X @ W_Q) @ (X @ W_K).mT)[0]
    assert macs == length**2 * dim + 2 * length * dim * r
    assert standard == length**2 * r + 2 * length * dim * r


# ------------------------------------------------------------------------------------------------------- the union


def contraction(L, R, given):
    """Definition 3.1 with permutation matrices."""
    M = 0
    for L_l, R_l, level in zip(L, R, given, strict=True):
        left, right = direct_sum(L_l.split(level.rows)), direct_sum(R_l.split(level.columns)).mT
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


# --------------------------------------------------------------------------------------------------- rectangular


@pytest.mark.claim("003:eq10", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:eq10", "smalearn.weights.base.Weight.forward")
def test_rectangular_levels():
    ranks, rows, columns = (1, 2, 1), ([9], [2, 3, 4], [3, 3, 3]), ([7], [3, 1, 3], [2, 4, 1])
    L, R, x = random_tensors([(9, 4), (7, 4), (3, 7)])
    weight = MultiLevelLowRank(L, R, ranks, list(zip(rows, columns, strict=True)))
    M = levels(L, R, ranks, rows, columns)
    assert_close(weight.dense(), M)
    assert_close(weight(x), x @ M.mT)
    assert weight.num_parameters == (9 + 7) * sum(ranks)
    with pytest.raises(ValueError, match=r"blocks\[0\] needs sizes ≥ 1 of as many rows as columns, in all 9 and 7"):
        MultiLevelLowRank(L, R, (4,), [([2, 3, 5], [3, 1, 3])])
    with pytest.raises(ShapeError, match="must be the sum of ranks = 5, got 4"):
        MultiLevelLowRank(L, R, (5,), (1,))


@pytest.mark.claim("003:eq11", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:eq11", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize(("a", "b", "c", "d", "s"), [(3, 4, 2, 6, 2), (5, 2, 3, 4, 1), (2, 6, 1, 9, 2)])
def test_rectangular_trains(a, b, c, d, s):
    weight = BlockTensorTrain.random((a, b, c, d), s, 0, F64)
    L, R = factors(weight)
    M, x = literal(L, R), normal(3, c * d)
    m, n = a * b, c * d
    assert_close(weight.dense(), M)
    assert_close(weight(x), x @ M.mT)
    assert weight.num_parameters == s * (m * c + n * b)
    assert rank(weight.dense()) == min(m, n, b * c * s)
