"""Every weight under test with its definition in plain Python. A new weight adds lines here and inherits the suite."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

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
    Weight,
)


@dataclass(frozen=True)
class Case:
    """A weight of one family and one size.

    Attributes:
        name: as test ids show it.
        shape: (m, n).
        random: the weight, seeded, with a given seed and dtype.
        entry: entry(i, j, *factors), the definition of one entry, written out without the package.
        numbers: how many the factors hold.
        macs: multiply-adds of one forward.
        rank: of a random instance.
        build: the weight from its factors.
    """

    name: str
    shape: tuple[int, int]
    random: Callable[..., Weight]
    entry: Callable[..., torch.Tensor]
    numbers: int
    macs: int
    rank: int
    build: Callable[..., Weight]

    def __repr__(self):
        return self.name.replace(" ", "-")

    @property
    def family(self):
        """The class, whatever the size."""
        return type(self.random(0, None))

    def oracle(self, factors):
        """The matrix (m, n), entry by entry."""
        m, n = self.shape
        zero = 0 * factors[0].reshape(-1)[0]
        return torch.stack([torch.stack([zero + self.entry(i, j, *factors) for j in range(n)]) for i in range(m)])


def factors(weight):
    """The numbers of a weight, of which no gradient is asked."""
    return [x.detach() for x in weight.parameters()]


def low_rank(m, n, r):
    return Case(
        f"low rank {m} {n} {r}",
        (m, n),
        lambda seed, dtype: LowRank.random(m, n, r, seed, dtype),
        lambda i, j, L, R: sum(L[i, k] * R[j, k] for k in range(r)),
        r * (m + n),
        r * (m + n),
        min(m, n, r),
        LowRank,
    )


def block_diagonal(m, n, p):
    def entry(i, j, W):
        same = i * p // m == j * p // n
        return W[i * p // m, i % (m // p), j % (n // p)] if same else 0

    return Case(
        f"block diagonal {m} {n} {p}",
        (m, n),
        lambda seed, dtype: BlockDiagonal.random(m, n, p, seed, dtype),
        entry,
        m * n // p,
        m * n // p,
        min(m, n),
        BlockDiagonal,
    )


def block_low_rank(m, n, p, r):
    def entry(i, j, L, R):
        k = i * p // m
        inner = sum(L[k, i % (m // p), s] * R[k, j % (n // p), s] for s in range(r))
        return inner if k == j * p // n else 0

    return Case(
        f"block low rank {m} {n} {p} {r}",
        (m, n),
        lambda seed, dtype: BlockLowRank.random(m, n, p, r, seed, dtype),
        entry,
        r * (m + n),
        r * (m + n),
        min(m, n, p * r),
        BlockLowRank,
    )


def multi_level(m, n, ranks, blocks, rank):
    """The rank is given as a number: that of the formula is what is tested."""

    def block_of(i, size, level, side):
        sizes = [size // level] * level if isinstance(level, int) else level[side]
        return next(k for k in range(len(sizes)) if i < sum(sizes[: k + 1]))

    def entry(i, j, L, R):
        total, start = 0, 0
        for r, level in zip(ranks, blocks, strict=True):
            if block_of(i, m, level, 0) == block_of(j, n, level, 1):
                total += sum(L[i, k] * R[j, k] for k in range(start, start + r))
            start += r
        return total

    return Case(
        f"multi-level {m} {n} {'|'.join(map(str, ranks))} in {len(blocks)}",
        (m, n),
        lambda seed, dtype: MultiLevelLowRank.random((m, n), ranks, blocks, seed, dtype),
        entry,
        sum(ranks) * (m + n),
        sum(ranks) * (m + n),
        rank,
        lambda L, R: MultiLevelLowRank(L, R, ranks, blocks),
    )


def train(a, b, c, d, s):
    return Case(
        f"block tensor train {a} {b} {c} {d} {s}",
        (a * b, c * d),
        lambda seed, dtype: BlockTensorTrain.random((a, b, c, d), s, seed, dtype),
        lambda i, j, L, R: sum(L[i % b, i // b, j // d, k] * R[j // d, j % d, i % b, k] for k in range(s)),
        s * (a * b * c + c * d * b),
        s * (a * b * c + c * d * b),
        min(a * b, c * d, b * c * s),
        BlockTensorTrain,
    )


def monarch(a, b, c, d):
    """A train of rank 1, in a class of its own."""
    draw = lambda seed, dtype: Monarch.random((a, b, c, d), seed, dtype)  # noqa: E731
    return replace(train(a, b, c, d, 1), name=f"Monarch {a} {b} {c} {d}", random=draw, build=Monarch)


def kronecker(a, b, c, d):
    return Case(
        f"Kronecker {a} {b} {c} {d}",
        (a * b, c * d),
        lambda seed, dtype: Kronecker.random((a, b, c, d), seed, dtype),
        lambda i, j, A, B: A[i // b, j // d] * B[i % b, j % d],
        a * c + b * d,
        min(c * d * b + a * c * b, c * d * a + a * d * b),
        min(a, c) * min(b, d),
        Kronecker,
    )


def butterfly(k):
    """An entry is one path: bit after bit of the column's number becomes that of the row's, the lowest first."""
    n = 2**k

    def entry(i, j, B):
        product, now = 1, j
        for level in range(k):
            width = 2**level
            pair = now // (2 * width) * width + now % width
            product = product * B[level, pair, i // width % 2, now // width % 2]
            now += (i // width % 2 - now // width % 2) * width
        return product

    name = f"butterfly {n}"
    draw = lambda seed, dtype: Butterfly.random(n, seed, dtype)  # noqa: E731
    return Case(name, (n, n), draw, entry, 2 * n * k, 2 * n * k, n, Butterfly)


def contraction(name, ranks, levels, rank):
    """Any multi-level block tensor contraction, through explicit numbers of what stands between the factors."""
    m, n = sum(levels[0].rows), sum(levels[0].columns)

    def locate(i, sizes):
        return next(k for k in range(len(sizes)) if i < sum(sizes[: k + 1]))

    def entry(i, j, *factors):
        total = 0
        for l, ((left_rank, right_rank), level) in enumerate(zip(ranks, levels, strict=True)):  # noqa: E741
            L, R = factors[l], factors[len(levels) + l]
            row = i if level.left is None else int(level.left[i])
            for q in range(left_rank):
                z = locate(row, level.rows) * left_rank + q  # enters the left factor at this number ...
                source = z if level.right is None else int(level.right[z])  # ... which is this one of the right
                if source // right_rank == locate(j, level.columns):
                    total = total + level.alpha * L[row, q] * R[j, source % right_rank]
        return total

    def build(*factors):
        return MultiLevelBlockTensorContraction(factors[: len(levels)], factors[len(levels) :], levels)

    numbers = sum(m * left + n * right for left, right in ranks)
    return Case(
        f"contraction {name}",
        (m, n),
        lambda seed, dtype: MultiLevelBlockTensorContraction.random(ranks, levels, seed, dtype),
        entry,
        numbers,
        numbers,
        rank,
        build,
    )


def shuffled(size, seed):
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


CASES = [
    *[low_rank(*sizes) for sizes in [(1, 1, 1), (5, 7, 2), (13, 4, 9), (16, 16, 3)]],
    *[block_diagonal(*sizes) for sizes in [(1, 1, 1), (7, 7, 7), (6, 9, 3), (9, 6, 3), (5, 3, 1)]],
    *[block_low_rank(*sizes) for sizes in [(1, 1, 1, 1), (7, 7, 7, 1), (6, 9, 3, 1), (6, 9, 3, 4), (8, 12, 2, 2)]],
    *[
        multi_level(*sizes)
        for sizes in [
            (1, 1, (1,), (1,), 1),
            (5, 7, (2,), (1,), 2),
            (32, 32, (1, 1, 2), (1, 2, 4), 11),
            (32, 32, (2, 2, 2, 2, 2), (1, 2, 4, 8, 16), 32),
            (32, 64, (1, 1, 1, 1), (1, 2, 4, 4), 11),
            (12, 18, (1, 1, 1), (2, 3, 6), 11),
            (12, 18, (1, 1), (3, 2), 5),
            (9, 7, (1, 2), (1, ([2, 3, 4], [3, 1, 3])), 6),
            (8, 8, (1, 1, 1), (([3, 5], [5, 3]), 2, 4), 8),
        ]
    ],
    *[
        train(*sizes)
        for sizes in [(1, 1, 1, 1, 1), (1, 7, 1, 5, 1), (7, 1, 5, 1, 2), (4, 4, 4, 4, 1), (3, 4, 2, 6, 2)]
        + [(8, 2, 2, 8, s) for s in (1, 2, 4)]
        + [(2, 3, 5, 2, 3)]
    ],
    *[monarch(*sizes) for sizes in [(1, 1, 1, 1), (4, 4, 4, 4), (3, 4, 2, 6), (5, 1, 1, 7), (8, 2, 2, 8)]],
    *[kronecker(*sizes) for sizes in [(1, 1, 1, 1), (3, 4, 2, 5), (4, 3, 5, 2), (1, 7, 1, 5), (7, 1, 5, 1)]],
    *[butterfly(k) for k in (1, 2, 3, 4)],
    contraction("1 1", [(1, 1)], [Level((1,), (1,))], 1),
    contraction("mixed", [(2, 3)], [Level((1, 2, 4), (4, 5), shuffled(7, 1), shuffled(6, 2))], 5),
    contraction(
        "two levels",
        [(2, 2), (1, 3)],
        [Level((5, 4), (4, 4), alpha=-0.5), Level((3, 3, 3), (8,), shuffled(9, 3), shuffled(3, 4))],
        7,
    ),
    contraction(
        "square",
        [(3, 2), (1, 1)],
        [Level((2, 4), (3, 1, 2), shuffled(6, 5), shuffled(6, 6), alpha=2.0), Level((6,), (6,), alpha=-0.5)],
        6,
    ),
]
