"""The exercises of chapter 10 on fast products: levels, and block tensor trains."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


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


def _levels_loop(L, R, ranks, blocks, x):
    """M x, feature by feature: level l joins i and j where both lie in the same block."""
    dim, y = len(x), torch.zeros_like(x)
    for level, (rank, p) in enumerate(zip(ranks, blocks, strict=True)):
        start = sum(ranks[:level])
        for i in range(dim):
            for j in range(dim):
                if i // (dim // p) == j // (dim // p):
                    y[i] += L[i, start : start + rank] @ R[j, start : start + rank] * x[j]
    return y


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


exercise(
    "10.2",
    "Level by level",
    claim="003:eq4",
    level=2,
    minutes=12,
    cases=_level_cases,
    way=Way(
        case=lambda randn, D: (randn(D, 2), randn(D, 2), [1, 1], [1, D // 2], randn(D)), memory=1, loops=0, axis="D"
    ),
    oracle=_levels_loop,
    wrong={
        "this is L Rᵀ x, low rank: every level sees the whole of x. "
        "At level l a feature meets only its own block of D/p_l features": "return y → return L @ (R.mT @ x)",
        "your blocks hold every p-th feature: a block is D/p_l features side by side": (
            "(p, -1)) → (-1, p)).transpose(0, 1) ; x.view(p, -1, 1) → x.view(-1, p).mT[..., None] ; "
            ".flatten() → [..., 0].mT.flatten()"
        ),
        "your blocks have p_l features: p_l is how many blocks there are, "
        "each of D/p_l features": "(p, -1)) → (-1, p)) ; view(p, -1, 1) → view(-1, p, 1)",
        "every level takes the first columns of L and R: "
        "level l has its own, after those of the levels before": "start += rank → start = 0",
        "you take the columns of the levels from the right: the "
        "first level's come first": "(x), 0 → (x), L.shape[1] ; start : start + rank → start - rank : start ; += → -=",
        "you exchanged ranks and blocks: "
        "level l has r_l columns and p_l blocks": "zip(ranks, blocks → zip(blocks, ranks",
        "your blocks are in the opposite order: "
        "blocks[l] belongs to ranks[l]": "zip(ranks, blocks → zip(ranks, blocks[::-1]",
        "you take one column a level: level l has r_l": "start : start + rank → start : start + 1 ; += rank → += 1",
        "your numbers of blocks double from level to level: "
        "they are given in blocks": "zip(ranks, blocks → zip(ranks, [2**level for level in range(len(ranks))]",
        "you move on by the number of blocks: "
        "a level's columns begin after the RANKS of those before": "+= rank → += p",
        "you deal out the columns to the levels in turns: level "
        "l has r_l columns side by side": "start : start + rank] → start :: len(ranks)][:, :rank] ; += rank → += 1",
        "you cut x into every p-th feature, but the rows of L and R into pieces: "
        "x, too, is D/p features side by side": "x.view(p, -1, 1) → x.view(-1, p).mT[..., None]",
        "the last level is missing": "zip(ranks, blocks, strict=True) → zip(ranks[:-1], blocks)",
        "you feed each level with what the one before has made, a product of the levels. "
        "They all see x, and the results add up": "y = y + → y = x =",
        "you take the mean of the levels: they are added, with no weights": "return y → return y / len(ranks)",
        "L and R are exchanged, so this is Mᵀ x: R reads x, L writes y": "in (L, R) → in (R, L)",
        "you divide each level by its number of blocks: levels are simply added": ".flatten() → .flatten() / p",
        "you reshape a block of R to (r_l, D/p_l): "
        "that moves nothing. Take its transpose, `.mT`": "R_l.mT → R_l.reshape(p, rank, -1)",
    },
)(levels_product)


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


def _train_loop(L, R, x):
    """M x by the formula of its entries."""
    b, a, c, s = L.shape
    d = R.shape[1]
    y = torch.zeros(a * b, dtype=x.dtype)
    for row in range(a * b):
        for column in range(c * d):
            (i, j), (k, e) = divmod(row, b), divmod(column, d)
            y[row] += sum(L[j, i, k, q] * R[k, e, j, q] for q in range(s)) * x[column]
    return y


def _train_cases(randn):
    for a, b, c, d, s in [(1, 1, 1, 1, 1), (2, 1, 1, 3, 2), (1, 3, 1, 2, 1), (3, 1, 2, 2, 1), (2, 2, 2, 2, 1)]:
        yield randn(b, a, c, s), randn(c, d, b, s), randn(c * d)
    for a, b, c, d, s in [(2, 3, 2, 3, 2), (3, 4, 2, 6, 2)]:
        yield randn(b, a, c, s), randn(c, d, b, s), randn(c * d)


exercise(
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
        "the result is in the order (b a): "
        "P_L is missing. Row number i·b + j is entry i of block j": ".mT.flatten() → .flatten()",
        "P_R is missing: you read the numbers between the factors as (b, c, s), but they were written as (c, b, s). "
        "A view moves nothing": "Z.view(c, b, s).transpose(0, 1) → Z",
        "you turn (c, b, s) around to (s, b, c): "
        "P_R makes (b, c, s) of it, and exchanges c and b alone": "transpose(0, 1) → transpose(0, 2)",
        "the blocks of L have their columns in the order (c, s), yours meet them as (s, c): "
        "P_R exchanges c and b alone": "transpose(0, 1) → permute(1, 2, 0)",
        "you cut x into every c-th feature: columns are numbered (c d), "
        "so a piece is d features side by side": "x.view(c, -1, 1) → x.view(-1, c).mT[..., None]",
        "only the first of the s terms is there: sum over s too": "b, _, → L, R = L[..., :1], R[..., :1]\n    b, _,",
        "you sum over s in either factor separately: each of the "
        "s terms is a product of both": "b, _, → L, R = L.sum(-1, keepdim=True), R.sum(-1, keepdim=True)\n    b, _,",
        "you reshape L to (a, b, c, s): "
        "that moves nothing. Take its transpose": "L.flatten(2) → L.reshape(-1, b, c, s).transpose(0, 1).flatten(2)",
        "you cut the b·s numbers of a block of R into (s, b): "
        "R is (c, d, b, s), with s last": "Z.view(c, b, s) → Z.view(c, s, b).mT",
        "you reshape a block of R to (b·s, d): "
        "that moves nothing. Take its transpose, `.mT`": "R.flatten(2).mT → R.reshape(c, b * s, -1)",
        "you divide by c·s, a mean: "
        "what the blocks of L are multiplied with is added up": ".mT.flatten() → .mT.flatten() / (c * s)",
        "you view (b, a) as (a, b), which moves nothing: transpose it": "Y[..., 0] → Y[..., 0].reshape(L.shape[1], -1)",
    },
)(train_product)
