"""Three closed-book questions before chapter 05, on chapters 03 and 04."""

import torch

from smalearn.course.exercises.core import opener


def fourth_entry():
    """The entry L_31.

    A mask is made of one decay for each token, L_ts = a_t ⋯ a_{s+1}. Of its block below the diagonal you know three
    entries: L_20 = 0.12, L_21 = 0.4 and L_30 = 0.06. What is L_31?

    Hint: Chapter 04, on a decay that changes: which rank does such a block have?

    Hint: In a block of rank one the rows are multiples of each other: from row 2 to row 3 both entries change alike.

    Too little: From row 2 to row 3 both entries change by one factor, which L_20 and L_30 tell.

    Too much: From row 2 to row 3 both entries shrink by one factor, which L_20 and L_30 tell.

    Insight: Rank one: all that rows 2 and 3 know of columns 0 and 1 has passed through one number. That is the state of
    the scan.
    """
    return 0.2


WRONG_A = {
    "the rows are multiples of each other: entries are multiplied, not shifted by a difference": lambda: 0.34,
    "this is a_1, the step between the columns: the rows differ by a_3": lambda: 0.3,
    "this is a_3, by which row 2 becomes row 3: multiply L_21 by it": lambda: 0.5,
    "a later reader cannot have more of token 1 than an earlier one: every decay is at most 1": lambda: 0.8,
    "this multiplies L_21 and L_30: a_3 would be in it, but so would all the others": lambda: 0.024,
}
opener("5.a", "The fourth entry of a block", claim="004:eq-1ss", oracle=lambda: 0.4 * (0.06 / 0.12), wrong=WRONG_A)(
    fourth_entry
)


def three_steps(u, v, L, x):
    """(u vᵀ ∘ L) x, without the matrix u vᵀ.

    You have a fast product with a mask, `L @ x`. A rank-one matrix stands on it: M = (u vᵀ) ∘ L, entry by entry. Write
    M x in three steps, for vectors u, v and x (T,).

    Hint: Chapter 04, on masks of few directions: what does u_t do to row t of L, and v_s to column s?

    Hint: y_t = u_t Σ_s L_ts (v_s x_s).

    Insight: Linear attention is this N · P times: columns of Q and K are the u and v. So a mask that is multiplied fast
    makes an attention that is fast.
    """
    return u * (L @ (v * x))


def _step_cases(randn):
    for length in (1, 2, 3, 5):
        yield randn(length), randn(length), randn(length, length).tril(), randn(length)


WRONG_B = {
    "u and v are exchanged: u belongs to rows, it acts after the product": "u * (L @ (v → v * (L @ (u",
    "u is missing: it scales the rows": "u * → ",
    "v is missing: it scales the columns, so it meets x first": "v * x → x",
    "this is the matrix product of u vᵀ and L: the mask acts entry by entry": "u * (L @ (v * x)) → u * (v @ (L @ x))",
    "you multiply by the transposed mask": "L @ → L.mT @",
}
opener(
    "5.b",
    "A mask under a rank of one",
    claim="001:id-lowrank-mask",
    kind="prove",
    tolerance=1e-9,
    cases=_step_cases,
    oracle=lambda u, v, L, x: torch.stack(
        [sum(u[t] * v[s] * L[t, s] * x[s] for s in range(len(x))) for t in range(len(x))]
    ),
    wrong=WRONG_B,
)(three_steps)


def smallest_state():
    """The numbers of the smallest state.

    A causal mask with the entries L_ts = (t − s) · ½^(t − s) for s ≤ t: what a token counts grows at first, then fades.
    How many numbers does the smallest state have that can scan it, however long the text is?

    Hint: Chapter 04, on which masks are fast: look for the rank of blocks that lie below the diagonal.

    Hint: (t − s) ½^t 2^s = (t ½^t) · 2^s − ½^t · (s 2^s). How many products of a row with a column are these?

    Too little: One number can only fade: it cannot grow first.

    Too much: Write the entry as a sum of products, each of something with t and something with s: few are enough.

    Insight: A number that fades, and one that is fed by it: two states in a chain. A transition need not be diagonal.
    """
    return 2


def _block_rank():
    d = (torch.arange(12)[:, None] - torch.arange(12)).double()
    L = (d * 0.5**d).tril()
    return max(int(torch.linalg.matrix_rank(L[k:, :k], rtol=1e-10)) for k in range(1, 12))


WRONG_C = {
    "one number can only fade: it cannot grow first": lambda: 1,
    "two products of a row with a column make all blocks: t and s appear as a difference": lambda: 3,
    "it does not grow with the text: write the entry as a sum of products of t's with s's": lambda: 12,
}
opener("5.c", "First more, then less", claim="000:fig3", level=2, minutes=2, oracle=_block_rank, wrong=WRONG_C)(
    smallest_state
)
