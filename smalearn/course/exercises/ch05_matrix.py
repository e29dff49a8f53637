"""The exercises of chapter 05 on the matrix of a state space model: its entries, its blocks, its generators."""

import torch

from smalearn.course.exercises.core import Exercise, Mutant, register


def _randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _generators(generator, length, state):
    """Transitions near the identity, which do not commute, and B and C."""
    A = torch.eye(state, dtype=torch.float64) + 0.4 * _randn(generator, length, state, state)
    return A, _randn(generator, length, state), _randn(generator, length, state)


def _still(generator, length, state):
    """Transitions that do nothing: every order and every range of their product is right."""
    _, B, C = _generators(generator, length, state)
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


def matrix_of(A, B, C):
    """M (T, T) with M[t, s] = C_t^T A_t ... A_(s+1) B_s for s ≤ t, and 0 above the diagonal."""
    length = len(B)
    M = torch.zeros(length, length, dtype=B.dtype)
    for s in range(length):
        h = B[s]
        M[s, s] = C[s] @ h
        for t in range(s + 1, length):
            h = A[t] @ h
            M[t, s] = C[t] @ h
    return M


def _entries(transition, above=False):
    """C_t^T transition(A, s, t) B_s, one entry after the other."""

    def matrix(A, B, C):
        M = torch.zeros(len(B), len(B), dtype=B.dtype)
        for t in range(len(B)):
            for s in range(len(B) if above else t + 1):
                M[t, s] = C[t] @ transition(A, min(s, t), max(s, t)) @ B[s]
        return M

    return matrix


def _matrix_cases(generator):
    for length, state in [(1, 1), (3, 1), (2, 2), (5, 3)]:
        yield _generators(generator, length, state)
    yield _still(generator, 1, 2)
    yield _still(generator, 4, 2)


register(
    Exercise(
        id="5.1",
        title="Unroll it",
        statement="Return the (T, T) matrix of a state space model with any A (T, N, N), B (T, N) and C (T, N).",
        oracle=_entries(lambda A, s, t: _later_first(A, s + 1, t)),
        cases=_matrix_cases,
        solution=matrix_of,
        hints=(
            "Column s is the answer to one push: 1 at time s, 0 at all others. What is the state at time s, and what "
            "happens to it at time s + 1?",
            "Begin with `h = B[s]`. At each later t the state becomes `A[t] @ h`; what one sees of it is `C[t] @ h`.",
            "`A[s]` is never used for column s: it acts on what was there before the push.",
        ),
        mutants=(
            Mutant(
                "reverse order",
                _entries(lambda A, s, t: _earlier_first(A, s + 1, t)),
                "your product is A_(s+1) ... A_t. The first transition to act stands next to B_s, the last one next to "
                "C_t: A_t ... A_(s+1), and matrices do not commute",
            ),
            Mutant(
                "A_s too",
                _entries(lambda A, s, t: _later_first(A, s, t)),
                "your product includes A_s. Input s enters after A_s has acted: the range is s < j ≤ t, and empty on "
                "the diagonal",
            ),
            Mutant(
                "without A_t",
                _entries(lambda A, s, t: _later_first(A, s + 1, t - 1)),
                "your product stops before A_t: the state is moved first and seen afterwards, so that A_t counts",
            ),
            Mutant(
                "one step late",
                _entries(lambda A, s, t: _later_first(A, s, t - 1)),
                "your product is A_(t-1) ... A_s: each transition acts one step late. The range is s < j ≤ t",
            ),
            Mutant(
                "the future too",
                _entries(lambda A, s, t: _later_first(A, s + 1, t), above=True),
                "entries above the diagonal must be 0: no output depends on a later input",
            ),
            Mutant(
                "transposed",
                lambda A, B, C: _entries(lambda A, s, t: _later_first(A, s + 1, t))(A, B, C).mT,
                "this is the transpose: rows are outputs t, columns are inputs s",
            ),
            Mutant(
                "transitions transposed",
                _entries(lambda A, s, t: _earlier_first(A, s + 1, t).mT),
                "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, `A[t] @ h`",
            ),
            Mutant(
                "B and C exchanged",
                lambda A, B, C: _entries(lambda A, s, t: _later_first(A, s + 1, t))(A, C, B),
                "B and C are exchanged: input s is written by B_s, output t is read by C_t",
            ),
            Mutant(
                "one step only",
                _entries(lambda A, s, t: A[t] if t > s else _product([], A.shape[-1])),
                "only A_t acts in your matrix: what was written at s meets every transition from s + 1 to t",
            ),
        ),
        claim="004:eq-semiseparable",
        difficulty=2,
        minutes=12,
        lines=8,
    )
)

# --------------------------------------------------------------------------------------------- 5.2 the narrow place


def through_the_state(A, B, C, k):
    """The sides (T-k, N) and (N, k) of M[k:, :k] = left @ right, split at the state after step k-1."""
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


def _sides(left, right):
    """The rows C_t^T left(A, k, t) and the columns right(A, s, k) B_s."""

    def sides(A, B, C, k):
        rows = [C[t] @ left(A, k, t) for t in range(k, len(B))]
        columns = [right(A, s, k) @ B[s] for s in range(k)]
        return torch.stack(rows), torch.stack(columns, 1)

    return sides


def _side_cases(generator):
    for length, state, k in [(2, 1, 1), (3, 2, 1), (4, 2, 3), (6, 3, 3)]:
        yield *_generators(generator, length, state), k
    yield *_still(generator, 5, 2), 2


def _after(A, k, t):
    return _later_first(A, k, t)


def _before(A, s, k):
    return _later_first(A, s + 1, k - 1)


register(
    Exercise(
        id="5.2",
        title="The narrow place",
        statement="Factor the block M[k:, :k] at the state h after step k-1: rows (T-k, N) times columns (N, k).",
        oracle=_sides(_after, _before),
        cases=_side_cases,
        solution=through_the_state,
        hints=(
            "Two questions: what is the state h after step k-1, as a sum over the inputs x_0, ..., x_(k-1)? And which "
            "rows read y_k, ..., y_(T-1) off that h, if all later inputs are 0?",
            "Column s of `right` is A_(k-1) ... A_(s+1) B_s: only transitions before k. Row t of `left` is "
            "C_t^T A_t ... A_k: all the others, each once.",
            "Build both from k outwards. Going up: `row = A[t] @ row`, then `C[t] @ row`. Going down: "
            "`column @ B[s]` first, then `column = column @ A[s]`.",
        ),
        mutants=(
            Mutant(
                "A_k on neither side",
                _sides(lambda A, k, t: _later_first(A, k + 1, t), _before),
                "A_k is on neither side: the state after step k-1 has not met it, so that it belongs to the rows",
            ),
            Mutant(
                "A_k on both sides",
                _sides(_after, lambda A, s, k: _later_first(A, s + 1, k)),
                "A_k is on both sides: each transition between s and t counts once",
            ),
            Mutant(
                "split after A_k",
                _sides(lambda A, k, t: _later_first(A, k + 1, t), lambda A, s, k: _later_first(A, s + 1, k)),
                "the product of your sides is right, but you split it at A_k h: the state after step k-1 has not met "
                "A_k yet",
            ),
            Mutant(
                "rows in reverse",
                _sides(lambda A, k, t: _earlier_first(A, k, t), _before),
                "your rows are C_t^T A_k ... A_t: A_k acts first and stands on the right",
            ),
            Mutant(
                "columns in reverse",
                _sides(_after, lambda A, s, k: _earlier_first(A, s + 1, k - 1)),
                "your columns are A_(s+1) ... A_(k-1) B_s: A_(s+1) acts first and stands next to B_s",
            ),
            Mutant(
                "A_s on the right",
                _sides(_after, lambda A, s, k: _later_first(A, s, k - 1)),
                "your columns include A_s: input s enters after A_s has acted",
            ),
        ),
        claim="004:semiseparable-rank",
        difficulty=2,
        minutes=12,
        lines=10,
    )
)

# ------------------------------------------------------------------------------------- 5.3 queries and keys of an SSM


def queries_and_keys(A, B, C):
    """U and V, (T, N) each, with M = tril(U V^T): U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s."""
    U, V = [], []
    product = torch.eye(B.shape[1], dtype=B.dtype)
    for t in range(len(B)):
        if t:
            product = A[t] @ product
        U.append(product.mT @ C[t])
        V.append(torch.linalg.solve(product, B[t]))
    return torch.stack(U), torch.stack(V)


def _pair(query, key, product=lambda A, t: _later_first(A, 1, t)):
    """U_t = query(product up to t) C_t and V_s = key(product up to s) B_s."""

    def pair(A, B, C):
        U = [query(product(A, t)) @ C[t] for t in range(len(B))]
        V = [key(product(A, s)) @ B[s] for s in range(len(B))]
        return torch.stack(U), torch.stack(V)

    return pair


def _pair_cases(generator):
    for length, state in [(1, 1), (3, 1), (3, 2), (5, 3)]:
        yield _generators(generator, length, state)
    A, B, _ = _still(generator, 4, 2)
    yield A, B, B.clone()  # U = V = B


register(
    Exercise(
        id="5.3",
        title="Queries and keys of a recurrence",
        statement="Return U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s, so that M = tril(U V^T), for a "
        "general, invertible A.",
        oracle=_pair(lambda P: P.mT, torch.linalg.inv),
        cases=_pair_cases,
        solution=queries_and_keys,
        hints=(
            "Write A_t ... A_(s+1) as (A_t ... A_1) times the inverse of what is too much, (A_s ... A_1).",
            "Keep `product = A_t ... A_1`, the identity at t = 0; each step multiplies on the LEFT. A_0 never occurs.",
            "As rows: `U[t] = product.mT @ C[t]`, and `V[t]` solves `product @ V[t] = B[t]`.",
        ),
        mutants=(
            Mutant(
                "without the transpose",
                _pair(lambda P: P.mT, lambda P: torch.linalg.inv(P).mT),
                "your V is (A_s ... A_1)^-T B_s. M has C_t^T (A_t ... A_1)(A_s ... A_1)^-1 B_s: no transpose there. "
                "(The post stacks blocks and transposes the stack: there it is needed, and lacking.)",
            ),
            Mutant(
                "queries not transposed",
                _pair(lambda P: P, torch.linalg.inv),
                "your U is (A_t ... A_1) C_t. The row is C_t^T (A_t ... A_1); as a vector, (A_t ... A_1)^T C_t",
            ),
            Mutant(
                "from A_0 on",
                _pair(lambda P: P.mT, torch.linalg.inv, lambda A, t: _later_first(A, 0, t)),
                "your products begin with A_0. It cancels in U V^T, but the definition begins with A_1, and A_0 need "
                "not be invertible",
            ),
            Mutant(
                "prod in the wrong order",
                _pair(lambda P: P.mT, torch.linalg.inv, lambda A, t: _earlier_first(A, 1, t)),
                "your product is A_1 A_2 ... A_t, as in the post's listing: each step must multiply on the left",
            ),
            Mutant(
                "U and V exchanged",
                lambda A, B, C: queries_and_keys(A, B, C)[::-1],
                "U and V are exchanged: U holds a row for each output, made of C; V one for each input, made of B",
            ),
            Mutant(
                "not inverted",
                _pair(lambda P: P.mT, lambda P: P),
                "your V is (A_s ... A_1) B_s: then everything up to s acts twice. It has to be taken away from U",
            ),
        ),
        claim="001:id-inverse",
        difficulty=2,
        minutes=12,
        lines=8,
    )
)
