"""The exercises of chapter 09 about log-linear attention: the level of a pair, the counter, its delta rule."""

import torch

from smalearn.course.exercises.core import exercise

# ---------------------------------------------------------------------------------------------- 9.5 where they meet


def _meet(t, s):
    """Halve both until they are the same block."""
    level = 0
    while t != s:
        t, s, level = t // 2, s // 2, level + 1
    return level


@exercise(
    "9.5",
    "Where two tokens meet",
    claim="007:level",
    level=1,
    minutes=6,
    cases=lambda randn: [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (7, 0), (12, 8), (100, 37), (1024, 1023)],
    oracle=_meet,
    wrong={
        "this is the size of the DISTANCE: 4 and 3 are neighbours, but meet only in the block of eight": lambda t, s: (
            t - s
        ).bit_length(),
        "this counts from the block of two: a token meets itself at level 0": lambda t, s: (t ^ s).bit_length() - 1,
        "this is one too many: a token meets itself at level 0": lambda t, s: (t ^ s).bit_length() + 1,
        "this counts the bits that differ: what counts is the highest of them": lambda t, s: (t ^ s).bit_count(),
        "this is the lowest bit that differs: what counts is the highest": lambda t, s: (
            (t ^ s) & -(t ^ s)
        ).bit_length(),
        "this is the size of t: with s = 0 that is right": lambda t, s: t.bit_length(),
        "this is a length, 2^level": lambda t, s: 1 << _meet(t, s),
        "this is 1 for all pairs that are not equal": lambda t, s: int(t != s),
    },
)
def level(t, s):
    """The level, an integer, at which a binary tree over time joins tokens t and s.

    Blocks of level ℓ have 2^ℓ tokens: 0 … 2^ℓ − 1, then 2^ℓ … 2·2^ℓ − 1, and so on. The answer is the smallest ℓ whose
    blocks have both tokens in one.

    Hint: The block of token t at level ℓ has the number t // 2^ℓ.

    Hint: Halve both until they are equal, and count. Or look at the bits: `(t ^ s).bit_length()`.

    Insight: The highest bit in which t and s differ says at which level they meet: one instruction.
    """
    return (t ^ s).bit_length()


# --------------------------------------------------------------------------------------------- 9.6 a binary counter


def _counted(states, block, length):
    """As lists: one addition after the other."""
    rows, bit = [row.clone() for row in states], 0
    while length >> bit & 1:
        block, rows[bit], bit = block + rows[bit], torch.zeros_like(block), bit + 1
    rows[bit] = block
    return torch.stack(rows)


def _kept(states, block, length):
    """Merged, but what was merged is still there."""
    right = _counted(states, block, length)
    return right + torch.where(right.flatten(1).any(1)[:, None, None], 0, states)


def _carried(states, block, length, carries):
    """A carry that stops after so many bits."""
    new = states.clone()
    for bit in range(len(states)):
        if not length >> bit & 1 or bit == carries:
            new[bit] = new[bit] + block
            return new
        block, new[bit] = block + new[bit], 0
    return new


def _overwritten(states, block, length):
    new = states.clone()
    bit = (length ^ (length + 1)).bit_length() - 1
    new[:bit], new[bit] = 0, block
    return new


def _count_cases(randn):
    for length, levels in [(0, 2), (1, 3), (2, 3), (3, 4), (6, 4), (7, 5), (11, 5)]:
        bits = torch.tensor([length >> bit & 1 for bit in range(levels)], dtype=torch.float64)
        yield bits[:, None, None] * randn(levels, 2, 3), randn(2, 3), length


@exercise(
    "9.6",
    "A counter of states",
    claim="007:counter",
    level=2,
    minutes=12,
    cases=_count_cases,
    oracle=_counted,
    wrong={
        "states that were merged are still there: set them to zero": _kept,
        "you carry once: while the next bit is 1, go on": lambda states, block, length: _carried(
            states, block, length, 1
        ),
        "nothing carries: two blocks of one size become one of the next": lambda states, block, length: _carried(
            states, block, length, 0
        ),
        "what the merged states held is lost: add it to the new block": _overwritten,
        "all states go into one: only those below the first 0 bit are merged": lambda states, block, length: torch.cat(
            [torch.zeros_like(states[:-1]), (states.sum(0) + block)[None]]
        ),
        "the new block stands one place too high": lambda states, block, length: _counted(states, block, length).roll(
            1, 0
        ),
        "nothing is added": lambda states, block, length: states + 0,
        "you carry by the bits of length + 1: those of length say what is there": lambda states, block, length: (
            _carried(states, block, length + 1, 99)
        ),
    },
)
def count(states, block, length):
    """The states (levels, P, N) after one more block of a single token, block (P, N).

    states[b] is the sum of a block of 2^b tokens if bit b of length, the number of tokens so far, is 1, and zeros if it
    is 0. Where two blocks of one size meet, they become one of the next size. There is always room.

    Hint: Count up in binary: 0111 + 1 is 1000. The ones at the end go to zero, and the first 0 becomes a 1.

    Hint: While bit b of length is 1, add states[b] to the block, set states[b] to zero, and go on with b + 1. Then the
    block's place is states[b].

    Hint: `length >> b & 1` is bit b. Work on `states.clone()`: the old states belong to the caller.

    Insight: A merge every other token, a second one every fourth: one addition per token on average, however long the
    text.
    """
    states, b = states.clone(), 0
    while length >> b & 1:
        block = block + states[b]
        states[b] = 0
        b += 1
    states[b] = block
    return states


# ---------------------------------------------------------------------------------------- 9.7 levels that correct


def _corrected(Q, K, beta, L, W):
    """Column by column, by the corrections of chapter 08."""
    T = len(Q)
    columns = []
    for s in range(T):
        v, u = torch.eye(T, dtype=Q.dtype)[s], []
        for t in range(T):
            u.append(beta[t] * (v[t] - sum(L[t, r] * (K[t] @ K[r]) * u[r] for r in range(t))))
        columns.append([sum(L[t, r] * W[t, r] * (Q[t] @ K[r]) * u[r] for r in range(t + 1)) for t in range(T)])
    return torch.stack([torch.stack(column) for column in columns], 1)


def _with_parts(order):
    """M from its parts: scores with decays, A, the weights, β as a matrix, I."""

    def wrong(Q, K, beta, L, W):
        A = (beta[:, None] * L * (K @ K.mT)).tril(-1)
        return order(L * (Q @ K.mT), A, W, torch.diag(beta), torch.eye(len(Q), dtype=Q.dtype))

    return wrong


def _parts_cases(randn):
    for T, N in [(1, 1), (2, 2), (3, 2), (5, 3), (8, 2)]:
        K = torch.nn.functional.normalize(randn(T, N), dim=-1)
        decays = -randn(T).abs()
        L = torch.zeros(T, T, dtype=torch.float64)
        for t in range(T):
            for s in range(t + 1):
                L[t, s] = decays[s + 1 : t + 1].sum().exp()
        yield randn(T, N), K, torch.sigmoid(randn(T)), L, randn(T, T).abs().tril()


@exercise(
    "9.7",
    "Levels that correct",
    claim="007:delta",
    level=2,
    minutes=8,
    cases=_parts_cases,
    oracle=_corrected,
    wrong={
        "the weights stand in A, too: they say how a token READS, and corrections stay as they were": (
            lambda Q, K, beta, L, W: (
                (L * W * (Q @ K.mT))
                @ torch.linalg.inv(torch.eye(len(Q)).double() + (beta[:, None] * L * W * (K @ K.mT)).tril(-1))
                @ torch.diag(beta)
            )
        ),
        "the weights are missing: this is the gated delta rule": _with_parts(
            lambda S, A, W, B, one: S @ torch.linalg.inv(one + A) @ B
        ),
        "nothing is corrected: the inverse is missing": _with_parts(lambda S, A, W, B, one: (W * S) @ B),
        "β is missing on the right": _with_parts(lambda S, A, W, B, one: (W * S) @ torch.linalg.inv(one + A)),
        "the inverse stands on the left: values are corrected first, then read": _with_parts(
            lambda S, A, W, B, one: torch.linalg.inv(one + A) @ (W * S) @ B
        ),
        "this multiplies by I + A: it has to be undone": _with_parts(lambda S, A, W, B, one: (W * S) @ (one + A) @ B),
        "the sign in I + A": _with_parts(lambda S, A, W, B, one: (W * S) @ torch.linalg.inv(one - A) @ B),
        "the weights multiply the product: they belong to the scores": _with_parts(
            lambda S, A, W, B, one: W * (S @ torch.linalg.inv(one + A) @ B)
        ),
        "the decays are missing in A": lambda Q, K, beta, L, W: (
            (L * W * (Q @ K.mT))
            @ torch.linalg.inv(torch.eye(len(Q)).double() + (beta[:, None] * (K @ K.mT)).tril(-1))
            @ torch.diag(beta)
        ),
        "the decays are missing in the scores": lambda Q, K, beta, L, W: (
            (W * (Q @ K.mT))
            @ torch.linalg.inv(torch.eye(len(Q)).double() + (beta[:, None] * L * (K @ K.mT)).tril(-1))
            @ torch.diag(beta)
        ),
    },
)
def log_linear_delta(Q, K, beta, L, W):
    """The matrix M (T, T) of the delta rule with decays L, read by levels with weights W, both (T, T) and causal.

    Chapter 08's gated delta rule is M = (L ∘ QK^T) (I + A)^-1 diag(β), with A = β (L ∘ KK^T) below the diagonal. Give
    its READING a weight for each level. Q and K are (T, N), beta (T,).

    Hint: Which of the factors is the reading? The one with the queries.

    Hint: `A = (beta[:, None] * L * (K @ K.mT)).tril(-1)`, and `torch.linalg.solve(I + A, torch.diag(beta))` is what
    stands to the right of the scores.

    Insight: Decay, correction and levels act in different places of one product, so they combine freely.
    """
    A = (beta[:, None] * L * (K @ K.mT)).tril(-1)
    corrections = torch.linalg.solve(torch.eye(len(Q), dtype=Q.dtype) + A, torch.diag(beta))
    return (L * W * (Q @ K.mT)) @ corrections
