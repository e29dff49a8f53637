"""The exercises of chapter 10 on heads: the nearest point by hand, and heads that add up."""

import torch

from smalearn.course.exercises.core import Randn, exercise

# --------------------------------------------------------------------------------------- 10.6 the nearest point by hand


def _nearest_loop(x, X, beta, score=torch.dot):
    """One point at a time."""
    scores = torch.stack([beta * score(x, point) for point in X])
    weights = (scores - scores.max()).exp()
    return sum(w * point for w, point in zip(weights / weights.sum(), X, strict=True))


def _sphere_cases(randn):
    """Points on the sphere; in the first case the query is the only point there is."""
    one = torch.nn.functional.normalize(randn(1, 3), dim=-1)
    yield one[0], one, 1.0
    for points, dim, beta in [(2, 2, 1.0), (3, 2, 5.0), (5, 4, 20.0), (8, 16, 1e6)]:
        drawn = torch.nn.functional.normalize(randn(points + 1, dim), dim=-1)
        yield drawn[0], drawn[1:], beta


@exercise(
    "10.6",
    "The nearest point by hand",
    claim="003:nearest-neighbour",
    level=1,
    minutes=6,
    cases=_sphere_cases,
    oracle=_nearest_loop,
    wrong={
        "your answer goes to the farthest point as β grows: a distance is small where "
        "a score must be large": lambda x, X, beta: _nearest_loop(x, X, -beta),
        "without softmax this is a sum over all points: nothing is chosen": lambda x, X, beta: sum(
            beta * (x @ point) * point for point in X
        ),
        "β is missing: scores between -1 and 1 leave all points nearly equal weights": lambda x, X, beta: _nearest_loop(
            x, X, 1.0
        ),
        "you divide by √d: here β alone says how sharp the choice is": lambda x, X, beta: _nearest_loop(
            x, X, beta / x.numel() ** 0.5
        ),
        "your head has M = 2β I: -|x - y|² is 2 x^T y and a constant, so take half of it": lambda x, X, beta: (
            _nearest_loop(x, X, 2 * beta)
        ),
        "this is nearest first too, but |x - y| is not a bilinear form: no M gives such "
        "a score, β x^T y does": lambda x, X, beta: _nearest_loop(x, X, beta, lambda x, point: -(x - point).norm()),
        "this is the nearest point itself, the limit β → ∞: the head has a "
        "softmax, and gives a mean": lambda x, X, beta: X[(X @ x).argmax()],
    },
)
def nearest_head(x, X, beta):
    """The head with M = β I and the points as values: softmax(β X x) X.

    Build the attention head that answers a query on the sphere with the nearest point as β grows.

    Hint: On the sphere |x - y|² = 2 - 2 x^T y. So which score is largest for the nearest point?

    Hint: The score is β x^T y, its matrix β I. The values are the points themselves.

    Hint: `(beta * X @ x).softmax(-1) @ X`

    Insight: Eight heads of rank 2 cannot add up to this one: softmax is taken of each head's scores alone.
    """
    return (beta * X @ x).softmax(-1) @ X


# --------------------------------------------------------------------------------- 10.7 heads that add up, by formula


def _least(dim, points, directions):
    """The lowest point of E |I - γ A P|² / d, a parabola in γ, from the moments of Gaussian numbers.

    A = Σ x_i x_i^T. Its mean is N/d. An entry of A² is Σ_(i, j, e) x_i[u] x_i[e] x_j[e] x_j[v], u = v on the diagonal:
    x_i and x_j are independent, or one, and then the moment has three pairings.
    """
    mean, square = points / dim, 0.0
    for i in range(points):
        for j in range(points):
            for e in range(dim):
                pairs = float(e == 0) if i != j else 3.0 if e == 0 else 1.0
                square += pairs / dim**2
    gamma = mean / square
    return 1 - 2 * gamma * mean * directions / dim + gamma**2 * square * directions / dim


def _measured_rank(heads, rank, dim):
    """Rank of a sum of random matrices."""
    randn = Randn(3)
    M = torch.zeros(dim, dim, dtype=torch.float64)
    for _ in range(heads):
        L, R = randn(2, dim, rank)
        M += L @ R.mT
    return torch.linalg.matrix_rank(M).item()


def _error_cases(randn):
    yield from [(1, 0, 2, 3), (1, 1, 1, 1), (1, 4, 4, 8), (2, 1, 4, 8), (8, 2, 16, 8), (3, 2, 4, 5), (2, 5, 6, 1)]


@exercise(
    "10.7",
    "Heads that add up",
    claim="003:full-rank-head",
    level=2,
    minutes=12,
    cases=_error_cases,
    oracle=lambda heads, rank, dim, points: _least(dim, points, _measured_rank(heads, rank, dim)),
    wrong={
        "this is the error of a single head: without softmax the "
        "ranks of heads add up": lambda heads, rank, dim, points: linear_error(1, rank, dim, points),
        "a (d, d) matrix has no more than d directions: min(H r, d)": lambda heads, rank, dim, points: (
            1 - heads * rank / dim * points / (points + dim + 1)
        ),
        "M is to be near γ I, not I: what a direction wins is N(N "
        "+ d + 1)/d³ times γ²": lambda heads, rank, dim, points: (
            1 - min(heads * rank, dim) * points * (points + dim + 1) / dim**3
        ),
        "this is what infinitely many points would leave: A = Σ x x^T is not its mean, and E A² is larger than "
        "(E A)² by the factor (N + d + 1)/N": lambda heads, rank, dim, points: 1 - min(heads * rank, dim) / dim,
        "E A² = N(N + d + 1)/d², and yours lacks the 1: x_u⁴ has "
        "three pairings, not two": lambda heads, rank, dim, points: (
            1 - min(heads * rank, dim) / dim * points / (points + dim)
        ),
        "this is what least squares would leave, n pairs for n directions: one layer of linear attention "
        "cannot invert A": lambda heads, rank, dim, points: 1 - min(heads * rank, dim, points) / dim,
    },
)
def linear_error(heads, rank, dim, points):
    """The least error of linear attention with H heads of rank r on in-context regression from N pairs.

    Say how small the error of linear attention with H heads of rank r can be on in-context regression.

    Hint: Without softmax all heads are one, with a sum of matrices. What is the rank of a sum, at most? And of a (d, d)
    matrix, at most?

    Hint: The error is a constant plus a multiple of |M - γI|², and the nearest matrix of rank k keeps k of d
    directions. Each direction kept wins N/(N + d + 1), divided by d.

    Hint: `1 - min(heads * rank, dim) / dim * points / (points + dim + 1)`

    Insight: Rank adds up over heads if the scores are linear; the softmax between is what makes narrow heads fail.
    """
    whole = min(heads * rank, dim)
    return 1 - whole / dim * points / (points + dim + 1)
