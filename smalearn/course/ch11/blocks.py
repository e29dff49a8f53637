"""The exercise of chapter 11 on one level of scores, block by block."""

import torch

from smalearn.course.ch11.scores import pair_scores
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


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


def _block_loop(Q, K, size):
    """Pair by pair."""
    return pair_scores(Q, K, [Q.shape[1]], [size])


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


def _cut(Q, K, cut):
    """The blocks that another cut makes."""
    return torch.block_diag(*(q @ k.mT for q, k in zip(cut(Q), cut(K), strict=True)))


exercise(
    "11.3",
    "One level, block by block",
    claim="003:lemmaD1",
    level=2,
    minutes=10,
    cases=_block_cases,
    way=Way(case=lambda randn, length: (randn(length, 2), randn(length, 2), 4), loops=0, matters={"size": (4, 8)}),
    oracle=_block_loop,
    wrong={
        "your last block reaches back to be full: it begins where the one before it ends, and is shorter": (
            "length = len(Q) → i = torch.arange(len(Q))\n    late, i = i >= len(Q) - size, i // size\n"
            "    return Q @ K.mT * ((i[:, None] == i) | late[:, None] & late)"
        ),
        "your blocks share the tokens evenly: all have b tokens but the last, "
        "which has what is left": "length = len(Q) → return _cut(Q, K, lambda x: x.tensor_split(-(-len(x) // size)))",
        "your blocks are those of `chunk`, as equal as can be: all have b tokens but the last, "
        "as `split` makes them": "length = len(Q) → return _cut(Q, K, lambda x: x.chunk(-(-len(x) // size)))",
        "you have ⌊T / b⌋ blocks, the last one larger: what is left over is "
        "a block of its own": "length = len(Q) → return _cut(Q, K, lambda x: x.tensor_split(max(1, len(x) // size)))",
        "your first block is the short one: fill up at the end, "
        "not in front": "0, -length % size → -length % size, 0 ; [:length, :length] → [-length:, -length:]",
        "you count tokens from 1, so that the first block is one short: "
        "the first is token 0": "0, -length % size → 1, -(length + 1) % size ; :length → 1 : length + 1",
        "this is a window, tokens less than b apart: a block joins tokens with the "
        "same i // b": "length = len(Q) → i = torch.arange(len(Q))\n    return Q @ K.mT * (abs(i[:, None] - i) < size)",
        "you leave out the keys after a query: "
        "the mask comes with the softmax, a block holds all its pairs": ":length] → :length].tril()",
        "outside of the blocks you have -∞: scores of levels are added, so that 0 stands there": (
            "length = len(Q) → i = torch.arange(len(Q)) // size\n"
            "    return (Q @ K.mT).masked_fill(i[:, None] != i, -torch.inf)"
        ),
        "T need not be a multiple of b: fill up with rows of zeros, and cut at the end": (
            "torch.nn.functional.pad(x, (0, 0, 0, -length % size)).unflatten(0, (-1, size)) → "
            "x.view(-1, size, x.shape[1])"
        ),
        "`unflatten` needs a multiple of b: "
        "fill up with rows of zeros, and cut at the end": "torch.nn.functional.pad(x, (0, 0, 0, -length % size)) → x",
        "these are the blocks, (T/b, b, b): "
        "put them along the diagonal of (T, T)": "torch.block_diag(*(Q @ K.mT))[:length, :length] → Q @ K.mT",
        "you add the blocks up: they "
        "stand side by side along the diagonal": "torch.block_diag(*(Q @ K.mT))[:length, :length] → (Q @ K.mT).sum(0)",
        "the rows and columns that fill up the last block are still there: cut to (T, T)": "[:length, :length] → ",
        "where T is a multiple of b nothing is added, and `[:-0]` is empty: "
        "cut by `[:T]`": ":length → : -(-length % size)",
        "you cut off a whole block where less was added: "
        "cut to (T, T)": "0, -length % size → 0, size - length % size ; [:length, :length] → [:-size, :-size]",
        "this is K_k Q_kᵀ: rows belong to queries": "Q @ K.mT → K @ Q.mT",
    },
)(block_level)
