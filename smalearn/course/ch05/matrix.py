"""The exercises of chapter 05 on the matrix of a state space model: its entries and its blocks."""

import torch

from smalearn.course.exercises.core import exercise


def matrix_of(A, B, C):
    """M (T, T) with M[t, s] = C_t^T A_t ... A_(s+1) B_s for s ≤ t, and 0 above the diagonal.

    Return the (T, T) matrix of a state space model with any A (T, N, N), B (T, N) and C (T, N).

    Hint: Column s is the answer to one push: 1 at time s, 0 at all others. What is the state at time s, and what
    happens to it at time s + 1?

    Hint: Begin with `h = B[s]`. At each later t the state becomes `A[t] @ h`; what one sees of it is `C[t] @ h`.

    Hint: `A[s]` is never used for column s: it acts on what was there before the push.

    Insight: All T² entries of M come from the (T - 1)·N² + 2·T·N numbers of A_1, A_2, …, of B and of C.
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


def random_model(randn, length, state):
    """Transitions near the identity, which do not commute, and B and C."""
    A = torch.eye(state, dtype=torch.float64) + 0.4 * randn(length, state, state)
    return A, randn(length, state), randn(length, state)


def still(randn, length, state):
    """Transitions that do nothing: every order and every range of their product is right."""
    _, B, C = random_model(randn, length, state)
    return torch.eye(state, dtype=torch.float64).repeat(length, 1, 1), B, C


def _matrix_cases(randn):
    for length, state in [(1, 1), (3, 1), (2, 2), (5, 3)]:
        yield random_model(randn, length, state)
    yield still(randn, 1, 2)
    yield still(randn, 4, 2)
    A, B, C = random_model(randn, 4, 2)
    A[1] = 0  # what was there before is gone
    yield A, B, C


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


def _entries(A, B, C):
    """One entry after the other."""
    M = torch.zeros(len(B), len(B), dtype=B.dtype)
    for t in range(len(B)):
        for s in range(t + 1):
            M[t, s] = C[t] @ later_first(A, s + 1, t) @ B[s]
    return M


def _running(A):
    """A_t ... A_1 for each t."""
    return torch.stack([later_first(A, 1, t) for t in range(len(A))])


exercise(
    "5.1",
    "Unroll it",
    claim="004:eq-semiseparable",
    level=2,
    minutes=12,
    cases=_matrix_cases,
    oracle=_entries,
    wrong={
        "your product is A_(s+1) ... A_t. The first transition to act stands next to B_s, the last one next to C_t: "
        "A_t ... A_(s+1), and matrices do not commute": "A[t] @ h → earlier_first(A, s + 1, t) @ B[s]",
        "this is the transpose: rows are outputs t, columns are inputs s": "return M → return M.mT",
        "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, "
        "`A[t] @ h`": "A[t] @ h → h @ A[t]",
        "B and C are exchanged: input s is written by B_s, output t is read by C_t": lambda A, B, C: matrix_of(A, C, B),
        "you divide by what has acted before s: A may be any matrices, and need have "
        "no inverse": "A[t] @ h → _running(A)[t] @ torch.linalg.solve(_running(A), B[..., None])[s, :, 0]",
        "you multiply the transitions entry by entry: A_t ... "
        "A_(s+1) is a product of matrices, `@`": "A[t] @ h → A[s + 1 : t + 1].prod(0) @ B[s]",
        "every entry of your row t has B_t: input s is written by B_s": "A[t] @ h → later_first(A, s + 1, t) @ B[t]",
        "every entry of your column s has C_s: output t is read by C_t": "C[t] @ h → C[s] @ h",
        "your diagonal is 0: input t is in the state that output t sees, C_t^T B_t": "return M → return M.tril(-1)",
        "your pushes run into each other: column s begins with B_s alone, not with what "
        "the last column left": "length = len(B) → length, h = len(B), 0 * B[0] ; h = B[s] → h = A[s] @ h + B[s]",
        "you divide by running products, and `inv` meets one that has no inverse: "
        "multiply each segment on its own": "A[t] @ h → _running(A)[t] @ torch.linalg.inv(_running(A))[s] @ B[s]",
        "you divide by running products, one after the other, and `inv` meets one that has no inverse: "
        "multiply each segment on its own": "A[t] @ h → _running(A)[t] @ torch.linalg.inv(_running(A)[s]) @ B[s]",
        "you take powers of A_t: "
        "every step has a transition of its own": "A[t] @ h → torch.linalg.matrix_power(A[t], t - s) @ B[s]",
        "you divide one running product by another: a transition that cannot be inverted stays in both. "
        "Multiply each segment on its own": "h = B[s] → h = _running(A)[s] @ torch.linalg.pinv(_running(A)[s]) @ B[s]",
    },
)(matrix_of)


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


def _side_cases(randn):
    for length, state, k in [(2, 1, 1), (3, 2, 1), (4, 2, 3), (6, 3, 3)]:
        yield *random_model(randn, length, state), k
    yield *still(randn, 5, 2), 2


def _sides(A, B, C, k):
    """One row and one column after the other."""
    rows = [C[t] @ later_first(A, k, t) for t in range(k, len(B))]
    columns = [later_first(A, s + 1, k - 1) @ B[s] for s in range(k)]
    return torch.stack(rows), torch.stack(columns, 1)


exercise(
    "5.2",
    "The bottleneck",
    claim="004:semiseparable-rank",
    level=2,
    minutes=12,
    cases=_side_cases,
    oracle=_sides,
    wrong={
        "A_k is on neither side: the state after step k-1 has not met it, "
        "so that it belongs to the rows": "row = A[t] @ row → row = A[t] @ row if t > k else row",
        "A_k is on both sides: each transition between s and t counts once": "column @ B[s] → A[k] @ column @ B[s]",
        "the product of your sides is right, but you split it at A_k h: the state after step k-1 has not "
        "met A_k yet": "row = A[t] @ row → row = A[t] @ row if t > k else row ; column @ B[s] → A[k] @ column @ B[s]",
        "your rows are C_t^T A_k ... A_t: A_k acts first and stands on the right": "A[t] @ row → row @ A[t]",
        "your columns are A_(s+1) ... A_(k-1) B_s: "
        "A_(s+1) acts first and stands next to B_s": "column @ A[s] → A[s] @ column",
        "your columns include A_s: input s enters after A_s has acted": "column @ B[s] → column @ A[s] @ B[s]",
        "your right side has a column for input k, too: the block M[k:, :k] ends at the "
        "state before it": "row = A[t] @ row → row = A[t] @ row if t > k else row ; range(k - 1, → range(k,",
        "B and C have changed places: output t is read by C_t, input s is written by B_s": "C[t] → B[t] ; B[s] → C[s]",
        "the transitions of your rows are transposed: row t is C_t^T A_t ... A_k": "A[t] → A[t].mT",
        "the transitions of your columns are transposed: `B[s] @ A[t]` is A_t^T B_s. A state is a column, "
        "`A[t] @ h`": "A[s] → A[s].mT",
        "your left side begins with y_(k+1): "
        "its first row is for y_k, C_k^T A_k": "torch.stack(left) → torch.stack(left)[1:]",
        "your rows have A_t alone: A_(t-1) ... A_k is missing": "A[t] @ row → A[t]",
        "your rows take powers of A_k: every step has a transition of its own": "A[t] → A[k]",
    },
)(through_the_state)
