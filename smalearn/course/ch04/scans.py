"""The exercises of chapter 04 on scans: a constant decay, and the matrix of a decay that changes."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def decay_scan(x, gamma):
    """y_t = γ y_(t-1) + x_t, one step after the other.

    Multiply by the decay mask L[t, s] = γ^(t-s), s ≤ t, without forming it, in one pass over time.

    Hint: y_t and y_(t-1) add up almost the same terms. Each term of y_(t-1) has one factor γ less: what is y_t − γ
    y_(t-1)?

    Hint: Keep one row, `now`, which begins as zeros. Let it fade, then add the new token.

    Hint: In the loop, first a line that makes the new `now` out of γ, the old `now` and `x[t]`; then `y[t] = now`.

    Insight: With gradients for x this loop is the momentum of SGD; the averages of Adam also multiply the new term by
    1 − β.
    """
    y = torch.zeros_like(x)
    now = torch.zeros_like(x[0])
    for t in range(len(x)):
        now = gamma * now + x[t]
        y[t] = now
    return y


def _decay_cases(randn):
    yield randn(1, 1), 0.5
    for gamma in (0.0, 1.0):  # the identity and the running sum
        yield randn(3, 2), gamma
    yield randn(4, 2), 0.5
    yield randn(9, 3), 0.9
    for gamma in (0.01, 0.99):  # γ^t is 0 for a float, and what came first still counts
        yield randn(200, 2), gamma


def _decay_oracle(x, gamma):
    """y_t = Σ γ^(t-s) x_s over s ≤ t; 0^0 = 1."""
    rows = [[gamma ** (t - s) if s <= t else 0 for s in range(len(x))] for t in range(len(x))]
    return torch.tensor(rows, dtype=torch.float64) @ x


def _both_sides(x, gamma):
    t = torch.arange(len(x), dtype=x.dtype)
    return (gamma ** (t[:, None] - t)) @ x


def _quotients(x, gamma):
    """γ^t Σ x_s / γ^s."""
    powers = (gamma ** torch.arange(len(x), dtype=x.dtype))[:, None]
    return powers * (x / powers).cumsum(0)


exercise(
    "4.1",
    "A sum that fades",
    claim="000:mask-retnet",
    level=1,
    minutes=6,
    cases=_decay_cases,
    oracle=_decay_oracle,
    way=Way(case=lambda randn, length: (randn(length, 2), 0.9), memory=1, loops=1),
    wrong={
        "this is the running sum, γ = 1: what was summed so far must fade by γ at every step": "gamma * now → now",
        "your own token has decayed already: the diagonal of L is γ^0 = 1. "
        "Let the past fade, then add x_t": "gamma * now + x[t] → gamma * (now + x[t])",
        "only the token before is remembered: "
        "γ multiplies the last SUM y_(t-1), not the last x": "y[t] = now → y[t] = gamma * x[t - 1] * (t > 0) + x[t]",
        "you multiply the new token by 1 − γ: "
        "that is an exponential moving average. The mask has ones on its diagonal": "+ x[t] → + (1 - gamma) * x[t]",
        "your weight is γ^s, the place in the sequence: "
        "it must be γ^(t-s), the distance": "gamma * now + x[t] → now + gamma**t * x[t]",
        "your scan runs backwards: token t sees itself and what comes later": "range(len(x)) → reversed(range(len(x)))",
        "x_0 is counted twice: the sum begins with x_0, or with zeros before it": "torch.zeros_like(x[0]) → x[0]",
        "token 0 is lost: the sum begins with y_0 = x_0": "range(len(x)) → range(1, len(x))",
        "each step multiplies by γ^t: "
        "the sum before has faded by one step more, so it is multiplied by γ": "gamma * → gamma**t *",
        "γ^(t-s) stands above the diagonal, too, where s > t: there the mask is 0": _both_sides,
        "every term has the factor γ once: "
        "it must stand at what was summed so far, and so at every step": "gamma * now + x[t] → now + gamma * x[t]",
        "every row is the last sum: "
        "one tensor, changed in place, stands T times in your list": "return y → return y[-1:].expand_as(y)",
        "your decay is e^(−γ): γ itself is the factor": "gamma * → math.exp(-gamma) *",
        "your decay is e^γ: γ itself is the factor": "gamma * → math.exp(gamma) *",
        "you divide by γ^s, which is 0 for a float after enough tokens, and 0 / 0 is NaN: let the sum "
        "fade instead": lambda x, gamma: _quotients(x, gamma) if gamma else x,
        "this is the last sum alone: y has a row for every t": "return y → return now",
        "your sum runs along the columns: "
        "time is axis 0": "y = torch → x = x.mT\n    y = torch ; return y → return y.mT",
    },
)(decay_scan)


def break_it(form, least, length):
    """Log decays (length,) in float64, between `least` and 0, with an entry of the mask off by over 0.001 in this form.

    The form is "quotient", b_t / b_s of running products, or "difference", exp(c_t - c_s) of running sums.

    Hint: A product of many numbers below 1 gets small. What is the smallest number that float64 holds, and what is 0/0?

    Hint: A float64 has sixteen digits, wherever they stand. What is -1e16 - 0.7 - (-1e16)?

    Hint: For a quotient: all decays as strong as allowed, so that the running product is 0 before the end. For a
    difference: one decay at once as strong as allowed, then mild ones.

    Insight: Neither failure needs a reset, an error or a warning: mild decays and a long text are enough for the one,
    one very strong but finite decay for the other. So sum each segment for itself.
    """
    log_a = torch.full((length,), least if form == "quotient" else -0.7, dtype=torch.float64)
    log_a[0] = least
    return log_a


def _mask_by(form, log_a):
    """The 1-semiseparable mask by quotients of running products, or by differences of running sums."""
    b, sums = log_a.exp().cumprod(0), log_a.cumsum(0)
    return (b[:, None] / b if form == "quotient" else (sums[:, None] - sums).exp()).tril()


def _each_segment(log_a):
    """The same, every segment summed for itself."""
    return log_a[:, None].expand(len(log_a), len(log_a)).tril(-1).cumsum(0).exp().tril()


def _forms(randn):
    yield from [("quotient", -800.0, 3), ("difference", -1e16, 3), ("quotient", -1.0, 800), ("difference", -1e14, 64)]


def _survives(log_a, form, least, length):
    if not isinstance(log_a, torch.Tensor) or log_a.shape != (length,) or log_a.dtype != torch.float64:
        found = f"{tuple(log_a.shape)} in {log_a.dtype}" if isinstance(log_a, torch.Tensor) else type(log_a).__name__
        return f"the answer must be a tensor of shape ({length},) in float64, got {found}"
    if (log_a > 0).any():
        return "decays are at most 1, so their logarithms are at most 0"
    if not (log_a >= 1.000001 * least).all():  # also as float32 rounds it
        return f"log decays must be finite and lie between {least:g} and 0, got {log_a.min():g}"
    error = (_mask_by(form, log_a) - _each_segment(log_a)).abs().nan_to_num(torch.inf).max().item()
    right = f"right to {error:.0e}" if error > 1e-12 else "right"
    return "" if error > 1e-3 else f"by {form}s the mask is still {right}: {_why(form, log_a)}"


def _why(form, log_a):
    """What keeps the mask right."""
    if form == "quotient":
        return f"the running product ends at e^{log_a.sum():.0f}, and float64 goes down to e^−745"
    if log_a.sum() > -1e13:
        return "the running sums stay so small that float64 still has their thousandths"
    strongest = int(log_a.argmin())
    if strongest == len(log_a) - 1:
        return "digits are lost BEHIND a strong decay, and yours comes last"
    later = log_a[strongest + 1 :]
    mild = later[later > -7]  # e^-7 is a thousandth
    if not len(mild):
        return "behind the strong decay all entries are 0, or nearly, digits or not: try −0.7 there"
    if not mild.any():
        return "behind the strong decay stand zeros, which have no digits to lose"
    if mild.min() < -0.01:
        apart = math.ulp(log_a.min().item())
        return f"float64 numbers as large as your sums are {apart:g} apart; your decays are multiples of that: try −0.7"
    return "let mild decays follow the strong one, whose digits are lost"


MILD = 'least if form == "quotient" else -0.7, dtype=torch.float64) → -0.1).double()'

exercise(
    "4.2",
    "Where shortcuts break",
    claim="004:eq-1ss",
    kind="break",
    level=2,
    minutes=12,
    cases=_forms,
    refuse=_survives,
    wrong={
        "all decays are equal and strong: all entries below the diagonal are 0, by differences too": "-0.7 → least",
        "all decays are mild: "
        "sums of these keep their digits": "return log_a → return torch.full_like(log_a, max(least, -0.1))",
        "a reset breaks both, but it is not allowed here: nothing needs to be infinite": f"{MILD} ; least → -torch.inf",
        "the strong decay comes last: what is lost is lost BEHIND it": f"{MILD} ; [0] → [-1]",
    },
)(break_it)
