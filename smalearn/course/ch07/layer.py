"""Exercises 7.3 and 7.4: a step of decoding, the size of a memory."""

import torch

from smalearn.course.ch06.mask import decays
from smalearn.course.ch07.window import two_at_once
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def block_step(X, dt, A_log, B, C, D, state):
    """One token for all heads of the block: y (heads, P) and the new state (heads, P, N).

    Decode one token: the log decay is -exp(A_log)·dt, what is written is dt·X under the key B, C reads the new state,
    and D·X is added to what it reads. All heads share B and C.

    Hint: The recurrence, once: decay what is there, write, then read. Which tensors have an axis of heads?

    Hint: `(dt[:, None] * X)[:, :, None] * B` is (heads, P, N): every head writes its own value under the shared key.

    Hint: The decay is the exponential of the log decay, one number a head; beside the state, (heads, P, N), it lacks
    two axes. Reading is `state @ C`, with the NEW state. One term of y does not go through the state.

    Insight: dt acts twice, as forgetting and as writing: a token with dt near 0 passes by and leaves the state alone.
    And a step touches the state once: its time does not grow with the text.
    """
    decay = (-dt * A_log.exp()).exp()
    state = decay[:, None, None] * state + (dt[:, None] * X)[:, :, None] * B
    return state @ C + D[:, None] * X, state


def _block_cases(randn):
    """Heads, P, N; first an empty state and no input, then a token of length 0, then ordinary ones."""
    for heads, head_dim, features, kind in [(1, 1, 1, 0), (2, 1, 2, 1), (1, 2, 2, 2), (2, 2, 3, 2), (3, 2, 2, 2)]:
        X, state = randn(heads, head_dim), randn(heads, head_dim, features)
        dt, A_log, D = -decays(randn, heads), -decays(randn, heads), randn(heads)
        B, C = randn(2, features)
        yield X * (kind > 0) + 0.0, dt * (kind != 1), A_log, B, C, D, state * (kind > 0) + 0.0


def _many_heads(randn, length):
    sizes = [(length, 2), (length,), (length,), (3,), (3,), (length,), (length, 2, 3)]
    X, dt, *others = (randn(*size) for size in sizes)
    return X, dt.abs(), *others


def _block_loop(X, dt, A_log, B, C, D, state):
    """One entry of the state after the other."""
    heads, head_dim, features = state.shape
    y, new = torch.zeros_like(X), torch.zeros_like(state)
    for h in range(heads):
        decay = torch.exp(-torch.exp(A_log[h]) * dt[h])
        for p in range(head_dim):
            y[h, p] = D[h] * X[h, p]
            for n in range(features):
                new[h, p, n] = decay * state[h, p, n] + dt[h] * X[h, p] * B[n]
                y[h, p] += C[n] * new[h, p, n]
    return y, new


WRONG_DECAYS = {
    "you take A_log for the rate: it is its logarithm, "
    "and exp(A_log) stays above 0 however it is trained": "A_log.exp() → A_log",
    "your state grows: A is −exp(A_log), and a log decay is at most 0": "-dt → dt",
    "your decay does not depend on dt: every token forgets alike, "
    "and nothing is selected": "-dt * A_log.exp() → -A_log.exp()",
    "your decay is e^-dt for every head: each has a rate of its own, exp(A_log)": "-dt * A_log.exp() → -dt",
    "your dt stands inside the inner exponential: the rate is exp(A_log), "
    "and dt multiplies it": "-dt * A_log.exp() → -(dt * A_log).exp()",
    "dt is added to the rate in yours: the rate is exp(A_log), "
    "and dt multiplies it": "-dt * A_log.exp() → -A_log.exp() - dt",
    "nothing decays in yours: "
    "the old state is multiplied by e^(log a) for each head": "(-dt * A_log.exp()).exp() → torch.ones_like(dt)",
    "you multiply the old state by log a: the decay is its exponential, "
    "between 0 and 1": "(-dt * A_log.exp()).exp() → -dt * A_log.exp()",
    "you multiply the old state by 1 + log a: "
    "the first terms of e^(log a) alone (Euler's step)": "(-dt * A_log.exp()).exp() → 1 - dt * A_log.exp()",
    "you take a softplus of dt in the decay: it has been through one": "-dt → -torch.nn.functional.softplus(dt)",
    "you keep 1 − a of the old state: a is what stays of it, and 1 − a what is lost": "decay = ( → decay = 1 - (",
}
WRONG_WRITES = {
    "you write X, not dt·X: a token of length 0 should leave no trace, "
    "and yours leaves all of it": "(dt[:, None] * X)[ → X[",
    "you write (1 − a)·X, as an average does: "
    "the block writes dt·X": "(dt[:, None] * X)[ → (-torch.expm1(-dt * A_log.exp())[:, None] * X)[",
    "your new token has decayed already: the decay acts on the old state, "
    "then the token is written whole": "(dt[:, None] * X)[ → (((-dt * A_log.exp()).exp() * dt)[:, None] * X)[",
    "this is the hold of chapter 05, (e^(dt A) − 1)/A: "
    "the block writes dt·X": "(dt[:, None] * X)[ → ((-torch.expm1(-dt * A_log.exp()) / A_log.exp())[:, None] * X)[",
    "what you write has the factor dt twice: the block writes dt·X": "(dt[:, None] * X)[ → (dt[:, None] ** 2 * X)[",
    "you write through a SiLU: X has been through one, "
    "and the block writes dt·X": "(dt[:, None] * X)[ → torch.nn.functional.silu(dt[:, None] * X)[",
}
WRONG_SKIPS = {
    "your skip adds D·dt·X: it passes the state by, "
    "and takes X as it is": "D[:, None] * X → D[:, None] * dt[:, None] * X",
    "the skip D·X is missing": "D[:, None] * X → 0 * X",
    "your skip is D alone: it is D·X, what has come in": "D[:, None] * X → D[:, None]",
    "your skip is X alone: each head has its own weight for it, D": "D[:, None] * X → X",
    "your skip has the wrong sign: D·X is added": "+ D → - D",
}

exercise(
    "7.3",
    "A step as long as the token says",
    claim="004:fig-mamba2-block",
    level=2,
    minutes=8,
    cases=_block_cases,
    oracle=_block_loop,
    way=Way(case=_many_heads, loops=0, axis="h"),
    wrong=WRONG_DECAYS
    | WRONG_WRITES
    | WRONG_SKIPS
    | dict(two_at_once(4, WRONG_DECAYS, WRONG_WRITES, WRONG_SKIPS))
    | {
        "your decay is e^(A_log·dt): it is e^(−rate·dt), and the rate is e^A_log": "-dt * A_log.exp() → A_log * dt",
        "your decay acts on the new token and not on the old state: "
        "turn it round": "decay[:, None, None] * state + ( → state + (decay[:, None] *",
        "you take a softplus of dt: it has been through one, "
        "and a token of length 0 may occur": "dt → torch.nn.functional.softplus(dt)",
        "you write with C and read with B: B is the key under which X is written, C asks": "* B → * C ; @ C → @ B",
        "you read with B: it is the key under which X is written, and C asks": "@ C → @ B",
        "you write with C: it asks, and B is the key under which X is written": "* B → * C",
        "your D multiplies what is read: it multiplies X, "
        "and is added": "state @ C + D[:, None] * X → state @ C * D[:, None]",
        "your D·X goes into the state: the skip "
        "passes it by": "(dt[:, None] * X) → (dt[:, None] * D[:, None] * X) ; state @ C + D[:, None] * X → state @ C",
        "you read the state before the token has changed it: decay, "
        "write, then read": "state = decay → new = decay ; X, state → X, new",
        "you decay what you have read once more: "
        "the decay acts on the old state alone": "state @ C → decay[:, None] * (state @ C)",
        "you write X, and multiply by dt what you read: so the tokens before get the length "
        "of this one": "(dt[:, None] * X)[ → X[ ; state @ C → dt[:, None] * (state @ C)",
        "you return the state that came in: "
        "the next token needs the new one": "state = decay → new = decay ; state @ C → new @ C",
        "the new state is missing: the next token needs it": "X, state → X",
        "your decay runs along the last axis of the state, N: it has one number a head, "
        "`[:, None, None]`": "decay[:, None, None] → decay",
        "dt lines up with an axis of the channels: beside (heads, P, "
        "N) it is `dt[:, None, None]`": "(dt[:, None] * X)[:, :, None] → dt[:, None] * X[:, :, None]",
        "D lines up with the channels of a head: it has one number a head, `D[:, None]`": "D[:, None] → D",
        "what you write has the axes (heads, N, P): the state is (heads, P, N)": (
            "(dt[:, None] * X)[:, :, None] * B → (dt[:, None] * X)[:, None] * B[:, None] ; "
            "state @ C → (state * C[:, None]).sum(1)"
        ),
    },
)(block_step)


def equal_after():
    """The number of tokens after which attention's cache is as large as the state.

    A layer with D = 1024 has 2D = 2048 channels, each with a state of N = 128 numbers. Attention of the same D has 16
    heads of 64, and groups of four share their keys and values. After how many tokens are the two equally large?

    Hint: How many numbers is the state, all channels together? And how many does attention keep for one token?

    Hint: 2048 · 128 numbers of state. Attention keeps a key and a value of 64 numbers for each of 4 groups.

    Too little: After so few tokens the cache is smaller: a key and a value of 64 numbers for each of 4 groups, against
    N numbers for each of the 2D channels.

    Too much: After so many tokens the cache is larger: a key and a value of 64 numbers for each of 4 groups, against
    N numbers for each of the 2D channels.

    Insight: So here, up to 512 tokens, attention remembers in less memory, and exactly. A state pays in long texts.
    """
    return 512


exercise(
    "7.4",
    "Which memory is the smaller one?",
    claim="004:hybrid",
    kind="predict",
    level=1,
    minutes=4,
    tolerance=0.1,
    oracle=lambda: 2 * 1024 * 128 / (2 * 4 * 64),
    wrong={
        "this compares with keys alone: attention keeps a key AND a value for each token": "512 → 1024",
        "this is N: here groups of four heads share what they keep, and a token costs a fourth of 2D": "512 → 128",
        "both at once: a token costs a key AND a value, and groups of four heads share them": "512 → 256",
        "this forgets that the state belongs to 2D channels, not to D, and that heads share": "512 → 64",
        "this is the state of one channel: there are 2D channels, each with N numbers": "512 → 0.25",
        "groups of four heads are 4 groups, not one: each keeps a key and a value": "512 → 2048",
        "sharing makes what a token costs four times smaller than 2D, not larger": "512 → 32",
        "this is N²: 2D·N numbers of the state, over the 512 of a token": "512 → 128**2",
        "the ratio is upside down: divide the numbers of the state by those of one token": "512 → 1 / 512",
        "this is how many numbers the state has: divide by the 512 of a token": "512 → 2 * 1024 * 128",
        "this is D · N, a number of numbers: the state has 2D · N, and is divided by the 512 of a "
        "token": "512 → 1024 * 128",
    },
)(equal_after)
