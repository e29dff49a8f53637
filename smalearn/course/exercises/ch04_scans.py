"""The exercises of chapter 04 on scans: a constant decay, and the matrix of a decay that changes."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def _float(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# ----------------------------------------------------------------------------------------------- 4.1 the decay scan


def _powers(x, gamma):
    """The dense product: Σ_{s ≤ t} γ^(t-s) x_s, with 0^0 = 1."""
    return torch.stack([sum(gamma ** (t - s) * x[s] for s in range(t + 1)) for t in range(len(x))])


def _decay_cases(randn):
    yield randn(1, 1), 0.5
    for gamma in (0.0, 1.0):  # the identity and the running sum
        yield randn(3, 2), gamma
    yield randn(4, 2), 0.5
    yield randn(9, 3), 0.9


def _weighted(weight):
    """y_t = Σ weight(γ, t, s) x_s over all s."""

    def product(x, gamma):
        L = _float(*([weight(gamma, t, s) for s in range(len(x))] for t in range(len(x))))
        return L @ x

    return product


@exercise(
    "4.1",
    "A sum that fades",
    claim="000:mask-retnet",
    level=1,
    minutes=6,
    cases=_decay_cases,
    oracle=_powers,
    way=Way(case=lambda randn, length: (randn(length, 2), 0.9), memory=1, loops=1),
    wrong={
        "this is the running sum, γ = 1: what was summed so far must fade by γ at every step": lambda x, gamma: (
            x.cumsum(0)
        ),
        "your own token has decayed already: the diagonal of L is γ^0 = 1. Let the past fade, then add x_t": _weighted(
            lambda gamma, t, s: gamma ** (t - s + 1) if s <= t else 0
        ),
        "only the token before is remembered: γ multiplies the last SUM y_(t-1), not the last x": _weighted(
            lambda gamma, t, s: gamma ** (t - s) if t - 1 <= s <= t else 0
        ),
        "you multiply the new token by 1 − γ: that is an exponential moving average. The mask has ones on its "
        "diagonal": _weighted(lambda gamma, t, s: (1 - gamma) * gamma ** (t - s) if s <= t else 0),
        "you begin with y_0 = x_0 and then multiply each new token by 1 − γ: that is an exponential moving "
        "average. The mask has ones on its diagonal": _weighted(
            lambda gamma, t, s: gamma ** (t - s) * (1 - gamma if s else 1) if s <= t else 0
        ),
        "your weight is γ^s, the place in the sequence: it must be γ^(t-s), the distance": _weighted(
            lambda gamma, t, s: gamma**s if s <= t else 0
        ),
        "your scan runs backwards: token t sees itself and what comes later": _weighted(
            lambda gamma, t, s: gamma ** (s - t) if s >= t else 0
        ),
    },
)
def decay_scan(x, gamma):
    """y_t = γ y_(t-1) + x_t, one step after the other.

    Multiply by the decay mask L[t, s] = γ^(t-s), s ≤ t, without forming it, in one pass over time.

    Hint: y_t and y_(t-1) add up almost the same terms. Each term of y_(t-1) has one factor γ less: what is y_t − γ
    y_(t-1)?

    Hint: Keep one row, `now`, which begins as zeros. Let it fade, then add the new token.

    Hint: In the loop: `now = gamma * now + x[t]`, and then `y[t] = now`.

    Insight: The same loop with a γ of its own for every channel is the exponential moving average of optimisers.
    """
    y = torch.zeros_like(x)
    now = torch.zeros_like(x[0])
    for t in range(len(x)):
        now = gamma * now + x[t]
        y[t] = now
    return y


# ----------------------------------------------------------------------------------- 4.2 a decay that depends on time


def _products(log_a):
    L = torch.zeros(len(log_a), len(log_a), dtype=log_a.dtype)
    for t in range(len(log_a)):
        for s in range(t + 1):
            L[t, s] = log_a[s + 1 : t + 1].exp().prod()
    return L


def _decays_cases(randn):
    yield (-randn(1).abs(),)
    yield (torch.zeros(3, dtype=torch.float64),)  # the causal mask
    yield (torch.full((4,), -0.5, dtype=torch.float64),)  # the decay mask
    yield (-randn(5).abs(),)
    strong = -randn(6).abs().float()  # where a difference of sums shows that it has lost its digits
    strong[2] = -1e4
    yield (strong,)
    reset = -randn(7).abs()
    reset[3] = -torch.inf
    yield (reset,)


def _between(first, last):
    """L with the product over first(s) ≤ k < last(t) for s ≤ t."""

    def matrix(log_a):
        a, times = log_a.exp(), range(len(log_a))
        rows = [[a[first(s) : last(t)].prod().item() if s <= t else 0.0 for s in times] for t in times]
        return torch.tensor(rows, dtype=log_a.dtype)

    return matrix


def _differences(lowest, nan=None):
    """Running sums, subtracted: a reset, made finite, drowns what follows it; or gives NaN, which becomes `nan`."""

    def matrix(log_a):
        sums = log_a.clamp(min=lowest).cumsum(0)
        L = (sums[:, None] - sums).exp()
        return (L if nan is None else L.nan_to_num(nan)).tril()

    return matrix


def _quotients(log_a):
    """Running products, divided, 0 where that is NaN."""
    b = log_a.exp().cumprod(0)
    return (b[:, None] / b).nan_to_num(0).tril()


@exercise(
    "4.2",
    "A decay that changes",
    claim="004:eq-1ss",
    level=2,
    minutes=12,
    tolerance=1e-6,
    cases=_decays_cases,
    oracle=_products,
    wrong={
        "your product includes a_s: a gate acts on what was there before its token. It runs over s < k ≤ t": _between(
            lambda s: s, lambda t: t + 1
        ),
        "your product runs over s ≤ k < t; it must run over s < k ≤ t: a token meets the gates after it, the "
        "present one included": _between(lambda s: s, lambda t: t),
        "behind a reset everything is 1: you subtract running sums. Once the sum holds a huge number, all that "
        "is added later is lost; for −∞ it would be −∞ − (−∞). Sum each segment for itself": _differences(-1e30),
        "you subtract running sums, with −∞ cut off at a large number. The sum that holds this number has few "
        "digits left for what is added later, as float32 shows. Sum each segment for itself": _differences(-1e4),
        "you subtract running sums and put 0 where −∞ − (−∞) gives NaN: but tokens after a reset do see "
        "each other. Sum each segment for itself, and there is no NaN": _differences(-torch.inf, nan=0),
        "you divide running products and put 0 where 0 / 0 gives NaN: but tokens after a reset do see "
        "each other. Build each segment for itself, and there is no NaN": _quotients,
        "you take a_t to the power t − s: that would be right if all decays were the same": lambda log_a: (
            _between(lambda s: s + 1, lambda t: t + 1)(torch.zeros_like(log_a))
            * log_a.exp()[:, None] ** (torch.arange(len(log_a))[:, None] - torch.arange(len(log_a))).clamp(min=0)
        ),
        "above the diagonal stand ones, the exponential of an empty sum: they are the "
        "future, and must be 0": lambda log_a: (
            _products(log_a) + torch.ones(len(log_a), len(log_a), dtype=log_a.dtype).triu(1)
        ),
        "this is the transpose: rows are targets t, columns are sources s ≤ t": lambda log_a: _products(
            log_a
        ).mT.contiguous(),
    },
)
def semiseparable(log_a):
    """The 1-semiseparable matrix: every exponent is a sum of log_a's own entries, so that a reset stays a reset.

    Return the 1-semiseparable matrix of log_a; entries of −∞ are resets.

    Hint: L[t, s] is the exponential of Σ log_a[k] over s < k ≤ t. In column s, which entries of log_a take part, and
    from which row on?

    Hint: Put log_a[k] into row k of every column, and a zero wherever k ≤ s: `log_a[:, None].expand(T, T).tril(-1)`,
    not `* mask`: 0 · (−∞) is NaN. A running sum down each column then adds exactly the right entries.

    Hint: `steps.cumsum(0).exp().tril()`; the last `tril` clears what stands above the diagonal.

    Insight: These matrices are inverses of matrices with two diagonals, which is what the recurrence says.
    """
    length = len(log_a)
    steps = log_a[:, None].expand(length, length).tril(-1)  # row k, column s: log_a[k] if k > s
    return steps.cumsum(0).exp().tril()
