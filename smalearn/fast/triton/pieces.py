"""Parts of the GPU programs of SSD: access to memory, decays, and what Mamba-2's layer adds.

They are functions of tiles, like the programs in `programs.py`, which says in what form operands come; they run where
those run. A program's own are its loops and its matrix products.
"""

from smalearn.fast import tile as tl


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


def put(x, head, rows, length, values):
    """Store one value for each of these rows of a column, what of them is inside; nothing if there is no x."""
    if x is not None:
        tl.store(at(x, head, rows, 0), values, mask=rows < length)


def zeros(rows: tl.constexpr, columns: tl.constexpr = None):
    """A tile of zeros in float32, of one axis or two."""
    return tl.full((rows,) if columns is None else (rows, columns), 0.0, tl.float32)


def decay_sums(log_a, head, rows, length):
    """Running sums of log2 a as coarse + fine, each (Q,), and the totals of both.

    A difference of long sums loses the digits of what follows a strong decay. Here the coarse part counts in units of
    2^-9, and float32 adds whole numbers below 2^24 exactly; the fine part stays below 1. A log2 a under -160 means 0,
    as exp2 of it is.
    """
    a = tl.load(at(log_a, head, rows, 0), mask=rows < length, other=0.0)
    a = tl.cast(a, tl.float32) * 1.4426950408889634
    a = tl.where(a < -160.0, -160.0, a)  # and not a maximum, which on a GPU turns NaN into a number
    coarse = tl.floor(a * 512.0 + 0.5) * 0.001953125
    fine = a - coarse
    return tl.cumsum(coarse, 0), tl.cumsum(fine, 0), tl.sum(coarse, 0), tl.sum(fine, 0)


def chunk_sums(log_a, sums, head, start, i, length, Q: tl.constexpr):
    """The results of `decay_sums` for a chunk: computed here, or read where `ssd_sums` has put them."""
    if sums is None:
        coarse, fine, coarse_total, fine_total = decay_sums(log_a, head, start + i, length)
    else:
        last = tl.maximum(tl.minimum(start + Q, length) - 1, 0)
        rows = tl.minimum(start + i, last)  # nothing is added after the end
        coarse, fine = tl.load(at(sums[0], head, rows, 0)), tl.load(at(sums[1], head, rows, 0))
        coarse_total, fine_total = tl.load(at(sums[0], head, last, 0)), tl.load(at(sums[1], head, last, 0))
    return coarse, fine, coarse_total, fine_total


def lower(coarse, fine, i):
    """L (Q, Q): entry (i, j) is the decay from token j to token i, 0 for j > i."""
    s = (coarse[:, None] - coarse[None, :]) + (fine[:, None] - fine[None, :])
    return tl.exp2(tl.where(i[:, None] >= i[None, :], s, float("-inf")))


def upper(coarse, fine, i):
    """L^T (Q, Q), computed so."""
    s = (coarse[None, :] - coarse[:, None]) + (fine[None, :] - fine[:, None])
    return tl.exp2(tl.where(i[None, :] >= i[:, None], s, float("-inf")))


def until_end(coarse, fine, coarse_total, fine_total):
    """The decay (Q,) from each token to the end of its chunk: f."""
    return tl.exp2((coarse_total - coarse) + (fine_total - fine))


def between(borders, segment, length):
    """The tokens where a segment begins and where it ends; 0 and the length, if there is but one."""
    first, end = 0, length
    if borders is not None:
        first, end = tl.load(borders + segment), tl.load(borders + segment + 1)
    return first, end


def step_sizes(layer, head, rows, length, steps: tl.constexpr):
    """Mamba-2's step sizes (Q,) in float32: dt + bias, its softplus if steps[0], then from steps[1] to steps[2].

    softplus(v) = max(v, 0) + log(1 + e) with e = exp(-|v|); log(u) / (u - 1) · e for u = 1 + e mends its rounding.
    """
    dt = tl.cast(tl.load(at(layer[0], head, rows, 0), mask=rows < length, other=0.0), tl.float32)
    if layer[1] is not None:
        dt += tl.cast(tl.load(at(layer[1], head, 0, 0)), tl.float32)
    if steps[0]:
        e = tl.exp2(tl.where(dt > 0.0, -dt, dt) * 1.4426950408889634)
        rounded = (1.0 + e) - 1.0
        mended = tl.log(1.0 + e) / tl.where(rounded > 0.0, rounded, 1.0) * e
        dt = tl.where(dt > 0.0, dt, 0.0) + tl.where(rounded > 0.0, mended, e)
    dt = tl.where(dt < steps[1], steps[1], dt)
    return tl.where(dt > steps[2], steps[2], dt)


def scaled(X, dt):
    """The tile dt ∘ X, in the dtype of X; X itself without dt."""
    return X if dt is None else tl.cast(X * dt[:, None], X.dtype)


def finished(Y, X, dt, layer, head, rows, columns, length, P: tl.constexpr):
    """Finish Y as the layer does: Y itself, or with step sizes dt Mamba-2's (Y + D X) ∘ silu(z), with what there is.

    If there is dy, the gradient of that, the gradient of z; that of Y + D X, dY ∘ silu(z), is stored.
    """
    if dt is not None:
        if layer[2] is not None:
            Y += X * tl.cast(tl.load(at(layer[2], head, 0, 0)), tl.float32)
        if layer[3] is not None:
            z = tl.cast(read(layer[3], head, rows, columns, length, P), tl.float32)
            e = tl.exp2(tl.where(z > 0.0, -z, z) * 1.4426950408889634)
            sigmoid = tl.where(z > 0.0, 1.0, e) / (1.0 + e)
            if layer[4] is None:
                Y *= z * sigmoid
            else:
                dY = read(layer[4], head, rows, columns, length, P)
                write(layer[5], head, rows, columns, length, P, dY * (z * sigmoid))
                Y *= dY * sigmoid * (1.0 + z * (1.0 - sigmoid))
    return Y


def passed_back(dX, dY, X, dt, stepped, skipped, layer, head):
    """The gradient of x from dX, that of dt·x, and from dY, that of Y + D X.

    Added to what is in `stepped` and `skipped`, the gradients of dt (through dt·x) and D by token.
    """
    if dt is not None:
        stepped, skipped = stepped + tl.sum(dX * X, 1), skipped + tl.sum(tl.cast(dY, tl.float32) * X, 1)
        dX = dX * dt[:, None]
        if layer[2] is not None:
            dX += dY * tl.cast(tl.load(at(layer[2], head, 0, 0)), tl.float32)
    return dX, stepped, skipped


def flow(insideT, past, future, i, precision: tl.constexpr):
    """Sum, for every t of a chunk, all that flows from before t to t or later, but for what passes the chunk.

    Only terms that cross t are added and nothing is subtracted, so that small gradients between strong decays keep
    their digits. insideT (Q, Q) flows from a token (row) to a later or the same one (column), past (Q,) from before the
    chunk to each token, future (Q,) from each token to after the chunk; i is arange of Q.
    """
    before = tl.cast(i[None, :] < i[:, None], tl.float32)
    crossing = tl.dot(before, insideT, input_precision=precision) + past[None, :]
    return tl.sum(tl.where(i[None, :] >= i[:, None], crossing, future[None, :]), 1)
