"""The exercises of chapter 09 about Mamba-3: a hand that turns, keys that turn back, a second factor of the mask."""

import math

import torch

from smalearn.course.exercises.core import exercise


def degrees():
    """The angle of token 3, in degrees from 0 to 360.

    A clock has five hours, and token d moves its hand by d of them. By how many degrees does token 3 turn it forward?

    Hint: One hour is a fifth of a circle.

    Hint: 360 / 5 is one hour; token 3 moves the hand by three of these.

    Too little: An hour is a fifth of the circle, and token 3 moves the hand by three of them.

    Too much: Token 3 moves the hand by three hours, and five of them are the whole circle.

    Insight: Full turns vanish, and that is all there is to “modulo 5”: angles add, and 360° is 0°.
    """
    return 3 * 360 / 5


exercise(
    "9.1",
    "A clock with five hours",
    claim="006:modular",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=1e-3,
    oracle=lambda: 216.0,
    wrong={
        "this is the angle of one hour, 360/5: the token moves the hand by three": lambda: 72.0,
        "this is 360/3: the clock has five hours": lambda: 120.0,
        "this is 3 · 36: five hours fill the whole circle, 360°, not half of it": lambda: 108.0,
        "this is two hours, or three of them backwards": lambda: 144.0,
        "this is the same turn, counted backwards: give it from 0 to 360": lambda: -144.0,
        "this is the same turn and a full one: give it from 0 to 360": lambda: 576.0,
        "this is the way back: with it the hand would run the other way": lambda: -216.0,
        "these are radians: a full turn is 360 degrees": lambda: 1.2 * math.pi,
        "this is a part of a turn, 3/5: a turn is 360 degrees": lambda: 0.6,
        "these are hours: one of them is 360/5 degrees": lambda: 3.0,
        "this is a full turn, five hours: the token moves the hand by three": lambda: 360.0,
        "this is four hours, one too many": lambda: 288.0,
        "this is 3 of 12 hours: the clock has five": lambda: 90.0,
        "this is 3 of 4 hours: the clock has five": lambda: 270.0,
        "this is 3 of 6 hours, half a turn: the clock has five": lambda: 180.0,
        "this is two thirds of a turn: three of five hours are three fifths": lambda: 240.0,
        "with 0 the hand would not move: the token moves it by three hours": lambda: 0.0,
    },
)(degrees)


def turned(x, theta):
    """Each pair of neighbouring features of x, turned back by the sum of all angles so far.

    x is (..., T, N) with N even, theta (..., T) in radians. The pair (a, b) of token t is a point in a plane; turn it
    by −φ_t, where φ_t = θ_0 + … + θ_t.

    Hint: `phi = theta.cumsum(-1)[..., None]` is an angle for each token, with an axis for the features.

    Hint: `a, b = x[..., 0::2], x[..., 1::2]`; the pair becomes (a cos φ + b sin φ, b cos φ − a sin φ).

    Hint: `torch.stack([first, second], -1).flatten(-2)` puts neighbours side by side again.

    Insight: In the score of two tokens only φ_t − φ_s is left of both turns, the angles in between. No state has
    turned.
    """
    phi = theta.cumsum(-1)[..., None]
    a, b = x[..., 0::2], x[..., 1::2]
    pair = [a * phi.cos() + b * phi.sin(), b * phi.cos() - a * phi.sin()]
    return torch.stack(pair, -1).flatten(-2)


def _turned_loop(x, theta):
    """Each pair as a complex number, multiplied by e^(-iφ), one token after the other."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    rows, phi = [], torch.zeros(theta.shape[:-1], dtype=theta.dtype)
    for t in range(x.shape[-2]):
        phi = phi + theta[..., t]
        rows.append(pairs[..., t, :] * torch.polar(torch.ones_like(phi), -phi)[..., None])
    return torch.view_as_real(torch.stack(rows, -2)).flatten(-2)


def _turned_cases(randn):
    for leading, T, N in [((), 1, 2), ((), 3, 2), ((), 4, 6), ((2,), 5, 4), ((2, 3), 4, 2)]:
        yield randn(*leading, T, N), randn(*leading, T)


exercise(
    "9.2",
    "Turned back",
    claim="006:rotary",
    level=2,
    minutes=10,
    cases=_turned_cases,
    gradient=("x", "theta"),
    oracle=_turned_loop,
    wrong={
        "each token turns by its own angle alone: sum the angles up to it": "theta.cumsum(-1) → theta",
        "you turn forwards: back means by minus the sum": "theta.cumsum(-1) → -theta.cumsum(-1)",
        "one sign is wrong: the pair turned back is (a cos φ + b sin φ, b cos φ − a sin φ)": "cos() - a → cos() + a",
        "cosine and sine have changed places": "cos → tmp ; sin → cos ; tmp → sin",
        "all first numbers stand before all second ones: neighbours are a pair, "
        "so `stack`, then `flatten(-2)`": "torch.stack(pair, -1).flatten(-2) → torch.cat(pair, -1)",
        "the second number is made of the first one's new value: both need the "
        "old pair": "[a * phi.cos() + b * phi.sin(), → [a, ; pair = → a = a * phi.cos() + b * phi.sin()\n    pair =",
        "each pair has a frequency of its own, as in rotary positions: here all pairs of a token turn by "
        "φ_t": "[..., None] → [..., None] * 10000 ** -torch.linspace(0, 1, x.shape[-1] // 2 + 1, dtype=x.dtype)[:-1]",
        "you sum over the first axis: time is the last one of theta": "cumsum(-1) → cumsum(0)",
        "your angles are degrees: these are radians": "[..., None] → [..., None] * torch.pi / 180",
    },
)(turned)


def second_factor(a, mu, nu):
    """The matrix D (T, T) with L₃ = L D, where L[t, s] = a_t … a_(s+1) is the mask of the decays a (T,).

    L₃ is the mask of h_t = a_t h_(t−1) + μ_t x_(t−1) + ν_t x_t; mu and nu are (T,).

    Hint: L x is h_t = a_t h_(t−1) + x_t. What has to stand in place of x_t?

    Hint: D x must be μ_t x_(t−1) + ν_t x_t: ν on the diagonal, and μ_1, μ_2, … just below it.

    Insight: A filter of two taps, and then a decay. Mamba-2 has a filter, too, the short convolution of four taps
    before its SSD. This one and the biases on keys and queries make it unnecessary, says the paper.
    """
    return torch.diag(nu) + torch.diag(mu[1:], -1)


def _mask(a, mu, nu):
    """The matrix of the scalar recurrence h_t = a_t h_(t-1) + μ_t x_(t-1) + ν_t x_t, column by column."""
    T = len(a)
    L = torch.zeros(T, T, dtype=a.dtype)
    for s in range(T):
        h = torch.zeros((), dtype=a.dtype)
        for t in range(T):
            h = a[t] * h + (mu[t] if t == s + 1 else 0) + (nu[t] if t == s else 0)
            L[t, s] = h
    return L


def _decays(a):
    one, zero = torch.ones_like(a), torch.zeros_like(a)
    return _mask(a, zero, one)


def _factor(a, mu, nu):
    return torch.linalg.solve(_decays(a), _mask(a, mu, nu))


def _factor_cases(randn):
    for T in (1, 2, 3, 5, 8):
        yield torch.sigmoid(randn(T)), randn(T), randn(T)


exercise(
    "9.3",
    "The second factor",
    claim="006:product",
    kind="prove",
    level=2,
    minutes=6,
    cases=_factor_cases,
    oracle=_factor,
    wrong={
        "μ_t stands in row t: it weighs token t − 1, as token t arrives": "mu[1:] → mu[:-1]",
        "a_t is one too many: "
        "μ_t has the decay from t − 1 to t in it, and L has those after t": "mu[1:] → (a * mu)[1:]",
        "μ is missing: x_(t−1) is added at step t, too, with the weight μ_t": " + torch.diag(mu[1:], -1) → ",
        "this is the whole mask: L stands to the left of your factor": _mask,
        "both stand on the diagonal: μ_t weighs the token before, one place below it": "mu[1:], -1 → mu",
        "you divide μ_t by a_t, but at t L does not decay what enters there: L[t, t] = 1": "mu[1:] → (mu / a)[1:]",
        "this solves L₃ = D L: L stands to the left, L D": lambda a, mu, nu: torch.linalg.solve(
            _decays(a), _mask(a, mu, nu), left=False
        ),
        "μ has the wrong sign": "mu → -mu",
        "μ_t weighs the token just before t alone: your μ fills "
        "the whole row up to the diagonal": "torch.diag(mu[1:], -1) → mu[:, None].expand(len(a), len(a)).tril(-1)",
        "μ and ν have changed places, and ν stands one row too low": "nu → mu ; mu[1:] → nu[:-1]",
        "μ_0 is added to the diagonal, in row 0: "
        "no token comes before the first": "diag(nu) → diag(torch.cat([nu[:1] + mu[:1], nu[1:]]))",
        "μ_t alone weighs the token before: yours has its ν, too": "mu[1:] → nu[:-1] * mu[1:]",
        "μ stands two places below the diagonal: one place below is token t − 1": "mu[1:], -1 → mu[2:], -2",
        "μ and ν have changed places": "nu → mu ; mu[1:] → nu[1:]",
    },
)(second_factor)
