"""The exercise of chapter 12 that ends in the real kernel: programs for tiles, heads and sequences."""

import itertools

import torch

from smalearn.course.ch12.chunk import SLIPS, walked
from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton


def chunked_ssd(X, log2_a, B, C, initial, borders, chunk_len, tile):
    """Y (T, heads, P) and the last states, like initial, by programs for `tile` columns of P of a head of a sequence.

    X is (T, heads, P), log2_a (T, heads), B and C (T, groups, N): neighbours share a group. X, B and C come with
    any `stride(0)`; within a row, and in every other tensor, all is contiguous. Sequence k has the tokens borders[k] to
    borders[k + 1] − 1, maybe none, and its first states in initial (sequences, heads, N, P).

    Hint: The grid is `(P // tile, heads, len(initial))`. A program finds its columns, its head and its sequence by
    `tl.program_id`; its rows are from `tl.load(borders + k)` to `tl.load(borders + k + 1)`.

    Hint: A pointer plus a number is a pointer: `x + head * x_head`, `b + head // per_group * b_group`, and row t is
    `x_row`, `b_row` numbers further on each time. `per_group` is `heads // groups`, strides come from `X.stride()`.

    Hint: The body is that of 12.8, from `start = first` to `end`. Decays are at `rows * heads + head`, rows of Y at
    `rows * heads + head` times P, and a state begins at `(k * heads + head) * N * P`. Before a product both factors
    take the type of X: `H.to(X.dtype)`, `M.to(X.dtype)`.

    Insight: Three numbers tell a program who it is, and nothing else changes: the walk is the library's kernel.
    """
    (_, heads, P), (groups, N) = X.shape, B.shape[1:]
    Y, final = torch.empty(X.shape, dtype=X.dtype), torch.empty(initial.shape)
    rows = *X.stride()[:2], *B.stride()[:2], *C.stride()[:2]
    ssd_kernel[P // tile, heads, len(initial)](
        X, log2_a, B, C, Y, initial, final, borders, heads, heads // groups, *rows, chunk_len, N, P, tile
    )
    return Y, final


@triton.jit
def ssd_kernel(
    x, log2_a, b, c, y, initial, final, borders, heads, per_group,
    x_row, x_head, b_row, b_group, c_row, c_group,
    chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """`tile` columns of one head of one sequence a program."""
    head, k = tl.program_id(1), tl.program_id(2)
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.program_id(0) * tile + tl.arange(0, tile)
    x, b, c = x + head * x_head, b + head // per_group * b_group, c + head // per_group * c_group
    first, end = tl.load(borders + k), tl.load(borders + k + 1)
    state = (k * heads + head) * N * P + n[:, None] * P + p[None, :]
    H = tl.load(initial + state)
    for start in range(first, end, chunk_len):
        rows = start + i
        inside = rows < end
        X = tl.load(x + rows[:, None] * x_row + p[None, :], mask=inside[:, None], other=0.0)
        B = tl.load(b + rows[:, None] * b_row + n[None, :], mask=inside[:, None], other=0.0)
        C = tl.load(c + rows[:, None] * c_row + n[None, :], mask=inside[:, None], other=0.0)
        a = tl.load(log2_a + rows * heads + head, mask=inside, other=0.0)
        a = tl.where(a < -160.0, -160.0, a)
        s = tl.cumsum(a)
        last = tl.sum(tl.where(i == chunk_len - 1, s, 0.0))
        L = tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf")))
        M = tl.dot(C, tl.trans(B), input_precision="ieee") * L
        Y = tl.dot(C, H.to(C.dtype), input_precision="ieee") * tl.exp2(s)[:, None]
        Y += tl.dot(M.to(X.dtype), X, input_precision="ieee")
        tl.store(y + (rows * heads + head)[:, None] * P + p[None, :], Y, mask=inside[:, None])
        fX = (X * tl.exp2(last - s)[:, None]).to(X.dtype)
        H = H * tl.exp2(last) + tl.dot(tl.trans(B), fX, input_precision="ieee")
    tl.store(final + state, H)


def _reading(begin):
    """Each head of each sequence for itself, which reads tokens from `begin(its first, c)` on."""

    def run(X, log2_a, B, C, initial, borders, chunk_len, tile):
        Y, final = torch.empty(X.shape), torch.empty(initial.shape)
        for (k, (first, end)), head in itertools.product(
            enumerate(itertools.pairwise(borders.tolist())), range(X.shape[1])
        ):
            now, group = slice(begin(first, chunk_len), end), head * B.shape[1] // X.shape[1]
            operands = X[now, head], log2_a[now, head], B[now, group], C[now, group]
            rows, H = walked(initial[k, head], *operands)
            Y[first:end, head], final[k, head] = rows[first - now.start :], H
        return Y, final

    return run


def _operands(randn, borders, heads, groups, given=1, decay=decays):
    """X, B and C as slices of one matrix, as in a layer; N = 16, P = 32."""
    T = borders[-1]
    parts = floats(randn, T, 32 * heads + 32 * groups).split([32 * heads, 16 * groups, 16 * groups], 1)
    X, B, C = (x.unflatten(1, (count, -1)) for x, count in zip(parts, (heads, groups, groups), strict=True))
    log2_a = torch.stack([decay(randn, T) for _ in range(heads)], 1)
    return X, log2_a, B, C, given * floats(randn, len(borders) - 1, heads, 16, 32), torch.tensor(borders)


def _cases(randn):
    yield *_operands(randn, [0, 3], 1, 1), 16, 32
    yield *_operands(randn, [0, 16, 32], 4, 2, given=0), 16, 16
    yield *_operands(randn, [0, 5, 42], 4, 2, decay=strong), 32, 16
    yield *_operands(randn, [0, 20, 20, 37, 40], 4, 2, decay=strong), 16, 32


def _way(randn, length):
    return *_operands(randn, [0, length // 2, length], 2, 1), 16, 16


exercise(
    "12.9",
    "The chunked kernel",
    claim="004:listing-kernel",
    level=3,
    minutes=30,
    tolerance=1e-5,
    cases=_cases,
    way=launches(
        _way,
        halves=("X", "B", "C"),
        launched=1,
        forbids=("torch.Tensor.contiguous", "torch.repeat_interleave", "torch.Tensor.repeat_interleave"),
        programs=8,  # 2 tiles, 2 heads, 2 sequences
        compiled=True,
        needs=DOT,
        matters={"chunk_len": (16, 32)},
    ),
    oracle=_reading(lambda first, chunk_len: first),
    wrong=SLIPS
    | {
        "you take the rows of X, B and C to follow one another: here they are slices of one matrix, as their strides "
        "say": "*X.stride()[:2], *B.stride()[:2], *C.stride()[:2] → heads * P, P, groups * N, N, groups * N, N",
        "you take the rows of X to follow one another: from row to row it is `X.stride(0)`": (
            "*X.stride()[:2] → heads * P, P"
        ),
        "you take the rows of B and C to follow one another: from row to row it is their `stride(0)`": (
            "*B.stride()[:2], *C.stride()[:2] → groups * N, N, groups * N, N"
        ),
        "all heads read the first group's B and C: "
        "that of a head is `head // per_group`": "head // per_group * → 0 * head *",
        "heads take turns with the groups in your answer: those of one group are "
        "neighbours, `head // per_group`": "head // per_group → head % (heads // per_group)",
        "all sequences start from the first one's states: those of sequence k begin at `k * heads * N * P`": (
            "tl.load(initial + state) → tl.load(initial + state - k * heads * N * P)"
        ),
        "all heads start from the first one's state: "
        "that of a head begins at `head * N * P`": "tl.load(initial + state) → tl.load(initial + state - head * N * P)",
        "a sequence begins at a multiple of c, with tokens of the one before: chunks "
        "count from the sequence's own first token": _reading(lambda first, chunk_len: first // chunk_len * chunk_len),
        "every program walks from the beginning of the memory: its sequence begins at `borders[k]`": _reading(
            lambda first, chunk_len: 0
        ),
        "every chunk starts from the first state: "
        "H is not carried from chunk to chunk": "s = tl.cumsum → H = tl.load(initial + state)\n        s = tl.cumsum",
        "H is carried on before the chunk has read it, so that its own tokens count twice: first read, then carry": (
            "H.to(C.dtype) → "
            "(H * tl.exp2(last) + tl.dot(tl.trans(B), X * tl.exp2(last - s)[:, None], input_precision='ieee'))"
        ),
        "the state is rounded to a half after each chunk: keep it in float32": (
            'fX, input_precision="ieee") → fX, input_precision="ieee")\n        H = H.to(tl.float16).to(tl.float32)'
        ),
        "past the last token every log decay is 1, and what is there grows: "
        "the logarithm of 1 is `other=0.0`": "inside, other=0.0 → inside, other=1.0",
        "past the last token decays are not 1, and the last state forgets everything: "
        "the logarithm of 1 is `other=0.0`": "inside, other=0.0 → inside, other=float('-inf')",
        "an empty sequence has no last states: they are its first ones, which must be stored all the same": (
            "return Y, final → return Y, torch.where((borders.diff() > 0)[:, None, None, None], final, 0)"
        ),
    },
)(chunked_ssd)
