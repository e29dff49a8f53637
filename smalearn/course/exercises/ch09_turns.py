"""The exercises of chapter 09 about Mamba-3: a hand that turns, keys that turn back, two weights for each write."""

import math

import torch
from torch.nn import functional

from smalearn import fast
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
        "this is the same turn, told backwards: give it from 0 to 360": lambda: -144.0,
        "this is the same turn and a full one: give it from 0 to 360": lambda: 576.0,
        "this is the way back: with it the hand would run the other way": lambda: -216.0,
        "these are radians: a full turn is 360 degrees": lambda: 1.2 * math.pi,
    },
)
def degrees():
    """The angle of token 3, in degrees from 0 to 360.

    A clock has five hours, and token d moves its hand by d of them. By how many degrees does token 3 turn it forward?

    Hint: One hour is a fifth of a circle.

    Hint: 360 / 5 is one hour; token 3 moves the hand by three of these.

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
    oracle=_turned_loop,
    wrong={
        "each token turns by its own angle alone: sum the angles up to it": lambda x, theta: _turn(x, theta),
        "you turn forwards: back means by minus the sum": lambda x, theta: _turn(x, -theta.cumsum(-1)),
        "the token's own angle is missing in its sum": lambda x, theta: _turn(x, theta.cumsum(-1) - theta),
        "every token turns by the sum of all angles: the sum ends at the token": lambda x, theta: _turn(
            x, theta.sum(-1, keepdim=True) + 0 * theta
        ),
        "your sums run from the end: a token knows the angles before it": lambda x, theta: _turn(
            x, theta.flip(-1).cumsum(-1).flip(-1)
        ),
        "you pair feature k with k + N/2: here neighbours are a pair": lambda x, theta: _turn(
            x, theta.cumsum(-1), pairing="halves"
        ),
        "only the first pair turns: all of them do": lambda x, theta: _turn(x, theta.cumsum(-1), first_only=True),
        "this is a reflection: a turn back is (a cos φ + b sin φ, b cos φ − a sin φ)": _mirrored,
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

    Insight: Between two tokens only φ_t − φ_s is left of both turns: the angles in between, and no state has turned.
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
        "the decay is applied twice: L has it already": lambda a, beta, gamma: _placed((a * beta)[1:], a, beta, gamma),
        "γ is missing on the diagonal": lambda a, beta, gamma: _placed(beta[1:], a, beta, gamma, torch.ones_like(a)),
        "β is missing: each write counts twice": lambda a, beta, gamma: torch.diag(gamma),
        "this is the whole mask: L stands to the left of your factor": _mask,
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

    Insight: A filter of two taps, and then a decay. Mamba-2's short convolution is such a filter, of four taps, before
    the layer: that is why Mamba-3 does without.
    """
    return torch.diag(gamma) + torch.diag(beta[1:], -1)


# ------------------------------------------------------------------------------------------------- 9.4 one call


def _steps(Q, K, V, log_a, dt, share):
    """The recurrence, one token after the other."""
    H, before, rows = torch.zeros(V.shape[-1], K.shape[-1], dtype=V.dtype), 0, []
    for q, k, v, a, step, part in zip(Q, K, V, log_a.exp(), dt, share, strict=True):
        write = torch.outer(v, k)
        H = a * H + (1 - part) * step * a * before + part * step * write
        before = write
        rows.append(H @ q)
    return torch.stack(rows)


def _called(weight, own, Q, K, V, log_a):
    """One call with values scaled by `weight`, so that token t itself counts `own`."""
    Y, _ = fast.ssd(weight[:, None] * V, log_a, K, Q)
    return Y + ((own - weight) * (Q * K).sum(-1))[:, None] * V


def _next(x):
    return functional.pad(x[1:], (0, 1))


def _with(weight, own=lambda dt, share, log_a: share * dt):
    def wrong(Q, K, V, log_a, dt, share):
        return _called(weight(dt, share, log_a), own(dt, share, log_a), Q, K, V, log_a)

    return wrong


def _both(dt, share, log_a):
    return share * dt + _next((1 - share) * dt)


def _call_cases(randn):
    for T, N, P in [(1, 1, 1), (2, 1, 1), (3, 2, 1), (5, 3, 2), (40, 4, 3)]:
        log_a = -randn(T).abs()
        yield randn(T, N), randn(T, N), randn(T, P), log_a, functional.softplus(randn(T)), torch.sigmoid(randn(T))


@exercise(
    "9.4",
    "Two weights, one call",
    claim="006:one-call",
    level=3,
    minutes=12,
    cases=_call_cases,
    oracle=_steps,
    wrong={
        "token t itself counts as much as it will later: there it should weigh λ_t dt_t alone": _with(_both, _both),
        "the correction at the token itself has the wrong sign": _with(
            _both, lambda dt, share, log_a: 2 * _both(dt, share, log_a) - share * dt
        ),
        "the later weight is that of the NEXT token, (1 − λ_(t+1)) dt_(t+1)": _with(
            lambda dt, share, log_a: share * dt + (1 - share) * dt
        ),
        "you shift the wrong way: token t counts again when t + 1 arrives": _with(
            lambda dt, share, log_a: share * dt + functional.pad(((1 - share) * dt)[:-1], (1, 0))
        ),
        "dt is that of the next token, too": _with(lambda dt, share, log_a: share * dt + _next(1 - share) * dt),
        "λ is that of the next token, too": _with(lambda dt, share, log_a: share * dt + (1 - share) * _next(dt)),
        "the decay of the next token is in the call already": _with(
            lambda dt, share, log_a: share * dt + _next((1 - share) * dt * log_a.exp())
        ),
        "λ and 1 − λ have changed places": _with(
            lambda dt, share, log_a: (1 - share) * dt + _next(share * dt), lambda dt, share, log_a: (1 - share) * dt
        ),
        "this is Mamba-2: each write counts once, λ dt": _with(lambda dt, share, log_a: share * dt),
        "this is Mamba-2: each write counts once, dt": _with(lambda dt, share, log_a: dt, lambda dt, share, log_a: dt),
        "token t itself does not count at all: λ_t dt_t (q_t · k_t) v_t is missing": _with(
            _both, lambda dt, share, log_a: 0 * dt
        ),
    },
)
def trapezoid(Q, K, V, log_a, dt, share):
    """Y (T, P) of Mamba-3's recurrence, by one call of `fast.ssd(X, log_a, B, C)`.

    H_t = a_t H_(t−1) + (1 − λ_t) dt_t a_t v_(t−1) k_(t−1)^T + λ_t dt_t v_t k_t^T and y_t = H_t q_t. Q and K are (T, N),
    V (T, P); log_a, dt and share, the λ, are (T,).

    Hint: For t > s, how much does v_s k_s^T weigh in H_t, but for the decays from s to t? λ_s dt_s, and once more as
    token s + 1 arrives.

    Hint: So scale value s by `share * dt` plus the next token's `(1 - share) * dt`, and call `fast.ssd` with (K, Q) as
    (B, C). The last token has no next one: `functional.pad(x[1:], (0, 1))`.

    Hint: At t = s the second weight has not come yet: subtract it times (q_t · k_t) v_t.

    Insight: A new rule of integration, and no new kernel: two weights, and a term on the diagonal.
    """
    now, later = share * dt, functional.pad(((1 - share) * dt)[1:], (0, 1))
    Y, _ = fast.ssd((now + later)[:, None] * V, log_a, K, Q)
    return Y - (later * (Q * K).sum(-1))[:, None] * V
