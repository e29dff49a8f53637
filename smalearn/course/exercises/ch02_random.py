"""The exercises of chapter 02 on random features and on landmarks."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.kernel_attention import softmax_weights


def _feature_cases(randn):
    """Rows x and directions W: a zero row, one direction, several of both, zero rows with several directions."""
    yield torch.zeros(1, 1, dtype=torch.float64), randn(1, 1)
    yield 0.5 * randn(2, 2), randn(1, 2)
    yield 0.5 * randn(4, 3), randn(5, 3)
    yield torch.zeros(2, 3, dtype=torch.float64), randn(4, 3)


def _by_entries(entry):
    """Features (T, 2m) from loops: first entry(projection, half_square, m, +1) of all directions, then with -1."""

    def features(x, W):
        rows = []
        for row in x.tolist():
            half_square = sum(value**2 for value in row) / 2
            projections = [sum(a * b for a, b in zip(row, w, strict=True)) for w in W.tolist()]
            rows.append([entry(p, half_square, len(W), sign) for sign in (1, -1) for p in projections])
        return torch.tensor(rows, dtype=torch.float64)

    return features


# ----------------------------------------------------------------------------------- 2.3 random Fourier features


def _wave(p, sign):
    return math.cos(p) if sign > 0 else math.sin(p)


@exercise(
    "2.3",
    "From the Gaussian to exp",
    claim="000:rfa",
    level=2,
    minutes=10,
    cases=_feature_cases,
    oracle=_by_entries(lambda p, half, m, sign: math.exp(half) * _wave(p, sign) / math.sqrt(m)),
    wrong={
        "the factor e^(|x|²/2) is missing: these features estimate the Gaussian kernel exp(-|q - k|²/2)": _by_entries(
            lambda p, half, m, sign: _wave(p, sign) / math.sqrt(m)
        ),
        "this is the map as the Mamba-2 paper prints it: e^(|x|²/2) and 1/√m are missing, and attention with "
        "it tends to softmax(q·k - |k|²/2)": _by_entries(lambda p, half, m, sign: _wave(p, sign)),
        "your factor is e^(|x|²): the Gaussian is e^(-|q - k|²/2), with a half": _by_entries(
            lambda p, half, m, sign: math.exp(2 * half) * _wave(p, sign) / math.sqrt(m)
        ),
        "the factor is e^(+|x|²/2) here, because the Gaussian has too little of it; with the minus sign the "
        "norms count against the score twice": _by_entries(
            lambda p, half, m, sign: math.exp(-half) * _wave(p, sign) / math.sqrt(m)
        ),
        "each side carries 1/√m, so that the product has 1/m; you have 1/m on each side": _by_entries(
            lambda p, half, m, sign: math.exp(half) * _wave(p, sign) / m
        ),
        "the mean over the directions is missing: divide by √m on each side": _by_entries(
            lambda p, half, m, sign: math.exp(half) * _wave(p, sign)
        ),
    },
)
def fourier_features(x, W):
    """Features (T, 2m) of x (T, N) along W (m, N) whose dot products are unbiased estimates of exp(q·k).

    Return e^(|x|²/2) / √m times (cos ω_1·x, …, cos ω_m·x, sin ω_1·x, …, sin ω_m·x) for every row x.

    Hint: `x @ W.mT` holds all angles, one row for each x; the m cosines come first, then the m sines.

    Hint: |x|² is `x.square().sum(dim=1, keepdim=True)`: a column, so that it multiplies each row.

    Hint: Two estimates meet in a dot product, each with the factor 1/√m: together they make the mean over m.

    Insight: Where |x| is large the factor in front is, too, and multiplies the noise: such features are at their worst
    where attention is sharp.
    """
    angles = x @ W.mT
    factor = (x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(len(W))
    return factor * torch.cat([angles.cos(), angles.sin()], dim=1)


# ------------------------------------------------------------------------------------ 2.4 positive random features


@exercise(
    "2.4",
    "Never negative",
    claim="000:performer-prf",
    level=2,
    minutes=5,
    cases=_feature_cases,
    oracle=_by_entries(lambda p, half, m, sign: math.exp(sign * p - half) / math.sqrt(2 * m)),
    wrong={
        "this is the factor e^(+|x|²/2) of the Fourier features; here the norms must be taken away": _by_entries(
            lambda p, half, m, sign: math.exp(sign * p + half) / math.sqrt(2 * m)
        ),
        "this is the map as the Mamba-2 paper prints it: e^(-|x|²/2) and 1/√m are missing, and attention with "
        "it tends to softmax(q·k + |k|²/2)": _by_entries(lambda p, half, m, sign: math.exp(sign * p) / math.sqrt(2)),
        "the factor e^(-|x|²/2) is missing: the mean of e^(ω·(q + k)) is e^(|q + k|²/2), not e^(q·k)": _by_entries(
            lambda p, half, m, sign: math.exp(sign * p) / math.sqrt(2 * m)
        ),
        "the mean over the m directions is missing: divide by √(2m), not by √2": _by_entries(
            lambda p, half, m, sign: math.exp(sign * p - half) / math.sqrt(2)
        ),
    },
)
def positive_features(x, W):
    """Positive features (T, 2m) of x (T, N) along W (m, N), each direction with both signs.

    Return e^(-|x|²/2) / √(2m) times (e^(ω_1·x), …, e^(ω_m·x), e^(-ω_1·x), …, e^(-ω_m·x)) per row.

    Hint: The form is that of exercise 2.3 with other waves and another factor. Now 2m are averaged, not m.

    Hint: `(x @ W.mT).exp()` are the first m features, `(-x @ W.mT).exp()` the last m.

    Hint: Multiply row by row with `(-x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(2 * len(W))`.

    Insight: The variance of positive features goes to 0 with the weight itself, so that small weights stay small and no
    row sum is near 0 by accident.
    """
    projections = x @ W.mT
    factor = (-x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(2 * len(W))
    return factor * torch.cat([projections.exp(), (-projections).exp()], dim=1)


# ------------------------------------------------------------------------------------------- 2.5 a fair rotation


def _gram_schmidt(A):
    """Columns one by one: what is left of each after the earlier ones, at length 1."""
    columns = []
    for a in A.mT:
        for c in columns:
            a = a - (a @ c) * c
        columns.append(a / a.norm())
    return torch.stack(columns, dim=1)


def _rotation_cases(randn):
    yield (torch.tensor([[2.0]], dtype=torch.float64),)
    yield (torch.tensor([[1.0, 2.0], [0.0, 3.0]], dtype=torch.float64),)
    for size in (3, 4, 5):
        yield (randn(size, size),)


@exercise(
    "2.5",
    "A fair rotation",
    claim="000:performer-orthogonal",
    level=2,
    minutes=5,
    cases=_rotation_cases,
    oracle=_gram_schmidt,
    wrong={
        "the signs are still those that the algorithm chose: they are not random, so the "
        "rotation is not fair": lambda A: torch.linalg.qr(A).Q,
        "the signs multiply the ROWS of Q: then Q R is no longer A": lambda A: (
            torch.linalg.qr(A).Q * torch.linalg.qr(A).R.diagonal().sign()[:, None]
        ),
        "you make the diagonal of Q positive; it is the diagonal of R that must be": lambda A: (
            torch.linalg.qr(A).Q * torch.linalg.qr(A).Q.diagonal().sign()
        ),
        "these are the columns of A at length 1: they are not orthogonal": lambda A: A / A.norm(dim=0),
    },
)
def fair_rotation(A):
    """The orthogonal factor of the Gaussian matrix A (N, N), its columns so signed that R has a positive diagonal.

    Return the orthogonal factor of A = QR with the signs chosen such that every diagonal entry of R is positive:
    multiply each COLUMN of Q by the sign of its diagonal entry of R.

    Hint: `torch.linalg.qr(A)` returns Q and R. If a column of Q changes its sign, what must change in R?

    Hint: `R.diagonal().sign()` are N signs. Column j of Q takes sign j.

    Hint: A vector of N numbers times a matrix broadcasts along the last axis, so it multiplies columns.

    Insight: Without the signs the rotation depends on how QR is computed, and is not uniform: then the mean over draws
    need not be the kernel.
    """
    rotation, R = torch.linalg.qr(A)
    return rotation * R.diagonal().sign()


# ---------------------------------------------------------------------------------------- 2.7 Nyström attention


def _around(middle):
    """The three factors with another one in the middle, made from A = softmax(Q̃ K̃ᵀ)."""

    def weights(Q, K, Q_means, K_means):
        A = softmax_weights(Q_means, K_means)
        return softmax_weights(Q, K_means) @ middle(A) @ softmax_weights(Q_means, K)

    return weights


def _pinv(A):
    """The pseudo-inverse, a singular value at a time."""
    U, S, Vh = torch.linalg.svd(A)
    return sum(torch.outer(Vh[k], U[:, k]) / S[k] for k in range(len(S)) if S[k] > 1e-12 * S[0])


def _nystrom_cases(randn):
    yield tuple(randn(1, 2) for _ in range(4))
    for target, source, landmarks in [(4, 3, 1), (5, 6, 2), (6, 7, 3)]:
        sizes = (target, source, landmarks, landmarks)
        yield tuple(randn(size, 4) for size in sizes)
    Q, K = randn(4, 4), randn(4, 4)
    yield Q, K, Q, K
    twice = [0, 1, 1]  # a landmark that is there twice: then A has no inverse
    yield Q, K, Q[twice], K[twice]


def _swapped_landmarks(Q, K, Q_means, K_means):
    """The middle factor from landmark keys on landmark queries."""
    middle = torch.linalg.pinv(softmax_weights(K_means, Q_means))
    return softmax_weights(Q, K_means) @ middle @ softmax_weights(Q_means, K)


def _softmax_of_the_product(Q, K, Q_means, K_means):
    scores = (Q @ K_means.mT) @ torch.linalg.pinv(Q_means @ K_means.mT) @ (Q_means @ K.mT)
    return scores.softmax(-1)


@exercise(
    "2.7",
    "Through the landmarks",
    claim="000:nystromformer",
    level=2,
    minutes=10,
    cases=_nystrom_cases,
    oracle=_around(_pinv),
    wrong={
        "A stands in the middle as it is; it must be inverted, so that landmarks among themselves give back A": _around(
            lambda A: A
        ),
        "the middle factor is missing: two softmaxes in a row average twice": _around(
            lambda A: torch.eye(len(A), dtype=A.dtype)
        ),
        "the pseudo-inverse is transposed: A has landmark QUERIES in its rows, its inverse landmark KEYS": _around(
            lambda A: torch.linalg.pinv(A).mT
        ),
        "your A is softmax(K̃ Q̃ᵀ): the landmark QUERIES come first, A = softmax(Q̃ K̃ᵀ)": _swapped_landmarks,
        "you approximate the scores, and take one softmax at the end: that needs "
        "the whole (T, S) matrix": _softmax_of_the_product,
    },
)
def nystrom_weights(Q, K, Q_means, K_means):
    """The (T, S) weights through r landmarks: softmax(Q K̃ᵀ) · pinv(softmax(Q̃ K̃ᵀ)) · softmax(Q̃ Kᵀ).

    Return softmax(Q K̃ᵀ) · A⁺ · softmax(Q̃ Kᵀ) with A = softmax(Q̃ K̃ᵀ), where Q̃ and K̃ are r landmarks.

    Hint: Three softmaxes: all queries on the landmark keys, landmarks on landmarks, landmark queries on all keys.

    Hint: `softmax_weights(Q, K_means)` is the first, (T, r). The pseudo-inverse is `torch.linalg.pinv`.

    Hint: Multiply the three factors in the order (T, r), (r, r), (r, S); only the middle one is inverted.

    Insight: With as many landmarks as tokens, and all of them different, the answer is softmax attention itself.
    """
    middle = torch.linalg.pinv(softmax_weights(Q_means, K_means))
    return softmax_weights(Q, K_means) @ middle @ softmax_weights(Q_means, K)
