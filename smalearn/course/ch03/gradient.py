"""The exercise of chapter 03 on training: the gradient of linear attention is a linear attention."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def grad_keys(Q, V, dY):
    """Gradient of the keys: linear attention backwards in time, dK_s = R_s^T V_s with R_s = Σ_{t ≥ s} dY_t Q_t^T.

    Compute the gradient of the keys of causal linear attention without autograd and without a (T, T) matrix.

    Hint: Which outputs did key s have a part in? Those at t ≥ s: Y_t contains (Q_t · K_s) V_s.

    Hint: So dK_s = Σ_{t ≥ s} (dY_t · V_s) Q_t. Read this as a linear attention: who asks, who is stored?

    Hint: The stored state is R_s = Σ_{t ≥ s} dY_t Q_tᵀ, a running sum from the end: `.flip(0).cumsum(0).flip(0)`.

    Insight: All three gradients of linear attention are linear attentions, forwards or backwards in time: a backward
    needs no new kernel.
    """
    R = (dY[:, :, None] * Q[:, None, :]).flip(0).cumsum(0).flip(0)
    return torch.einsum("spn,sp->sn", R, V)


def _by_autograd(Q, V, dY):
    with torch.enable_grad():
        K = torch.zeros_like(Q, requires_grad=True)
        return torch.autograd.grad((Q @ K.mT).tril() @ V, K, dY)[0]


def _grad_cases(randn):
    for length, features, head_dim in [(1, 1, 1), (3, 2, 2), (4, 3, 2), (7, 2, 4)]:
        yield randn(length, features), randn(length, head_dim), randn(length, head_dim)
    Q, V = randn(5, 3), randn(5, 2)
    yield Q, V, torch.stack([-V[:, 1], V[:, 0]], 1)  # dY_t · V_t = 0


exercise(
    "3.3",
    "A gradient is linear attention",
    claim="002:memory",
    level=3,
    minutes=15,
    cases=_grad_cases,
    oracle=_by_autograd,
    way=Way(
        case=lambda randn, length: tuple(randn(length, 1) for _ in "QVY"),  # a loop over features is none
        memory=1,
        loops=1,
        work=1,
        forbids=("torch.autograd",),
    ),
    wrong={
        "your sum runs over t ≤ s: key s has a part in the outputs at s and LATER": ".flip(0) → ",
        "you summed over all t: outputs before s have never seen key s": "R, V → R[:1], V",
        "the output at s itself is missing: key s is read by query s too": "R, V → R - dY[:, :, None] * Q[:, None], V",
        "the output at s itself is counted twice": "R, V → R + dY[:, :, None] * Q[:, None], V",
        "V and dY have changed places: "
        "the value belongs to the key's token s, dY and Q to token t": "dY[ → V[ ; R, V → R, dY",
        "this is dQ's formula with Q in the place of K: it collects over s ≤ t, but dK_s collects over t ≥ s. "
        "Run time backwards": "dY[ → V[ ; .flip(0) →  ; R, V → R, dY",
        "your state is Q dYᵀ, (N, P), and is then read along the wrong axis": "R, V → R, V.flip(-1)",
        "you sum dY and Q separately, then every dY meets every Q: take the outer "
        "products first": ".flip(0).cumsum(0).flip(0) →  ; Y[ → Y.flip(0).cumsum(0).flip(0)[ ; Q[ → "
        "Q.flip(0).cumsum(0).flip(0)[",
        "you turned round the running sums alone: "
        "the products that they add must be turned round before, too": ".flip(0).cumsum → .cumsum",
    },
)(grad_keys)
