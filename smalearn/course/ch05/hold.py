"""Exercise 5.8: a continuous state space model whose input is held."""

import math

import torch

from smalearn.course.exercises.core import exercise


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


def _discretisation(input_factor, transition=torch.exp):
    """A discretisation with A_bar = transition(z) and B_bar = input_factor(dt, A, z) B, where z = dt A."""

    def discretise(dt, A, B):
        dt, z = dt[:, None], dt[:, None] * A
        return transition(z), input_factor(dt, A, z) * B

    return discretise


def _ratio(numerator, z):
    return torch.where(z == 0, 1, numerator / torch.where(z == 0, 1, z))


def _nineteen_terms(dt, A, z):
    """φ by the first terms of its series."""
    return dt * sum(z**n / math.factorial(n + 1) for n in range(19))


def _hold_cases(randn):
    def tensor(*numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    yield tensor(1.0), tensor(0.0), randn(1, 1)  # an integral: B_bar = dt B
    yield tensor(0.0, 1.0), tensor(0.0, -1.0), randn(2, 2)  # no time passes, or the rate is 0, or both
    yield tensor(1.0, 1.0), tensor(0.0), torch.zeros(2, 1, dtype=torch.float64)  # no input gets in
    yield tensor(0.5, 2.0), tensor(-1.0, -0.25), randn(2, 2)  # ordinary rates and steps
    yield tensor(1.0, 0.5), tensor(-7.0, -2.0), randn(2, 2)  # a fast decay, where a short series is far off
    yield tensor(1e-3, 1.0, 0.1), tensor(-1e-9, 0.0), randn(3, 2)  # next to 0, and 0
    yield (
        tensor(1.0, 0.5, 1.0),
        tensor(-5e-7, -5e-4),
        randn(3, 2),
    )  # small, but one or two terms of the series are too few


@exercise(
    "5.8",
    "A held input",
    claim="004:eq-ssm",
    level=2,
    minutes=12,
    cases=_hold_cases,
    oracle=_by_series,
    wrong={
        "right except near z = 0, where e^z - 1 subtracts nearly equal numbers and loses its digits: "
        "`torch.expm1(z)`": _discretisation(lambda dt, A, z: dt * _ratio(z.exp() - 1, z)),
        "this is Mamba's simplification B_bar = dt B: the input as one kick at the end of the step, which does "
        "not decay while the step lasts": _discretisation(lambda dt, A, z: dt),
        "your B_bar is (e^z - 1)/z B: the factor dt is missing. The right factor is "
        "dt (e^z - 1)/z = (e^(dt A) - 1)/A": _discretisation(lambda dt, A, z: _ratio(torch.expm1(z), z)),
        "your input decays for the whole step, e^z dt B: that is a kick at its beginning. A held input enters "
        "all the time, and the last of it hardly decays": _discretisation(lambda dt, A, z: dt * z.exp()),
        "this is Euler's step, A_bar = 1 + dt A: the first terms of the exponential. It even grows when dt |A| "
        "exceeds 2": _discretisation(lambda dt, A, z: dt, transition=lambda z: 1 + z),
        "where the rate is 0 you divide 0 by 0: what is held for a time dt adds up to dt B, φ(0) = 1": (
            lambda dt, A, B: ((dt[:, None] * A).exp(), torch.expm1(dt[:, None] * A) / A * B)
        ),
        "where the rate is 0 you divide 0 by 0, near it you lose digits: what is held for a time dt adds up to dt B, "
        "φ(0) = 1": (lambda dt, A, B: ((dt[:, None] * A).exp(), ((dt[:, None] * A).exp() - 1) / A * B)),
        "where a step is 0 you divide 0 by 0: in no time nothing enters, B_bar is 0; z is 0 there, not A": (
            _discretisation(lambda dt, A, z: dt * torch.where(A == 0, 1.0, torch.expm1(z) / z))
        ),
        "where the rate is 0 your 0 / 0 has become 0: what is held for a time dt adds up to dt B": _discretisation(
            lambda dt, A, z: (dt * torch.expm1(z) / z).nan_to_num(0.0)
        ),
        "where the rate is 0 your B_bar is B: what is held for a time dt adds up to dt B": _discretisation(
            lambda dt, A, z: torch.where(A == 0, 1, torch.expm1(z) / torch.where(A == 0, 1, A))
        ),
        "this is the bilinear rule, a quotient in place of the exponential: close for small steps, but not the "
        "hold": _discretisation(lambda dt, A, z: dt / (1 - z / 2), lambda z: (1 + z / 2) / (1 - z / 2)),
        "your A_bar is exact, your B_bar is that of the bilinear rule: the input is held, (e^z − 1)/z": _discretisation(
            lambda dt, A, z: dt / (1 - z / 2)
        ),
        "this is a kick in the middle of the step: a held input enters all the time": _discretisation(
            lambda dt, A, z: dt * (z / 2).exp()
        ),
        "a small number under the fraction makes B_bar 0 where the rate is 0: choose there by `torch.where`": (
            lambda dt, A, B: ((dt[:, None] * A).exp(), torch.expm1(dt[:, None] * A) / (A - 1e-12) * B)
        ),
        "your series of φ is too short for a fast decay: `torch.expm1` has all of it": _discretisation(_nineteen_terms),
        "this is backward Euler, a quotient in place of the exponential": _discretisation(
            lambda dt, A, z: dt / (1 - z), lambda z: 1 / (1 - z)
        ),
        "your rate is −e^A: A is the rate itself, z = dt A": lambda dt, A, B: hold(dt, -A.exp(), B),
        "your A_bar is e^z − 1: the −1 belongs to B_bar alone": _discretisation(
            lambda dt, A, z: dt * torch.where(z == 0, 1, _ratio(torch.expm1(z), z)), torch.expm1
        ),
        "a small number in the denominator makes φ 0 where the rate is 0, and moves it next to 0: choose there by "
        "`torch.where`": _discretisation(lambda dt, A, z: dt * torch.expm1(z) / (z + 1e-8)),
        "this is the average of a gate, 1 − A_bar: a held input enters with (A_bar − 1) / A": _discretisation(
            lambda dt, A, z: -torch.expm1(z)
        ),
        "you stop the series of φ after its third term: enough near 0, and wrong for a step of ordinary size": (
            _discretisation(lambda dt, A, z: dt * (1 + z / 2 + z**2 / 6))
        ),
        "you stop the series of φ after its second term, 1 + z/2: enough near 0, and wrong for a step of ordinary "
        "size": _discretisation(lambda dt, A, z: dt * (1 + z / 2)),
        "near z = 0 you put φ = 1, its first term alone: at z = -0.0005 that is wrong by 0.00025. `torch.expm1(z)` has "
        "all digits": _discretisation(lambda dt, A, z: dt * torch.where(z.abs() < 1e-3, 1, _ratio(torch.expm1(z), z))),
        "near z = 0 you put φ = 1, its first term alone: even at z = -0.0000005 that costs digits. `torch.expm1(z)` "
        "has them all": _discretisation(
            lambda dt, A, z: dt * torch.where(z.abs() < 1e-5, 1, _ratio(torch.expm1(z), z))
        ),
        "a small number in the denominator is not small beside a rate next to 0: put φ = 1 where z is 0, and change "
        "nothing elsewhere": lambda dt, A, B: (
            (dt[:, None] * A).exp(),
            torch.expm1(dt[:, None] * A) / (A + 1e-8) * B,
        ),
        "a small number in the denominator, even 1e-12, costs digits where the rate is next to 0: put φ = 1 where z is "
        "0, and change nothing elsewhere": lambda dt, A, B: (
            (dt[:, None] * A).exp(),
            torch.expm1(dt[:, None] * A) / (A + 1e-12) * B,
        ),
        "your A_bar is dt e^A: dt stands in the exponent, e^(dt A)": lambda dt, A, B: (
            dt[:, None] * A.exp(),
            hold(dt, A, B)[1],
        ),
        "beside φ stands the rate A in yours: what is held for a time dt adds up to dt φ B": _discretisation(
            lambda dt, A, z: A * _ratio(torch.expm1(z), z)
        ),
        "your steps all have the length of the first: `dt[t]` is the length of step t": lambda dt, A, B: hold(
            dt[:1].expand_as(dt), A, B
        ),
        "your rate has the wrong sign: the state decays by e^(dt A), A as it is": lambda dt, A, B: hold(dt, -A, B),
        "B is missing: the input enters by B_bar = dt φ B": lambda dt, A, B: hold(dt, A, torch.ones_like(B)),
        "your B_bar has the wrong sign: (e^z - 1)/A is positive, for both change their sign with A": lambda dt, A, B: (
            hold(dt, A, B)[0],
            -hold(dt, A, B)[1],
        ),
        "the factor dt counts twice: B_bar is dt φ B": _discretisation(
            lambda dt, A, z: dt**2 * _ratio(torch.expm1(z), z)
        ),
        "your B_bar is the hold's, your A_bar 1 + dt A, Euler's: the state decays by e^(dt A)": _discretisation(
            lambda dt, A, z: dt * _ratio(torch.expm1(z), z), lambda z: 1 + z
        ),
        "your A_bar is e^A: the state decays for a time dt, e^(dt A)": lambda dt, A, B: (
            A.exp().expand_as(B),
            hold(dt, A, B)[1],
        ),
        "this is a trapezoid: the mean of a kick at the beginning and one at the end is not the hold": _discretisation(
            lambda dt, A, z: dt * (1 + z.exp()) / 2
        ),
        "your exponents add up the steps: `dt[t]` is the length of step t, not the time since the beginning": (
            lambda dt, A, B: _discretisation(lambda step, A, z: dt[:, None] * _ratio(torch.expm1(z), z))(
                dt.cumsum(0), A, B
            )
        ),
        "your series of φ has the wrong sign: φ(z) = 1 + z/2 + z²/6 + …": _discretisation(
            lambda dt, A, z: dt * torch.where(z.abs() < 1e-3, 1 - z / 2, _ratio(torch.expm1(z), z))
        ),
        "you add up the steps: `dt[t]` is the length of step t, not the time since the beginning": lambda dt, A, B: (
            hold(dt.cumsum(0), A, B)
        ),
    },
)
def hold(dt, A, B):
    """The zero-order hold of h' = A h + B x: (A_bar, B_bar), (T, N) each, for dt (T,), rates A (N,) and B (T, N).

    Discretise h' = A h + B x, diagonal A, for an input that is constant while a step lasts. Steps and rates may be 0.

    Hint: With z = dt A the step is h -> e^z h + dt φ(z) B x, where φ(z) = (e^z - 1)/z. What is φ(0)?

    Hint: Near 0, e^z - 1 loses its digits: `torch.expm1(z)` is accurate.

    Hint: Put a 1 for z where z is 0, divide, and put φ = 1 there: `torch.where(z == 0, 1, z)`.

    Insight: For small dt the hold is nearly Euler's step, and for large dt the state forgets and takes x B/|A|: one
    rate is all that gates it.
    """
    z = dt[:, None] * A
    safe = torch.where(z == 0, 1, z)
    phi = torch.where(z == 0, 1, torch.expm1(safe) / safe)
    return z.exp(), dt[:, None] * phi * B
