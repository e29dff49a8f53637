"""Three closed-book questions before chapter 06, on chapters 03 to 05."""

from smalearn.course.exercises.core import opener


def factors_in_order(A, B, C):
    """The entry M_31, a number.

    A state space model, h_t = A_t h_{t−1} + B_t x_t and y_t = C_tᵀ h_t, has times 0 to 3; A is (4, N, N), B and C are
    (4, N). Return M_31, what y_3 takes of x_1, with all its factors in order.

    Hint: Chapter 05, on unrolling: push once, at time 1, and follow the state to time 3.

    Hint: h_1 = B_1, h_2 = A_2 B_1, and so on.

    Insight: A_1 is not in it: it acts before the push. The latest transition stands on the left, and if all A_t are
    numbers, they can leave the product.
    """
    return C[3] @ A[3] @ A[2] @ B[1]


def _entry_cases(randn):
    for N in (1, 2, 3, 4):
        yield randn(4, N, N), randn(4, N), randn(4, N)


def _pushed(A, B, C):
    """One push, at time 1."""
    h = B.new_zeros(B.shape[1])
    for t in range(4):
        h = A[t] @ h + (B[t] if t == 1 else 0)
    return (C[3] @ h).item()


WRONG_A = {
    "the transitions are in the wrong order: the latest stands on the left": "A[3] @ A[2] → A[2] @ A[3]",
    "A_2 is missing: between 1 and 3 the state moves on twice": "@ A[2] → ",
    "B and C are exchanged: B writes at time 1, C reads at time 3": "C[3] → B[3] ; B[1] → C[1]",
    "the times are exchanged: time 1 writes, time 3 reads": "C[3] → C[1] ; B[1] → B[3]",
}
opener(
    "6.a",
    "One entry, all its factors",
    claim="004:eq-ssm-transformation",
    kind="prove",
    tolerance=1e-9,
    cases=_entry_cases,
    oracle=_pushed,
    wrong=WRONG_A,
)(factors_in_order)


def oldest_seen():
    """The number of the oldest token that is seen.

    H_t = a_t H_{t−1} + X_t B_tᵀ. At token 3 stands a reset, a_3 = 0; all other decays are 1. Which is the oldest token
    (counted from 0) of which token 5 still reads something?

    Hint: Chapter 03, on forgetting: what does the gate of token 3 multiply, and when is token 3 written?

    Hint: H_3 = 0 · H_2 + X_3 B_3ᵀ.

    Too little: All that was in the state before the reset is multiplied by 0.

    Too much: What is written at the reset is written after its decay has acted, and all later decays are 1.

    Insight: A token does not meet its own decay, it is written after it. So texts in one row are cut by a reset at the
    first token of each, and not at the last of the one before.
    """
    return 3


def _oldest():
    seen = []
    for t in range(6):
        seen = [t] if t == 3 else [*seen, t]
    return seen[0]


WRONG_B = {
    "token 3 is written after its own decay has acted: it is still there": lambda: 4,
    "token 2 was in the old state, which a_3 = 0 wipes": lambda: 2,
    "more than the token itself is left: what came after the reset": lambda: 5,
}
opener("6.b", "Behind a reset", claim="004:eq-1ss", oracle=_oldest, wrong=WRONG_B)(oldest_seen)


def masked_attentions():
    """The smallest number of masked attentions.

    A = diag(a, a, b) is the same at all times, with a ≠ b: a state of three numbers. M is a sum of masked attentions, L
    ∘ CBᵀ with some columns of C and B in each. With how few can one write it?

    Hint: Chapter 05, "every state is an attention": what does each number of a diagonal state contribute to M_ts?

    Hint: Σ_n C_tn a_n^(t−s) B_sn: numbers that decay alike share their mask.

    Too little: A mask holds one decay, and here are two.

    Too much: Numbers of the state that decay alike share a mask.

    Insight: If all N numbers decay alike, one mask is left, with N columns in its scores. That model is the whole of
    chapter 06.
    """
    return 2


WRONG_C = {
    "two of the three numbers decay alike: one mask serves both, with two columns of scores": lambda: 3,
    "one mask has one decay, and here are two": lambda: 1,
    "that counts the entries of A: it is diagonal": lambda: 9,
}
opener("6.c", "How many masks", claim="001:diagonal-sum", oracle=lambda: len({"a", "b"}), wrong=WRONG_C)(
    masked_attentions
)
