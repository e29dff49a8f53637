"""Exercise 5.8: a continuous state space model whose input is held."""

import math

import torch

from smalearn.course.exercises.core import exercise


def hold(dt, A, B):
    """The zero-order hold of h' = A h + B x: (A_bar, B_bar), (T, N) each, for dt (T,), rates A (N,) and B (T, N).

    Discretise h' = A h + B x, diagonal A, for an input that is constant while a step lasts. Steps and rates may be 0.

    Hint: With z = dt A the step is h -> e^z h + dt φ(z) B x, where φ(z) = (e^z - 1)/z. What is φ(0)?

    Hint: Near 0, e^z - 1 loses its digits: `torch.expm1(z)` is accurate.

    Hint: Put a 1 for z where z is 0, divide, and put φ = 1 there: `torch.where(z == 0, 1, z)`.

    Insight: In a short step the state keeps nearly all it has, and dt B x is added. In a long one, where A < 0, it is
    forgotten, and -B x / A takes its place.
    """
    z = dt[:, None] * A
    safe = torch.where(z == 0, 1, z)
    phi = torch.where(z == 0, 1, torch.expm1(safe) / safe)
    return z.exp(), dt[:, None] * phi * B


def _hold_cases(randn):
    def tensor(*numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    yield tensor(1.0), tensor(0.0), randn(1, 1)  # an integral: B_bar = dt B
    yield tensor(0.0, 1.0), tensor(0.0, -1.0), randn(2, 2)  # no time passes, or the rate is 0, or both
    yield tensor(1.0, 1.0), tensor(0.0), torch.zeros(2, 1, dtype=torch.float64)  # no input gets in
    yield tensor(0.5, 2.0), tensor(-1.0, -0.25), randn(2, 2)  # ordinary rates and steps
    yield tensor(1.0, 0.5), tensor(-7.0, -2.0), randn(2, 2)  # a fast decay, where a short series is far off
    yield tensor(1e-3, 1.0, 0.1), tensor(-1e-9, 0.0), randn(3, 2)  # next to 0, and 0
    small = tensor(-5e-7, -5e-4)  # but one or two terms of the series are too few
    yield tensor(1.0, 0.5, 1.0), small, randn(3, 2)


def _by_series(dt, A, B):
    """(A_bar, B_bar), the integral ∫_0^dt exp(s A) ds in B_bar by 199 terms of its power series, entry by entry."""
    A_bar, B_bar = torch.zeros_like(B), torch.zeros_like(B)
    for t, step in enumerate(dt.tolist()):
        for n, rate in enumerate(A.tolist()):
            terms = [step]
            for k in range(2, 200):
                terms.append(terms[-1] * step * rate / k)
            A_bar[t, n] = math.exp(step * rate)
            B_bar[t, n] = math.fsum(terms) * B[t, n]
    return A_bar, B_bar


exercise(
    "5.8",
    "A held input",
    claim="004:eq-ssm",
    level=2,
    minutes=12,
    cases=_hold_cases,
    oracle=_by_series,
    wrong={
        "right except near z = 0, where e^z - 1 subtracts nearly equal numbers and loses its digits: "
        "`torch.expm1(z)`": "torch.expm1(safe) → (safe.exp() - 1)",
        "this is Mamba's simplification B_bar = dt B: the input as one kick at the end of the step, "
        "which does not decay while the step lasts": "dt[:, None] * phi * B → dt[:, None] * B",
        "your B_bar is (e^z - 1)/z B: the factor dt is missing. "
        "The right factor is dt (e^z - 1)/z = (e^(dt A) - 1)/A": "dt[:, None] * phi * B → phi * B",
        "your input decays for the whole step, e^z dt B: that is a kick at its beginning. "
        "A held input enters all the time, and the last of it hardly decays": "phi * B → z.exp() * B",
        "this is Euler's step, A_bar = 1 + dt A: the first terms of the exponential. "
        "It even grows when dt |A| exceeds 2": "z.exp(), dt[:, None] * phi → 1 + z, dt[:, None]",
        "where the rate is 0 you divide 0 by 0, near it you lose digits: "
        "what is held for a time dt adds up to dt B, φ(0) = 1": "dt[:, None] * phi → (z.exp() - 1) / A",
        "where a step is 0 you divide 0 by 0: in no time nothing enters, B_bar is 0; "
        "z is 0 there, not A": "z == 0 → A == 0",
        "where the rate is 0 your B_bar is 0: "
        "what is held for a time dt adds up to dt B": "z == 0, 1, torch → z == 0, 0, torch",
        "where the rate is 0 your B_bar is B: "
        "what is held for a time dt adds up to dt B": "dt[:, None] * phi → torch.where(A == 0, 1, torch.expm1(z) / A)",
        "this is the bilinear rule, a quotient in place of the exponential: close for small steps, "
        "but not the hold": "z.exp(), dt[:, None] * phi → (1 + z / 2) / (1 - z / 2), dt[:, None] / (1 - z / 2)",
        "your A_bar is exact, your B_bar is that of the bilinear rule: the input is held, "
        "(e^z − 1)/z": "* phi → / (1 - z / 2)",
        "this is a kick in the middle of the step: a held input enters all the time": "* phi → * (z / 2).exp()",
        "a small number under the fraction makes B_bar 0 where the rate is 0: "
        "choose there by `torch.where`": "dt[:, None] * phi → torch.expm1(z) / (A - 1e-12)",
        "your series of φ is too short for a fast decay: "
        "`torch.expm1` has all of it": "* phi → * sum(z**n / math.factorial(n + 1) for n in range(19))",
        "this is backward Euler, "
        "a quotient in place of the exponential": "z.exp(), dt[:, None] * phi → 1 / (1 - z), dt[:, None] / (1 - z)",
        "your rate is −e^A: A is the rate itself, z = dt A": "* A → * -A.exp()",
        "your A_bar is e^z − 1: the −1 belongs to B_bar alone": "z.exp() → torch.expm1(z)",
        "a small number in the denominator makes φ 0 where the rate is 0, and moves it next to 0: "
        "choose there by `torch.where`": "* phi → * torch.expm1(z) / (z + 1e-8)",
        "this is the average of a gate, 1 − A_bar: "
        "a held input enters with (A_bar − 1) / A": "dt[:, None] * phi → -torch.expm1(z)",
        "you stop the series of φ after its third term: enough near 0, "
        "and wrong for a step of ordinary size": "* phi → * (1 + z / 2 + z**2 / 6)",
        "you stop the series of φ after its second term, 1 + z/2: enough near 0, "
        "and wrong for a step of ordinary size": "* phi → * (1 + z / 2)",
        "near z = 0 you put φ = 1, its first term alone: at z = -0.0005 that is wrong by 0.00025. "
        "`torch.expm1(z)` has all digits": "phi = torch.where(z == 0, → phi = torch.where(z.abs() < 1e-3,",
        "near z = 0 you stop the series of φ after its second term, 1 + z/2: at z = -0.0005 the third is 0.00000004. "
        "`torch.expm1(z)` has all digits": "z == 0, 1, torch → z.abs() < 1e-3, 1 + z / 2, torch",
        "a small number in the denominator is not small beside a rate next to 0: put φ = 1 where z is 0, "
        "and change nothing elsewhere": "dt[:, None] * phi → torch.expm1(z) / (A + 1e-8)",
        "a small number in the denominator, even 1e-12, costs digits where the rate is next to 0: "
        "put φ = 1 where z is 0, and change nothing elsewhere": "dt[:, None] * phi → torch.expm1(z) / (A + 1e-12)",
        "your A_bar is dt e^A: dt stands in the exponent, e^(dt A)": "z.exp() → dt[:, None] * A.exp()",
        "beside φ stands the rate A in yours: "
        "what is held for a time dt adds up to dt φ B": "dt[:, None] * phi → A * phi",
        "the factor dt counts twice: B_bar is dt φ B": "* phi → * dt[:, None] * phi",
        "your B_bar is the hold's, your A_bar 1 + dt A, Euler's: the state decays by e^(dt A)": "z.exp() → 1 + z",
        "this is a trapezoid: "
        "the mean of a kick at the beginning and one at the end is not the hold": "* phi → * (1 + z.exp()) / 2",
        "your exponents add up the steps: `dt[t]` is the length of step t, "
        "not the time since the beginning": "z = dt → z = dt.cumsum(0)",
        "your series of φ has the wrong sign: "
        "φ(z) = 1 + z/2 + z²/6 + …": "phi = torch.where(z == 0, 1, → phi = torch.where(z.abs() < 1e-3, 1 - z / 2,",
    },
)(hold)
