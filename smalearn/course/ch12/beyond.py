"""The exercises of chapter 12 beyond the walk: the gradient of one chunk, and one sequence on several machines."""

import torch

from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong, without_resets
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

# ------------------------------------------------------------------------------------------ 12.11 backward of one chunk


def chunk_gradient(dY, dH, B, C, log2_a):
    """The gradient of X (c, P), from dY (c, P), that of the chunk's outputs, and dH (N, P), that of the state after it.

    dX = (L ∘ C Bᵀ)ᵀ dY + 2^(last − s) ∘ (B dH). B and C are (c, N), log2_a (c,), where a reset
    is −∞; all sizes are powers of two from 16. Products of matrices are by `tl.dot`.

    Hint: (L ∘ C Bᵀ)ᵀ = Lᵀ ∘ (B Cᵀ): compute it so, and no product has to be transposed afterwards.

    Hint: Lᵀ[i, j] = 2^(s[j] − s[i]) where j ≥ i: the same two lines as for L, with i and j exchanged, and again masked
    before the exponential.

    Hint: The kernel is that of 12.8 with other names, decays cut off as there: dY is in the place of X, dH in that of
    H, B in that of C and C in that of B, and 2^(last − s) in that of 2^s.

    Insight: The gradient of reading is writing, and that of writing is reading: B and C change places.
    """
    (N, P), chunk_len = dH.shape, len(dY)
    dX = torch.empty_like(dY)
    gradient_kernel[(1,)](dY, dH, B, C, log2_a, dX, chunk_len=chunk_len, N=N, P=P)
    return dX


@triton.jit
def gradient_kernel(dy, dh, b, c, log2_a, dx, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One program for one chunk."""
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.arange(0, P)
    dY, dH = tl.load(dy + i[:, None] * P + p[None, :]), tl.load(dh + n[:, None] * P + p[None, :])
    B, C = tl.load(b + i[:, None] * N + n[None, :]), tl.load(c + i[:, None] * N + n[None, :])
    a = tl.load(log2_a + i)
    a = tl.where(a < -160.0, -160.0, a)
    s, last = tl.cumsum(a), tl.sum(a)
    LT = tl.exp2(tl.where(i[None, :] >= i[:, None], s[None, :] - s[:, None], float("-inf")))
    MT = tl.dot(B, tl.trans(C), input_precision="ieee") * LT
    dX = tl.dot(B, dH.to(B.dtype), input_precision="ieee") * tl.exp2(last - s)[:, None]
    dX += tl.dot(MT.to(dY.dtype), dY, input_precision="ieee")
    tl.store(dx + i[:, None] * P + p[None, :], dX)


def _gradient(dY, dH, B, C, log2_a):
    """By autograd through the recurrence in float64: X enters linearly, and where it stands does not matter."""
    X = torch.zeros(dY.shape, dtype=torch.float64, requires_grad=True)
    H, total = torch.zeros(dH.shape, dtype=torch.float64), 0
    for t in range(len(X)):
        H = log2_a[t].double().exp2() * H + torch.outer(B[t].double(), X[t])
        total = total + C[t].double() @ H @ dY[t].double()
    return torch.autograd.grad(total + (H * dH).sum(), X)[0].float()


def _gradient_cases(randn):
    for number, (chunk_len, N, P) in enumerate([(16, 16, 32), (16, 32, 64), (32, 16, 64), (16, 32, 64)]):
        dY, dH, B, C = (floats(randn, *shape) for shape in [(chunk_len, P), (N, P), (chunk_len, N), (chunk_len, N)])
        yield dY, dH, B, C, [decays, decays, without_resets, strong][number](randn, chunk_len)
    dY, dH, B, C = (floats(randn, *shape) for shape in [(16, 32), (16, 32), (16, 16), (16, 16)])
    log2_a = decays(randn, 16)
    log2_a[:2] = torch.tensor([-100.0, -50.0])  # too much for a quotient, not for a late mask
    B[-1], log2_a[-1] = 0, -torch.inf  # nothing comes back from a large state, not 2^-20 of it either
    yield dY, 1e4 * dH, B, C, log2_a


exercise(
    "12.11",
    "A chunk, backwards",
    claim="004:listing-kernel",
    level=3,
    minutes=20,
    tolerance=1e-5,
    cases=_gradient_cases,
    way=launches(
        lambda randn, length: (
            *(floats(randn, *shape) for shape in [(length, 16), (16, 16), (length, 16), (length, 16)]),
            decays(randn, length),
        ),
        needs=DOT,
    ),
    oracle=_gradient,
    wrong={
        "this multiplies by M: gradients flow the other way, by its transpose": "MT.to(dY.dtype) → tl.trans(MT)",
        "what flows back through the state is missing: f ∘ (B dH)": "dX = tl.dot → dX = 0.0 * tl.dot",
        "what the chunk's own later tokens have read is missing: Mᵀ dY": "dX += → dX += 0.0 *",
        "a token reaches the state after the chunk by the decays BEHIND it, `last - s`": "last - s → s",
        "the state's gradient decays by the whole chunk: "
        "from token t on only what follows counts": "last - s → last + 0.0 * s",
        "in your answer the state's gradient does not decay: it must, by `tl.exp2(last - s)`": "last - s → 0.0 * s",
        "you cut off running sums: cut every single log decay, before you add them up": (
            "s, last = tl.cumsum(a), tl.sum(a) → s = tl.maximum(tl.cumsum(a), -160.0)\n    last = tl.min(s) ; "
            "a = tl.where(a < -160.0, -160.0, a) → pass"
        ),
        "B and C are exchanged in the scores: Mᵀ = Lᵀ ∘ B Cᵀ": "tl.dot(B, tl.trans(C) → tl.dot(C, tl.trans(B)",
        "the scores are masked but do not decay: Lᵀ has the decays of L": "s[None, :] - s[:, None] → 0.0 * s[None, :]",
        "your exponent is that of L: "
        "row i of its transpose has s[j] − s[i]": "s[None, :] - s[:, None] → s[:, None] - s[None, :]",
        "the exponent is masked with 0, and 2^0 is 1: the past gets gradients of the future's": 'float("-inf") → 0.0',
        "L is not transposed: row i of Lᵀ has what token i meets later, j "
        "≥ i": "i[None, :] >= i[:, None], s[None, :] - s[:, None] → i[:, None] >= i[None, :], s[:, None] - s[None, :]",
        "−∞ minus −∞ is no number: "
        "a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": "tl.where(a < -160.0, -160.0, a) → a",
        "the mask comes after the exponential, and ∞ · 0 is no number: mask the exponent with −∞, then `tl.exp2`": (
            'tl.exp2(tl.where(i[None, :] >= i[:, None], s[None, :] - s[:, None], float("-inf"))) → '
            "tl.exp2(s[None, :] - s[:, None]) * (i[None, :] >= i[:, None])"
        ),
        "L is 2^s · 2^(−s), and the second factor overflows: subtract the exponents first": (
            'tl.exp2(tl.where(i[None, :] >= i[:, None], s[None, :] - s[:, None], float("-inf"))) → '
            "tl.where(i[None, :] >= i[:, None], tl.exp2(s)[None, :] * tl.exp2(-s)[:, None], 0.0)"
        ),
    },
)(chunk_gradient)


# ----------------------------------------------------------------------------------------------- 12.12 several machines


def entering(decays, ends):
    """The state that enters each machine's slice, (machines, N, P); the first enters with zeros.

    Machine r has sent decays[r], the product of its slice's decays, and ends[r] (N, P), what the slice leaves behind if
    it begins with zeros. `ends` is (machines, N, P).

    Hint: What leaves slice r is decays[r] · H + ends[r], where H has entered it. And what leaves slice r enters r + 1.

    Hint: A loop over machines will do: note H first, then move it on.

    Insight: A pair is a step: the same function makes states out of tokens, chunks, segments and machines.
    """
    H, states = torch.zeros_like(ends[0]), []
    for a, E in zip(decays, ends, strict=True):
        states.append(H)
        H = a * H + E
    return torch.stack(states)


def _states(decays, ends):
    """Machine after machine; the state that enters each."""
    H, states = torch.zeros_like(ends[0]), []
    for r in range(len(ends)):
        states.append(H)
        H = decays[r] * H + ends[r]
    return torch.stack(states)


def _divided(decays, ends):
    """Ends over the products up to them, added up, times the products."""
    products = decays.cumprod(0)[:, None, None]
    sums = products * (ends / products).cumsum(0)
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1]])


def _machine_cases(randn):
    for machines, reset in [(1, False), (2, False), (4, False), (5, True)]:
        a = randn(machines).sigmoid()
        if reset:
            a[2] = 0
        yield a, randn(machines, 3, 2)


exercise(
    "12.12",
    "Several machines",
    claim="004:listing-kernel",
    level=2,
    minutes=8,
    cases=_machine_cases,
    oracle=_states,
    wrong={
        "machine r counts its own slice too: what enters it is to its left": "append(H) → append(a * H + E)",
        "in your answer what comes from further left does not decay: it must, by each slice's decay": "a * H → H",
        "you take powers of 2 of the decays: they are no logarithms, multiply by them": "a * H → a.exp2() * H",
        "you take powers of e of the decays: they are no logarithms, multiply by them": "a * H → a.exp() * H",
        "it decays by the slice before the one that it passes: "
        "slice r multiplies by its own decay": "zip(decays → zip(decays.roll(1)",
        "you take the decay one slice too far: what enters slice r has passed slice r − 1, "
        "`decays[r - 1]`": "zip(decays → zip(torch.cat([decays[1:], decays[-1:]])",
        "the pairs are combined to the right: the state comes from the "
        "left": "zip(decays, ends → zip(decays.flip(0), ends.flip(0) ; torch.stack(states) → torch.stack(states[::-1])",
        "you divide by products of decays, or subtract their logarithms: a reset makes 0/0 or −∞ − (−∞)": _divided,
        "what leaves a slice is multiplied by its own decay: it is a H + E, not a (H + E)": "a * H + E → a * (H + E)",
        "all entries are one tensor, which later steps changed in place: "
        "make a new one, `H = a * H + E`": "return torch.stack(states) → return H.expand(ends.shape)",
        "only the left neighbour's pair counts: those further left reach through it": "a * H + E → E",
    },
)(entering)
