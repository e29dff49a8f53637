"""The exercises of chapter 02 on kernels without chance: degrees of exp, which f are kernels, positions."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# ----------------------------------------------------------------------------------------- 2.1 two degrees of exp


def _scaled_squares(scale):
    """`taylor_features` with another weight for the products."""

    def features(x):
        phi, first = taylor_features(x), 1 + x.shape[1]
        return torch.cat([phi[:, :first], phi[:, first:] * scale], dim=1)

    return features


def _taylor_oracle(x):
    rows = [
        [1.0, *row, *(a * b / math.sqrt(2) for a in row for b in row)]
        for row in x.tolist()  # one, the entries, the products row by row
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _taylor_cases(randn):
    yield (torch.zeros(1, 1, dtype=torch.float64),)
    for length, size in [(3, 1), (2, 2), (5, 3)]:
        yield (randn(length, size),)


def _without_cross_products(x):
    squares = torch.diag_embed(x.square()).flatten(1) / math.sqrt(2)
    return torch.cat([torch.ones_like(x[:, :1]), x, squares], dim=1)


@exercise(
    "2.1",
    "Two degrees of exp",
    claim="000:exp-feature-map",
    level=1,
    minutes=10,
    cases=_taylor_cases,
    oracle=_taylor_oracle,
    wrong={
        "your products are squares, x_i x_i in a row: every entry must meet every other": lambda x: torch.cat(
            [torch.ones_like(x[:, :1]), x, x.repeat(1, x.shape[1]).square() / math.sqrt(2)], dim=1
        ),
        "mixed products are doubled: x_1 x_2 and x_2 x_1 are both there already": lambda x: torch.cat(
            [
                torch.ones_like(x[:, :1]),
                x,
                (
                    x[:, :, None] * x[:, None, :] * (1 - (1 - math.sqrt(0.5)) * torch.eye(x.shape[1], dtype=x.dtype))
                ).flatten(1),
            ],
            dim=1,
        ),
        "x is scaled first, as if the scores were q·k/√N: here there is no hidden scale": lambda x: taylor_features(
            x / x.shape[1] ** 0.25
        ),
        "the products carry the weight 1/2 on BOTH sides, so (q·k)² ends up divided by "
        "4: take the root, 1/√2": _scaled_squares(math.sqrt(0.5)),
        "these features give 1 + q·k + (q·k)²: the 2! of the Taylor series is missing": _scaled_squares(math.sqrt(2)),
        "these are the squares x_i² alone: (q·k)² also has the mixed terms q_i q_j k_i k_j": _without_cross_products,
    },
)
def taylor_features(x):
    """Features (T, 1 + N + N²) of x (T, N) whose dot products are 1 + q·k + (q·k)²/2.

    Return features whose dot products are 1 + q·k + (q·k)²/2: first a one, then the N entries of x, then a weight times
    all N² products x_i x_j, row by row.

    Hint: Expand (q·k)² into a double sum over i and j: what belongs to q, what to k? Their weights are equal.

    Hint: `x[:, :, None] * x[:, None, :]` holds all products; `flatten(1)` lays them out row by row.

    Hint: The weight is 1/√2, because it meets itself: 1/√2 · 1/√2 = 1/2. Join with `torch.cat(..., dim=1)`.

    Insight: Degree d needs N^d features: exp itself, all degrees, has infinitely many, and random features are a way to
    sample them.
    """
    squares = x[:, :, None] * x[:, None, :]
    return torch.cat([torch.ones_like(x[:, :1]), x, squares.flatten(1) / math.sqrt(2)], dim=1)


# ------------------------------------------------------------------------------------------ 2.2 is it a kernel?


def _kernel_oracle(G):
    eigenvalues = torch.linalg.eigvals(G).real
    return bool((eigenvalues / eigenvalues.abs().max() >= -1e-9).all())


def _kernel_cases(randn):
    """Matrices on which the usual wrong tests differ; the last two from six points in three dimensions."""
    for rows in ([[2.0]], [[1.0, -0.5], [-0.5, 1.0]], [[1.0, 2.0], [2.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]):
        yield (torch.tensor(rows, dtype=torch.float64),)
    X = randn(6, 3)
    yield ((X @ X.mT).square(),)
    yield (X @ X.mT,)
    nearly = torch.tensor([[1.0, 0.501], [0.501, 0.25]], dtype=torch.float64)  # the least eigenvalue is -0.0008
    for scale in (1.0, 1e-12):
        yield (scale * nearly,)
    yield (1e6 * (X @ X.mT),)  # eigenvalues that are 0 but for rounding
    signs = torch.tensor([[1, 0.9, 0.9], [0.9, 1, -0.9], [0.9, -0.9, 1]], dtype=torch.float64)
    yield (signs,)  # every pair of points could be, the three cannot


def _minors_are_positive(G):
    """Sylvester's criterion, which leaves no room for a zero: all leading minors are positive."""
    return all(torch.linalg.det(G[:n, :n]).item() > 1e-9 for n in range(1, len(G) + 1))


def _pairs_alone(G):
    """Every principal minor of size 1 or 2 is positive or nearly 0."""
    d = G.diagonal()
    minors = d[:, None] * d - G.square()
    return bool((d >= 0).all() and (minors >= -1e-9 * G.abs().max() ** 2).all())


@exercise(
    "2.2",
    "Is it a kernel?",
    claim="004:feature-map-any-f",
    level=1,
    minutes=5,
    cases=_kernel_cases,
    oracle=_kernel_oracle,
    wrong={
        "you ask whether the ENTRIES are non-negative: a kernel may be negative somewhere, and positive "
        "entries do not make a kernel": lambda G: bool((G >= 0).all()),
        "a non-negative diagonal is needed, but it is not enough: try [[1, 2], [2, 1]]": lambda G: bool(
            (G.diagonal() >= 0).all()
        ),
        "two negative eigenvalues make a positive determinant: look at the eigenvalues one by one": lambda G: bool(
            torch.linalg.det(G) >= -1e-9
        ),
        "you look at pairs of points alone: three points can contradict one another where no two do": _pairs_alone,
        "you leave no room for zero: six points in three dimensions have a G = X Xᵀ with three zero "
        "eigenvalues, and rounding puts some of them at -1e-16": _minors_are_positive,
        "your answer is always True: singular values are never negative, eigenvalues can be": lambda G: True,
    },
)
def is_kernel_matrix(G):
    """Whether the symmetric G (S, S) is phi phiᵀ for some features phi: no eigenvalue is negative (beyond rounding).

    Say (True or False) whether the symmetric matrix G can be phi phiᵀ for real features phi. Allow for rounding: an
    eigenvalue above -1e-9 times the largest counts as zero.

    Hint: cᵀ G c = |phiᵀ c|² for every vector c: can that be negative? What does it say about eigenvalues?

    Hint: `torch.linalg.eigvalsh(G)` returns the eigenvalues of a symmetric matrix, the smallest first.

    Hint: Compare the smallest with -1e-9 times the largest magnitude, and make a `bool` of the answer.

    Insight: Mercer's theorem says the same of kernels on infinitely many points: no negative eigenvalue, and features
    exist.
    """
    eigenvalues = torch.linalg.eigvalsh(G)
    return bool(eigenvalues[0] >= -1e-9 * eigenvalues.abs().max())


# ------------------------------------------------------------------------------------------------ 2.6 cosFormer


def _cosformer_oracle(Q, K, V, horizon, weight=math.cos):
    """One weight after the other."""
    rows = []
    for t in range(len(Q)):
        weights = [
            sum(max(q, 0.0) * max(k, 0.0) for q, k in zip(Q[t].tolist(), K[s].tolist(), strict=True))
            * weight(math.pi * (t - s) / (2 * horizon))
            for s in range(len(K))
        ]
        rows.append(sum(w * v for w, v in zip(weights, V, strict=True)) / sum(weights))
    return torch.stack(rows)


def _cosformer_cases(randn):
    ones = torch.ones(2, 1, dtype=torch.float64)
    yield ones[:1], ones[:1], randn(1, 1), 4
    yield ones, ones.clone(), randn(2, 1), 4
    for length, features, horizon in [
        (4, 2, 4),
        (6, 3, 16),
        (7, 3, 4),
        (5, 2, 6),
    ]:  # in the last some cosines are negative
        Q, K = randn(length, features), randn(length, features)
        Q[:, 0], K[:, 0] = Q[:, 0].abs() + 1, K[:, 0].abs() + 1
        yield Q, K, randn(length, 2), horizon


def _features(first=lambda x, angles: x.relu() * angles.cos(), second=lambda x, angles: x.relu() * angles.sin()):
    """Attention by other features, made of the tokens and of their angles."""

    def attention(Q, K, V, horizon):
        angles = math.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)[:, None]
        q, k = (torch.cat([first(x, angles), second(x, angles)], dim=1) for x in (Q, K))
        return q @ (k.mT @ V) / (q @ k.sum(0))[:, None]

    return attention


def _undivided(Q, K, V, horizon):
    distance = torch.arange(len(Q))[:, None] - torch.arange(len(Q), dtype=Q.dtype)
    return (Q.relu() @ K.relu().mT * (math.pi / (2 * horizon) * distance).cos()) @ V


@exercise(
    "2.6",
    "Positions in the features",
    claim="000:cosformer",
    level=2,
    minutes=12,
    cases=_cosformer_cases,
    oracle=_cosformer_oracle,
    way=Way(case=lambda randn, length: (*(randn(length, 2).abs() for _ in "QKV"), length), memory=1, loops=0),
    wrong={
        "the second half is x sin θ, not sin θ alone: only then does cos·cos + sin·sin become cos(θ_t - θ_s), "
        "times q·k. (The Mamba-2 paper prints it without the x)": _features(
            second=lambda x, angles: angles.sin().expand(x.shape)
        ),
        "the ReLU is missing: the weights can be negative": _features(
            lambda x, angles: x * angles.cos(), lambda x, angles: x * angles.sin()
        ),
        "you take the ReLU of the finished features: where the cosine is negative, beyond the horizon, it must "
        "stay": _features(lambda x, angles: (x * angles.cos()).relu(), lambda x, angles: (x * angles.sin()).relu()),
        "your angle runs to π instead of π/2: the cosine of a large distance becomes "
        "negative": lambda Q, K, V, horizon: _cosformer_oracle(Q, K, V, horizon / 2),
        "the answer is right to seven digits: the angles are float32, because `torch.arange` holds integers "
        "and these times a float are float32; give it `dtype=Q.dtype`": _features(
            lambda x, angles: x.relu() * angles.float().cos(), lambda x, angles: x.relu() * angles.float().sin()
        ),
        "the division is missing: the weights of a row must sum to 1": _undivided,
        "your sums run over s ≤ t: no causal mask is asked for here": lambda Q, K, V, horizon: torch.stack(
            [_cosformer_oracle(Q[: t + 1], K[: t + 1], V[: t + 1], horizon)[t] for t in range(len(Q))]
        ),
        "you divide the positions by T: the horizon is given": lambda Q, K, V, horizon: _cosformer_oracle(
            Q, K, V, len(Q)
        ),
        "only the cosines are there: cos θ_t · cos θ_s is not cos(θ_t - θ_s)": _features(
            second=lambda x, angles: 0 * x * angles
        ),
    },
)
def cosformer(Q, K, V, horizon):
    """Y (T, P) with weights relu(Q_t)·relu(K_s)·cos(π (t - s) / (2 horizon)), divided by their sum; no (T, T) matrix.

    Return attention with these weights, every row divided by the sum of its weights, which is not 0 (no causal mask),
    in O(T): put the cosine into features of t and of s alone. Any horizon may be given, one below T too.

    Hint: cos(a - b) = cos a cos b + sin a sin b. So 2N features for each token: what are they?

    Hint: One angle for each row: `torch.arange(len(Q), dtype=Q.dtype)[:, None] * math.pi / (2 * horizon)`; the features
    of a token are relu(x) cos θ and relu(x) sin θ.

    Hint: With features q and k: `q @ (k.mT @ V)`, divided by `q @ k.sum(0)`, a number for each row.

    Insight: Every weight of relative position that is a sum of cosines can be split like this, a pair of features for
    each; RoPE turns Q and K by the same identity.
    """
    angles = math.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)[:, None]
    q, k = (torch.cat([x.relu() * angles.cos(), x.relu() * angles.sin()], dim=1) for x in (Q, K))
    return q @ (k.mT @ V) / (q @ k.sum(0))[:, None]
