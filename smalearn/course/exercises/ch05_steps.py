"""The exercises of chapter 05 on the steps of a state space model: undone, joined, and made from a rate."""

import math

import torch

from smalearn.course.exercises.core import Exercise, Mutant, register


def _randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# --------------------------------------------------------------------------------------------- 5.4 what was the input?


def find_input(A, B, C, y):
    """The x (T,) whose output is y: solve M x = y in linear time, without M."""
    h = torch.zeros(B.shape[1], dtype=B.dtype)
    x = torch.zeros_like(y)
    for t in range(len(y)):
        past = A[t] @ h
        x[t] = (y[t] - C[t] @ past) / (C[t] @ B[t])
        h = past + B[t] * x[t]
    return x


def _substitution(seen=lambda A, h: A @ h, step=lambda A, h, new: A @ h + new, divided=True, written=True):
    """Forward substitution with a fault: what the output shows of the past, how the state goes on, what is added."""

    def solve(A, B, C, y):
        h, x = torch.zeros(B.shape[1], dtype=B.dtype), torch.zeros_like(y)
        for t in range(len(y)):
            x[t] = (y[t] - C[t] @ seen(A[t], h)) / (C[t] @ B[t] if divided else 1)
            h = step(A[t], h, B[t] * (x[t] if written else y[t]))
        return x

    return solve


def _solve_dense(A, B, C, y):
    """Solve with the dense matrix."""
    M = torch.zeros(len(y), len(y), dtype=y.dtype)
    for s in range(len(y)):
        h = B[s]
        for t in range(s, len(y)):
            h = A[t] @ h if t > s else h
            M[t, s] = C[t] @ h
    return torch.linalg.solve(M, y)


def _input_cases(generator):
    for length, state in [(1, 1), (3, 1), (3, 2), (6, 3)]:
        A = 0.5 * _randn(generator, length, state, state)
        B = _randn(generator, length, state)
        yield A, B, B + 0.1 * _randn(generator, length, state), _randn(generator, length)
    one = torch.ones(2, 1, dtype=torch.float64)
    yield torch.zeros(2, 1, 1, dtype=torch.float64), one, one, _randn(generator, 2)  # no memory, M = I
    yield torch.ones(2, 1, 1, dtype=torch.float64), one, one, torch.tensor([0.0, 3.0], dtype=torch.float64)


register(
    Exercise(
        id="5.4",
        title="What was the input?",
        statement="Given y = M x, find x by one pass over time. No C_t^T B_t is 0.",
        oracle=_solve_dense,
        cases=_input_cases,
        solution=find_input,
        hints=(
            "You know the state before step t. Which part of y_t comes from it, and which from x_t?",
            "y_t = C_t^T (A_t h) + (C_t^T B_t) x_t. Only x_t is unknown.",
            "When you have x_t, the step is a step as always: h becomes A_t h + B_t x_t.",
        ),
        mutants=(
            Mutant(
                "no past",
                _substitution(seen=lambda A, h: 0 * h),
                "you divide y_t by C_t^T B_t alone: what the past contributes to y_t has to be taken away first",
            ),
            Mutant(
                "past without its transition",
                _substitution(seen=lambda A, h: h),
                "you subtract C_t^T h_(t-1). The old state is moved before it is seen: C_t^T A_t h_(t-1)",
            ),
            Mutant(
                "not divided",
                _substitution(divided=False),
                "the division by C_t^T B_t is missing: that is the diagonal of M, which need not be 1",
            ),
            Mutant(
                "the output written",
                _substitution(written=False),
                "you write y_t into the state: what enters is the input x_t that you have just found",
            ),
            Mutant(
                "old state not moved",
                _substitution(step=lambda A, h, new: h + new),
                "you keep h_(t-1) as it is: the next state is A_t h_(t-1) + B_t x_t",
            ),
            Mutant(
                "state replaced",
                _substitution(step=lambda A, h, new: new),
                "your state holds only the last input: add B_t x_t to A_t h_(t-1)",
            ),
            Mutant(
                "written before it moves",
                _substitution(step=lambda A, h, new: A @ (h + new)),
                "your state is A_t (h_(t-1) + B_t x_t): A_t moves what was there before, and then B_t x_t is added",
            ),
            Mutant(
                "transitions transposed",
                _substitution(lambda A, h: h @ A, lambda A, h, new: h @ A + new),
                "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, `A[t] @ h`",
            ),
        ),
        claim="001:forward-substitution",
        difficulty=2,
        minutes=10,
        lines=7,
    )
)

# ------------------------------------------------------------------------------------------- 5.5 two steps are one step


def combine(earlier, later):
    """The one step (A, b) that does what the step `earlier` and then the step `later` do; h becomes A h + b."""
    A, b = earlier
    A_later, b_later = later
    return A_later @ A, A_later @ b + b_later


def _run_both(earlier, later):
    """The joint step, from where it sends 0 and the unit vectors."""
    (A, b), (A_later, b_later) = earlier, later

    def both(h):
        return A_later @ (A @ h + b) + b_later

    origin = both(torch.zeros_like(b))
    size = A.shape[-1]
    units = torch.eye(size, dtype=A.dtype)[:, :, None].expand(size, size, b.shape[-1])
    columns = [(both(unit.expand(b.shape)) - origin)[..., :1] for unit in units]
    return torch.cat(columns, -1), origin


def _step_cases(generator):
    for leading, state, columns in [((), 1, 1), ((3,), 1, 2), ((), 2, 1), ((4,), 3, 2)]:
        shapes = [(*leading, state, state), (*leading, state, columns)] * 2
        a, b, a_later, b_later = (_randn(generator, *shape) for shape in shapes)
        yield (a, b), (a_later, b_later)
    one, nothing = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    yield (one, nothing), (one, nothing)  # two steps that do nothing


register(
    Exercise(
        id="5.5",
        title="Two steps are one step",
        statement="A step is a pair (A, b): h becomes A h + b. Return the pair for the step `earlier`, then `later`.",
        oracle=_run_both,
        cases=_step_cases,
        solution=combine,
        hints=(
            "Put the first into the second: A' (A h + b) + b'. Sort by what multiplies h.",
            "The new matrix is A' A: what acts first stands on the right.",
            "The rest is A' b + b': what the earlier step wrote is moved by the later one.",
        ),
        mutants=(
            Mutant(
                "matrices in reverse",
                lambda earlier, later: (earlier[0] @ later[0], later[0] @ earlier[1] + later[1]),
                "your product is A A'. The earlier step acts first and stands on the right, and matrices do not "
                "commute",
            ),
            Mutant(
                "inputs just added",
                lambda earlier, later: (later[0] @ earlier[0], earlier[1] + later[1]),
                "you add b + b': what the earlier step wrote must pass through the later transition, A' b + b'",
            ),
            Mutant(
                "the wrong input moved",
                lambda earlier, later: (later[0] @ earlier[0], later[0] @ earlier[1] + later[0] @ later[1]),
                "you move b' by A' too: the later step writes after its own transition",
            ),
            Mutant(
                "steps exchanged",
                lambda earlier, later: (earlier[0] @ later[0], earlier[0] @ later[1] + earlier[1]),
                "this is the later step first: associative does not mean commutative",
            ),
            Mutant(
                "moved by the earlier",
                lambda earlier, later: (later[0] @ earlier[0], earlier[0] @ earlier[1] + later[1]),
                "you move b by its own A: only what comes later acts on it, A' b + b'",
            ),
        ),
        claim="004:associative-scan",
        difficulty=2,
        minutes=8,
        lines=3,
    )
)

# ------------------------------------------------------------------------------------------------- 5.6 a held input


def hold(dt, A, B):
    """The zero-order hold of h' = A h + B x: (A_bar, B_bar), (T, N) each, for dt (T,), rates A (N,) and B (T, N)."""
    z = dt[:, None] * A
    safe = torch.where(z == 0, 1, z)
    phi = torch.where(z == 0, 1, torch.expm1(safe) / safe)
    return z.exp(), dt[:, None] * phi * B


def _by_series(dt, A, B):
    """∫ exp(s A) ds over 0 ≤ s ≤ dt, by 200 terms of its power series, entry by entry."""
    A_bar, B_bar = torch.zeros_like(B), torch.zeros_like(B)
    for t, step in enumerate(dt.tolist()):
        for n, rate in enumerate(A.tolist()):
            terms = [step]
            for k in range(2, 200):
                terms.append(terms[-1] * step * rate / k)
            A_bar[t, n] = math.exp(step * rate)
            B_bar[t, n] = math.fsum(terms) * B[t, n]
    return A_bar, B_bar


def _held(phi, transition=torch.exp):
    """A discretisation with B_bar = phi(dt, A, z) B, z = dt A."""

    def discretise(dt, A, B):
        dt, z = dt[:, None], dt[:, None] * A
        return transition(z), phi(dt, A, z) * B

    return discretise


def _ratio(numerator, z):
    return torch.where(z == 0, 1, numerator / torch.where(z == 0, 1, z))


def _hold_cases(generator):
    def tensor(*numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    yield tensor(1.0), tensor(0.0), _randn(generator, 1, 1)  # an integral: B_bar = dt B
    yield tensor(0.0, 0.0), tensor(0.0), _randn(generator, 2, 1)  # no time passes
    yield tensor(1.0, 1.0), tensor(0.0), torch.zeros(2, 1, dtype=torch.float64)
    yield tensor(0.5, 2.0), tensor(-1.0, -0.25), _randn(generator, 2, 2)
    yield tensor(1e-3, 1.0, 0.1), tensor(-1e-9, 0.0), _randn(generator, 3, 2)  # next to 0, and 0


register(
    Exercise(
        id="5.6",
        title="A held input",
        statement="Discretise h' = A h + B x, diagonal A, for an input that is constant while a step lasts.",
        oracle=_by_series,
        cases=_hold_cases,
        solution=hold,
        hints=(
            "With z = dt A the step is h -> e^z h + dt φ(z) B x, where φ(z) = (e^z - 1)/z. What is φ(0)?",
            "Near 0, e^z - 1 loses its digits: `torch.expm1(z)` is accurate.",
            "Put a 1 for z where z is 0, divide, and put φ = 1 there: `torch.where(z == 0, 1, z)`.",
        ),
        mutants=(
            Mutant(
                "exp(z) - 1",
                _held(lambda dt, A, z: dt * _ratio(z.exp() - 1, z)),
                "right except near z = 0, where e^z - 1 subtracts nearly equal numbers and loses its digits: "
                "`torch.expm1(z)`",
            ),
            Mutant(
                "Mamba's step",
                _held(lambda dt, A, z: dt),
                "this is Mamba's simplification B_bar = dt B: the input as one kick at the end of the step, which does "
                "not decay while the step lasts",
            ),
            Mutant(
                "without dt",
                _held(lambda dt, A, z: _ratio(torch.expm1(z), z)),
                "your B_bar is (e^z - 1)/z B: it lacks a factor dt. Is it (e^(dt A) - 1)/A, in the unit of dt?",
            ),
            Mutant(
                "a kick at the beginning",
                _held(lambda dt, A, z: dt * z.exp()),
                "your input decays for the whole step, e^z dt B: that is a kick at its beginning. A held input enters "
                "all the time, and the last of it hardly decays",
            ),
            Mutant(
                "Euler",
                _held(lambda dt, A, z: dt, transition=lambda z: 1 + z),
                "this is Euler's step, A_bar = 1 + dt A: the first terms of the exponential. It even grows when dt |A| "
                "exceeds 2",
            ),
        ),
        claim="004:eq-ssm",
        difficulty=2,
        minutes=12,
        lines=4,
    )
)
