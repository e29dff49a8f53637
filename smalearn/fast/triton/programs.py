"""The GPU programs of SSD, one source for three readers: Triton's compiler, its interpreter, and our Triton emulator.

With s the running sums of log a in a chunk, e = exp(s), f = exp(s_last - s) and H (N, P) the state before the chunk,

    Y  = (L ∘ C B^T) X + e ∘ C H           the chunk itself, and what the past says
    H' = exp(s_last) H + B^T (f ∘ X)       the state before the next one

and one program goes through all chunks of a head. Here are the forward and the step; `programs_backward.py` has the
backward, `pieces.py` what all programs share. `tl` is the emulator `fast.tile` here; `launch` gives the same functions
Triton's own `tl`.

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
    lower,
    put,
    read,
    scaled,
    step_sizes,
    until_end,
    write,
    zeros,
)


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
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    group = (tl.program_id(2) // segments, tl.program_id(1) // heads, 0)
    head = (tl.program_id(2) // segments, tl.program_id(1) // heads, tl.program_id(1) % heads)
    place = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)  # of what each segment has
    i, n = tl.arange(0, Q), tl.arange(0, BN)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    H, all_coarse, all_fine = zeros(BN, BP), 0.0, 0.0
    segment = tl.program_id(2) % segments
    first, end = between(borders, segment, length)
    if initial is not None:
        H += read(initial, place, n, p, N, P)
    for start in range(first, end, Q):
        if states is not None:
            border = (start // Q + segment) * N
            write(states, head, border + n, p, border + N, P, H)
        rows = start + i
        dt = None if steps is None else step_sizes(layer, head, rows, end, steps)
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, end, Q)
        B, x_raw = read(b, group, rows, n, end, N), read(x, head, rows, p, end, P)  # (Q, BN) and (Q, BP)
        X = scaled(x_raw, dt)
        if y is not None:  # M is (Q, Q), Y (Q, BP): what the past says, then the chunk itself
            C = read(c, group, rows, n, end, N)
            M = tl.dot(C, tl.trans(B), input_precision=precision) * lower(coarse, fine, i)
            Y = tl.dot(C, tl.cast(H, C.dtype), input_precision=precision) * tl.exp2(coarse + fine)[:, None]
            Y += tl.dot(tl.cast(M, X.dtype), X, input_precision=precision)
            write(y, head, rows, p, end, P, finished(Y, x_raw, dt, layer, head, rows, p, end, P))
        fX = tl.cast(X * until_end(coarse, fine, coarse_total, fine_total)[:, None], B.dtype)
        H = H * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(B), fX, input_precision=precision)
        all_coarse, all_fine = all_coarse + coarse_total, all_fine + fine_total
    write(final, place, n, p, N, P, H)
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
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    g, r = tl.program_id(1) // heads, tl.program_id(1) % heads
    n = tl.arange(0, BN)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    first, end = between(ends, tl.program_id(2) % sequences, segments)
    before_batch = (tl.program_id(2) // sequences) * segments
    H = zeros(BN, BP)
    if outer is not None:
        H += read(outer, (tl.program_id(2), g, r), n, p, N, P)
    for k in range(0, end - first):
        place = (before_batch + (end - 1 - k if back else first + k), g, r)
        write(before, place, n, p, N, P, H)
        total = tl.load(at(totals, place, tl.program_id(0), 0))
        H = H * tl.exp2(total) + read(added, place, n, p, N, P)


def ssd_sums(log_a, coarse, fine, length, heads, groups, chunk_len: tl.constexpr, chunks=None):
    """Running sums of log2 a in one chunk of one head, as `decay_sums` makes them; grid as in `ssd_backward_inputs`.

    `coarse` and `fine` are like log_a, in float32; `chunks` as in `ssd_backward_inputs`, and chunk_len is Q.
    """
    chunk = tl.program_id(0) // (groups * heads)
    which = tl.program_id(0) % (groups * heads)
    start, end = (chunk * chunk_len, length) if chunks is None else between(chunks, 2 * chunk, length)
    rows = start + tl.arange(0, chunk_len)
    head = (tl.program_id(1), which // heads, which % heads)
    coarse_sums, fine_sums, _, _ = decay_sums(log_a, head, rows, end)
    put(coarse, head, rows, end, coarse_sums)
    put(fine, head, rows, end, fine_sums)


def ssd_step(x, log_a, b, c, y, state, heads, sizes: tl.constexpr):
    """One token for BP columns of one head: H = exp(log_a) H + B x^T, y = C H; the grid is that of a scan.

    Operands are as in `ssd_forward`, with T = Q = 1; the state (batch, group, head, N, P) is overwritten.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    BP: tl.constexpr = sizes[3]
    BN: tl.constexpr = sizes[4]
    group = (tl.program_id(2), tl.program_id(1) // heads, 0)
    head = (tl.program_id(2), tl.program_id(1) // heads, tl.program_id(1) % heads)
    n = tl.arange(0, BN)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    a = tl.exp2(tl.cast(tl.load(at(log_a, head, 0, 0)), tl.float32) * 1.4426950408889634)  # log2(e)
    X = tl.load(at(x, head, 0, p), mask=p < P, other=0.0)
    B = tl.cast(tl.load(at(b, group, 0, n), mask=n < N, other=0.0), tl.float32)
    C = tl.load(at(c, group, 0, n), mask=n < N, other=0.0)
    H = read(state, head, n, p, N, P) * a + B[:, None] * X[None, :]
    write(state, head, n, p, N, P, H)
    tl.store(at(y, head, 0, p), tl.sum(H * C[:, None], 0), mask=p < P)
