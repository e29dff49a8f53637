"""Three closed-book questions before chapter 12, on chapters 03 to 06."""

import torch

from smalearn.course.exercises.core import opener


def handed_on():
    """The share of step 3, from 0 to 1.

    The chunked algorithm with c = N = P = 64, step 3 as a loop over chunks. Which share of all multiply-adds is step 3,
    which hands the state from chunk to chunk? (Within a tenth.)

    Hint: Chapter 06: T c (N + P) inside chunks, T N P for writing, T N P for reading, and step 3?

    Hint: One multiply-add for each number of a state, N P, and each of the T/c chunks. Divide everything by T.

    Too little: Each of the T/c states takes N · P multiply-adds.

    Too much: Step 3 works once a chunk, all the others once a token.

    Insight: It is the only part that must wait, and there is hardly any of it: all the rest is products of matrices,
    for all chunks at once.
    """
    return 64 / (64 * 128 + 2 * 64 * 64 + 64)


def _share():
    T = c = N = P = 64
    parts = [T * c * (N + P), T * N * P, T * N * P, T // c * N * P]
    return parts[3] / sum(parts)


WRONG_A = {
    "the four steps do not take the same: step 3 works once a chunk, not once a token": lambda: 0.25,
    "a state is handed on once a chunk, not once a token": lambda: 4096 / (8192 + 3 * 4096),
    "give the share, not percents": lambda: 0.39,
    "this is step 3 beside the writing alone: reading and the insides count, too": lambda: 64 / 4096,
}
opener("12.a", "The part that must wait", claim="004:listing-cost", tolerance=0.1, oracle=_share, wrong=WRONG_A)(
    handed_on
)


def longest_chunk():
    """The number of tokens.

    Every log decay is −2. A program computes L_ts inside a chunk as e^(s_t) · e^(−s_s), where s are running sums from
    the chunk's start. float32 overflows from e^88.7 on. How many tokens can a chunk have, about? (Within a twentieth.)

    Hint: Chapter 04: neither quotients nor products with an inverse. Which of the two factors is large?

    Hint: The last token's running sum is −2 c, and its second factor is e^(2c).

    Too little: The factor e^(2c) still fits there.

    Too much: The factor e^(2c) has overflowed before.

    Insight: L_ts itself lies between 0 and 1. Sum each segment on its own, and mask before the exponential: then any
    decay will do, 0 included.
    """
    return 44.0


def _longest():
    sums = torch.full((200,), -2.0).cumsum(0)
    return float((-sums).exp().isfinite().sum())


WRONG_B = {
    "each token adds 2 to the exponent, not 1": lambda: 88.7,
    "each token adds 2 to the exponent, and does not halve it": lambda: 177.0,
    "the factor is e^(2c), not e^(4c): the other factor is small": lambda: 22.0,
}
opener(
    "12.b", "How long until it overflows", claim="004:listing-segsum", tolerance=0.05, oracle=_longest, wrong=WRONG_B
)(longest_chunk)


def backwards(L, C, B, dY):
    """The gradient of X (T, P).

    Y = (L ∘ CBᵀ) X, and the gradient of Y is dY (T, P). Return that of X. L is (T, T), C and B are (T, N).

    Hint: Chapter 03: "the gradients are linear attentions, too". What does a product with M become, backwards?

    Hint: dX = Mᵀ dY. Which of C and B asks now, and which way does L look?

    Insight: The same model with B and C exchanged, and time turned round: so the backward pass is the same four steps,
    from the last chunk to the first.
    """
    return (L * (C @ B.mT)).mT @ dY


def _backward_cases(randn):
    for T, N, P in [(1, 1, 1), (2, 1, 2), (3, 2, 2), (5, 3, 2)]:
        yield randn(T, T).tril(), randn(T, N), randn(T, N), randn(T, P)


def _by_autograd(L, C, B, dY):
    X = torch.zeros_like(dY, requires_grad=True)
    ((L * (C @ B.mT)) @ X).backward(dY)
    return X.grad


WRONG_C = {
    "this is the forward pass: backwards M is transposed": ")).mT @ dY → )) @ dY",
    "the mask is transposed, C and B are not exchanged": "(L * (C @ B.mT)).mT → (L.mT * (C @ B.mT))",
    "C and B are exchanged, the mask is not transposed": "(L * (C @ B.mT)).mT → (L * (B @ C.mT))",
    "the mask is missing": "L * → ",
    "a gradient is no inverse: multiply by the transpose": lambda L, C, B, dY: torch.linalg.pinv(L * (C @ B.mT)) @ dY,
}
opener(
    "12.c",
    "Time turned round",
    claim="004:duality",
    kind="prove",
    tolerance=1e-9,
    cases=_backward_cases,
    oracle=_by_autograd,
    wrong=WRONG_C,
)(backwards)
