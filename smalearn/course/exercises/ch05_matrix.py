"""The exercises of chapter 05 on the matrix of a state space model: its entries, its blocks, its generators."""

import torch

from smalearn.course.exercises.core import exercise


def _generators(randn, length, state):
    """Transitions near the identity, which do not commute, and B and C."""
    A = torch.eye(state, dtype=torch.float64) + 0.4 * randn(length, state, state)
    return A, randn(length, state), randn(length, state)


def _still(randn, length, state):
    """Transitions that do nothing: every order and every range of their product is right."""
    _, B, C = _generators(randn, length, state)
    return torch.eye(state, dtype=torch.float64).repeat(length, 1, 1), B, C


def _product(matrices, state):
    """Multiply matrices in the given order; the identity if there are none."""
    result = torch.eye(state, dtype=torch.float64)
    for matrix in matrices:
        result = result @ matrix
    return result


def _later_first(A, first, last):
    """A_last ... A_first."""
    return _product([A[j] for j in range(last, first - 1, -1)], A.shape[-1])


def _earlier_first(A, first, last):
    """A_first ... A_last."""
    return _product([A[j] for j in range(first, last + 1)], A.shape[-1])


# ------------------------------------------------------------------------------------------ 5.1 the matrix, unrolled


def _entries(transition, above=False):
    """C_t^T transition(A, s, t) B_s, one entry after the other."""

    def matrix(A, B, C):
        M = torch.zeros(len(B), len(B), dtype=B.dtype)
        for t in range(len(B)):
            for s in range(len(B) if above else t + 1):
                M[t, s] = C[t] @ transition(A, min(s, t), max(s, t)) @ B[s]
        return M

    return matrix


def _matrix_cases(randn):
    for length, state in [(1, 1), (3, 1), (2, 2), (5, 3)]:
        yield _generators(randn, length, state)
    yield _still(randn, 1, 2)
    yield _still(randn, 4, 2)
    A, B, C = _generators(randn, 4, 2)
    A[1] = 0  # what was there before is gone
    yield A, B, C


@exercise(
    "5.1",
    "Unroll it",
    claim="004:eq-semiseparable",
    level=2,
    minutes=12,
    cases=_matrix_cases,
    oracle=_entries(lambda A, s, t: _later_first(A, s + 1, t)),
    wrong={
        "your product is A_(s+1) ... A_t. The first transition to act stands next to B_s, the last one next to "
        "C_t: A_t ... A_(s+1), and matrices do not commute": _entries(lambda A, s, t: _earlier_first(A, s + 1, t)),
        "your product includes A_s. Input s enters after A_s has acted: the range is s < j ≤ t, and empty on "
        "the diagonal": _entries(lambda A, s, t: _later_first(A, s, t)),
        "your product stops before A_t: the state is moved first and seen afterwards, so that A_t counts": _entries(
            lambda A, s, t: _later_first(A, s + 1, t - 1)
        ),
        "your product is A_(t-1) ... A_s: each transition acts one step late. The range is s < j ≤ t": _entries(
            lambda A, s, t: _later_first(A, s, t - 1)
        ),
        "entries above the diagonal must be 0: no output depends on a later input": _entries(
            lambda A, s, t: _later_first(A, s + 1, t), above=True
        ),
        "this is the transpose: rows are outputs t, columns are inputs s": lambda A, B, C: (
            _entries(lambda A, s, t: _later_first(A, s + 1, t))(A, B, C).mT
        ),
        "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, `A[t] @ h`": _entries(
            lambda A, s, t: _earlier_first(A, s + 1, t).mT
        ),
        "B and C are exchanged: input s is written by B_s, output t is read by C_t": lambda A, B, C: _entries(
            lambda A, s, t: _later_first(A, s + 1, t)
        )(A, C, B),
        "only A_t acts in your matrix: what was written at s meets every transition from s + 1 to t": _entries(
            lambda A, s, t: A[t] if t > s else _product([], A.shape[-1])
        ),
        "you multiply the transitions entry by entry: A_t ... A_(s+1) is a product of matrices, `@`": _entries(
            lambda A, s, t: torch.eye(A.shape[-1], dtype=A.dtype) * A[s + 1 : t + 1].prod(0)
        ),
        "you take powers of A_t: every step has a transition of its own": _entries(
            lambda A, s, t: torch.linalg.matrix_power(A[t], t - s)
        ),
        "you divide one running product by another: a transition that cannot be inverted stays in both. Multiply each "
        "segment on its own": _entries(
            lambda A, s, t: _later_first(A, 1, t) @ torch.linalg.pinv(_later_first(A, 1, s))
        ),
    },
)
def matrix_of(A, B, C):
    """M (T, T) with M[t, s] = C_t^T A_t ... A_(s+1) B_s for s ≤ t, and 0 above the diagonal.

    Return the (T, T) matrix of a state space model with any A (T, N, N), B (T, N) and C (T, N).

    Hint: Column s is the answer to one push: 1 at time s, 0 at all others. What is the state at time s, and what
    happens to it at time s + 1?

    Hint: Begin with `h = B[s]`. At each later t the state becomes `A[t] @ h`; what one sees of it is `C[t] @ h`.

    Hint: `A[s]` is never used for column s: it acts on what was there before the push.

    Insight: Nothing of M is learned by itself: T² entries depend on the T·(N² + 2N) numbers of the model.
    """
    length = len(B)
    M = torch.zeros(length, length, dtype=B.dtype)
    for s in range(length):
        h = B[s]
        M[s, s] = C[s] @ h
        for t in range(s + 1, length):
            h = A[t] @ h
            M[t, s] = C[t] @ h
    return M


# --------------------------------------------------------------------------------------------- 5.2 the bottleneck


def _sides(left, right):
    """The rows C_t^T left(A, k, t) and the columns right(A, s, k) B_s."""

    def sides(A, B, C, k):
        rows = [C[t] @ left(A, k, t) for t in range(k, len(B))]
        columns = [right(A, s, k) @ B[s] for s in range(k)]
        return torch.stack(rows), torch.stack(columns, 1)

    return sides


def _side_cases(randn):
    for length, state, k in [(2, 1, 1), (3, 2, 1), (4, 2, 3), (6, 3, 3)]:
        yield *_generators(randn, length, state), k
    yield *_still(randn, 5, 2), 2


def _after(A, k, t):
    return _later_first(A, k, t)


def _before(A, s, k):
    return _later_first(A, s + 1, k - 1)


def _by_svd(A, B, C, k):
    U, S, Vh = torch.linalg.svd(matrix_of(A, B, C)[k:, :k], full_matrices=False)
    return U[:, : B.shape[1]] * S[: B.shape[1]], Vh[: B.shape[1]]


@exercise(
    "5.2",
    "The bottleneck",
    claim="004:semiseparable-rank",
    level=2,
    minutes=12,
    cases=_side_cases,
    oracle=_sides(_after, _before),
    wrong={
        "A_k is on neither side: the state after step k-1 has not met it, so that it belongs to the rows": _sides(
            lambda A, k, t: _later_first(A, k + 1, t), _before
        ),
        "A_k is on both sides: each transition between s and t counts once": _sides(
            _after, lambda A, s, k: _later_first(A, s + 1, k)
        ),
        "the product of your sides is right, but you split it at A_k h: the state after step k-1 has not met "
        "A_k yet": _sides(lambda A, k, t: _later_first(A, k + 1, t), lambda A, s, k: _later_first(A, s + 1, k)),
        "your rows are C_t^T A_k ... A_t: A_k acts first and stands on the right": _sides(
            lambda A, k, t: _earlier_first(A, k, t), _before
        ),
        "your columns are A_(s+1) ... A_(k-1) B_s: A_(s+1) acts first and stands next to B_s": _sides(
            _after, lambda A, s, k: _earlier_first(A, s + 1, k - 1)
        ),
        "your columns include A_s: input s enters after A_s has acted": _sides(
            _after, lambda A, s, k: _later_first(A, s, k - 1)
        ),
        "the product of your sides is right, but their columns are mixed: an SVD knows nothing of the state. Row t of "
        "the left side is C_t^T A_t ... A_k": _by_svd,
    },
)
def through_the_state(A, B, C, k):
    """The sides (T-k, N) and (N, k) of M[k:, :k] = left @ right, split at the state after step k-1.

    Factor the block M[k:, :k] at the state h after step k-1: rows (T-k, N) times columns (N, k).

    Hint: Two questions: what is the state h after step k-1, as a sum over the inputs x_0, ..., x_(k-1)? And which rows
    read y_k, ..., y_(T-1) off that h, if all later inputs are 0?

    Hint: Column s of `right` is A_(k-1) ... A_(s+1) B_s: only transitions before k. Row t of `left` is C_t^T A_t ...
    A_k: all the others, each once.

    Hint: Build both from k outwards. Going up: `row = A[t] @ row`, then `C[t] @ row`. Going down: `column @ B[s]`
    first, then `column = column @ A[s]`.

    Insight: The state is where all that the past says of the future has to pass: its size bounds the rank of every such
    block.
    """
    left, right = [], []
    row = torch.eye(B.shape[1], dtype=B.dtype)
    for t in range(k, len(B)):
        row = A[t] @ row
        left.append(C[t] @ row)
    column = torch.eye(B.shape[1], dtype=B.dtype)
    for s in range(k - 1, -1, -1):
        right.insert(0, column @ B[s])
        column = column @ A[s]
    return torch.stack(left), torch.stack(right, 1)


# ------------------------------------------------------------------------------------- 5.5 queries and keys of an SSM


def _pair(query, key, product=lambda A, t: _later_first(A, 1, t)):
    """U_t = query(product up to t) C_t and V_s = key(product up to s) B_s."""

    def pair(A, B, C):
        U = [query(product(A, t)) @ C[t] for t in range(len(B))]
        V = [key(product(A, s)) @ B[s] for s in range(len(B))]
        return torch.stack(U), torch.stack(V)

    return pair


def _pair_of(query, key):
    """U_t = query(A, t)^T C_t and V_s = key(A, s) B_s."""

    def pair(A, B, C):
        steps = range(len(B))
        return torch.stack([query(A, t).mT @ C[t] for t in steps]), torch.stack([key(A, s) @ B[s] for s in steps])

    return pair


def _pair_cases(randn):
    for length, state in [(1, 1), (3, 1), (3, 2), (5, 3)]:
        yield _generators(randn, length, state)
    A, B, _ = _still(randn, 4, 2)
    yield A, B, B.clone()  # U = V = B


@exercise(
    "5.5",
    "Queries and keys of a recurrence",
    claim="001:id-inverse",
    level=2,
    minutes=12,
    cases=_pair_cases,
    oracle=_pair(lambda P: P.mT, torch.linalg.inv),
    wrong={
        "your V is (A_s ... A_1)^-T B_s. M has C_t^T (A_t ... A_1)(A_s ... A_1)^-1 B_s: no transpose there": _pair(
            lambda P: P.mT, lambda P: torch.linalg.inv(P).mT
        ),
        "your U is (A_t ... A_1) C_t. The row is C_t^T (A_t ... A_1); as a vector, (A_t ... A_1)^T C_t": _pair(
            lambda P: P, torch.linalg.inv
        ),
        "your products begin with A_0. It cancels in U V^T, but the definition begins with A_1, and A_0 need "
        "not be invertible": _pair(lambda P: P.mT, torch.linalg.inv, lambda A, t: _later_first(A, 0, t)),
        "your product is A_1 A_2 ... A_t, as in the post's listing: each step must multiply on the left": _pair(
            lambda P: P.mT, torch.linalg.inv, lambda A, t: _earlier_first(A, 1, t)
        ),
        "U and V are exchanged: U holds a row for each output, made of C; V one for "
        "each input, made of B": lambda A, B, C: queries_and_keys(A, B, C)[::-1],
        "your V is (A_s ... A_1) B_s: then everything up to s acts twice. It has to be taken away from U": _pair(
            lambda P: P.mT, lambda P: P
        ),
        "your V_s stops before A_s: its product is A_s ... A_1, taken once this step's transition is in it": _pair_of(
            lambda A, t: _later_first(A, 1, t), lambda A, s: torch.linalg.inv(_later_first(A, 1, s - 1))
        ),
        "your U_t stops before A_t: its product is A_t ... A_1, taken once this step's transition is in it": _pair_of(
            lambda A, t: _later_first(A, 1, t - 1), lambda A, s: torch.linalg.inv(_later_first(A, 1, s))
        ),
        "your inverse is A_s^-1 ... A_1^-1: an inverse reverses the order of a product, A_1^-1 ... A_s^-1": _pair_of(
            lambda A, t: _later_first(A, 1, t), lambda A, s: _later_first(torch.linalg.inv(A), 1, s)
        ),
    },
)
def queries_and_keys(A, B, C):
    """U and V, (T, N) each, with M = tril(U V^T): U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s.

    Return U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s, so that M = tril(U V^T), for a general, invertible
    A.

    Hint: Write A_t ... A_(s+1) as (A_t ... A_1) times the inverse of what is too much, (A_s ... A_1).

    Hint: Keep `product = A_t ... A_1`, the identity at t = 0; each step multiplies on the LEFT. A_0 never occurs.

    Hint: As rows: `U[t] = product.mT @ C[t]`, and `V[t]` solves `product @ V[t] = B[t]`.

    Insight: The inverse grows as fast as the product decays: this is why practice works with ratios inside short
    chunks.
    """
    U, V = [], []
    product = torch.eye(B.shape[1], dtype=B.dtype)
    for t in range(len(B)):
        if t:
            product = A[t] @ product
        U.append(product.mT @ C[t])
        V.append(torch.linalg.solve(product, B[t]))
    return torch.stack(U), torch.stack(V)
