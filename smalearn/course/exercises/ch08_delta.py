"""The exercises of chapter 08: the correction, its solve, a chunk, the product that stays short, a state that swaps."""

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
        "this is 4 + 2, half of each value, as an additive memory would store them": lambda: 6.0,
        "this takes the second value whole: with β = ½ only half of the difference is written": lambda: 4.0,
        "this is 4.5: it says 4 after the first writing, and then goes half of the way to 6": lambda: 4.5,
        "the second difference is 6 − 4 = 2, and half of it is added to 4": lambda: 3.0,
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


# ------------------------------------------------------------------------------------ 8.5 a product that stays short


def _last_row(W, K, k, b):
    """From the product itself: what is missing is a multiple of k."""
    one = torch.eye(len(k), dtype=k.dtype)
    product = (one - W.mT @ K) @ (one - b * torch.outer(k, k))
    return ((one - W.mT @ K) - product) @ k / (k @ k)


def _short_cases(randn):
    for count, N in [(0, 1), (1, 2), (2, 3), (4, 3), (6, 5)]:
        unit = torch.nn.functional.normalize(randn(count + 1, N), dim=-1)
        K, k, W = unit[:-1], unit[-1], torch.zeros(0, N, dtype=torch.float64)
        for at, (key, b) in enumerate(zip(K, torch.sigmoid(randn(count)), strict=True)):
            W = torch.cat([W, _last_row(W, K[:at], key, b)[None]])
        yield W, K, k, torch.sigmoid(randn(1))[0]


@exercise(
    "8.5",
    "A product that stays short",
    claim="005:wy",
    kind="prove",
    level=2,
    minutes=10,
    cases=_short_cases,
    oracle=_last_row,
    wrong={
        "this is right for the first factor alone: multiply out, and a term with W is left": lambda W, K, k, b: b * k,
        "β is missing: each term has one": lambda W, K, k, b: k - W.mT @ (K @ k),
        "the sign of the second term: (−W^T K)(−β k k^T) is a plus, and w stands behind a minus": lambda W, K, k, b: (
            b * (k + W.mT @ (K @ k))
        ),
        "you took K^T W for W^T K": lambda W, K, k, b: b * (k - K.mT @ (W @ k)),
        "you took K^T K for W^T K": lambda W, K, k, b: b * (k - K.mT @ (K @ k)),
        "β stands before both terms": lambda W, K, k, b: b * k - W.mT @ (K @ k),
        "the first term of the product is missing": lambda W, K, k, b: -b * (W.mT @ (K @ k)),
        "both terms are there with β, but the second one twice": lambda W, K, k, b: b * (k - 2 * W.mT @ (K @ k)),
    },
)
def last_row(W, K, k, beta):
    """The row w (N,) that one more factor adds to W (t, N), where K (t, N) holds the keys so far.

    Given Π (I − β_s k_s k_s^T) = I − W^T K for the first t factors, fill in w in
    (I − W^T K)(I − β k k^T) = I − W^T K − w k^T.

    Hint: Multiply the two brackets out. Three terms have k^T at their right end, or none.

    Hint: −β k k^T, and (W^T K) β k k^T. What stands before k^T, with its sign turned, is w.

    Insight: However many factors, the product needs two thin matrices: that is why a chunk can be skipped in one step.
    """
    return beta * (k - W.mT @ (K @ k))


# ------------------------------------------------------------------------------------------------ 8.6 the shell game


def _not_swapped(move, cups, i, j):
    if (
        not isinstance(move, tuple)
        or len(move) != 2
        or not all(isinstance(x, torch.Tensor | float | int) for x in move)
    ):
        return "the answer must be a pair: the key, and beta"
    k, beta = torch.as_tensor(move[0]).double(), float(move[1])
    if k.shape != (cups,):
        return f"the key must have one number for each of the {cups} cups, got shape {tuple(k.shape)}"
    if not torch.allclose(k @ k, torch.ones((), dtype=torch.float64), atol=1e-6):
        return f"the key must have norm 1, yours has norm {k.norm():.3g}"
    if not 0 <= beta <= 2:
        return f"beta must be from 0 to 2, got {beta:.3g}"
    before = torch.arange(1.0, cups + 1, dtype=torch.float64)
    after, wanted = before - beta * (before @ k) * k, before.clone()
    wanted[[i, j]] = before[[j, i]]
    if torch.allclose(after, wanted, atol=1e-6):
        return ""
    shown = ", ".join(f"{x:.3g}" for x in after)
    return f"cups that hold {', '.join(f'{x:.0f}' for x in before)} hold {shown} after it: swap cups {i} and {j}"


def _move(beta, first=1.0, second=-1.0):
    def wrong(cups, i, j):
        k = torch.zeros(cups, dtype=torch.float64)
        k[i], k[j] = first, second
        return k / k.norm(), beta

    return wrong


def _unnormed(cups, i, j):
    k = torch.zeros(cups, dtype=torch.float64)
    k[i], k[j] = 1.0, -1.0
    return k, 2.0


@exercise(
    "8.6",
    "The shell game",
    claim="005:permutations",
    kind="open",
    level=2,
    minutes=8,
    cases=lambda randn: [(2, 0, 1), (3, 0, 1), (3, 2, 0), (5, 1, 4)],
    refuse=_not_swapped,
    reached=lambda move, cups, i, j: f"cups {i} and {j} of {cups}",
    wrong={
        "with β = 1 the two cups end up equal, at their mean: a projection": _move(1.0),
        "with a plus the two swap and change their signs: the reflection must leave x_i + x_j alone": _move(
            2.0, 1.0, 1.0
        ),
        "a key along one cup turns its sign and swaps nothing": _move(2.0, 1.0, 0.0),
        "your key has norm √2: divide by it": _unnormed,
        "β = 0 does nothing": _move(0.0),
        "β = 1.5 goes three quarters of the way": _move(1.5),
        "your key weighs one cup more: the mirror must treat both alike": _move(2.0, 2.0, -1.0),
    },
)
def swap(cups, i, j):
    """A key (cups,) of norm 1 and a β from 0 to 2 that swap cups i and j.

    A state of one row holds a number for each cup, H = (x_0, …). A token with value 0 turns it into H (I − β k k^T).
    Find the key and the β for which x_i and x_j change places, and all others stay.

    Hint: β = 2 reflects along k: what lies along k changes its sign, what is orthogonal to it stays.

    Hint: A swap leaves x_i + x_j and all other cups alone, and turns the sign of x_i − x_j.

    Insight: Swaps make all permutations. No product of matrices with positive eigenvalues does: with β ≤ 1 a state
    forgets, and with β = 2 it keeps count.
    """
    k = torch.zeros(cups, dtype=torch.float64)
    k[i], k[j] = 0.5**0.5, -(0.5**0.5)
    return k, 2.0
