"""The exercise of chapter 09 on levels that read what the delta rule has written."""

import torch

from smalearn.course.exercises.core import exercise


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


def _parts_cases(randn):
    for T, N in [(1, 1), (2, 2), (3, 2), (5, 3), (8, 2)]:
        K = torch.nn.functional.normalize(randn(T, N), dim=-1)
        decays = -randn(T).abs()
        L = torch.zeros(T, T, dtype=torch.float64)
        for t in range(T):
            for s in range(t + 1):
                L[t, s] = decays[s + 1 : t + 1].sum().exp()
        yield randn(T, N), K, torch.sigmoid(randn(T)), L, randn(T, T).abs().tril()


exercise(
    "9.7",
    "Levels over a correction",
    claim="007:delta",
    level=2,
    minutes=8,
    cases=_parts_cases,
    oracle=_corrected,
    wrong={
        "the weights stand in A, too: "
        "they say how a token READS, and corrections stay as they were": "L * (K → L * W * (K",
        "the weights stand in A, "
        "where tokens correct, and not in the scores, where they read": "L * W * (Q → L * (Q ; L * (K → L * W * (K",
        "β is missing in A": "beta[:, None] * L → L",
        "β stands in the columns of A: row t is β_t times the rest": "beta[:, None] → beta",
        "A has a diagonal: only what lies below it counts, `.tril(-1)`": ".tril(-1) → ",
        "A compares queries with keys: tokens correct what is stored under their KEYS": "K @ K.mT → Q @ K.mT",
        "your scores are K Q^T: rows belong to queries": "Q @ K.mT → K @ Q.mT",
        "you multiply by W as a matrix: "
        "its entries weigh the scores one by one": "L * W * (Q @ K.mT) → W @ (L * (Q @ K.mT))",
        "the weights count twice: "
        "they belong to the scores, and to nothing else": "return → return W * ( ; @ corrections → @ corrections)",
        "the correction stands on the left, with β: values are corrected "
        "first, then read": "return (L * W * (Q @ K.mT)) @ corrections → return corrections @ (L * W * (Q @ K.mT))",
        "I − A is the first term of a series for the inverse: solve": "torch.linalg.solve( → (( ; + A, → - A) @",
        "β multiplies the rows of M in yours: it stands on the right, "
        "on its columns": "torch.diag(beta)) → torch.eye(len(Q), dtype=Q.dtype)) ; return → return beta[:, None] *",
        "you multiply by diag(β) entry by entry, which leaves a diagonal: it is a matrix, `@`": (
            "torch.diag(beta)) → torch.eye(len(Q), dtype=Q.dtype)) ; @ corrections → @ corrections * torch.diag(beta)"
        ),
        "the weights multiply the corrections: "
        "they belong to the scores, by which tokens read": "L * W * (Q → L * (Q ; @ corrections → @ (W * corrections)",
        "β stands to the left of the inverse: diag(β) is the "
        "last factor": "torch.diag(beta)) → torch.eye(len(Q), dtype=Q.dtype)) ; @ corrections → * beta @ corrections",
        "β is missing on the right": "torch.diag(beta)) → torch.eye(len(Q), dtype=Q.dtype))",
        "this multiplies by I + A: it has to be undone": "torch.linalg.solve( → (( ; + A, → + A) @",
        "the sign in I + A is wrong: each correction takes away what earlier ones have written": "+ A → - A",
        "the decays are missing in A": "L * (K → (K",
        "the decays are missing in the scores": "L * W * (Q → W * (Q",
    },
)(log_linear_delta)
