"""Exercises 5.6 to 5.8: invert a state space model, compose two steps, discretise a continuous one."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# --------------------------------------------------------------------------------------------- 5.6 what was the input?


def _seen(B, C):
    """What an output shows of its own input, C_t^T B_t."""
    return C @ B


def _faulty(past=lambda A, h: A @ h, step=lambda A, h, new: A @ h + new, divide=_seen, add_input=True):
    """Forward substitution with a fault.

    past(A, h) is what the output shows of the old state h, step(A, h, new) the next state. y is divided by
    divide(B_t, C_t); without `add_input` the state receives B_t y_t in place of B_t x_t.
    """

    def solve(A, B, C, y):
        h, x = torch.zeros(B.shape[1], dtype=B.dtype), torch.zeros_like(y)
        for t in range(len(y)):
            x[t] = (y[t] - C[t] @ past(A[t], h)) / divide(B[t], C[t])
            h = step(A[t], h, B[t] * (x[t] if add_input else y[t]))
        return x

    return solve


def _divided_first(A, B, C, y):
    h, x = torch.zeros(B.shape[1], dtype=B.dtype), torch.zeros_like(y)
    for t in range(len(y)):
        x[t] = y[t] / (C[t] @ B[t]) - C[t] @ (A[t] @ h)
        h = A[t] @ h + B[t] * x[t]
    return x


def _dense(A, B, C):
    """The matrix of the model."""
    M = torch.zeros(len(B), len(B), dtype=B.dtype)
    for s in range(len(B)):
        h = B[s]
        for t in range(s, len(B)):
            h = A[t] @ h if t > s else h
            M[t, s] = C[t] @ h
    return M


def _input_cases(randn):
    for length, state in [(1, 1), (3, 1), (3, 2), (6, 3)]:
        A = 0.5 * randn(length, state, state)
        B = randn(length, state)
        # C is near B or -B: C_t^T B_t is about ±|B_t|², not 0.
        sign = (-1.0) ** torch.arange(length)[:, None]
        yield A, B, sign * (B + 0.1 * randn(length, state)), randn(length)
    one = torch.ones(2, 1, dtype=torch.float64)
    yield torch.zeros(2, 1, 1, dtype=torch.float64), one, one, randn(2)  # no memory, M = I
    # A running sum, to be checked by hand: x = (0, 3).
    yield torch.ones(2, 1, 1, dtype=torch.float64), one, one, torch.tensor([0.0, 3.0], dtype=torch.float64)


@exercise(
    "5.6",
    "What was the input?",
    claim="001:forward-substitution",
    level=2,
    minutes=10,
    cases=_input_cases,
    oracle=lambda A, B, C, y: torch.linalg.solve(_dense(A, B, C), y),
    way=Way(
        case=lambda randn, length: (
            randn(length, 2, 2) / 2,
            torch.ones(length, 2, dtype=torch.float64),
            torch.ones(length, 2, dtype=torch.float64),
            randn(length),
        ),
        memory=1,
        loops=1,
    ),
    wrong={
        "your x_t is y_t / C_t^T B_t: what the past contributes to y_t, C_t^T A_t h_(t-1), has to be taken away "
        "first": _faulty(past=lambda A, h: 0 * h),
        "you subtract C_t^T h_(t-1). The old state is multiplied by A_t before it is seen: C_t^T A_t h_(t-1)": _faulty(
            past=lambda A, h: h
        ),
        "the division by C_t^T B_t is missing: that is the diagonal of M, which need not be 1": _faulty(
            divide=lambda B, C: 1.0
        ),
        "you write y_t into the state: what enters is the input x_t that you have just found": _faulty(add_input=False),
        "you keep h_(t-1) as it is: the next state is A_t h_(t-1) + B_t x_t": _faulty(step=lambda A, h, new: h + new),
        "your state holds only the last input: add B_t x_t to A_t h_(t-1)": _faulty(step=lambda A, h, new: new),
        "your state is A_t (h_(t-1) + B_t x_t): A_t multiplies what was there before, then B_t x_t is added": _faulty(
            step=lambda A, h, new: A @ (h + new)
        ),
        "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, `A[t] @ h`": _faulty(
            lambda A, h: h @ A, lambda A, h, new: h @ A + new
        ),
        "you keep C_t^T B_t away from 0 by a clamp, which makes every negative one tiny: none is 0": _faulty(
            divide=lambda B, C: (C @ B).clamp(min=1e-8)
        ),
        "you divide by C_t^T C_t: the output shows C_t^T B_t of its own input": _faulty(divide=lambda B, C: C @ C),
        "you divide by B_t^T B_t: the output shows C_t^T B_t of its own input": _faulty(divide=lambda B, C: B @ B),
        "the division comes too early: first take away what the past contributes, then divide all that is left": (
            _divided_first
        ),
        "what the past contributes has the wrong sign: it is in y_t, and has to be taken away": _faulty(
            past=lambda A, h: -(A @ h)
        ),
        "this is M y, the model run forwards: y is what came out of it, and x what went in": lambda A, B, C, y: (
            _dense(A, B, C) @ y
        ),
    },
)
def find_input(A, B, C, y):
    """The x (T,) whose output is y: solve M x = y in linear time, without the dense matrix M (T, T) of the model.

    A is (T, N, N), B and C are (T, N), y is (T,).

    Given y = M x, find x by one pass over time. No C_t^T B_t is 0.

    Hint: You know the state before step t. Which part of y_t comes from it, and which from x_t?

    Hint: y_t = C_t^T (A_t h) + (C_t^T B_t) x_t. Only x_t is unknown.

    Hint: When you have x_t, continue as in the forward recurrence: h becomes A_t h + B_t x_t.

    Insight: M is inverted by a model of the same size: the inverse of a semiseparable matrix with such a diagonal costs
    T as well.
    """
    h = torch.zeros(B.shape[1], dtype=B.dtype)
    x = torch.zeros_like(y)
    for t in range(len(y)):
        past = A[t] @ h
        x[t] = (y[t] - C[t] @ past) / (C[t] @ B[t])
        h = past + B[t] * x[t]
    return x


# ------------------------------------------------------------------------------------------- 5.7 two steps are one step


def _compose_by_probing(earlier, later):
    """(A, b) of both steps run in turn, read off their values at 0 and at the unit vectors."""
    (A, b), (A_later, b_later) = earlier, later

    def both(h):
        return A_later @ (A @ h + b) + b_later

    origin = both(torch.zeros_like(b))
    size = A.shape[-1]
    units = torch.eye(size, dtype=A.dtype)[:, :, None].expand(size, size, b.shape[-1])
    columns = [(both(unit.expand(b.shape)) - origin)[..., :1] for unit in units]
    return torch.cat(columns, -1), origin


def _step_cases(randn):
    for leading, state, columns in [((), 1, 1), ((3,), 1, 2), ((), 2, 1), ((4,), 3, 2)]:
        shapes = [(*leading, state, state), (*leading, state, columns)] * 2
        a, b, a_later, b_later = (randn(*shape) for shape in shapes)
        yield (a, b), (a_later, b_later)
    one, nothing = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    yield (one, nothing), (one, nothing)  # two steps that do nothing


@exercise(
    "5.7",
    "Two steps are one step",
    claim="004:associative-scan",
    level=2,
    minutes=8,
    cases=_step_cases,
    oracle=_compose_by_probing,
    wrong={
        "your product is A A_later. The earlier step acts first and stands on the right, A_later A, and "
        "matrices do not commute": lambda earlier, later: (earlier[0] @ later[0], later[0] @ earlier[1] + later[1]),
        "you add b + b_later: what the earlier step added must pass through the later transition, "
        "A_later b + b_later": lambda earlier, later: (later[0] @ earlier[0], earlier[1] + later[1]),
        "you multiply b_later by A_later too: the later step adds it after its own transition": lambda earlier, later: (
            later[0] @ earlier[0],
            later[0] @ earlier[1] + later[0] @ later[1],
        ),
        "this is the later step first: associative does not mean commutative": lambda earlier, later: (
            earlier[0] @ later[0],
            earlier[0] @ later[1] + earlier[1],
        ),
        "you multiply b by its own A: only what comes later acts on it, A_later b + b_later": lambda earlier, later: (
            later[0] @ earlier[0],
            earlier[0] @ earlier[1] + later[1],
        ),
        "what the earlier step added has met both transitions in yours: it came after the earlier one": (
            lambda earlier, later: (later[0] @ earlier[0], later[0] @ earlier[0] @ earlier[1] + later[1])
        ),
        "your b is that of the later step first, A b_later + b: the earlier one comes first, A_later b + b_later": (
            lambda earlier, later: (later[0] @ earlier[0], earlier[0] @ later[1] + earlier[1])
        ),
        "each b of yours has met its own A: only what comes later acts on it, A_later b + b_later": (
            lambda earlier, later: (later[0] @ earlier[0], earlier[0] @ earlier[1] + later[0] @ later[1])
        ),
        "you add the transitions: one after the other is a product, A_later A": lambda earlier, later: (
            later[0] + earlier[0],
            later[0] @ earlier[1] + later[1],
        ),
        "the earlier transition is missing: h meets both, A_later A h": lambda earlier, later: (
            later[0],
            later[0] @ earlier[1] + later[1],
        ),
        "what the earlier step added is missing: A_later b": lambda earlier, later: (later[0] @ earlier[0], later[1]),
        "what the later step adds is missing: b_later": lambda earlier, later: (
            later[0] @ earlier[0],
            later[0] @ earlier[1],
        ),
        "A_later is transposed in yours, for A and for b: h is a column, A_later h": lambda earlier, later: (
            later[0].mT @ earlier[0],
            later[0].mT @ earlier[1] + later[1],
        ),
        "the matrix on b is transposed: b is a column, A_later b": lambda earlier, later: (
            later[0] @ earlier[0],
            later[0].mT @ earlier[1] + later[1],
        ),
    },
)
def combine(earlier, later):
    """The one step (A, b) that does what the step `earlier` and then the step `later` do; h becomes A h + b.

    A step is a pair (A, b): h becomes A h + b. Return the pair for the step `earlier`, then `later`.

    Hint: Put the first into the second: A_later (A h + b) + b_later. Sort by what multiplies h.

    Hint: The new matrix is A_later A: what acts first stands on the right.

    Hint: The rest is A_later b + b_later: what the earlier step added is multiplied by the later matrix.

    Insight: Associative steps can be combined in a tree: T steps take log₂ T rounds, which is how a GPU scans.
    """
    A, b = earlier
    A_later, b_later = later
    return A_later @ A, A_later @ b + b_later


# ------------------------------------------------------------------------------------------------- 5.8 a held input


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


def _hold_cases(randn):
    def tensor(*numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    yield tensor(1.0), tensor(0.0), randn(1, 1)  # an integral: B_bar = dt B
    yield tensor(0.0, 0.0), tensor(0.0), randn(2, 1)  # no time passes
    yield tensor(1.0, 1.0), tensor(0.0), torch.zeros(2, 1, dtype=torch.float64)  # no input gets in
    yield tensor(0.5, 2.0), tensor(-1.0, -0.25), randn(2, 2)  # ordinary rates and steps
    yield tensor(1e-3, 1.0, 0.1), tensor(-1e-9, 0.0), randn(3, 2)  # next to 0, and 0
    yield tensor(1.0), tensor(-5e-7, -5e-4), randn(1, 2)  # small, but one or two terms of the series are too few


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
        "where the rate is 0 your 0 / 0 has become 0: what is held for a time dt adds up to dt B": _discretisation(
            lambda dt, A, z: (dt * torch.expm1(z) / z).nan_to_num(0.0)
        ),
        "where the rate is 0 your B_bar is B: what is held for a time dt adds up to dt B": _discretisation(
            lambda dt, A, z: torch.where(A == 0, 1, torch.expm1(z) / torch.where(A == 0, 1, A))
        ),
        "this is the bilinear rule, a quotient in place of the exponential: close for small steps, but not the "
        "hold": _discretisation(lambda dt, A, z: dt / (1 - z / 2), lambda z: (1 + z / 2) / (1 - z / 2)),
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
        "you add up the steps: `dt[t]` is the length of step t, not the time since the beginning": lambda dt, A, B: (
            hold(dt.cumsum(0), A, B)
        ),
    },
)
def hold(dt, A, B):
    """The zero-order hold of h' = A h + B x: (A_bar, B_bar), (T, N) each, for dt (T,), rates A (N,) and B (T, N).

    Discretise h' = A h + B x, diagonal A, for an input that is constant while a step lasts.

    Hint: With z = dt A the step is h -> e^z h + dt φ(z) B x, where φ(z) = (e^z - 1)/z. What is φ(0)?

    Hint: Near 0, e^z - 1 loses its digits: `torch.expm1(z)` is accurate.

    Hint: Put a 1 for z where z is 0, divide, and put φ = 1 there: `torch.where(z == 0, 1, z)`.

    Insight: For small dt the hold is Euler's step, and for large dt the state forgets and takes B/|A|: one rate is all
    that gates it.
    """
    z = dt[:, None] * A
    safe = torch.where(z == 0, 1, z)
    phi = torch.where(z == 0, 1, torch.expm1(safe) / safe)
    return z.exp(), dt[:, None] * phi * B
