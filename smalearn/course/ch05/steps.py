"""Exercises 5.6 and 5.7: invert a state space model, compose two steps."""

import torch

from smalearn.course.ch05.matrix import matrix_of
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


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


def _long_case(randn, length):
    ones = torch.ones(length, 2, dtype=torch.float64)
    return randn(length, 2, 2) / 2, ones, ones.clone(), randn(length)


exercise(
    "5.6",
    "What was the input?",
    claim="001:forward-substitution",
    level=2,
    minutes=10,
    cases=_input_cases,
    oracle=lambda A, B, C, y: torch.linalg.solve(matrix_of(A, B, C), y),
    way=Way(case=_long_case, memory=1, loops=1),
    wrong={
        "your x_t is y_t / C_t^T B_t: what the past contributes to y_t, C_t^T A_t h_(t-1), "
        "has to be taken away first (or your state never receives B_t x_t)": "C[t] @ past → 0",
        "you subtract C_t^T h_(t-1). The old state is multiplied by A_t before it is seen: "
        "C_t^T A_t h_(t-1)": "C[t] @ past → C[t] @ h",
        "the division by C_t^T B_t is missing: that is the diagonal of M, which need not be 1": "/ (C[t] @ B[t]) → / 1",
        "you write y_t into the state: "
        "what enters is the input x_t that you have just found": "B[t] * x[t] → B[t] * y[t]",
        "you keep h_(t-1) as it is: the next state is A_t h_(t-1) + B_t x_t": "h = past → h = h",
        "you take away C_t^T A_t A_t h_(t-1): A_t acts once": "C[t] @ past → C[t] @ A[t] @ past",
        "A_t moves the old state on twice in yours: once to take away the past, "
        "and once more for h_t": "h = past → h = A[t] @ past",
        "your state holds only the last input: add B_t x_t to A_t h_(t-1)": "h = past + → h =",
        "your transitions are transposed: `h @ A[t]` is A_t^T h. The state is a column, "
        "`A[t] @ h`": "A[t] @ h → h @ A[t]",
        "you keep C_t^T B_t away from 0 by a clamp, "
        "which makes every negative one tiny: none is 0": "(C[t] @ B[t]) → (C[t] @ B[t]).clamp(min=1e-8)",
        "you divide by B_t^T B_t: the output shows C_t^T B_t of its own input": "/ (C[t] @ B[t]) → / (B[t] @ B[t])",
        "you take away B_t^T A_t h_(t-1): the output is read by C_t": "C[t] @ past → B[t] @ past",
        "the division comes too early: first take away what the past contributes, "
        "then divide all that is left": "(y[t] - C[t] @ past) / (C[t] @ B[t]) → y[t] / (C[t] @ B[t]) - C[t] @ past",
        "what the past contributes has the wrong sign: it is in y_t, "
        "and has to be taken away": "y[t] - C[t] @ past → y[t] + C[t] @ past",
        "this is M y, the model run forwards: y is what came out of it, and x what went in": lambda A, B, C, y: (
            matrix_of(A, B, C) @ y
        ),
    },
)(find_input)


def combine(earlier, later):
    """The one step (A, b) that does what the step `earlier` and then the step `later` do; h becomes A h + b.

    A step is a pair (A, b): h becomes A h + b. Return the pair for the step `earlier`, then `later`.

    Hint: Put the first into the second: A_later (A h + b) + b_later. Sort by what multiplies h.

    Hint: The new matrix is A_later A: what acts first stands on the right.

    Hint: The rest does not meet h. What the earlier step added has been through the later step; what the later one adds
    has been through nothing.

    Insight: Associative steps can be combined in a tree: log₂ T rounds join T steps into one, and the way down
    gives the other states. So a GPU scans.
    """
    A, b = earlier
    A_later, b_later = later
    return A_later @ A, A_later @ b + b_later


def _step_cases(randn):
    for leading, state, columns in [((), 1, 1), ((3,), 1, 2), ((), 2, 1), ((4,), 3, 2)]:
        shapes = [(*leading, state, state), (*leading, state, columns)] * 2
        a, b, a_later, b_later = (randn(*shape) for shape in shapes)
        yield (a, b), (a_later, b_later)
    one, nothing = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    yield (one, nothing), (one, nothing)  # two steps that do nothing


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


exercise(
    "5.7",
    "Two steps are one step",
    claim="004:associative-scan",
    level=2,
    minutes=8,
    cases=_step_cases,
    oracle=_compose_by_probing,
    wrong={
        "your product is A A_later. The earlier step acts first and stands on the right, A_later A, "
        "and matrices do not commute": "A_later @ A, → A @ A_later,",
        "you add b + b_later: what the earlier step added must pass through the later transition, "
        "A_later b + b_later": "A_later @ b + b_later → b + b_later",
        "you multiply b_later by A_later too: "
        "the later step adds it after its own transition": "+ b_later → + A_later @ b_later",
        "this is the later step first: associative does not mean commutative": lambda earlier, later: combine(
            later, earlier
        ),
        "you multiply b by its own A: only what comes later acts on it, A_later b + b_later": "A_later @ b → A @ b",
        "what the earlier step added has met both transitions in yours: "
        "it came after the earlier one": "A_later @ b → A_later @ A @ b",
        "your b is that of the later step first, A b_later + b: the earlier one comes first, "
        "A_later b + b_later": "A_later @ b + b_later → A @ b_later + b",
        "each b of yours has met its own A: only what comes later acts on it, "
        "A_later b + b_later": "A_later @ b + b_later → A @ b + A_later @ b_later",
        "each b stands for the other in yours: "
        "A_later acts on what the EARLIER step added": "A_later @ b + b_later → A_later @ b_later + b",
        "what the earlier step added meets A_later, not its own A: "
        "and b_later is added as it is": "A_later @ b + b_later → A @ b_later + A_later @ b",
        "A_later is transposed in the product: h is a column, A_later A": "A_later @ A, → A_later.mT @ A,",
        "A acts on b in yours, and A_later on nothing: A_later A, "
        "and A_later b + b_later": "A_later @ A, A_later @ b → A @ A_later, A @ b",
        "A_later multiplies b, nothing is undone: no `solve`, "
        "no inverse": "A_later @ b → torch.linalg.solve(A_later, b)",
        "you multiply entry by entry: A and b are matrices, `@`": "A_later @ → A_later *",
        "you add the transitions: one after the other is a product, A_later A": "A_later @ A, → A_later + A,",
        "the earlier transition is missing: h meets both, A_later A h": "A_later @ A, → A_later,",
        "what the earlier step added is missing: A_later b": "A_later @ b + b_later → b_later",
        "your b is that of the earlier step alone: A_later acts on it, "
        "and b_later is added": "A_later @ b + b_later → b",
        "you multiply b_later by both transitions and b by none: "
        "A_later b + b_later": "A_later @ b + b_later → A_later @ A @ b_later + b",
        "the earlier transition is transposed: A_later A": "A_later @ A, → A_later @ A.mT,",
        "you multiply the transitions entry by entry: "
        "two steps in turn are a product of matrices, `@`": "A_later @ A, → A_later * A,",
        "of A_later only the diagonal acts on b: "
        "A_later b is a product with a matrix, `@`": "A_later @ b → A_later.diagonal(dim1=-2, dim2=-1)[..., None] * b",
        "you subtract b_later: it is added": "+ b_later → - b_later",
        "what the later step adds is missing: b_later": "A_later @ b + b_later → A_later @ b",
        "A_later is transposed in yours, for A and for b: h is a column, A_later h": "A_later @ → A_later.mT @",
        "the matrix on b is transposed: b is a column, A_later b": "A_later @ b → A_later.mT @ b",
    },
)(combine)
