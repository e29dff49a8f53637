"""The exercise of chapter 12 on the walk: the loop over chunks."""

import torch

from smalearn.course.ch12.chunk import SLIPS, walked
from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton


def walk(X, log2_a, B, C, initial, chunk_len):
    """Y (T, P) and the state (N, P) after the last token, by one program that walks from chunk to chunk, with `tl.dot`.

    X is (T, P), log2_a (T,), B and C (T, N), initial (N, P), all rows one after the other; T is any, 0 included,
    and N, P and c are powers of two from 16. A reset is log2_a = −∞.

    Hint: Before the loop, H from memory. In it: rows, a mask, four loads; one chunk as in 12.7, which stores its Y and
    leaves the next H. After it, H to memory.

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
        s = tl.cumsum(a)
        last = tl.sum(tl.where(i == chunk_len - 1, s, 0.0))
        L = tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf")))
        M = tl.dot(C, tl.trans(B), input_precision="ieee") * L
        Y = tl.dot(C, H, input_precision="ieee") * tl.exp2(s)[:, None]
        Y += tl.dot(M, X, input_precision="ieee")
        tl.store(y + wide, Y, mask=inside[:, None])
        fX = X * tl.exp2(last - s)[:, None]
        H = H * tl.exp2(last) + tl.dot(tl.trans(B), fX, input_precision="ieee")
    tl.store(final + state, H)


def _walk_loop(X, log2_a, B, C, initial, chunk_len):
    Y, H = walked(initial, X, log2_a, B, C)
    return Y.float(), H.float()


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


def _walk_way(randn, length):
    """The walk's arguments at a length, small and mild."""
    X, B, C = (floats(randn, length, 16) for _ in range(3))
    return X, decays(randn, length), B, C, floats(randn, 16, 16), 16


exercise(
    "12.8",
    "The walk",
    claim="004:listing-kernel",
    level=3,
    minutes=20,
    tolerance=1e-5,
    cases=_walk_cases,
    way=launches(_walk_way, launched=1, compiled=True, needs=DOT, matters={"chunk_len": (16, 32)}),
    oracle=_walk_loop,
    wrong=SLIPS
    | {
        "every chunk starts from the first state: "
        "H is not carried from chunk to chunk": "s = tl.cumsum → H = tl.load(initial + state)\n        s = tl.cumsum",
        "H stays what it was at the start: after a chunk has read it, it becomes the next chunk's": "H = H * → E = H *",
        "H is carried on before the chunk has read it, so that its own tokens count twice: first read, then carry": (
            "dot(C, H → "
            "dot(C, (H * tl.exp2(last) + tl.dot(tl.trans(B), X * tl.exp2(last - s)[:, None], input_precision='ieee'))"
        ),
        "you store the state before the last chunk was carried into "
        "it": "H * tl.exp2(last) + → H * tl.exp2(last * (start + chunk_len < length)) + (start + chunk_len < length) *",
        "the state is rounded to a half after each chunk: keep it in float32": (
            'fX, input_precision="ieee") → fX, input_precision="ieee")\n        H = H.to(tl.float16).to(tl.float32)'
        ),
        "the last, shorter chunk has no turn of the loop: "
        "`range(0, length, chunk_len)`, with masks": "(0, length, → (0, length - chunk_len + 1,",
        "past the last token decays are not 1, and the last state forgets everything: "
        "the logarithm of 1 is `other=0.0`": "inside, other=0.0 → inside, other=float('-inf')",
        "past the last token every log decay is 1, and what is there grows: "
        "the logarithm of 1 is `other=0.0`": "inside, other=0.0 → inside, other=1.0",
        "past the last token every log decay is −1: "
        "what is not there must decay nothing, `other=0.0`": "inside, other=0.0 → inside, other=-1.0",
        "your states lie in memory as (P, N): "
        "row after row, entry (n, p) is at n · P + p": "n[:, None] * P + p[None, :]\n → n[:, None] + p[None, :] * N\n",
        "the rows of X and Y begin N numbers apart: "
        "a row of theirs has P, so row t begins at `t * P`": "(start + i)[:, None] * P → (start + i)[:, None] * N",
    },
)(walk)
