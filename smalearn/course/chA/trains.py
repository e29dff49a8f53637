"""The exercises of appendix A on block tensor trains: the cheapest of full rank, and a Kronecker product as one."""

import torch

from smalearn.course.exercises.core import exercise


def cheapest_train(m, n, rank):
    """Sizes (a, b, c, d) of a train of full rank with s = rank and the fewest parameters.

    Find the sizes of a block tensor train that has full rank and the fewest parameters.

    Hint: How many numbers does L (b, a, c, s) hold, how many R (c, d, b, s)? Through how many does everything pass
    between them?

    Hint: Parameters s(mc + nb), rank min(m, n, bcs). Only b, a divisor of m, and c, a divisor of n, are free: try all
    pairs.

    Hint: Loop over b, then over c; skip where `b * c * rank < min(m, n)`; of the others, which has the least
    `rank * (m * c + n * b)`?

    Insight: With s = 1 and m = n = D, a square number, this is Monarch's usual shape: √D blocks of √D × √D on either
    side.
    """
    best = None
    for b in (k for k in range(1, m + 1) if m % k == 0):
        for c in (k for k in range(1, n + 1) if n % k == 0):
            cost = rank * (m * c + n * b)
            if b * c * rank >= min(m, n) and (best is None or cost < best[0]):
                best = cost, (m // b, b, c, n // c)
    return best[1]


def _search(m, n, rank):
    """All sizes, sorted by what their factors hold, then by b."""
    found = []
    for a in range(1, m + 1):
        for c in range(1, n + 1):
            b, d = m // a, n // c
            if a * b == m and c * d == n and b * c * rank >= min(m, n):
                found.append((b * a * c * rank + c * d * b * rank, b, c, (a, b, c, d)))
    return min(found)[-1]


def _cheap_cases(randn):
    """Cases without ties, in which known wrong answers are the same whatever loop finds them."""
    yield from [
        (1, 2, 1),
        (6, 4, 1),
        (7, 5, 1),
        (8, 18, 2),
        (16, 36, 1),
        (36, 16, 1),
        (20, 12, 1),
        (12, 40, 2),
        (18, 32, 1),
        (48, 32, 2),
    ]


def _dear(answer, m, n, rank):
    """Why a train is not the cheapest of full rank; "" if it is."""
    if answer is None:
        return "this is None: is there a `return`, and do your conditions admit b = m, c = n and equality?"
    a, b, c, d = answer
    if not all(isinstance(k, int) and k >= 1 for k in (a, b, c, d)):
        return "a, b, c and d are whole numbers from 1 on"
    if a * b != m or c * d != n:
        return f"this train is ({a * b}, {c * d}) and not ({m}, {n}): m = ab and n = cd"
    if b * c * rank < min(m, n):
        return f"its rank is b·c·s = {b * c * rank} at most, and min(m, n) is {min(m, n)}: it is not of full rank"
    best = _search(m, n, rank)
    held, least = (rank * (sizes[0] * sizes[1] * sizes[2] + sizes[2] * sizes[3] * sizes[1]) for sizes in (answer, best))
    if held > least:
        return f"the cheapest train of full rank holds {least} numbers, s(mc + nb), and yours {held}"
    return ""


def _root(size):
    """The largest divisor up to the root."""
    return max(k for k in range(1, size + 1) if size % k == 0 and k * k <= size)


exercise(
    "A.1",
    "The cheapest train of full rank",
    claim="003:table1-row4",
    level=2,
    minutes=12,
    cases=_cheap_cases,
    refuse=_dear,
    wrong={
        "these are the fewest parameters of all, and that is b = c = 1: "
        "a low rank matrix with r = s. Ask for b·c·s ≥ min(m, n)": "b * c * rank >= min(m, n) → True",
        "you ask for b·c ≥ min(m, n): "
        "there are b·c·s numbers between the factors, so that a larger s allows a smaller b·c": "b * c * rank → b * c",
        "you ask for b·c·s > min(m, n): with equality the rank is full, too": ">= → >",
        "you ask for b·c·s = min(m, n): with more than that a train may be cheaper": ">= → ==",
        "you ask for b·c·s ≥ max(m, n): an (m, n) matrix has full rank with min(m, n)": ">= min → >= max",
        "you ask for b·c·s ≥ m: an (m, n) matrix has full rank with min(m, n)": "min(m, n) → m",
        "you ask for b·c·s ≥ n: an (m, n) matrix has full rank with min(m, n)": "min(m, n) → n",
        "you made b as small as full rank allows: "
        "make s(mc + nb) small, the numbers in L and R": "rank * (m * c + n * b) → b, m * c + n * b",
        "you made c as small as full rank allows: "
        "make s(mc + nb) small, the numbers in L and R": "rank * (m * c + n * b) → c, m * c + n * b",
        "you made b·c as small as full rank allows: "
        "make s(mc + nb) small, the numbers in L and R": "rank * (m * c + n * b) → b * c",
        "your count is s(mb + nc): "
        "the blocks of L are (a, c·s), so that L holds m·c·s numbers and R n·b·s": "m * c + n * b → m * b + n * c",
        "you made b + c as small as full rank allows: "
        "L holds m·c·s numbers and R n·b·s": "rank * (m * c + n * b) → b + c",
        "this is the train of full rank with the most parameters: the fewest are asked for": "= rank → = -rank",
        "your a and c are the largest divisors up to √m and √n, whatever s is: "
        "try all pairs b, c": "best = None → return _root(m), m // _root(m), _root(n), n // _root(n)",
        "your a and d are the largest divisors up to √m and √n, without condition or cost: "
        "try all pairs b, c": "best = None → return _root(m), m // _root(m), n // _root(n), _root(n)",
        "these are the right sizes in the order (b, a, d, c): "
        "the answer is (a, b, c, d)": "m // b, b, c, n // c → b, m // b, n // c, c",
        "your a and b are exchanged: the answer is (a, b, c, d)": "m // b, b → b, m // b",
        "your c and d are exchanged: the answer is (a, b, c, d)": "c, n // c → n // c, c",
    },
)(cheapest_train)


def kronecker_as_train(A, B):
    """L (b, a, c, 1) that holds A and R (c, d, b, 1) that holds B, the train of A ⊗ B.

    Write A ⊗ B as a block tensor train with s = 1: L holds the entries of A, R those of B.

    Hint: Compare the entries: A[i, k] B[j, e] is to be L[j, i, k, 0] R[k, e, j, 0]. On what does L depend, on what not?

    Hint: L is the same A for every b. R is the same matrix for every c, but its axes are (d, b), and B has (b, d).

    Hint: `A.repeat(b, 1, 1)[..., None]` is L. For R, what takes the place of A, and of b?

    Insight: So every A ⊗ B is a train with s = 1. A train is more general: it has s terms, and each block has
    numbers of its own.
    """
    b, c = len(B), A.shape[1]
    return A.repeat(b, 1, 1)[..., None], B.mT.repeat(c, 1, 1)[..., None]


def _kronecker_loop(A, B):
    """Entry by entry: L[j, i, k] = A[i, k] and R[k, e, j] = B[j, e]."""
    (a, c), (b, d) = A.shape, B.shape
    L, R = torch.zeros(b, a, c, 1, dtype=A.dtype), torch.zeros(c, d, b, 1, dtype=A.dtype)
    for j in range(b):
        for k in range(c):
            for i in range(a):
                L[j, i, k, 0] = A[i, k]
            for e in range(d):
                R[k, e, j, 0] = B[j, e]
    return L, R


def _kronecker_cases(randn):
    """Cases, in the last no sizes alike: an answer that confuses two, or transposes too little, has another shape."""
    for a, b, c, d in [(1, 1, 1, 1), (1, 1, 2, 1), (1, 2, 1, 1), (1, 2, 1, 3), (2, 2, 2, 2), (3, 4, 2, 5)]:
        yield randn(a, c), randn(b, d)


exercise(
    "A.2",
    "A Kronecker product is a train",
    claim="003:btt-special-cases",
    kind="prove",
    level=2,
    minutes=8,
    cases=_kronecker_cases,
    oracle=_kronecker_loop,
    wrong={
        "a block of your R has the shape (d, b), but its numbers run as in B (b, d): a reshape moves nothing. "
        "R enters the product transposed, so transpose B": "B.mT.repeat → B.reshape(B.mT.shape).repeat",
        "only the first block of L holds A: "
        "every b has an A of its own, and all are equal": "A.repeat(b, 1, 1) → (A * torch.eye(b)[0, :, None, None])",
        "your L has the axes (a, b, c, 1): "
        "the blocks come first, one for each b": "A.repeat(b, 1, 1) → A.repeat(b, 1, 1).transpose(0, 1)",
        "your L is (b, c, a, 1), with A transposed: A enters as it is, B alone is transposed": "A.repeat → A.mT.repeat",
        "the numbers of your L run as in Aᵀ: "
        "A enters as it is, B alone is transposed": "A.repeat → A.mT.reshape(A.shape).repeat",
    },
)(kronecker_as_train)
