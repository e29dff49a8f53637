"""The exercise of chapter 08 on a whole chunk of the delta rule."""

import torch

from smalearn.course.ch08.delta import delta_step, even_keys, quarters
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


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


def _chunk_cases(randn):
    for leading, *sizes in [((), 1, 1, 1), ((), 2, 1, 2), ((), 4, 2, 3), ((2,), 40, 3, 2), ((2, 2), 6, 2, 4)]:
        yield _chunk(randn, leading, *sizes)
    Q, K, V, beta, state = _chunk(randn, (), 32, 2, 3)
    yield Q, K[:1].expand_as(K).clone(), V, 1.9 + 0 * beta, state  # one key again and again: powers of A reach 10^14
    beta = torch.tensor([0.25, 0.75, 0.5])  # in float32, as later cells have it
    yield quarters(randn, 3, 4), even_keys(randn, 3), quarters(randn, 3, 2), beta, quarters(randn, 2, 4)


def _chunk(randn, leading, T, P, N):
    K = torch.nn.functional.normalize(randn(*leading, T, N), dim=-1)
    beta = torch.sigmoid(randn(*leading, T))
    return randn(*leading, T, N), K, randn(*leading, T, P), beta, randn(*leading, P, N)


def _chunk_loop(Q, K, V, beta, state):
    rows = []
    for q, k, v, b in zip(*(x.unbind(-2) for x in (Q, K, V)), beta.unbind(-1), strict=True):
        y, state = delta_step(q, k, v, b, state)
        rows.append(y)
    return torch.stack(rows, -2), state


def _powers(A, U):
    """The series of the inverse, by doubling."""
    power = -A.tril(-1)
    for _ in range((A.shape[-1] - 1).bit_length()):
        U, power = U + power @ U, power @ power
    return U


RIGHT = "B * (V - K @ state.mT)"
SOLVED = f"torch.linalg.solve_triangular(A, {RIGHT}, upper=False, unitriangular=True)"

exercise(
    "8.4",
    "A whole chunk at once",
    claim="005:chunks",
    level=2,
    minutes=15,
    cases=_chunk_cases,
    gradient=("Q", "K", "V", "beta"),
    oracle=_chunk_loop,
    way=Way(
        case=lambda randn, length: _chunk(randn, (2,), length, 2, 3),
        memory=2,
        loops=0,
        forbids=("torch.linalg.inv", "torch.inverse", "torch.Tensor.inverse"),
    ),
    wrong={
        "your values are not corrected by what came in: subtract K state^T before you solve": "(V - K @ state.mT) → V",
        "Y does not read what came in: add Q state^T": "U + Q @ state.mT → U",
        "nothing is solved: the tokens of a chunk must correct each other too": "A = B → A = 0 * B",
        "you subtract A R once, the first term of a series: "
        "solve (I + A) U = R": f"{SOLVED} → {RIGHT} - A.tril(-1) @ ({RIGHT})",
        "you add up powers of A: where keys are alike they reach 10^14 and cancel, "
        "and the digits are lost. Solve": f"{SOLVED} → _powers(A, {RIGHT})",
        "β is missing in the matrix: row t of A is β_t times k_t · k_s": "A = B * → A =",
        "β belongs to the row of A, to the token that writes the correction; "
        "yours multiplies the columns": "A = B → A = B.mT",
        "your matrix has a minus: U + A U = β (V − …)": "A = B → A = -B",
        "your rows see tokens after their own: the scores need `.tril()`": ".tril() → ",
        "your scores leave out the token itself: t reads what it has just written": ".tril() → .tril(-1)",
        "you use K K^T for the reading too: the queries read": "Q @ K.mT → K @ K.mT",
        "your scores are K Q^T: row t belongs to query t, Q K^T": "Q @ K.mT → K @ Q.mT",
        "you read what came in with K: the queries read": "Q @ state.mT → K @ state.mT",
        "you read the new state where the old one stands, "
        "so that the chunk counts twice: Q state^T": "Q @ state.mT → Q @ (state + U.mT @ K).mT",
        "β is missing before K state^T: "
        "it multiplies the whole difference V − K state^T": "B * (V - K @ state.mT) → B * V - K @ state.mT",
        "you correct by Q state^T: "
        "a value is corrected by what the state says under its KEY, K state^T": "V - K @ → V - Q @",
        "K state^T is subtracted after the solve: "
        "it belongs to the right-hand side, under β": "(V - K @ state.mT) → V ; =True) → =True) - K @ state.mT",
        "you add what the state says to the values: subtract it": "V - K → V + K",
        "β lacks an axis, so that it multiplies columns: `beta[..., None]` puts β_t on row t": "A = B → A = beta",
        "you add K^T U, (N, P), to the state: it is (P, N), so U^T K": "U.mT @ K → K.mT @ U",
        "your scores are divided by √N, as before a softmax: "
        "here they are q · k": ".tril() → .tril() / K.shape[-1] ** 0.5",
        "your scores have a softmax: a memory that is read by a product has "
        "none": ".tril() → .masked_fill(torch.ones(2 * [K.shape[-2]]).triu(1).bool(), -torch.inf).softmax(-1)",
        "your new state stores β V: it must store the corrected values, U": "U.mT @ K → (B * V).mT @ K",
        "your new state has lost what came in: add to the old one": "state + U.mT @ K → U.mT @ K",
    },
)(delta_chunk)
