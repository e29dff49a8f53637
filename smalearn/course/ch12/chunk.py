"""The exercise of chapter 12 on one chunk: what its tokens read, and what it leaves."""

import torch

from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong, without_resets
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton


def one_chunk(H, X, B, C, log2_a):
    """Y (c, P), what the tokens of a chunk read from each other and from H (N, P), and the state (N, P) after them.

    X is (c, P), B and C (c, N), log2_a (c,), where a reset is −∞; all sizes are powers of two from 16, so nothing is
    masked but L. Products of matrices are by `tl.dot`.

    Hint: −∞ minus −∞ is no number. A decay below 2^−160 is 0 in float32, so cut it off there, before you add up:
    `a = tl.where(a < -160.0, -160.0, a)`. The last entry of `s = tl.cumsum(a)` is what is left of it by a mask,
    `last = tl.sum(tl.where(i == chunk_len - 1, s, 0.0))`; `tl.sum(a)` is rounded in another way, and `last - s` shows.

    Hint: Y = 2^s ∘ (C H) + (L ∘ C Bᵀ) X with L[i, j] = 2^(s[i] − s[j]) for j ≤ i, else 0. Mask the exponent, not the
    power: `tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))`, then `tl.exp2`.

    Hint: Token t decays by `tl.exp2(last - s)` until the chunk's end: scale the rows of X by it, `fX`, and the chunk
    adds `tl.dot(tl.trans(B), fX, input_precision="ieee")` to H, which decays by `tl.exp2(last)`.

    Insight: Four products, three of tiles that are there anyway: a chunk is loaded once, and read and written twice.
    """
    (N, P), chunk_len = H.shape, len(X)
    Y, after = torch.empty_like(X), torch.empty_like(H)
    chunk_kernel[(1,)](H, X, B, C, log2_a, Y, after, chunk_len=chunk_len, N=N, P=P)
    return Y, after


@triton.jit
def chunk_kernel(h, x, b, c, log2_a, y, after, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One program for one chunk."""
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.arange(0, P)
    state = n[:, None] * P + p[None, :]
    H, X = tl.load(h + state), tl.load(x + i[:, None] * P + p[None, :])
    B, C = tl.load(b + i[:, None] * N + n[None, :]), tl.load(c + i[:, None] * N + n[None, :])
    a = tl.load(log2_a + i)
    a = tl.where(a < -160.0, -160.0, a)
    s = tl.cumsum(a)
    last = tl.sum(tl.where(i == chunk_len - 1, s, 0.0))
    L = tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf")))
    M = tl.dot(C, tl.trans(B), input_precision="ieee") * L
    Y = tl.dot(C, H, input_precision="ieee") * tl.exp2(s)[:, None]
    Y += tl.dot(M, X, input_precision="ieee")
    tl.store(y + i[:, None] * P + p[None, :], Y)
    fX = X * tl.exp2(last - s)[:, None]
    tl.store(after + state, H * tl.exp2(last) + tl.dot(tl.trans(B), fX, input_precision="ieee"))


def walked(H, X, log2_a, B, C):
    """One token after the other in float64: Y (T, P), and the state (N, P) after the last."""
    H, X, log2_a, B, C = (z.double() for z in (H, X, log2_a, B, C))
    rows = []
    for t in range(len(X)):
        H = log2_a[t].exp2() * H + torch.outer(B[t], X[t])
        rows.append(C[t] @ H)
    return torch.stack(rows) if rows else torch.zeros_like(X), H


def _token_by_token(H, X, B, C, log2_a):
    return tuple(x.float() for x in walked(H, X, log2_a, B, C))


def _one_factor(H, X, B, C, log2_a):
    """Without any L: 2^s · (C H + (mask ∘ C Bᵀ) (2^(−s) ∘ X))."""
    s = log2_a.clamp(min=-160).cumsum(0)
    scaled = (-s).exp2()[:, None] * X
    return s.exp2()[:, None] * (C @ H + (C @ B.mT).tril() @ scaled), s[-1].exp2() * (H + B.mT @ scaled)


def _chunk_cases(randn):
    sizes = [(16, 16, 32), (16, 32, 64), (32, 16, 64), (16, 32, 64), (64, 16, 32)]  # N < P: its rows fit in those of X
    for number, (chunk_len, N, P) in enumerate(sizes):
        H, X, B, C = (floats(randn, *shape) for shape in [(N, P), (chunk_len, P), (chunk_len, N), (chunk_len, N)])
        yield H, X, B, C, [decays, decays, decays, strong, without_resets][number](randn, chunk_len)
    H, X, B, C = (floats(randn, *shape) for shape in [(16, 32), (16, 32), (16, 16), (16, 16)])
    fine, log2_a = decays(randn, 16) * (1 + 2.0**-6), decays(randn, 16)
    fine[5] = -torch.inf  # steps of 2^-14: float32 adds them exactly to 160, and not to 10,000
    yield H, X, B, C, fine
    log2_a[0] = -torch.inf  # nothing of a large state is left, not 2^-20 of it either
    yield 1e4 * H, X, B, C, log2_a


SLIPS = {
    "you cut off running sums: cut every single log decay, before you add them up": (
        "tl.cumsum(a) → tl.maximum(tl.cumsum(a), -160.0) ; tl.where(a < -160.0, -160.0, a) → a"
    ),
    "running sums are cut off and their total is not: cut every single log decay, before you add them up": (
        "tl.cumsum(a) → tl.maximum(tl.cumsum(a), -160.0) ; tl.where(a < -160.0, -160.0, a) → a ; "
        "tl.where(i == chunk_len - 1, s, 0.0) → a"
    ),
    "a reset of −10^30 leaves running sums no digits for other decays: cut off at −160": "-160.0 → -1e30",
    "−∞ minus −∞ is no number: "
    "a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": "tl.where(a < -160.0, -160.0, a) → a",
    "a token does not see itself: the diagonal belongs to the mask, `i[:, None] >= i[None, :]`": ">= → >",
    "your L has the decay of the token that is read as well: "
    "between j and i lie the decays behind j": "- s[None, :] → - s[None, :] + a[None, :]",
    "a token reads the old state decayed up to itself, "
    "by `s`, not up to the chunk's end": "exp2(s) → exp2(last + 0.0 * s)",
    "what a chunk adds does not decay: "
    "each of its tokens does, by `last - s`, to the chunk's end": "last - s → 0.0 * s",
    "the state does not decay over the chunk: a whole chunk's decay, `tl.exp2(last)`, lies between": (
        "H * tl.exp2(last) → H"
    ),
    "what a chunk leaves decays by the whole chunk once more: "
    "it is a H + E, not a (H + E)": "+ tl.dot(tl.trans(B) → + tl.exp2(last) * tl.dot(tl.trans(B)",
}
"""What goes wrong in a chunk, wherever it stands."""

exercise(
    "12.7",
    "One chunk",
    claim="004:listing-kernel",
    level=3,
    minutes=25,
    tolerance=1e-5,
    cases=_chunk_cases,
    oracle=_token_by_token,
    way=launches(
        lambda randn, length: (
            *(floats(randn, *shape) for shape in [(16, 16), (length, 16), (length, 16), (length, 16)]),
            decays(randn, length),
        ),
        launched=1,
        needs=DOT,
    ),
    wrong=SLIPS
    | {
        "beside −10,000 running sums have no digits for mild decays: cut off at −160": "-160.0 → -10000.0",
        "the state before the chunk is not read: C H, decayed, is missing": "Y = tl.dot(C, H → Y = 0.0 * tl.dot(C, H",
        "the state does not decay inside the chunk: "
        "token i reads it after the decays up to i, `tl.exp2(s)`": " * tl.exp2(s)[:, None] → ",
        "your token reads before its own decay: "
        "the decay comes first, so the factor is `tl.exp2(s)`": "exp2(s) → exp2(s - a)",
        "the scores are masked but do not decay: "
        "C Bᵀ is multiplied by L, not by a mask of ones": "s[:, None] - s[None, :] → 0.0 * s[:, None]",
        "H lies in memory as (N, P): "
        "entry (n, p) is at n · P + p": "n[:, None] * P + p[None, :]\n → n[:, None] + p[None, :] * N\n",
        "you read the state AFTER the chunk, in which its own tokens are already: H is the one before it": (
            "dot(C, H → dot(C, H * tl.exp2(last) + "
            "tl.dot(tl.trans(B), X * tl.exp2(last - s)[:, None], input_precision='ieee')"
        ),
        "your triangle is the upper one: tokens read what comes after them": ">= → <=",
        "the tokens of the chunk decay twice: "
        "`tl.exp2(s)` belongs to C H alone, L has its own decays": " * L → * L * tl.exp2(s)[:, None]",
        "B and C are exchanged: the token that reads, "
        "row i, has C, and the one it reads, column j, has B": "tl.dot(C, tl.trans(B) → tl.dot(B, tl.trans(C)",
        "you take powers of e: the decays are logs to the base 2, `tl.exp2`": "exp2 → exp",
        "L is 2^s · 2^(−s), and the second factor overflows: subtract the exponents first": (
            'tl.exp2(tl.where(i[:, None] >= i[None, :], s[:, None] - s[None, :], float("-inf"))) → '
            "tl.where(i[:, None] >= i[None, :], tl.exp2(s)[:, None] * tl.exp2(-s)[None, :], 0.0)"
        ),
        "the tokens are scaled by 2^(−s), which overflows where decays are strong: "
        "L needs exponents' differences": _one_factor,
        "the rows of X and Y begin N numbers apart: "
        "a row of theirs has P, so row i begins at `i * P`": "i[:, None] * P → i[:, None] * N",
        "what the chunk adds meets its own decays: "
        "a token is added after its decay, so only those behind it count, `last - s`": "last - s → last - s + a",
        "the state that you return is the one before the chunk": "H * tl.exp2(last) + → H + 0.0 *",
    },
)(one_chunk)
