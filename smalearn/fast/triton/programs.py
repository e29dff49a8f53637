"""The GPU programs of SSD, one source for three readers: Triton's compiler, its interpreter, and our Triton emulator.

`tl` is the emulator `fast.tile` here; `launch` gives the same functions Triton's own `tl`. The mathematics is that of
`fast.cpu`, and so are its letters: s the running sums of log a in a chunk, e = exp(s), f = exp(s_last - s), L, W, G.

- An operand is a tuple: a pointer, and the strides of its axes (batch, group, head, row, column). Nothing is copied.
- sizes is (P, N, Q, BP, BN): head dimension, state, chunk length, and the tiles that hold P (in steps) and N (whole).
- A state is held as (N, P), in float32 and on the chip, so that no result of a product is ever transposed: compilers
  have done that wrongly. What ends in T is computed transposed.
- Exponents are masked to -inf before exp2, never after: exp of what is masked may be inf, and 0·inf is NaN.
- A row past the end has log a = 0 and x = 0, so that the state after the last token is exact for every length.
- The tokens of a batch may be cut into segments: sequences that lie end to end, or, where heads are too few to fill the
  GPU, parts of them. Then every part is scanned twice: for what it adds to the state, and from its carry-in, which
  `ssd_carry` finds in between.
  Chunks begin anew with every segment; chunk start of segment k has the number start // Q + k, which no other has.
- Where programs are compiled, `ssd_sums` sums beforehand: what `tl.cumsum` returns keeps the compiler from computing L
  in the layout of the product that it multiplies.
- No atomics: every entry is written by one program, once, so that two runs give the same bits.
"""

from smalearn.fast import tile as tl
from smalearn.fast.triton.pieces import (
    at,
    between,
    chunk_sums,
    decay_sums,
    finished,
    flow,
    lower,
    passed_back,
    put,
    read,
    scaled,
    step_sizes,
    upper,
    write,
    zeros,
)

__all__ = [
    "ssd_backward_inputs",
    "ssd_backward_maps",
    "ssd_backward_states",
    "ssd_carry",
    "ssd_forward",
    "ssd_step",
    "ssd_sums",
]


def ssd_forward(
    x, log_a, b, c, y, initial, final, states, length, heads, segments, sizes: tl.constexpr, precision: tl.constexpr,
    borders=None, layer=None, steps: tl.constexpr = None, sums=None, totals=None,
):  # fmt: skip
    """Outputs and last state for BP columns of one segment of a head.

    The grid is (tiles of P, groups·heads, batch·segments).

    Args:
        x: (batch, group, head, T, P) inputs.
        log_a: (batch, group, head, T, 1) log decays.
        b: (batch, group, 1, T, N).
        c: (batch, group, 1, T, N).
        y: outputs, like x; None if only states are wanted.
        initial: (batch·segments, group, head, N, P), the state before every segment; zeros if None.
        final: the state after every segment, like initial.
        states: (batch, group, head, (chunks + segments - 1)·N, P), before every chunk, for the backward; or None.
        length: T.
        heads: number of heads of a group.
        segments: number of segments.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        borders: (segments + 1) tokens where segments begin, and where the last ends; None if there is one.
        layer: (dt, bias, D, z, dy, gated) of Mamba-2, the first three like log_a, the others like x, all but dt None
            where absent; or None. With dy, the gradient of the outputs, y gets the gradient of z, and `gated` dy ∘
            silu(z), that of what the gate multiplies.
        steps: (softplus, least, greatest) for the step sizes; None if there is no layer.
        sums: what `ssd_sums` has made of all log decays; if None they are summed here.
        totals: (batch·segments, group, head, tiles of P, 1) the sum of log2 a over every segment, for `ssd_carry`, or
            None.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    p = tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    H, all_coarse, all_fine = tl.full((sizes[4], sizes[3]), 0.0, tl.float32), 0.0, 0.0
    segment = tl.program_id(2) % segments
    first, end = between(borders, segment, length)
    if initial is not None:
        H += read(initial, place, n, p, N, P)
    for start in range(first, end, Q):
        if states is not None:
            chunk = (start // Q + segment) * N
            write(states, head, chunk + n, p, chunk + N, P, H)
        dt = None if steps is None else step_sizes(layer, head, start + i, end, steps)
        rows = start + i
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        B, X = read(b, group, rows, n, end, N), read(x, head, rows, p, end, P)
        x_raw, X = X, scaled(X, dt)
        if y is not None:
            C = read(c, group, rows, n, end, N)
            M = tl.dot(C, tl.trans(B), input_precision=precision) * lower(coarse, fine, i)
            Y = tl.dot(C, tl.cast(H, C.dtype), input_precision=precision) * tl.exp2(coarse + fine)[:, None]
            Y += tl.dot(tl.cast(M, X.dtype), X, input_precision=precision)
            write(y, head, rows, p, end, P, finished(Y, x_raw, dt, layer, head, rows, p, end, P))
        fX = tl.cast(X * tl.exp2((coarse_total - coarse) + (fine_total - fine))[:, None], B.dtype)
        H = H * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(B), fX, input_precision=precision)
        all_coarse, all_fine = all_coarse + coarse_total, all_fine + fine_total
    write(final, place, n, p, N, P, H)
    if totals is not None:
        tl.store(at(totals, place, tl.program_id(0), 0), all_coarse + all_fine)


def ssd_backward_states(
    dy, log_a, c, dfinal, dinitial, dstates, length, heads, segments, sizes: tl.constexpr, precision: tl.constexpr,
    borders=None, sums=None, totals=None,
):  # fmt: skip
    """Gradients of the states for BP columns of one segment of a head, in a backward scan; grid as in `ssd_forward`.

    Args:
        dy: (batch, group, head, T, P) gradient of the outputs.
        log_a: (batch, group, head, T, 1).
        c: (batch, group, 1, T, N).
        dfinal: (batch·segments, group, head, N, P) gradient of the state after every segment; zeros if None.
        dinitial: that of the state before every segment, or None.
        dstates: (batch, group, head, (chunks + segments - 1)·N, P), that of the state after every chunk, or None.
        length: T.
        heads: number of heads of a group.
        segments: number of segments.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        borders: of the segments, as in `ssd_forward`.
        sums: as in `ssd_forward`.
        totals: as in `ssd_forward`.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    p = tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    dH, all_coarse, all_fine = tl.full((sizes[4], sizes[3]), 0.0, tl.float32), 0.0, 0.0
    segment = tl.program_id(2) % segments
    first, end = between(borders, segment, length)
    if dfinal is not None:
        dH += read(dfinal, place, n, p, N, P)
    chunks = (end - first + Q - 1) // Q
    for back in range(1, chunks + 1):
        start = first + (chunks - back) * Q
        if dstates is not None:
            chunk = (start // Q + segment) * N
            write(dstates, head, chunk + n, p, chunk + N, P, dH)
        rows = start + i
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        C, dY = read(c, group, rows, n, end, N), read(dy, head, rows, p, end, P)
        edY = tl.cast(dY * tl.exp2(coarse + fine)[:, None], C.dtype)
        dH = dH * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(C), edY, input_precision=precision)
        all_coarse, all_fine = all_coarse + coarse_total, all_fine + fine_total
    if dinitial is not None:
        write(dinitial, place, n, p, N, P, dH)
    if totals is not None:
        tl.store(at(totals, place, tl.program_id(0), 0), all_coarse + all_fine)


def ssd_carry(
    added, totals, outer, before, ends, heads, segments, sequences, sizes: tl.constexpr, back: tl.constexpr
):  # fmt: skip
    """The state before every segment k of a sequence, for BP columns: H_(k+1) = 2^totals_k H_k + added_k.

    The grid is (tiles of P, groups·heads, batch·sequences).

    Args:
        added: (batch·segments, group, head, N, P), what every segment adds.
        totals: as a scan writes them.
        outer: (batch·sequences, group, head, N, P), the state before the first segment; zeros if None.
        before: like added.
        ends: (sequences + 1) the first segment of every sequence, and the number of all.
        heads: number of heads of a group.
        segments: number of segments.
        sequences: number of sequences.
        sizes: (P, N, Q, BP, BN).
        back: whether to go from the last segment to the first, as gradients do.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    g, r = tl.program_id(1) // heads, tl.program_id(1) % heads
    n, p = tl.arange(0, sizes[4]), tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    first, end = between(ends, tl.program_id(2) % sequences, segments)
    skipped = (tl.program_id(2) // sequences) * segments
    H = tl.full((sizes[4], sizes[3]), 0.0, tl.float32)
    if outer is not None:
        H += read(outer, (tl.program_id(2), g, r), n, p, N, P)
    for k in range(0, end - first):
        place = (skipped + (end - 1 - k if back else first + k), g, r)
        write(before, place, n, p, N, P, H)
        total = tl.load(at(totals, place, tl.program_id(0), 0))
        H = H * tl.exp2(total) + read(added, place, n, p, N, P)


def ssd_backward_inputs(
    x, log_a, b, c, dy, states, dstates, dx, dlog_a, pairs, length, heads, groups, sizes: tl.constexpr,
    precision: tl.constexpr, chunks=None, layer=None, steps: tl.constexpr = None, sums=None, ddt=None, dskip=None,
):  # fmt: skip
    """Gradients of x and log_a for one chunk of one head, and what the maps need of its pairs of tokens.

    The grid is ((chunks + segments - 1)·groups·heads, batch), heads of a chunk side by side: they share B and C.

    Args:
        x: (batch, group, head, T, P).
        log_a: (batch, group, head, T, 1).
        b: (batch, group, 1, T, N).
        c: (batch, group, 1, T, N).
        dy: (batch, group, head, T, P) gradient of the outputs.
        states: before every chunk, as `ssd_forward` writes them.
        dstates: gradients of the states after every chunk.
        dx: gradient, like x.
        dlog_a: gradient, like log_a, or None.
        pairs: (batch, group, head, T, Q): W^T, for token j (row) and the i-th token of its chunk X_j dY_i^T L_ij.
        length: T.
        heads: number of heads of a group.
        groups: number of groups.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        chunks: (chunks + segments - 1, 2) the tokens where chunks begin and their segments end, beginning there where
            there is no chunk of that number; None if there is one segment.
        layer: as in `ssd_forward`; dy is the gradient of what its gate multiplies then.
        steps: as in `ssd_forward`.
        sums: as in `ssd_forward`.
        ddt: gradient of the step sizes through dt·x alone, like log_a.
        dskip: gradient of D by token, like log_a.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    chunk, batch, which = tl.program_id(0) // (groups * heads), tl.program_id(1), tl.program_id(0) % (groups * heads)
    group, head = (batch, which // heads, 0), (batch, which // heads, which % heads)
    start, end = (chunk * Q, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows, border = start + i, chunk * N
    bottom = tl.where(start < end, border + N, 0)  # where there is no chunk, there are no states
    dt = None if steps is None else step_sizes(layer, head, rows, end, steps)
    coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
    e, f = tl.exp2(coarse + fine), tl.exp2((coarse_total - coarse) + (fine_total - fine))
    B, C = read(b, group, rows, n, end, N), read(c, group, rows, n, end, N)
    LT = upper(coarse, fine, i)
    WT = every_pair(x, dy, dt, head, rows, end, sizes, precision) * LT
    write(pairs, head, rows, i, end, Q, WT)
    MT = tl.dot(B, tl.trans(C), input_precision=precision)
    GT, MT = WT * MT, tl.cast(MT * LT, B.dtype)
    past, future, stepped, skipped, through = zeros(Q), zeros(Q), zeros(Q), zeros(Q), zeros(sizes[4])
    for first in range(0, P, sizes[3]):
        p = first + tl.arange(0, sizes[3])
        x_raw, dY = read(x, head, rows, p, end, P), read(dy, head, rows, p, end, P)
        X = scaled(x_raw, dt)
        H, dH = read(states, head, border + n, p, bottom, P), read(dstates, head, border + n, p, bottom, P)
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


def every_pair(x, dy, dt, head, rows, length, sizes: tl.constexpr, precision: tl.constexpr):
    """X dY^T (Q, Q), for every pair of tokens of a chunk; a loop of its own, whose registers are free after it."""
    P: tl.constexpr = sizes[0]
    WT = zeros(sizes[2], sizes[2])
    for first in range(0, P, sizes[3]):
        p = first + tl.arange(0, sizes[3])
        X, dY = scaled(read(x, head, rows, p, length, P), dt), read(dy, head, rows, p, length, P)
        WT += tl.dot(X, tl.trans(dY), input_precision=precision)
    return WT


def ssd_backward_maps(
    x, log_a, b, c, dy, states, dstates, pairs, db, dc, length, heads, sizes: tl.constexpr, precision: tl.constexpr,
    chunks=None, layer=None, steps: tl.constexpr = None, sums=None,
):  # fmt: skip
    """Gradients of B and C for one chunk and one group; the grid is (chunks + segments - 1, groups, batch).

    For each head both are products of tiles that are in memory; only the two sums stay in registers.

    Args:
        x: (batch, group, head, T, P).
        log_a: (batch, group, head, T, 1).
        b: (batch, group, 1, T, N).
        c: (batch, group, 1, T, N).
        dy: (batch, group, head, T, P) gradient of the outputs.
        states: before every chunk, as `ssd_forward` writes them.
        dstates: gradients of the states after every chunk.
        pairs: as `ssd_backward_inputs` writes them.
        db: gradient, like b.
        dc: gradient, like c.
        length: T.
        heads: number of heads of a group.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        chunks: as in `ssd_backward_inputs`.
        layer: as in `ssd_forward`; dy is the gradient of what its gate multiplies then.
        steps: as in `ssd_forward`.
        sums: as in `ssd_forward`.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    chunk, border, group = tl.program_id(0), tl.program_id(0) * N, (tl.program_id(2), tl.program_id(1), 0)
    start, end = (chunk * Q, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows, bottom = start + i, tl.where(start < end, border + N, 0)
    B, C = read(b, group, rows, n, end, N), read(c, group, rows, n, end, N)
    dB, dC = zeros(Q, sizes[4]), zeros(Q, sizes[4])
    for r in range(0, heads):
        head = (tl.program_id(2), tl.program_id(1), r)
        dt = None if steps is None else step_sizes(layer, head, rows, end, steps)
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        e, f = tl.exp2(coarse + fine), tl.exp2((coarse_total - coarse) + (fine_total - fine))
        WT = read(pairs, head, rows, i, end, Q)
        dB += tl.dot(WT, C, input_precision=precision)
        dC += tl.dot(tl.trans(WT), B, input_precision=precision)
        for first in range(0, P, sizes[3]):
            p = first + tl.arange(0, sizes[3])
            X, dY = scaled(read(x, head, rows, p, end, P), dt), read(dy, head, rows, p, end, P)
            H, dH = read(states, head, border + n, p, bottom, P), read(dstates, head, border + n, p, bottom, P)
            dB += tl.dot(tl.cast(X * f[:, None], B.dtype), tl.trans(dH), input_precision=precision)
            dC += tl.dot(tl.cast(dY * e[:, None], B.dtype), tl.trans(H), input_precision=precision)
    write(db, group, rows, n, end, N, dB)
    write(dc, group, rows, n, end, N, dC)


def ssd_sums(log_a, coarse, fine, length, heads, groups, chunk_len: tl.constexpr, chunks=None):
    """Running sums of log2 a in one chunk of one head, as `decay_sums` makes them; grid as in `ssd_backward_inputs`.

    Args:
        log_a: (batch, group, head, T, 1).
        coarse: like log_a, float32.
        fine: like log_a, float32.
        length: T.
        heads: number of heads of a group.
        groups: number of groups.
        chunk_len: Q.
        chunks: as in `ssd_backward_inputs`.
    """
    chunk, which = tl.program_id(0) // (groups * heads), tl.program_id(0) % (groups * heads)
    start, end = (chunk * chunk_len, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows, head = start + tl.arange(0, chunk_len), (tl.program_id(1), which // heads, which % heads)
    coarse_sums, fine_sums, _, _ = decay_sums(log_a, head, rows, end)
    put(coarse, head, rows, end, coarse_sums)
    put(fine, head, rows, end, fine_sums)


def ssd_step(x, log_a, b, c, y, state, heads, sizes: tl.constexpr):
    """One token for BP columns of one head: H = exp(log_a) H + B x^T, y = C H; the grid is that of a scan.

    Args:
        x: (batch, group, head, 1, P) input.
        log_a: (batch, group, head, 1, 1) log decay.
        b: (batch, group, 1, 1, N).
        c: (batch, group, 1, 1, N).
        y: output, like x.
        state: (batch, group, head, N, P), which is overwritten.
        heads: number of heads of a group.
        sizes: (P, N, 1, BP, BN).
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    group = (tl.program_id(2), tl.program_id(1) // heads, 0)
    head = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    n, p = tl.arange(0, sizes[4]), tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    a = tl.exp2(tl.cast(tl.load(at(log_a, head, 0, 0)), tl.float32) * 1.4426950408889634)  # log2(e)
    X = tl.load(at(x, head, 0, p), mask=p < P, other=0.0)
    B = tl.cast(tl.load(at(b, group, 0, n), mask=n < N, other=0.0), tl.float32)
    C = tl.load(at(c, group, 0, n), mask=n < N, other=0.0)
    H = read(state, head, n, p, N, P) * a + B[:, None] * X[None, :]
    write(state, head, n, p, N, P, H)
    tl.store(at(y, head, 0, p), tl.sum(H * C[:, None], 0), mask=p < P)
