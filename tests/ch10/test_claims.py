"""The claims of chapter 10, one test each or more, in the order of claims.toml."""

import math

import matplotlib
import pytest
import torch
from cells import shown
from counting import PRODUCTS, counted, slope
from matplotlib import pyplot as plt
from registry_weights import CASES, factors, train
from torch.linalg import matrix_rank

from smalearn import ShapeError
from smalearn.course.ch10.counts import rank_of_levels
from smalearn.course.ch10.products import levels_product, train_product
from smalearn.course.chA.trains import cheapest_train
from smalearn.course.plots.weights import gallery
from smalearn.testing import assert_close, random_tensors, relative_rms
from smalearn.weights import BlockDiagonal, BlockLowRank, BlockTensorTrain, Kronecker, LowRank, MultiLevelLowRank

matplotlib.use("Agg")

F64 = torch.float64
PAPER_RANKS = (32, 8, 6, 4, 4, 4, 4, 2)


NO_PRODUCTS = {"_unsafe_view", "add", "cat", "clone", "empty", "index", "resize_", "stack", "sum"}


def normal(*shape, seed=0):
    return random_tensors([shape], seed)[0]


def rank(M):
    return matrix_rank(M.detach()).item()


def levels(L, R, ranks, rows, columns):
    """Equation (10): rows and columns hold the sizes of the blocks of every level."""
    M, start = 0, 0
    for r, m, n in zip(ranks, rows, columns, strict=True):
        blocks = zip(L[:, start : start + r].split(m), R[:, start : start + r].split(n), strict=True)
        M, start = M + torch.block_diag(*(L_k @ R_k.mT for L_k, R_k in blocks)), start + r
    return M


def equal_levels(L, R, ranks, blocks):
    """Equation (4)."""
    sizes = [[[len(F) // p] * p for p in blocks] for F in (L, R)]
    return levels(L, R, ranks, *sizes)


def entries(L, R):
    """M[(a b), (c d)] = Σ_s L[b, a, c, s] R[c, d, b, s], entry by entry."""
    (b, a, c, s), d = L.shape, R.shape[1]
    return train(a, b, c, d, s).oracle([L, R])


def regroup(*sizes):
    """The permutation matrix that swaps the first two axes of a vector of these sizes."""
    size = math.prod(sizes)
    return torch.stack([unit.view(sizes).transpose(0, 1).flatten() for unit in torch.eye(size, dtype=F64)], 1)


def literal(L, R):
    """Equation (5) as it stands: two direct sums and two permutation matrices."""
    left, right = sides(L, R)
    return left @ regroup(L.shape[2], L.shape[0], L.shape[3]) @ right


def sides(L, R):
    """P_L (⊕ L_b) and (⊕ R_c^T) of a train, in full."""
    (b, a, c, s), d = L.shape, R.shape[1]
    left = regroup(b, a) @ torch.block_diag(*(block.reshape(a, c * s) for block in L))
    return left, torch.block_diag(*(block.reshape(d, b * s).mT for block in R))


def slices(M, a, b, c, d):
    """Every b-th row, d columns side by side: (b, c, a, d)."""
    return torch.stack([torch.stack([M[j::b, k * d : (k + 1) * d] for k in range(c)]) for j in range(b)])


def square_train(dim, s=1, seed=0):
    root = math.isqrt(dim)
    return BlockTensorTrain.random((root,) * 4, s, seed, F64)


def powers(dim, ranks, seed=0):
    """Levels with p_l = 2^(l-1)."""
    return MultiLevelLowRank.random((dim, dim), ranks, [2**i for i in range(len(ranks))], seed, F64)


# ------------------------------------------------------------------------------------ the score and its bottleneck


@pytest.mark.claim("003:eq2", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:eq2", "smalearn.weights.lowrank.LowRank.dense")
@pytest.mark.claim("003:table1-row1-2", "smalearn.weights.lowrank.LowRank.dense")
@pytest.mark.parametrize(("dim", "r"), [(1, 1), (7, 2), (5, 5), (4, 6), (32, 4), (5, 9)])
def test_a_score_is_a_bilinear_form_of_low_rank(dim, r):
    X, W_Q, W_K = random_tensors([(6, dim), (dim, r), (dim, r)])
    weight = LowRank(W_Q, W_K)
    M, S = weight.dense().detach(), torch.zeros(6, 6, dtype=F64)
    for t in range(6):
        for s in range(6):
            S[t, s] = sum((X[t] @ W_Q[:, k]) * (X[s] @ W_K[:, k]) for k in range(r))
    assert_close(M, equal_levels(W_Q, W_K, [r], [1]))
    assert_close(X @ M @ X.mT, S)
    assert_close(weight.bilinear(X[:, None], X), S)
    x, y, z = X[:3]
    assert_close(weight.bilinear(2 * x + y, z), 2 * S[0, 2] + S[1, 2])
    assert_close(weight.bilinear(z, 2 * x + y), 2 * S[2, 0] + S[2, 1])
    assert rank(M) == weight.rank_bound == min(r, dim)
    assert rank(S) <= r
    assert weight.num_parameters == 2 * r * dim
    assert (normal(dim, dim).numel(), rank(normal(dim, dim))) == (dim**2, dim)


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
    assert (counted(dense, y)[0].macs, counted(low, y)[0].macs) == (3 * dim**2, 3 * 2 * dim * r)


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
def test_the_picture_of_the_scores_shows_the_matrices():
    """The chapter's own cells, run as they stand; colours are of the root of an entry."""
    space = {family.__name__: family for family in (LowRank, MultiLevelLowRank, BlockTensorTrain)}
    with matplotlib.rc_context():
        space = shown("10", "score-picture", gallery=gallery, matrix_rank=matrix_rank, F64=F64, **space)
        axes = plt.gcf().axes
        pictures = [torch.from_numpy(ax.images[0].get_array().filled(0)) for ax in axes]
        captions = [ax.get_xlabel() for ax in axes]
        plt.close("all")
    low, split, train = space["scores"].values()
    expected = [
        equal_levels(*factors(low), [8], [1]),
        equal_levels(*factors(split), split.ranks, split.blocks),
        entries(*factors(train)),
    ]
    for root, M in zip(pictures, expected, strict=True):
        assert_close(root * root.abs(), M)
    assert captions == [f"1024 numbers, rank {k}" for k in (8, 64, 64)]


# -------------------------------------------------------------------------------------------- families and Table 1


@pytest.mark.claim("003:structured-definition", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_fewer_numbers_and_a_fast_product(case):
    weight = case.random(1, F64)
    M = case.oracle(factors(weight))
    assert weight.num_parameters == sum(x.numel() for x in weight.parameters()) == case.numbers
    for count in (1, 5):
        x = normal(count, case.shape[1])
        counter, y = counted(weight, x)
        assert_close(y, x @ M.mT)
        scaled = {"mul"} if any(alpha != 1 for alpha in getattr(weight, "alpha", [])) else set()
        assert counter.products == count * weight.macs == count * case.macs
        assert counter.names - NO_PRODUCTS - {product.__name__ for product in PRODUCTS} <= scaled


@pytest.mark.claim("003:block-diagonal", "smalearn.weights.blockdiagonal.BlockDiagonal.dense")
@pytest.mark.claim("003:block-diagonal", "smalearn.weights.blockdiagonal.BlockLowRank.dense")
@pytest.mark.parametrize("p", [1, 2, 3, 12])
def test_blocks_reach_from_low_rank_to_a_diagonal(p):
    dim = 12
    for r in (1, 2):
        full, low = BlockDiagonal.random(dim, dim, p, 0, F64), BlockLowRank.random(dim, dim, p, r, 0, F64)
        (W,), (L, R) = factors(full), factors(low)
        assert_close(full.dense(), torch.block_diag(*W))
        assert_close(low.dense(), torch.block_diag(*(L @ R.mT)))
        assert (full.num_parameters, low.num_parameters) == (dim**2 // p, 2 * dim * r)
        assert (rank(full.dense()), rank(low.dense())) == (dim, min(dim, p * r))
        if p == 1:
            assert_close(low.dense(), L[0] @ R[0].mT)
        if p == dim:
            assert_close(low.dense(), low.dense().diagonal().diag())


@pytest.mark.claim("003:eq4", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:eq4", "smalearn.weights.mlr.MultiLevelLowRank.level")
@pytest.mark.claim("003:eq4", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq4", "smalearn.course.ch10.products.levels_product")
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


@pytest.mark.claim("003:table1-row3", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.parametrize(
    ("ranks", "blocks", "expected", "table"),
    [([1, 1, 2], [1, 2, 4], 11, 11), ([2] * 5, [1, 2, 4, 8, 16], 32, 62), ([4], [1], 4, 4), ([1, 4], [1, 16], 32, 65)],
)
def test_table_1_levels(ranks, blocks, expected, table):
    """Erratum: Σ r_l p_l is a bound; the rank is min(D, Σ p_l min(r_l, D / p_l))."""
    dim = 32
    weight = MultiLevelLowRank.random((dim, dim), ranks, blocks, 0, F64)
    pairs = list(zip(ranks, blocks, strict=True))
    assert weight.num_parameters == 2 * dim * sum(ranks)
    assert rank(weight.dense()) == min(dim, sum(p * min(r, dim // p) for r, p in pairs)) == expected
    assert weight.rank_bound == expected
    assert ranks != [2] * 5 or expected == rank_of_levels()
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


@pytest.mark.claim("003:table1-row4", "smalearn.course.chA.trains.cheapest_train")
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


# ------------------------------------------------------------------------------------------------------- trains


TRAINS = [(1, 1, 1, 1, 1), (4, 4, 4, 4, 1), (8, 2, 2, 8, 2), (2, 3, 5, 2, 3)]
TRAINS += [(3, 4, 2, 6, 2), (5, 2, 3, 4, 1), (2, 6, 1, 9, 2)]  # rectangular


@pytest.mark.claim("003:eq5", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:eq5", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq5", "smalearn.course.ch10.products.train_product")
@pytest.mark.claim("003:eq11", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:eq11", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize(("a", "b", "c", "d", "s"), TRAINS)
def test_a_train_is_two_direct_sums_and_two_permutations(a, b, c, d, s):
    weight = BlockTensorTrain.random((a, b, c, d), s, 0, F64)
    L, R = factors(weight)
    (m, n), M, x = (a * b, c * d), literal(L, R), normal(3, c * d, seed=1)
    assert (regroup(b, a).shape[0], regroup(c, b, s).shape[0]) == (m, c * b * s)
    assert_close(weight.dense(), M)
    assert_close(entries(L, R), M)
    assert_close(weight(x), x @ M.mT)
    assert_close(train_product(L, R, x[0]), M @ x[0])
    assert weight.num_parameters == s * (m * c + n * b)
    assert rank(weight.dense()) == min(m, n, b * c * s)
    assert matrix_rank(slices(weight.dense().detach(), a, b, c, d)).max() <= s


# ------------------------------------------------------------------------------------------------ structured scores


@pytest.mark.claim("003:eq6", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq6", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:eq7", "smalearn.weights.base.Weight.forward")
@pytest.mark.claim("003:eq7", "smalearn.weights.base.Weight.bilinear")
@pytest.mark.claim("003:eq7", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.parametrize("form", [(3,), (2, 1), (1, 1, 2), 1, 2], ids=str)
def test_scores_of_levels_and_of_trains(form):
    """Head by head, pair by pair, and for a batch of sequences; levels have ranks, and a train a number s."""
    X = normal(2, 5, 16, seed=3)
    for seed in range(3):
        if isinstance(form, tuple):
            weight = powers(16, form, seed)
            M = equal_levels(*factors(weight), form, [2**i for i in range(len(form))])
        else:
            weight = square_train(16, form, seed)
            M = literal(*factors(weight))
            assert_close(weight.dense(), M)
            assert rank(M) == 16
        S = torch.stack([x @ M @ x.mT for x in X])
        assert_close(X @ weight(X).mT, S)
        assert_close(weight.bilinear(X[:, :, None], X[:, None]), S)


@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.mlr.MultiLevelLowRank.dense")
@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.btt.BlockTensorTrain.dense")
@pytest.mark.claim("003:bilinear-cost", "smalearn.weights.base.Weight.forward")
def test_full_rank_for_the_numbers_of_low_rank():
    """Erratum: one form is as cheap as in standard attention; all T² scores are not."""
    assert slope(lambda dim: square_train(dim).num_parameters, 16, 1024) == pytest.approx(1.5)
    assert slope(lambda dim: counted(square_train(dim), normal(dim))[0].macs, 16, 1024) == pytest.approx(1.5)
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
    counter, S = counted(lambda: X @ split(X).mT)
    assert_close(S, X @ M @ X.mT)
    W_Q, W_K = factors(low)
    standard = counted(lambda: (X @ W_Q) @ (X @ W_K).mT)[0].macs
    assert counter.products == length**2 * dim + 2 * length * dim * r
    assert standard == length**2 * r + 2 * length * dim * r


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
