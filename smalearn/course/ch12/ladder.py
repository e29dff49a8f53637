"""The exercises of chapter 12 up to the walk: programs of one new idea each, launched by functions of tensors."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

__all__ = ["DOT", "decays", "floats", "launches", "strong", "without_resets"]

DOT = ("smalearn.fast.tile.dot",)


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


def launches(case, launched=math.inf, **more):
    """Ask for a kernel, and more: what PyTorch computes is right, but not as asked."""
    return Way(case=case, launched=launched, **more)


def _map_cases(randn):
    for length in (1, 4, 10, 37, 1100):  # the last one longer than a block of 1024
        yield floats(randn, length), strong(randn, length) if length == 37 else decays(randn, length)


exercise(
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
        "you take powers of e: the logarithms are to base 2, `tl.exp2`": "tl.exp2 → tl.exp",
        "the last entry is missing: entries count from 0, so the guard is `i < length`": "i < length → i < length - 1",
        "x and the decays are exchanged": "X * tl.exp2(a) → a * tl.exp2(X)",
        "the logarithm itself is multiplied: take its power of 2": "tl.exp2(a) → a",
        "you add the logarithm: multiply by its power": "X * tl.exp2(a) → X + a",
    },
)(decayed)


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


def _copy_cases(randn):
    yield (floats(randn, 1, 1),)
    yield (floats(randn, 5, 3),)
    yield (floats(randn, 20, 17).mT,)
    yield (floats(randn, 40, 18)[::2],)
    yield (floats(randn, 37, 5),)
    yield (floats(randn, 5, 37),)
    yield (floats(randn, 70, 90),)


exercise(
    "12.3",
    "A ragged matrix",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    cases=_copy_cases,
    way=launches(lambda randn, length: (floats(randn, length, 3),), forbids=("torch.Tensor.contiguous",)),
    oracle=lambda x: x.clone(),
    wrong={
        "you take x row after row: where its rows and columns lie, its strides say": "* down → * n ; * across → ",
        "`torch.empty_like` takes over the strides of x too: "
        "where rows lie one after the other, `torch.empty(m, n)`": "torch.empty(m, n) → torch.empty_like(x)",
        "you store y with the strides of x: in a copy rows follow one another, entry (row, column) is at row · n + "
        "column": "rows[:, None] * n + columns[None, :], X → rows[:, None] * down + columns[None, :] * across, X",
        "the axes of the grid are exchanged: program_id(0) counts tiles along the "
        "grid's first number": "(triton.cdiv(m, 16), triton.cdiv(n, 16)) → (triton.cdiv(n, 16), triton.cdiv(m, 16))",
        "both axes of the grid count tiles of rows: "
        "its second number is that of the columns, `triton.cdiv(n, 16)`": "cdiv(n → cdiv(m",
        "both axes of the grid count tiles of columns: "
        "its first number is that of the rows, `triton.cdiv(m, 16)`": "cdiv(m → cdiv(n",
        "your strides are exchanged: "
        "x.stride(0) is from row to row, x.stride(1) from column to column": "*x.stride() → *x.stride()[::-1]",
        "whole tiles alone are copied: round the grid up (`triton.cdiv`); the "
        "guard must let the rest of a ragged tile through": "triton.cdiv(m, 16), triton.cdiv(n, 16) → m // 16, n // 16",
    },
)(copied)


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


def _product_cases(randn):
    for m, n, k in [(1, 1, 16), (16, 16, 16), (20, 33, 32), (7, 40, 64), (40, 7, 16)]:
        yield floats(randn, m, k), floats(randn, k, n)


exercise(
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
        "the axes of the grid are exchanged: program_id(0) counts tiles along the "
        "grid's first number": "(triton.cdiv(m, 16), triton.cdiv(n, 16)) → (triton.cdiv(n, 16), triton.cdiv(m, 16))",
        "both axes of the grid count tiles of rows: "
        "its second number is that of the columns, `triton.cdiv(n, 16)`": "cdiv(n → cdiv(m",
        "both axes of the grid count tiles of columns: "
        "its first number is that of the rows, `triton.cdiv(m, 16)`": "cdiv(m → cdiv(n",
        "the rows of B begin k numbers apart: "
        "a row of B has n, so row i begins at `i * n`": "i[:, None] * n → i[:, None] * k",
        "half of k is left out: a tile "
        "of A has all its k columns": "mask=(rows < m)[:, None], → mask=(rows < m)[:, None] & (i < k // 2)[None, :],",
        "the tiles are rounded to halves before the product: "
        "it takes float32 too": "tl.dot(A, B → tl.dot(A.to(tl.float16).to(tl.float32), B.to(tl.float16).to(tl.float32)",
    },
)(product)


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


def _sum_cases(randn):
    for length, width in [(0, 5), (1, 1), (16, 16), (40, 20), (37, 3), (2, 70), (1100, 16)]:
        yield (floats(randn, length, width),)


exercise(
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
        "only the first 16 rows are added: the loop runs to the last row": "(0, length, tile) → (0, tile, tile)",
        "the last, shorter part is missing: "
        "with a mask it needs no case of its own": "(0, length, tile) → (0, length - tile + 1, tile)",
        "every turn of the loop overwrites the sum: it is carried from turn to turn": "total += → total =",
        "the last row is missing: the guard is `rows < length`": "rows < length → rows < length - 1",
        "you add up along axis 1: the rows of a tile are its axis 0, "
        "`tl.sum(X, 0)`, if it is not loaded transposed": "other=0.0), 0 → other=0.0), 1",
        "the tiles overlap: a loop over them takes steps of a tile, "
        "`range(0, length, tile)`": "(0, length, tile) → (0, length)",
        "you add the sum up in a half: keep it in `tl.float32`": lambda x: x.half().sum(0).float(),
        "this is the mean: the sum is asked for": "y + columns, total → y + columns, total / tl.maximum(length, 1)",
    },
)(summed)
