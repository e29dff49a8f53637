"""The exercises of chapter 12 on the walk: what a chunk reads, the loop over chunks, many sequences in one memory."""

import itertools
import math

import torch

from smalearn.course.exercises.ch12_tiles import carry, decays, floats, holes, program, tiles, walked
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl

# ------------------------------------------------------------------------------------------ 12.4 the outputs of a chunk


def _read_loop(H, X, B, C, log2_a):
    return walked(H, X, log2_a, B, C)[0].float()


def _read(
    *,
    state=lambda s, a: s,
    mask=0,
    future=0.0,
    segments=True,
    reads=True,
    late=False,
    swapped=False,
    turned=False,
    again=False,
):
    """Output that a chunk reads, with one misconception."""

    def read(H, X, B, C, log2_a):
        H, X, B, C, a = (z.double() for z in (H, X, B, C, log2_a))
        s = a.cumsum(0)
        L = (segments * (s[:, None] - s)).tril().exp2()
        ones = torch.ones_like(L)
        scores = B @ C.mT if swapped else C @ B.mT
        M = scores * (L * ones.tril(mask) + future * ones.triu(1))
        M = scores * (s[:, None] - s).triu().exp2() if turned else M
        M = M * s.exp2()[:, None] if again else M
        H = walked(H, X, a, B)[1] if late else H
        return (reads * state(s, a).exp2()[:, None] * (C @ H) + M @ X).float()

    return read


def _read_cases(randn):
    sizes = [(16, 32, 64), (16, 32, 64), (16, 32, 64), (32, 16, 64), (16, 32, 64)]
    for number, (chunk_len, state, head_dim) in enumerate(sizes):
        shapes = [(state, head_dim), (chunk_len, head_dim), (chunk_len, state), (chunk_len, state)]
        H, X, B, C = (floats(randn, *shape) for shape in shapes)
        log2_a = decays(randn, chunk_len)
        if number == 4:  # whole numbers, of which float32 loses no digit; their sums reach below -1000
            log2_a = torch.where(floats(randn, chunk_len) > 0, -128.0, -1.0)
            log2_a[:10] = -128.0
        yield H * (number != 1), X, B * (number != 2), C, log2_a


@exercise(
    "12.4",
    "What a chunk reads",
    claim="004:listing-kernel",
    level=2,
    minutes=15,
    tolerance=1e-5,
    cases=_read_cases,
    oracle=_read_loop,
    wrong={
        "the state before the chunk is not read: C H, decayed, is missing": _read(reads=False),
        "the state does not decay inside the chunk: token i reads it after the decays up to i, `tl.exp2(s)`": _read(
            state=lambda s, a: 0 * s
        ),
        "a token reads the state before its own decay: it comes first, so the factor is `tl.exp2(s)`": _read(
            state=lambda s, a: s - a
        ),
        "the exponent is masked with 0, and exp2(0) is 1: the future leaks in. Mask with −∞, whose power is 0": _read(
            future=1.0
        ),
        "a token does not see itself: the diagonal belongs to the mask, `i[:, None] >= i[None, :]`": _read(mask=-1),
        "the scores are masked but do not decay: C Bᵀ is multiplied by L, not by a mask of ones": _read(segments=False),
        "you read the state AFTER the chunk, in which its own tokens are already: H is the one before it": _read(
            late=True
        ),
        "the state decays by what follows token i: it has come from before the chunk, so `tl.exp2(s)`": _read(
            state=lambda s, a: s[-1] - s
        ),
        "your triangle is the upper one: tokens read what comes after them": _read(turned=True),
        "the tokens of the chunk decay twice: `tl.exp2(s)` belongs to C H alone, L has its own decays": _read(
            again=True
        ),
        "B and C are exchanged: the token that reads, row i, has C, and the one it reads, column j, has B": _read(
            swapped=True
        ),
        "you take powers of e: the decays are logs to the base 2, `tl.exp2`": lambda H, X, B, C, log2_a: _read_loop(
            H, X, B, C, log2_a / math.log(2)
        ),
    },
)
@tiles
def read_chunk(H, X, B, C, log2_a):
    """Y (Q, P) of a chunk, from the state H (N, P) before it.

    Compute the outputs of a chunk: what its tokens read from one another, and from the state before.

    Hint: Steps 1 and 4 of chapter 06. For step 1 you need L: the exponent of entry (i, j) is `s[i] - s[j]` for j ≤ i.
    Above the diagonal that is positive, and may be huge.

    Hint: Mask the exponent, not the exponential: `tl.where(i[:, None] >= i[None, :], difference, float('-inf'))`, then
    `tl.exp2`. An exponential that is ∞ times a mask of 0 is NaN.

    Hint: `tl.dot(M, X)` with `M = tl.dot(C, tl.trans(B)) * L`, and to it `tl.dot(C, H) * tl.exp2(s)[:, None]`: a token
    lets the state decay before it reads, its own decay included.

    Insight: Both products have C on their left: a program loads it once and uses it twice.
    """
    s, i = tl.cumsum(log2_a), tl.arange(0, len(log2_a))
    segments = tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))
    M = tl.dot(C, tl.trans(B)) * tl.exp2(segments)
    return tl.dot(C, H) * tl.exp2(s)[:, None] + tl.dot(M, X)


# ------------------------------------------------------------------------------------------------------ 12.5 the walk


def _walk_loop(x, log2_a, b, c, y, initial, final, length, sizes):
    Y, H = walked(initial, x, log2_a, b, c)
    return Y.float(), H.float()


def _walked(enter=lambda H, first, after: H, leave=lambda H, first, after: after, start=lambda first: first):
    """A walk in which a chunk reads `enter(H, first, after)` and hands on `leave(H, first, after)`.

    H is the state that it was handed, first the one of the first chunk, and after what really follows H.
    """

    def run(x, log2_a, b, c, y, initial, final, length, sizes):
        first = H = start(initial.double())
        parts = []
        for X, a, B, C in zip(*(z.split(sizes[0]) for z in (x, log2_a, b, c)), strict=True):
            after = walked(H, X, a, B)[1]
            parts.append(walked(enter(H, first, after), X, a, B, C)[0])
            H = leave(H, first, after)
        return torch.cat(parts).float(), H.float()

    return run


def _first_for_all(x, log2_a, b, c, y, initial, final, length, sizes):
    """Every chunk reads the first state; the last one's own end is the result."""
    Y, _ = _walked(enter=lambda H, first, after: first)(x, log2_a, b, c, y, initial, final, length, sizes)
    last = (length - 1) // sizes[0] * sizes[0]
    return Y, walked(initial, x[last:], log2_a[last:], b[last:])[1].float()


def _whole_chunks(x, log2_a, b, c, y, initial, final, length, sizes):
    """The state after the last whole chunk; outputs of the rest are right."""
    Y, _ = _walk_loop(x, log2_a, b, c, y, initial, final, length, sizes)
    whole = length // sizes[0] * sizes[0]
    return Y, walked(initial, x[:whole], log2_a[:whole], b[:whole])[1].float()


def _without_decay(x, log2_a, b, c, y, initial, final, length, sizes):
    """From chunk to chunk the state grows by what is written, and does not decay."""
    H, parts = initial.double(), []
    for X, a, B, C in zip(*(z.split(sizes[0]) for z in (x, log2_a, b, c)), strict=True):
        parts.append(walked(H, X, a, B, C)[0])
        H = H + walked(torch.zeros_like(H), X, a, B)[1]
    return torch.cat(parts).float(), H.float()


def _one_chunk_late(x, log2_a, b, c, y, initial, final, length, sizes):
    """The state that the last chunk read."""
    last = (length - 1) // sizes[0] * sizes[0]
    Y, _ = _walk_loop(x, log2_a, b, c, y, initial, final, length, sizes)
    return Y, walked(initial, x[:last], log2_a[:last], b[:last])[1].float()


def _states_turned(x, log2_a, b, c, y, initial, final, length, sizes):
    """States in memory as (P, N)."""
    N, P = initial.shape
    Y, H = _walk_loop(x, log2_a, b, c, y, initial.reshape(P, N).mT, final, length, sizes)
    return Y, H.mT.reshape(N, P)


def _walk_cases(randn):
    lengths = [(1, 16), (16, 16), (32, 16), (40, 16), (37, 32), (36, 16)]
    for number, (length, chunk_len) in enumerate(lengths):
        x, b, c = (floats(randn, length, width) for width in (32, 16, 16))
        log2_a, initial = decays(randn, length), floats(randn, 16, 32)
        if number == 5:
            log2_a = torch.full_like(log2_a, -12.0)  # strong: 2^(12·16) is no float32
        if number == 0:
            x, log2_a = torch.zeros_like(x), torch.zeros_like(log2_a)
        if number == 1:
            initial = torch.zeros_like(initial)
        yield x, log2_a, b, c, holes(length, 32), initial, holes(16, 32), length, (chunk_len, 16, 32)


@exercise(
    "12.5",
    "The walk",
    claim="004:listing-kernel",
    level=3,
    minutes=25,
    tolerance=1e-5,
    cases=_walk_cases,
    oracle=_walk_loop,
    wrong={
        "the walk starts with a state of zeros: the one it is given is never loaded": _walked(start=torch.zeros_like),
        "every chunk starts from the first state: H is not carried from chunk to chunk": _first_for_all,
        "H stays what it was at the start: after a chunk has read it, `carry` makes the next chunk's H": _walked(
            leave=lambda H, first, after: H
        ),
        "H is carried on before the chunk has read it, so that its own tokens count twice: first read, then "
        "carry": _walked(enter=lambda H, first, after: after),
        "the last state lacks the last, shorter chunk: with masked loads it needs no case of its own": _whole_chunks,
        "you store the state before the last chunk was carried into it": _one_chunk_late,
        "the state does not decay from chunk to chunk: a whole chunk's decay lies between": _without_decay,
        "your states lie in memory as (P, N): row after row, entry (n, p) is at n · P + p": _states_turned,
    },
)
@program("y", "final")
def walk(x, log2_a, b, c, y, initial, final, length, sizes):
    """Y and the last state of one sequence, chunk by chunk, with the state on the chip.

    Write the whole program for one sequence: load, compute and store chunk after chunk, any length.

    Hint: Before the loop: H from memory. In it: the rows of this chunk, four loads, what the chunk reads, a store, and
    H for the next one. After it: H to memory. `read_chunk` and `carry` are yours.

    Hint: Entry (row, p) of x lies at `rows[:, None] * P + p[None, :]`, entry (row, n) of b and c at `rows[:, None] * N
    + n[None, :]`, and the state's (n, p) at `n[:, None] * P + p[None, :]`.

    Hint: The memory ends with the last token: mask every load and the store with `(rows < length)[:, None]`, the decays
    with `rows < length`. And store what the chunk reads BEFORE you overwrite H.

    Insight: One program walks alone, so that a short batch leaves most of a GPU idle; longer sequences are cut for that
    reason.
    """
    Q, N, P = sizes
    i, n, p = tl.arange(0, Q), tl.arange(0, N), tl.arange(0, P)
    state = n[:, None] * P + p[None, :]
    H = tl.load(initial + state)
    for start in range(0, length, Q):
        rows, inside = start + i, start + i < length
        wide, maps = rows[:, None] * P + p[None, :], rows[:, None] * N + n[None, :]
        X = tl.load(x + wide, mask=inside[:, None], other=0.0)
        B = tl.load(b + maps, mask=inside[:, None], other=0.0)
        C = tl.load(c + maps, mask=inside[:, None], other=0.0)
        a = tl.load(log2_a + rows, mask=inside, other=0.0)
        tl.store(y + wide, read_chunk(H, X, B, C, a), mask=inside[:, None])
        H = carry(H, X, B, a)
    tl.store(final + state, H)


# ---------------------------------------------------------------------------------- 12.6 many sequences in one memory


def _packed_loop(x, log2_a, b, c, y, initial, final, borders, sizes):
    return _packed(lambda k, before, initial: initial[k])(x, log2_a, b, c, y, initial, final, borders, sizes)


def _packed(start, late=False, shifted=None):
    """Sequence k starts with `start(k, last state of the one before, initial)`; if `late`, at a multiple of Q.

    With `shifted(first, end, Q)`, which tokens are read, and which of the results are kept.
    """

    def run(x, log2_a, b, c, y, initial, final, borders, sizes):
        edges = borders.tolist()
        if late:
            edges = [min(-(-edge // sizes[0]) * sizes[0], edges[-1]) for edge in edges]
        H, parts, states = initial[0].double(), [], []
        for k, (first, end) in enumerate(itertools.pairwise(edges)):
            now = slice(shifted(first, sizes[0]) if shifted else first, end)
            Y, H = walked(start(k, H, initial), x[now], log2_a[now], b[now], c[now])
            parts.append(Y[first - now.start :])
            states.append(H)
        return torch.cat(parts).float(), torch.stack(states).float()

    return run


def _operands_of_the_first(x, log2_a, b, c, y, initial, final, borders, sizes):
    """Take x and y of the right sequence, everything else from the beginning of the memory."""
    parts, states = [], []
    for k, (first, end) in enumerate(itertools.pairwise(borders.tolist())):
        size = end - first
        Y, H = walked(initial[k].double(), x[first:end], log2_a[:size], b[:size], c[:size])
        parts.append(Y)
        states.append(H)
    return torch.cat(parts).float(), torch.stack(states).float()


def _packed_cases(randn):
    cases = [([0, 3], 1), ([0, 16, 32], 0), ([0, 5, 24], 1), ([0, 20, 20, 37, 40], 1)]
    for borders, given in cases:
        count, length = len(borders) - 1, borders[-1]
        x, b, c = (floats(randn, length, width) for width in (32, 16, 16))
        initial, final = given * floats(randn, count, 16, 32), holes(count, 16, 32)
        places = torch.tensor(borders)
        yield x, decays(randn, length), b, c, holes(length, 32), initial, final, places, (16, 16, 32)


@exercise(
    "12.6",
    "Many sequences, one memory",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    tolerance=1e-5,
    cases=_packed_cases,
    oracle=_packed_loop,
    wrong={
        "the state runs on into the next sequence: each starts from its own first state": _packed(
            lambda k, before, initial: before
        ),
        "all sequences start from the first one's state: `initial` must move on by N · P for each of them": _packed(
            lambda k, before, initial: initial[0]
        ),
        "all sequences start from zero: each has a first state of its own": _packed(
            lambda k, before, initial: torch.zeros_like(initial[k])
        ),
        "a sequence begins at a multiple of Q, with tokens of the one before: chunks count from the sequence's own "
        "first token": _packed(lambda k, before, initial: initial[k], shifted=lambda first, Q: first // Q * Q),
        "every program walks from the beginning of the memory: its sequence begins at `borders[k]`": _packed(
            lambda k, before, initial: initial[k], shifted=lambda first, Q: 0
        ),
        "x and y move on to the sequence, the decays, B and C do not: every pointer must": _operands_of_the_first,
        "a sequence begins with the first whole chunk after its border: chunks count from the sequence's own "
        "first token": _packed(lambda k, before, initial: initial[k], late=True),
    },
)
@program("y", "final", grid="initial")
def packed(x, log2_a, b, c, y, initial, final, borders, sizes):
    """The walks of many sequences that lie end to end, one program each.

    Sequences lie end to end: let program k walk through the k-th of them, from its own first state.

    Hint: A pointer plus a number is a pointer: seen from its first token, a sequence looks like a memory of its own.
    Your `walk` can be called with such pointers.

    Hint: `tl.load(borders + k)` is where sequence k begins, `tl.load(borders + k + 1)` where it ends. A row of x has P
    numbers, one of b has N, one of the decays has 1; a state has N · P.

    Hint: `walk(x + first * P, log2_a + first, b + first * N, ..., initial + k * N * P, ..., end - first, sizes)`.

    Insight: Padding would cost what the longest sequence does, times their number; starts and lengths cost two numbers
    each.
    """
    _, N, P = sizes
    k = tl.program_id(0)
    first, end = tl.load(borders + k), tl.load(borders + k + 1)
    rows, state = (log2_a + first, b + first * N, c + first * N, y + first * P), k * N * P
    walk(x + first * P, *rows, initial + state, final + state, end - first, sizes)
