"""The exercises of chapter 08 about the rule: half a correction, a step, its solve, a chunk."""

import itertools

import torch

from smalearn.course.exercises.core import exercise

# ------------------------------------------------------------------------------------------- 8.1 half a change of mind


@exercise(
    "8.1",
    "Half a change of mind",
    claim="005:rule",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=1e-3,
    oracle=lambda: 5.0,
    wrong={
        "this is 4 + 3, half of each value, as an additive memory would store them": lambda: 7.0,
        "this takes the second value whole: with β = ½ only half of the difference is written": lambda: 6.0,
        "this is what it says after the first writing; the second moves it on": lambda: 4.0,
        "this is half of the second value alone: the first is still there, and only half of the way is gone": lambda: (
            3.0
        ),
    },
)
def answer():
    """What the memory answers at the end.

    An empty memory is written twice under one key k of norm 1, with β = ½: first the value 8, then the value 6. What
    does it answer, H k?

    Hint: Before the first writing it says 0. The difference is 8, and half of it is written.

    Hint: Before the second writing it says 4. The difference to 6 is 2.

    Insight: β is a learning rate: the memory moves by this part of the way from what it says to what it should say.
    """
    return 5.0


# --------------------------------------------------------------------------------------- 8.2 read, compare, write, read


def _loop(q, k, v, beta, state):
    """One entry after the other, over all leading axes."""
    (*leading, P, N), new = state.shape, state.clone()
    y = torch.zeros(*leading, P, dtype=state.dtype)
    for at in itertools.product(*map(range, leading)):
        for p in range(P):
            says = sum(state[(*at, p, n)] * k[(*at, n)] for n in range(N))
            for n in range(N):
                new[(*at, p, n)] += beta[at] * (v[(*at, p)] - says) * k[(*at, n)]
            y[(*at, p)] = sum(new[(*at, p, n)] * q[(*at, n)] for n in range(N))
    return y, new


def _outer(v, k):
    return v[..., :, None] * k[..., None, :]


def _read(state, k):
    return (state * k[..., None, :]).sum(-1)


def _stepped(written, read_old=False):
    """A step that writes `written(q, k, v, beta, state)` under k."""

    def wrong(q, k, v, beta, state):
        new = state + _outer(written(q, k, v, beta[..., None], state), k)
        return _read(state if read_old else new, q), new

    return wrong


def _right(q, k, v, beta, state):
    return beta * (v - _read(state, k))


def _under_query(q, k, v, beta, state):
    new = state + _outer(_right(q, k, v, beta[..., None], state), q)
    return _read(new, q), new


def _faded(q, k, v, beta, state):
    """The whole state fades where one direction should."""
    beta = beta[..., None, None]
    new = (1 - beta) * state + beta * _outer(v, k)
    return _read(new, q), new


def _step_cases(randn):
    for leading, P, N in [((), 1, 1), ((), 2, 1), ((), 1, 3), ((2,), 2, 3), ((2, 3), 3, 2)]:
        k = torch.nn.functional.normalize(randn(*leading, N), dim=-1)
        yield (
            randn(*leading, N),
            k,
            randn(*leading, P),
            torch.sigmoid(randn(*leading, 1)[..., 0]),
            randn(*leading, P, N),
        )


@exercise(
    "8.2",
    "Read, then write the difference",
    claim="005:rule",
    level=1,
    minutes=8,
    cases=_step_cases,
    oracle=_loop,
    wrong={
        "you write the value itself, an additive memory: read with k first, and write what is missing": _stepped(
            lambda q, k, v, beta, state: v
        ),
        "you write β v and take nothing away: what the memory says under k has to go": _stepped(
            lambda q, k, v, beta, state: beta * v
        ),
        "you take away all of what the memory says, and only β of v: β stands before the whole difference": _stepped(
            lambda q, k, v, beta, state: beta * v - _read(state, k)
        ),
        "you write v and take away β of what is there: β stands before the whole difference": _stepped(
            lambda q, k, v, beta, state: v - beta * _read(state, k)
        ),
        "β is missing: it says how much of the difference is written": _stepped(
            lambda q, k, v, beta, state: v - _read(state, k)
        ),
        "the difference has the wrong sign: your memory runs away from the value": _stepped(
            lambda q, k, v, beta, state: beta * (_read(state, k) - v)
        ),
        "you compare with what the QUERY reads: the memory is asked with the key that it will write under": _stepped(
            lambda q, k, v, beta, state: beta * (v - _read(state, q))
        ),
        "y is read before the writing: the new state answers": _stepped(_right, read_old=True),
        "you write under the query: the key says where": _under_query,
        "you let the whole state fade: only what lies along k is replaced, all other keys keep their values": _faded,
        "you apply β twice": _stepped(lambda q, k, v, beta, state: beta**2 * (v - _read(state, k))),
    },
)
def delta_step(q, k, v, beta, state):
    """One token: y (..., P), read with q from the new state, and the new state (..., P, N).

    Read the state with the key, take the difference to the value, write β of it under the key; then answer the query.
    Keys k (..., N) have norm 1, values v (..., P), β (...) is between 0 and 1.

    Hint: What does the state say under k? `(state * k[..., None, :]).sum(-1)` is H k, with any axes before it.

    Hint: The difference u = β (v − H k) is (..., P). It is written as every value is: u k^T, with
    `u[..., :, None] * k[..., None, :]`.

    Insight: The rule is a step of gradient descent on ½‖H k − v‖², with rate β. The layer learns while it reads.
    """
    u = beta[..., None] * (v - (state * k[..., None, :]).sum(-1))
    state = state + u[..., :, None] * k[..., None, :]
    return (state * q[..., None, :]).sum(-1), state


# ----------------------------------------------------------------------------------------------- 8.3 one row at a time


def _substituted(A, R):
    """One number after the other."""
    U = torch.zeros_like(R)
    for t in range(len(R)):
        for p in range(R.shape[1]):
            U[t, p] = R[t, p] - sum(A[t, s] * U[s, p] for s in range(t))
    return U


def _system_cases(randn):
    for T, P in [(1, 1), (2, 1), (3, 2), (6, 3), (9, 2)]:
        yield randn(T, T).tril(-1), randn(T, P)


def _uncorrected(A, R):
    return R - A @ R


@exercise(
    "8.3",
    "One row at a time",
    claim="005:identity",
    level=2,
    minutes=10,
    cases=_system_cases,
    oracle=_substituted,
    wrong={
        "you subtract A R: later rows need row s of U, corrected, not R[s]; go row by row": _uncorrected,
        "you multiply by I + A: it has to be undone": lambda A, R: R + A @ R,
        "the sign: (I + A) U = R gives U[t] = R[t] MINUS the sum": lambda A, R: _substituted(-A, R),
        "you return R: with A = 0 that is right, but keys do meet": lambda A, R: R + 0,
        "you used the transpose of A: row t of A says which earlier corrections token t has to subtract": lambda A, R: (
            torch.linalg.solve(torch.eye(len(A), dtype=A.dtype) + A.mT, R)
        ),
        "this is A alone inverted, without I": lambda A, R: torch.linalg.pinv(A) @ R,
        "you stop after two terms of the series I − A + A²: it goes on to A^(T−1)": lambda A, R: R - A @ R + A @ A @ R,
        "you subtract the sum over all rows up to s, not weighted by A": lambda A, R: (
            R - torch.cat([0 * R[:1], R.cumsum(0)[:-1]])
        ),
    },
)
def substitute(A, R):
    """The solution U (T, P) of (I + A) U = R, where A (T, T) has entries only below its diagonal.

    Solve it by forward substitution: one row of U after the other. R is (T, P).

    Hint: Row t of (I + A) U is U[t] plus the sum of A[t, s] U[s] over s < t. All these U[s] are known by then.

    Hint: Keep the rows in a list, so that gradients flow: `U.append(R[t] - sum(A[t, s] * U[s] for s in range(t)))`,
    and `torch.stack` at the end.

    Insight: That is the recurrence of the memory itself, seen from inside the matrix: each value is corrected by what
    the earlier corrected ones have written.
    """
    U = []
    for t in range(len(R)):
        U.append(R[t] - sum(A[t, s] * U[s] for s in range(t)))
    return torch.stack(U)


# ------------------------------------------------------------------------------------------------------ 8.4 a chunk


def _chunk_loop(Q, K, V, beta, state):
    rows = []
    for q, k, v, b in zip(*(x.unbind(-2) for x in (Q, K, V)), beta.unbind(-1), strict=True):
        y, state = delta_step(q, k, v, b, state)
        rows.append(y)
    return torch.stack(rows, -2), state


def _chunked(solved=None, scores=None, read=True, told=True):
    """A chunk with another solve, other scores, without reading what came in, or without what came in as told."""

    def wrong(Q, K, V, beta, state):
        B, one = beta[..., None], torch.eye(K.shape[-2], dtype=K.dtype)
        known = K @ state.mT if told else 0
        A = (B * (K @ K.mT)).tril(-1)
        U = torch.linalg.solve(one + A, B * (V - known)) if solved is None else solved(A, B, V, known, one)
        S = (Q @ K.mT).tril() if scores is None else scores(Q, K)
        return S @ U + (Q @ state.mT if read else 0), state + U.mT @ K

    return wrong


def _values_in_the_state(Q, K, V, beta, state):
    Y, _ = _chunk_loop(Q, K, V, beta, state)
    return Y, state + (beta[..., None] * V).mT @ K


def _old_state(Q, K, V, beta, state):
    return _chunk_loop(Q, K, V, beta, state)[0], state + 0


def _new_from_zero(Q, K, V, beta, state):
    Y, new = _chunk_loop(Q, K, V, beta, state)
    return Y, new - state


def _chunk_cases(randn):
    for leading, T, P, N in [((), 1, 1, 1), ((), 2, 1, 2), ((), 4, 2, 3), ((2,), 5, 3, 2), ((2, 2), 6, 2, 4)]:
        K = torch.nn.functional.normalize(randn(*leading, T, N), dim=-1)
        beta = torch.sigmoid(randn(*leading, T))
        yield randn(*leading, T, N), K, randn(*leading, T, P), beta, randn(*leading, P, N)


@exercise(
    "8.4",
    "A whole chunk at once",
    claim="005:chunks",
    level=3,
    minutes=15,
    cases=_chunk_cases,
    oracle=_chunk_loop,
    wrong={
        "your values are not corrected by what came in: subtract K state^T before you solve": _chunked(told=False),
        "Y does not read what came in: add Q state^T": _chunked(read=False),
        "nothing is solved: the tokens of a chunk must correct each other too": _chunked(
            lambda A, B, V, known, one: B * (V - known)
        ),
        "β is missing in the matrix: row t of A is β_t times k_t · k_s": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A / B, B * (V - known))
        ),
        "β is missing on the right-hand side": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A, V - known)
        ),
        "β belongs to the row of A, the token that corrects itself; yours multiplies the columns": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one + A / B * B.mT, B * (V - known))
        ),
        "your matrix has a minus: U + A U = β (V − …)": _chunked(
            lambda A, B, V, known, one: torch.linalg.solve(one - A, B * (V - known))
        ),
        "your scores see the tokens after t: `.tril()`": _chunked(scores=lambda Q, K: Q @ K.mT),
        "your scores leave out the token itself: t reads what it has just written": _chunked(
            scores=lambda Q, K: (Q @ K.mT).tril(-1)
        ),
        "you use K K^T for the reading too: the queries read": _chunked(scores=lambda Q, K: (K @ K.mT).tril()),
        "your new state stores the values: it must store the corrected ones, U": _values_in_the_state,
        "your new state is the old one: add U^T K": _old_state,
        "your new state has lost what came in: add to the old one": _new_from_zero,
    },
)
def delta_chunk(Q, K, V, beta, state):
    """Y (..., c, P) of a chunk and the state after it (..., P, N).

    Compute all tokens of a chunk at once, from the state before it. Q and K are (..., c, N), V (..., c, P), beta
    (..., c). `torch.linalg.solve_triangular(A, R, upper=False, unitriangular=True)` solves your system of 8.3 for any
    leading axes; of A it reads only what is below the diagonal.

    Hint: Corrected values U solve (I + A) U = β ∘ (V − K state^T), with A[t, s] = β_t k_t · k_s below the diagonal.

    Hint: With U known the rest is linear attention: Y = tril(Q K^T) U + Q state^T.

    Hint: The new state is `state + U.mT @ K`, and `B = beta[..., None]` puts β on rows.

    Insight: One solve has turned the delta rule into chapter 03's chunk. All that is new is which values are written.
    """
    B = beta[..., None]
    A = B * (K @ K.mT)
    U = torch.linalg.solve_triangular(A, B * (V - K @ state.mT), upper=False, unitriangular=True)
    return (Q @ K.mT).tril() @ U + Q @ state.mT, state + U.mT @ K
