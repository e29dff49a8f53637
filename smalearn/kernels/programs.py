"""The GPU programs of SSD, one source for three readers: Triton's compiler, its interpreter, and our tile machine.

`tl` is the tile machine here; `launch` gives the same functions Triton's own `tl`. The mathematics is that of
`kernels.cpu`, and so are its letters: s the running sums of log a in a chunk, e = exp(s), f = exp(s_last - s), L, W, G.

- An operand is a tuple: a pointer, and the strides of its axes (batch, group, head, row, column). Nothing is copied.
- sizes is (P, N, Q, BP, BN): head dimension, state, chunk length, and the tiles that hold P (in steps) and N (whole).
- A state is held as (N, P), in float32 and on the chip, so that no result of a product is ever transposed: compilers
  have done that wrongly. What ends in T is computed transposed.
- Exponents are masked to -inf before exp2, never after: exp of what is masked may be inf, and 0·inf is NaN.
- A row past the end has log a = 0 and x = 0, so that the state after the last token is exact for every length.
- Where heads are too few to fill the GPU, a walk is cut into segments: once for what each adds to the state, and once
  more from the states that follow.
- No atomics: every entry is written by one program, once, so that two runs give the same bits.
"""

from smalearn.kernels import tile as tl

__all__ = ["ssd_backward_chunks", "ssd_backward_states", "ssd_forward", "ssd_step"]


def at(x, head, rows, columns):
    """Pointers to entries of one head = (batch, group, head); int64, for a tensor may have more than 2^31 entries."""
    pointer = x[0] + tl.cast(head[0], tl.int64) * x[1] + tl.cast(head[1], tl.int64) * x[2]
    pointer += tl.cast(head[2], tl.int64) * x[3]
    return pointer + (tl.cast(rows, tl.int64) * x[4] + tl.cast(columns, tl.int64) * x[5])


def read(x, head, rows, columns, height, width):
    """The tile of these rows and columns; 0 outside of (height, width)."""
    mask = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(at(x, head, rows[:, None], columns[None, :]), mask=mask, other=0.0)


def write(x, head, rows, columns, height, width, tile):
    """Store what of the tile is inside of (height, width)."""
    mask = (rows < height)[:, None] & (columns < width)[None, :]
    tl.store(at(x, head, rows[:, None], columns[None, :]), tile, mask=mask)


def decay_sums(log_a, head, rows, length):
    """Running sums of log2 a as coarse + fine, each (Q,), and the totals of both.

    A difference of long sums loses the digits of what follows a strong decay. Here the coarse part counts in units of
    2^-9, and float32 adds whole numbers below 2^24 exactly; the fine part stays below 1. A log2 a under -160 means 0,
    as exp2 of it is.
    """
    a = tl.load(at(log_a, head, rows, 0), mask=rows < length, other=0.0)
    a = tl.cast(a, tl.float32) * 1.4426950408889634
    a = tl.where(a < -160.0, -160.0, a)  # and not a maximum, which on a GPU makes a number of NaN
    coarse = tl.floor(a * 512.0 + 0.5) * 0.001953125
    fine = a - coarse
    return tl.cumsum(coarse, 0), tl.cumsum(fine, 0), tl.sum(coarse, 0), tl.sum(fine, 0)


def lower(coarse, fine, i):
    """L (Q, Q): entry (i, j) is the decay from token j to token i, 0 for j > i."""
    s = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    return tl.exp2(tl.where(i[:, None] >= i[None, :], s, float("-inf")))


def upper(coarse, fine, i):
    """L^T (Q, Q), computed so."""
    s = (coarse[None, :] - coarse[:, None]) + (fine[None, :] - fine[:, None])
    return tl.exp2(tl.where(i[None, :] >= i[:, None], s, float("-inf")))


def segment_length(length, segments, Q: tl.constexpr):
    """Tokens of a segment, whole chunks; the last segments may have fewer, or none."""
    return ((length + Q - 1) // Q + segments - 1) // segments * Q


def flow(insideT, past, future, i, precision: tl.constexpr):
    """For every t of a chunk, the sum of all that flows from before t to t or later, but for what passes the chunk.

    Only terms that cross t are added and nothing is subtracted, so that small gradients between strong decays keep
    their digits.

    Args:
        insideT: (Q, Q), flow from a token (row) to a later or the same one (column).
        past: (Q,), flow from before the chunk to each token.
        future: (Q,), flow from each token to after the chunk.
        i: arange of Q.
        precision: of products of float32.
    """
    before = tl.cast(i[None, :] < i[:, None], tl.float32)
    crossing = tl.dot(before, insideT, input_precision=precision) + past[None, :]
    return tl.sum(tl.where(i[None, :] >= i[:, None], crossing, future[None, :]), 1)


def ssd_forward(
    x, log_a, b, c, y, initial, final, states, length, heads, segments, sizes: tl.constexpr, precision: tl.constexpr
):
    """Outputs and last state for BP columns of one segment of a head.

    The grid is (tiles of P, groups·heads, batch·segments); segments are runs of whole chunks.

    Args:
        x: (batch, group, head, T, P) inputs.
        log_a: (batch, group, head, T, 1) log decays.
        b: (batch, group, 1, T, N).
        c: (batch, group, 1, T, N).
        y: outputs, like x; None if only states are wanted.
        initial: (batch·segments, group, head, N, P), the state before every segment; zeros if None.
        final: the state after every segment, like initial.
        states: (batch, group, head, chunks·N, P), before every chunk, for the backward; or None.
        length: T.
        heads: number of heads of a group.
        segments: number of segments.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    p = tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    H = tl.full((sizes[4], sizes[3]), 0.0, tl.float32)
    segment, span = tl.program_id(2) % segments, segment_length(length, segments, Q)
    if initial is not None:
        H += read(initial, place, n, p, N, P)
    for start in range(segment * span, tl.minimum(segment * span + span, length), Q):
        if states is not None:
            chunk = (start // Q) * N
            write(states, head, chunk + n, p, chunk + N, P, H)
        rows = start + i
        coarse, fine, coarse_total, fine_total = decay_sums(log_a, head, rows, length)
        B, X = read(b, group, rows, n, length, N), read(x, head, rows, p, length, P)
        if y is not None:
            C = read(c, group, rows, n, length, N)
            M = tl.dot(C, tl.trans(B), input_precision=precision) * lower(coarse, fine, i)
            Y = tl.dot(C, tl.cast(H, C.dtype), input_precision=precision) * tl.exp2(coarse + fine)[:, None]
            Y += tl.dot(tl.cast(M, X.dtype), X, input_precision=precision)
            write(y, head, rows, p, length, P, Y)
        fX = tl.cast(X * tl.exp2((coarse_total - coarse) + (fine_total - fine))[:, None], B.dtype)
        H = H * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(B), fX, input_precision=precision)
    write(final, place, n, p, N, P, H)


def ssd_backward_states(
    dy, log_a, c, dfinal, dinitial, dstates, length, heads, segments, sizes: tl.constexpr, precision: tl.constexpr
):
    """Gradients of the states for BP columns of one segment of a head, walking back; grid as in `ssd_forward`.

    Args:
        dy: (batch, group, head, T, P) gradient of the outputs.
        log_a: (batch, group, head, T, 1).
        c: (batch, group, 1, T, N).
        dfinal: (batch·segments, group, head, N, P) gradient of the state after every segment; zeros if None.
        dinitial: that of the state before every segment, or None.
        dstates: (batch, group, head, chunks·N, P), that of the state after every chunk, or None.
        length: T.
        heads: number of heads of a group.
        segments: number of segments.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    n, p = tl.arange(0, sizes[4]), tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    dH = tl.full((sizes[4], sizes[3]), 0.0, tl.float32)
    segment, span = tl.program_id(2) % segments, segment_length(length, segments, Q) // Q
    if dfinal is not None:
        dH += read(dfinal, place, n, p, N, P)
    end = tl.minimum(segment * span + span, (length + Q - 1) // Q)
    for back in range(1, end - segment * span + 1):
        chunk = end - back
        if dstates is not None:
            write(dstates, head, chunk * N + n, p, chunk * N + N, P, dH)
        rows = chunk * Q + tl.arange(0, Q)
        coarse, fine, coarse_total, fine_total = decay_sums(log_a, head, rows, length)
        C, dY = read(c, group, rows, n, length, N), read(dy, head, rows, p, length, P)
        edY = tl.cast(dY * tl.exp2(coarse + fine)[:, None], C.dtype)
        dH = dH * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(C), edY, input_precision=precision)
    if dinitial is not None:
        write(dinitial, place, n, p, N, P, dH)


def ssd_backward_chunks(
    x, log_a, b, c, dy, states, dstates, dx, dlog_a, db, dc, length, heads, sizes: tl.constexpr, precision: tl.constexpr
):
    """Gradients for one chunk and all heads of one group; the grid is (chunks, groups, batch).

    Args:
        x: (batch, group, head, T, P).
        log_a: (batch, group, head, T, 1).
        b: (batch, group, 1, T, N).
        c: (batch, group, 1, T, N).
        dy: (batch, group, head, T, P) gradient of the outputs.
        states: (batch, group, head, chunks·N, P), before every chunk.
        dstates: (batch, group, head, chunks·N, P), gradients of the states after every chunk.
        dx: gradient, like x.
        dlog_a: gradient, like log_a, or None.
        db: gradient, like b.
        dc: gradient, like c.
        length: T.
        heads: number of heads of a group.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    rows, border = tl.program_id(0) * Q + i, tl.program_id(0) * N
    group = (tl.program_id(2), tl.program_id(1), 0)
    B, C = read(b, group, rows, n, length, N), read(c, group, rows, n, length, N)
    scoresT = tl.dot(B, tl.trans(C), input_precision=precision)
    dB, dC = tl.full((Q, sizes[4]), 0.0, tl.float32), tl.full((Q, sizes[4]), 0.0, tl.float32)
    dM, dMT = tl.full((Q, Q), 0.0, tl.float32), tl.full((Q, Q), 0.0, tl.float32)
    for r in range(0, heads):
        head = (tl.program_id(2), tl.program_id(1), r)
        coarse, fine, coarse_total, fine_total = decay_sums(log_a, head, rows, length)
        e, f = tl.exp2(coarse + fine), tl.exp2((coarse_total - coarse) + (fine_total - fine))
        L, LT = lower(coarse, fine, i), upper(coarse, fine, i)
        GT, through = tl.full((Q, Q), 0.0, tl.float32), tl.full((sizes[4],), 0.0, tl.float32)
        past, future = tl.full((Q,), 0.0, tl.float32), tl.full((Q,), 0.0, tl.float32)
        for first in range(0, P, sizes[3]):
            p = first + tl.arange(0, sizes[3])
            X, dY = read(x, head, rows, p, length, P), read(dy, head, rows, p, length, P)
            H, dH = read(states, head, border + n, p, border + N, P), read(dstates, head, border + n, p, border + N, P)
            WT = tl.dot(X, tl.trans(dY), input_precision=precision) * LT
            HdY = tl.dot(dY, tl.trans(H), input_precision=precision) * e[:, None]
            BdH = tl.dot(B, dH, input_precision=precision) * f[:, None]
            dM += tl.dot(dY, tl.trans(X), input_precision=precision) * L
            dMT, GT = dMT + WT, GT + WT * scoresT
            dC += HdY
            dB += tl.dot(X, tl.trans(dH), input_precision=precision) * f[:, None]
            past, future = past + tl.sum(HdY * C, 1), future + tl.sum(BdH * X, 1)
            through += tl.sum(tl.cast(H, tl.float32) * dH, 1)
            BdH += tl.dot(tl.cast(scoresT * LT, X.dtype), dY, input_precision=precision)
            write(dx, head, rows, p, length, P, BdH)
        if dlog_a is not None:
            passed = tl.exp2(coarse_total + fine_total) * tl.sum(through, 0)
            tl.store(at(dlog_a, head, rows, 0), flow(GT, past, future, i, precision) + passed, mask=rows < length)
    write(dc, group, rows, n, length, N, dC + tl.dot(tl.cast(dM, B.dtype), B, input_precision=precision))
    write(db, group, rows, n, length, N, dB + tl.dot(tl.cast(dMT, C.dtype), C, input_precision=precision))


def ssd_step(x, log_a, b, c, y, state, heads, sizes: tl.constexpr):
    """One token for BP columns of one head: H = exp(log_a) H + B x^T, y = C H; the grid is that of a walk.

    Args:
        x: (batch, group, head, 1, P) input.
        log_a: (batch, group, head, 1, 1) log decay.
        b: (batch, group, 1, 1, N).
        c: (batch, group, 1, 1, N).
        y: output, like x.
        state: (batch, group, head, N, P), which is overwritten.
        heads: number of heads of a group.
        sizes: (P, N, BP, BN).
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    group = (tl.program_id(2), tl.program_id(1) // heads, 0)
    head = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    n, p = tl.arange(0, sizes[3]), tl.program_id(0) * sizes[2] + tl.arange(0, sizes[2])
    a = tl.exp2(tl.cast(tl.load(at(log_a, head, 0, 0)), tl.float32) * 1.4426950408889634)
    X = tl.load(at(x, head, 0, p), mask=p < P, other=0.0)
    B = tl.cast(tl.load(at(b, group, 0, n), mask=n < N, other=0.0), tl.float32)
    C = tl.load(at(c, group, 0, n), mask=n < N, other=0.0)
    H = read(state, head, n, p, N, P) * a + B[:, None] * X[None, :]
    write(state, head, n, p, N, P, H)
    tl.store(at(y, head, 0, p), tl.sum(H * C[:, None], 0), mask=p < P)
