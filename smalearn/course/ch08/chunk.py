"""The exercise of chapter 08 on a whole chunk of the delta rule."""

import torch

from smalearn.course.ch08.delta import delta_step, even_keys, quarters
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# ------------------------------------------------------------------------------------------------------ 8.4 a chunk


def _chunk_loop(Q, K, V, beta, state):
    rows = []
    for q, k, v, b in zip(*(x.unbind(-2) for x in (Q, K, V)), beta.unbind(-1), strict=True):
        y, state = delta_step(q, k, v, b, state)
        rows.append(y)
    return torch.stack(rows, -2), state


def _chunked(solved=None, scores=None, came=None, new=None, told=True):
    """A chunk with other corrected values, scores, reading of the state, or new state; or not told what came in."""
    scores = scores or (lambda Q, K: (Q @ K.mT).tril())
    came = came or (lambda Q, K, state, after: Q @ state.mT)
    new = new or (lambda state, U, K: state + U.mT @ K)

    def wrong(Q, K, V, beta, state):
        B, one = beta[..., None], torch.eye(K.shape[-2], dtype=K.dtype)
        known = K @ state.mT if told else 0
        A = (B * (K @ K.mT)).tril(-1)
        U = torch.linalg.solve(one + A, B * (V - known)) if solved is None else solved(A, B, V, known, one)
        after = new(state, U, K)
        return scores(Q, K) @ U + came(Q, K, state, after), after

    return wrong


def _solving(matrix, **how):
    """A chunk whose system is given to `solve_triangular` with another matrix, or told otherwise about it."""
    how = {"upper": False, "unitriangular": True} | how

    def wrong(Q, K, V, beta, state):
        right = beta[..., None] * (V - K @ state.mT)
        U = torch.linalg.solve_triangular(matrix(Q, K, beta), right, **how)
        return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K

    return wrong


def _matrix(Q, K, beta):
    return beta[..., None] * (K @ K.mT)


def _powers(A, B, V, known, one):
    """The series of the inverse, by doubling."""
    U, power = B * (V - known), -A
    for _ in range((len(one) - 1).bit_length()):
        U, power = U + power @ U, power @ power
    return U


def _values_in_the_state(Q, K, V, beta, state):
    Y, _ = _chunk_loop(Q, K, V, beta, state)
    return Y, state + (beta[..., None] * V).mT @ K


def _old_state(Q, K, V, beta, state):
    return _chunk_loop(Q, K, V, beta, state)[0], state + 0


def _new_from_zero(Q, K, V, beta, state):
    Y, new = _chunk_loop(Q, K, V, beta, state)
    return Y, new - state


def _chunk(randn, leading, T, P, N):
    K = torch.nn.functional.normalize(randn(*leading, T, N), dim=-1)
    beta = torch.sigmoid(randn(*leading, T))
    return randn(*leading, T, N), K, randn(*leading, T, P), beta, randn(*leading, P, N)


def _chunk_cases(randn):
    for leading, *sizes in [((), 1, 1, 1), ((), 2, 1, 2), ((), 4, 2, 3), ((2,), 40, 3, 2), ((2, 2), 6, 2, 4)]:
        yield _chunk(randn, leading, *sizes)
    Q, K, V, beta, state = _chunk(randn, (), 32, 2, 3)
    yield Q, K[:1].expand_as(K).clone(), V, 1.9 + 0 * beta, state  # one key again and again: powers of A reach 10^14
    beta = torch.tensor([0.25, 0.75, 0.5])  # in float32, as later cells have it
    yield quarters(randn, 3, 4), even_keys(randn, 3), quarters(randn, 3, 2), beta, quarters(randn, 2, 4)


@exercise(
    "8.4",
    "A whole chunk at once",
    claim="005:chunks",
    level=2,
    minutes=15,
    cases=_chunk_cases,
    gradient=("Q", "K", "V", "beta"),
    oracle=_chunk_loop,
    way=Way(case=lambda randn, length: _chunk(randn, (2,), length, 2, 3), memory=2, loops=0),
    wrong={
        "your values are not corrected by what came in: subtract K state^T before you solve": _chunked(told=False),
        "Y does not read what came in: add Q state^T": _chunked(came=lambda Q, K, state, after: 0),
        "nothing is solved: the tokens of a chunk must correct each other too": _chunked(
            lambda A, B, V, known, one: B * (V - known)
        ),
        "you subtract A R once, the first term of a series: solve (I + A) U = R": _chunked(
            lambda A, B, V, known, one: B * (V - known) - A @ (B * (V - known))
        ),
        "you add up powers of A: where keys are alike they reach 10^14 and cancel, and the digits are lost. Solve": (
            _chunked(_powers)
        ),
        "A's own diagonal, β, stays in your I + A: keep only what is below it": _solving(
            lambda Q, K, beta: torch.eye(K.shape[-2], dtype=K.dtype) + _matrix(Q, K, beta).tril(), unitriangular=False
        ),
        "β is missing in the matrix: row t of A is β_t times k_t · k_s": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A / B, B * (V - known))
        ),
        "β is missing on the right-hand side": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A, V - known)
        ),
        "β belongs to the row of A, to the token that writes the correction; yours multiplies the columns": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A / B * B.mT, B * (V - known))
        ),
        "your matrix has a minus: U + A U = β (V − …)": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one - A, B * (V - known))
        ),
        "your rows see tokens after their own: the scores need `.tril()`": _chunked(scores=lambda Q, K: Q @ K.mT),
        "your scores leave out the token itself: t reads what it has just written": _chunked(
            scores=lambda Q, K: (Q @ K.mT).tril(-1)
        ),
        "you use K K^T for the reading too: the queries read": _chunked(scores=lambda Q, K: (K @ K.mT).tril()),
        "your scores are K Q^T: row t belongs to query t, Q K^T": _chunked(scores=lambda Q, K: (K @ Q.mT).tril()),
        "you read what came in with K: the queries read": _chunked(came=lambda Q, K, state, after: K @ state.mT),
        "you read the new state where the old one stands, so that the chunk counts twice: Q state^T": _chunked(
            came=lambda Q, K, state, after: Q @ after.mT
        ),
        "β is missing before K state^T: it multiplies the whole difference V − K state^T": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A, B * V - known)
        ),
        "you correct by Q state^T: a value is corrected by what the state says under its KEY, K state^T": (
            lambda Q, K, V, beta, state: _chunked()(Q, K, V + (K - Q) @ state.mT, beta, state)
        ),
        "K state^T is subtracted after the solve: it belongs to the right-hand side, under β": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A, B * V) - known
        ),
        "you add what the state says to the values: subtract it": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A, B * (V + known))
        ),
        "you solve without I: its ones are the diagonal, `unitriangular=True`": _solving(_matrix, unitriangular=False),
        "you solve from the other end: a token is corrected by those before it, below the diagonal": _solving(
            lambda Q, K, beta: _matrix(Q, K, beta).mT, upper=True
        ),
        "you solve with what lies above the diagonal: a token is corrected by those before it": _solving(
            _matrix, upper=True
        ),
        "your matrix compares queries with keys: what a token corrects is what the memory says under its KEY": (
            _solving(lambda Q, K, beta: beta[..., None] * (Q @ K.mT))
        ),
        "β lacks an axis, so that it multiplies columns: `beta[..., None]` puts β_t on row t": _solving(
            lambda Q, K, beta: beta * (K @ K.mT)
        ),
        "you add K^T U, (N, P), to the state: it is (P, N), so U^T K": _chunked(
            new=lambda state, U, K: state + K.mT @ U
        ),
        "your queries read the values as they come: the scores weigh the corrected ones, U": lambda *given: (
            (given[0] @ given[1].mT).tril() @ given[2] + given[0] @ given[-1].mT,
            _chunk_loop(*given)[1],
        ),
        "your scores are divided by √N, as before a softmax: here they are q · k": _chunked(
            scores=lambda Q, K: (Q @ K.mT).tril() / K.shape[-1] ** 0.5
        ),
        "your scores have a softmax: a memory that is read by a product has none": _chunked(
            scores=lambda Q, K: (
                (Q @ K.mT).masked_fill(torch.ones(2 * [K.shape[-2]]).triu(1).bool(), -torch.inf).softmax(-1)
            )
        ),
        "your new state stores the values as they come: it must store the corrected ones, U": lambda *given: (
            _chunk_loop(*given)[0],
            given[-1] + given[2].mT @ given[1],
        ),
        "your new state stores β V: it must store the corrected values, U": _values_in_the_state,
        "your new state is the old one: add U^T K": _old_state,
        "your new state has lost what came in: add to the old one": _new_from_zero,
    },
)
def delta_chunk(Q, K, V, beta, state):
    """Y (..., c, P) of a chunk and the state after it (..., P, N).

    Compute all tokens of a chunk at once, from the state before it, without a loop over them. Q and K are (..., c, N),
    V (..., c, P), beta (..., c). `torch.linalg.solve_triangular(A, R, upper=False, unitriangular=True)` solves your
    system of 8.3 for any leading axes; of A it reads only what is below the diagonal.

    Hint: Corrected values U solve (I + A) U = β ∘ (V − K state^T), with A[t, s] = β_t k_t · k_s below the diagonal.

    Hint: With U known the rest is linear attention: Y = tril(Q K^T) U + Q state^T.

    Hint: `beta[..., None]` puts β on rows, and `K @ K.mT` has all k_t · k_s. What does each corrected value write, and
    under which key?

    Insight: One solve has turned the delta rule into chapter 03's chunk. All that is new is which values are written.
    """
    B = beta[..., None]
    A = B * (K @ K.mT)
    U = torch.linalg.solve_triangular(A, B * (V - K @ state.mT), upper=False, unitriangular=True)
    return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K
