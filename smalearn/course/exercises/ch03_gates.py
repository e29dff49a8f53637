"""The exercise of chapter 03 on gates: how much of each token is left at the end."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# ------------------------------------------------------------------------------------------ 3.5 what a gate leaves


def _recurrence(K, V, log_a):
    H = torch.zeros(V.shape[1], K.shape[1], dtype=V.dtype)
    for k, v, gate in zip(K, V, log_a, strict=True):
        H = H @ torch.diag(gate.exp()) + torch.outer(v, k)
    return H


def _gate_cases(randn):
    yield randn(1, 1), randn(1, 1), -randn(1, 1).abs()
    yield randn(4, 3), randn(4, 2), torch.zeros(4, 3, dtype=torch.float64)  # no decay
    yield randn(5, 3), randn(5, 2), -randn(5, 1).abs().expand(5, 3).clone()  # one decay for all features
    yield randn(6, 2), randn(6, 3), -randn(6, 2).abs()
    reset = -randn(7, 3).abs()
    reset[3, 0] = -torch.inf
    yield randn(7, 3), randn(7, 2), reset


def _with_exponents(exponents):
    """The final state with other exponents than the sums over later tokens."""
    return lambda K, V, log_a: V.mT @ (K * exponents(log_a).exp())


def _from(log_a):
    return log_a.flip(0).cumsum(0).flip(0)


def _after(log_a):
    return _from(torch.cat([log_a[1:], torch.zeros_like(log_a[:1])]))


@exercise(
    "3.5",
    "What is left at the end",
    claim="002:gla-parallel",
    level=2,
    minutes=12,
    cases=_gate_cases,
    oracle=_recurrence,
    way=Way(
        case=lambda randn, length: (randn(length, 2), randn(length, 3), -randn(length, 2).abs()), memory=1, loops=0
    ),
    wrong={
        "your decay includes the token's own gate: a gate acts on the state BEFORE its token is written, so "
        "the sum runs over k > s": _with_exponents(_from),
        "`roll` shifts in a circle: gate 0 came round to the end, and now acts on every "
        "token. Put zeros there": _with_exponents(lambda log_a: _from(log_a.roll(-1, 0))),
        "you multiply the gates up to s: those act on what was there before. Token s "
        "meets the gates after it": _with_exponents(lambda log_a: log_a.cumsum(0)),
        "nothing is forgotten: this is the state without gates": _with_exponents(torch.zeros_like),
        "you use one decay for all features: here each key feature has its own": _with_exponents(
            lambda log_a: _after(log_a).mean(-1, keepdim=True).expand_as(log_a)
        ),
        "you fill the holes of a difference with 0: what is written after a reset is lost. Sum what comes after a "
        "token on its own": _with_exponents(lambda log_a: (log_a.sum(0) - log_a.cumsum(0)).nan_to_num(-torch.inf)),
        "your sums are shifted the wrong way: token s meets the gates of s + 1 and later": _with_exponents(
            lambda log_a: torch.cat([torch.zeros_like(log_a[:1]), _from(log_a)[:-1]])
        ),
        "the last token is lost: no gate acts on it, so that its sum is empty and its factor 1": _with_exponents(
            lambda log_a: torch.cat([_after(log_a)[:-1], torch.full_like(log_a[:1], -torch.inf)])
        ),
        "you use the mean of the factors for all features: here each key feature has its own": lambda K, V, log_a: (
            V.mT @ (K * _after(log_a).exp().mean(-1, keepdim=True))
        ),
    },
)
def final_state(K, V, log_a):
    """The state after the last token under a gate per key feature, by one matrix product.

    Only sums, no total minus running sum: after a reset the difference −∞ − (−∞) is NaN.

    Return the state after the last token, H = Σ_s V_s (f_s ∘ K_s)ᵀ, without a loop over time.

    Hint: Token s is written at time s. By which gates is it multiplied after that? Is its own among them?

    Hint: f_s = exp of the sum of log_a over k > s. A sum from the end is `.flip(0).cumsum(0).flip(0)`; shift log_a by
    one first, with a row of zeros at the end.

    Hint: A difference of sums, such as `total - log_a.cumsum(0)`, is −∞ − (−∞) after a reset: not a number. With the
    shift nothing is subtracted, and the state is `V.mT @ (K * f)`.

    Insight: No state before the last is formed: a prompt is read by one product, and writing starts from there.
    """
    later = torch.cat([log_a[1:], torch.zeros_like(log_a[:1])])
    until = later.flip(0).cumsum(0).flip(0)  # Σ of log_a over the tokens after s
    return V.mT @ (K * until.exp())
