"""The exercises of chapter 12 beyond the walk: the gradient of decays, an inverse on a tile, several machines."""

import torch

from smalearn.course.ch12.ladder import DOT, decays, floats, launches
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton
from smalearn.ssd import ssd_recurrent


def decay_gradient(X, dX, Y, dY, H, dH):
    """The gradient of each log decay of a chunk, (c,), from what its forward and its backward pass have computed.

    X and Y (c, P) go in and come out, H (N, P) is the state after the chunk, and d stands before a gradient. All sizes
    are powers of two from 16.

    Hint: Let s be the running sums of log a. Y[t] has the factor e^s[t]. X[t] enters everything with e^−s[t]. And the
    state after the chunk has e^s[last]. What does each of the three contribute to the gradient of s?

    Hint: A factor e^s[t] on all of Y[t] gives ⟨Y[t], dY[t]⟩, by the chain rule; e^−s[t] gives −⟨X[t], dX[t]⟩. And the
    last one gets ⟨H, dH⟩ besides.

    Hint: log a[t] is in s[t] and in all later ones: add up from t to the end. `tl.sum(ds) - tl.cumsum(ds) + ds` is
    that, where `ds = tl.sum(Y * dY - X * dX, 1)`; to all of them comes `tl.sum(H * dH)`.

    Insight: No L, no B, no C: whatever the decays did to the numbers is in the numbers.
    """
    out = torch.empty(len(X))
    decays_kernel[(1,)](X, dX, Y, dY, H, dH, out, chunk_len=len(X), N=len(H), P=X.shape[1])
    return out


@triton.jit
def decays_kernel(x, dx, y, dy, h, dh, out, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    """One program for one chunk."""
    i, n, p = tl.arange(0, chunk_len), tl.arange(0, N), tl.arange(0, P)
    tokens, state = i[:, None] * P + p[None, :], n[:, None] * P + p[None, :]
    ds = tl.sum(tl.load(y + tokens) * tl.load(dy + tokens) - tl.load(x + tokens) * tl.load(dx + tokens), 1)
    later = tl.sum(ds) - tl.cumsum(ds) + ds
    tl.store(out + i, later + tl.sum(tl.load(h + state) * tl.load(dh + state)))


def _later(X, dX, Y, dY, H, dH):
    """Token by token from the last, in float64."""
    total, out = (H.double() * dH.double()).sum(), torch.empty(len(X))
    for t in reversed(range(len(X))):
        total = total + (Y[t].double() * dY[t].double()).sum() - (X[t].double() * dX[t].double()).sum()
        out[t] = total
    return out


def _passed(randn, chunk_len, N, P):
    """Forward and backward of a chunk by autograd."""
    shapes = [(N, P), (chunk_len, P), (chunk_len, N), (chunk_len, N), (chunk_len, P), (N, P)]
    H, X, B, C, dY, dH = (randn(*shape) for shape in shapes)
    Y, last = ssd_recurrent(X.requires_grad_(), decays(randn, chunk_len).double(), B, C, H.mT)
    (dX,) = torch.autograd.grad((Y, last), X, (dY, dH.mT))
    return tuple(x.detach().float().contiguous() for x in (X, dX, Y, dY, last.mT, dH))


def _gradient_cases(randn):
    for sizes in [(16, 16, 16), (16, 32, 16), (32, 16, 64)]:
        yield _passed(randn, *sizes)


exercise(
    "12.10",
    "The gradient of the decays",
    claim="004:listing-kernel",
    level=3,
    minutes=15,
    tolerance=1e-5,
    cases=_gradient_cases,
    way=launches(lambda randn, length: _passed(randn, length, 16, 16)),
    oracle=_later,
    wrong={
        "you add up from the first token on: "
        "log a[t] is in s[t] and in all LATER sums": "later = → later = tl.cumsum(ds) #",
        "these are the gradients of the running sums: log a[t] is in all of them from t on": "later = → later = ds #",
        "what is written counts with a minus: x enters with e^−s": "- tl.load(x → + tl.load(x",
        "only what is read counts in your answer: x enters with e^−s": "- tl.load(x → - 0.0 * tl.load(x",
        "the sign is that of −log a": "out + i, later + tl.sum( → out + i, -later - tl.sum(",
    },
)(decay_gradient)


def inverses(A):
    """(I + A)^-1 of each A (c, c), zero on and above its diagonal: (chunks, c, c), c = 16, 32 or 64, by `tl.dot`.

    One program for each. Products of tiles are all that it needs; powers of A would lose the digits.

    Hint: The inverse of two blocks with D below is [X, 0; D, Z]^-1 = [X', 0; −Z' D X', Z']: from the inverses of blocks
    of w tokens, those of blocks of 2w.

    Hint: T holds the inverses of all blocks of w, begins as the identity with w = 1, and D is what of A lies in rows of
    the second and columns of the first of two siblings. One formula for all pairs at once: T − T D T.

    Hint: `D = tl.where((i // w == 1 + j // w) & (i // (2 * w) == j // (2 * w)), A, 0.0)` with `i = rows[:, None]`,
    `j = rows[None, :]`; then w doubles, `while w < size:`.

    Insight: 2 log₂ c products of tiles in place of c steps: that is how a delta rule uses the matrix units.
    """
    T = torch.empty_like(A)
    inverse_kernel[(len(A),)](A, T, size=A.shape[-1])
    return T


@triton.jit
def inverse_kernel(a, t, size: tl.constexpr):
    """One triangle a program."""
    rows = tl.arange(0, size)
    i, j = rows[:, None], rows[None, :]
    square = tl.program_id(0) * size * size + i * size + j
    A = tl.load(a + square)
    T = tl.where(i == j, 1.0, 0.0)
    w = 1
    while w < size:
        D = tl.where((i // w == 1 + j // w) & (i // (2 * w) == j // (2 * w)), A, 0.0)
        T -= tl.dot(tl.dot(T, D, input_precision="ieee"), T, input_precision="ieee")
        w *= 2
    tl.store(t + square, T)


def _powers(product):
    """The edit that multiplies by I + A², I + A⁴ and so on: all lose their digits, each in its own way."""
    start = "T = tl.where(i == j, 1.0, 0.0) → P, one = A, tl.where(i == j, 1.0, 0.0)\n    T = one - A"
    turn = f'P = tl.dot(P, P, input_precision="ieee")\n        T = {product}, input_precision="ieee")'
    return f'{start} ; T -= tl.dot(tl.dot(T, D, input_precision="ieee"), T, input_precision="ieee") → {turn}'


def _triangles(randn):
    yield (floats(randn, 1, 16, 16).tril(-1) / 4,)
    yield (floats(randn, 3, 32, 32).tril(-1) / 4,)
    yield (floats(randn, 2, 64, 64).tril(-1) / 4,)
    yield (torch.full((1, 64, 64), 1.9).tril(-1),)  # all keys alike, β = 1.9: powers of A pass 10^17, T stays small


exercise(
    "12.11",
    "An inverse, by doubling",
    claim="004:listing-kernel",
    level=3,
    minutes=20,
    tolerance=1e-5,
    cases=_triangles,
    way=launches(
        lambda randn, length: (floats(randn, 2, length, length).tril(-1) / 8,),
        forbids=("torch.linalg", "torch.inverse", "torch.Tensor.inverse"),
        launched=1,
        programs=2,
        needs=DOT,
    ),
    oracle=lambda A: torch.linalg.inv(torch.eye(A.shape[-1]).double() + A.double()).float(),
    wrong={
        "powers of A lose all digits where keys are alike: join the inverses of blocks": _powers("T + tl.dot(T, P"),
        "powers of A pass 10^17 where keys are alike, and no digit is left: join the inverses of blocks": _powers(
            "tl.dot(T, one + P"
        ),
        "where keys are alike powers of A lose all digits: join the inverses of blocks": _powers("T + tl.dot(P, T"),
        "blocks of two tokens are joined, and no larger ones: w doubles up to c": "while w < size → while w < 2",
        "the last level is missing: blocks of c/2 are joined, too": "while w < size → while w < size // 2",
        "this is the inverse of I − A: the corner of that of I + A is −Z' D X'": "T -= → T +=",
        "D stands between the two inverses, Z' D X', "
        "and they do not commute": "tl.dot(tl.dot(T, D → tl.dot(tl.dot(D, T",
        "only siblings are joined: blocks with the same parent, i // (2 w)": "i // (2 * w) == j // (2 * w) → i >= j",
        "this is (I + A)^-1 − I": "t + square, T → t + square, T - tl.where(i == j, 1.0, 0.0)",
        "this is I − A, the first power alone": lambda A: torch.eye(A.shape[-1]) - A,
    },
)(inverses)


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


def _before(decays, ends, r):
    """What has reached slice r: each earlier slice's end, times the decays of those between."""
    return sum((decays[k + 1 : r].prod() * ends[k] for k in range(r)), torch.zeros_like(ends[0]))


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
    oracle=lambda decays, ends: torch.stack([_before(decays, ends, r) for r in range(len(ends))]),
    wrong={
        "in your answer what comes from further left does not decay: it must, by each slice's decay": "a * H → H",
        "you take powers of 2 of the decays: they are no logarithms, multiply by them": "a * H → a.exp2() * H",
        "you take powers of e of the decays: they are no logarithms, multiply by them": "a * H → a.exp() * H",
        "you take the decay one slice too far: what enters slice r has passed slice r − 1, "
        "`decays[r - 1]`": "zip(decays → zip(torch.cat([decays[1:], decays[-1:]])",
        "the pairs are combined to the right: the state comes from the "
        "left": "zip(decays, ends → zip(decays.flip(0), ends.flip(0) ; torch.stack(states) → torch.stack(states[::-1])",
        "you divide by products of decays, or subtract their logarithms: a reset makes 0/0 or −∞ − (−∞)": _divided,
        "what leaves a slice is multiplied by its own decay: it is a H + E, not a (H + E)": "a * H + E → a * (H + E)",
        "all entries are one tensor, which later steps changed in place: "
        "make a new one, `H = a * H + E`": "return torch.stack(states) → return H.expand(ends.shape)",
    },
)(entering)
