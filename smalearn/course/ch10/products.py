"""The exercises of chapter 10 on fast products: levels, and block tensor trains."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# --------------------------------------------------------------------------------------------- 10.2 level by level


def _joined(i, j, p, dim):
    """Say whether features i and j lie in the same of p blocks."""
    return i // (dim // p) == j // (dim // p)


def _levels_loop(L, R, ranks, blocks, x, joined=_joined, start_of=lambda ranks, i: sum(ranks[:i])):
    """M x, feature by feature: level l joins i and j where both lie in the same block."""
    dim, y = len(x), torch.zeros_like(x)
    for level, (rank, p) in enumerate(zip(ranks, blocks, strict=True)):
        start = start_of(ranks, level)
        for i in range(dim):
            for j in range(dim):
                if joined(i, j, p, dim):
                    y[i] += L[i, start : start + rank] @ R[j, start : start + rank] * x[j]
    return y


def _cascade(L, R, ranks, blocks, x):
    """The levels one after the other, each fed with what the one before has made."""
    for level, (rank, p) in enumerate(zip(ranks, blocks, strict=True)):
        start = sum(ranks[:level])
        factors = (F[:, start : start + rank] for F in (L, R))
        x = _levels_loop(*factors, [rank], [p], x)
    return x


def _reshaped(R, ranks, blocks):
    """Blocks that are their own transposes, read in the wrong order."""
    levels = zip(R.split(ranks, 1), blocks, strict=True)
    return torch.cat([level.reshape(p, -1, len(R) // p).mT.reshape(len(R), -1) for level, p in levels], 1)


def _moved_by_blocks(L, R, ranks, blocks, x):
    """Columns begin after the numbers of blocks of the levels before."""
    y, start = torch.zeros_like(x), 0
    for rank, p in zip(ranks, blocks, strict=True):
        y, start = y + _levels_loop(L[:, start:], R[:, start:], [rank], [p], x), start + p
    return y


def _alternating(L, R, ranks, blocks, x):
    """Columns of the levels in turns: the first of each, the second of each."""
    parts = [[F[:, level :: len(ranks)][:, :rank] for F in (L, R)] for level, rank in enumerate(ranks)]
    return sum(_levels_loop(*F, [F[0].shape[1]], [p], x) for F, p in zip(parts, blocks, strict=True))


def _far_pieces(L, R, ranks, blocks, x):
    """Pieces of x are every p-th feature, those of the factors side by side."""
    levels = zip(L.split(ranks, 1), R.split(ranks, 1), blocks, strict=True)
    return sum(_levels_loop(*F, [F[0].shape[1]], [p], x.view(-1, p).mT.flatten()) for *F, p in levels)


def _level_cases(randn):
    for dim, ranks, blocks in [
        (1, [1], [1]),
        (4, [2], [1]),
        (4, [1], [2]),
        (6, [1, 2], [1, 3]),
        (8, [2, 1, 1], [1, 2, 4]),
    ]:
        L, R, x = randn(dim, sum(ranks)), randn(dim, sum(ranks)), randn(dim)
        yield L, R, ranks, blocks, x
    yield randn(4, 2), randn(4, 2), [1, 1], [1, 1], randn(4)


@exercise(
    "10.2",
    "Level by level",
    claim="003:eq4",
    level=2,
    minutes=12,
    cases=_level_cases,
    way=Way(case=lambda randn, D: (randn(D, 2), randn(D, 2), [1, 1], [1, 2], randn(D)), memory=1, loops=0, axis="D"),
    oracle=_levels_loop,
    wrong={
        "this is L Rᵀ x, low rank: every level sees the whole of x. At level l a feature meets only its own "
        "block of D/p_l features": lambda L, R, ranks, blocks, x: L @ (R.mT @ x),
        "your blocks hold every p-th feature: a block is D/p_l features side by side": lambda *given: _levels_loop(
            *given, joined=lambda i, j, p, dim: i % p == j % p
        ),
        "your blocks have p_l features: p_l is how many blocks there are, each of D/p_l features": lambda *given: (
            _levels_loop(*given, joined=lambda i, j, p, dim: i // p == j // p)
        ),
        "every level takes the first columns of L and R: level l has its own, after those "
        "of the levels before": lambda *given: _levels_loop(*given, start_of=lambda ranks, level: 0),
        "your columns start at the number of the level: they start after all r of the levels before, at their "
        "sum": lambda *given: _levels_loop(*given, start_of=lambda ranks, level: level),
        "you take the columns of the levels from the right: the first level's come first": lambda *given: _levels_loop(
            *given, start_of=lambda ranks, level: sum(ranks[level + 1 :])
        ),
        "you exchanged ranks and blocks: level l has r_l columns and p_l blocks": lambda L, R, ranks, blocks, x: (
            levels_product(L, R, blocks, ranks, x)
        ),
        "your blocks are in the opposite order: blocks[l] belongs to ranks[l]": lambda L, R, ranks, blocks, x: (
            _levels_loop(L, R, ranks, blocks[::-1], x)
        ),
        "your numbers of blocks double from level to level: they are given in blocks": lambda L, R, ranks, blocks, x: (
            _levels_loop(L, R, ranks, [2**level for level in range(len(ranks))], x)
        ),
        "you move on by the number of blocks: a level's columns begin after the RANKS of those before": (
            _moved_by_blocks
        ),
        "you deal out the columns to the levels in turns: level l has r_l columns side by side": _alternating,
        "you cut x into every p-th feature, but the rows of L and R into pieces: x, too, is D/p features side by "
        "side": _far_pieces,
        "only the diagonal of L Rᵀ is there: a block joins D/p features with one another": lambda *given: (
            (given[0] * given[1]).sum(1) * given[-1]
        ),
        "the first level is missing": lambda L, R, ranks, blocks, x: _levels_loop(
            L[:, ranks[0] :], R[:, ranks[0] :], ranks[1:], blocks[1:], x
        ),
        "the last level is missing": lambda L, R, ranks, blocks, x: _levels_loop(L, R, ranks[:-1], blocks[:-1], x),
        "only the last level is left, each overwrites the one before: add them up": lambda L, R, ranks, blocks, x: (
            _levels_loop(L[:, -ranks[-1] :], R[:, -ranks[-1] :], ranks[-1:], blocks[-1:], x)
        ),
        "you feed each level with what the one before has made, a product of the levels. They all see x, and "
        "the results add up": _cascade,
        "you take the mean of the levels: they are added, with no weights": lambda L, R, ranks, blocks, x: (
            _levels_loop(L, R, ranks, blocks, x) / len(ranks)
        ),
        "L and R are exchanged, so this is Mᵀ x: R reads x, L writes y": lambda L, R, ranks, blocks, x: _levels_loop(
            R, L, ranks, blocks, x
        ),
        "you divide each level by its number of blocks: levels are simply added": lambda L, R, ranks, blocks, x: sum(
            _levels_loop(left, right, [left.shape[1]], [p], x) / p
            for left, right, p in zip(L.split(ranks, 1), R.split(ranks, 1), blocks, strict=True)
        ),
        "you reshape a block of R to (r_l, D/p_l): that moves nothing. Take its transpose, `.mT`": (
            lambda L, R, ranks, blocks, x: _levels_loop(L, _reshaped(R, ranks, blocks), ranks, blocks, x)
        ),
    },
)
def levels_product(L, R, ranks, blocks, x):
    """M x for the multi-level low rank M with factors L and R (D, Σ r_l), level l in p_l equal blocks.

    Multiply a vector by a multi-level low rank matrix without forming the matrix.

    Hint: One level first. Its p blocks of L are (p, D/p, r), those of R too, and x is p pieces of D/p features.

    Hint: Each piece of x meets its own block of R and becomes r numbers; its own block of L makes D/p of them. With the
    blocks as a leading axis that is two batched products. Then add up the levels.

    Hint: If a level's columns begin at `start`, then `R[:, start : start + rank].unflatten(0, (p, -1))` are its blocks,
    and x goes in as `x.view(p, -1, 1)`. Where do the columns of the next level begin?

    Insight: With p_l = 1 it is a low rank, with p_l = D a diagonal: levels hold both ends, and every block size
    between.
    """
    y, start = torch.zeros_like(x), 0
    for rank, p in zip(ranks, blocks, strict=True):
        L_l, R_l = (F[:, start : start + rank].unflatten(0, (p, -1)) for F in (L, R))
        y = y + (L_l @ (R_l.mT @ x.view(p, -1, 1))).flatten()
        start += rank
    return y


# ----------------------------------------------------------------------------------- 10.4 two products and a regrouping


def _train_loop(L, R, x):
    """M x by the formula of its entries."""
    b, a, c, s = L.shape
    d = R.shape[1]
    y = torch.zeros(a * b, dtype=x.dtype)
    for row in range(a * b):
        for column in range(c * d):
            (i, j), (k, h) = divmod(row, b), divmod(column, d)
            y[row] += sum(L[j, i, k, q] * R[k, h, j, q] for q in range(s)) * x[column]
    return y


def _unmoved(L, R, x):
    """Read the numbers between the factors in the order (b, c, s), though they are written as (c, b, s)."""
    b, _, c, s = L.shape
    Z = (R.flatten(2).mT @ x.view(c, -1, 1)).reshape(b, c * s, 1)
    return (L.flatten(2) @ Z)[..., 0].mT.flatten()


def _neither(L, R, x):
    """Both factors, no permutation."""
    b, _, c, s = L.shape
    Z = (R.flatten(2).mT @ x.view(c, -1, 1)).reshape(b, c * s, 1)
    return (L.flatten(2) @ Z).flatten()


def _reversed(L, R, x):
    """P_R turns all three axes around: (c, b, s) to (s, b, c)."""
    b, _, c, s = L.shape
    Z = (R.flatten(2).mT @ x.view(c, -1, 1)).view(c, b, s).transpose(0, 2).reshape(b, c * s, 1)
    return (L.flatten(2) @ Z)[..., 0].mT.flatten()


def _crossed_ranks(L, R, x):
    """P_R moves b to the front, but leaves s before c."""
    b, _, c, s = L.shape
    Z = (R.flatten(2).mT @ x.view(c, -1, 1)).view(c, b, s).permute(1, 2, 0).reshape(b, c * s, 1)
    return (L.flatten(2) @ Z)[..., 0].mT.flatten()


def _train_cases(randn):
    for a, b, c, d, s in [(1, 1, 1, 1, 1), (2, 1, 1, 3, 2), (1, 3, 1, 2, 1), (3, 1, 2, 2, 1), (2, 2, 2, 2, 1)]:
        yield randn(b, a, c, s), randn(c, d, b, s), randn(c * d)
    for a, b, c, d, s in [(2, 3, 2, 3, 2), (3, 4, 2, 6, 2)]:
        yield randn(b, a, c, s), randn(c, d, b, s), randn(c * d)


@exercise(
    "10.4",
    "Mix, regroup, mix, regroup",
    claim="003:eq5",
    level=2,
    minutes=15,
    cases=_train_cases,
    way=Way(
        case=lambda randn, D: (randn(2, D // 2, 2, 1), randn(2, D // 2, 2, 1), randn(D)),
        memory=1,
        loops=0,
        axis="D",
        forbids=("torch.functional.block_diag",),
    ),
    gradient=("L", "R"),
    oracle=_train_loop,
    wrong={
        "the result is in the order (b a): P_L is missing. Row number i·b + j is entry i of block j": lambda L, R, x: (
            _train_loop(L, R, x).view(L.shape[1], L.shape[0]).mT.flatten()
        ),
        "P_R is missing: you read the numbers between the factors as (b, c, s), but they were written as "
        "(c, b, s). A view moves nothing": _unmoved,
        "P_R and P_L are both missing: bring the (c, b, s) numbers between the factors into the order "
        "(b, c, s), and the (b, a) numbers at the end into (a, b)": _neither,
        "you turn (c, b, s) around to (s, b, c): P_R makes (b, c, s) of it, and exchanges c and b alone": _reversed,
        "the blocks of L have their columns in the order (c, s), yours meet them as (s, c): P_R exchanges c "
        "and b alone": _crossed_ranks,
        "you cut x into every c-th feature: columns are numbered (c d), so a piece is d "
        "features side by side": lambda L, R, x: _train_loop(L, R, x.view(R.shape[1], R.shape[0]).mT.flatten()),
        "only the first of the s terms is there: sum over s too": lambda L, R, x: _train_loop(
            L[..., :1], R[..., :1], x
        ),
        "you sum over s in either factor separately: each of the s terms is a product of both": lambda L, R, x: (
            _train_loop(L.sum(-1, keepdim=True), R.sum(-1, keepdim=True), x)
        ),
        "you reshape L to (a, b, c, s): that moves nothing. Take its transpose": lambda L, R, x: _train_loop(
            L.reshape(L.shape[1], L.shape[0], *L.shape[2:]).transpose(0, 1), R, x
        ),
        "you cut the b·s numbers of a block of R into (s, b): R is (c, d, b, s), with s last": lambda L, R, x: (
            _train_loop(L, R.flatten(2).unflatten(-1, R.shape[:1:-1]).mT, x)
        ),
        "you reshape a block of R to (b·s, d): that moves nothing. Take its transpose, `.mT`": lambda L, R, x: (
            _train_loop(L, R.reshape(len(R), -1, R.shape[1]).mT.reshape(R.shape), x)
        ),
        "you divide by s, a mean: the s terms are added": lambda L, R, x: _train_loop(L, R, x) / L.shape[3],
        "you divide by c, a mean: the c pieces are added": lambda L, R, x: _train_loop(L, R, x) / L.shape[2],
        "you divide by c·s, a mean: what the blocks of L are multiplied with is added up": lambda L, R, x: (
            _train_loop(L, R, x) / L[0, 0].numel()
        ),
        "your rows are in the order (a b) and then permuted once more: P_L acts once": lambda L, R, x: (
            _train_loop(L, R, x).view(L.shape[0], L.shape[1]).mT.flatten()
        ),
        "you view (b, a) as (a, b), which moves nothing: transpose it": lambda L, R, x: (
            _train_loop(L, R, x).view(L.shape[1], -1).mT.reshape(L.shape[1], -1).mT.flatten()
        ),
    },
)
def train_product(L, R, x):
    """M x for a block tensor train with factors L (b, a, c, s) and R (c, d, b, s).

    Multiply a vector by a block tensor train: two batched products, with a regrouping after each.

    Hint: Start at the right: cut x into c pieces of d features. Each meets its own block of R, a (d, b·s) matrix,
    transposed. What are the axes of the result?

    Hint: The result is (c, b, s): c blocks have each made b·s numbers. Block j of L wants (c, s) numbers, those with b
    = j. So bring b to the front; the order of c and s stays.

    Hint: `Z = R.flatten(2).mT @ x.view(c, -1, 1)` is the first product, (c, b·s, 1), and a view gives its axes their
    names: `Z.view(c, b, s)`. The second product is (b, a, 1), but rows are numbered (a b).

    Insight: The regroupings move numbers and compute nothing: on a GPU they decide whether the two products are fast.
    """
    b, _, c, s = L.shape
    Z = R.flatten(2).mT @ x.view(c, -1, 1)  # (c, b·s, 1)
    Z = Z.view(c, b, s).transpose(0, 1).reshape(b, c * s, 1)  # P_R
    Y = L.flatten(2) @ Z  # (b, a, 1)
    return Y[..., 0].mT.flatten()  # P_L
