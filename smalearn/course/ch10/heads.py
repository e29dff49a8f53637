"""The exercises of chapter 10 on heads: where a narrow one fails, and heads that add up."""

import torch

from smalearn.course.exercises.core import Randn, exercise


def confuse(L, R):
    """A query x (D) and two points X (2, D) on the unit sphere, where the head of L R^T (D, D) misses the nearer one.

    The head of rank r < D gives point y the score x^T L R^T y. Find x and X such that the score of the point nearer to
    x is not above that of the other; a tie will do, and x may be one of the points.

    Hint: L^T x are r numbers, all that the head knows of x. Which x do they know nothing of?

    Hint: If L^T x = 0, every point has the score 0. The nearest point can then be x itself.

    Hint: A unit vector x with L^T x = 0 is the last row of Vh in `torch.linalg.svd(L.mT)`. And the points?

    Insight: Every narrow head has such a query, however it was trained: that is what a bottleneck of rank means.
    """
    x = torch.linalg.svd(L.mT).Vh[-1]
    return x, torch.stack([x, -x])


def _narrow_cases(randn):
    """Heads that do what they can: on the directions that they see they find the nearest point. And two random ones."""
    randn(7)  # so that no learner's own `torch.manual_seed(0)` draws the first of them
    for dim, rank in [(2, 1), (4, 3), (16, 15), (64, 62)]:
        seen = torch.linalg.qr(randn(dim, rank)).Q
        yield seen, seen.clone()
    for dim, rank in [(4, 2), (16, 2), (4, 2), (16, 4), (8, 3), (4, 1)]:
        yield randn(dim, rank), randn(dim, rank)


def _no_triple(answer, dim):
    """Why an answer is no query and two points on the sphere; "" if it is."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "return two tensors: the query x and the points X"
    x, X = answer
    if not all(isinstance(tensor, torch.Tensor) for tensor in answer):
        return "the query x and the points X must be tensors"
    if x.shape != (dim,) or X.shape != (2, dim):
        expected, got = f"x ({dim},) and X (2, {dim}), one point in a row", f"{tuple(x.shape)} and {tuple(X.shape)}"
        return f"expected the shapes {expected}; got {got}"
    lengths = torch.cat([x[None], X]).norm(dim=1)
    if dim == 2 and (lengths[1:] - 1).abs().max() > 1e-6 > (X.norm(dim=0) - 1).abs().max():
        return "X has its points as columns: they are its rows, (2, D)"
    if not (lengths - 1).abs().max() < 1e-6:
        got = ", ".join(f"{length:.3g}" for length in lengths)
        advice = "; divide each by its norm" if lengths.all() else ""
        return f"the query and both points must have length 1: yours have {got}{advice}"
    return ""


def _still_finds(answer, L, R):
    if wrong := _no_triple(answer, len(L)):
        return wrong
    x, X = answer
    if {x.dtype, X.dtype} != {L.dtype}:
        return f"x and X must be in {L.dtype}, as L and R are: yours are in {x.dtype} and {X.dtype}"
    near, far = X @ x
    if abs(near - far) < 1e-3:
        return f"the two points are {'the same' if torch.equal(*X) else 'equally near to x'}: one must be nearer"
    if near < far:
        return "your first point is the farther one: the nearer comes first"
    score, other_score = X @ (R @ (L.mT @ x))
    if score <= other_score + 1e-9:
        return ""
    seen, other = (L.mT @ x).norm(), (R.mT @ x).norm()
    side = ". R^T x is 0, but a query is read by L" if other < 1e-6 else ""
    return f"the head finds the nearer point here: it sees x, since L^T x is not 0 but has length {seen:.3g}{side}"


def _unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


exercise(
    "10.1",
    "Where a narrow head fails",
    claim="003:nearest-neighbour",
    kind="break",
    level=2,
    minutes=12,
    cases=_narrow_cases,
    refuse=_still_finds,
    wrong={
        "this query is one that the head sees: "
        "L R^T x has a part along x": "torch.linalg.svd(L.mT).Vh[-1] → _unit((L @ R.mT)[:, 0] + L[:, 0])",
        "x is zero, which is "
        "no point of the sphere": "return x, torch.stack([x, -x]) → return 0 * x, torch.eye(len(L), dtype=L.dtype)[:2]",
        "there is only one point, which is the "
        "nearest whatever its score": "torch.linalg.svd(L.mT).Vh[-1] → _unit(L[:, 0]) ; torch.stack([x, -x]) → x[None]",
        "both points are "
        "the same": "torch.linalg.svd(L.mT).Vh[-1] → _unit(L[:, 0]) ; torch.stack([x, -x]) → x.expand(2, -1).clone()",
    },
)(confuse)


def linear_error(heads, rank, dim, points):
    """The least error of linear attention with H heads of rank r, for D coordinates and N points.

    Say how small the error of linear attention with H heads of rank r can be on in-context regression.

    Hint: Without softmax all heads are one, with a sum of matrices. What is the rank of a sum, at most? And of a (D, D)
    matrix, at most?

    Hint: The error is a constant plus a multiple of |M - γI|², and the nearest matrix of rank k keeps k of D
    directions. Each direction kept wins N/(N + D + 1), divided by D.

    Insight: Ranks add up over heads as long as the scores themselves are the weights. With a softmax between, each head
    chooses alone; whether that hurts depends on the task.
    """
    whole = min(heads * rank, dim)
    return 1 - whole / dim * points / (points + dim + 1)


def _least(dim, points, directions):
    """The lowest point of E |I - γ A P|² / D, a parabola in γ, from the moments of Gaussian numbers.

    A = Σ x_i x_i^T. Its mean is N/D. An entry of A² is Σ_(i, j, e) x_i[u] x_i[e] x_j[e] x_j[v], u = v on the diagonal:
    x_i and x_j are independent, or one and the same, and then the fourth moment of a coordinate is 3.
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
    yield from [(1, 1, 2, 3), (1, 1, 1, 1), (1, 4, 4, 8), (2, 1, 4, 8), (8, 2, 16, 8), (3, 2, 4, 5), (2, 5, 6, 1)]


exercise(
    "10.7",
    "Heads that add up",
    claim="003:full-rank-head",
    level=2,
    minutes=12,
    cases=_error_cases,
    oracle=lambda heads, rank, dim, points: _least(dim, points, _measured_rank(heads, rank, dim)),
    wrong={
        "this is the error of a single head: without softmax the ranks of heads add up": "heads * rank → rank",
        "a (D, D) matrix has no more than D directions: min(H r, D)": "min(heads * rank, dim) → heads * rank",
        "this is the larger of H r and D: a rank is no larger than either": "min → max",
        "H heads of rank r have rank H r together, not H + r": "heads * rank → heads + rank",
        "the rank has nothing to do with the number of points: it is min(H r, D)": "rank, dim → rank, dim, points",
        "your k/D is a whole number, 0 or 1: divide with /": "whole / dim → whole // dim",
        "you give 1, as if no direction won anything: does a `//` round its share down?": "points / → points //",
        "the division by D is missing: a direction wins N/(N + D + 1)/D": "whole / dim → whole",
        "you count the D - k directions that M cannot have: the k that it has win": "whole / → (dim - whole) /",
        "the error goes with |M − γI|², the square of the norm: "
        "D − k, not its root": "whole / → (dim - (dim - whole) ** 0.5) /",
        "in your constant |γ I|² is γ²: it is D γ², one γ² for each direction": "whole / → (whole + 1 - dim) /",
        "the constant is missing: even at full rank 1 - N/(N + D + 1) is left": "1 - whole / dim → (1 - whole / dim)",
        "this is the part of the error that is removed: 1 minus it is left": "1 - → ",
        "you multiply the errors of single heads: heads add "
        "up to one head of rank min(H r, D)": "heads * rank → rank ; return → return ( ; dim + 1) → dim + 1)) ** heads",
        "M is to be near γ I, not I: what a direction "
        "wins is N(N + D + 1)/D³ times γ²": "points / (points + dim + 1) → points * (points + dim + 1) / dim**2",
        "this is the error of ones on the diagonal of M: the best number there is "
        "γ = D/(N + D + 1)": "points / (points + dim + 1) → (2 * points / dim - points * (points + dim + 1) / dim**2)",
        "this is the error with γ = D/N, which makes A M right on average: "
        "the best γ is D/(N + D + 1)": "points / (points + dim + 1) → (1 - (dim + 1) / points)",
        "the term with |M|² is missing: it takes back half of what the trace wins": "points / → 2 * points /",
        "this is what infinitely many points would leave: A = Σ x x^T is not its mean, "
        "and E A² is larger than (E A)² by the factor (N + D + 1)/N": "points / (points + dim + 1) → 1",
        "E A² = N(N + D + 1)/D², and yours lacks the 1: "
        "the fourth moment of a Gaussian number is 3, not 2": "dim + 1 → dim",
        "what a direction wins has N + D + 1 below, yours N + D − 1": "dim + 1 → dim - 1",
        "this is the root of the error: "
        "the mean SQUARE is asked for": "return → return ( ; dim + 1) → dim + 1)) ** 0.5",
        "you take the mean of the heads: "
        "without softmax they add up": "min(heads * rank, dim) → min(rank, dim) / heads",
        "γ = D/(N + D + 1), as in the factor before the square: "
        "yours lacks the 1": "points / (points + dim + 1) → points * (points + dim + 1) / (points + dim) ** 2",
        "γ² is missing before the D − "
        "k directions that are lost": "1 - whole / dim * → points * (points + dim + 1) / dim**3 * (dim - whole) + 1 -",
        "before the D − k directions "
        "that are lost stands γ², yours has γ": "1 - whole / dim * → points / dim**2 * (dim - whole) + 1 -",
        "|M − γI|² is γ² (D − k), "
        "yours is the norm itself, γ √(D − k)": "1 - whole / dim * → points / dim**2 * (dim - whole) ** 0.5 + 1 -",
        "the constant is 1 − N/(N + D + 1), "
        "what is left at full rank: yours is 1": "1 - whole / dim → 1 + (1 - whole / dim)",
        "each direction wins N/(N + D + 1), not γ = D/(N + D + 1)": "points / → dim /",
        "this is what least squares would leave, n pairs for n directions: one "
        "layer of linear attention cannot invert A": "rank, dim → rank, dim, points ; points / (points + dim + 1) → 1",
    },
)(linear_error)
