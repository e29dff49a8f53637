"""The exercises of chapter 09 about Mamba-3: a hand that turns, keys that turn back, a second factor of the mask."""

import math

import torch

from smalearn.course.exercises.core import exercise

# ----------------------------------------------------------------------------------------------------- 9.1 five hours


@exercise(
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
)
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


# ------------------------------------------------------------------------------------------------- 9.2 turned back


def _turned_loop(x, theta):
    """Each pair as a complex number, multiplied by e^(-iφ), one token after the other."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    rows, phi = [], torch.zeros(theta.shape[:-1], dtype=theta.dtype)
    for t in range(x.shape[-2]):
        phi = phi + theta[..., t]
        rows.append(pairs[..., t, :] * torch.polar(torch.ones_like(phi), -phi)[..., None])
    return torch.view_as_real(torch.stack(rows, -2)).flatten(-2)


def _turn(x, phi, pairing="neighbours", first_only=False):
    """Every pair turned back by phi (..., T)."""
    if pairing == "neighbours":
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, -1)
    cos, sin = phi.cos()[..., None], phi.sin()[..., None]
    turned = [a * cos + b * sin, b * cos - a * sin]
    y = torch.stack(turned, -1).flatten(-2) if pairing == "neighbours" else torch.cat(turned, -1)
    return torch.cat([y[..., :2], x[..., 2:]], -1) if first_only else y


def _mirrored(x, theta):
    a, b = x[..., 0::2], x[..., 1::2]
    phi = theta.cumsum(-1)
    cos, sin = phi.cos()[..., None], phi.sin()[..., None]
    return torch.stack([a * cos + b * sin, a * sin - b * cos], -1).flatten(-2)


def _overwritten(x, theta):
    """The second number of a pair is made of the first one's new value."""
    cos, sin = theta.cumsum(-1).cos()[..., None], theta.cumsum(-1).sin()[..., None]
    first = x[..., 0::2] * cos + x[..., 1::2] * sin
    return torch.stack([first, x[..., 1::2] * cos - first * sin], -1).flatten(-2)


def _own_frequencies(x, theta):
    """As rotary position embeddings: pair k turns 10000^(-2k/N) times as fast."""
    pairs = x.shape[-1] // 2
    parts = [theta.cumsum(-1) * 10000 ** (-k / pairs) for k in range(pairs)]
    return torch.cat([_turn(x[..., 2 * k : 2 * k + 2], phi) for k, phi in enumerate(parts)], -1)


def _pairs_of(pair, last=-1):
    """New pairs by a formula, beside each other or, where that is forgotten, all first numbers before all second."""

    def wrong(x, theta):
        phi = theta.cumsum(-1)[..., None]
        new = pair(x[..., 0::2], x[..., 1::2], phi.cos(), phi.sin())
        return torch.stack(new, last).flatten(-2) if last == -1 else torch.cat(new, -1)

    return wrong


def _turned_cases(randn):
    for leading, T, N in [((), 1, 2), ((), 3, 2), ((), 4, 6), ((2,), 5, 4), ((2, 3), 4, 2)]:
        yield randn(*leading, T, N), randn(*leading, T)


@exercise(
    "9.2",
    "Turned back",
    claim="006:rotary",
    level=2,
    minutes=10,
    cases=_turned_cases,
    gradient=("x", "theta"),
    oracle=_turned_loop,
    wrong={
        "each token turns by its own angle alone: sum the angles up to it": lambda x, theta: _turn(x, theta),
        "you turn forwards: back means by minus the sum": lambda x, theta: _turn(x, -theta.cumsum(-1)),
        "the token's own angle is missing in its sum": lambda x, theta: _turn(x, theta.cumsum(-1) - theta),
        "every token turns by the sum of all angles: the sum ends at the token": lambda x, theta: _turn(
            x, theta.sum(-1, keepdim=True) + 0 * theta
        ),
        "your sums run from the end: a token's sum has the angles up to its own": lambda x, theta: _turn(
            x, theta.flip(-1).cumsum(-1).flip(-1)
        ),
        "you pair feature k with k + N/2: here neighbours are a pair": lambda x, theta: _turn(
            x, theta.cumsum(-1), pairing="halves"
        ),
        "only the first pair turns: all of them do": lambda x, theta: _turn(x, theta.cumsum(-1), first_only=True),
        "this is a reflection: a turn back is (a cos φ + b sin φ, b cos φ − a sin φ)": _mirrored,
        "one sign is wrong: the pair turned back is (a cos φ + b sin φ, b cos φ − a sin φ)": _pairs_of(
            lambda a, b, cos, sin: [a * cos + b * sin, a * sin + b * cos]
        ),
        "cosine and sine have changed places": _pairs_of(lambda a, b, cos, sin: [a * sin + b * cos, b * sin - a * cos]),
        "all first numbers stand before all second ones: neighbours are a pair, so `stack`, then `flatten(-2)`": (
            _pairs_of(lambda a, b, cos, sin: [a * cos + b * sin, b * cos - a * sin], last=0)
        ),
        "the second number is made of the first one's new value: both need the old pair": _overwritten,
        "each pair has a frequency of its own, as in rotary positions: here all pairs of a token turn by φ_t": (
            _own_frequencies
        ),
        "the angle times the position is their sum only if all angles are equal: sum them": lambda x, theta: _turn(
            x, theta * torch.arange(theta.shape[-1], dtype=theta.dtype)
        ),
        "the angle times the count of tokens is their sum only if all angles are equal: sum them": lambda x, theta: (
            _turn(x, theta * torch.arange(1, theta.shape[-1] + 1, dtype=theta.dtype))
        ),
        "you sum over the first axis: time is the last one of theta": lambda x, theta: _turn(x, theta.cumsum(0)),
        "the sines are missing: lengths must stay": lambda x, theta: x * theta.cumsum(-1).cos()[..., None],
        "your angles are degrees: these are radians": lambda x, theta: _turn(x, theta.cumsum(-1) * math.pi / 180),
        "you multiply by the angle: it turns, and scales nothing": lambda x, theta: x * theta.cumsum(-1)[..., None],
    },
)
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


# --------------------------------------------------------------------------------------------- 9.3 the second factor


def _mask(a, beta, gamma):
    """The matrix of the scalar recurrence h_t = a_t h_(t-1) + β_t x_(t-1) + γ_t x_t, column by column."""
    T = len(a)
    L = torch.zeros(T, T, dtype=a.dtype)
    for s in range(T):
        h = torch.zeros((), dtype=a.dtype)
        for t in range(T):
            h = a[t] * h + (beta[t] if t == s + 1 else 0) + (gamma[t] if t == s else 0)
            L[t, s] = h
    return L


def _decays(a):
    one, zero = torch.ones_like(a), torch.zeros_like(a)
    return _mask(a, zero, one)


def _factor(a, beta, gamma):
    return torch.linalg.solve(_decays(a), _mask(a, beta, gamma))


def _factor_cases(randn):
    for T in (1, 2, 3, 5, 8):
        yield torch.sigmoid(randn(T)), randn(T), randn(T)


def _placed(below, a, beta, gamma, main=None):
    D = torch.diag(gamma if main is None else main)
    return D + torch.diag(below, -1)[: len(a), : len(a)] if len(a) > 1 else D


@exercise(
    "9.3",
    "The second factor",
    claim="006:product",
    kind="prove",
    level=2,
    minutes=6,
    cases=_factor_cases,
    oracle=_factor,
    wrong={
        "β_t stands in row t: it weighs token t − 1, as token t arrives": lambda a, beta, gamma: _placed(
            beta[:-1], a, beta, gamma
        ),
        "β stands above the diagonal: there it would weigh a token that comes later": lambda a, beta, gamma: (
            _placed(beta[1:], a, beta, gamma).mT
        ),
        "β stands above the diagonal, and in the row before its own: it goes below, in row t": (
            lambda a, beta, gamma: _placed(beta[:-1], a, beta, gamma).mT
        ),
        "a_t is one too many: β_t has the decay from t − 1 to t in it, and L has those after t": (
            lambda a, beta, gamma: _placed((a * beta)[1:], a, beta, gamma)
        ),
        "γ is missing on the diagonal": lambda a, beta, gamma: _placed(beta[1:], a, beta, gamma, torch.ones_like(a)),
        "β is missing: x_(t−1) is added at step t, too, with the weight β_t": lambda a, beta, gamma: torch.diag(gamma),
        "this is the whole mask: L stands to the left of your factor": _mask,
        "γ is missing: your diagonal is 0": lambda a, beta, gamma: _placed(beta[1:], a, beta, gamma, 0 * a),
        "both stand on the diagonal: β_t weighs the token before, one place below it": lambda a, beta, gamma: (
            torch.diag(beta + gamma)
        ),
        "you divide β_t by a_t, but at t L does not decay what enters there: L[t, t] = 1": (
            lambda a, beta, gamma: _placed((beta / a)[1:], a, beta, gamma)
        ),
        "β_0 stands in the last column of row 0: no token comes before the first": lambda a, beta, gamma: (
            torch.diag(gamma) + torch.diag(beta).roll(-1, 1)
        ),
        "this solves L₃ = D L: L stands to the left, L D": lambda a, beta, gamma: torch.linalg.solve(
            _decays(a), _mask(a, beta, gamma), left=False
        ),
        "β has the wrong sign": lambda a, beta, gamma: _placed(-beta[1:], a, beta, gamma),
        "β_t weighs the token just before t alone: your β fills the whole row up to the diagonal": (
            lambda a, beta, gamma: torch.diag(gamma) + beta[:, None].expand(len(a), len(a)).tril(-1)
        ),
        "β stands two places below the diagonal: token t − 1 is one place below": lambda a, beta, gamma: (
            torch.diag(gamma) + (torch.diag(beta[2:], -2) if len(a) > 2 else 0)
        ),
        "below the diagonal stands −a, as in the inverse of L: β belongs there": lambda a, beta, gamma: _placed(
            -a[1:], a, beta, gamma
        ),
        "β and γ have changed places, and γ stands one row too low": lambda a, beta, gamma: _placed(
            gamma[:-1], a, beta, gamma, beta
        ),
        "β_0 is added to the diagonal, in row 0: no token comes before the first": lambda a, beta, gamma: _placed(
            beta[1:], a, beta, gamma, torch.cat([gamma[:1] + beta[:1], gamma[1:]])
        ),
        "β_t alone weighs the token before: yours has its γ, too": lambda a, beta, gamma: _placed(
            gamma[:-1] * beta[1:], a, beta, gamma
        ),
        "β stands two places below the diagonal: one place below is token t − 1": lambda a, beta, gamma: (
            torch.diag(gamma) + torch.diag(beta[2:], -2)
        ),
        "β and γ have changed places": lambda a, beta, gamma: _placed(gamma[1:], a, beta, gamma, beta),
        "your factor ends at the first β": lambda a, beta, gamma: _placed(
            beta[1:] * (torch.arange(len(a) - 1) == 0), a, beta, gamma
        ),
    },
)
def second_factor(a, beta, gamma):
    """The matrix D (T, T) with L₃ = L D, where L[t, s] = a_t … a_(s+1) is the mask of the decays a (T,).

    L₃ is the mask of h_t = a_t h_(t−1) + β_t x_(t−1) + γ_t x_t; beta and gamma are (T,).

    Hint: L x is h_t = a_t h_(t−1) + x_t. What has to stand in place of x_t?

    Hint: D x must be β_t x_(t−1) + γ_t x_t: γ on the diagonal, and β_1, β_2, … just below it.

    Insight: A filter of two taps, and then a decay. Mamba-2 has a filter, too, the short convolution of four taps
    before its SSD. This one and the biases on keys and queries make it unnecessary, says the paper.
    """
    return torch.diag(gamma) + torch.diag(beta[1:], -1)
