"""The exercises of chapter 06 on the published listing: its third step as a matrix, and what that costs."""

import torch

from smalearn.course.ch06.mask import decay_mask, decays, differences, quotients, with_a_reset
from smalearn.course.exercises.core import exercise


def between_chunks(log_d):
    """The matrix W (n+1, n+1) with which step 3 is one product, for n chunks that decay by exp(log_d).

    Fill in W in the line `entering = W @ U`. U stacks the given state and what the n chunks leave; row i of the result
    is the state that enters chunk i, and the last row the state after them all.

    Hint: Write down what enters chunk 2: the state d_1 d_0 H_in + d_1 U_0 + U_1. Which row of W is that?

    Hint: You know a matrix whose entry is a product of all decays after the source, up to the target. What are the
    decays here?

    Hint: It is `decay_mask` of exercise 6.1. W has n + 1 rows, so one log decay is missing: of what value, and does it
    come before the others or after them?

    Insight: Step 3 is the model again, one level up: chunks are its tokens, and W is its mask.
    """
    return decay_mask(torch.cat([log_d.new_zeros(1), log_d]))


def _between_cases(randn):
    yield (decays(randn, 1),)
    yield (decays(randn, 3),)
    yield (decays(randn, 5),)
    yield (with_a_reset(decays(randn, 6)),)


def _between_loop(log_d):
    """Entry (i, j): the product of the decays of chunks j to i - 1."""
    chunks, decay = len(log_d), log_d.exp()
    W = torch.zeros(chunks + 1, chunks + 1, dtype=log_d.dtype)
    for i in range(chunks + 1):
        for j in range(i + 1):
            W[i, j] = decay[j:i].prod()
    return W


def _by_logarithms(log_d):
    """Each row the one before, times the logarithm of a decay."""
    W = torch.eye(len(log_d) + 1, dtype=log_d.dtype)
    for i in range(1, len(W)):
        W[i, :i] = log_d[i - 1] * W[i - 1, :i]
    return W


exercise(
    "6.7",
    "One level up",
    claim="004:listing-step3",
    kind="prove",
    level=2,
    minutes=10,
    cases=_between_cases,
    oracle=_between_loop,
    wrong={
        "the decay of chunk j − 1 itself is in your product: what a chunk leaves has met "
        "its decays already": "log_d])) → log_d])) * torch.cat([log_d.new_ones(1), log_d.exp()])",
        "this is the transpose: row i is what enters chunk i": "log_d])) → log_d])).mT",
        "this is the mask of the chunks alone, (n, n): the given state is one source more": decay_mask,
        "you append the 0 at the end: "
        "the state that is given comes first": "log_d.new_zeros(1), log_d → log_d, log_d.new_zeros(1)",
        "what a chunk leaves enters the next one whole: ones stand on the diagonal": "log_d])) → log_d])).tril(-1)",
        "a difference of running sums: NaN after a reset": lambda log_d: differences(
            torch.cat([log_d.new_zeros(1), log_d])
        ),
        "a quotient of running products: 0/0 after a reset": lambda log_d: quotients(
            torch.cat([log_d.new_zeros(1), log_d])
        ).tril(),
        "the updates decay too, not only H_in": (
            "return → W = ; log_d])) → log_d]))\n    return torch.cat([W[:, :1], torch.ones_like(W).tril()[:, 1:]], 1)"
        ),
        "H_in enters chunk 0: the first row is missing": "log_d])) → log_d]))[1:]",
        "you hand decays to a mask that takes their logarithms": "log_d])) → log_d.exp()]))",
        "you multiply by log_d, which are logarithms: the decay of a chunk is exp(log_d)": _by_logarithms,
        "this is the inverse of W: it makes of the states what the "
        "chunks leave": "decay_mask( → torch.linalg.inv(decay_mask( ; log_d])) → log_d])))",
    },
)(between_chunks)


def takes_over():
    """From how many tokens on step 3 of the listing costs more than its steps 1, 2 and 4 together.

    Count multiply-adds with c = N = P = 64: T·c·(N + P) for step 1, T·N·P each for steps 2 and 4, (T/c)²·N·P for 3.

    Hint: Divide all four by T. Only one of them still grows with T.

    Hint: T·N·P/c² = T, against 64·128 + 2·4096.

    Too little: With so few tokens step 3 is still cheaper than the others together: put your number into all
    four counts.

    Too much: With so many tokens step 3 is already dearer than the others together: put your number into all
    four counts.

    Insight: At 100,000 tokens six sevenths of its multiply-adds would be in step 3, which a loop does for next to
    nothing. The authors say so in part III of their posts, and their kernels use a scan.
    """
    return 16_384.0


def _takes_over():
    """The first whole number of chunks at which step 3 costs as much, by counting."""
    c = n = p = 64
    length = c
    while (length // c) ** 2 * n * p < length * c * (n + p) + 2 * length * n * p:
        length += c
    return float(length)


exercise(
    "6.8",
    "When step 3 takes over",
    claim="004:listing-step3",
    kind="predict",
    level=2,
    minutes=5,
    tolerance=0.1,
    oracle=_takes_over,
    wrong={
        "this is the number of chunks: a chunk has 64 tokens": "16_384.0 → 256",
        "both sides grow with T / c: count (T/c)² N·P once more": "16_384.0 → 262_144",
        "that is one chunk. Per token step 3 takes T/c² · N·P: when does that pass the other steps?": "16_384.0 → 64",
        "you compare with step 1 alone, or with 2 and 4 alone: they cost the same, add both": "16_384.0 → 8192",
        "you compare with one of the steps 2 and 4: add up 1, 2 and 4": "16_384.0 → 4096",
        "this is three quarters of the rest: step 1 takes T·c·(N + P), steps 2 and 4 T·N·P each": "16_384.0 → 12288",
        "you count 2·c·(N + P) a token for step 1: it is half of that, 8192": "16_384.0 → 24576",
        "for each pair of chunks N·P multiply-adds, not c·N·P": "16_384.0 → 1024",
        "all pairs are computed, also those that the mask throws away: (T/c)², not half of it": "16_384.0 → 32768",
    },
)(takes_over)
