"""The exercises of chapter 05 on the matrix of a state space model: its entries and its blocks."""

import torch

from smalearn.course.exercises.core import exercise


def random_model(randn, length, state):
    """Transitions near the identity, which do not commute, and B and C."""
    A = torch.eye(state, dtype=torch.float64) + 0.4 * randn(length, state, state)
    return A, randn(length, state), randn(length, state)


def still(randn, length, state):
    """Transitions that do nothing: every order and every range of their product is right."""
    _, B, C = random_model(randn, length, state)
    return torch.eye(state, dtype=torch.float64).repeat(length, 1, 1), B, C


def _product(matrices, state):
    """Multiply matrices in the given order; the identity if there are none."""
    result = torch.eye(state, dtype=torch.float64)
    for matrix in matrices:
        result = result @ matrix
    return result


def later_first(A, first, last):
    """A_last ... A_first."""
    return _product([A[j] for j in range(last, first - 1, -1)], A.shape[-1])


def earlier_first(A, first, last):
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


def _by_inverses(A, B, C):
    """With A_t ... A_(s+1) as a product from the beginning, over another."""
    products = torch.stack([later_first(A, 1, t) for t in range(len(B))])
    U, V = (products.mT @ C[..., None])[..., 0], torch.linalg.solve(products, B[..., None])[..., 0]
    return (U @ V.mT).tril()


def _not_reset(A, B, C):
    """The state of each push goes on into the next."""
    M, h = torch.zeros(len(B), len(B), dtype=B.dtype), torch.zeros_like(B[0])
    for s in range(len(B)):
        for t in range(s, len(B)):
            h = A[t] @ h + (B[s] if t == s else 0)
            M[t, s] = C[t] @ h
    return M


def _running(A):
    """A_t ... A_1 for each t."""
    return torch.stack([later_first(A, 1, t) for t in range(len(A))])


def _quotients(A, B, C, inverses):
    return torch.einsum("tn,tnm,smk,sk->ts", C, _running(A), inverses, B).tril()


def _matrix_cases(randn):
    for length, state in [(1, 1), (3, 1), (2, 2), (5, 3)]:
        yield random_model(randn, length, state)
    yield still(randn, 1, 2)
    yield still(randn, 4, 2)
    A, B, C = random_model(randn, 4, 2)
    A[1] = 0  # what was there before is gone
    yield A, B, C


@exercise(
    "5.1",
    "Unroll it",
    claim="004:eq-semiseparable",
    level=2,
    minutes=12,
    cases=_matrix_cases,
    oracle=_entries(lambda A, s, t: later_first(A, s + 1, t)),
    wrong={
        "your product is A_(s+1) ... A_t. The first transition to act stands next to B_s, the last one next to "
        "C_t: A_t ... A_(s+1), and matrices do not commute": _entries(lambda A, s, t: earlier_first(A, s + 1, t)),
        "your product includes A_s. Input s enters after A_s has acted: the range is s < j ≤ t, and empty on "
        "the diagonal": _entries(lambda A, s, t: later_first(A, s, t)),
        "your product stops before A_t: the state is moved first and seen afterwards, so that A_t counts": _entries(
            lambda A, s, t: later_first(A, s + 1, t - 1)
        ),
        "your product is A_(t-1) ... A_s: each transition acts one step late. The range is s < j ≤ t": _entries(
            lambda A, s, t: later_first(A, s, t - 1)
        ),
        "entries above the diagonal must be 0: no output depends on a later input": _entries(
            lambda A, s, t: later_first(A, s + 1, t), above=True
        ),
        "this is the transpose: rows are outputs t, columns are inputs s": lambda A, B, C: (
            _entries(lambda A, s, t: later_first(A, s + 1, t))(A, B, C).mT
        ),
        "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, `A[t] @ h`": _entries(
            lambda A, s, t: earlier_first(A, s + 1, t).mT
        ),
        "B and C are exchanged: input s is written by B_s, output t is read by C_t": lambda A, B, C: _entries(
            lambda A, s, t: later_first(A, s + 1, t)
        )(A, C, B),
        "you divide by what has acted before s: A may be any matrices, and need have no inverse": _by_inverses,
        "only A_t acts in your matrix: what was written at s meets every transition from s + 1 to t": _entries(
            lambda A, s, t: A[t] if t > s else _product([], A.shape[-1])
        ),
        "in your product only the diagonals of the transitions count: A_t ... A_(s+1) is a product of matrices, "
        "`@`": _entries(lambda A, s, t: torch.eye(A.shape[-1], dtype=A.dtype) * A[s + 1 : t + 1].prod(0)),
        "you multiply the transitions entry by entry: A_t ... A_(s+1) is a product of matrices, `@`": _entries(
            lambda A, s, t: A[s + 1 : t + 1].prod(0) if t > s else _product([], A.shape[-1])
        ),
        "every entry of your row t has B_t: input s is written by B_s": lambda A, B, C: torch.stack(
            [matrix_of(A, B[t].expand_as(B), C)[t] for t in range(len(B))]
        ),
        "every entry of your column s has C_s: output t is read by C_t": lambda A, B, C: torch.stack(
            [matrix_of(A, B, C[s].expand_as(C))[:, s] for s in range(len(B))], 1
        ),
        "your diagonal is 0: input t is in the state that output t sees, C_t^T B_t": lambda A, B, C: matrix_of(
            A, B, C
        ).tril(-1),
        "your pushes run into each other: column s begins with B_s alone, not with what the last column left": (
            _not_reset
        ),
        "you divide by running products, and `inv` meets one that has no inverse: multiply each segment on its own": (
            lambda A, B, C: _quotients(A, B, C, torch.linalg.inv(_running(A)))
        ),
        "you divide by running products, one after the other, and `inv` meets one that has no inverse: multiply each "
        "segment on its own": (
            lambda A, B, C: _quotients(A, B, C, torch.stack([torch.linalg.inv(P) for P in _running(A)]))
        ),
        "you take powers of A_t: every step has a transition of its own": _entries(
            lambda A, s, t: torch.linalg.matrix_power(A[t], t - s)
        ),
        "you divide one running product by another: a transition that cannot be inverted stays in both. Multiply each "
        "segment on its own": _entries(lambda A, s, t: later_first(A, 1, t) @ torch.linalg.pinv(later_first(A, 1, s))),
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
        yield *random_model(randn, length, state), k
    yield *still(randn, 5, 2), 2


def _after(A, k, t):
    return later_first(A, k, t)


def _before(A, s, k):
    return later_first(A, s + 1, k - 1)


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
            lambda A, k, t: later_first(A, k + 1, t), _before
        ),
        "A_k is on both sides: each transition between s and t counts once": _sides(
            _after, lambda A, s, k: later_first(A, s + 1, k)
        ),
        "the product of your sides is right, but you split it at A_k h: the state after step k-1 has not met "
        "A_k yet": _sides(lambda A, k, t: later_first(A, k + 1, t), lambda A, s, k: later_first(A, s + 1, k)),
        "your rows are C_t^T A_k ... A_t: A_k acts first and stands on the right": _sides(
            lambda A, k, t: earlier_first(A, k, t), _before
        ),
        "your columns are A_(s+1) ... A_(k-1) B_s: A_(s+1) acts first and stands next to B_s": _sides(
            _after, lambda A, s, k: earlier_first(A, s + 1, k - 1)
        ),
        "your columns include A_s: input s enters after A_s has acted": _sides(
            _after, lambda A, s, k: later_first(A, s, k - 1)
        ),
        "your right side has a column for input k, too: the block M[k:, :k] ends at the state before it": (
            lambda A, B, C, k: (
                _sides(lambda A, k, t: later_first(A, k + 1, t), _before)(A, B, C, k)[0],
                _sides(_after, _before)(*(torch.cat([x, x[:1]]) for x in (A, B, C)), k + 1)[1],
            )
        ),
        "your rows have B where C belongs: output t is read by C_t": lambda A, B, C, k: (
            _sides(_after, _before)(A, B, B, k)[0],
            _sides(_after, _before)(A, B, C, k)[1],
        ),
        "your columns have C where B belongs: input s is written by B_s": lambda A, B, C, k: (
            _sides(_after, _before)(A, B, C, k)[0],
            _sides(_after, _before)(A, C, C, k)[1],
        ),
        "the transitions of your rows are transposed: row t is C_t^T A_t ... A_k": _sides(
            lambda A, k, t: _after(A.mT, k, t), _before
        ),
        "the transitions of your columns are transposed: `B[s] @ A[t]` is A_t^T B_s. A state is a column, `A[t] @ h`": (
            _sides(_after, lambda A, s, k: _before(A.mT, s, k))
        ),
        "your right side is B alone: what was written at s still meets A_(s+1) ... A_(k-1)": (
            lambda A, B, C, k: (_sides(_after, _before)(A, B, C, k)[0], B[:k].mT)
        ),
        "your left side begins with y_(k+1): its first row is for y_k, C_k^T A_k": lambda A, B, C, k: (
            _sides(_after, _before)(A, B, C, k)[0][1:],
            _sides(_after, _before)(A, B, C, k)[1],
        ),
        "your columns stop before A_(k-1): the state after step k-1 has met it": _sides(
            _after, lambda A, s, k: later_first(A, s + 1, k - 2)
        ),
        "your rows have A_t alone: A_(t-1) ... A_k is missing": _sides(lambda A, k, t: A[t], _before),
        "your rows take powers of A_k: every step has a transition of its own": _sides(
            lambda A, k, t: torch.linalg.matrix_power(A[k], t - k + 1), _before
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

    Hint: Build both from k outwards, with a product that is the identity at first. Going up from t = k: `after = A[t] @
    after`, then `C[t] @ after`. Going down from s = k-1: `before @ B[s]` first, then `before = before @ A[s]`.

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
