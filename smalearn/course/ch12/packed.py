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


def _packed_loop(X, log2_a, B, C, initial, borders, chunk_len):
    return _packed(lambda k, before, initial: initial[k])(X, log2_a, B, C, initial, borders, chunk_len)


def _packed(start, late=False, shifted=None):
    """Sequence k starts with `start(k, last state of the one before, initial)`; if `late`, at a multiple of c.

    With `shifted(first, c)`, which tokens are read, and which of the results are kept.
    """

    def run(X, log2_a, B, C, initial, borders, chunk_len):
        edges = borders.tolist()
        if late:
            edges = [min(-(-edge // chunk_len) * chunk_len, edges[-1]) for edge in edges]
        H, parts, states = initial[0].double(), [], []
        for k, (first, end) in enumerate(itertools.pairwise(edges)):
            now = slice(shifted(first, chunk_len) if shifted else first, end)
            Y, H = walked(start(k, H, initial), X[now], log2_a[now], B[now], C[now])
            parts.append(Y[first - now.start :])
            states.append(H)
        return torch.cat(parts).float(), torch.stack(states).float()

    return run


def _operands_of_the_first(X, log2_a, B, C, initial, borders, chunk_len):
    """Take x and y of the right sequence, everything else from the beginning of the memory."""
    parts, states = [], []
    for k, (first, end) in enumerate(itertools.pairwise(borders.tolist())):
        size = end - first
        Y, H = walked(initial[k].double(), X[first:end], log2_a[:size], B[:size], C[:size])
        parts.append(Y)
        states.append(H)
    return torch.cat(parts).float(), torch.stack(states).float()


def _by_rows_of_n(X, log2_a, B, C, initial, borders, chunk_len):
    """Pointers to x and y that move on by N for each token."""
    N, P = initial.shape[1:]
    memory, states = torch.full((X.numel(),), torch.nan), []
    for k, (first, end) in enumerate(itertools.pairwise(borders.tolist())):
        there, now = slice(first * N, first * N + (end - first) * P), slice(first, end)
        Y, H = walked(initial[k], X.flatten()[there].view(-1, P), log2_a[now], B[now], C[now])
        memory[there] = Y.flatten().float()
        states.append(H)
    return memory.view(X.shape), torch.stack(states).float()


def _states_in_one_place(X, log2_a, B, C, initial, borders, chunk_len):
    """The last state of the last sequence, and nothing behind it."""
    Y, H = _packed_loop(X, log2_a, B, C, initial, borders, chunk_len)
    return Y, torch.cat([H[-1:], torch.full_like(H[1:], torch.nan)])


def _empty_ones_forgotten(X, log2_a, B, C, initial, borders, chunk_len):
    """A sequence without tokens hands on nothing."""
    Y, H = _packed_loop(X, log2_a, B, C, initial, borders, chunk_len)
    return Y, torch.where((borders.diff() > 0)[:, None, None], H, 0)


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


@exercise(
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
    oracle=_packed_loop,
    wrong={
        "the state runs on into the next sequence: each starts from its own first state": _packed(
            lambda k, before, initial: before
        ),
        "all sequences start from the first one's state: `initial` must move on by N · P for each of them": _packed(
            lambda k, before, initial: initial[0]
        ),
        "all sequences start from zero: each has a first state of its own": _packed(
            lambda k, before, initial: torch.zeros_like(initial[k])
        ),
        "a sequence begins at a multiple of c, with tokens of the one before: chunks count from the sequence's own "
        "first token": _packed(
            lambda k, before, initial: initial[k], shifted=lambda first, chunk_len: first // chunk_len * chunk_len
        ),
        "every program walks from the beginning of the memory: its sequence begins at `borders[k]`": _packed(
            lambda k, before, initial: initial[k], shifted=lambda first, chunk_len: 0
        ),
        "x and y move on to the sequence, the decays, B and C do not: every pointer must": _operands_of_the_first,
        "x and y move on by N numbers for each token: a row of theirs has P, so `x + first * P`": _by_rows_of_n,
        "a sequence begins with the first whole chunk after its border: chunks count from the sequence's own "
        "first token": _packed(lambda k, before, initial: initial[k], late=True),
        "all last states are stored in the first one's place: `final` must move on by N · P for each of them": (
            _states_in_one_place
        ),
        "an empty sequence has no last state: it is its first one, which must be stored all the same": (
            _empty_ones_forgotten
        ),
    },
)
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
