"""The exercise of chapter 09 on levels that read what the delta rule has written."""

import torch
from torch.linalg import inv

from smalearn.course.exercises.core import exercise

# ---------------------------------------------------------------------------------------- 9.7 levels that correct


def _corrected(Q, K, beta, L, W):
    """Column by column, by the corrections of chapter 08."""
    T = len(Q)
    columns = []
    for s in range(T):
        v, u = torch.eye(T, dtype=Q.dtype)[s], []
        for t in range(T):
            u.append(beta[t] * (v[t] - sum(L[t, r] * (K[t] @ K[r]) * u[r] for r in range(t))))
        columns.append([sum(L[t, r] * W[t, r] * (Q[t] @ K[r]) * u[r] for r in range(t + 1)) for t in range(T)])
    return torch.stack([torch.stack(column) for column in columns], 1)


def _with_parts(order):
    """M from its parts: scores with decays, A, the weights, β as a matrix, I."""

    def wrong(Q, K, beta, L, W):
        A = (beta[:, None] * L * (K @ K.mT)).tril(-1)
        return order(L * (Q @ K.mT), A, W, torch.diag(beta), torch.eye(len(Q), dtype=Q.dtype))

    return wrong


def _with_matrix(matrix, scores=lambda Q, K, L, W: L * W * (Q @ K.mT)):
    """M with another A, or other scores."""

    def wrong(Q, K, beta, L, W):
        one, A = torch.eye(len(Q), dtype=Q.dtype), matrix(Q, K, beta[:, None], L, W)
        return scores(Q, K, L, W) @ inv(one + A) @ torch.diag(beta)

    return wrong


def _matrix(Q, K, beta, L, W):
    return (beta * L * (K @ K.mT)).tril(-1)


def _parts_cases(randn):
    for T, N in [(1, 1), (2, 2), (3, 2), (5, 3), (8, 2)]:
        K = torch.nn.functional.normalize(randn(T, N), dim=-1)
        decays = -randn(T).abs()
        L = torch.zeros(T, T, dtype=torch.float64)
        for t in range(T):
            for s in range(t + 1):
                L[t, s] = decays[s + 1 : t + 1].sum().exp()
        yield randn(T, N), K, torch.sigmoid(randn(T)), L, randn(T, T).abs().tril()


@exercise(
    "9.7",
    "Levels over a correction",
    claim="007:delta",
    level=2,
    minutes=8,
    cases=_parts_cases,
    oracle=_corrected,
    wrong={
        "the weights stand in A, too: they say how a token READS, and corrections stay as they were": _with_matrix(
            lambda Q, K, beta, L, W: (beta * L * W * (K @ K.mT)).tril(-1)
        ),
        "the weights stand in A, where tokens correct, and not in the scores, where they read": _with_matrix(
            lambda Q, K, beta, L, W: (beta * L * W * (K @ K.mT)).tril(-1), lambda Q, K, L, W: L * (Q @ K.mT)
        ),
        "β is missing in A": _with_matrix(lambda Q, K, beta, L, W: (L * (K @ K.mT)).tril(-1)),
        "β stands in the columns of A: row t is β_t times the rest": _with_matrix(
            lambda Q, K, beta, L, W: (beta.mT * L * (K @ K.mT)).tril(-1)
        ),
        "A has a diagonal: only what lies below it counts, `.tril(-1)`": _with_matrix(
            lambda Q, K, beta, L, W: beta * L * (K @ K.mT)
        ),
        "A compares queries with keys: tokens correct what is stored under their KEYS": _with_matrix(
            lambda Q, K, beta, L, W: (beta * L * (Q @ K.mT)).tril(-1)
        ),
        "your scores are K Q^T: rows belong to queries": _with_matrix(_matrix, lambda Q, K, L, W: L * W * (K @ Q.mT)),
        "you multiply by W as a matrix: its entries weigh the scores one by one": _with_matrix(
            _matrix, lambda Q, K, L, W: W @ (L * (Q @ K.mT))
        ),
        "the weights count twice: they belong to the scores, and to nothing else": _with_parts(
            lambda S, A, W, B, one: W * ((W * S) @ inv(one + A) @ B)
        ),
        "the correction stands on the left, with β: values are corrected first, then read": _with_parts(
            lambda S, A, W, B, one: inv(one + A) @ B @ (W * S)
        ),
        "the weights are missing: this is the gated delta rule": _with_parts(
            lambda S, A, W, B, one: S @ inv(one + A) @ B
        ),
        "I − A is the first term of a series for the inverse: solve": _with_parts(
            lambda S, A, W, B, one: (W * S) @ (one - A) @ B
        ),
        "β multiplies the rows of M in yours: it stands on the right, on its columns": _with_parts(
            lambda S, A, W, B, one: B @ (W * S) @ inv(one + A)
        ),
        "nothing is corrected: the inverse is missing": _with_parts(lambda S, A, W, B, one: (W * S) @ B),
        "you multiply by diag(β) entry by entry, which leaves a diagonal: it is a matrix, `@`": _with_parts(
            lambda S, A, W, B, one: (W * S) @ inv(one + A) * B
        ),
        "the weights multiply the corrections: they belong to the scores, by which tokens read": _with_parts(
            lambda S, A, W, B, one: S @ (W * (inv(one + A) @ B))
        ),
        "β stands to the left of the inverse: diag(β) is the last factor": _with_parts(
            lambda S, A, W, B, one: (W * S) @ B @ inv(one + A)
        ),
        "β is missing on the right": _with_parts(lambda S, A, W, B, one: (W * S) @ inv(one + A)),
        "the inverse stands on the left: values are corrected first, then read": _with_parts(
            lambda S, A, W, B, one: inv(one + A) @ (W * S) @ B
        ),
        "this multiplies by I + A: it has to be undone": _with_parts(lambda S, A, W, B, one: (W * S) @ (one + A) @ B),
        "the sign in I + A is wrong: each correction takes away what earlier ones have written": _with_parts(
            lambda S, A, W, B, one: (W * S) @ inv(one - A) @ B
        ),
        "the weights multiply the product: they belong to the scores": _with_parts(
            lambda S, A, W, B, one: W * (S @ inv(one + A) @ B)
        ),
        "the decays are missing in A": _with_matrix(lambda Q, K, beta, L, W: (beta * (K @ K.mT)).tril(-1)),
        "the decays are missing in the scores": _with_matrix(_matrix, lambda Q, K, L, W: W * (Q @ K.mT)),
    },
)
def log_linear_delta(Q, K, beta, L, W):
    """The matrix M (T, T) of the delta rule with decays L, read by levels with weights W, both (T, T) and causal.

    Chapter 08's gated delta rule is M = (L ∘ QK^T) (I + A)^-1 diag(β), with A = β (L ∘ KK^T) below the diagonal. Give
    its READING a weight for each level. Q and K are (T, N), beta (T,).

    Hint: Which of the factors is the reading? The one with the queries.

    Hint: `A = (beta[:, None] * L * (K @ K.mT)).tril(-1)`, and `torch.linalg.solve(I + A, torch.diag(beta))` is what
    stands to the right of the scores.

    Insight: Decay, correction and levels act in different places of one product, so they combine freely.
    """
    A = (beta[:, None] * L * (K @ K.mT)).tril(-1)
    corrections = torch.linalg.solve(torch.eye(len(Q), dtype=Q.dtype) + A, torch.diag(beta))
    return (L * W * (Q @ K.mT)) @ corrections
