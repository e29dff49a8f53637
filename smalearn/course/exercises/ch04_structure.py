"""The exercises of chapter 04 on structure: a convolution by FFT, three fingerprints, a mask of low rank."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def _integers(randn, *shape):
    """Whole numbers from 1 to 9: ranks of matrices of these are beyond doubt."""
    return torch.randint(1, 10, shape, generator=randn.generator).double()


# ------------------------------------------------------------------------------------------- 4.3 Toeplitz by the FFT


def _toeplitz(column, row):
    length = len(column)
    rows = [[(column[t - s] if s <= t else row[s - t]).item() for s in range(length)] for t in range(length)]
    return torch.tensor(rows, dtype=column.dtype)


def _toeplitz_cases(randn):
    yield randn(1), randn(1), randn(1, 1)
    first = torch.eye(3, dtype=torch.float64)[0]
    yield first, first.clone(), randn(3, 2)  # the identity
    yield randn(4), torch.zeros(4, dtype=torch.float64), randn(4, 2)  # causal
    column = randn(4)
    yield column, column.roll(-1).flip(0), randn(4, 2)  # circulant
    for length in (5, 8):
        yield randn(length), randn(length), randn(length, 2)


def _circular(circle, x, length):
    """The first rows of a circular convolution with this period."""
    size = len(circle)
    index = (torch.arange(size)[:, None] - torch.arange(size)) % size
    return (circle[index][:, : len(x)] @ x)[:length]


@exercise(
    "4.3",
    "A convolution on a circle",
    claim="000:mask-toeplitz",
    level=2,
    minutes=15,
    cases=_toeplitz_cases,
    oracle=lambda column, row, x: _toeplitz(column, row) @ x,
    way=Way(
        case=lambda randn, length: (randn(length), randn(length), randn(length, 2)), memory=1, needs=("torch.fft",)
    ),
    wrong={
        "this is the circular convolution with the column alone: the end of the sequence wraps around into its "
        "beginning. The circle needs 2T − 1 places": lambda column, row, x: _circular(column, x, len(x)),
        "everything above the diagonal is 0: the first row is not used": lambda column, row, x: (
            _toeplitz(column, torch.zeros_like(row)) @ x
        ),
        "the row stands on the circle in its own order: going on from offset T−1, the next is −(T−1), and −1 "
        "comes last": lambda column, row, x: _circular(torch.cat([column, row[1:]]), x, len(x)),
        "row[0] stands on the circle as well, so that every negative offset is one place off: the corner "
        "belongs to the column": lambda column, row, x: _circular(torch.cat([column, row.flip(0)]), x, len(x)),
        "row and column are exchanged: this is the product with the transpose": lambda column, row, x: (
            _toeplitz(torch.cat([column[:1], row[1:]]), column) @ x
        ),
        "row and column are exchanged, the corner too: the column holds the offsets 0, "
        "1, ..., T−1, the past": lambda column, row, x: _toeplitz(row, column) @ x,
        "your diagonal is row[0]: that entry is not used, offset 0 is column[0]": lambda column, row, x: (
            _toeplitz(torch.cat([row[:1], column[1:]]), row) @ x
        ),
        "you keep the last T rows of the circle: those of the product come first": lambda column, row, x: _circular(
            torch.cat([column, row[1:].flip(0)]), x, 2 * len(x) - 1
        )[-len(x) :],
        "you pad the circle at its end: −1 must be the neighbour of 0. Zeros go between the two halves": (
            lambda column, row, x: _circular(torch.cat([column, row[1:].flip(0), torch.zeros_like(row[:1])]), x, len(x))
        ),
        "you add two halves that both contain the diagonal": lambda column, row, x: (
            _toeplitz(column, row) @ x + row[0] * x
        ),
    },
)
def toeplitz_product(column, row, x):
    """A Toeplitz matrix is a corner of a circulant one, and a circulant product is a product of spectra.

    Multiply by the Toeplitz matrix with this first column and first row, by FFT; row[0] is not used.

    Hint: The FFT multiplies by a circulant matrix, which one period determines. Which 2T − 1 numbers does the Toeplitz
    matrix consist of, and in which order do they stand around the circle?

    Hint: `circle = torch.cat([column, row[1:].flip(0)])`: after offset T−1 comes −(T−1), and −1 is the neighbour of 0.

    Hint: `torch.fft.rfft(x, size, dim=0)` pads x with zeros up to `size = len(circle)`. Multiply the two spectra, go
    back with `torch.fft.irfft(..., size, dim=0)`, keep the first T rows.

    Insight: A long convolution model is this product with a learned column: S4 trains like this and decodes by its
    recurrence.
    """
    circle = torch.cat([column, row[1:].flip(0)])  # offsets 0, 1, ..., T-1, then -(T-1), ..., -1
    size = len(circle)
    spectra = torch.fft.rfft(circle)[:, None] * torch.fft.rfft(x, size, dim=0)
    return torch.fft.irfft(spectra, size, dim=0)[: len(x)]


# -------------------------------------------------------------------------------------- 4.4 a mask of low rank on top


class Operator:
    """A matrix that shows nothing but its product, `matmul(x)`."""

    def __init__(self, entries):
        self._entries, self.shape = entries, tuple(entries.shape)

    def matmul(self, x):
        """B x for x of shape (S, columns)."""
        return self._entries @ x


def _masked_cases(randn):
    yield randn(1, 1), randn(1, 1), Operator(randn(1, 1)), randn(1, 1)
    for rank in (1, 2):
        U, V, B = (randn(*shape) for shape in [(4, rank), (4, rank), (4, 4)])
        yield U, V, Operator(B), randn(4, 2)
    U, V, B = (randn(*shape) for shape in [(3, 2), (3, 2), (3, 3)])
    ones = torch.ones(3, 2, dtype=torch.float64)
    yield U, V, Operator(torch.ones_like(B)), randn(3, 2)
    yield ones, V, Operator(B), randn(3, 2)
    yield U, ones.clone(), Operator(B), randn(3, 2)
    U, B = randn(5, 3), randn(5, 5)
    yield U, U.clone(), Operator(B), randn(5, 2)


@exercise(
    "4.4",
    "A low rank on top",
    claim="001:id-lowrank-mask",
    level=2,
    minutes=10,
    cases=_masked_cases,
    oracle=lambda U, V, B, x: ((U @ V.mT) * B.matmul(torch.eye(B.shape[1], dtype=x.dtype))) @ x,
    way=Way(
        case=lambda randn, length: (
            randn(length, 2),
            randn(length, 2),
            Operator(randn(length, length)),
            randn(length, 2),
        ),
        memory=1,
    ),
    wrong={
        "only the first column of U and V takes part: the identity is a sum over all R of them": lambda U, V, B, x: (
            masked_product(U[:, :1], V[:, :1], B, x)
        ),
        "you add up the columns before the product: then every u_r meets every v_r'. One product with B for "
        "each r": lambda U, V, B, x: masked_product(U.sum(1, keepdim=True), V.sum(1, keepdim=True), B, x),
        "this is U (Vᵀx), the mask without the matrix: B must stand between the two scalings": lambda U, V, B, x: (
            U @ (V.mT @ x)
        ),
        "you multiply by B and then by U Vᵀ, as matrices: the product ∘ is entry by entry": lambda U, V, B, x: (
            U @ (V.mT @ B.matmul(x))
        ),
        "the rows that come out of B are not scaled by u_r": lambda U, V, B, x: masked_product(
            torch.ones_like(U), V, B, x
        ),
        "the rows that go into B are not scaled by v_r": lambda U, V, B, x: masked_product(U, torch.ones_like(V), B, x),
        "U and V are exchanged: U has a row for each target, and scales what comes OUT of B": lambda U, V, B, x: (
            masked_product(V, U, B, x)
        ),
        "you multiply two products with x entry by entry: that is not the product of the two matrices, entry by "
        "entry, with x": lambda U, V, B, x: (U @ (V.mT @ x)) * B.matmul(x),
        "both scalings stand before B: u_t belongs to the row that comes out": lambda U, V, B, x: B.matmul(
            (U * V).sum(1, keepdim=True) * x
        ),
    },
)
def masked_product(U, V, B, x):
    """(B ∘ U Vᵀ) x by one product with B for each column of U: scale what goes in, scale what comes out.

    Return (B ∘ U Vᵀ) x, where B is a matrix that offers only `B.matmul(x)`.

    Hint: Begin with one column, U Vᵀ = u vᵀ. Entry (t, s) of the product is u_t B_ts v_s: which factor leaves the sum
    over s, and which can join x_s?

    Hint: For one column: `u[:, None] * B.matmul(v[:, None] * x)`. For more, the entry is a sum over r.

    Hint: `sum(U[:, r, None] * B.matmul(V[:, r, None] * x) for r in range(U.shape[1]))`

    Insight: With rank 1 this is a mask with rows and columns scaled, the case of a decay between resets: L[t, s] = p_t
    / p_s.
    """
    return sum(U[:, r, None] * B.matmul(V[:, r, None] * x) for r in range(U.shape[1]))


# ------------------------------------------------------------------------------------------- 4.5 three fingerprints


def _rank(M):
    return int(torch.linalg.matrix_rank(M, rtol=1e-10))


def _eliminated(M):
    """The rank by elimination, as one learns it at school."""
    M, rank, least = M.clone(), 0, 1e-9 * M.abs().sum()
    for column in range(M.shape[1]):
        rows = [row for row in range(rank, M.shape[0]) if abs(M[row, column]) > least]
        if rows:
            pivot = max(rows, key=lambda row: abs(M[row, column]))
            M[[rank, pivot]] = M[[pivot, rank]]
            for row in range(rank + 1, M.shape[0]):
                M[row] = M[row] - M[row, column] / M[rank, column] * M[rank]
            rank += 1
    return rank


def _slow_fingerprints(L):
    entries = max(sum(bool(entry != 0) for entry in row) for row in L)
    below = [_eliminated(L[k:, :k]) for k in range(1, len(L))]
    return entries, max(below, default=0), _eliminated(L[1:, 1:] - L[:-1, :-1])


def _fingerprint_cases(randn):
    yield (_integers(randn, 1, 1),)
    half = torch.tensor([[0.5 ** (t - s) if s <= t else 0.0 for s in range(5)] for t in range(5)], dtype=torch.float64)
    yield (half,)
    yield (1e-12 * half,)
    half = half.clone()
    half[3:, :3] = 0  # a reset in the middle: only the middle block is empty
    yield (half,)
    yield (_integers(randn, 6, 2) @ _integers(randn, 2, 6),)
    yield (_integers(randn, 6, 6).tril(1).triu(-1),)
    arrow = torch.eye(6, dtype=torch.float64)
    arrow[5] = _integers(randn, 6)
    yield (arrow,)
    yield (_toeplitz(_integers(randn, 6), _integers(randn, 6)),)
    yield (_integers(randn, 7, 7),)
    yield (torch.tensor([[1.0, 0.0], [-3.0, 2.0]], dtype=torch.float64),)
    u, v = (torch.complex(_integers(randn, *shape), -_integers(randn, *shape)) for shape in [(5, 1), (1, 5)])
    yield (u @ v,)
    corner = torch.eye(8, dtype=torch.float64)
    corner[:4, :4] = _integers(randn, 4, 4).tril()  # the largest rank lies off the middle
    yield (corner,)
    spread = torch.eye(8, dtype=torch.float64)
    spread[2, 0] = spread[7, 1] = 1  # the block of rank 2 is taller than wide
    yield (spread,)


def _prints(entries=None, below=None, moved=None):
    """Fingerprints of which one is taken in another way."""

    def taken(L):
        right = fingerprints(L)
        own = (entries, below, moved)
        return tuple(function(L) if function else value for function, value in zip(own, right, strict=True))

    return taken


def _blocks(block):
    return lambda L: max((_rank(block(L, k)) for k in range(1, len(L))), default=0)


@exercise(
    "4.5",
    "Three fingerprints",
    claim="000:fig3",
    level=2,
    minutes=12,
    cases=_fingerprint_cases,
    oracle=_slow_fingerprints,
    wrong={
        "the first number counts along the columns: how many sources a TARGET sees is a row": _prints(
            entries=lambda L: int((L != 0).sum(0).max())
        ),
        "the first number counts all non-zeros of the matrix: take the most in one row": _prints(
            entries=lambda L: int((L != 0).sum())
        ),
        "the second number is the rank of the whole matrix: the decay mask has full rank, and its state one "
        "number. Only the blocks L[k:, :k] below the diagonal count": _prints(below=_rank),
        "you look at the block in the middle alone: a state has to be large enough for every k": _prints(
            below=lambda L: _rank(L[(len(L) + 1) // 2 :, : (len(L) + 1) // 2])
        ),
        "you leave out the last block, k = T − 1: `range(1, T)` stops there already": _prints(
            below=_blocks(lambda L, k: L[k:, :k] if k < len(L) - 1 else L[:0, :0])
        ),
        "your blocks L[:k, k:] lie above the diagonal: that is what earlier targets know of later sources": _prints(
            below=_blocks(lambda L, k: L[:k, k:])
        ),
        "your blocks touch the diagonal: what a token says to itself needs no state. Rows from k, columns "
        "before k": _prints(below=_blocks(lambda L, k: L[k - 1 :, :k])),
        "you move L round a circle (roll): its last row and column come back at the front. Compare "
        "L[1:, 1:] with L[:-1, :-1]": _prints(moved=lambda L: _rank(L - L.roll((1, 1), (0, 1)))),
        "you compare each row with the one above: a Toeplitz matrix repeats along the diagonal, so move both "
        "axes": _prints(moved=lambda L: _rank(L[1:] - L[:-1])),
        "a rank must not depend on the scale: your tolerance is absolute. `rtol` compares with the largest singular "
        "value": _prints(
            below=lambda L: max(
                (int(torch.linalg.matrix_rank(L[k:, :k], atol=1e-10, rtol=0.0)) for k in range(1, len(L))), default=0
            ),
            moved=lambda L: int(torch.linalg.matrix_rank(L[1:, 1:] - L[:-1, :-1], atol=1e-10, rtol=0.0)),
        ),
        "you take the real part: the rank of a complex matrix may be another": lambda L: fingerprints(L.real),
    },
)
def fingerprints(L):
    """Most non-zeros in a row; largest rank of a block below the diagonal; rank of L minus L moved along it.

    Return three whole numbers: the most non-zeros in a row, the largest rank of a block L[k:, :k], and the rank of
    L[1:, 1:] − L[:-1, :-1].

    Hint: The first: `(L != 0).sum(1)` counts along each row. The second: k runs from 1 to T − 1, and L[k:, :k] is what
    the rows from k on know about what came before k.

    Hint: `int(torch.linalg.matrix_rank(M, rtol=1e-10))` is a rank. `max(..., default=0)` takes care of T = 1.

    Hint: `max((int(torch.linalg.matrix_rank(L[k:, :k], rtol=1e-10)) for k in range(1, len(L))), default=0)`

    Insight: No fingerprint is better than the others: a matrix may look dense to one and cost T by another.
    """

    def rank(M):
        return int(torch.linalg.matrix_rank(M, rtol=1e-10))

    entries = int((L != 0).sum(1).max())
    below = max((rank(L[k:, :k]) for k in range(1, len(L))), default=0)
    moved = rank(L[1:, 1:] - L[:-1, :-1])
    return entries, below, moved
