"""The exercise of chapter 11 on one level of scores, block by block."""

import torch

from smalearn.course.ch11.scores import count_levels, from_one, near, one_place, pair_scores, same_block
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# --------------------------------------------------------------------------------- 11.3 one level, block by block


def _block_loop(Q, K, size, joined=same_block):
    """Pair by pair."""
    return pair_scores(Q, K, [Q.shape[1]], [size], lambda i, j, b, n: joined(i, j, b))


def _block_cases(randn):
    for length, rank, size in [
        (1, 1, 1),
        (4, 2, 4),
        (4, 2, 2),
        (6, 1, 2),
        (9, 3, 3),
        (7, 2, 3),
        (3, 2, 8),
        (10, 2, 4),
        (6, 1, 4),
    ]:
        yield randn(length, rank), randn(length, rank), size


def _blocks(joined):
    """The product with another rule of who shares a block of b of T tokens."""
    return lambda Q, K, size: _block_loop(Q, K, size, lambda i, j, b: joined(i, j, b, len(Q)))


def _cut(Q, K, cut):
    """The blocks that another cut makes."""
    return torch.block_diag(*(q @ k.mT for q, k in zip(cut(Q), cut(K), strict=True)))


def _filled(x, size):
    """Blocks (p, b, r) of neighbours, the last filled up with zeros."""
    return torch.nn.functional.pad(x, (0, 0, 0, -len(x) % size)).unflatten(0, (-1, size))


def _batched(q, k):
    return torch.block_diag(*(q @ k.mT))


def _strided(x, size):
    """Blocks (p, b, r) of every p-th token."""
    return torch.nn.functional.pad(x, (0, 0, 0, -len(x) % size)).unflatten(0, (size, -1)).transpose(0, 1)


@exercise(
    "11.3",
    "One level, block by block",
    claim="003:lemmaD1",
    level=2,
    minutes=10,
    cases=_block_cases,
    way=Way(case=lambda randn, length: (randn(length, 2), randn(length, 2), 4), loops=0, matters={"size": (4, 8)}),
    oracle=_block_loop,
    wrong={
        "this is Q Kᵀ, all pairs: outside of the blocks stands 0": lambda Q, K, size: Q @ K.mT,
        "you cut into b blocks: a block has b tokens, and there are ⌈T / b⌉ of them": lambda Q, K, size: _block_loop(
            Q, K, -(-len(Q) // size)
        ),
        "the last block is missing where it is not full: fill it with zeros instead of dropping it": _blocks(
            lambda i, j, b, T: same_block(i, j, b) and (i // b + 1) * b <= T
        ),
        "only the first block is there: there are ⌈T / b⌉": _blocks(lambda i, j, b, T: i < b and j < b),
        "your last block reaches back to be full: it begins where the one before it ends, and is shorter": _blocks(
            lambda i, j, b, T: same_block(i, j, b) or min(i, j) >= T - b
        ),
        "the tokens that are left over join the last full block: they are a block of their own": _blocks(
            lambda i, j, b, T: min(i // b, max(0, T // b - 1)) == min(j // b, max(0, T // b - 1))
        ),
        "your blocks hold every p-th token: a block is b tokens side by side. Split the axis into (T/b, b)": _blocks(
            lambda i, j, b, T: i % -(-T // b) == j % -(-T // b)
        ),
        "your blocks are made of every p-th token, (b, T/b): split the axis into (T/b, b), b tokens side by side": (
            lambda Q, K, size: torch.block_diag(*(_strided(Q, size) @ _strided(K, size).mT))[: len(Q), : len(Q)]
        ),
        "your blocks hold every b-th token: a block is b tokens side by side": _blocks(one_place),
        "your blocks share the tokens evenly: all have b tokens but the last, which has what is left": (
            lambda Q, K, size: _cut(Q, K, lambda x: x.tensor_split(-(-len(x) // size)))
        ),
        "your blocks are those of `chunk`, as equal as can be: all have b tokens but the last, as `split` makes them": (
            lambda Q, K, size: _cut(Q, K, lambda x: x.chunk(-(-len(x) // size)))
        ),
        "you have ⌊T / b⌋ blocks, the last one larger: what is left over is a block of its own": (
            lambda Q, K, size: _cut(Q, K, lambda x: x.tensor_split(max(1, len(x) // size)))
        ),
        "your first block is the short one: fill up at the end, not in front": _blocks(
            lambda i, j, b, T: same_block(i + -T % b, j + -T % b, b)
        ),
        "you count tokens from 1, so that the first block is one short: the first is token 0": _blocks(from_one),
        "this is a window, tokens less than b apart: a block joins tokens with the same i // b": _blocks(near),
        "you leave out the keys after a query: the mask comes with the softmax, a "
        "block holds all its pairs": lambda Q, K, size: _block_loop(Q, K, size).tril(),
        "outside of the blocks you have -∞: scores of levels are added, so that 0 stands there": (
            lambda Q, K, size: _block_loop(Q, K, size).masked_fill(count_levels(len(Q), [size]) == 0, -torch.inf)
        ),
        "T need not be a multiple of b: fill up with rows of zeros, and cut at the end": lambda Q, K, size: _batched(
            Q.view(-1, size, Q.shape[1]), K.view(-1, size, K.shape[1])
        ),
        "`unflatten` needs a multiple of b: fill up with rows of zeros, and cut at the end": lambda Q, K, size: (
            _batched(Q.unflatten(0, (-1, size)), K.unflatten(0, (-1, size)))
        ),
        "you reshape a block of K to (r, b): that moves nothing. Take its transpose, `.mT`": lambda Q, K, size: (
            _batched(_filled(Q, size), _filled(K, size).reshape(-1, Q.shape[1], size).mT)[: len(Q), : len(Q)]
        ),
        "these are the blocks, (T/b, b, b): put them along the diagonal of (T, T)": lambda Q, K, size: (
            _filled(Q, size) @ _filled(K, size).mT
        ),
        "you add the blocks up: they stand side by side along the diagonal": lambda Q, K, size: (
            _filled(Q, size) @ _filled(K, size).mT
        ).sum(0),
        "the rows and columns that fill up the last block are still there: cut to (T, T)": lambda Q, K, size: _batched(
            _filled(Q, size), _filled(K, size)
        ),
        "where T is a multiple of b nothing is added, and `[:-0]` is empty: cut by `[:T]`": lambda Q, K, size: _batched(
            _filled(Q, size), _filled(K, size)
        )[: -(-len(Q) % size), : -(-len(Q) % size)],
        "this is K_k Q_kᵀ: rows belong to queries": lambda Q, K, size: _block_loop(K, Q, size),
    },
)
def block_level(Q, K, size):
    """⊕_k Q_k K_kᵀ (T, T), zero outside of blocks of `size` tokens; the last may be shorter. Q and K (T, r).

    Compute the scores of one level as one batched product of its blocks, for any number of tokens, without a loop over
    them; `torch.block_diag` may put them together.

    Hint: Let T be a multiple of b at first. What shape do the blocks of Q have, one behind the other? Which product
    makes all the small (b, b) scores at once?

    Hint: (T/b, b, r) times (T/b, r, b). `torch.block_diag(*blocks)` puts them along the diagonal. If the last block is
    not full, fill it with rows of zeros, and cut at the end.

    Hint: `torch.nn.functional.pad(x, (0, 0, 0, rows))` adds rows of zeros at the end. How many does T need to become a
    multiple of b? `unflatten` then cuts the axis.

    Insight: A batched product never computes the zeros: its cost is T·size·r in place of T²·r.
    """
    length = len(Q)
    Q, K = (torch.nn.functional.pad(x, (0, 0, 0, -length % size)).unflatten(0, (-1, size)) for x in (Q, K))
    return torch.block_diag(*(Q @ K.mT))[:length, :length]
