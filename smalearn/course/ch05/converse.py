"""Exercises 5.3 and 5.4: from a matrix back to a state space model, and how many states softmax attention needs."""

import torch

from smalearn.course.ch05.matrix import matrix_of
from smalearn.course.exercises.core import exercise
from smalearn.testing import relative_rms


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
    found, best = matrix_of(*(x.detach().double() for x in answer)), relative_rms(matrix_of(*generators(M, order)), M)
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
    return matrix_of(A, randn(length, order), randn(length, order))


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


def _one_basis(M, order, weighted=False):
    """All states are the first coordinates of the whole matrix; its singular values in B, or else in C."""
    U, sizes, Vh = torch.linalg.svd(M)
    U, sizes, basis = U[:, :order], sizes[:order], Vh[:order].mT
    A = torch.eye(order, dtype=M.dtype).expand(len(M), order, order).clone()
    return A, *((basis * sizes, U) if weighted else (basis, U * sizes))


SVD = "torch.linalg.svd(M[k:, : k + 1], full_matrices=False)"

exercise(
    "5.3",
    "From the matrix to a model",
    claim="004:semiseparable-rank",
    kind="open",
    level=3,
    minutes=30,
    cases=_matrices,
    refuse=_not_this_matrix,
    reached=lambda answer, M, order: f"error {relative_rms(matrix_of(*answer), M):.0e} with {order} states",
    wrong={
        "this is one basis for all times: what a state must know changes from token to token": _one_basis,
        "this is one basis for all times, that of the whole matrix: what a state must know changes": lambda M, order: (
            _one_basis(M, order, weighted=True)
        ),
        "where a block has more directions than there are states, keep the strongest: yours are "
        "the weakest": "[2][:order] → [1:]\n        basis = basis[1][basis[0] > 1e-9 * basis[0][0]].flip(0)[:order]",
        "your transitions are the identity: a new basis needs a change of "
        "coordinates": "basis[:, :-1] @ before.mT → torch.eye(n, len(before), dtype=M.dtype)",
        "your state is the last `order` inputs as they came: it must hold what the whole "
        "block says of the past": f"{SVD}[2][:order] → torch.eye(k + 1, dtype=M.dtype)[-order:]",
        "your basis knows the next `order` outputs alone, the first rows of the block: "
        "later ones may see more": "M[k:, → M[k : k + order,",
        "your blocks begin with row k + 1: "
        "output k is read from the state after step k, too": "M[k:, → M[min(k + 1, len(M) - 1) :,",
        "your basis comes from QR, in the order of the rows: where the first of them depend on each other, its first "
        "directions leave some out. Take the strongest, "
        "by the singular values": f"{SVD}[2][:order] → torch.linalg.qr(M[k:, : k + 1].mT)[0].mT[:order]",
        "your basis knows the next output alone, row k of the block: later ones may see more": "M[k:, → M[k : k + 1,",
        "you keep a direction less than there are states: `[:order]` has `order` rows": "[:order] → [: order - 1]",
        "B and C are exchanged: B is written, the last column of the basis, "
        "and C is read": "return A, B, C → return A, C, B",
        "A is transposed: its rows are the new coordinates": "return A, → return A.mT,",
        "B is the first column of your basis: "
        "input k is the last of those that the state has seen": "basis[:, -1] → basis[:, 0]",
        "B is all ones: input k enters by the last column of the basis": "basis[:, -1] → 1",
        "C is all ones: the output is row k of M, in coordinates of the basis": "basis @ M[k, : k + 1] → 1",
        "your outputs come from the singular values: "
        "C is row k of M times the basis": "basis @ M[k, : k + 1] → torch.linalg.svdvals(M[k:, : k + 1])[:n]",
        "C must have what the output k sees of the state, row k of M: you have the last row": "M[k, : → M[-1, :",
        "your blocks end before column k: "
        "then x_k never gets into the state": "M[k:, : k + 1] → M[k:, : k + 1] * (torch.arange(k + 1) < k)",
        "you decompose the past alone, M[:k+1, :k+1]: what matters is what the future sees of it": "M[k:, → M[: k + 1,",
        "you keep all directions: `order` says how many states the model has": lambda M, order: generators(M, len(M)),
        "you take V for Vh: the directions are the rows of `svd(…)[2]`, as it is": (
            "[2][:order] → [2]"
            "\n        basis = torch.nn.functional.pad(basis.mT, (0, k + 1 - len(basis)))[: min(order, len(basis))]"
        ),
        "you keep the last rows of Vh, the weakest directions: the strongest stand first": "[2][:order] → [2][-order:]",
        "your directions are the weakest, which say least of what comes: "
        "the strongest stand first": "[2][:order] → [2].flip(0)[:order]",
        "you weight the rows of your basis by singular values: what C and A are made of "
        "must be orthonormal": "[2][:order] → [1:]\n        basis = (basis[0][:, None] * basis[1])[:order]",
        "your A takes the last columns of the basis: the last is for input k, and the others, R[:, :-1], "
        "are what the old state knows": "basis[:, :-1] → basis[:, 1:]",
        "your transitions stand one place early: "
        "A_k leads from the state k - 1 to the state k": "return A, → return A.roll(-1, 0),",
        "your R_k has fewer rows than `order` where the block has fewer; its one row was broadcast. "
        "The other rows are 0": (
            "A[k, :n, : len(before)] = → A[k] = 0 if k == 0 else ; B[k, :n] → B[k] ; C[k, :n] → C[k]"
        ),
        "where R_k has one row, your B_k and C_k repeat it in every state: "
        "their other entries are 0": "B[k, :n] → B[k] ; C[k, :n] → C[k]",
        "you take the left singular vectors: they know the outputs, and a state is made of inputs, "
        "by the rows of `svd(…)[2]`": f"{SVD}[2][:order] → {SVD}[0].mT[:order] ; basis[:, :-1] @ before.mT → 0",
        "B is (1, 0, …): "
        "input k enters by the last column of the basis": "basis[:, -1] → torch.eye(n, dtype=M.dtype)[0]",
        "C is a row of U without the singular values: U Σ Vh is the block, "
        "and C what is left of Vh": f"basis @ M[k, : k + 1] → {SVD}[0][0, :n]",
        "C comes from a column of M: output k is row k, M[k, :k+1], "
        "in coordinates of the basis": "M[k, : k + 1] → M[: k + 1, k]",
        "A is zero: then nothing is remembered, and M is diagonal": "basis[:, :-1] → 0 * basis[:, :-1]",
    },
)(generators)


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


def _largest_rank():
    """Of the blocks on and below the diagonal of a random softmax on 48 tokens."""
    scores = torch.randn(48, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    M = scores.exp().tril()
    return max(int(torch.linalg.matrix_rank(M[k:, : k + 1], rtol=1e-12)) for k in range(48))


exercise(
    "5.4",
    "How many states does softmax need?",
    claim="004:semiseparable-rank",
    kind="predict",
    level=1,
    minutes=5,
    oracle=_largest_rank,
    wrong={
        "the whole matrix has rank 48, but a state need not know the past outputs": "24 → 48",
        "one for each earlier token would be 47: late in the text few outputs are left to ask": "24 → 47",
        "4 is the size of a key: linear attention needs no more; "
        "the exponential has no finite set of features": "24 → 4",
        "no rank is larger than the shorter side of its block: count rows and columns once more": "24 → 25",
        "12 is a quarter of the tokens: the blocks in the middle have more on their shorter side": "24 → 12",
        "16 = 4 · 4 features would do for squares of scores: the exponential has no finite number of them": "24 → 16",
        "one state does for a decay mask, whose blocks have rank 1: "
        "the softmax of random scores has no such form": "24 → 1",
        "the block in the middle, rows k to 47 and columns 0 to k, has more on its shorter side": "24 → 23",
        "4 · 48 is how many numbers all keys have: not all of them are needed at once": "24 → 192",
        "48 · 48 is how many entries M has: the states are as many as the rank of a block": "24 → 48 * 48",
        "48 · 49 / 2 is how many entries of M are not 0: the states are as many as the rank of a block": "24 → 1176",
    },
)(states_of_softmax)
