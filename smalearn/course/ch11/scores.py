"""The exercises of chapter 11 on scores in levels: who shares a block, and equation (9)."""

import itertools

import torch

from smalearn.course.exercises.core import exercise


def same_block(i, j, size, level=0):
    """Say whether tokens i and j lie in one block of this size."""
    return i // size == j // size


def near(i, j, size, level=0):
    """Say whether tokens i and j are less than a block apart."""
    return abs(i - j) < size


def one_place(i, j, size, level=0):
    """Say whether tokens i and j have the same place in their blocks."""
    return i % size == j % size


def from_one(i, j, size, level=0):
    """Say whether tokens i and j lie in one block if the first token is number 1."""
    return same_block(i + 1, j + 1, size)


# ------------------------------------------------------------------------------------------ 11.1 how many levels


def count_levels(length, block_lens, joined=same_block):
    """Pair by pair, level by level."""
    levels = range(len(block_lens))
    rows = [[sum(joined(i, j, block_lens[n], n) for n in levels) for j in range(length)] for i in range(length)]
    return torch.tensor(rows, dtype=torch.int64).view(length, length)


def _level_cases(randn):
    yield 1, [1]
    yield 4, [4, 2]
    yield 8, [8, 4, 2, 1]
    yield 16, [16, 8, 4, 2]
    yield 11, [12, 6, 3]
    yield 9, [9, 3]
    yield 5, [8, 4, 2]


def _joins(joined):
    """The count with another rule of who shares a block."""
    return lambda length, block_lens: count_levels(length, block_lens, joined)


@exercise(
    "11.1",
    "How many levels",
    claim="003:two-level",
    level=1,
    minutes=6,
    cases=_level_cases,
    oracle=count_levels,
    wrong={
        "your levels join tokens less than b apart: two neighbours on both sides of a border do not share a "
        "block. Compare i // b with j // b": _joins(near),
        "your levels join tokens up to b apart: a block is no distance. Compare i // b with j // b": _joins(
            lambda i, j, size, n: abs(i - j) <= size
        ),
        "you compare i mod b, the place within a block: the number of the block is i // b": _joins(one_place),
        "you add up the lengths of the blocks: each level that holds both counts 1": lambda length, block_lens: sum(
            size * (torch.arange(length)[:, None] // size == torch.arange(length) // size) for size in block_lens
        ),
        "you count tokens from 1, so that the first block is one short: the first is token 0": _joins(from_one),
        "token 0 stands alone in your code: blocks begin at 0, b, 2b, …": _joins(
            lambda i, j, size, n: (i - 1) // size == (j - 1) // size
        ),
        "you divide the distance i − j by b: it is the numbers of the blocks, i // b and j // b, that must be equal": (
            _joins(lambda i, j, size, n: (i - j) // size == 0)
        ),
        "a token does not meet itself in your count: on the diagonal stand all levels": _joins(
            lambda i, j, size, n: i != j and i // size == j // size
        ),
        "all levels or none in yours: a pair that shares no finest block may share coarser ones": (
            lambda length, block_lens: count_levels(length, block_lens[-1:]) * len(block_lens)
        ),
        "the finest level is missing: the sum runs over all of block_lens": lambda length, block_lens: count_levels(
            length, block_lens[:-1]
        ),
        "your blocks have b_1/b tokens: that is how many blocks there are; each has b tokens": (
            lambda length, block_lens: count_levels(length, [max(1, block_lens[0] // size) for size in block_lens])
        ),
        "you divide the text into b blocks: block_lens[l] is how long a block is, not how many there are": (
            lambda length, block_lens: count_levels(length, [max(1, length // size) for size in block_lens])
        ),
        "you divide the text into b parts, i b // T: block_lens[l] is how long a block is, not how many there are": (
            lambda length, block_lens: count_levels(
                length, block_lens, lambda i, j, size, n: i * size // length == j * size // length
            )
        ),
        "your blocks halve from level to level: their lengths are given in block_lens, and a first block may "
        "be longer than the text": lambda length, block_lens: count_levels(
            length, [max(1, length // 2**n) for n in range(len(block_lens))]
        ),
        "your blocks halve from level to level, rounded up: their lengths are given in block_lens": (
            lambda length, block_lens: count_levels(length, [-(-length // 2**n) for n in range(len(block_lens))])
        ),
        "your blocks are halves of the first, and of halves: the lengths of all levels are given in block_lens": (
            lambda length, block_lens: count_levels(
                length, [max(1, block_lens[0] // 2**n) for n in range(len(block_lens))]
            )
        ),
        "i / b is a fraction, and equals j / b for i = j alone: the number of a block is i // b": _joins(
            lambda i, j, size, n: i == j
        ),
        "on the diagonal you count one level more than there is": lambda length, block_lens: (
            count_levels(length, block_lens) + torch.eye(length, dtype=torch.int64)
        ),
        "the finest level is missing where there are several: the sum runs over all of block_lens": (
            lambda length, block_lens: count_levels(length, block_lens[:-1] or block_lens)
        ),
        "the last block is missing where it is not full: its tokens share it, too": lambda length, block_lens: (
            count_levels(length, block_lens, lambda i, j, size, n: same_block(i, j, size) and i < length // size * size)
        ),
        "rounding to the nearest moves the borders by half a block: round down, i // b": _joins(
            lambda i, j, size, n: round(i / size) == round(j / size)
        ),
        "your blocks begin half a block early: they begin at 0, b, 2b, …": _joins(
            lambda i, j, size, n: same_block(i + size // 2, j + size // 2, size)
        ),
        "you join blocks side by side, too: i // b and j // b must be equal": _joins(
            lambda i, j, size, n: abs(i // size - j // size) <= 1
        ),
        "the highest bit of i ^ j tells the level only if all lengths are powers of two: compare i // b with j // b": (
            _joins(lambda i, j, size, n: i ^ j < size)
        ),
        "you ask only whether the finest block is shared: a pair may share some "
        "levels and not the others": lambda length, block_lens: torch.where(
            count_levels(length, block_lens[-1:]) > 0, len(block_lens), 1
        ),
        "your d is 1 or 0: a pair that shares the finest level shares all the others, too": (
            lambda length, block_lens: count_levels(length, block_lens[-1:])
        ),
        "your d is 1 for every pair: it should count the levels that a pair shares": lambda length, block_lens: (
            count_levels(length, block_lens).clamp(max=1)
        ),
        "all your numbers are 1 too low: the coarsest level counts, too, and the first level is number 1": (
            lambda length, block_lens: count_levels(length, block_lens) - 1
        ),
        "all your numbers are 1 too high: a pair that shares the first level alone has d = 1": (
            lambda length, block_lens: count_levels(length, block_lens) + 1
        ),
        "you count the levels that part two tokens: d counts those that join them": lambda length, block_lens: (
            len(block_lens) - count_levels(length, block_lens)
        ),
        "this is L + 1 − d, the steps up the tree: d counts the levels that join a pair, all of them in one finest "
        "block": (lambda length, block_lens: len(block_lens) + 1 - count_levels(length, block_lens)),
        "you leave out the keys after a query: d says how near two tokens are, "
        "whichever comes first": lambda length, block_lens: count_levels(length, block_lens).tril(),
    },
)
def shared_levels(length, block_lens):
    """Count the levels that have tokens i and j in one block: d (T, T), int64.

    Count for every pair of tokens the levels at which one block holds both. Blocks nest, and the first is at least as
    long as the text: T <= block_lens[0].

    Hint: One level first: what is the number of the block in which token i lies, if a block has b tokens?

    Hint: Blocks begin at 0, b, 2b, …, so that token i is in block i // b. Two tokens share a block where these numbers
    are equal, and d counts for how many levels they are.

    Hint: With `tokens = torch.arange(length)`, `tokens[:, None] == tokens` is (T, T), every token compared with every
    other. Compare the numbers of their blocks, and add up.

    Insight: With L levels, L − d + 1 is a distance in a tree, an ultrametric: of three tokens, the two most distant
    pairs share equally many levels.
    """
    tokens = torch.arange(length)
    d = torch.zeros(length, length, dtype=torch.int64)
    for size in block_lens:
        d += tokens[:, None] // size == tokens // size
    return d


# ----------------------------------------------------------------------------------------------- 11.2 equation (9)


def pair_scores(Q, K, ranks, block_lens, joined=same_block, start_of=lambda ranks, n: sum(ranks[:n]), weight=None):
    """Pair by pair, level by level; `weight` of a level in a pair, from the pair, its levels and that level."""
    S = Q.new_zeros(len(Q), len(Q))
    for i in range(len(Q)):
        for j in range(len(Q)):
            shared = [n for n in range(len(ranks)) if joined(i, j, block_lens[n], n)]
            for n in shared:
                columns = slice(start_of(ranks, n), start_of(ranks, n) + ranks[n])
                S[i, j] += (weight(shared, ranks, n) if weight else 1) * (Q[i, columns] @ K[j, columns])
    return S


def _first_columns(count):
    """Scores of the first columns of each pair, `count` of them from the number of levels that it shares, and ranks."""

    def scores(Q, K, ranks, block_lens):
        shared = count_levels(len(Q), block_lens).tolist()
        columns = {d: slice(0, count(d, ranks)) for row in shared for d in row}
        rows = [[Q[i, columns[d]] @ K[j, columns[d]] for j, d in enumerate(row)] for i, row in enumerate(shared)]
        return torch.stack([torch.stack(row) for row in rows])

    return scores


def _evenly(Q, K, ranks, block_lens):
    """Columns n·r/L to (n + 1)·r/L for level n."""
    cuts = [Q.shape[1] * n // len(ranks) for n in range(len(ranks) + 1)]
    return pair_scores(Q, K, [end - start for start, end in itertools.pairwise(cuts)], block_lens)


def _chunks(Q, K, ranks, block_lens):
    """The columns cut by `chunk`: equally many a level, but the last."""
    parts = zip(Q.chunk(len(ranks), 1), K.chunk(len(ranks), 1), block_lens, strict=False)
    return sum(pair_scores(q, k, [q.shape[1]], [size]) for q, k, size in parts)


def _turned_round(Q, K, ranks, block_lens):
    """The levels l ≥ d(i, j)."""
    d, levels = count_levels(len(Q), block_lens), zip(Q.split(ranks, 1), K.split(ranks, 1), strict=True)
    return sum(q @ k.mT * (n >= d) for n, (q, k) in enumerate(levels, start=1))


def _minus_infinity(Q, K, ranks, block_lens):
    return pair_scores(Q, K, ranks, block_lens).masked_fill(count_levels(len(Q), block_lens) < len(ranks), -torch.inf)


def _without_the_first(Q, K, ranks, block_lens):
    own = [F[:, ranks[0] :] for F in (Q, K)]
    return pair_scores(*own, ranks[1:], block_lens[1:]) if len(ranks) > 1 else pair_scores(Q, K, ranks, block_lens)


def _score_cases(randn):
    for length, ranks, block_lens in [
        (1, [1], [1]),
        (5, [3], [5]),
        (4, [1, 1], [4, 2]),
        (8, [2, 1, 1], [8, 4, 2]),
        (11, [1, 2, 3], [12, 6, 3]),
        (6, [2, 2], [6, 3]),
        (4, [1, 1], [4, 4]),
    ]:
        yield randn(length, sum(ranks)), randn(length, sum(ranks)), ranks, block_lens


def _scores(**changed):
    """The scores with another rule."""
    return lambda *given: pair_scores(*given, **changed)


def _interleaved(Q, K, ranks, block_lens):
    """Column k belongs to level k modulo their number."""
    i, L = torch.arange(len(Q)), len(ranks)
    parts = (Q[:, n::L] @ K[:, n::L].mT * (i[:, None] // b == i // b) for n, b in enumerate(block_lens))
    return sum(parts)


@exercise(
    "11.2",
    "Scores by levels",
    claim="003:eq9",
    level=2,
    minutes=10,
    cases=_score_cases,
    oracle=pair_scores,
    wrong={
        "this is Q Kᵀ: all pairs use all columns. Level l counts only for "
        "pairs in one block of it": lambda Q, K, ranks, block_lens: Q @ K.mT,
        "you multiply all of Q Kᵀ by d: level l adds its own columns where it is shared": (
            lambda Q, K, ranks, block_lens: Q @ K.mT * count_levels(len(Q), block_lens)
        ),
        "each pair uses the columns of its finest level alone: the sum runs over all l ≤ d(i, j)": _scores(
            weight=lambda shared, ranks, n: n == shared[-1]
        ),
        "you take every L-th column for a level: levels stand side by side, each with r_l neighbouring columns": (
            _interleaved
        ),
        "you use the first level alone: pairs in one block have the columns of the finer levels, too": _scores(
            weight=lambda shared, ranks, n: n == 0
        ),
        "only pairs in one finest block have scores: others meet in the columns of coarser levels": _scores(
            weight=lambda shared, ranks, n: len(shared) == len(ranks)
        ),
        "your levels join tokens less than b apart, in place of i // b = j // b": _scores(joined=near),
        "your levels join tokens with one i mod b: the number of the block is i // b": _scores(joined=one_place),
        "you count tokens from 1, so that the first block is one short: the first is token 0": _scores(joined=from_one),
        "a level counts where one block does not hold both: turn the condition round": _scores(
            joined=lambda i, j, size, n: not same_block(i, j, size)
        ),
        "you divide the text into b blocks: block_lens[l] is how long a block is, not how many there are": (
            lambda Q, K, ranks, block_lens: pair_scores(Q, K, ranks, [max(1, len(Q) // size) for size in block_lens])
        ),
        "your blocks halve from level to level: their lengths are given in block_lens": (
            lambda Q, K, ranks, block_lens: pair_scores(Q, K, ranks, [max(1, len(Q) >> n) for n in range(len(ranks))])
        ),
        "your blocks halve from level to level, rounded up: their lengths are given in block_lens": (
            lambda Q, K, ranks, block_lens: pair_scores(Q, K, ranks, [-(-len(Q) // 2**n) for n in range(len(ranks))])
        ),
        "every level takes the first columns of Q and K: its own begin after those of the levels before": _scores(
            start_of=lambda ranks, n: 0
        ),
        "each of your levels begins at l times its own rank: it begins where the levels before it end": _scores(
            start_of=lambda ranks, n: n * ranks[n]
        ),
        "each of your levels begins one column after the one before: it begins after all r_l columns of that": _scores(
            start_of=lambda ranks, n: n
        ),
        "the first columns are those of your last level: they belong to the first, the coarsest": _scores(
            start_of=lambda ranks, n: sum(ranks[n + 1 :])
        ),
        "every level has equally many columns in your code: level l has ranks[l]": lambda Q, K, ranks, block_lens: (
            pair_scores(Q, K, [sum(ranks) // len(ranks)] * len(ranks), block_lens)
        ),
        "`chunk` makes levels that are equally wide: level l has ranks[l] columns, `split(ranks, 1)`": _chunks,
        "you turn l ≤ d round: a pair that shares d levels uses the columns of levels 1 to d": _turned_round,
        "your levels are equally wide: level l has ranks[l] columns": lambda Q, K, ranks, block_lens: pair_scores(
            Q, K, [part.shape[1] for part in Q.tensor_split(len(ranks), 1)], block_lens
        ),
        "you use the first d columns, one for each level: level l has ranks[l]": _first_columns(lambda d, ranks: d),
        "the last level that a pair shares is missing: the sum runs over l ≤ d(i, j)": _first_columns(
            lambda d, ranks: sum(ranks[: d - 1])
        ),
        "you go one level too far: a pair that shares d levels has the columns of the first d": _first_columns(
            lambda d, ranks: sum(ranks[: d + 1])
        ),
        "the number of columns is ranks[d - 1] in your code: it is the sum of the ranks of the first d levels": (
            _first_columns(lambda d, ranks: ranks[d - 1])
        ),
        "you take the finest levels: a pair that shares d levels shares the first d, the coarse ones": (
            lambda Q, K, ranks, block_lens: _first_columns(lambda d, ranks: sum(ranks[len(ranks) - d :]))(
                Q.flip(1), K.flip(1), ranks, block_lens
            )
        ),
        "coarse columns count several times: each level adds its own columns alone, not those before it again": _scores(
            weight=lambda shared, ranks, n: len(shared) - n
        ),
        "level l counts l times in your sum: it counts once": _scores(weight=lambda shared, ranks, n: n + 1),
        "you weigh all of Q Kᵀ by d/L, the part of the levels that is shared: each level has its own columns": (
            lambda Q, K, ranks, block_lens: Q @ K.mT * count_levels(len(Q), block_lens) / len(ranks)
        ),
        "the columns are dealt out evenly to the levels: level l has ranks[l] of them": _evenly,
        "where a level is not shared you have −∞: it adds nothing, 0, and the others count": _minus_infinity,
        "the first level is missing: all pairs share it": _without_the_first,
        "a pair that does not share all levels has the first level's columns alone in yours: it has those of all "
        "levels l ≤ d": _scores(weight=lambda shared, ranks, n: n == 0 or len(shared) == len(ranks)),
        "the keys after a query are −∞: the mask comes with the softmax, equation (9) is for all pairs": (
            lambda *given: pair_scores(*given).masked_fill(torch.ones(2 * [len(given[0])]).triu(1).bool(), -torch.inf)
        ),
        "this is q_i · k_i alone, for each token with itself: (T, T) are all pairs": lambda Q, K, *given: (Q * K).sum(
            -1
        ),
        "you leave out the keys after a query: the mask comes with the softmax, equation "
        "(9) is for all pairs": lambda *given: pair_scores(*given).tril(),
        "your scores are divided by √r: equation (9) has no such factor. Put it "
        "into Q if you want it": lambda Q, K, *given: pair_scores(Q, K, *given) / Q.shape[-1] ** 0.5,
        "your scores are divided by d(i, j), as in the published code: equation (9) has no such factor": _scores(
            weight=lambda shared, ranks, n: 1 / len(shared)
        ),
        "each level is divided by r_l, as in the published code: equation (9) has no such factor": _scores(
            weight=lambda shared, ranks, n: 1 / max(1, ranks[n])
        ),
        "each level is divided by √r_l: equation (9) has no such factor": _scores(
            weight=lambda shared, ranks, n: max(1, ranks[n]) ** -0.5
        ),
        "rows belong to queries: this is the transpose of S": lambda Q, K, *given: pair_scores(K, Q, *given),
    },
)
def level_scores(Q, K, ranks, block_lens):
    """S (T, T): S[i, j] sums Q_l[i] · K_l[j] over the levels l ≤ d(i, j). Q and K (T, Σ r_l), level beside level.

    Compute the scores of equation (9), where a pair uses the columns of the levels that it shares. Blocks nest, and
    T <= block_lens[0].

    Hint: Turn the sum round: instead of asking a pair for its levels, ask a level for its pairs.

    Hint: Level l adds Q_l K_lᵀ, with its own columns, wherever it counts: multiply by the (T, T) matrix of who shares a
    block of it.

    Hint: Level l has columns `start` to `start + rank` of Q and of K. As in 11.1, numbers of blocks tell
    which pairs count; and where does the next level start?

    Insight: Far tokens meet in few columns: their scores are coarse and cheap, and little of their keys need be kept.
    """
    tokens, S, start = torch.arange(len(Q)), 0, 0
    for rank, size in zip(ranks, block_lens, strict=True):
        together = tokens[:, None] // size == tokens // size
        S = S + together * (Q[:, start : start + rank] @ K[:, start : start + rank].mT)
        start += rank
    return S
