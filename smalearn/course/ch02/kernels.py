"""The exercises of chapter 02 on kernels without chance: degrees of exp, and which f are kernels."""

import math

import torch

from smalearn.course.exercises.core import exercise


def taylor_features(x):
    """Features (T, 1 + N + N²) of x (T, N) whose dot products are 1 + q·k + (q·k)²/2.

    Return features whose dot products are 1 + q·k + (q·k)²/2: first a one, then the N entries of x, then a positive
    weight times all N² products x_i x_j, row by row.

    Hint: Expand (q·k)² into a double sum over i and j: what belongs to q, what to k? Their weights are equal.

    Hint: `x[:, :, None] * x[:, None, :]` holds all products; `flatten(1)` lays them out row by row.

    Hint: The weight is 1/√2, because it meets itself: 1/√2 · 1/√2 = 1/2. Join with `torch.cat(..., dim=1)`.

    Insight: Degree d, written out like this, needs N^d features: exp itself, all degrees, has infinitely many, and
    random features are a way to sample them.
    """
    squares = x[:, :, None] * x[:, None, :]
    return torch.cat([torch.ones_like(x[:, :1]), x, squares.flatten(1) / math.sqrt(2)], dim=1)


def _taylor_oracle(x):
    # one, the entries, the products row by row
    rows = [[1.0, *row, *(a * b / math.sqrt(2) for a in row for b in row)] for row in x.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def _taylor_cases(randn):
    yield (torch.zeros(1, 1, dtype=torch.float64),)
    for length, size in [(3, 1), (2, 2), (5, 3)]:
        yield (randn(length, size),)


exercise(
    "2.1",
    "Two degrees of exp",
    claim="000:exp-feature-map",
    level=1,
    minutes=10,
    cases=_taylor_cases,
    oracle=_taylor_oracle,
    wrong={
        "your products are squares, x_i x_i in a row: "
        "every entry must meet every other": "squares.flatten(1) → x.repeat(1, x.shape[1]).square()",
        "mixed products are doubled: x_1 x_2 and x_2 x_1 are both there already": "squares.flatten(1) / math.sqrt(2) "
        "→ squares.where(torch.eye(x.shape[1]) == 0, squares / math.sqrt(2)).flatten(1)",
        "x is scaled first, as if the scores were q·k/√N: "
        "here there is no hidden scale": "squares = → x = x / x.shape[1] ** 0.25\n    squares =",
        "the products carry the weight 1/2 on BOTH sides, so (q·k)² ends up divided by 4: "
        "take the root, 1/√2": "math.sqrt(2) → 2",
        "these features give 1 + q·k + (q·k)²: the 2! of the Taylor series is missing": " / math.sqrt(2) → ",
        "the dot products are right, with a negative weight; "
        "asked for is the positive one": "squares.flatten(1) / → -squares.flatten(1) /",
        "your products are twice what they should be: their weight is 1/√2, not √2": "/ math → * math",
        "the entries of x carry a weight, too: only the products need one": ", x, → , x / math.sqrt(2),",
        "the one stands there N times: it is one column": "x[:, :1] → x",
        "the one is missing: it is the first column": "torch.ones_like(x[:, :1]), → ",
        "each mixed product is there once: (q·k)² has q_i q_j k_i k_j twice, "
        "so keep all N²": "squares.flatten(1) → squares[:, *torch.triu_indices(x.shape[1], x.shape[1])]",
        "1 and x come out twice: you take products of (1, x) with itself": "squares = → "
        "x = torch.cat([torch.ones_like(x[:, :1]), x], 1)\n    squares = ; torch.ones_like(x[:, :1]), x, squ → squ",
        "these are the squares x_i² alone: "
        "(q·k)² also has the mixed terms q_i q_j k_i k_j": "squares.flatten(1) → x.square()",
        "the dot products are right, with each monomial once; here keep both copies, all "
        "N² products": "return → i, j = torch.triu_indices(x.shape[1], x.shape[1])\n    return ; "
        "squares.flatten(1) / math.sqrt(2) → squares[:, i, j] / (1 + (i == j).to(x)).sqrt()",
        "these are sums x_i + x_j: each entry multiplies each": "None] * x → None] + x",
    },
)(taylor_features)


def break_features(name, count):
    """Points X (count, N) in float64, N as you like, on which f(X Xᵀ) has an eigenvalue clearly below 0.

    f is "minus", "tanh" or "relu", entry by entry. Below -0.01 times the largest eigenvalue, in size, is clear.

    Hint: “minus”: what stands on the diagonal? One point is enough; others may repeat it. (Repeat the points of “tanh”
    and “relu” in turn: copies of one alone make the largest eigenvalue grow.)

    Hint: “tanh”: take two numbers, one small and one large. A matrix [[a, b], [b, d]] with b² > ad has a negative
    eigenvalue, and tanh caps d at 1.

    Hint: “relu”: four vectors at 0°, 45°, 90° and 135°. Neighbours agree; from 90° on a
    score is cut off at 0.

    Insight: So “any f is a dot product of features” needs two maps, one for queries and one for keys.
    """
    time = torch.arange(count, dtype=torch.float64)
    if name == "tanh":
        return torch.where(time % 2 == 0, 0.1, 10.0).double()[:, None]
    angles = time % 4 * math.pi / 4
    return torch.stack([angles.cos(), angles.sin()], 1)


SCORES = {"minus": torch.neg, "tanh": torch.tanh, "relu": torch.relu}


def _score_cases(randn):
    yield from [("minus", 1), ("tanh", 2), ("minus", 3), ("relu", 4), ("tanh", 5), ("relu", 7)]
    yield from [("tanh", 60), ("relu", 60)]  # copies of one point make the largest eigenvalue grow


def _harmless(name, scores):
    """Why a function of these scores has no negative eigenvalue, where that can be seen."""
    if name == "minus":
        return "−x·x is below 0 only where x is not 0: all your points are 0" if not scores.any() else ""
    if (scores == scores[0, 0]).all():
        return "all scores of yours are equal: f turns them into one number, repeated, which has no negative eigenvalue"
    if name == "relu" and (scores >= 0).all():
        return "no score of yours is negative, so relu changes none of them"
    if name == "relu" and (scores.relu() - scores.diag().diag()).abs().max() < 1e-6 * scores.max():
        return "relu has cut off every score of two different points: some must be nearer than 90°"
    apart = scores - scores.diag().diag()
    if name == "tanh" and apart.abs().max() <= 1e-9 * scores.max():
        zero = "" if scores.diag().all() else " (one of them is 0)"
        return f"your points are orthogonal to one another{zero}: tanh of a diagonal matrix has no negative eigenvalue"
    chains = torch.linalg.matrix_power((scores > 1e-9).double(), len(scores))  # from each point, over near ones
    if name == "relu" and not chains[scores < -1e-9].any():
        return "two points of yours more than 90° apart are never joined by a chain of nearer ones: relu needs one"
    if name == "tanh" and scores.abs().max() < 0.5:
        return "tanh(x) is nearly x for scores as small as yours"
    if name == "tanh" and scores.abs().min() > 3:
        return "tanh is nearly 1 or −1 at all scores of yours: some must be small, others large"
    if name == "tanh":
        return "for no two points of yours is tanh(x·y)² clearly above tanh(x·x)·tanh(y·y)"
    return "where relu cuts a score, both points must agree well with a third: yours agree too little"


def _is_kernel(X, name, count):
    if not isinstance(X, torch.Tensor) or X.ndim != 2 or len(X) != count or X.dtype != torch.float64:
        found = f"{tuple(X.shape)} in {X.dtype}" if isinstance(X, torch.Tensor) else type(X).__name__
        return f"the answer must be a tensor of shape ({count}, N) in float64, got {found}"
    if not X.isfinite().all():
        return "points must be finite"
    eigenvalues = torch.linalg.eigvalsh(SCORES[name](X @ X.mT))
    least, size = eigenvalues[0].item(), eigenvalues.abs().max().item()
    found = f"the least eigenvalue is {least:.2g}, the largest in size {size:.2g}"
    if least >= -0.01 * size and least < -1e-6 * size and len(X.unique(dim=0)) < len(X):
        return f"{found}, which grows with every copy of one point: repeat all your points in turn, or add zeros"
    return "" if least < -0.01 * size else _harmless(name, X @ X.mT) or found


exercise(
    "2.2",
    "Where features cannot be",
    claim="004:feature-map-any-f",
    kind="break",
    level=2,
    minutes=15,
    cases=_score_cases,
    refuse=_is_kernel,
    wrong={
        "your points are 0: "
        "the matrix is 0, and that is allowed": "if name → return torch.zeros(count, 2).double()\n    if name",
        "your points lie on one line at equal steps: "
        "relu meets no negative score there": "if name → return 1 + time[:, None]\n    if name",
        "your points lie close together on a circle: no score is negative, "
        "and relu changes nothing": 'name == "tanh" → False ; time % 4 * math.pi / 4 → 0.1 * time',
        "your points are a regular polygon of small vectors: tanh(x) is nearly x there": 'name == "tanh" → False ; '
        "time % 4 * math.pi / 4 → 2 * math.pi * time / count ; return → return 0.1 *",
    },
)(break_features)
