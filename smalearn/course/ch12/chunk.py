"""The exercises of chapter 12 on one chunk: what it adds to the state, and what it reads."""

import torch

from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong, without_resets
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

# ------------------------------------------------------------------------------------------ 12.6 what a chunk leaves


def summarised(X, B, log2_a, chunk_len):
    """What each chunk of c tokens leaves: added (chunks, N, P) and decay (chunks,), a program for each chunk.

    added[k] = Σ_t B[t] x[t]ᵀ · 2^(log decays after t, within chunk k), by `tl.dot`; decay[k] is the product of
    its decays. X is (T, P), B (T, N), log2_a (T,); T is any, the others are powers of two from 16. A reset is −∞.

    Hint: With `s = tl.cumsum(a)` and `last = tl.sum(a)`, token t decays by `tl.exp2(last - s)` until the chunk's end.
    A row that is not there must add nothing and decay nothing: which `other` is that for x, and which for a logarithm?

    Hint: −∞ minus −∞ is no number. A decay below 2^−160 is 0 in float32, so cut it off there:
    `tl.where(a < -160.0, -160.0, a)`.

    Hint: The sum over tokens is a product, `tl.dot(tl.trans(B), fX, input_precision="ieee")`, with the rows of
    fX scaled by `tl.exp2(last - s)[:, None]`. It goes to `added + chunk * N * P`.

    Insight: This pair, a number and a matrix, is all that a chunk is to everything after it.
    """
    (T, P), N = X.shape, B.shape[1]
    chunks = triton.cdiv(T, chunk_len)
    added, decay = torch.empty(chunks, N, P), torch.empty(chunks)
    summary_kernel[(chunks,)](X, B, log2_a, added, decay, T, chunk_len=chunk_len, N=N, P=P)
    return added, decay


@triton.jit
def summary_kernel(x, b, log2_a, added, decay, length, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One chunk a program."""
    chunk, n, p = tl.program_id(0), tl.arange(0, N), tl.arange(0, P)
    rows = chunk * chunk_len + tl.arange(0, chunk_len)
    mask = (rows < length)[:, None]
    X = tl.load(x + rows[:, None] * P + p[None, :], mask=mask, other=0.0)
    B = tl.load(b + rows[:, None] * N + n[None, :], mask=mask, other=0.0)
    a = tl.load(log2_a + rows, mask=rows < length, other=0.0)
    a = tl.where(a < -160.0, -160.0, a)
    s, last = tl.cumsum(a), tl.sum(a)
    fX = (X * tl.exp2(last - s)[:, None]).to(X.dtype)
    E = tl.dot(tl.trans(B), fX, input_precision="ieee")
    tl.store(added + chunk * N * P + n[:, None] * P + p[None, :], E)
    tl.store(decay + chunk, tl.exp2(last))


def walked(H, X, log2_a, B, C=None):
    """One token after the other in float64: Y (T, P), and the state (N, P) after the last."""
    H, X, log2_a, B = (z.double() for z in (H, X, log2_a, B))
    C = torch.zeros_like(B) if C is None else C.double()
    rows = []
    for t in range(len(X)):
        H = log2_a[t].exp2() * H + torch.outer(B[t], X[t])
        rows.append(C[t] @ H)
    return torch.stack(rows) if rows else torch.zeros_like(X), H


def _summaries(X, B, log2_a, chunk_len):
    added, decay = [], []
    for x, b, a in zip(*(z.double().split(chunk_len) for z in (X, B, log2_a)), strict=True):
        s = a.clamp(min=-160.0).cumsum(0)
        added.append(b.mT @ ((s[-1] - s).exp2()[:, None] * x))
        decay.append(s[-1].exp2())
    return torch.stack(added).float(), torch.stack(decay).float()


def _summary_cases(randn):
    for length, chunk_len in [(1, 16), (16, 16), (40, 16), (37, 32), (33, 16), (48, 16)]:
        log2_a = decays(randn, length)
        if length in (33, 48):
            log2_a = strong(randn, length) if length == 33 else without_resets(randn, length)
        yield floats(randn, length, 16), floats(randn, length, 32), log2_a, chunk_len
    log2_a = decays(randn, 32)
    log2_a[20] = -torch.inf  # alone among mild ones, behind large tokens: only a decay of 0 will do
    X = floats(randn, 32, 16)
    X[16:20] *= 1e4
    yield X, floats(randn, 32, 32), log2_a, 16


exercise(
    "12.6",
    "What a chunk leaves",
    claim="004:listing-kernel",
    level=3,
    minutes=20,
    tolerance=1e-5,
    cases=_summary_cases,
    way=launches(
        lambda randn, length: (floats(randn, length, 16), floats(randn, length, 16), decays(randn, length), 16),
        launched=1,
        programs=4,  # one for each chunk
        compiled=True,
        needs=DOT,
    ),
    oracle=_summaries,
    wrong={
        "your tokens decay to the chunk's beginning: what counts is what follows them, `last - s`": "last - s → s",
        "your tokens meet their own decay: "
        "a token is added after it, so only the decays behind it count": "last - s → last - s + a",
        "the tokens do not decay: each of them decays from its own place to the end of the chunk": "last - s → 0.0 * s",
        "every token decays by the whole chunk: "
        "a token decays by what follows it, `last - s`": "last - s → last + 0.0 * s",
        "only the last token is added: each token of the chunk is, "
        "decayed until its end": "tl.exp2(last - s) → (tl.arange(0, chunk_len) == chunk_len - 1)",
        "you cut off running sums: cut every single log decay, "
        "before you add them up": "last - s → tl.maximum(last, -160.0) - tl.maximum(s, -160.0)",
        "the tail's log decays are −∞, a reset behind the last token: nothing is left. A "
        "decay of 1 is a logarithm of 0, `other=0.0`": "rows < length, other=0.0 → rows < length, other=float('-inf')",
        "the tail's log decays are 1: that doubles. A decay of 1, "
        "which changes nothing, is a logarithm of 0": "rows < length, other=0.0 → rows < length, other=1.0",
        "rows past the end are 1 in X and in B, and add up: "
        "what is not there must add nothing, `other=0.0`": "mask=mask, other=0.0 → mask=mask, other=1.0",
        "a reset of −10^30 leaves running sums no digits for other decays: cut off at −160": "-160.0 → -1e30",
        "you store the logarithm of the decay: "
        "its power of 2 is asked for": "decay + chunk, tl.exp2(last) → decay + chunk, last",
        "your powers are of e: these logarithms are to base 2, `tl.exp2`": "exp2 → exp",
        "−∞ minus −∞ is no number: "
        "a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": "tl.where(a < -160.0, -160.0, a) → a",
        "entry (n, p) of what is added is at n · P + p: "
        "yours is stored by columns": "n[:, None] * P + p[None, :], E → n[:, None] + p[None, :] * N, E",
        "2^last · 2^(−s) is ∞ times 0 where decays are strong: "
        "subtract first, `tl.exp2(last - s)`": "exp2(last - s) → exp2(-s) ; E) → E * tl.exp2(last))",
        "the rows of B begin P numbers apart: "
        "a row of B has N, so row t begins at `t * N`": "rows[:, None] * N → rows[:, None] * P",
    },
)(summarised)


# ----------------------------------------------------------------------------------------- 12.8 the outputs of a chunk


def chunk_outputs(H, X, B, C, log2_a):
    """Y (c, P) of one chunk: what its tokens read from each other and from H (N, P), the state before.

    X is (c, P), B and C (c, N), log2_a (c,), where a reset is −∞; all sizes are powers of two from 16, so nothing is
    masked but L. Products of matrices are by `tl.dot`.

    Hint: Y = 2^s ∘ (C H) + (L ∘ C Bᵀ) X with L[i, j] = 2^(s[i] − s[j]) for j ≤ i, else 0. Four loads of matrices, one
    of decays, cut off as in 12.6, three products, one store.

    Hint: Mask the exponent, not the power: `tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], -inf)` with
    `float('-inf')` for −∞, then `tl.exp2`.

    Hint: `M = tl.dot(C, tl.trans(B), input_precision="ieee") * L`. For the second product both operands must have one
    type: `tl.dot(M.to(X.dtype), X, ...)`.

    Insight: Two of the three products have C on their left: a program loads it once and uses it twice.
    """
    (N, P), chunk_len = H.shape, len(X)
    Y = torch.empty_like(X)
    chunk_kernel[(1,)](H, X, B, C, log2_a, Y, chunk_len=chunk_len, N=N, P=P)
    return Y


@triton.jit
def chunk_kernel(h, x, b, c, log2_a, y, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One program for one chunk."""
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.arange(0, P)
    H, X = tl.load(h + n[:, None] * P + p[None, :]), tl.load(x + i[:, None] * P + p[None, :])
    B, C = tl.load(b + i[:, None] * N + n[None, :]), tl.load(c + i[:, None] * N + n[None, :])
    a = tl.load(log2_a + i)
    s = tl.cumsum(tl.where(a < -160.0, -160.0, a))
    L = tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf")))
    M = tl.dot(C, tl.trans(B), input_precision="ieee") * L
    Y = tl.dot(C, H.to(C.dtype), input_precision="ieee") * tl.exp2(s)[:, None]
    Y += tl.dot(M.to(X.dtype), X, input_precision="ieee")
    tl.store(y + i[:, None] * P + p[None, :], Y)


def _read_loop(H, X, B, C, log2_a):
    return walked(H, X, log2_a, B, C)[0].float()


def _one_factor(H, X, B, C, log2_a):
    """Without any L: 2^s · (C H + (mask ∘ C Bᵀ) (2^(−s) ∘ X))."""
    s = log2_a.clamp(min=-160).cumsum(0)
    return s.exp2()[:, None] * (C @ H + (C @ B.mT).tril() @ ((-s).exp2()[:, None] * X))


def _read_cases(randn):
    sizes = [(16, 16, 32), (16, 32, 64), (32, 16, 64), (16, 32, 64), (64, 16, 32)]  # N < P: its rows fit in those of X
    for number, (chunk_len, N, P) in enumerate(sizes):
        H, X, B, C = (floats(randn, *shape) for shape in [(N, P), (chunk_len, P), (chunk_len, N), (chunk_len, N)])
        yield H, X, B, C, [decays, decays, decays, strong, without_resets][number](randn, chunk_len)
    H, X, B, C = (floats(randn, *shape) for shape in [(16, 32), (16, 32), (16, 16), (16, 16)])
    log2_a = decays(randn, 16)
    log2_a[0] = -torch.inf  # nothing of a large state is left, not 2^-20 of it either
    yield 1e4 * H, X, B, C, log2_a


exercise(
    "12.8",
    "What a chunk reads",
    claim="004:listing-kernel",
    level=3,
    minutes=20,
    tolerance=1e-5,
    cases=_read_cases,
    oracle=_read_loop,
    way=launches(
        lambda randn, length: (
            *(floats(randn, *shape) for shape in [(16, 16), (length, 16), (length, 16), (length, 16)]),
            decays(randn, length),
        ),
        needs=DOT,
    ),
    wrong={
        "the state before the chunk is not read: C H, decayed, is missing": "Y = tl.dot(C, H → Y = 0.0 * tl.dot(C, H",
        "the state does not decay inside the chunk: "
        "token i reads it after the decays up to i, `tl.exp2(s)`": " * tl.exp2(s)[:, None] → ",
        "your token reads before its own decay: "
        "the decay comes first, so the factor is `tl.exp2(s)`": "exp2(s) → exp2(s - tl.maximum(a, -160.0))",
        "the exponent is masked with 0, and 2^0 is 1: "
        "the future leaks in. Mask with −∞, whose power is 0": 'float("-inf") → 0.0',
        "a token does not see itself: the diagonal belongs to the mask, `i[:, None] >= i[None, :]`": ">= → >",
        "the scores are masked but do not decay: "
        "C Bᵀ is multiplied by L, not by a mask of ones": "s[:, None] - s[None, :] → 0.0 * s[:, None]",
        "you cut off running sums: cut every single log decay, "
        "before you add them up": "tl.cumsum(tl.where(a < -160.0, -160.0, a)) → tl.maximum(tl.cumsum(a), -160.0)",
        "a reset of −10^30 leaves running sums no digits for other decays: cut off at −160": "-160.0 → -1e30",
        "H lies in memory as (N, P): "
        "entry (n, p) is at n · P + p": "n[:, None] * P + p[None, :]) → n[:, None] + p[None, :] * N)",
        "a token reads the old state decayed up to itself, "
        "by `s`, not up to the chunk's end": "exp2(s) → exp2(tl.min(s) + 0.0 * s)",
        "your L has the decay of the token that is read as well: "
        "between j and i lie the decays behind j": "- s[None, :] → - s[None, :] + tl.maximum(a, -160.0)[None, :]",
        "you read the state AFTER the chunk, in which its own tokens are already: H is the one before it": (
            "M = → last = tl.min(s)\n"
            "    H = H * tl.exp2(last) + tl.dot(tl.trans(B), X * tl.exp2(last - s)[:, None], input_precision='ieee')\n"
            "    M ="
        ),
        "the state decays by what follows token i: "
        "it has come from before the chunk, so `tl.exp2(s)`": "exp2(s) → exp2(tl.min(s) - s)",
        "your triangle is the upper one: tokens read what comes after them": ">= → <=",
        "the tokens of the chunk decay twice: "
        "`tl.exp2(s)` belongs to C H alone, L has its own decays": " * L → * L * tl.exp2(s)[:, None]",
        "B and C are exchanged: the token that reads, "
        "row i, has C, and the one it reads, column j, has B": "tl.dot(C, tl.trans(B) → tl.dot(B, tl.trans(C)",
        "you take powers of e: the decays are logs to the base 2, `tl.exp2`": "exp2 → exp",
        "−∞ minus −∞ is no number: "
        "a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": "tl.where(a < -160.0, -160.0, a) → a",
        "the mask comes after the exponential, and ∞ · 0 is no number: mask the exponent with −∞, then `tl.exp2`": (
            'tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))) → '
            "tl.exp2(s[:, None] - s[None, :]) * (i[:, None] >= i[None, :])"
        ),
        "the mask comes after the exponential, and a reset, −∞, is not cut off: mask the exponent": (
            "tl.where(a < -160.0, -160.0, a) → a ; "
            'tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))) → '
            "tl.exp2(s[:, None] - s[None, :]) * (i[:, None] >= i[None, :])"
        ),
        "L is 2^s · 2^(−s), and the second factor overflows: subtract the exponents first": (
            'tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))) → '
            "tl.where(i[:, None] >= i[None, :], tl.exp2(s)[:, None] * tl.exp2(-s)[None, :], 0.0)"
        ),
        "the tokens are scaled by 2^(−s), which overflows where decays are strong: "
        "L needs exponents' differences": _one_factor,
        "the rows of X and Y begin N numbers apart: "
        "a row of theirs has P, so row i begins at `i * P`": "i[:, None] * P → i[:, None] * N",
    },
)(chunk_outputs)
