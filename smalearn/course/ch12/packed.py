"""The exercise of chapter 12 on many sequences that lie in one memory, end to end."""

import itertools

import torch

from smalearn.course.ch12.chunk import walked
from smalearn.course.ch12.ladder import DOT, decays, floats, launches, strong
from smalearn.course.ch12.walk import walk_kernel, walk_way
from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

# --------------------------------------------------------------------------------- 12.10 many sequences in one memory


def packed(X, log2_a, B, C, initial, borders, chunk_len):
    """Y (T, P) and the last states (sequences, N, P): program k walks from borders[k] to borders[k + 1] − 1.

    Sequences lie end to end, and some may be empty; each has a first state of its own in initial (sequences, N, P).

    Hint: A pointer plus a number is a pointer: seen from its first token, a sequence looks like a memory of its own.
    And a kernel may call a kernel: `walk_kernel(...)`, without a grid.

    Hint: `tl.load(borders + k)` is where sequence k begins, `tl.load(borders + k + 1)` where it ends. A row of x has P
    numbers, one of b has N, one of the decays has 1; a state has N · P.

    Hint: Its first arguments are `x + first * P, log2_a + first, b + first * N`, its length is `end - first`, and the
    states are `initial + k * N * P` and `final + k * N * P`.

    Insight: Padding would cost what the longest sequence does, times their number; borders cost one number each.
    """
    (_, N, P), Y, final = initial.shape, torch.empty_like(X), torch.empty(initial.shape)
    packed_kernel[(len(initial),)](X, log2_a, B, C, Y, initial, final, borders, chunk_len=chunk_len, N=N, P=P)
    return Y, final


@triton.jit
def packed_kernel(
    x, log2_a, b, c, y, initial, final, borders, chunk_len: tl.constexpr, N: tl.constexpr, P: tl.constexpr
):
    """One sequence a program."""
    k = tl.program_id(0)
    first, end = tl.load(borders + k), tl.load(borders + k + 1)
    x, y, log2_a, b, c = x + first * P, y + first * P, log2_a + first, b + first * N, c + first * N
    walk_kernel(x, log2_a, b, c, y, initial + k * N * P, final + k * N * P, end - first, chunk_len, N, P)


def _reading(begin):
    """Each sequence for itself, which reads tokens from `begin(its first, c)` on."""

    def run(X, log2_a, B, C, initial, borders, chunk_len):
        parts, states = [], []
        for k, (first, end) in enumerate(itertools.pairwise(borders.tolist())):
            now = slice(begin(first, chunk_len), end)
            Y, H = walked(initial[k], X[now], log2_a[now], B[now], C[now])
            parts.append(Y[first - now.start :])
            states.append(H)
        return torch.cat(parts).float(), torch.stack(states).float()

    return run


def _packed_cases(randn):
    cases = [([0, 3], 1), ([0, 16, 32], 0), ([0, 5, 24], 1), ([0, 20, 20, 37, 40], 1)]
    for borders, given in cases:
        count, length = len(borders) - 1, borders[-1]
        X, B, C = (floats(randn, length, width) for width in (32, 16, 16))
        log2_a = strong(randn, length) if count == 4 else decays(randn, length)
        yield X, log2_a, B, C, given * floats(randn, count, 16, 32), torch.tensor(borders), 16


def _packed_way(randn, length):
    X, log2_a, B, C, H, chunk_len = walk_way(randn, length)
    return X, log2_a, B, C, torch.stack([H, H]), torch.tensor([0, length // 2, length]), chunk_len


exercise(
    "12.10",
    "Many sequences, one memory",
    claim="004:listing-kernel",
    level=2,
    minutes=15,
    tolerance=1e-5,
    cases=_packed_cases,
    way=launches(
        _packed_way,
        launched=1,
        programs=2,  # one for each sequence
        compiled=True,
        needs=DOT,
    ),
    oracle=_reading(lambda first, chunk_len: first),
    wrong={
        "the state runs on into the next sequence: "
        "each starts from its own first state": "initial + k * N * P → (final + (k - 1) * N * P if k > 0 else initial)",
        "all sequences start from the first one's state: "
        "`initial` must move on by N · P for each of them": "initial + k * N * P → initial",
        "all sequences start from zero: "
        "each has a first state of its own": "Y, initial, final → Y, torch.zeros_like(initial), final",
        "a sequence begins at a multiple of c, with tokens of the one before: chunks "
        "count from the sequence's own first token": _reading(lambda first, chunk_len: first // chunk_len * chunk_len),
        "every program walks from the beginning of the memory: its sequence begins at `borders[k]`": _reading(
            lambda first, chunk_len: 0
        ),
        "x and y move on to the sequence, the decays, B and C do not: "
        "every pointer must": "log2_a + first, b + first * N, c + first * N → log2_a, b, c",
        "x and y move on by N numbers for each token: "
        "a row of theirs has P, so `x + first * P`": "first * P → first * N",
        "a sequence begins with the first whole chunk after its border: "
        "chunks count from the sequence's own first token": (
            "packed_kernel[ → borders = (-(-borders // chunk_len) * chunk_len).clamp(max=borders[-1])\n"
            "    packed_kernel["
        ),
        "all last states are stored in the first one's place: "
        "`final` must move on by N · P for each of them": "final + k * N * P → final",
        "an empty sequence has no last state: it is its first one, which must be "
        "stored all the same": "return Y, final → return Y, torch.where((borders.diff() > 0)[:, None, None], final, 0)",
    },
)(packed)
