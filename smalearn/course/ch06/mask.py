"""The exercise of chapter 06 on the mask, and the random decays of all its exercises."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

INF = float("inf")


def decays(randn, *shape):
    """Log decays, mild but never 0."""
    return -0.1 - randn(*shape).abs()


def with_a_reset(log_a):
    """Log decays with a reset in the middle of every row, and a strong decay before it where there is room."""
    middle = log_a.shape[-1] // 2
    log_a = log_a.clone()
    log_a[..., max(middle - 1, 0)] = -1e4
    log_a[..., middle] = -INF
    return log_a


# --------------------------------------------------------------------------------- 6.1 sums of segments, not of pasts


def _mask_loop(log_a, first=1, last=1):
    """One product after the other: a_k over s + first ≤ k < t + last."""
    a, length = log_a.exp(), log_a.shape[-1]
    L = torch.zeros(*log_a.shape, length, dtype=log_a.dtype)
    for t in range(length):
        for s in range(t + 1):
            L[..., t, s] = a[..., s + first : t + last].prod(-1)
    return L


def _mask_cases(randn):
    yield (decays(randn, 1),)
    yield (torch.zeros(3, dtype=torch.float64),)
    yield (decays(randn, 4),)
    yield (with_a_reset(decays(randn, 5)),)
    yield (torch.cat([torch.full((2,), -1e4), decays(randn, 5)]),)
    yield (with_a_reset(decays(randn, 2, 6)),)
    # a clamp at −30 takes the last gradient, 1e-15, away from 1e-10: in float32, too, where the last case is trained
    yield (torch.tensor([-0.5, -22, -INF, -22, -33], dtype=torch.float64),)


def _difference(log_a, least=-INF):
    """The difference of two running sums; NaN becomes 0."""
    sums = log_a.clamp(min=least).cumsum(-1)
    return (sums[..., :, None] - sums[..., None, :]).tril().exp().tril().nan_to_num(0.0)


def _quotient(log_a):
    """The quotient of two running products; NaN becomes 0."""
    products = log_a.exp().cumprod(-1)
    return (products[..., :, None] / products[..., None, :]).tril().nan_to_num(0.0)


def _later(log_a):
    """Where the row is later than the column."""
    return torch.ones(log_a.shape[-1], log_a.shape[-1], dtype=torch.bool).tril(-1)


def _along_rows(log_a):
    """The right entries, added up along the wrong axis."""
    return torch.where(_later(log_a), log_a[..., :, None], 0.0).cumsum(-1).exp().tril()


def _all_pairs(log_a):
    """Decays without the mask: 1 above the diagonal."""
    return _mask_loop(log_a) + torch.ones(log_a.shape[-1], log_a.shape[-1], dtype=log_a.dtype).triu(1)


@exercise(
    "6.1",
    "The mask, safely",
    claim="004:listing-segsum",
    level=2,
    minutes=12,
    tolerance=1e-14,  # nothing is left after a reset
    cases=_mask_cases,
    oracle=_mask_loop,
    gradient=("log_a",),
    way=Way(case=lambda randn, length: (decays(randn, length),), differences=False),
    wrong={
        "your decay includes a_s: a token is written after its own decay, so the "
        "product runs over s < k ≤ t": lambda log_a: _mask_loop(log_a, first=0),
        "your decay leaves out a_t: the product runs over s < k ≤ t, and the "
        "diagonal is 1 all the same": lambda log_a: _mask_loop(log_a, last=0),
        "your product runs over s ≤ k < t: it is one step early at both ends. It "
        "should run over s < k ≤ t": lambda log_a: _mask_loop(log_a, first=0, last=0),
        "above the diagonal stands exp(0) = 1: the future is not masked": _all_pairs,
        "you add up along the rows: what belongs to one sum stands in one column, row under row, axis -2": _along_rows,
        "you divide running products and fill the holes with 0: after a decay of 0 that is 0 / 0, not a "
        "number, and what follows it is lost. Sum each segment on its own": _quotient,
        "you subtract running sums and fill the holes with 0: after a reset that is −∞ − (−∞), not a number, "
        "and what follows the reset is lost. Sum each segment on its own": _difference,
        "you subtract running sums that a strong decay has made huge: what follows it has few digits left. Sum "
        "each segment on its own": lambda log_a: _difference(log_a, least=-1e4),
        "a difference of running sums: after a reset −∞ − (−∞) is not a number. Sum each segment on its own": (
            lambda log_a: (log_a.cumsum(-1)[..., :, None] - log_a.cumsum(-1)[..., None, :]).exp().tril()
        ),
        "a quotient of running products: after a reset 0 / 0 is not a number. Sum each segment on its own": (
            lambda log_a: log_a.exp().cumprod(-1)[..., :, None] / log_a.exp().cumprod(-1)[..., None, :]
        ),
        "0 · ∞ is not a number: choose by `torch.where`, do not multiply by a mask": lambda log_a: (
            (log_a[..., :, None] * _later(log_a)).cumsum(-2).exp().tril()
        ),
        "rows and columns of the steps are exchanged: row k of them holds log a_k": lambda log_a: (
            torch.where(_later(log_a), log_a[..., None, :], 0.0).cumsum(-2).exp().tril()
        ),
        "what is masked is summed, or multiplied, too: a running sum needs zeros there, a running product ones, and "
        "the mask comes last": (lambda log_a: torch.zeros_like(_mask_loop(log_a))),
        "you multiply logarithms: add them up, then take the exponential": lambda log_a: (
            torch.where(_later(log_a), log_a[..., :, None], 1.0).cumprod(-2).tril()
        ),
        "you add up the decays: they multiply": lambda log_a: (
            torch.where(_later(log_a), log_a.exp()[..., :, None], 0.0).cumsum(-2).tril()
        ),
        "you cut strong decays off: what a reset leaves must be 0, and no decay is too strong for `exp`": (
            lambda log_a: _mask_loop(log_a.clamp(min=-1))
        ),
        "you clamp the log decays: what a reset leaves must be 0, and no decay is too strong for `exp`": lambda log_a: (
            _mask_loop(log_a.clamp(min=-10.0))
        ),
    },
)
def decay_mask(log_a):
    """L (..., T, T) with L[t, s] = exp of the sum of log_a over s < k ≤ t, and 0 above the diagonal.

    Compute the 1-semiseparable mask from log decays, resets included, without a difference of sums; the gradient with
    respect to log_a must be right too.

    Hint: Entry (t, s) needs its own sum, over s < k ≤ t. Write down column s of these sums: what is added from one row
    to the next?

    Hint: In column s every row k > s adds log_a[k], and the rows before add 0. So fill a matrix whose entry (k, s) is
    log_a[k] for k > s and 0 elsewhere, with `torch.where` (a product with a mask would give 0 · ∞).

    Hint: `steps.cumsum(-2)` runs down the columns. Above the diagonal the sums are 0, so take the exponential first and
    `.tril()` after it: nothing here can overflow.

    Insight: After a reset exp(−∞) = 0 appears by itself: documents that lie end to end need no other mask.
    """
    length = log_a.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool).tril(-1)
    steps = torch.where(later, log_a[..., :, None], 0.0)
    return steps.cumsum(-2).exp().tril()
