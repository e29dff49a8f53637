"""The GPU programs of SSD's backward; what `programs.py` says of operands, sizes and states holds here.

With dH' the gradient of the state after a chunk, M = L ∘ C B^T, and W = L ∘ dY X^T, the gradients are

    dH = exp(s_last) dH' + C^T (e ∘ dY)      of the state before the chunk: a scan, from the last one to the first
    dX = M^T dY + f ∘ B dH'
    dB = W^T C + (f ∘ X) dH'^T
    dC = W B + (e ∘ dY) H^T

and the gradient of log a_t sums all that flows from before t to t or later, see `pieces.flow`. The scan is one program
for a head, as in the forward; the others are one for a chunk, since all states and their gradients are in memory then.
"""

from smalearn.fast import tile as tl
from smalearn.fast.triton.pieces import (
    at,
    between,
    chunk_sums,
    flow,
    passed_back,
    put,
    read,
    scaled,
    step_sizes,
    until_end,
    upper,
    write,
    zeros,
)


def ssd_backward_states(
    dy, log_a, c, dfinal, dinitial, dstates, length, heads, segments, sizes: tl.constexpr, precision: tl.constexpr,
    borders=None, sums=None, totals=None,
):  # fmt: skip
    """Gradients of the states for BP columns of one segment of a head, in a backward scan; grid as in `ssd_forward`.

    All that is not named here is as in `ssd_forward`.

    Operands of its own:
        dy: (batch, group, head, T, P) gradient of the outputs.
        dfinal: (batch·segments, group, head, N, P) gradient of the state after every segment; zeros if None.
        dinitial: that of the state before every segment, or None.
        dstates: (batch, group, head, (chunks + segments - 1)·N, P), that of the state after every chunk, or None.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)  # of what each segment has
    i, n = tl.arange(0, Q), tl.arange(0, BN)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    dH = zeros(BN, BP)
    all_coarse, all_fine = 0.0, 0.0
    segment = tl.program_id(2) % segments
    first, end = between(borders, segment, length)
    if dfinal is not None:
        dH += read(dfinal, place, n, p, N, P)
    chunks = (end - first + Q - 1) // Q
    for back in range(1, chunks + 1):
        start = first + (chunks - back) * Q
        if dstates is not None:
            border = (start // Q + segment) * N
            write(dstates, head, border + n, p, border + N, P, dH)
        rows = start + i
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        C = read(c, group, rows, n, end, N)  # (Q, BN)
        dY = read(dy, head, rows, p, end, P)  # (Q, BP)
        # dH = exp(s_last) dH' + C^T (e ∘ dY)
        edY = tl.cast(dY * tl.exp2(coarse + fine)[:, None], C.dtype)
        dH = dH * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(C), edY, input_precision=precision)
        all_coarse += coarse_total
        all_fine += fine_total
    if dinitial is not None:
        write(dinitial, place, n, p, N, P, dH)
    if totals is not None:
        tl.store(at(totals, place, tl.program_id(0), 0), all_coarse + all_fine)


def ssd_backward_inputs(
    x, log_a, b, c, dy, states, dstates, dx, dlog_a, pairs, length, heads, groups, sizes: tl.constexpr,
    precision: tl.constexpr, chunks=None, layer=None, steps: tl.constexpr = None, sums=None, ddt=None, dskip=None,
):  # fmt: skip
    """Gradients of x and log_a for one chunk of one head, and what the maps need of its pairs of tokens.

    The grid is ((chunks + segments - 1)·groups·heads, batch), heads of a chunk side by side: they share B and C. All
    that is not named here is as in `ssd_forward`.

    Operands of its own:
        dy: (batch, group, head, T, P) gradient of the outputs; with a layer that of what its gate multiplies.
        states: before every chunk, as `ssd_forward` writes them.
        dstates: gradients of the states after every chunk.
        dx: gradient, like x.
        dlog_a: gradient, like log_a, or None.
        pairs: (batch, group, head, T, Q): W^T, for token j (row) and the i-th token of its chunk X_j dY_i^T L_ij.
        groups: number of groups.
        chunks: (chunks + segments - 1, 2) the tokens where chunks begin and their segments end, beginning there where
            there is no chunk of that number; None if there is one segment.
        ddt: gradient of the step sizes through dt·x alone, like log_a.
        dskip: gradient of D by token, like log_a.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    i, n = tl.arange(0, Q), tl.arange(0, BN)
    chunk, batch, which = tl.program_id(0) // (groups * heads), tl.program_id(1), tl.program_id(0) % (groups * heads)
    group, head = (batch, which // heads, 0), (batch, which // heads, which % heads)
    start, end = (chunk * Q, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows, border = start + i, chunk * N
    bottom = tl.where(start < end, border + N, 0)  # where there is no chunk, there are no states
    dt = None if steps is None else step_sizes(layer, head, rows, end, steps)
    coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
    e, f = tl.exp2(coarse + fine), until_end(coarse, fine, coarse_total, fine_total)
    B, C = read(b, group, rows, n, end, N), read(c, group, rows, n, end, N)  # (Q, BN)
    LT = upper(coarse, fine, i)  # (Q, Q)
    WT = every_pair(x, dy, dt, LT, pairs, head, rows, i, end, sizes, precision)
    MT = tl.dot(B, tl.trans(C), input_precision=precision)
    GT, MT = WT * MT, tl.cast(MT * LT, B.dtype)  # GT: the flow from a token (row) to another (column)
    past, future, stepped, skipped, through = zeros(Q), zeros(Q), zeros(Q), zeros(Q), zeros(BN)
    for first in range(0, P, BP):
        p = first + tl.arange(0, BP)
        x_raw, dY = read(x, head, rows, p, end, P), read(dy, head, rows, p, end, P)  # (Q, BP)
        X = scaled(x_raw, dt)
        H, dH = read(states, head, border + n, p, bottom, P), read(dstates, head, border + n, p, bottom, P)  # (BN, BP)
        past += tl.sum(tl.dot(C, H, input_precision=precision) * dY, 1)
        through += tl.sum(tl.cast(H, tl.float32) * dH, 1)
        dX = tl.dot(B, dH, input_precision=precision) * f[:, None]
        future += tl.sum(dX * X, 1)
        dX += tl.dot(MT, dY, input_precision=precision)
        dX, stepped, skipped = passed_back(dX, dY, x_raw, dt, stepped, skipped, layer, head)
        write(dx, head, rows, p, end, P, dX)
    total = tl.exp2(coarse_total + fine_total) * tl.sum(through, 0)
    put(dlog_a, head, rows, end, flow(GT, e * past, future, i, precision) + total)
    put(ddt, head, rows, end, stepped)
    put(dskip, head, rows, end, skipped)


def every_pair(x, dy, dt, LT, pairs, head, rows, i, length, sizes: tl.constexpr, precision: tl.constexpr):
    """W^T = X dY^T ∘ L^T (Q, Q), for every pair of tokens of a chunk; the maps find it in `pairs`.

    The loop is a function of its own, whose registers are free after it.
    """
    P: tl.constexpr = sizes[0]
    Q: tl.constexpr = sizes[2]
    BP: tl.constexpr = sizes[3]
    WT = zeros(Q, Q)
    for first in range(0, P, BP):
        p = first + tl.arange(0, BP)
        X = scaled(read(x, head, rows, p, length, P), dt)  # (Q, BP)
        dY = read(dy, head, rows, p, length, P)
        WT += tl.dot(X, tl.trans(dY), input_precision=precision)
    WT *= LT
    write(pairs, head, rows, i, length, Q, WT)
    return WT


def ssd_backward_maps(
    x, log_a, b, c, dy, states, dstates, pairs, db, dc, length, heads, sizes: tl.constexpr, precision: tl.constexpr,
    chunks=None, layer=None, steps: tl.constexpr = None, sums=None,
):  # fmt: skip
    """Gradients of B and C, db and dc, for one chunk and one group; the grid is (chunks + segments - 1, groups, batch).

    For each head both are products of tiles that are in memory; only the two sums stay in registers. All other operands
    are those of `ssd_backward_inputs`, which has written `pairs`.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    i, n = tl.arange(0, Q), tl.arange(0, BN)
    chunk = tl.program_id(0)
    border = chunk * N
    group = (tl.program_id(2), tl.program_id(1), 0)
    start, end = (chunk * Q, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows = start + i
    bottom = tl.where(start < end, border + N, 0)  # where there is no chunk, there are no states
    B = read(b, group, rows, n, end, N)  # (Q, BN)
    C = read(c, group, rows, n, end, N)
    dB, dC = zeros(Q, BN), zeros(Q, BN)
    for r in range(0, heads):
        head = (tl.program_id(2), tl.program_id(1), r)
        dt = None if steps is None else step_sizes(layer, head, rows, end, steps)
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        e = tl.exp2(coarse + fine)
        f = until_end(coarse, fine, coarse_total, fine_total)
        # dB = W^T C + (f ∘ X) dH^T and dC = W B + (e ∘ dY) H^T, of all heads
        WT = read(pairs, head, rows, i, end, Q)  # (Q, Q)
        dB += tl.dot(WT, C, input_precision=precision)
        dC += tl.dot(tl.trans(WT), B, input_precision=precision)
        for first in range(0, P, BP):
            p = first + tl.arange(0, BP)
            X = scaled(read(x, head, rows, p, end, P), dt)  # (Q, BP)
            dY = read(dy, head, rows, p, end, P)
            H = read(states, head, border + n, p, bottom, P)  # (BN, BP)
            dH = read(dstates, head, border + n, p, bottom, P)
            dB += tl.dot(tl.cast(X * f[:, None], B.dtype), tl.trans(dH), input_precision=precision)
            dC += tl.dot(tl.cast(dY * e[:, None], B.dtype), tl.trans(H), input_precision=precision)
    write(db, group, rows, n, end, N, dB)
    write(dc, group, rows, n, end, N, dC)
