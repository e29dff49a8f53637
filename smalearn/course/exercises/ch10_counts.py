"""The exercise of chapter 10 on counting: the rank of levels."""

import torch

from smalearn.course.exercises.core import Randn, exercise

# ---------------------------------------------------------------------------------------------- 10.2 the rank of levels


def _measured(m, n, ranks, blocks):
    """Rank of one matrix with random factors."""
    randn = Randn(7)
    M = torch.zeros(m, n, dtype=torch.float64)
    for rank, p in zip(ranks, blocks, strict=True):
        for k in range(p):
            L, R = (randn(size // p, rank) for size in (m, n))
            M[k * m // p : (k + 1) * m // p, k * n // p : (k + 1) * n // p] += L @ R.mT
    return torch.linalg.matrix_rank(M).item()


def _sum(ranks, blocks):
    return sum(rank * p for rank, p in zip(ranks, blocks, strict=True))


def _rank_cases(randn):
    yield 1, 1, [1], [1]
    yield 8, 8, [3], [1]
    yield 8, 8, [1], [8]
    yield 32, 32, [1, 1, 2], [1, 2, 4]
    yield 32, 32, [2, 2, 2, 2, 2], [1, 2, 4, 8, 16]
    yield 12, 24, [1, 1], [2, 4]
    yield 24, 12, [1, 3], [1, 4]
    yield 12, 24, [2, 3], [1, 6]


@exercise(
    "10.2",
    "The rank of levels",
    claim="003:table1-row3",
    level=1,
    minutes=6,
    cases=_rank_cases,
    oracle=_measured,
    wrong={
        "this is Σ r_l p_l, as Table 1 has it: a bound that may lie above "
        "the size of the matrix": lambda m, n, ranks, blocks: _sum(ranks, blocks),
        "you cut each block to its size, but not the sum of the levels "
        "to that of the matrix": lambda m, n, ranks, blocks: sum(
            p * min(r, m // p, n // p) for r, p in zip(ranks, blocks, strict=True)
        ),
        "this is full rank: the levels may have too little for that, Σ r_l p_l in all": lambda m, n, ranks, blocks: min(
            m, n
        ),
        "this is Σ r_l, the columns of L: a level has p_l blocks, and "
        "each adds its own r_l": lambda m, n, ranks, blocks: min(m, n, sum(ranks)),
        "this is the rank of the largest level: the ranks of random levels add up": lambda m, n, ranks, blocks: min(
            m, n, max(r * p for r, p in zip(ranks, blocks, strict=True))
        ),
        "your rank may exceed the number of columns: the least of m AND n": lambda m, n, ranks, blocks: min(
            m, _sum(ranks, blocks)
        ),
        "your rank may exceed the number of rows: the least of m AND n": lambda m, n, ranks, blocks: min(
            n, _sum(ranks, blocks)
        ),
        "this is the least rank of a level, which bounds a product: levels are added, and so are their ranks": (
            lambda m, n, ranks, blocks: min(m, n, min(r * p for r, p in zip(ranks, blocks, strict=True)))
        ),
        "you multiply the sums: every level has its own r_l·p_l, and these are added": lambda m, n, ranks, blocks: min(
            m, n, sum(ranks) * sum(blocks)
        ),
        "you count one block of each level: it has p_l of them": lambda m, n, ranks, blocks: sum(
            min(r, m // p, n // p) for r, p in zip(ranks, blocks, strict=True)
        ),
    },
)
def generic_rank(m, n, ranks, blocks):
    """Rank of almost every (m, n) matrix with levels of ranks r_l in p_l equal blocks.

    Say what rank a multi-level low rank matrix with random factors has; the check measures it.

    Hint: What is the rank of one level? Of a sum of two matrices, at most?

    Hint: A level is p_l blocks of rank r_l that have no row and no column in common: their ranks add up. So do, at
    most, those of the levels. But no matrix has a rank above its size.

    Hint: The least of m, n and the sum of all `rank * p`.

    Insight: Full rank costs few parameters if many small blocks carry it: rank and parameters are two budgets.
    """
    return min(m, n, sum(rank * p for rank, p in zip(ranks, blocks, strict=True)))
