"""The exercise of chapter 12 on the walk: the loop over chunks."""

import math
from functools import partial

import torch

from smalearn.course.ch12.chunk import read_apart, stored_apart, walked
from smalearn.course.ch12.exponents import decay_tile
from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

# ------------------------------------------------------------------------------------------------------ 12.9 the walk


def _walk_loop(X, log2_a, B, C, initial, chunk_len):
    Y, H = walked(initial, X, log2_a, B, C)
    return Y.float(), H.float()


def _chunks(X, log2_a, B, C, chunk_len):
    return zip(*(z.split(chunk_len) for z in (X, log2_a, B, C)), strict=True) if len(X) else ()


def _joined(parts, X):
    return (torch.cat(parts) if parts else X.double()).float()


def _walked(enter=lambda H, first, after: H, leave=lambda H, first, after: after, start=lambda first: first):
    """A walk in which a chunk reads `enter(H, first, after)` and hands on `leave(H, first, after)`.

    H is the state that it was handed, first the one of the first chunk, and after what really follows H.
    """

    def run(X, log2_a, B, C, initial, chunk_len):
        first = H = start(initial.double())
        parts = []
        for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
            after = walked(H, x, a, b)[1]
            parts.append(walked(enter(H, first, after), x, a, b, c)[0])
            H = leave(H, first, after)
        return _joined(parts, X), H.float()

    return run


def _late_reads(X, log2_a, B, C, initial, chunk_len):
    """Every token reads the old state as it is at the end of its chunk."""
    H, parts = initial.double(), []
    for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
        own = walked(torch.zeros_like(H), x, a, b, c)[0]
        parts.append(own + a.double().clamp(min=-160).sum().exp2() * (c.double() @ H))
        H = walked(H, x, a, b)[1]
    return _joined(parts, X), H.float()


def _decayed_before(X, log2_a, B, C, initial, chunk_len):
    H, parts = initial.double(), []
    for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
        parts.append(walked(H, x, a, b, c)[0])
        s = a.double().clamp(min=-160).cumsum(0)
        H = s[-1].exp2() * H + b.double().mT @ (s.exp2()[:, None] * x.double())
    return _joined(parts, X), H.float()


def _first_for_all(X, log2_a, B, C, initial, chunk_len):
    """Every chunk reads the first state; the last one's own end is the result."""
    Y, _ = _walked(enter=lambda H, first, after: first)(X, log2_a, B, C, initial, chunk_len)
    last = max(len(X) - 1, 0) // chunk_len * chunk_len
    return Y, walked(initial, X[last:], log2_a[last:], B[last:])[1].float()


def _whole_chunks(X, log2_a, B, C, initial, chunk_len):
    """The state after the last whole chunk; outputs of the rest are right."""
    whole = len(X) // chunk_len * chunk_len
    return _walk_loop(X, log2_a, B, C, initial, chunk_len)[0], walked(initial, X[:whole], log2_a[:whole], B[:whole])[
        1
    ].float()


def _rest_unstored(X, log2_a, B, C, initial, chunk_len):
    """Whole chunks alone: of the rest no output is stored."""
    Y, H = _whole_chunks(X, log2_a, B, C, initial, chunk_len)
    Y[len(X) // chunk_len * chunk_len :] = torch.nan
    return Y, H


def _undecayed(X, log2_a, B, C, initial, chunk_len):
    """A walk whose chunks add B^T X to the state."""
    H, parts = initial.double(), []
    for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
        parts.append(walked(H, x, a, b, c)[0])
        H = a.double().sum().exp2() * H + b.double().mT @ x.double()
    return _joined(parts, X), H.float()


def _carried(step):
    """After a chunk the state is `step(decay of the whole chunk, H, what the chunk leaves)`."""

    def run(X, log2_a, B, C, initial, chunk_len):
        H, parts = initial.double(), []
        for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
            parts.append(walked(H, x, a, b, c)[0])
            H = step(a.double().sum().exp2(), H, walked(torch.zeros_like(H), x, a, b)[1])
        return _joined(parts, X), H.float()

    return run


def _one_chunk_late(X, log2_a, B, C, initial, chunk_len):
    """The state that the last chunk read."""
    last = max(len(X) - 1, 0) // chunk_len * chunk_len
    return _walk_loop(X, log2_a, B, C, initial, chunk_len)[0], walked(initial, X[:last], log2_a[:last], B[:last])[
        1
    ].float()


def _tail(log2):
    """Log decays of `log2` past the last token."""

    def run(X, log2_a, B, C, initial, chunk_len):
        Y, H = _walk_loop(X, log2_a, B, C, initial, chunk_len)
        return Y, H * 2.0 ** (log2 * (-len(X) % chunk_len)) if len(X) % chunk_len else H

    return run


def _in_float32(decay, cut):
    """A walk in float32 with log decays cut off at `cut`, and L by `decay(log decays of a chunk)`."""

    def run(X, log2_a, B, C, initial, chunk_len):
        H, parts = initial, []
        for x, a, b, c in _chunks(X, log2_a.clamp(min=cut), B, C, chunk_len):
            s = a.cumsum(0)
            parts.append(s.exp2()[:, None] * (c @ H) + (c @ b.mT * decay(a)) @ x)
            H = H * s[-1].exp2() + b.mT @ ((s[-1] - s).exp2()[:, None] * x)
        return torch.cat(parts) if parts else X, H

    return run


def _cut_sums(X, log2_a, B, C, initial, chunk_len):
    """A walk that cuts off running sums."""
    H, parts = initial, []
    for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
        s = a.cumsum(0).clamp(min=-160.0)
        parts.append(s.exp2()[:, None] * (c @ H) + (c @ b.mT * (s[:, None] - s).tril().exp2().tril()) @ x)
        H = H * s[-1].exp2() + b.mT @ ((s[-1] - s).exp2()[:, None] * x)
    return torch.cat(parts) if parts else X, H


def _uncut(a):
    """L from sums of log decays as they are."""
    s = a.cumsum(0)
    return (s[:, None] - s).exp2().tril()


def _rows_of_n(X, log2_a, B, C, initial, chunk_len):
    """Rows of X and Y that begin N apart in memory."""
    Y, H = _walk_loop(read_apart(X, len(initial)), log2_a, B, C, initial, chunk_len)
    return stored_apart(Y, len(initial)), H


def _states_turned(X, log2_a, B, C, initial, chunk_len):
    """States in memory as (P, N)."""
    N, P = initial.shape
    Y, H = _walk_loop(X, log2_a, B, C, initial.reshape(P, N).mT, chunk_len)
    return Y, H.mT.reshape(N, P)


def _without_segments(X, log2_a, B, C, initial, chunk_len):
    """No L at all: 2^s · (C H + (mask ∘ C Bᵀ) Z) and (H + Bᵀ Z) 2^last with Z = 2^(−s) ∘ X, in float32."""
    H, parts = initial, []
    for x, a, b, c in _chunks(X, log2_a, B, C, chunk_len):
        s = a.clamp(min=-160).cumsum(0)
        Z = (-s).exp2()[:, None] * x
        parts.append(s.exp2()[:, None] * (c @ H + (c @ b.mT).tril() @ Z))
        H = (H + b.mT @ Z) * s[-1].exp2()
    return torch.cat(parts) if parts else X, H


def _walk_cases(randn):
    lengths = [(0, 16), (1, 16), (16, 16), (40, 16), (37, 32), (36, 16)]
    for number, (length, chunk_len) in enumerate(lengths):
        X, B, C = (floats(randn, length, width) for width in (32, 16, 16))
        log2_a = strong(randn, length) if number > 3 else decays(randn, length)
        yield X, log2_a, B, C, floats(randn, 16, 32) * (number != 2), chunk_len
    X, B, C = (floats(randn, 20, width) for width in (32, 16, 16))
    log2_a = decays(randn, 20)
    log2_a[0] = -torch.inf  # nothing of a large state is left, not 2^-20 of it either
    yield X, log2_a, B, C, 1e4 * floats(randn, 16, 32), 16


def walk_way(randn, length):
    """The walk's arguments at a length, small and mild."""
    X, B, C = (floats(randn, length, 16) for _ in range(3))
    return X, decays(randn, length), B, C, floats(randn, 16, 16), 16


@exercise(
    "12.9",
    "The walk",
    claim="004:listing-kernel",
    level=3,
    minutes=30,
    tolerance=1e-5,
    cases=_walk_cases,
    way=launches(
        walk_way, halves=("X", "B", "C"), launched=1, compiled=True, needs=DOT, matters={"chunk_len": (16, 32)}
    ),
    oracle=_walk_loop,
    wrong={
        "the walk starts with a state of zeros: the one it is given is never loaded": _walked(start=torch.zeros_like),
        "you cut off running sums: cut every single log decay, before you add them up": _cut_sums,
        "every chunk starts from the first state: H is not carried from chunk to chunk": _first_for_all,
        "H stays what it was at the start: after a chunk has read it, it becomes the next chunk's": _walked(
            leave=lambda H, first, after: H
        ),
        "H is carried on before the chunk has read it, so that its own tokens count twice: first read, then "
        "carry": _walked(enter=lambda H, first, after: after),
        "the last state lacks the last, shorter chunk: with masked loads it needs no case of its own": _whole_chunks,
        "you store the state before the last chunk was carried into it": _one_chunk_late,
        "the state does not decay from chunk to chunk: a whole chunk's decay lies between": _carried(
            lambda a, H, E: H + E
        ),
        "what a chunk leaves decays by the whole chunk once more: it is a H + E, not a (H + E)": _carried(
            lambda a, H, E: a * (H + E)
        ),
        "the state is rounded to a half after each chunk: keep it in float32": _carried(
            lambda a, H, E: (a * H + E).half().double()
        ),
        "the diagonal of L is missing: a token reads itself": lambda X, log2_a, B, C, initial, chunk_len: (
            _walk_loop(X, log2_a, B, C, initial, chunk_len)[0] - (B * C).sum(1, keepdim=True) * X,
            _walk_loop(X, log2_a, B, C, initial, chunk_len)[1],
        ),
        "a reset of −10^30 leaves running sums no digits for other decays: cut off at −160": _in_float32(
            _uncut, cut=-1e30
        ),
        "your L has the decay of the token that is read as well: between j and i lie the decays behind j": _in_float32(
            lambda a: (a.cumsum(0)[:, None] - a.cumsum(0) + a).tril().exp2().tril(), cut=-160.0
        ),
        "what a chunk adds to the state does not decay: each token does, by `last - s`, to the chunk's end": _undecayed,
        "the last, shorter chunk has no turn of the loop: `range(0, length, chunk_len)`, with masks": _rest_unstored,
        "a token reads the old state decayed up to itself, by `s`, not up to the chunk's end": _late_reads,
        "your tokens decay to the chunk's beginning: H gets what follows them, `last - s`": _decayed_before,
        "past the last token decays are not 1, and the last state forgets everything: the logarithm of 1 is "
        "`other=0.0`": _tail(-math.inf),
        "past the last token every log decay is −1: what is not there must decay nothing, `other=0.0`": _tail(-1.0),
        "−∞ minus −∞ is no number: a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": _in_float32(
            _uncut, cut=-torch.inf
        ),
        "the mask comes after the exponential, and ∞ · 0 is no number: mask the exponent with −∞, then `tl.exp2`": (
            _in_float32(partial(decay_tile, "late mask"), cut=-160.0)
        ),
        "your states lie in memory as (P, N): row after row, entry (n, p) is at n · P + p": _states_turned,
        "the rows of X and Y begin N numbers apart: a row of theirs has P, so row t begins at `t * P`": _rows_of_n,
        "you scale tokens by 2^(−s), which overflows where decays are strong: L needs exponents' differences": (
            _without_segments
        ),
    },
)
def walk(X, log2_a, B, C, initial, chunk_len):
    """Y (T, P) and the state (N, P) after the last token, by one program that walks from chunk to chunk, with `tl.dot`.

    X is (T, P), log2_a (T,), B and C (T, N), initial (N, P), all rows one after the other; T is any, 0 included,
    and N, P and c are powers of two from 16. A reset is log2_a = −∞.

    Hint: Before the loop, H from memory. In it: rows, a mask, four loads; the outputs of 12.8 from H; a store; then H
    for the next chunk: its own decay, and what 12.6 adds. After it, H to memory.

    Hint: The memory ends with the last token: mask each load, and the store of Y, by `(start + i < length)[:, None]`,
    that of the decays by `start + i < length`. And what is not there must decay nothing.

    Hint: `H = H * tl.exp2(last) + tl.dot(tl.trans(B), fX, ...)` comes LAST: the chunk reads the H before it.

    Insight: One program walks alone: a small batch leaves most of a GPU idle, which is why long sequences are cut.
    """
    (N, P), Y, final = initial.shape, torch.empty_like(X), torch.empty(initial.shape)
    walk_kernel[(1,)](X, log2_a, B, C, Y, initial, final, len(X), chunk_len=chunk_len, N=N, P=P)
    return Y, final


@triton.jit
def walk_kernel(x, log2_a, b, c, y, initial, final, length, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One program for all chunks."""
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.arange(0, P)
    state = n[:, None] * P + p[None, :]
    H = tl.load(initial + state)
    for start in range(0, length, chunk_len):
        inside = start + i < length
        wide, narrow = (start + i)[:, None] * P + p[None, :], (start + i)[:, None] * N + n[None, :]
        X = tl.load(x + wide, mask=inside[:, None], other=0.0)
        B = tl.load(b + narrow, mask=inside[:, None], other=0.0)
        C = tl.load(c + narrow, mask=inside[:, None], other=0.0)
        a = tl.load(log2_a + start + i, mask=inside, other=0.0)
        a = tl.where(a < -160.0, -160.0, a)
        s, last = tl.cumsum(a), tl.sum(a)
        L = tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf")))
        M = tl.dot(C, tl.trans(B), input_precision="ieee") * L
        Y = tl.dot(C, H.to(C.dtype), input_precision="ieee") * tl.exp2(s)[:, None]
        Y += tl.dot(M.to(X.dtype), X, input_precision="ieee")
        tl.store(y + wide, Y, mask=inside[:, None])
        fX = (X * tl.exp2(last - s)[:, None]).to(X.dtype)
        H = H * tl.exp2(last) + tl.dot(tl.trans(B), fX, input_precision="ieee")
    tl.store(final + state, H)
