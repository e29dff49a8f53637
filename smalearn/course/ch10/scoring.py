"""The exercises of chapter 10 on structured scores: those of a train, and those of levels."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# ------------------------------------------------------------------------------------------- 10.5 the scores of a train


def _train_entries(L, R):
    """M entry by entry: from column (k, h) to row (i, j) through block k of R, wire j of it, block j of L."""
    (b, a, c, _), d = L.shape, R.shape[1]
    M = torch.zeros(a * b, c * d, dtype=L.dtype)
    for row in range(a * b):
        for column in range(c * d):
            (i, j), (k, h) = divmod(row, b), divmod(column, d)
            M[row, column] = L[j, i, k] @ R[k, h, j]
    return M


def _pairs(X, M, Y=None):
    """x^T M y for every pair of tokens, one after the other."""
    Y = X if Y is None else Y
    return torch.stack([torch.stack([x @ M @ y for y in Y]) for x in X])


def _recut(X, rows, columns):
    """Tokens with the features of each in the order of the table's columns."""
    return X.view(-1, rows, columns).mT.flatten(1)


def _unregrouped(X, L, R, Y=None):
    """Queries in the order (b, c, s), keys in the order (c, b, s)."""
    Y = X if Y is None else Y
    b, a, c, _ = L.shape
    Q = (X.view(-1, a, b).permute(2, 0, 1) @ L.flatten(2)).transpose(0, 1)
    K = (Y.view(len(Y), c, -1).transpose(0, 1) @ R.flatten(2)).transpose(0, 1)
    return Q.flatten(1) @ K.flatten(1).mT


def _neither(X, L, R):
    """No permutation at all: the blocks of L read neighbouring features, and the two orders of features meet."""
    return _unregrouped(_recut(X, *L.shape[:2]), L, R, X)


def _wires_inside(X, L, R):
    """The b·s numbers of a block of R cut as s times b."""
    b, s = R.shape[2:]
    return _pairs(X, _train_entries(L, R.flatten(2).unflatten(-1, (s, b)).mT))


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


def _ranks_first(X, L, R):
    (b, a, c, _), T = L.shape, len(X)
    Q = torch.einsum("tab,bacs->tbsc", X.view(T, a, b), L)
    K = torch.einsum("tcd,cdbs->tbcs", X.view(T, c, -1), R)
    return Q.flatten(1) @ K.flatten(1).mT


def _keys_by_the_left(X, L, R):
    b, a = L.shape[:2]
    Q = (X.view(-1, a, b).permute(2, 0, 1) @ L.flatten(2)).transpose(0, 1).flatten(1)
    return Q @ Q.mT


def _mixed_tokens(X, L, R):
    """Pieces of features by a view that puts tokens and pieces in one row."""
    (b, a, c, s), d = L.shape, R.shape[1]
    Q = (X.reshape(b, -1, a) @ L.flatten(2)).unflatten(-1, (c, s))
    K = (X.reshape(c, -1, d) @ R.flatten(2)).unflatten(-1, (b, s))
    return torch.einsum("btcs,cubs->tu", Q, K)


def _sides(X, L, R):
    """Queries and keys, (T, b, c, s)."""
    Q = torch.einsum("tab,bacs->tbcs", X.view(len(X), -1, len(L)), L)
    return Q, torch.einsum("tcd,cdbs->tbcs", X.view(len(X), len(R), -1), R)


def _keys_turned(X, L, R):
    Q, K = _sides(X, L, R)
    return Q.flatten(1) @ K.transpose(2, 3).flatten(1).mT


def _queries_by_the_right(X, L, R):
    K = _sides(X, L, R)[1].flatten(1)
    return K @ K.mT


def _meeting(letters):
    """Queries and keys that are summed over all but these letters before they meet."""
    sums = [axis for axis, letter in enumerate("tbcs") if letter not in f"t {letters}"]

    def wrong(X, L, R):
        Q, K = (side.sum(sums).flatten(1) for side in _sides(X, L, R))
        return Q @ K.mT

    return wrong


@exercise(
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
        "P_L is missing on the side of the queries, as in the paper's equation 15: rows are numbered (a b), so "
        "block j meets every b-th feature, not neighbouring ones": lambda X, L, R: _pairs(
            _recut(X, L.shape[0], L.shape[1]), _train_entries(L, R), X
        ),
        "P_R is missing: your queries have their features in the order (b, c, s), your keys in the order "
        "(c, b, s)": _unregrouped,
        "both permutations are missing: rows are numbered (a b), so block j of L meets every b-th feature; and "
        "queries in the order (b, c, s) do not fit keys in the order (c, b, s)": _neither,
        "you cut the b·s numbers of a block of R into (s, b): R is (c, d, b, s), so s is the last axis": _wires_inside,
        "these are the scores transposed: L belongs to the token that asks (the row of S), R to the one that "
        "is asked": lambda X, L, R: _pairs(X, _train_entries(L, R)).mT,
        "only the first of the s terms is there: sum over s too": lambda X, L, R: _pairs(
            X, _train_entries(L[..., :1], R[..., :1])
        ),
        "for the keys you cut x into every c-th feature: columns are numbered (c d), so a piece is d features "
        "side by side": lambda X, L, R: _pairs(X, _train_entries(L, R), _recut(X, R.shape[1], R.shape[0])),
        "you sum over s in queries and keys separately: s is one of the letters over which they meet": lambda X, L, R: (
            _pairs(X, _train_entries(L.sum(-1, keepdim=True), R.sum(-1, keepdim=True)))
        ),
        "your keys are made with L, too: they take R": _keys_by_the_left,
        "you reshape X to (b, T, a): that puts pieces of several tokens in one row. Cut the features, then move the "
        "axis": _mixed_tokens,
        "your keys have their features in the order (b, s, c), your queries in the order (b, c, s)": _keys_turned,
        "your queries are made with R, too: they take L": _queries_by_the_right,
        "you sum over c in queries and keys separately: c is one of the letters over which they meet": _meeting("b s"),
        "you sum over b in queries and keys separately: b is one of the letters over which they meet": _meeting("c s"),
        "on both sides you cut x with the other factor of its width: rows are numbered (a b), columns (c d)": (
            lambda X, L, R: _pairs(
                _recut(X, L.shape[0], L.shape[1]), _train_entries(L, R), _recut(X, R.shape[1], R.shape[0])
            )
        ),
        "your rows sum to 1: no softmax is asked for": lambda X, L, R: _pairs(X, _train_entries(L, R)).softmax(-1),
        "your scores are masked: here every token meets every other": lambda X, L, R: _pairs(
            X, _train_entries(L, R)
        ).tril(),
        "this is X M, what each token asks: take its dot products with the tokens": lambda X, L, R: (
            X @ _train_entries(L, R)
        ),
        "you divide by the root of the width, as attention does: the scores are X M X^T": lambda X, L, R: (
            _pairs(X, _train_entries(L, R)) / (L.numel() // L.shape[1]) ** 0.5
        ),
        "this is M x for each token: take its dot products with the tokens": lambda X, L, R: (
            X @ _train_entries(L, R).mT
        ),
        "your queries have their features in the order (b, s, c), your keys in the order (b, c, s)": _ranks_first,
        "you reshape a block of L to (c·s, a): that moves nothing. Take its transpose, `.mT`": lambda X, L, R: _pairs(
            X, _train_entries(L.reshape(len(L), -1, L.shape[1]).mT.reshape(L.shape), R)
        ),
    },
)
def train_scores(X, L, R):
    """X M X^T for the train M with factors L (b, a, c, s) and R (c, d, b, s): projected queries, projected keys.

    Write all scores X M X^T of a block tensor train as Q K^T, with two batched products and without M.

    Hint: An entry of M is Σ_τ L[j, i, k, τ] R[k, h, j, τ]. Which letters are left when x has been summed over i,
    and x′ over h? These are the features of queries and keys.

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


# ------------------------------------------------------------------------------------------- 10.6 the scores of levels


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


def _columns_from(L, R, ranks, blocks, start=lambda level, rank: 0):
    """Every level with the r_l columns that begin at some other place; by default with the first."""
    parts = []
    for level, (rank, p) in enumerate(zip(ranks, blocks, strict=True)):
        columns = slice(start(level, rank), None)
        parts += [next(_levels(L[:, columns], R[:, columns], [rank], [p]))]
    return sum(parts)


def _far_groups(X, L, R, ranks, blocks):
    """Group k of a level is every p-th feature, from k on."""
    levels = zip(_levels(L, R, ranks, blocks), blocks, strict=True)
    return sum(_pairs(_recut(X, X.shape[-1] // p, p), level) for level, p in levels)


def _every_pth(X, L, R, ranks, blocks):
    """Features k, k + p, ... make a block, in the factors too."""
    S = 0
    for left, right, p in zip(L.split(ranks, 1), R.split(ranks, 1), blocks, strict=True):
        order = torch.arange(len(L)).view(-1, p).mT.flatten()
        S = S + _pairs(X[:, order], next(_levels(left[order], right[order], [left.shape[1]], [p])))
    return S


def _tokens_mixed(X, L, R, ranks, blocks):
    """(p, T, r_l) flattened as if it were (T, p, r_l)."""
    S, start = 0, 0
    for rank, p in zip(ranks, blocks, strict=True):
        tokens, own = X.unflatten(-1, (p, -1)).transpose(0, 1), slice(start, start + rank)
        Q, K = ((tokens @ F[:, own].unflatten(0, (p, -1))).reshape(len(X), -1) for F in (L, R))
        S, start = S + Q @ K.mT, start + rank
    return S


def _viewed(X, L, R, ranks, blocks):
    """Pieces of features by a view that puts tokens and pieces in one row."""
    S, start = 0, 0
    for rank, p in zip(ranks, blocks, strict=True):
        tokens, own = X.reshape(p, len(X), -1), slice(start, start + rank)
        Q, K = ((tokens @ F[:, own].unflatten(0, (p, -1))).transpose(0, 1).flatten(1) for F in (L, R))
        S, start = S + Q @ K.mT, start + rank
    return S


def _level_sides(X, L, R, ranks, blocks):
    """The features of queries and of keys, (T, p, r_l) for each level."""
    pairs = [list(zip(F.split(ranks, 1), blocks, strict=True)) for F in (L, R)]
    return [
        [torch.einsum("tpi,pir->tpr", X.unflatten(-1, (p, -1)), F.unflatten(0, (p, -1))) for F, p in side]
        for side in pairs
    ]


def _joined(queries, keys):
    Q, K = (torch.cat([side.flatten(1) for side in sides], 1) for sides in (queries, keys))
    return Q @ K.mT


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


@exercise(
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
        "these are the scores of X L R^T X^T, low rank: every feature meets every other. A block's features meet only "
        "one another: keep blocks side by side, p·r_l numbers for each token": lambda X, L, R, ranks, blocks: _pairs(
            X, L @ R.mT
        ),
        "your rows sum to 1: no softmax is asked for": lambda X, L, R, ranks, blocks: _pairs(
            X, sum(_levels(L, R, ranks, blocks))
        ).softmax(-1),
        "only the first level is there": lambda X, L, R, ranks, blocks: _pairs(X, next(_levels(L, R, ranks, blocks))),
        "only the last level is there: keep the features of every level, side by side": lambda X, L, R, ranks, blocks: (
            _pairs(X, list(_levels(L, R, ranks, blocks))[-1])
        ),
        "every level reads the first columns of L and R: level l begins after r_1 "
        "+ … + r_(l-1) of them": lambda X, L, R, ranks, blocks: _pairs(X, _columns_from(L, R, ranks, blocks)),
        "a level begins where those before it end, at the sum of their ranks: l·r_l is that only if all ranks "
        "are equal": lambda X, L, R, ranks, blocks: _pairs(
            X, _columns_from(L, R, ranks, blocks, lambda level, rank: level * rank)
        ),
        "your groups are every p-th feature: a block takes in D/p neighbours, (p, D/p) and not (D/p, p)": _far_groups,
        "you flatten (p, T, r_l) as it stands, which mixes the tokens: first transpose to (T, p, r_l)": _tokens_mixed,
        "these are the scores transposed: L belongs to the token that asks (the row of S), R to the one that "
        "is asked": lambda X, L, R, ranks, blocks: _pairs(X, sum(_levels(L, R, ranks, blocks))).mT,
        "your blocks hold every p-th feature, of the factors as well: a block is D/p features side by side": _every_pth,
        "your blocks have p_l features: p_l is how many blocks there are, each of D/p_l features": (
            lambda X, L, R, ranks, blocks: _pairs(X, sum(_levels(L, R, ranks, [len(L) // p for p in blocks])))
        ),
        "you reshape X to (p, T, D/p): that puts pieces of several tokens in one row. Cut the features, then move the "
        "axis": _viewed,
        "you multiply the scores of the levels with one another: they add up": lambda X, L, R, ranks, blocks: (
            torch.stack([_pairs(X, level) for level in _levels(L, R, ranks, blocks)]).prod(0)
        ),
        "you divide by the root of the width, as attention does: the scores are X M X^T": (
            lambda X, L, R, ranks, blocks: (
                _pairs(X, sum(_levels(L, R, ranks, blocks)))
                / sum(r * p for r, p in zip(ranks, blocks, strict=True)) ** 0.5
            )
        ),
        "you exchanged ranks and blocks: level l has r_l columns and p_l blocks": lambda X, L, R, ranks, blocks: (
            mlr_scores(X, L, R, blocks, ranks)
        ),
        "your keys have the levels in the opposite order to your queries": lambda *given: _joined(
            _level_sides(*given)[0], _level_sides(*given)[1][::-1]
        ),
        "your queries are flattened from (p, r_l), your keys from (r_l, p)": lambda *given: _joined(
            _level_sides(*given)[0], [side.mT for side in _level_sides(*given)[1]]
        ),
        "you take the mean over the blocks of a level: they add up": lambda X, L, R, ranks, blocks: sum(
            _pairs(X, level) / p for level, p in zip(_levels(L, R, ranks, blocks), blocks, strict=True)
        ),
        "you divide each level by its rank: the scores are X M X^T": lambda X, L, R, ranks, blocks: sum(
            _pairs(X, level) / r for level, r in zip(_levels(L, R, ranks, blocks), ranks, strict=True)
        ),
        "you take the mean of the levels: they are added": lambda X, L, R, ranks, blocks: (
            _pairs(X, sum(_levels(L, R, ranks, blocks))) / len(ranks)
        ),
        "this is X M, what each token asks: take its dot products with the tokens": lambda X, L, R, ranks, blocks: (
            X @ sum(_levels(L, R, ranks, blocks))
        ),
        "this is M x for each token: take its dot products with the tokens": lambda X, L, R, ranks, blocks: (
            X @ sum(_levels(L, R, ranks, blocks)).mT
        ),
        "your scores are masked: here every token meets every other": lambda X, L, R, ranks, blocks: _pairs(
            X, sum(_levels(L, R, ranks, blocks))
        ).tril(),
        "your queries are made with R, too: they take L": lambda X, L, R, ranks, blocks: _pairs(
            X, sum(_levels(R, R, ranks, blocks))
        ),
        "you project the keys by L as well: theirs is R": lambda X, L, R, ranks, blocks: _pairs(
            X, sum(_levels(L, L, ranks, blocks))
        ),
    },
)
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
