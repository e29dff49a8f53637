"""The exercise of chapter 12 on where exponents break."""

import torch

from smalearn.course.exercises.core import exercise

__all__ = ["decay_tile"]


def break_exponents(form, least, length):
    """Log decays (length,) to base 2, finite, from `least` to 0, for which `decay_tile(form, …)` is not finite.

    Hint: The largest number in float32 is a little below 2^128. Which exponent does the form raise 2 to, at most?

    Hint: Its size is the sum of all log decays, or nearly. How large can you make that?

    Insight: No decay here is extreme, mostly 1/4096 a token: it is their product over a chunk that float32 cannot hold.
    """
    return torch.full((length,), least)


def decay_tile(form, log2_a):
    """L of a chunk in float32, 2^(s_i − s_j) for j ≤ i, by a form that breaks: "quotient" or "late mask"."""
    s = log2_a.float().cumsum(0)
    if form == "quotient":
        return (s.exp2()[:, None] * (-s).exp2()).tril()
    return (s[:, None] - s).exp2() * torch.ones(len(s), len(s)).tril()


def _survives(answer, form, least, length):
    if not isinstance(answer, torch.Tensor) or answer.shape != (length,):
        found = f"; yours has the shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else ""
        return f"a tensor of {length} numbers, ({length},), is asked for{found}"
    if not answer.isfinite().all():
        return f"finite numbers are asked for; yours has {answer[~answer.isfinite()][0].item()}"
    if answer.min() < least or answer.max() > 0:
        return f"the log decays must lie between {least:g} and 0"
    if decay_tile(form, answer).isfinite().all():
        power = -answer[form == "late mask" :].sum().item()  # what is late leaves out the first
        return f"the form “{form}” gives finite numbers for these: the largest is 2^{power:.0f}, float32 goes to 2^128"
    return ""


def _break_cases(randn):
    yield from (("quotient", -12.0, 16), ("late mask", -12.0, 16), ("quotient", -3.0, 64), ("late mask", -40.0, 32))


exercise(
    "12.6",
    "Where exponents break",
    claim="004:listing-kernel",
    kind="break",
    level=1,
    minutes=6,
    cases=_break_cases,
    refuse=_survives,
    wrong={
        "nothing decays: all powers are 1": "least → 0.0",
        "these are mild: most of the range that float32 has is left": "least → -1.0",
        "one strong decay alone is a power that float32 holds: their sum must pass "
        "128": "torch.full((length,), least) → torch.zeros(length).index_fill(0, torch.tensor(length // 2), least)",
        "a reset is no finite number, and is not needed": "least → -torch.inf",
    },
)(break_exponents)
