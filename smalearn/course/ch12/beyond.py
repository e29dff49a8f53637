"""The exercises of chapter 12 beyond the walk: the gradient of one chunk, and one sequence on several machines."""

from functools import partial

import torch

from smalearn.course.ch12.exponents import decay_tile
from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong, without_resets
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

# ------------------------------------------------------------------------------------------ 12.11 backward of one chunk


def _gradient(dY, dH, B, C, log2_a):
    """By autograd through the recurrence in float64: X enters linearly, and where it stands does not matter."""
    X = torch.zeros(dY.shape, dtype=torch.float64, requires_grad=True)
    H, total = torch.zeros(dH.shape, dtype=torch.float64), 0
    for t in range(len(X)):
        H = log2_a[t].double().exp2() * H + torch.outer(B[t].double(), X[t])
        total = total + C[t].double() @ H @ dY[t].double()
    return torch.autograd.grad(total + (H * dH).sum(), X)[0].float()


def _formula(
    *, turned=False, f=lambda s: s[-1] - s, inside=True, through=True, swapped=False, decay=True, future=0.0, dtype=None
):
    """The formula with one misconception."""

    def gradient(dY, dH, B, C, log2_a):
        dY, dH, B, C, a = (z.double() for z in (dY, dH, B, C, log2_a.clamp(min=-160)))
        s = a.cumsum(0)
        L = (decay * (s[:, None] - s)).tril().exp2()
        L = L.tril() + future * torch.ones_like(L).triu(1)
        M = L * (B @ C.mT if swapped else C @ B.mT)
        return (inside * (M if turned else M.mT) @ dY + through * f(s).exp2()[:, None] * (B @ dH)).float()

    return gradient


def _in_float32(L, cut=-160.0):
    """With L by `L(log decays)`, and log decays cut off at `cut`."""

    def gradient(dY, dH, B, C, log2_a):
        a = log2_a.clamp(min=cut)
        s = a.cumsum(0)
        return (L(a) * (C @ B.mT)).mT @ dY + (s[-1] - s).exp2()[:, None] * (B @ dH)

    return gradient


def _differences(a):
    s = a.cumsum(0)
    return (s[:, None] - s).exp2().tril()


def _growing(dY, dH, B, C, log2_a):
    """The mask of Lᵀ, with the exponents of L, in float32."""
    s = log2_a.clamp(min=-160).cumsum(0)
    late = torch.ones(len(s), len(s)).triu() == 1
    LT = torch.where(late, s[:, None] - s, -torch.inf).exp2()
    return (LT * (B @ C.mT)) @ dY + (s[-1] - s).exp2()[:, None] * (B @ dH)


def _sums_cut(dY, dH, B, C, log2_a):
    """Running sums cut off, not the decays."""
    s = log2_a.double().cumsum(0).clamp(min=-160)
    L = (s[:, None] - s).tril().exp2().tril().float()
    return (L * (C @ B.mT)).mT @ dY + (s[-1] - s).exp2().float()[:, None] * (B @ dH)


def _gradient_cases(randn):
    for number, (chunk_len, N, P) in enumerate([(16, 16, 32), (16, 32, 64), (32, 16, 64), (16, 32, 64)]):
        dY, dH, B, C = (floats(randn, *shape) for shape in [(chunk_len, P), (N, P), (chunk_len, N), (chunk_len, N)])
        yield dY, dH, B, C, [decays, decays, without_resets, strong][number](randn, chunk_len)
    dY, dH, B, C = (floats(randn, *shape) for shape in [(16, 32), (16, 32), (16, 16), (16, 16)])
    log2_a = decays(randn, 16)
    log2_a[:2] = torch.tensor([-100.0, -50.0])  # too much for a quotient, not for a late mask
    B[-1], log2_a[-1] = 0, -torch.inf  # nothing comes back from a large state, not 2^-20 of it either
    yield dY, 1e4 * dH, B, C, log2_a


@exercise(
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
        "this multiplies by M: gradients flow the other way, by its transpose": _formula(turned=True),
        "what flows back through the state is missing: f ∘ (B dH)": _formula(through=False),
        "what the chunk's own later tokens have read is missing: Mᵀ dY": _formula(inside=False),
        "a token reaches the state after the chunk by the decays BEHIND it, `last - s`": _formula(f=lambda s: s),
        "the state's gradient decays by the whole chunk: from token t on only what follows counts": _formula(
            f=lambda s: s[-1].expand(len(s))
        ),
        "in your answer the state's gradient does not decay: it must, by `tl.exp2(last - s)`": _formula(
            f=lambda s: 0 * s
        ),
        "you cut off running sums: cut every single log decay, before you add them up": _sums_cut,
        "B and C are exchanged in the scores: Mᵀ = Lᵀ ∘ B Cᵀ": _formula(swapped=True),
        "the scores are masked but do not decay: Lᵀ has the decays of L": _formula(decay=False),
        "your exponent is that of L: row i of its transpose has s[j] − s[i]": _growing,
        "the exponent is masked with 0, and 2^0 is 1: the past gets gradients of the future's": _formula(future=1.0),
        "L is not transposed: row i of Lᵀ has what token i meets later, j ≥ i": _formula(turned=True, swapped=True),
        "−∞ minus −∞ is no number: a reset is cut off first, `tl.where(a < -160.0, -160.0, a)`": _in_float32(
            _differences, cut=-torch.inf
        ),
        "the mask comes after the exponential, and ∞ · 0 is no number: mask the exponent with −∞, then `tl.exp2`": (
            _in_float32(partial(decay_tile, "late mask"))
        ),
        "L is 2^s · 2^(−s), and the second factor overflows: subtract the exponents first": _in_float32(
            partial(decay_tile, "quotient")
        ),
    },
)
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


# ----------------------------------------------------------------------------------------------- 12.12 several machines


def _states(decays, ends, *, start=0, late=False, decay=lambda a, r: a[r], back=False, keeps=1):
    """Machine after machine; the state that enters each."""
    H, states = torch.zeros_like(ends[0]), []
    order = range(len(ends))[::-1] if back else range(len(ends))
    for r in order:
        after = decay(decays, r) * H + keeps * ends[r]
        states.append(after if late else H)
        H = after
    return torch.stack(states[::-1] if back else states)


def _with(**changes):
    return lambda decays, ends: _states(decays, ends, **changes)


def _divided(decays, ends):
    """Ends over the products up to them, added up, times the products."""
    products = decays.cumprod(0)[:, None, None]
    sums = products * (ends / products).cumsum(0)
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1]])


def _one_tensor(decays, ends):
    """One state for all machines, as it is at the end."""
    last = decays[-1] * _states(decays, ends)[-1] + ends[-1]
    return last.expand(ends.shape)


def _both_decay(decays, ends):
    """The decay of a slice on what enters it and on what it leaves."""
    return _states(decays, decays[:, None, None] * ends)


def _machine_cases(randn):
    for machines, reset in [(1, False), (2, False), (4, False), (5, True)]:
        a = randn(machines).sigmoid()
        if reset:
            a[2] = 0
        yield a, randn(machines, 3, 2)


@exercise(
    "12.12",
    "Several machines",
    claim="004:listing-kernel",
    level=2,
    minutes=8,
    cases=_machine_cases,
    oracle=_states,
    wrong={
        "machine r counts its own slice too: what enters it is to its left": _with(late=True),
        "in your answer what comes from further left does not decay: it must, by each slice's decay": _with(
            decay=lambda a, r: torch.ones(())
        ),
        "you take powers of 2 of the decays: they are no logarithms, multiply by them": _with(
            decay=lambda a, r: a[r].exp2()
        ),
        "you take powers of e of the decays: they are no logarithms, multiply by them": _with(
            decay=lambda a, r: a[r].exp()
        ),
        "it decays by the slice before the one that it passes: slice r multiplies by its own decay": _with(
            decay=lambda a, r: a[r - 1]
        ),
        "you take the decay one slice too far: what enters slice r has passed slice r − 1, `decays[r - 1]`": _with(
            decay=lambda a, r: a[min(r + 1, len(a) - 1)]
        ),
        "the pairs are combined to the right: the state comes from the left": _with(back=True),
        "you divide by products of decays, or subtract their logarithms: a reset makes 0/0 or −∞ − (−∞)": _divided,
        "what leaves a slice is multiplied by its own decay: it is a H + E, not a (H + E)": _both_decay,
        "all entries are one tensor, which later steps changed in place: make a new one, `H = a * H + E`": _one_tensor,
        "only the left neighbour's pair counts: those further left reach through it": _with(
            decay=lambda a, r: torch.zeros(())
        ),
    },
)
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
