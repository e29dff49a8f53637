"""The exercises of chapter 10 on structured scores: those of a train, and those of levels."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def train_scores(X, L, R):
    """X M X^T for the train M with factors L (b, a, c, s) and R (c, d, b, s): projected queries, projected keys.

    Write all scores X M X^T of a block tensor train as Q K^T, with two batched products and without M.

    Hint: An entry of M is Σ_τ L[j, i, k, τ] R[k, e, j, τ]. Which letters are left when x has been summed over i,
    and x′ over e? These are the features of queries and keys.

    Hint: L turns the a numbers of block j into c·s: Q is (b, T, c·s). R turns the d numbers of block k into b·s: K is
    (c, T, b·s). Before they meet, both need the features in one order, such as (c, b, s). And mind in which order x
    holds its rows: i·b + j.

    Hint: `X.view(-1, a, b).permute(2, 0, 1) @ L.flatten(2)` are the queries, with a last axis to unflatten to (c, s).
    Make the keys from the pieces of x that R reads, in the same way, and bring both to (T, c, b, s).

    Insight: The middle axis takes the place of the head size: what is kept for a token is its half of the product.
    """
    b, a, c, s = L.shape
    Q = X.view(-1, a, b).permute(2, 0, 1) @ L.flatten(2)  # (b, T, c·s)
    K = X.view(len(X), c, -1).transpose(0, 1) @ R.flatten(2)  # (c, T, b·s)
    Q = Q.unflatten(-1, (c, s)).permute(1, 2, 0, 3)
    K = K.unflatten(-1, (b, s)).transpose(0, 1)
    return Q.flatten(1) @ K.flatten(1).mT


def _train_entries(L, R):
    """M entry by entry: from column (k, e) to row (i, j) through block k of R, wire j of it, block j of L."""
    (b, a, c, _), d = L.shape, R.shape[1]
    M = torch.zeros(a * b, c * d, dtype=L.dtype)
    for row in range(a * b):
        for column in range(c * d):
            (i, j), (k, e) = divmod(row, b), divmod(column, d)
            M[row, column] = L[j, i, k] @ R[k, e, j]
    return M


def _pairs(X, M):
    """x^T M y for every pair of tokens, one after the other."""
    return torch.stack([torch.stack([x @ M @ y for y in X]) for x in X])


def _train_cases(randn):
    """Tokens, then a, b, c, d, s."""
    for length, a, b, c, d, s in [
        (1, 1, 1, 1, 1, 1),
        (1, 2, 2, 2, 2, 1),
        (3, 2, 2, 2, 2, 1),
        (2, 1, 4, 4, 1, 2),
        (4, 3, 2, 2, 3, 2),
        (2, 2, 3, 6, 1, 1),
        (3, 4, 2, 2, 4, 3),
    ]:
        yield randn(length, a * b), randn(b, a, c, s), randn(c, d, b, s)


exercise(
    "10.5",
    "The scores of a train",
    claim="003:eq15-16",
    level=3,
    minutes=18,
    cases=_train_cases,
    way=Way(
        case=lambda randn, D: (randn(3, D), randn(2, D // 2, 2, 1), randn(2, D // 2, 2, 1)),
        memory=1,
        products=3,
        axis="D",
    ),
    oracle=lambda X, L, R: _pairs(X, _train_entries(L, R)),
    wrong={
        "P_L is missing on the side of the queries, as in the paper's equation 15: "
        "rows are numbered (a b), so block j meets every b-th feature, "
        "not neighbouring ones": "X.view(-1, a, b).permute(2, 0, 1) → X.view(-1, b, a).transpose(0, 1)",
        "P_R is missing: your queries have their features in the order (b, "
        "c, s), your keys in the order (c, b, s)": "Q.unflatten(-1, (c, s)).permute(1, 2, 0, 3) → Q.transpose(0, 1)",
        "both permutations are missing: rows are numbered (a b), so block j of L meets every b-th feature; "
        "and queries in the order (b, c, s) do not fit keys in the order (c, b, s)": (
            "X.view(-1, a, b).permute(2, 0, 1) → X.view(-1, b, a).transpose(0, 1) ; "
            "Q.unflatten(-1, (c, s)).permute(1, 2, 0, 3) → Q.transpose(0, 1)"
        ),
        "you cut the b·s numbers of a block of R into (s, b): "
        "R is (c, d, b, s), so s is the last axis": "(b, s)) → (s, b)).mT",
        "these are the scores transposed: L belongs to the token that asks (the row of S), "
        "R to the one that is asked": "Q.flatten(1) @ K.flatten(1).mT → K.flatten(1) @ Q.flatten(1).mT",
        "only the first of the s terms is there: sum over s too": "b, a, → L, R = L[..., :1], R[..., :1]\n    b, a,",
        "for the keys you cut x into every c-th feature: columns are numbered (c d), "
        "so a piece is d features side by side": "X.view(len(X), c, -1) → X.view(len(X), -1, c).mT",
        "you sum over s in queries and keys separately: s is one of the "
        "letters over which they meet": "b, a, → L, R = L.sum(-1, keepdim=True), R.sum(-1, keepdim=True)\n    b, a,",
        "you reshape X to (b, T, a): "
        "that puts pieces of several tokens in one row. Cut the features, then move the axis": (
            "X.view(-1, a, b).permute(2, 0, 1) → X.reshape(b, -1, a) ; "
            "X.view(len(X), c, -1).transpose(0, 1) → X.reshape(c, -1, R.shape[1])"
        ),
        "your keys have their features in the order (b, s, c), your queries in the order (b, "
        "c, s)": ".permute(1, 2, 0, 3) → .transpose(0, 1) ; (b, s)).transpose(0, 1) → (b, s)).permute(1, 2, 3, 0)",
        "your queries are made with R, too: they take L": "Q.flatten(1) → K.flatten(1)",
        "you sum over c in queries and keys separately: "
        "c is one of the letters over which they meet": "flatten(1) → sum(1).flatten(1)",
        "you sum over b in queries and keys separately: "
        "b is one of the letters over which they meet": "flatten(1) → sum(2).flatten(1)",
        "on both sides you cut x with the other factor of its width: rows are numbered (a b), columns (c d)": (
            "X.view(-1, a, b).permute(2, 0, 1) → X.view(-1, b, a).transpose(0, 1) ; "
            "X.view(len(X), c, -1) → X.view(len(X), -1, c).mT"
        ),
        "your rows sum to 1: no softmax is asked for": "return → return torch.softmax( ; (1).mT → (1).mT, -1)",
        "your scores are masked: here every token meets every other": "return → return torch.tril( ; (1).mT → (1).mT)",
        "this is X M, what each token asks: "
        "take its dot products with the tokens": "Q.flatten(1) @ K.flatten(1).mT → X @ _train_entries(L, R)",
        "you divide by the root of the width, as attention does: "
        "the scores are X M X^T": "(1).mT → (1).mT / (b * c * s) ** 0.5",
        "this is M x for each token: "
        "take its dot products with the tokens": "Q.flatten(1) @ K.flatten(1).mT → X @ _train_entries(L, R).mT",
        "your queries have their features in the order (b, s, c), your keys in the order (b, "
        "c, s)": ".permute(1, 2, 0, 3) → .permute(1, 0, 3, 2) ; (b, s)).transpose(0, 1) → (b, s)).permute(1, 2, 0, 3)",
        "you reshape a block of L to (c·s, a): "
        "that moves nothing. Take its transpose, `.mT`": "L.flatten(2) → L.reshape(b, -1, a).mT",
    },
)(train_scores)


def mlr_scores(X, L, R, ranks, blocks):
    """X M X^T for the multi-level low rank M: queries and keys of all levels side by side, and one product.

    Write all scores X M X^T of a multi-level low rank M as Q K^T, all levels side by side, without M.

    Hint: Within one level a block of a token's features meets its own block of L. How many numbers does that make of
    one token, over all blocks?

    Hint: p_l r_l numbers for each level: cut X into (p, T, D/p), multiply by the blocks (p, D/p, r_l), and put the
    blocks side by side, (T, p·r_l). A sum over levels needs no sum: side by side, one product adds it up.

    Hint: `tokens = X.unflatten(-1, (p, -1)).transpose(0, 1)` is (p, T, D/p), and its product with the blocks of a level
    (p, T, r_l). Which axis must come first before the others are flattened?

    Insight: A level of p blocks adds r·p columns to Q and K, and as much to the rank that the scores can have.
    """
    Q, K, start = [], [], 0
    for rank, p in zip(ranks, blocks, strict=True):
        tokens = X.unflatten(-1, (p, -1)).transpose(0, 1)  # (p, T, D/p)
        for side, F in ((Q, L), (K, R)):
            factor = F[:, start : start + rank].unflatten(0, (p, -1))  # (p, D/p, r_l)
            side.append((tokens @ factor).transpose(0, 1).flatten(1))
        start += rank
    return torch.cat(Q, 1) @ torch.cat(K, 1).mT


def _levels(L, R, ranks, blocks):
    """Every level of M, in full."""
    start = 0
    for rank, p in zip(ranks, blocks, strict=True):
        level = torch.zeros(len(L), len(R), dtype=L.dtype)
        for k in range(p):
            group = slice(k * len(L) // p, (k + 1) * len(L) // p)
            level[group, group] = L[group, start : start + rank] @ R[group, start : start + rank].mT
        yield level
        start += rank


def _level_cases(randn):
    for length, dim, ranks, blocks in [
        (1, 1, [1], [1]),
        (1, 4, [1], [2]),
        (3, 4, [2], [1]),
        (2, 4, [1, 1], [1, 2]),
        (3, 8, [1, 1, 2], [1, 2, 4]),
        (4, 6, [2, 1], [3, 6]),
    ]:
        width = sum(ranks)
        yield randn(length, dim), randn(dim, width), randn(dim, width), ranks, blocks


exercise(
    "10.6",
    "The scores of levels",
    claim="003:eq12-13",
    level=2,
    minutes=8,
    cases=_level_cases,
    way=Way(
        case=lambda randn, D: (randn(3, D), randn(D, 2), randn(D, 2), [1, 1], [1, 2]),
        memory=1,
        products=5,  # two for each level, and one of all
        axis="D",
    ),
    oracle=lambda X, L, R, ranks, blocks: _pairs(X, sum(_levels(L, R, ranks, blocks))),
    wrong={
        "these are the scores of X L R^T X^T, low rank: every feature meets every other. "
        "A block's features meet only one another: keep blocks side by side, "
        "p·r_l numbers for each token": "torch.cat(Q, 1) @ torch.cat(K, 1).mT → X @ L @ (X @ R).mT",
        "your rows sum to 1: no softmax is asked for": "return → return torch.softmax( ; .mT → .mT, -1)",
        "only the first level is there": "start += rank → break",
        "only the last level is there: "
        "keep the features of every level, side by side": "torch.cat(Q, 1) @ torch.cat(K, 1) → Q[-1] @ K[-1]",
        "every level reads the first columns of L and R: "
        "level l begins after r_1 + … + r_(l-1) of them": "start += rank → start = 0",
        "your groups are every p-th feature: a block takes in D/p neighbours, (p, "
        "D/p) and not (D/p, p)": "X.unflatten(-1, (p, -1)).transpose(0, 1) → X.unflatten(-1, (-1, p)).permute(2, 0, 1)",
        "these are the scores transposed: L belongs to the token that asks (the row of S), "
        "R to the one that is asked": "torch.cat(Q, 1) @ torch.cat(K, 1) → torch.cat(K, 1) @ torch.cat(Q, 1)",
        "your blocks hold every p-th feature, of the factors as well: a block is D/p features side by side": (
            "X.unflatten(-1, (p, -1)).transpose(0, 1) → X.unflatten(-1, (-1, p)).permute(2, 0, 1) ; "
            "(0, (p, -1)) → (0, (-1, p)).transpose(0, 1)"
        ),
        "your blocks have p_l features: p_l is how many blocks there are, "
        "each of D/p_l features": "zip(ranks, blocks → zip(ranks, [len(L) // p for p in blocks]",
        "you reshape X to (p, T, D/p): that puts pieces of several tokens in one row. "
        "Cut the features, then move the axis": "X.unflatten(-1, (p, -1)).transpose(0, 1) → X.reshape(p, len(X), -1)",
        "you multiply the scores of the levels with one another: "
        "they add up": "torch.cat(Q, 1) @ torch.cat(K, 1).mT → torch.stack([q @ k.mT for q, k in zip(Q, K)]).prod(0)",
        "you divide by the root of the width, as attention does: "
        "the scores are X M X^T": ".mT → .mT / sum(q.shape[1] for q in Q) ** 0.5",
        "you exchanged ranks and blocks: "
        "level l has r_l columns and p_l blocks": "zip(ranks, blocks → zip(blocks, ranks",
        "your keys have the levels in the opposite order to your queries": "torch.cat(K, 1) → torch.cat(K[::-1], 1)",
        "your queries are flattened from (p, r_l), your keys "
        "from (r_l, p)": "side.append( → side.append((tokens @ factor).permute(1, 2, 0).flatten(1) if side is K else",
        "you take the mean over the blocks of a level: they add up": "tokens @ factor → tokens @ factor / p**0.5",
        "you divide each level by its rank: the scores are X M X^T": "tokens @ factor → tokens @ factor / rank**0.5",
        "you take the mean of the levels: they are added": ".mT → .mT / len(ranks)",
        "this is X M, what each token asks: take its "
        "dot products with the tokens": "torch.cat(Q, 1) @ torch.cat(K, 1).mT → X @ sum(_levels(L, R, ranks, blocks))",
        "this is M x for each token: take "
        "its dot products with the tokens": "torch.cat(Q, 1) @ torch.cat(K, 1) → X @ sum(_levels(L, R, ranks, blocks))",
        "your scores are masked: here every token meets every other": "return → return torch.tril( ; .mT → .mT)",
        "your queries are made with R, too: they take L": "(Q, L) → (Q, R)",
    },
)(mlr_scores)
