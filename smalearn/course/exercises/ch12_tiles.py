"""The exercises of chapter 12 on pieces of a program, and how a learner's program is run: in the tile machine."""

import functools
import inspect
from collections.abc import Callable

import numpy as np
import torch

from smalearn.course.exercises.core import exercise
from smalearn.fast import tile as tl

__all__ = ["program", "tiles"]


def tiles(function: Callable) -> Callable:
    """Let a function of tiles take tensors too: it sees arrays, and the array that it returns becomes a tensor.

    Args:
        function: takes and returns arrays, with the operations of `fast.tile`.

    Returns:
        The function; called without a tensor, as a program does, it is what it was.

    Example:
        >>> @tiles
        ... def double(x):
        ...     return 2 * x
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """

    @functools.wraps(function)
    def call(*arguments):
        arrays = [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in arguments]
        result = function(*arrays)
        tensors = any(isinstance(x, torch.Tensor) for x in arguments)
        return torch.from_numpy(np.ascontiguousarray(result)) if tensors and isinstance(result, np.ndarray) else result

    return call


def program(*outputs: str, grid: str | None = None) -> Callable:
    """Let a program be called with tensors: it runs in the tile machine, on copies, and what it stored is returned.

    Args:
        outputs: names of the parameters in which it stores.
        grid: name of a parameter: there is one program for each entry of its first axis. One program if None.

    Returns:
        A decorator. The decorated program, called without a tensor, as by another program, is what it was.

    Raises:
        TypeError: (of the decorated program) it returns something: a program stores.

    Example:
        >>> @program("y", grid="y")
        ... def ones(y):
        ...     tl.store(y + tl.program_id(0), 1)
        >>> ones(torch.zeros(3))
        tensor([1., 1., 1.])
    """

    def decorate(function):
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def silent(*arguments, **constants):
            result = function(*arguments, **constants)
            if result is not None:
                kind = type(result).__name__
                raise TypeError(f"{function.__name__}: a program returns nothing, it stores; got {kind}")

        @functools.wraps(function)
        def call(*arguments):
            if not any(isinstance(x, torch.Tensor) for x in arguments):
                return function(*arguments)
            copies = [x.detach().numpy().copy() if isinstance(x, torch.Tensor) else x for x in arguments]
            given = dict(zip(names, copies, strict=True))
            tl.launch(silent, (1 if grid is None else len(given[grid]),), *copies)
            stored = tuple(torch.from_numpy(given[name]) for name in outputs)
            return stored if len(stored) > 1 else stored[0]

        return call

    return decorate


LN2 = float(np.log(2))


def floats(randn, *shape):
    """Standard normal numbers in float32."""
    return randn(*shape).float()


def decays(randn, *shape):
    """Logarithms of decays to base 2, mild but never 0."""
    return -0.1 - 0.3 * floats(randn, *shape).abs()


def holes(*shape):
    """Memory that nobody has written to."""
    return torch.full(shape, torch.nan)


def walked(H, X, log2_a, B, C=None):
    """One token after the other in float64: Y (T, P), and the state (N, P) after the last."""
    H, X, log2_a, B = (z.double() for z in (H, X, log2_a, B))
    C, rows = torch.zeros_like(B) if C is None else C.double(), []
    for t in range(len(X)):
        H = log2_a[t].exp2() * H + torch.outer(B[t], X[t])
        rows.append(C[t] @ H)
    return torch.stack(rows) if rows else torch.zeros_like(X), H


# ------------------------------------------------------------------------------------------ 12.2 the tail of a sequence


def _summaries(x, log2_a, added, total, length, chunk_len, *, x_until=0, a_until=0, other=0.0, until=None):
    """In each chunk one token after the other; x and log2_a end so many tokens after `length`.

    With `until`, a token decays by 2^until(s, a) instead, s being the running sums of a.
    """
    x, a = x.double().clone(), log2_a.double().clone()
    x[length + x_until :], a[length + a_until :] = 0, other
    sums = []
    for X, log in zip(x.split(chunk_len), a.split(chunk_len), strict=True):
        h = torch.zeros((), dtype=torch.float64)
        for t in range(chunk_len):
            h = log[t].exp2() * h + X[t]
        sums.append(h if until is None else (X * until(log.cumsum(0), log).exp2()).sum())
    return torch.stack(sums).float(), a.unflatten(0, (-1, chunk_len)).sum(-1).float()


def _summary_cases(randn):
    for length, chunk_len in [(1, 1), (3, 4), (8, 4), (9, 4), (13, 8), (21, 16)]:
        chunks = -(-length // chunk_len)
        x, log2_a = floats(randn, chunks * chunk_len), decays(randn, chunks * chunk_len)
        if length == 1:
            log2_a = torch.zeros_like(log2_a)
        yield x, log2_a, holes(chunks), holes(chunks), length, chunk_len


def _with(**changes):
    """`_summaries` with a misconception."""
    return lambda *arguments: _summaries(*arguments, **changes)


def _places(x, log2_a, added, total, length, chunk_len):
    """A mask of places in the chunk: none, unless the sequence is shorter than a chunk."""
    ends = 1000 * (length >= chunk_len)
    return _summaries(x, log2_a, added, total, length, chunk_len, x_until=ends, a_until=ends)


def _as_decay(*arguments):
    added, total = _summaries(*arguments)
    return added, total.exp2()


@exercise(
    "12.2",
    "The tail",
    claim="004:listing-kernel",
    level=2,
    minutes=12,
    tolerance=1e-5,
    cases=_summary_cases,
    oracle=_summaries,
    wrong={
        "the tail is not masked: the program reads on into the next sequence. `mask=rows < length`": _with(
            x_until=1000, a_until=1000
        ),
        "x is masked, the decays are not: the state decays on after the last token": _with(a_until=1000),
        "the decays are masked, x is not: the next sequence's tokens are added to this one's state": _with(
            x_until=1000
        ),
        "one row too many: rows count from 0, so the last one is `length - 1`, and the mask is `rows < length`": _with(
            x_until=1, a_until=1
        ),
        "the tail's log decays are 1: that doubles. A decay of 1, which changes nothing, is a logarithm of 0": _with(
            other=1.0
        ),
        "your tokens decay to the wrong end, to the chunk's beginning: what counts is what follows them, "
        "`last - s`": _with(until=lambda s, a: s),
        "your tokens meet their own decay: a token is added after it, so only the decays behind it count": _with(
            until=lambda s, a: s[-1] - s + a
        ),
        "your mask compares places in the chunk with the length: it must be the place in the sequence, "
        "chunk · chunk_len + place": _places,
        "you store the total decay, its logarithm is asked for: the sum of the log decays": _as_decay,
        "your exponent is turned round, s - last: it grows where it should fade": _with(until=lambda s, a: s - s[-1]),
        "your powers are of e: these logarithms are to base 2, `tl.exp2`": _with(until=lambda s, a: (s[-1] - s) / LN2),
    },
)
@program("added", "total", grid="total")
def summary(x, log2_a, added, total, length, chunk_len):
    """Sum up each chunk, one program each: what it adds to a state of one number, and its total log decay.

    Write the program that sums up one chunk, for a length that is not a multiple of the chunk's.

    Hint: Which rows does this program have? `tl.program_id(0)` is the number of its chunk. Which of them lie before
    `length`? The memory does not end there: after the last token the next sequence begins.

    Hint: A row that is not there must add nothing and decay nothing. Nothing is x = 0; a decay of 1 is a logarithm of
    0. `tl.load(x + rows, mask=rows < length, other=0.0)`, and the same for the decays.

    Hint: With `s = tl.cumsum(a)` and `last = tl.sum(a)`, token t decays by `tl.exp2(last - s)` until the chunk's end.
    Store the sum at `added + chunk`, and `last` at `total + chunk`.

    Insight: A masked load costs what a full one does: the tail is slow only if the grid has many of them.
    """
    chunk = tl.program_id(0)
    rows = chunk * chunk_len + tl.arange(0, chunk_len)
    X = tl.load(x + rows, mask=rows < length, other=0.0)
    a = tl.load(log2_a + rows, mask=rows < length, other=0.0)
    s, last = tl.cumsum(a), tl.sum(a)
    tl.store(added + chunk, tl.sum(X * tl.exp2(last - s)))
    tl.store(total + chunk, last)


# ---------------------------------------------------------------------------------------- 12.3 the state after a chunk


def _carry_loop(H, X, B, log2_a):
    return walked(H, X, log2_a, B)[1].float()


def _carried(on_state, on_tokens):
    """State after a chunk where H has the log decay `on_state(s, a)` and its tokens have `on_tokens(s, a)`."""

    def carried(H, X, B, log2_a):
        H, X, B, a = (z.double() for z in (H, X, B, log2_a))
        s = a.cumsum(0)
        return (on_state(s, a).exp2() * H + B.mT @ (on_tokens(s, a).exp2()[:, None] * X)).float()

    return carried


def _carry_cases(randn):
    # No two sizes alike: what is transposed, or scaled along the wrong axis, does not fit.
    for number, (chunk_len, state, head_dim) in enumerate([(16, 32, 64), (16, 32, 64), (32, 16, 64), (64, 16, 32)]):
        H, X, B = (floats(randn, *shape) for shape in [(state, head_dim), (chunk_len, head_dim), (chunk_len, state)])
        yield H, X, B, decays(randn, chunk_len) * (number != 1)
    yield *(floats(randn, *shape) for shape in [(32, 64), (16, 64), (16, 32)]), torch.full((16,), -12.0)  # 2^192 is inf


@exercise(
    "12.3",
    "Carry the state",
    claim="004:listing-kernel",
    level=2,
    minutes=10,
    tolerance=1e-5,
    cases=_carry_cases,
    oracle=_carry_loop,
    wrong={
        "the state itself does not decay: `H * tl.exp2(last)`, with the decay of the whole chunk": _carried(
            lambda s, a: 0 * s[-1], lambda s, a: s[-1] - s
        ),
        "your tokens decay to the wrong end, to the chunk's beginning: what counts is what follows them, "
        "`last - s`": _carried(lambda s, a: s[-1], lambda s, a: s),
        "your tokens meet their own decay: a token is written after it, so only the decays behind it count": _carried(
            lambda s, a: s[-1], lambda s, a: s[-1] - s + a
        ),
        "the tokens do not decay: each of them decays from its own place to the end of the chunk": _carried(
            lambda s, a: s[-1], lambda s, a: 0 * s
        ),
        "every token decays by the whole chunk: only the state does, a token by what follows it, `last - s`": _carried(
            lambda s, a: s[-1], lambda s, a: s[-1].expand(len(s))
        ),
        "the new tokens decay with the state once more: first the state decays, then they are added": _carried(
            lambda s, a: s[-1], lambda s, a: 2 * s[-1] - s
        ),
        "you take powers of e: these logarithms are to base 2, `tl.exp2`": _carried(
            lambda s, a: s[-1] / LN2, lambda s, a: (s[-1] - s) / LN2
        ),
        "the old state meets the last token's decay alone: it decays with every token of the chunk": _carried(
            lambda s, a: a[-1], lambda s, a: s[-1] - s
        ),
        "only the last token is written: each token of the chunk is, decayed until its end": _carried(
            lambda s, a: s[-1], lambda s, a: torch.where(torch.arange(len(s)) == len(s) - 1, 0.0, -torch.inf)
        ),
    },
)
@tiles
def carry(H, X, B, log2_a):
    """The state (N, P) after a chunk, from the one before it.

    Compute the state after a chunk from the state before it and the chunk's tiles.

    Hint: Two things happen to the state: the whole chunk lets it decay, and every token is added to it, decayed from
    then until the chunk's end.

    Hint: `tl.sum(log2_a)` is the log decay of the whole chunk, `tl.cumsum(log2_a)` of its beginning up to each token.
    What lies between token t and the end is their difference: a number ≤ 0, so nothing overflows.

    Hint: The state is (N, P), so the product is `tl.dot(tl.trans(B), fX)` with `fX` (Q, P), each row scaled by
    `tl.exp2(last - s)[:, None]`.

    Insight: The state stays on the chip for the whole walk: of all tensors it is the one that is never written between
    chunks.
    """
    s, last = tl.cumsum(log2_a), tl.sum(log2_a)
    fX = X * tl.exp2(last - s)[:, None]
    return H * tl.exp2(last) + tl.dot(tl.trans(B), fX)
