"""Three closed-book questions before chapter 03, on chapters 01 and 02."""

import torch

from smalearn.course.exercises.core import opener


def waiting_matrix(row, K, V):
    """The matrix H (P, N) with y = H q.

    A token with query q reads y = Σ_s row[s] (q · k_s) v_s; `row` (S,) is its row of the mask. q depends on no s: take
    it out of the sum. What stays inside is a matrix H with y = H q. Return H, from row, K (S, N) and V (S, P).

    Hint: Chapter 01, order (15): first values with keys, then the mask, the query last.

    Hint: (q · k) v = v (kᵀ q) = (v kᵀ) q, an outer product times q.

    Insight: H has P · N numbers, whatever S is. The next token's H differs by one outer product, if its row of the mask
    goes on as this one did.
    """
    return V.mT @ (row[:, None] * K)


def _waiting_cases(randn):
    for S, N, P in [(1, 1, 1), (2, 2, 3), (4, 3, 2), (5, 2, 2)]:
        yield randn(S), randn(S, N), randn(S, P)


WRONG_A = {
    "yours is (N, P): y = H q has P numbers, and q has N": lambda row, K, V: K.mT @ (row[:, None] * V),
    "the mask is missing: each token enters with its entry of the row": "row[:, None] * → ",
    "the mask counts twice": "row[:, None] → row[:, None] ** 2",
    "you sum keys and values apart: it is the outer products that are summed": lambda row, K, V: torch.outer(
        row @ V, row @ K
    ),
}
opener(
    "3.a",
    "What waits for a query",
    claim="000:eq12",
    kind="prove",
    tolerance=1e-9,
    cases=_waiting_cases,
    oracle=lambda row, K, V: sum(row[s] * torch.outer(V[s], K[s]) for s in range(len(K))),
    wrong=WRONG_A,
)(waiting_matrix)


def largest_array():
    """How many numbers the largest intermediate result holds.

    T = S = 1000 tokens, N = P = 64. The linear order (15), V with K first, then a dense mask, then Q, is written as
    three einsums. How many numbers does its largest intermediate result hold?

    Hint: Chapter 01: which axes survive the first step, and which the second?

    Hint: After the first step S, N and P are alive: no axis has been summed.

    Too little: Count the axes that no step has summed yet: at the largest there are three.

    Too much: No intermediate result has more than three axes: where T comes in, S is summed.

    Insight: Four times as many as the scores, T² = a million! The linear order saves memory only when it makes one
    state at a time.
    """
    return 4_096_000


WRONG_B = {
    "this is the scores' size, T · S: the linear order never makes them": lambda: 1_000_000,
    "this is one state: all T of them are there at once": lambda: 4096,
    "this is the result, T · P: on the way a step keeps N as well": lambda: 64_000,
    "S or T, not both: the mask sums over S as it makes T": lambda: 4_096_000_000,
}
opener(
    "3.b",
    "The largest array on the way",
    claim="000:order-cost",
    oracle=lambda: torch.einsum("sp,sn->spn", torch.empty(1000, 64), torch.empty(1000, 64)).numel(),
    wrong=WRONG_B,
)(largest_array)


def rank_of_exponentials():
    """The rank of exp(X Xᵀ).

    X holds 8 different points of the plane, one a row. What is the rank of exp(X Xᵀ), the exponential taken entry by
    entry?

    Hint: Chapter 02, at its beginning: the features of the exponential are 1, then x, then x twice, and so on without
    end.

    Hint: X Xᵀ has rank 2. But distinct points are told apart by their powers, as far as one needs.

    Too little: Different points are told apart by their powers, and the exponential has all powers.

    Too much: A matrix has no larger rank than it has rows.

    Insight: A map of F features makes matrices of rank F at most. So no finite map is exact for every text; what is
    exact in chapter 03 is another kernel.
    """
    return 8


def _rank():
    angles = torch.arange(8).double()
    X = 2 * torch.stack([angles.cos(), angles.sin()], 1)
    return int(torch.linalg.matrix_rank((X @ X.mT).exp()))


WRONG_C = {
    "this is the rank of X Xᵀ: the exponential, entry by entry, raises it": lambda: 2,
    "this counts 1, x and y: the series goes on": lambda: 3,
    "an exponential of one number is one number; of a matrix, entry by entry, it is not of rank 1": lambda: 1,
}
opener("3.c", "The rank of the exponentials", claim="000:exp-feature-map", oracle=_rank, wrong=WRONG_C)(
    rank_of_exponentials
)
