"""The exercises of chapter 08 about the rule: half a correction, a step, its solve."""

import itertools

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def answer():
    """What the memory answers at the end.

    An empty memory is written twice under one key k of norm 1, with β = ½: first the value 8, then the value 6. What
    does it answer, H k?

    Hint: Before the first writing it says 0. The difference is 8, and half of it is written.

    Hint: Before the second writing it says 4. The difference to 6 is 2.

    Too little: The second writing moves the memory towards 6, half of the way from what it says by then.

    Too much: Each writing goes half of the way only: from 0 towards 8, then from there towards 6.

    Insight: β is a learning rate: the memory moves by this part of the way from what it says to what it should say.
    """
    return 5.0


exercise(
    "8.1",
    "Half a change of mind",
    claim="005:rule",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=1e-3,
    oracle=lambda: 5.0,
    wrong={
        "this is 4 + 3, halves added up, or 8 − 1, the first stored whole: "
        "each writing goes half of the way": "5.0 → 7.0",
        "this takes the second value whole: with β = ½ only half of the difference is written": "5.0 → 6.0",
        "this is what it says after the first writing; the second moves it on": "5.0 → 4.0",
        "this is half of 6 alone, or a step down from 4: the memory says 4 by then, and 6 is above it": "5.0 → 3.0",
        "this is the sum of both values: each writing adds only half of what is missing": "5.0 → 14.0",
        "this is the first value: only half of it is written, and then half of what is missing to 6": "5.0 → 8.0",
        "this is a difference, 8 − 6 or 6 − 4: half of 6 − 4 is added to the 4 that is there": "5.0 → 2.0",
        "this is what the second writing adds, half of 6 − 4: there is a 4 already": "5.0 → 1.0",
        "you add the second value whole to the 4 that is there: add half of what is missing to it": "5.0 → 10.0",
        "this is half of 6 − 8: the first writing leaves a 4, not an 8, and the change is added to it": "5.0 → -1.0",
        "this is 6 − 8: compare the second value with what the memory says by then": "5.0 → -2.0",
        "you add half of 6 + 4: what the memory says is subtracted from the value": "5.0 → 9.0",
        "this is 8 and half of 6: the first writing is halved, too, "
        "and the second adds to it half of what is missing": "5.0 → 11.0",
    },
)(answer)


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


def quarters(randn, *shape):
    """Multiples of ¼ in float32, in which sums of a few products are exact."""
    return (4 * randn(*shape)).round().float() / 4


def even_keys(randn, *leading):
    """Keys of four entries ±½ in float32, of norm 1 exactly."""
    return randn(*leading, 4).sign().float() / 2


def _step_cases(randn):
    for leading, P, N in [((), 1, 1), ((), 2, 1), ((), 1, 3), ((), 3, 3), ((2,), 2, 3), ((2, 3), 3, 2)]:
        k = torch.nn.functional.normalize(randn(*leading, N), dim=-1)
        q, v, beta = randn(*leading, N), randn(*leading, P), torch.sigmoid(randn(*leading, 1)[..., 0])
        yield q, k, v, beta, randn(*leading, P, N)
    beta = torch.tensor([0.25, 0.75])  # in float32, as a later cell has it
    yield quarters(randn, 2, 4), even_keys(randn, 2), quarters(randn, 2, 3), beta, quarters(randn, 2, 3, 4)


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


exercise(
    "8.2",
    "Read, then write the difference",
    claim="005:rule",
    level=1,
    minutes=8,
    cases=_step_cases,
    oracle=_loop,
    wrong={
        "you write β v and take nothing away: "
        "what the memory says under k has to go": "v - (state * k[..., None, :]).sum(-1) → v",
        "you take away all of what the memory says, and only β of v: β stands before the "
        "whole difference": "(v - (state * k[..., None, :]).sum(-1)) → v - (state * k[..., None, :]).sum(-1)",
        "you write v and take away β of what is there: "
        "β stands before the whole difference": "beta[..., None] * (v - → (v - beta[..., None] *",
        "you read Hᵀ k, sums over the rows: H k sums over the last axis, "
        "that of the keys": "(state * k → ((state.mT if state.shape[-1] == state.shape[-2] else state) * k",
        "the difference has the wrong sign: your memory runs away from the value": "beta → -beta",
        "you compare with what the QUERY reads: "
        "the memory is asked with the key that it will write under": "(state * k → (state * q",
        "y is read before the writing: "
        "the new state answers": "state = state → new = state ; .sum(-1), state → .sum(-1), new",
        "you write under the query: the key says where": "[..., :, None] * k → [..., :, None] * q",
        "you let the whole state fade: only what lies along k is replaced, all other keys keep their values": (
            "v - (state * k[..., None, :]).sum(-1) → v ; state = state → state = (1 - beta[..., None, None]) * state"
        ),
        "you apply β twice": "beta[..., None] → beta[..., None] ** 2",
        "you change the length of q: y is H q, "
        "with q as it comes": "state * q[ → state * (q / q.norm(dim=-1, keepdim=True))[",
        "your y is divided by √N: here it is H q": ".sum(-1), state → .sum(-1) / q.shape[-1] ** 0.5, state",
        "you write k u^T, the transpose: the state is (P, N), "
        "values in rows, so u k^T": "u[..., :, None] * k[..., None, :] → k[..., :, None] * u[..., None, :]",
        "you write k u^T where the state is (P, N): values stand in its rows, so write u k^T": (
            "u[..., :, None] * k[..., None, :] → k[..., :, None] * u[..., None, :] ; "
            "(state * q[..., None, :]).sum(-1) → (state @ q[..., None])[..., 0]"
        ),
    },
)(delta_step)


def substitute(A, R):
    """The solution U (T, P) of (I + A) U = R, where A (T, T) has entries only below its diagonal.

    Solve it by forward substitution, without a solver: one row of U after the other. R is (T, P).

    Hint: Row t of (I + A) U is U[t] plus the sum of A[t, s] U[s] over s < t. All these U[s] are known by then.

    Hint: Go through t from 0, with the rows so far in a list. `sum(A[t, s] * U[s] for s in range(t))` is to be
    subtracted from row t of R, and `torch.stack` makes a tensor of the list in the end.

    Insight: That is the recurrence of the memory itself, seen from inside the matrix: each value is corrected by what
    the earlier corrected ones have written.
    """
    U = []
    for t in range(len(R)):
        U.append(R[t] - sum(A[t, s] * U[s] for s in range(t)))
    return torch.stack(U)


def _system_cases(randn):
    for T, P in [(1, 1), (2, 1), (3, 2), (6, 3), (9, 2)]:
        yield randn(T, T).tril(-1), randn(T, P)


def _substituted(A, R):
    """One number after the other."""
    U = torch.zeros_like(R)
    for t in range(len(R)):
        for p in range(R.shape[1]):
            U[t, p] = R[t, p] - sum(A[t, s] * U[s, p] for s in range(t))
    return U


exercise(
    "8.3",
    "One row at a time",
    claim="005:identity",
    level=2,
    minutes=7,
    cases=_system_cases,
    oracle=_substituted,
    way=Way(
        case=lambda randn, T: (randn(T, T).tril(-1) / T, randn(T, 2)),  # so that U stays as large as R
        forbids=("torch.linalg", "torch.inverse", "torch.Tensor.inverse"),
    ),
    wrong={
        "you subtract A R: row t needs rows of U, corrected, not of R; fill it from the top, "
        "row by row": "* U[s] → * R[s]",
        "you multiply by I + A: it has to be undone": "R[t] - sum(A[t, s] * U[s] → R[t] + sum(A[t, s] * R[s]",
        "the sign: (I + A) U = R gives U[t] = R[t] MINUS the sum": "R[t] - → R[t] +",
        "this is R: what you subtract is 0. Row t of A, left of its diagonal, is A[t, :t]; "
        "a U that is not yet filled is 0": "- sum → - 0 * sum",
        "this is A alone inverted, without I": lambda A, R: torch.linalg.pinv(A) @ R,
        "row 0 is never filled: U[0] is R[0], and the rows below need it": "U.append(R[t] → U.append((t > 0) * R[t]",
        "the last row is never filled: t goes from 0 to len(R) − 1, "
        "`range(len(R))`": "stack(U) → stack([*U[:-1], 0 * U[-1]])",
        "you subtract the row just above alone: "
        "all U[s] with s < t are in the sum": "range(t) → range(max(t - 1, 0), t)",
        "the row just above is missing: the sum goes to s = t − 1, "
        "and `A[t, :t]` ends there": "range(t) → range(t - 1)",
        "you divide by the diagonal of A, which is 0: that of I + A is 1, "
        "so there is nothing to divide by": "(R[t] - → (1 / A[t, t] * (R[t] - ; range(t)) → range(t)))",
        "A alone has no inverse: the I is missing, (I + A) U = R": lambda A, R: torch.linalg.solve(A, R),
        "you stop after three terms of the series I − A + A², which goes on to A^(T−1): go row by row": lambda A, R: (
            R - A @ R + A @ A @ R
        ),
    },
)(substitute)
