"""The exercises of chapter 11 on scores in levels: who shares a block, and equation (9)."""

import torch

from smalearn.course.exercises.core import exercise


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


def count_levels(length, block_lens):
    """Pair by pair, level by level."""
    rows = [[sum(i // size == j // size for size in block_lens) for j in range(length)] for i in range(length)]
    return torch.tensor(rows, dtype=torch.int64).view(length, length)


def _level_cases(randn):
    yield 1, [1]
    yield 4, [4, 2]
    yield 8, [8, 4, 2, 1]
    yield 16, [16, 8, 4, 2]
    yield 11, [12, 6, 3]
    yield 9, [9, 3]
    yield 5, [8, 4, 2]


exercise(
    "11.1",
    "How many levels",
    claim="003:two-level",
    level=1,
    minutes=6,
    cases=_level_cases,
    oracle=count_levels,
    wrong={
        "your levels join tokens less than b apart: two neighbours on both sides of a border do not share a block. "
        "Compare "
        "i // b with j // b": "tokens[:, None] // size == tokens // size → abs(tokens[:, None] - tokens) < size",
        "your levels join tokens up to b apart: a block is no distance. Compare "
        "i // b with j // b": "tokens[:, None] // size == tokens // size → abs(tokens[:, None] - tokens) <= size",
        "you compare i mod b, the place within a block: the number of the block is i // b": "// → %",
        "you add up the lengths of the blocks: "
        "each level that holds both counts 1": "+= → += size * ( ; tokens // size → tokens // size)",
        "you count tokens from 1, so that the first block is one short: "
        "the first is token 0": "arange(length) → arange(1, length + 1)",
        "token 0 stands alone in your code: blocks begin at 0, b, 2b, …": "arange(length) → arange(-1, length - 1)",
        "you divide the distance i − j by b: it is the numbers of the blocks, i // b and j // b, "
        "that must be equal": "tokens[:, None] // size == tokens // size → (tokens[:, None] - tokens) // size == 0",
        "a token does not meet itself in your count: "
        "on the diagonal stand all levels": "return d → return d.fill_diagonal_(0)",
        "all levels or none in yours: a pair "
        "that shares no finest block may share coarser ones": "in block_lens → in block_lens[-1:] * len(block_lens)",
        "the finest level is missing: the sum runs over all of block_lens": "in block_lens → in block_lens[:-1]",
        "your blocks have b_1/b tokens: that is how many blocks there are; "
        "each has b tokens": "in block_lens → in [max(1, block_lens[0] // size) for size in block_lens]",
        "you divide the text into b blocks: block_lens[l] is how long a block is, "
        "not how many there are": "in block_lens → in [max(1, length // size) for size in block_lens]",
        "you divide the text into b parts, i b // T: "
        "block_lens[l] is how long a block is, not how many there are": "// size → * size // length",
        "your blocks halve from level to level: their lengths are given in block_lens, and a first block "
        "may be longer than the text": "in block_lens → in [max(1, length // 2**n) for n in range(len(block_lens))]",
        "your blocks halve from level to level, rounded up: their "
        "lengths are given in block_lens": "in block_lens → in [-(-length // 2**n) for n in range(len(block_lens))]",
        "your blocks are halves of the first, and of halves: the lengths of all levels "
        "are given in block_lens": "in block_lens → in [max(1, block_lens[0] // 2**n) for n in range(len(block_lens))]",
        "i / b is a fraction, and equals j / b for i = j alone: the number of a block is i // b": "// → /",
        "on the diagonal you count one level more than there is": "zeros(length, length → eye(length",
        "the finest level is missing where there are several: "
        "the sum runs over all of block_lens": "in block_lens → in block_lens[:-1] or block_lens",
        "the last block is missing where it is not full: "
        "its tokens share it, too": "+= → += (tokens < length // size * size) & ( ; tokens // size → tokens // size)",
        "rounding to the nearest moves the borders by half a block: round down, i // "
        "b": "tokens[:, None] // size == tokens // size → (tokens[:, None] / size).round() == (tokens / size).round()",
        "your blocks begin half a block early: they begin at 0, b, 2b, …": (
            "tokens[:, None] // size == tokens // size → "
            "(tokens[:, None] + size // 2) // size == (tokens + size // 2) // size"
        ),
        "you join blocks side by side, too: i // b and j // b must "
        "be equal": "tokens[:, None] // size == tokens // size → abs(tokens[:, None] // size - tokens // size) <= 1",
        "the highest bit of i ^ j tells the level only if all lengths are powers of two: "
        "compare i // b with j // b": "tokens[:, None] // size == tokens // size → tokens[:, None] ^ tokens < size",
        "you ask only whether the finest block is shared: "
        "a pair may share some levels and not the others": "return d → return torch.where(d == len(block_lens), d, 1)",
        "your d is 1 or 0: a "
        "pair that shares the finest level shares all the others, too": "in block_lens → in block_lens[-1:]",
        "your d is 1 for every pair: it should count the levels that a pair shares": "return d → return d.clamp(max=1)",
        "all your numbers are 1 too low: "
        "the coarsest level counts, too, and the first level is number 1": "return d → return d - 1",
        "all your numbers are 1 too high: "
        "a pair that shares the first level alone has d = 1": "return d → return d + 1",
        "you count the levels that part two tokens: "
        "d counts those that join them": "return d → return len(block_lens) - d",
        "this is L + 1 − d, the steps up the tree: d counts the levels that join a pair, "
        "all of them in one finest block": "return d → return len(block_lens) + 1 - d",
        "you leave out the keys after a query: "
        "d says how near two tokens are, whichever comes first": "return d → return d.tril()",
    },
)(shared_levels)


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


def pair_scores(Q, K, ranks, block_lens):
    """Pair by pair, level by level."""
    S = Q.new_zeros(len(Q), len(Q))
    for i in range(len(Q)):
        for j in range(len(Q)):
            for n, size in enumerate(block_lens):
                if i // size == j // size:
                    columns = slice(sum(ranks[:n]), sum(ranks[: n + 1]))
                    S[i, j] += Q[i, columns] @ K[j, columns]
    return S


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


exercise(
    "11.2",
    "Scores by levels",
    claim="003:eq9",
    level=2,
    minutes=10,
    cases=_score_cases,
    oracle=pair_scores,
    wrong={
        "this is Q Kᵀ: all pairs use all columns. "
        "Level l counts only for pairs in one block of it": "return S → return Q @ K.mT",
        "you multiply all of Q Kᵀ by d: level "
        "l adds its own columns where it is shared": "return S → return Q @ K.mT * count_levels(len(Q), block_lens)",
        "each pair uses the columns of its finest level alone: "
        "the sum runs over all l ≤ d(i, j)": "S + together * (Q → torch.where(together, Q ; .mT) → .mT, S)",
        "you take every L-th column for a level: levels stand side by side, "
        "each with r_l neighbouring columns": "start : start + rank → start :: len(ranks) ; += rank → += 1",
        "you use the first level alone: "
        "pairs in one block have the columns of the finer levels, too": "start += rank → break",
        "your levels join tokens less than b apart, in "
        "place of i // b = j // b": "tokens[:, None] // size == tokens // size → abs(tokens[:, None] - tokens) < size",
        "your levels join tokens with one i mod b: the number of the block is i // b": "// → %",
        "you count tokens from 1, so that the first block is one short: "
        "the first is token 0": "arange(len(Q)) → arange(1, len(Q) + 1)",
        "a level counts where one block does not hold both: turn the condition round": "== → !=",
        "you divide the text into b blocks: block_lens[l] is how long a block is, "
        "not how many there are": "block_lens, → [max(1, len(Q) // size) for size in block_lens],",
        "your blocks halve from level to level: "
        "their lengths are given in block_lens": "block_lens, → [max(1, len(Q) >> n) for n in range(len(ranks))],",
        "your blocks halve from level to level, rounded up: "
        "their lengths are given in block_lens": "block_lens, → [-(-len(Q) // 2**n) for n in range(len(ranks))],",
        "every level takes the first columns of Q and K: "
        "its own begin after those of the levels before": "start += rank → start = 0",
        "each of your levels begins at l times its own rank: it begins "
        "where the levels before it end": "start : start + rank → start * rank : start * rank + rank ; += rank → += 1",
        "each of your levels begins one column after the one before: "
        "it begins after all r_l columns of that": "+= rank → += 1",
        "the first columns are those of your last level: they belong to the first, "
        "the coarsest": "0, 0 → 0, Q.shape[1] ; start : start + rank → start - rank : start ; += → -=",
        "every level has equally many columns in your code: "
        "level l has ranks[l]": "zip(ranks → zip([sum(ranks) // len(ranks)] * len(ranks)",
        "`chunk` makes levels that are equally wide: level l has ranks[l] columns, `split(ranks, "
        "1)`": "zip(ranks → zip([part.shape[1] for part in Q.chunk(len(ranks), 1)] ; strict=True → strict=False",
        "you turn l ≤ d round: a pair that shares d levels uses the columns of levels 1 to d": (
            "rank, size in zip(ranks, block_lens, strict=True) → n, rank in enumerate(ranks, 1) ; "
            "tokens[:, None] // size == tokens // size → n >= count_levels(len(Q), block_lens)"
        ),
        "your levels are equally wide: "
        "level l has ranks[l] columns": "zip(ranks → zip([part.shape[1] for part in Q.tensor_split(len(ranks), 1)]",
        "you use the first d columns, one for each level: "
        "level l has ranks[l]": "start + rank → start + 1 ; += rank → += 1",
        "the last level that a pair shares is missing: the sum runs "
        "over l ≤ d(i, j)": "zip(ranks, block_lens, strict=True) → zip(ranks, block_lens[1:]) ; 0, 0 → 0 * Q @ K.mT, 0",
        "you go one level too far: a pair that shares d levels has "
        "the columns of the first d": "zip(ranks, block_lens, strict=True) → zip(ranks, block_lens[:1] + block_lens)",
        "the number of columns is ranks[d - 1] in your code: it is the sum of the ranks of the "
        "first d levels": "S + together * (Q → torch.where(together, Q ; .mT) → .mT, S) ; start : start + rank → :rank",
        "you take the finest levels: a pair that shares d levels shares the first d, the coarse ones": (
            "for rank → Q, K = Q.flip(1), K.flip(1)\n    for rank ; zip(ranks → zip(ranks[::-1] ; "
            "S + together * (Q → torch.where(together, Q ; .mT) → .mT, S) ; start : start + rank → : start + rank"
        ),
        "coarse columns count several times: "
        "each level adds its own columns alone, not those before it again": "start : start + rank → : start + rank",
        "level l counts l times in your sum: it counts once": (
            "rank, size in zip(ranks, block_lens, strict=True) → "
            "n, (rank, size) in enumerate(zip(ranks, block_lens), 1) ; + together → + n * together"
        ),
        "you weigh all of Q Kᵀ by d/L, the part of the levels that is shared: "
        "each level has its own columns": "return S → return Q @ K.mT * count_levels(len(Q), block_lens) / len(ranks)",
        "the columns are dealt out evenly to the levels: level l has ranks[l] of them": (
            "start : start + rank → start // len(ranks) : (start + Q.shape[1]) // len(ranks) ; += rank → += Q.shape[1]"
        ),
        "where a level is not shared you have −∞: "
        "it adds nothing, 0, and the others count": "return S → return S.masked_fill(~together, -torch.inf)",
        "a pair that does not share all levels has the first level's columns alone in yours: it has those "
        "of all levels l ≤ d": "return S → return torch.where(together, S, Q[:, : ranks[0]] @ K[:, : ranks[0]].mT)",
        "this is q_i · k_i alone, for each token with itself: "
        "(T, T) are all pairs": "return S → return (Q * K).sum(-1)",
        "you leave out the keys after a query: "
        "the mask comes with the softmax, equation (9) is for all pairs": "return S → return S.tril()",
        "your scores are divided by √r: "
        "equation (9) has no such factor. Put it into Q if you want it": "return S → return S / Q.shape[-1] ** 0.5",
        "your scores are divided by d(i, j), as in the published code: "
        "equation (9) has no such factor": "return S → return S / count_levels(len(Q), block_lens)",
        "each level is divided by r_l, as in the published code: equation (9) has no such factor": ".mT) → .mT) / rank",
        "each level is divided by √r_l: equation (9) has no such factor": ".mT) → .mT) / rank**0.5",
        "rows belong to queries: this is the transpose of S": "return S → return S.mT",
    },
)(level_scores)
