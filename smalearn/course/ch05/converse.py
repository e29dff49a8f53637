"""Exercises 5.3 and 5.4: from a matrix back to a state space model, and how many states softmax attention needs."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.testing import relative_rms

# -------------------------------------------------------------------------------------- 5.3 from the matrix to a model


def _dense(A, B, C):
    """The matrix of a state space model, entry by entry."""
    M = torch.zeros(len(A), len(A), dtype=A.dtype)
    for s in range(len(A)):
        h = B[s]
        for t in range(s, len(A)):
            h = A[t] @ h if t > s else h
            M[t, s] = C[t] @ h
    return M


def _not_this_matrix(answer, M, order):
    if not isinstance(answer, tuple) or len(answer) != 3 or not all(isinstance(x, torch.Tensor) for x in answer):
        return "the answer must be three tensors, A, B and C"
    for name, x, shape in zip("ABC", answer, [(len(M), order, order), (len(M), order), (len(M), order)], strict=True):
        if x.shape != shape:
            return f"{name} must have the shape {shape}, and has {tuple(x.shape)}"
    if not all(x.isfinite().all() for x in answer):
        return "an entry of A, B or C is not finite"
    if odd := {x.dtype for x in answer} - {M.dtype}:
        return f"all must be {M.dtype}, as M is, and there is {odd.pop()}"
    found, best = _dense(*(x.detach().double() for x in answer)), relative_rms(_dense(*_generators()(M, order)), M)
    error = relative_rms(found, M)
    if error < max(1e-6, 1.01 * best):
        return ""
    if best > 1e-6:
        kept = f"keep the strongest directions of each block, and the error is {best:.3g}"
        return f"M has more than {order} states; {kept}, yours is {error:.3g}"
    t, s = divmod(int((found - M).abs().argmax()), len(M))
    most = f"the matrix of your model differs most at ({t}, {s}): it has {found[t, s]:.4g}, wanted is {M[t, s]:.4g}"
    if (found - M).diagonal().abs().max() < 1e-6 * M.abs().max():
        return f"{most}. Its diagonal, C_t^T B_t, is right; what is wrong is in A, or in too few directions of a basis"
    also = "Its diagonal is wrong"
    if len(M) > 1:
        also += ", too" if (found - M).tril(-1).abs().max() > 1e-6 * M.abs().max() else ", and it alone"
    return f"{most}. {also}: there stands C_t^T B_t, and A has no part in it"


def _random(randn, length, order):
    """The matrix of a random model, whose transitions do not commute."""
    A = 0.8 * torch.linalg.qr(randn(length, order, order))[0]
    return _dense(A, randn(length, order), randn(length, order))


def _matrices(randn):
    yield _random(randn, 1, 1), 1
    yield (0.8 ** (torch.arange(5)[:, None] - torch.arange(5)).double().clamp(min=0)).tril(), 1
    yield (randn(5, 2) @ randn(2, 5)).tril(), 2
    yield _random(randn, 7, 2), 2
    cut = _random(randn, 6, 2)
    cut[3:, :3] = 0  # a reset
    yield cut, 2
    silent = _random(randn, 7, 2)
    silent[[0, 1, 3, 4]] = 0  # what the next outputs do not see, later ones do
    yield silent, 2
    yield randn(6, 6).tril(), 3
    yield _random(randn, 6, 2), 3  # one state more than it needs
    yield randn(8, 8).tril(), 2  # fewer than it needs: the strongest directions


def _strongest(sizes, basis, order):
    return basis[:order]


def _generators(block=lambda M, k: M[k:, : k + 1], pick=_strongest, A_of=None, B_of=None, C_of=None):
    """The algorithm, with one of its lines changed."""

    def generators(M, order):
        A, (B, C) = torch.zeros(len(M), order, order, dtype=M.dtype), torch.zeros(2, len(M), order, dtype=M.dtype)
        before = M.new_zeros(0, 0)
        for k in range(len(M)):
            basis = pick(*torch.linalg.svd(block(M, k), full_matrices=False)[1:], order)
            now, old, wide = len(basis), len(before), before.shape[1]
            A[k, :now, :old] = (A_of or (lambda b, a, w: b[:, :w] @ a.mT))(basis, before, wide)
            B[k, :now] = (B_of or (lambda b: b[:, -1]))(basis)
            C[k, :now] = (C_of or (lambda M, k, b: b @ M[k, : k + 1]))(M, k, basis)
            before = basis
        return A, B, C

    return generators


def _weakest_first(M, order):
    """The algorithm with the directions of each block in the order of their weakness."""
    A, (B, C) = torch.zeros(len(M), order, order, dtype=M.dtype), torch.zeros(2, len(M), order, dtype=M.dtype)
    before = M.new_zeros(0, 0)
    for k in range(len(M)):
        _, sizes, basis = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)
        basis = basis[sizes > 1e-9 * sizes[0]].flip(0)[:order]
        now, old = len(basis), len(before)
        A[k, :now, :old], B[k, :now], C[k, :now] = basis[:, :-1] @ before.mT, basis[:, -1], basis @ M[k, : k + 1]
        before = basis
    return A, B, C


def _from_qr(M, order):
    """The algorithm with the first directions of the rows in place of the strongest."""
    A, (B, C) = torch.zeros(len(M), order, order, dtype=M.dtype), torch.zeros(2, len(M), order, dtype=M.dtype)
    before = M.new_zeros(0, 0)
    for k in range(len(M)):
        basis = torch.linalg.qr(M[k:, : k + 1].mT)[0].mT[:order]
        now, old = len(basis), len(before)
        A[k, :now, :old], B[k, :now], C[k, :now] = basis[:, :-1] @ before.mT, basis[:, -1], basis @ M[k, : k + 1]
        before = basis
    return A, B, C


def _one_basis(M, order, weighted=False):
    """All states are the first coordinates of the whole matrix; its singular values in B, or else in C."""
    U, sizes, Vh = torch.linalg.svd(M)
    U, sizes, basis = U[:, :order], sizes[:order], Vh[:order].mT
    A = torch.eye(order, dtype=M.dtype).expand(len(M), order, order).clone()
    return A, *((basis * sizes, U) if weighted else (basis, U * sizes))


@exercise(
    "5.3",
    "From the matrix to a model",
    claim="004:semiseparable-rank",
    kind="open",
    level=3,
    minutes=30,
    cases=_matrices,
    refuse=_not_this_matrix,
    reached=lambda answer, M, order: f"error {relative_rms(_dense(*answer), M):.0e} with {order} states",
    wrong={
        "this is one basis for all times: what a state must know changes from token to token": _one_basis,
        "this is one basis for all times, that of the whole matrix: what a state must know changes": (
            lambda M, order: _one_basis(M, order, weighted=True)
        ),
        "where a block has more directions than there are states, keep the strongest: yours are the weakest": (
            _weakest_first
        ),
        "your transitions are the identity: a new basis needs a change of coordinates": _generators(
            A_of=lambda b, a, w: torch.eye(len(b), len(a), dtype=b.dtype)
        ),
        "all your transitions are the whole identity: a new basis needs a change of coordinates": lambda M, order: (
            torch.eye(order, dtype=M.dtype).repeat(len(M), 1, 1),
            *_generators()(M, order)[1:],
        ),
        "your state is the last `order` inputs as they came: it must hold what the whole block says of the past": (
            _generators(pick=lambda sizes, basis, order: torch.eye(basis.shape[1], dtype=basis.dtype)[-order:])
        ),
        "your basis knows the next `order` outputs alone, the first rows of the block: later ones may see more": (
            lambda M, order: _generators(block=lambda M, k: M[k : k + order, : k + 1])(M, order)
        ),
        "your blocks begin with row k + 1: output k is read from the state after step k, too": _generators(
            block=lambda M, k: M[k + 1 :, : k + 1] if k + 1 < len(M) else M[k:, : k + 1]
        ),
        "your basis comes from QR, in the order of the rows: where the first of them depend on each other, its first "
        "directions leave some out. Take the strongest, by the singular values": _from_qr,
        "your basis knows the next output alone, row k of the block: later ones may see more": _generators(
            block=lambda M, k: M[k : k + 1, : k + 1]
        ),
        "you keep a direction less than there are states: `[:order]` has `order` rows": _generators(
            pick=lambda sizes, basis, order: basis[: order - 1]
        ),
        "B and C are exchanged: B is written, the last column of the basis, and C is read": lambda M, order: tuple(
            _generators()(M, order)[i] for i in (0, 2, 1)
        ),
        "A is transposed: its rows are the new coordinates": lambda M, order: (
            _generators()(M, order)[0].mT,
            *_generators()(M, order)[1:],
        ),
        "B is the first column of your basis: input k is the last of those that the state has seen": _generators(
            B_of=lambda b: b[:, 0]
        ),
        "B is all ones: input k enters by the last column of the basis": _generators(
            B_of=lambda b: torch.ones(len(b), dtype=b.dtype)
        ),
        "C is all ones: the output is row k of M, in coordinates of the basis": _generators(
            C_of=lambda M, k, b: torch.ones(len(b), dtype=b.dtype)
        ),
        "your outputs come from the singular values: C is row k of M times the basis": _generators(
            C_of=lambda M, k, b: torch.linalg.svdvals(M[k:, : k + 1])[: len(b)]
        ),
        "C must have what the output k sees of the state, row k of M: you have the last row": _generators(
            C_of=lambda M, k, b: b @ M[-1, : k + 1]
        ),
        "your blocks end before column k: then x_k never gets into the state": _generators(
            block=lambda M, k: torch.cat([M[k:, :k], 0 * M[k:, k : k + 1]], 1)
        ),
        "you decompose the past alone, M[:k+1, :k+1]: what matters is what the future sees of it": _generators(
            block=lambda M, k: M[: k + 1, : k + 1]
        ),
        "you keep all directions: `order` says how many states the model has": lambda M, order: _generators()(
            M, len(M)
        ),
        "you take V for Vh: the directions are the rows of `svd(…)[2]`, as it is": _generators(
            pick=lambda sizes, basis, order: torch.nn.functional.pad(basis.mT, (0, basis.shape[1] - len(basis)))[
                : min(order, len(basis))
            ]
        ),
        "you keep the last rows of Vh, the weakest directions: the strongest stand first": _generators(
            pick=lambda sizes, basis, order: basis[-order:]
        ),
        "your directions are the weakest, which say least of what comes: the strongest stand first": _generators(
            pick=lambda sizes, basis, order: basis.flip(0)[:order]
        ),
        "you weight the rows of your basis by singular values: what C and A are made of must be orthonormal": (
            _generators(pick=lambda sizes, basis, order: (sizes[:, None] * basis)[:order])
        ),
        "your A takes the last columns of the basis: the last is for input k, and the others, R[:, :-1], are what "
        "the old state knows": _generators(A_of=lambda b, a, w: b[:, b.shape[1] - w :] @ a.mT),
        "your transitions stand one place early: A_k leads from the state k - 1 to the state k": lambda M, order: (
            _generators()(M, order)[0].roll(-1, 0),
            *_generators()(M, order)[1:],
        ),
        "B is (1, 0, …): input k enters by the last column of the basis": _generators(
            B_of=lambda b: torch.eye(len(b), dtype=b.dtype)[0]
        ),
        "C is a row of U without the singular values: U Σ Vh is the block, and C what is left of Vh": _generators(
            C_of=lambda M, k, b: torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[0][0, : len(b)]
        ),
        "C comes from a column of M: output k is row k, M[k, :k+1], in coordinates of the basis": _generators(
            C_of=lambda M, k, b: b @ M[: k + 1, k]
        ),
        "A is zero: then nothing is remembered, and M is diagonal": _generators(
            A_of=lambda b, a, w: 0 * (b[:, :w] @ a.mT)
        ),
    },
)
def generators(M, order):
    """A (T, N, N), B (T, N) and C (T, N) of a state space model with N = `order` states whose matrix is M.

    M is lower triangular. Where a block on or below its diagonal has a rank above `order`, keep its strongest
    directions; where it has fewer rows or columns, the other rows are zeros.

    Hint: h_k = R_k x_{:k+1}, with the rows of R_k a basis of all that the block M[k:, :k+1] can say. What is C_k?

    Hint: The basis: `torch.linalg.svd(M[k:, :k + 1], full_matrices=False)[2][:order]`; it may have fewer rows than
    `order`. B_k is its last column: what x_k alone puts into the state.

    Hint: The other columns of R_k know x_{:k} only through h_{k-1}: `R[:, :-1] = A_k @ before`, and the rows of
    `before` are orthonormal.

    Insight: Keep only the strongest rows of each basis, and the model is a good one of so few states, if not the
    best: that is how a long memory, or attention, is distilled into a small one.
    """
    A, (B, C) = M.new_zeros(len(M), order, order), M.new_zeros(2, len(M), order)
    before = M.new_zeros(0, 0)
    for k in range(len(M)):
        basis = torch.linalg.svd(M[k:, : k + 1], full_matrices=False)[2][:order]
        n = len(basis)
        A[k, :n, : len(before)] = basis[:, :-1] @ before.mT
        B[k, :n] = basis[:, -1]
        C[k, :n] = basis @ M[k, : k + 1]
        before = basis
    return A, B, C


# ----------------------------------------------------------------------------------------- 5.4 how many states


def _largest_rank():
    """Of the blocks on and below the diagonal of a random softmax on 48 tokens."""
    scores = torch.randn(48, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    M = scores.exp().tril()
    return max(int(torch.linalg.matrix_rank(M[k:, : k + 1], rtol=1e-12)) for k in range(48))


@exercise(
    "5.4",
    "How many states does softmax need?",
    claim="004:semiseparable-rank",
    kind="predict",
    level=1,
    minutes=5,
    oracle=_largest_rank,
    wrong={
        "the whole matrix has rank 48, but a state need not know the past outputs": lambda: 48,
        "one for each earlier token would be 47: late in the text few outputs are left to ask": lambda: 47,
        "4 is the size of a key: linear attention needs no more; the exponential has no finite set of features": (
            lambda: 4
        ),
        "no rank is larger than the shorter side of its block: count rows and columns once more": lambda: 25,
        "12 is a quarter of the tokens: the blocks in the middle have more on their shorter side": lambda: 12,
        "16 = 4 · 4 features would do for squares of scores: the exponential has no finite number of them": lambda: 16,
        "one state does for a decay mask, whose blocks have rank 1: the softmax of random scores has no such form": (
            lambda: 1
        ),
        "the block in the middle, rows k to 47 and columns 0 to k, has more on its shorter side": lambda: 23,
        "4 · 48 is how many numbers all keys have: not all of them are needed at once": lambda: 192,
        "48 · 48 is how many entries M has: the states are as many as the rank of a block": lambda: 48 * 48,
        "48 · 49 / 2 is how many entries of M are not 0: the states are as many as the rank of a block": lambda: 1176,
    },
)
def states_of_softmax():
    """The fewest states that reproduce causal softmax attention on 48 tokens exactly, with random keys of size 4.

    Hint: As many states are needed as the largest rank of a block M[k:, :k+1]. How large can such a rank be?

    Hint: The shorter side of the block. At which k is that largest?

    Too little: As many states are needed as the largest rank of a block with rows k to 47 and columns 0 to k, and the
    exponentials of random scores give it full rank.

    Too much: A block with rows k to 47 and columns 0 to k has a rank of at most its shorter side.

    Insight: Half of the tokens, so twice the text needs twice the state: exact softmax is no recurrence of fixed size.
    """
    return 24
