"""Exercise 5.5: queries and keys of a state space model."""

import torch

from smalearn.course.ch05.matrix import later_first, random_model, still
from smalearn.course.exercises.core import exercise


def queries_and_keys(A, B, C):
    """U and V, (T, N) each, with M = tril(U V^T): U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s.

    Return U_t = (A_t ... A_1)^T C_t and V_s = (A_s ... A_1)^-1 B_s, so that M = tril(U V^T), for a general, invertible
    A.

    Hint: Write A_t ... A_(s+1) as (A_t ... A_1) times the inverse of what is too much, (A_s ... A_1).

    Hint: Keep `product = A_t ... A_1`, the identity at t = 0; each step multiplies on the LEFT. A_0 never occurs.

    Hint: As rows: `U[t] = product.mT @ C[t]`, and `V[t]` solves `product @ V[t] = B[t]`.

    Insight: The inverse grows as the product's fastest direction decays: this is why practice cuts the text into short
    chunks, and multiplies the decays of a segment instead of dividing by them.
    """
    U, V = [], []
    product = torch.eye(B.shape[1], dtype=B.dtype)
    for t in range(len(B)):
        if t:
            product = A[t] @ product
        U.append(product.mT @ C[t])
        V.append(torch.linalg.solve(product, B[t]))
    return torch.stack(U), torch.stack(V)


def _pair_cases(randn):
    for length, state in [(1, 1), (3, 1), (3, 2), (5, 3)]:
        yield random_model(randn, length, state)
    A, B, C = still(randn, 6, 2)
    yield A * torch.tensor([1.0, 0.1], dtype=torch.float64), B, C  # one number fades to 0.00001
    A, B, _ = still(randn, 4, 2)
    yield A, B, B.clone()  # U = V = B


def _by_inverses(A, B, C):
    """With an inverse of each product."""
    products = [later_first(A, 1, t) for t in range(len(B))]
    U = [P.mT @ C[t] for t, P in enumerate(products)]
    V = [torch.linalg.inv(P) @ B[s] for s, P in enumerate(products)]
    return torch.stack(U), torch.stack(V)


exercise(
    "5.5",
    "Queries and keys of a recurrence",
    claim="001:id-inverse",
    level=2,
    minutes=12,
    cases=_pair_cases,
    oracle=_by_inverses,
    wrong={
        "your V is (A_s ... A_1)^-T B_s. M has C_t^T (A_t ... A_1)(A_s ... A_1)^-1 B_s: "
        "no transpose there": "solve(product, → solve(product.mT,",
        "your U is (A_t ... A_1) C_t. The row is C_t^T (A_t ... A_1); as a vector, (A_t ... "
        "A_1)^T C_t": "product.mT → product",
        "your products begin with A_0. It cancels in U V^T, but the definition begins with A_1, "
        "and A_0 need not be invertible": "if t: → if True:",
        "your product is A_1 A_2 ... A_t, the oldest on the left: "
        "each step must multiply on the left": "A[t] @ product → product @ A[t]",
        "U V^T is M, but your products begin in the middle: they begin at 0, where U_0 = "
        "C_0, V_0 = B_0": "torch.eye(B.shape[1], dtype=B.dtype) → torch.linalg.inv(later_first(A, 1, len(B) // 2))",
        "U and V are exchanged: U holds a row for each output, made of C; "
        "V one for each input, made of B": "torch.stack(U), torch.stack(V) → torch.stack(V), torch.stack(U)",
        "your V is (A_s ... A_1) B_s: then everything up to s acts twice. "
        "It has to be taken away from U": "torch.linalg.solve(product, B[t]) → product @ B[t]",
        "your V_s stops before A_s: its product is A_s ... A_1, "
        "taken once this step's transition is in it": "solve(product, → solve(later_first(A, 1, t - 1),",
        "your inverse is in U: it belongs into V, "
        "which takes away from U what is too much": "A[t] @ product → product @ torch.linalg.inv(A[t])",
        "your inverse is 1/x of each entry: "
        "that of a matrix is `torch.linalg.inv`": "torch.linalg.solve(product, B[t]) → 1 / product @ B[t]",
        "the rows at 0 are missing: there the product is the identity, "
        "U_0 = C_0 and V_0 = B_0": "torch.stack(U), torch.stack(V) → torch.stack(U)[1:], torch.stack(V)[1:]",
        "your inverse is the transpose: "
        "that is right for rotations alone": "torch.linalg.solve(product, B[t]) → product.mT @ B[t]",
        "B and C are exchanged: U is made of C, which reads, and V of B, which writes": lambda A, B, C: (
            queries_and_keys(A, C, B)
        ),
        "your inverse is cut off at a thousandth of its largest singular value: "
        "`torch.linalg.inv` is not": "torch.linalg.solve(product, B[t]) → torch.linalg.pinv(product, rtol=1e-3) @ B[t]",
        "your inverse is A_s^-1 ... A_1^-1: an inverse reverses the order of a product, "
        "A_1^-1 ... A_s^-1": "torch.linalg.solve(product, B[t]) → later_first(torch.linalg.inv(A), 1, t) @ B[t]",
    },
)(queries_and_keys)
