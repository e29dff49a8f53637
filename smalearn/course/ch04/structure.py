"""The exercises of chapter 04 on structure: a convolution by FFT, a mask of low rank, the size of a state."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

__all__ = ["Operator"]


def toeplitz_product(column, row, x):
    """A Toeplitz matrix is a corner of a circulant one, and a circulant product is a product of spectra.

    Multiply by the Toeplitz matrix with this first column and first row, by FFT; row[0] is not used.

    Hint: FFTs multiply by a circulant matrix, and its first column determines it. Which 2T − 1 numbers does the
    Toeplitz matrix consist of, and in which order do they stand around the circle?

    Hint: `circle = torch.cat([column, row[1:].flip(0)])`: after distance T−1 comes −(T−1); −1 is next to 0.

    Hint: `torch.fft.rfft(x, size, dim=0)` pads x with zeros up to `size = len(circle)`. Multiply the two spectra, go
    back with `torch.fft.irfft(..., size, dim=0)`, keep the first T rows.

    Insight: A long convolution model is this product with a learned column: S4 trains like this and decodes by its
    recurrence.
    """
    circle = torch.cat([column, row[1:].flip(0)])  # offsets 0, 1, ..., T-1, then -(T-1), ..., -1
    size = len(circle)
    spectra = torch.fft.rfft(circle)[:, None] * torch.fft.rfft(x, size, dim=0)
    return torch.fft.irfft(spectra, size, dim=0)[: len(x)]


def _toeplitz(column, row):
    distance = torch.arange(len(column))[:, None] - torch.arange(len(column))
    return torch.where(distance >= 0, column[distance.clamp(min=0)], row[(-distance).clamp(min=0)])


def _toeplitz_cases(randn):
    yield randn(1), randn(1), randn(1, 1)
    first = torch.eye(3, dtype=torch.float64)[0]
    yield first, first.clone(), randn(3, 2)  # the identity
    yield randn(4), torch.zeros(4, dtype=torch.float64), randn(4, 2)  # causal
    column = randn(4)
    yield column, column.roll(-1).flip(0), randn(4, 2)  # circulant
    for length in (5, 8, 300):  # no size that suits all
        yield randn(length), randn(length), randn(length, 2)


exercise(
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
        "this is the product with the transpose: "
        "row and column are exchanged, or a spectrum is conjugated": "rfft(circle) → rfft(circle).conj()",
        "row and column are exchanged, the corner too: "
        "the column holds the distances 0, 1, ..., T−1, the past": "[column, row[1:] → [row, column[1:]",
        "your diagonal is row[0]: that entry is not used, distance 0 is column[0]": "[column, → [row[:1], column[1:],",
        "you keep the last T rows of the circle: those of the product come first": "[: len(x)] → [-len(x) :]",
        "you pad the circle at its end: "
        "−1 must be the neighbour of 0. Zeros go between the two halves": ".flip(0)]) → .flip(0), row.new_zeros(1)])",
        "your transform runs along the columns of x: time is axis 0, `dim=0`": "[:, None] →  ; dim=0 → dim=1",
        "your transforms run along the columns of x, there and back: "
        "time is axis 0, `dim=0`": "[:, None] →  ; dim=0 → dim=1 ; [: len(x)] → [: len(x), : x.shape[1]]",
        "these are spectra, never transformed back: "
        "`irfft(…, size, dim=0)`": "rfft → fft ; torch.fft.ifft(spectra, size, dim=0) → spectra.real",
        "your circle has 2T places, and `irfft` is told 2T − 1: give "
        "it the size that `rfft` had": "[column, → [column, column.new_zeros(1), ; (spectra, size → (spectra, size - 1",
        "your circle has 2T − 1 places, and `irfft` is told 2T: "
        "give it the size that `rfft` had": "(spectra, size → (spectra, size + 1",
        "you multiply by the size: `irfft` has divided by it, as it must": "[: len(x)] → [: len(x)] * size",
        "the spectrum of the circle has a number for each frequency, not for each column of x: "
        "`[:, None]`": "[:, None] → ",
        "the spectrum of the circle is one column, a number for each frequency: "
        "`[:, None]`": "rfft → fft ; [:, None] →  ; dim=0)[ → dim=0).real[",
        "an odd number of places is lost on the way back: "
        "`irfft(…, size, dim=0)` must be told how many": "spectra, size, → spectra,",
        "`norm='ortho'` divides by √size each time: "
        "two transforms there and one back leave one too many": "[: len(x)] → [: len(x)] / size**0.5",
        "`irfft` divides by the size already": "[: len(x)] → [: len(x)] / size",
        "you transform three times in the same direction: "
        "the way back is `irfft`": "rfft → fft ; ifft(spectra, size, dim=0) → fft(spectra, dim=0).real",
        "a spectrum is complex: "
        "you keep its real part, which knows only the mean of column and row": "rfft(circle) → rfft(circle).real",
        "the result is T − 1 places late: distance 0 and x both begin at place 0, "
        "`cat([column, …])`": "[column, row[1:].flip(0)] → [row[1:].flip(0), column]",
    },
)(toeplitz_product)


def masked_product(U, V, B, x):
    """(B ∘ U Vᵀ) x by products with B alone: scale what goes in, scale what comes out.

    Return (B ∘ U Vᵀ) x, where B is a matrix that offers only `B.matmul(x)`.

    Hint: Begin with one column, U Vᵀ = u vᵀ. Entry (t, s) of the product is u_t B_ts v_s: which factor leaves the sum
    over s, and which can join x_s?

    Hint: For one column: scale the rows of x by v, multiply by B, scale the rows of the result by u. For more columns,
    the entry of U Vᵀ is a sum over r.

    Hint: `B.matmul(V[:, r, None] * x)` is the product for column r. What scales its rows, and what becomes of all r?

    Insight: With rank 1 this is a mask whose rows and columns are scaled. A gate on what goes in and one on what comes
    out are such a mask.
    """
    return sum(U[:, r, None] * B.matmul(V[:, r, None] * x) for r in range(U.shape[1]))


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


TERM = "U[:, r, None] * B.matmul(V[:, r, None] * x)"

exercise(
    "4.4",
    "A low rank on top",
    claim="001:id-lowrank-mask",
    level=2,
    minutes=10,
    cases=_masked_cases,
    oracle=lambda U, V, B, x: ((U @ V.mT) * B.matmul(torch.eye(B.shape[1], dtype=x.dtype))) @ x,
    way=Way(case=lambda randn, T: (randn(T, 2), randn(T, 2), Operator(randn(T, T)), randn(T, 2)), memory=1),
    wrong={
        "columns of x and of U are mixed up on the way back: cut as you joined, (r columns)": lambda U, V, B, x: (
            B.matmul((V[:, :, None] * x[:, None]).flatten(1)).unflatten(1, (x.shape[1], -1)) * U[:, None]
        ).sum(-1),
        "you add up the columns before the product: then every u_r meets every v_r'. One product with B for "
        "each r": "return sum → U, V = U.sum(1, keepdim=True), V.sum(1, keepdim=True)\n    return sum",
        "you sum the columns of V before the product with B: "
        "each scales the rows of x for itself": "V[:, r, None] * x) → x) * V.sum(1, keepdim=True)",
        "this is U (Vᵀx), the mask without the matrix: "
        "B must stand between the two scalings": "B.matmul(V[:, r, None] * x) → (V[:, r] @ x)",
        "you multiply by B and then by U Vᵀ, as matrices: "
        "the product ∘ is entry by entry": "B.matmul(V[:, r, None] * x) → (V[:, r] @ B.matmul(x))",
        "you multiply by U Vᵀ and then by B, as matrices: "
        "the product ∘ is entry by entry": f"{TERM} → B.matmul(U[:, r, None] * (V[:, r] @ x))",
        "r counts the columns of U, `range(U.shape[1])`: `len(U)` is the number of tokens": "U.shape[1] → len(U)",
        "column r of U and V meets column r of x alone: each r meets all of x, "
        "and the results add up": f"sum({TERM} for r in range(U.shape[1])) → U * B.matmul(V * x)",
        "`U[r]` is a row: u_r is the column `U[:, r]`": "[:, r, None] → [r, :, None]",
        "U and V are exchanged: U has a row for each target, "
        "and scales what comes OUT of B": f"{TERM} → V[:, r, None] * B.matmul(U[:, r, None] * x)",
        "you multiply two products with x entry by entry: that is not the product of the two matrices, "
        "entry by entry, with x": "B.matmul(V[:, r, None] * x) → (V[:, r] @ x) * B.matmul(x)",
        "both scalings stand before B: "
        "u_t belongs to the row that comes out": "U[:, r, None] * B.matmul( → B.matmul(U[:, r, None] * ",
    },
)(masked_product)


def state_numbers():
    """How many real numbers of state a recurrence needs for each column of the mask with three memories.

    Hint: How large is the rank of a block below the diagonal, for each of the three terms alone?

    Hint: What crosses the border k: 0.5^(t−k)·0.5^(k−s) for the first. And cos(a(t−k) + a(k−s))?

    Too little: Each of the three terms needs numbers of its own, and not every one is a single product f(t) g(s).

    Too much: The ranks of the terms add up: write each as a sum of products f(t) g(s), and count them.

    Insight: A damped wave is one complex number, or two real ones: that is how a state space model keeps a rhythm.
    """
    return 4


def _largest_rank():
    """Of the blocks below the diagonal of the mask in 4.5, at 16 tokens."""
    d = (torch.arange(16)[:, None] - torch.arange(16)).double()
    L = 0.5**d + 0.99**d + 0.9**d * torch.cos(2 * torch.pi / 7 * d)
    return max(int(torch.linalg.matrix_rank(L[k:, :k], rtol=1e-10)) for k in range(1, 16))


exercise(
    "4.5",
    "How large a state?",
    claim="000:fig3",
    kind="predict",
    level=2,
    minutes=4,
    oracle=_largest_rank,
    wrong={
        "one number fades at one pace, and here are three terms": lambda: 1,
        "here are three terms, and the ranks of a sum add up": lambda: 2,
        "a number for each term? Write cos(x − y) as a sum of products f(x) g(y), and count them": lambda: 3,
        "one too many: write each term as a sum of products f(t) g(s), and count them. The token's own input takes no "
        "state": lambda: 5,
        "the terms do not all need the same: write each as a sum of products f(t) g(s), and count them": lambda: 6,
        "a wave needs no number for each of its tokens: write cos(x − y) as a sum of products f(x) g(y)": lambda: 7,
        "a number for each token would be a full cache: every term has a small rank, whatever the length": lambda: 16,
        "8 is too many: each term has a small rank, whatever the length; write cos(x − y) in products": lambda: 8,
        "seven for a wave are too many, whatever its period: write cos(x − y) as a sum of products": lambda: 9,
    },
)(state_numbers)
