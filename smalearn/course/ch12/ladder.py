"""The exercises of chapter 12 up to the walk: programs of one new idea each, launched by functions of tensors."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

__all__ = ["DOT", "decays", "floats", "launches", "strong", "without_resets"]

DOT = ("smalearn.fast.tile.dot",)


def floats(randn, *shape):
    """Standard normal numbers in float32."""
    return randn(*shape).float()


def decays(randn, *shape):
    """Logarithms of decays to base 2, mild but never 0, in steps of 1/256: float32 adds them up exactly."""
    return -(0.1 + 0.3 * floats(randn, *shape).abs()).mul(256).round() / 256


def without_resets(randn, length):
    """Mild ones, with some so strong that a few pass the range of float32."""
    return strong(randn, length, least=-30.0, reset=-30.0)


def strong(randn, length, least=-12.0, reset=-torch.inf):
    """Mild ones, with strong ones and a reset among them."""
    log2_a = decays(randn, length)
    log2_a[2::3] = least
    log2_a[5::16] = reset
    return log2_a


def apart(x, down, across):
    """What a program reads that takes rows and columns of x to lie so far apart; an error where that leaves x."""
    m, n = x.shape
    last, end = (rows * (m - 1) + columns * (n - 1) for rows, columns in ((down, across), x.stride()))
    if last > end:
        raise IndexError(f"load of x at offset {last}, expected 0 to {end} or a mask")
    return torch.as_strided(x, x.shape, (down, across)).clone()


def launches(case, launched=math.inf, **more):
    """Ask for a kernel, and more: what PyTorch computes is right, but not as asked."""
    return Way(case=case, launched=launched, exact=True, **more)


# -------------------------------------------------------------------------------------------- 12.2 a map with a guard


def _map_cases(randn):
    for length in (1, 4, 10, 37, 1100):  # the last one longer than a block of 1024
        yield floats(randn, length), strong(randn, length) if length == 37 else decays(randn, length)


def _without_last(x, log2_a):
    y = x * log2_a.exp2()
    y[-1] = torch.nan  # nothing is stored there
    return y


def _whole_blocks(x, log2_a):
    y = x * log2_a.exp2()
    y[len(y) // 16 * 16 :] = torch.nan
    return y


@exercise(
    "12.2",
    "A map with a guard",
    claim="004:listing-kernel",
    level=1,
    minutes=8,
    tolerance=1e-5,
    cases=_map_cases,
    way=launches(lambda randn, length: (floats(randn, length), decays(randn, length)), compiled=True),
    oracle=lambda x, log2_a: x * log2_a.exp2(),
    wrong={
        "you take powers of e: the logarithms are to base 2, `tl.exp2`": lambda x, log2_a: x * log2_a.exp(),
        "the last entry is missing: entries count from 0, so the guard is `i < length`": _without_last,
        "the entries behind the last whole block have no program: the number of programs is rounded up, "
        "`triton.cdiv`": _whole_blocks,
        "x and the decays are exchanged": lambda x, log2_a: log2_a * x.exp2(),
        "the logarithm itself is multiplied: take its power of 2": lambda x, log2_a: log2_a * x,
        "you add the logarithm: multiply by its power": lambda x, log2_a: x + log2_a,
    },
)
def decayed(x, log2_a):
    """y[i] = x[i] · 2^log2_a[i]: make y, launch a program for each few entries, return y. Any length, float32.

    Hint: `double` above is the pattern: which entries are mine, a guard, loads, arithmetic, a store. Here are two
    loads, and the same guard for all three accesses.

    Hint: The launch: `decay_kernel[(triton.cdiv(len(x), 16),)](x, log2_a, y, len(x), block=16)`, with `y =
    torch.empty_like(x)` before it.

    Insight: Twelve bytes an entry for so little: a map of a large array waits for memory on almost any machine.
    """
    y = torch.empty_like(x)
    decay_kernel[(triton.cdiv(len(x), 16),)](x, log2_a, y, len(x), block=16)
    return y


@triton.jit
def decay_kernel(x, log2_a, y, length, block: tl.constexpr):
    """`block` entries a program."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    X = tl.load(x + i, mask=i < length, other=0.0)
    a = tl.load(log2_a + i, mask=i < length, other=0.0)
    tl.store(y + i, X * tl.exp2(a), mask=i < length)


# ---------------------------------------------------------------------------------------------- 12.3 a ragged matrix


def _copy_cases(randn):
    yield (floats(randn, 1, 1),)
    yield (floats(randn, 5, 3),)
    yield (floats(randn, 20, 17).mT,)
    yield (floats(randn, 40, 18)[::2],)
    yield (floats(randn, 37, 5),)
    yield (floats(randn, 5, 37),)
    yield (floats(randn, 70, 90),)


def _on_memory(x):
    """What lies in memory from the first entry on, whatever the strides."""
    return torch.as_strided(x, x.shape, (x.shape[1], 1)).clone()


def _laid_like(x):
    """Row after row, in memory that is laid out as x."""
    y = torch.empty_like(x)
    torch.as_strided(y, (x.numel(),), (1,)).copy_(x.reshape(-1))
    return y


def _kept(rows, columns):
    """A copy of some rows and columns; elsewhere nothing is stored."""

    def copy(x):
        y = torch.full(x.shape, torch.nan)
        part = slice(rows(*x.shape)), slice(columns(*x.shape))
        y[part] = x[part]
        return y

    return copy


@exercise(
    "12.3",
    "A ragged matrix",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    cases=_copy_cases,
    way=launches(lambda randn, length: (floats(randn, length, 3),), forbids=("torch.Tensor.contiguous",)),
    oracle=lambda x: x.clone(),
    wrong={
        "you take x row after row: where its rows and columns lie, its strides say": _on_memory,
        "`torch.empty_like` takes over the strides of x too: where rows lie one after the other, `torch.empty(m, n)`": (
            _laid_like
        ),
        "only the first tile is copied: the grid has an axis for rows and one for columns": _kept(
            lambda m, n: 16, lambda m, n: 16
        ),
        "the axes of the grid are exchanged: program_id(0) counts tiles along the grid's first number": _kept(
            lambda m, n: -(-n // 16) * 16, lambda m, n: -(-m // 16) * 16
        ),
        "both axes of the grid count tiles of rows: its second number is that of the columns, `triton.cdiv(n, 16)`": (
            _kept(lambda m, n: m, lambda m, n: -(-m // 16) * 16)
        ),
        "both axes of the grid count tiles of columns: its first number is that of the rows, `triton.cdiv(m, 16)`": (
            _kept(lambda m, n: -(-n // 16) * 16, lambda m, n: n)
        ),
        "your strides are exchanged: x.stride(0) is from row to row, x.stride(1) from column to column": lambda x: (
            apart(x, *x.stride()[::-1])
        ),
        "the limits are exchanged: rows end with the number of rows, columns with that of columns": _kept(
            lambda m, n: n, lambda m, n: m
        ),
        "the last row is missing: the guard is `rows < m`": _kept(lambda m, n: m - 1, lambda m, n: n),
        "whole tiles alone are copied: round the grid up (`triton.cdiv`); the guard must let the rest of a "
        "ragged tile through": _kept(lambda m, n: m // 16 * 16, lambda m, n: n // 16 * 16),
    },
)
def copied(x):
    """A copy of the matrix x, whose rows lie one after the other; those of x lie anywhere, as its strides say.

    Hint: Entry (row, column) of x is at `row · x.stride(0) + column · x.stride(1)`: pass both strides to the kernel.
    That of the copy is at row · n + column.

    Hint: `rows[:, None] * down + columns[None, :] * across` are all offsets of a tile at once, and its mask is
    `(rows < m)[:, None] & (columns < n)[None, :]`.

    Hint: The grid is `(triton.cdiv(m, 16), triton.cdiv(n, 16))`; in the program `tl.program_id(0)` counts tiles of
    rows, `tl.program_id(1)` of columns.

    Insight: Strides are all that a transposed matrix is: a program that is given the strides need not care.
    """
    m, n = x.shape
    y = torch.empty(m, n)
    copy_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](x, y, m, n, *x.stride(), tile=16)
    return y


@triton.jit
def copy_kernel(x, y, m, n, down, across, tile: tl.constexpr):
    """One tile a program."""
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    mask = (rows < m)[:, None] & (columns < n)[None, :]
    X = tl.load(x + rows[:, None] * down + columns[None, :] * across, mask=mask)
    tl.store(y + rows[:, None] * n + columns[None, :], X, mask=mask)


# ------------------------------------------------------------------------------------------ 12.4 one tile of a product


def _product_cases(randn):
    for m, n, k in [(1, 1, 16), (16, 16, 16), (20, 33, 32), (7, 40, 64), (40, 7, 16)]:
        yield floats(randn, m, k), floats(randn, k, n)


def _part_of_product(rows=None, columns=None, depth=1.0):
    def product(A, B):
        k = int(A.shape[1] * depth)
        C, whole = torch.full((len(A), B.shape[1]), torch.nan), A[:, :k] @ B[:k]
        C[:rows, :columns] = whole[:rows, :columns]
        return C

    return product


@exercise(
    "12.4",
    "One tile of a product",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    tolerance=1e-5,
    cases=_product_cases,
    way=launches(
        lambda randn, length: (floats(randn, length, 16), floats(randn, 16, length)),
        forbids=("torch.Tensor.__matmul__", "torch.Tensor.matmul", "torch.matmul", "torch.mm", "torch.einsum"),
        needs=DOT,
        compiled=True,
    ),
    oracle=lambda A, B: A @ B,
    wrong={
        "only the first tile is there: each program has rows and columns of its own": _part_of_product(16, 16),
        "the last row is missing: the guard is `rows < m`": _part_of_product(-1),
        "the last column is missing: the guard is `columns < n`": _part_of_product(None, -1),
        "the axes of the grid are exchanged: program_id(0) counts tiles along the grid's first number": lambda A, B: (
            _kept(
                lambda m, n: -(-n // 16) * 16,
                lambda m, n: -(-m // 16) * 16,
            )(A @ B)
        ),
        "both axes of the grid count tiles of rows: its second number is that of the columns, `triton.cdiv(n, 16)`": (
            lambda A, B: _kept(lambda m, n: m, lambda m, n: -(-m // 16) * 16)(A @ B)
        ),
        "both axes of the grid count tiles of columns: its first number is that of the rows, `triton.cdiv(m, 16)`": (
            lambda A, B: _kept(lambda m, n: -(-n // 16) * 16, lambda m, n: n)(A @ B)
        ),
        "the rows of B begin k numbers apart: a row of B has n, so row i begins at `i * n`": lambda A, B: (
            A @ apart(B, A.shape[1], 1)
        ),
        "half of k is left out: a tile of A has all its k columns": _part_of_product(depth=0.5),
        "the tiles are rounded to halves before the product: it takes float32 too": lambda A, B: (
            A.half().float() @ B.half().float()
        ),
    },
)
def product(A, B):
    """A B, for A (m, k) and B (k, n) whose rows lie one after the other; m and n are any, k is 16, 32 or 64.

    Hint: A program takes 16 rows of A, all k columns of them, and 16 columns of B, all k rows: two tiles, one `tl.dot`,
    one tile of the result.

    Hint: Here k is a size of a tile: `k: tl.constexpr`, and `tl.arange(0, k)` are the columns of A and the rows of B.
    What of A is masked hangs on its rows, of B on its columns.

    Hint: `tl.dot(A, B, input_precision="ieee")`; without it a GPU uses ten binary digits of float32.

    Insight: A tile of 16 × k is read once and used for 16 columns: the larger the tiles, the more arithmetic a byte.
    """
    (m, k), n = A.shape, B.shape[1]
    C = torch.empty(m, n)
    product_kernel[(triton.cdiv(m, 16), triton.cdiv(n, 16))](A, B, C, m, n, k=k, tile=16)
    return C


@triton.jit
def product_kernel(a, b, c, m, n, k: tl.constexpr, tile: tl.constexpr):
    """One tile of the result a program."""
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    i = tl.arange(0, k)
    A = tl.load(a + rows[:, None] * k + i[None, :], mask=(rows < m)[:, None], other=0.0)
    B = tl.load(b + i[:, None] * n + columns[None, :], mask=(columns < n)[None, :], other=0.0)
    C = tl.dot(A, B, input_precision="ieee")
    tl.store(c + rows[:, None] * n + columns[None, :], C, mask=(rows < m)[:, None] & (columns < n)[None, :])


# ------------------------------------------------------------------------------------------------ 12.5 a sum, in a loop


def _sum_cases(randn):
    for length, width in [(0, 5), (1, 1), (16, 16), (40, 20), (37, 3), (2, 70), (1100, 16)]:
        yield (floats(randn, length, width),)


def _across(x):
    """Tiles added up along their rows."""
    y = torch.empty(x.shape[1])
    for columns, out in zip(x.split(16, 1), y.split(16), strict=True):
        total = torch.zeros(16)
        for part in columns.split(16):
            total[: len(part)] += part.sum(1)
        out.copy_(total[: len(out)])
    return y


@exercise(
    "12.5",
    "A sum, in a loop",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    tolerance=1e-5,
    cases=_sum_cases,
    way=launches(lambda randn, length: (floats(randn, length, 3),), compiled=True),
    oracle=lambda x: x.sum(0),
    wrong={
        "only the first 16 rows are added: the loop runs to the last row": lambda x: x[:16].sum(0),
        "the last, shorter part is missing: with a mask it needs no case of its own": lambda x: x[
            : len(x) // 16 * 16
        ].sum(0),
        "every turn of the loop overwrites the sum: it is carried from turn to turn": lambda x: x[
            max(len(x) - 1, 0) // 16 * 16 :
        ].sum(0),
        "the last row is missing: the guard is `rows < length`": lambda x: x[:-1].sum(0),
        "you add up along axis 1: the rows of a tile are its axis 0, `tl.sum(X, 0)`, if it is not loaded transposed": (
            _across
        ),
        "the tiles overlap: a loop over them takes steps of a tile, `range(0, length, tile)`": lambda x: torch.stack(
            [x[start : start + 16].sum(0) for start in range(len(x))] or [x.sum(0)]
        ).sum(0),
        "you add the sum up in a half: keep it in `tl.float32`": lambda x: x.half().sum(0).float(),
        "this is the mean: the sum is asked for": lambda x: x.sum(0) / max(len(x), 1),
    },
)
def summed(x):
    """The sum over the rows of x (T, P), contiguous: 16 columns a program, 16 rows a turn of its loop; T may be 0.

    Hint: Its head is as above: `@triton.jit`, then `def sum_kernel(x, y, length, width, tile: tl.constexpr):`, and its
    launch passes `tile=16`. What gives a tile its size is known when the program is compiled.

    Hint: The sum is a tile of 16 numbers, `tl.zeros((16,), tl.float32)`, before the loop; `tl.sum(X, 0)` of each loaded
    tile is added to it; after the loop it is stored.

    Hint: `for start in range(0, length, tile):` with `rows = start + tl.arange(0, tile)`. A row that is not there adds
    `other=0.0`.

    Insight: The sum never leaves the chip: a loop in a program is all that a state needs to stay.
    """
    y = torch.empty(x.shape[1])
    sum_kernel[(triton.cdiv(x.shape[1], 16),)](x, y, *x.shape, tile=16)
    return y


@triton.jit
def sum_kernel(x, y, length, width, tile: tl.constexpr):
    """`tile` columns a program."""
    columns = tl.program_id(0) * tile + tl.arange(0, tile)
    total = tl.zeros((tile,), tl.float32)
    for start in range(0, length, tile):
        rows = start + tl.arange(0, tile)
        mask = (rows < length)[:, None] & (columns < width)[None, :]
        total += tl.sum(tl.load(x + rows[:, None] * width + columns[None, :], mask=mask, other=0.0), 0)
    tl.store(y + columns, total, mask=columns < width)
