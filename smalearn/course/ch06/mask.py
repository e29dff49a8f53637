"""The exercise of chapter 06 on the mask, and the random decays of all its exercises."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


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
    later = torch.ones(length, length, dtype=torch.bool, device=log_a.device).tril(-1)
    steps = torch.where(later, log_a[..., :, None], 0.0)
    return steps.cumsum(-2).exp().tril()


def decays(randn, *shape):
    """Log decays, mild but never 0."""
    return -0.1 - randn(*shape).abs()


def with_a_reset(log_a):
    """Log decays with a reset in the middle of every row, and a strong decay before it where there is room."""
    middle = log_a.shape[-1] // 2
    log_a = log_a.clone()
    log_a[..., max(middle - 1, 0)] = -1e4
    log_a[..., middle] = -torch.inf
    return log_a


def _mask_cases(randn):
    yield (decays(randn, 1),)
    yield (torch.zeros(3, dtype=torch.float64),)
    yield (decays(randn, 4),)
    yield (with_a_reset(decays(randn, 5)),)
    yield (torch.cat([torch.full((2,), -1e4), decays(randn, 5)]),)
    yield (with_a_reset(decays(randn, 2, 6)),)
    # a clamp at −30 takes the last gradient, 1e-15, away from 1e-10: in float32, too, where the last case is trained
    yield (torch.tensor([-0.5, -22, -torch.inf, -22, -33], dtype=torch.float64),)


def _mask_loop(log_a):
    """One product after the other: a_k over s < k ≤ t."""
    a, length = log_a.exp(), log_a.shape[-1]
    L = torch.zeros(*log_a.shape, length, dtype=log_a.dtype)
    for t in range(length):
        for s in range(t + 1):
            L[..., t, s] = a[..., s + 1 : t + 1].prod(-1)
    return L


def differences(log_a):
    """The mask by differences of running sums."""
    sums = log_a.cumsum(-1)
    return (sums[..., :, None] - sums[..., None, :]).exp().tril()


def clamped_differences(limit):
    """The mask by differences of running sums that can be no −∞."""
    return lambda log_a: differences(log_a.clamp(min=-limit))


def quotients(log_a):
    """The mask, and more above the diagonal, by quotients of running products."""
    products = log_a.exp().cumprod(-1)
    return products[..., :, None] / products[..., None, :]


exercise(
    "6.1",
    "The mask, safely",
    claim="004:listing-segsum",
    level=2,
    minutes=12,
    tolerance=1e-14,  # and nothing is left after a reset
    cases=_mask_cases,
    oracle=_mask_loop,
    gradient=("log_a",),
    way=Way(case=lambda randn, length: (decays(randn, length),), differences=False),
    wrong={
        "your decay includes a_s: a token is written after its own decay, "
        "so the product runs over s < k ≤ t": ".tril(-1) → .tril()",
        "above the diagonal stands exp(0) = 1: the future is not masked": ".exp().tril() → .exp()",
        "you add up along the rows: what belongs to one sum stands in one column, "
        "row under row, axis -2": "cumsum(-2) → cumsum(-1)",
        "you subtract running sums and fill the holes with 0: after a reset that is −∞ − (−∞), not a number, and "
        "what follows the reset is lost. Sum each segment on its own": lambda log_a: differences(log_a).nan_to_num(0.0),
        **{
            f"you clamp at −{limit:,} and subtract running sums: a strong decay makes them huge, "
            "and what follows it has few digits left. Sum each segment on its own": clamped_differences(limit)
            for limit in (10**3, 10**4, 10**5, 10**6, 10**9)
        },
        "a difference of running sums: after a reset −∞ − (−∞) is not a number. "
        "Sum each segment on its own": differences,
        "0 · ∞ is not a number: choose by `torch.where`, "
        "do not multiply by a mask": "torch.where(later, log_a[..., :, None], 0.0) → log_a[..., :, None] * later",
        "you multiply logarithms: add them up, then take the exponential": "0.0 → 1.0 ; cumsum(-2).exp() → cumprod(-2)",
        "you add up the decays: they multiply": "log_a[ → log_a.exp()[ ; cumsum(-2).exp() → cumsum(-2)",
        **{
            f"you cut log decays off at −{limit}: what a reset leaves must be 0, "
            "and no decay is too strong for `exp`": f"log_a[ → log_a.clamp(min=-{limit})["
            for limit in (1, 10, 20, 30)
        },
        "after a reset a little of what was before it is left: it must be 0, to the last digit. "
        "Clamp nothing and add nothing, exp(−∞) is 0 by itself": "log_a[ → log_a.clamp(min=-60)[",
        "you add a small number to the decays: what a reset leaves must be 0, "
        "and exp(−∞) is 0 by itself": "log_a[ → (log_a.exp() + 1e-6).log()[",
    },
)(decay_mask)
