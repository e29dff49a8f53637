"""The exercises of chapter 07 on counting: the rank of levels, and the cheapest train of full rank."""

import torch

from smalearn.course.exercises.core import Exercise, Mutant, register

# ----------------------------------------------------------------------------------------------- 7.2 the rank of levels


def generic_rank(m, n, ranks, blocks):
    """Rank of almost every (m, n) matrix with levels of ranks r_l in p_l equal blocks."""
    return min(m, n, sum(rank * p for rank, p in zip(ranks, blocks, strict=True)))


def _measured(m, n, ranks, blocks):
    """Rank of one matrix with random factors."""
    generator = torch.Generator().manual_seed(7)
    M = torch.zeros(m, n, dtype=torch.float64)
    for rank, p in zip(ranks, blocks, strict=True):
        for k in range(p):
            L, R = (torch.randn(size // p, rank, generator=generator, dtype=torch.float64) for size in (m, n))
            M[k * m // p : (k + 1) * m // p, k * n // p : (k + 1) * n // p] += L @ R.mT
    return torch.linalg.matrix_rank(M).item()


def _sum(ranks, blocks):
    return sum(rank * p for rank, p in zip(ranks, blocks, strict=True))


def _rank_cases(generator):
    yield 1, 1, [1], [1]
    yield 8, 8, [3], [1]
    yield 8, 8, [1], [8]
    yield 32, 32, [1, 1, 2], [1, 2, 4]
    yield 32, 32, [2, 2, 2, 2, 2], [1, 2, 4, 8, 16]
    yield 12, 24, [1, 1], [2, 4]
    yield 24, 12, [1, 3], [1, 4]
    yield 12, 24, [2, 3], [1, 6]


register(
    Exercise(
        id="7.2",
        title="The rank of levels",
        statement="Say what rank a multi-level low rank matrix with random factors has; the check measures it.",
        oracle=_measured,
        cases=_rank_cases,
        solution=generic_rank,
        hints=(
            "What is the rank of one level? Of a sum of two matrices, at most?",
            "A level is p_l blocks of rank r_l that have no row and no column in common: their ranks add up. So do, at "
            "most, those of the levels. But no matrix has a rank above its size.",
            "The least of m, n and the sum of all `rank * p`.",
        ),
        mutants=(
            Mutant(
                "the table's",
                lambda m, n, ranks, blocks: _sum(ranks, blocks),
                "this is Σ r_l p_l, as Table 1 has it: a bound that may lie above the size of the matrix",
            ),
            Mutant(
                "level by level",
                lambda m, n, ranks, blocks: sum(p * min(r, m // p, n // p) for r, p in zip(ranks, blocks, strict=True)),
                "you cut each block to its size, but not the sum of the levels to that of the matrix",
            ),
            Mutant(
                "always full",
                lambda m, n, ranks, blocks: min(m, n),
                "this is full rank: the levels may have too little for that, Σ r_l p_l in all",
            ),
            Mutant(
                "as many as columns",
                lambda m, n, ranks, blocks: min(m, n, sum(ranks)),
                "this is Σ r_l, the columns of L: a level has p_l blocks, and each adds its own r_l",
            ),
            Mutant(
                "the largest level",
                lambda m, n, ranks, blocks: min(m, n, max(r * p for r, p in zip(ranks, blocks, strict=True))),
                "this is the rank of the largest level: the ranks of random levels add up",
            ),
            Mutant(
                "rows only",
                lambda m, n, ranks, blocks: min(m, _sum(ranks, blocks)),
                "your rank may exceed the number of columns: the least of m AND n",
            ),
            Mutant(
                "columns only",
                lambda m, n, ranks, blocks: min(n, _sum(ranks, blocks)),
                "your rank may exceed the number of rows: the least of m AND n",
            ),
        ),
        claim="003:table1-row3",
        difficulty=1,
        minutes=6,
        lines=1,
    )
)

# --------------------------------------------------------------------------------- 7.4 the cheapest train of full rank


def cheapest_train(m, n, rank):
    """Sizes (a, b, c, d) of the train of full rank with s = rank and the fewest parameters; of equals, the least b."""
    best = None
    for b in (k for k in range(1, m + 1) if m % k == 0):
        for c in (k for k in range(1, n + 1) if n % k == 0):
            cost = rank * (m * c + n * b)
            if b * c * rank >= min(m, n) and (best is None or cost < best[0]):
                best = cost, (m // b, b, c, n // c)
    return best[1]


def _search(m, n, rank, enough=lambda m, n, b, c, s: min(m, n, b * c * s) == min(m, n), cost=None):
    """All sizes, sorted by what their factors hold, then by b."""
    cost = cost or (lambda a, b, c, d, s: b * a * c * s + c * d * b * s)
    found = []
    for a in range(1, m + 1):
        for c in range(1, n + 1):
            b, d = m // a, n // c
            if a * b == m and c * d == n and enough(m, n, b, c, rank):
                found.append((cost(a, b, c, d, rank), b, c, (a, b, c, d)))
    return min(found)[-1]


def _square(m, n, rank):
    """The sizes nearest to squares, whatever is asked."""
    a, c = (max(k for k in range(1, size + 1) if size % k == 0 and k * k <= size) for size in (m, n))
    return a, m // a, c, n // c


def _cheap_cases(generator):
    yield from [
        (1, 1, 1),
        (16, 16, 1),
        (16, 16, 4),
        (12, 12, 1),
        (64, 64, 1),
        (64, 64, 2),
        (24, 6, 1),
        (8, 18, 2),
        (9, 4, 1),
        (7, 7, 1),
    ]


register(
    Exercise(
        id="7.4",
        title="The cheapest train of full rank",
        statement="Find the sizes of the block tensor train that has full rank and the fewest parameters.",
        oracle=_search,
        cases=_cheap_cases,
        solution=cheapest_train,
        hints=(
            "How many numbers has L (b, a, c, s), how many R (c, d, b, s)? Through how many does everything pass "
            "between them?",
            "Parameters s(mc + nb), rank min(m, n, bcs). Only b, a divisor of m, and c, a divisor of n, are free: try "
            "all pairs.",
            "Loop over b, then over c, both from small to large; skip where `b * c * rank < min(m, n)`; keep the first "
            "of the least `rank * (m * c + n * b)`; return `(m // b, b, c, n // c)`.",
        ),
        mutants=(
            Mutant(
                "any rank",
                lambda m, n, rank: _search(m, n, rank, enough=lambda *given: True),
                "these are the fewest parameters of all, and that is b = c = 1: a low rank matrix with r = s. Ask for "
                "b·c·s ≥ min(m, n)",
            ),
            Mutant(
                "s forgotten",
                lambda m, n, rank: _search(m, n, rank, enough=lambda m, n, b, c, s: b * c >= min(m, n)),
                "you ask for b·c ≥ min(m, n): there are b·c·s numbers between the factors, so that a larger s allows a "
                "smaller b·c",
            ),
            Mutant(
                "just enough",
                lambda m, n, rank: _search(m, n, rank, enough=lambda m, n, b, c, s: b * c * s == min(m, n)),
                "you ask for b·c·s = min(m, n): with more than that a train may be cheaper",
            ),
            Mutant(
                "the larger size",
                lambda m, n, rank: _search(m, n, rank, enough=lambda m, n, b, c, s: b * c * s >= max(m, n)),
                "you ask for b·c·s ≥ max(m, n): an (m, n) matrix has full rank with min(m, n)",
            ),
            Mutant(
                "the largest b",
                lambda m, n, rank: _search(m, n, rank, cost=lambda a, b, c, d, s: (s * (a * b * c + c * d * b), -b)),
                "where several sizes cost the same, yours is not the one with the least b",
            ),
            Mutant(
                "the wrong side",
                lambda m, n, rank: _search(m, n, rank, cost=lambda a, b, c, d, s: s * (a * b * b + c * d * c)),
                "your count is s(mb + nc): the blocks of L are (a, c·s), so that L holds m·c·s numbers and R n·b·s",
            ),
            Mutant(
                "always squares",
                _square,
                "you take the sizes nearest to squares: with s > 1, or with m ≠ n, there is a cheaper train",
            ),
        ),
        claim="003:table1-row4",
        difficulty=2,
        minutes=12,
        lines=7,
    )
)
