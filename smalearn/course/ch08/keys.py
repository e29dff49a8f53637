"""The exercise of chapter 08 on a key for each thing that the delta rule does: read, erase, write."""

import torch

from smalearn.course.ch08.delta import even_keys, quarters
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def three_keys(Q, K, V, read, erase):
    """Y (..., T, P) of a memory that reads, erases and writes with a key each, from an empty state.

    Compute all tokens at once, without a loop over them: y_t = H_t q_t with H_t = H_(t-1) − (H_(t-1) r_t) p_t^T +
    v_t k_t^T, where r_t are the rows of read, p_t those of erase; Q, K, read and erase are (..., T, N), V (..., T, P).

    Hint: Call what is read o_t = H_(t-1) r_t. The state is a sum of all that was written and erased before: v_s k_s^T
    and −o_s p_s^T.

    Hint: So o_t = Σ_{s<t} (r_t · k_s) v_s − Σ_{s<t} (r_t · p_s) o_s. As rows: (I + A) O = B V. What are A and B? 8.3
    solves it, and so does `torch.linalg.solve_triangular(A, R, upper=False, unitriangular=True)`.

    Hint: With O known, y_t reads both sums up to its own token: tril(Q K^T) V − tril(Q p^T) O.

    Insight: A model may choose what it reads with, where it erases and where it writes: the price is the same solve.
    """
    A = (read @ erase.mT).tril(-1)
    B = (read @ K.mT).tril(-1)
    old = torch.linalg.solve_triangular(A, B @ V, upper=False, unitriangular=True)
    return (Q @ K.mT).tril() @ V - (Q @ erase.mT).tril() @ old


def _keys_cases(randn):
    for leading, *sizes in [((), 1, 1, 1), ((), 2, 1, 2), ((), 4, 2, 3), ((2,), 20, 3, 2), ((2, 2), 6, 2, 4)]:
        yield _keys(randn, leading, *sizes)
    yield (
        quarters(randn, 3, 4),
        even_keys(randn, 3),
        quarters(randn, 3, 2),
        even_keys(randn, 3),
        even_keys(randn, 3) / 2,
    )


def _keys(randn, leading, T, P, N):
    read, erase = (torch.nn.functional.normalize(randn(*leading, T, N), dim=-1) for _ in range(2))
    return randn(*leading, T, N), randn(*leading, T, N), randn(*leading, T, P), read, erase / 2


def _keys_loop(Q, K, V, read, erase):
    state, rows = V.new_zeros(*V.shape[:-2], V.shape[-1], K.shape[-1]), []
    for q, k, v, r, p in zip(*(x.unbind(-2) for x in (Q, K, V, read, erase)), strict=True):
        old = (state * r[..., None, :]).sum(-1)
        state = state - old[..., None] * p[..., None, :] + v[..., None] * k[..., None, :]
        rows.append((state * q[..., None, :]).sum(-1))
    return torch.stack(rows, -2)


SOLVED = "torch.linalg.solve_triangular(A, B @ V, upper=False, unitriangular=True)"

exercise(
    "8.7",
    "Three keys",
    claim="008:three-keys",
    level=2,
    minutes=10,
    cases=_keys_cases,
    gradient=("Q", "K", "V", "read", "erase"),
    oracle=_keys_loop,
    way=Way(case=lambda randn, length: _keys(randn, (2,), length, 2, 3), memory=2, loops=0),
    wrong={
        "what is erased leaves the memory: subtract it": "V - (Q → V + (Q",
        "nothing is solved: what a token reads lacks what earlier ones erased": f"{SOLVED} → B @ V",
        "you subtract A R once, the first term of a series: solve (I + A) O = R": f"{SOLVED} → B @ V - A @ (B @ V)",
        "your matrix has a minus: what was erased is missing in what is read, (I + A) O = B V": "A = → A = -",
        "in A the reading token is the row, r_t · p_s: yours has p_t · r_s": "read @ erase.mT → erase @ read.mT",
        "A has the keys that write: what is missing was erased along p": "read @ erase.mT → read @ K.mT",
        "y_t is read after the token has written: its own k belongs to the sum": "K.mT).tril() → K.mT).tril(-1)",
        "what is written are the values as they come; O is what was read": ".tril() @ V - → .tril() @ (V - old) -",
    },
)(three_keys)
