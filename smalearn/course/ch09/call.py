"""The exercise of chapter 09 on Mamba-3's two weights for each write, in one call."""

import torch
from torch.nn import functional

from smalearn import fast
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def trapezoid(Q, K, V, log_a, dt, share):
    """Y (T, P) of Mamba-3's recurrence, by one call of `fast.ssd(X, log_a, B, C)`.

    H_t = a_t H_(t−1) + (1 − λ_t) dt_t a_t v_(t−1) k_(t−1)^T + λ_t dt_t v_t k_t^T and y_t = H_t q_t. Q and K are (T, N),
    V (T, P); log_a, dt and share, the λ, are (T,).

    Hint: For t > s, how much does v_s k_s^T weigh in H_t, apart from the decays from s to t? λ_s dt_s, and once more as
    token s + 1 arrives.

    Hint: So scale value s by `share * dt` plus the next token's `(1 - share) * dt`, and call `fast.ssd` with (K, Q) as
    (B, C). The last token has no next one: `functional.pad(x[1:], (0, 1))`.

    Hint: At t = s the second weight has not come yet: subtract it times (q_t · k_t) v_t.

    Insight: A new rule of integration, and no new kernel: two weights, and a term on the diagonal.
    """
    now, later = share * dt, functional.pad(((1 - share) * dt)[1:], (0, 1))
    Y, _ = fast.ssd((now + later)[:, None] * V, log_a, K, Q)
    return Y - (later * (Q * K).sum(-1))[:, None] * V


def _steps(Q, K, V, log_a, dt, share):
    """The recurrence, one token after the other."""
    H, before, rows = torch.zeros(V.shape[-1], K.shape[-1], dtype=V.dtype), 0, []
    for q, k, v, a, step, part in zip(Q, K, V, log_a.exp(), dt, share, strict=True):
        write = torch.outer(v, k)
        H = a * H + (1 - part) * step * a * before + part * step * write
        before = write
        rows.append(H @ q)
    return torch.stack(rows)


def _tokens(randn, T, N, P):
    log_a = -randn(T).abs()
    return randn(T, N), randn(T, N), randn(T, P), log_a, functional.softplus(randn(T)), torch.sigmoid(randn(T))


def _call_cases(randn):
    for sizes in [(1, 1, 1), (2, 1, 1), (3, 2, 1), (5, 3, 2), (40, 4, 3)]:
        yield _tokens(randn, *sizes)


exercise(
    "9.4",
    "Two weights, one call",
    claim="006:one-call",
    level=3,
    minutes=12,
    cases=_call_cases,
    oracle=_steps,
    way=Way(case=lambda randn, length: _tokens(randn, length, 2, 3), once="smalearn.fast.dispatch.ssd"),
    wrong={
        "token t itself counts as much as it will later: "
        "there it should weigh λ_t dt_t alone": "Y - (later * (Q * K).sum(-1))[:, None] * V → Y",
        "the correction at the token itself has the wrong sign": "Y - → Y +",
        "the later weight is that of the NEXT token, "
        "(1 − λ_(t+1)) dt_(t+1)": "functional.pad(((1 - share) * dt)[1:], (0, 1)) → (1 - share) * dt",
        "you shift the wrong way: token t counts again when t + 1 arrives": "[1:], (0, 1) → [:-1], (1, 0)",
        "the value before is written under k_t: v_(t−1) has its own key, k_(t−1)": (
            "(now + later)[:, None] * V → "
            "now[:, None] * V + ((1 - share) * dt * log_a.exp())[:, None] * functional.pad(V[:-1], (0, 0, 1, 0)) ; "
            "later * (Q → 0 * (Q"
        ),
        "the call takes log_a as it is: it makes the decay itself": "log_a, → log_a.exp(),",
        "q_t · k_t is missing in the correction at the token itself": "(later * (Q * K).sum(-1)) → later",
        "Q and K have changed places in the call: (K, Q) are its (B, C)": "K, Q) → Q, K)",
        "in the second weight dt must be that of the next token, "
        "as λ is": "functional.pad(((1 - share) * dt)[1:], (0, 1)) → functional.pad((1 - share)[1:], (0, 1)) * dt",
        "in the second weight λ must be that of the next token, "
        "as dt is": "functional.pad(((1 - share) * dt)[1:], (0, 1)) → (1 - share) * functional.pad(dt[1:], (0, 1))",
        "the decay of the next token is in the call already": "(1 - share) * dt → (1 - share) * dt * log_a.exp()",
        "λ and 1 − λ have changed places": "= share → = (1 - share) ; ((1 - share) * dt)[1:] → (share * dt)[1:]",
        "the second weight is missing: each write counts once more, "
        "(1 − λ) dt, as the next token comes": "functional.pad(((1 - share) * dt)[1:], (0, 1)) → 0 * dt",
        "you take λ_t dt_t off at the token itself: what has not come yet is the second weight": "(later * → (now *",
        "dt is missing in the second weight, (1 − λ_(t+1)) dt_(t+1)": "((1 - share) * dt)[1:] → (1 - share)[1:]",
    },
)(trapezoid)
