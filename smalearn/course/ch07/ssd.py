"""Exercise 7.5: the four steps of chapter 06 for many texts and heads at once, as a model calls them."""

import torch

from smalearn.course.ch06.mask import decays, with_a_reset
from smalearn.course.ch06.whole import WRONG_STEPS, ssd_in_chunks
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.edits import Edited
from smalearn.course.exercises.way import Way
from smalearn.masks import segsum
from smalearn.masks.decay import join_chunks, split_chunks
from smalearn.ssd import ssd_recurrent


def ssd(X, log_a, B, C, chunk_len):
    """Y (..., T, P) of the scalar state space model, in chunks, each text from an empty state.

    Put the four steps together for any number of leading axes, such as texts and heads, and any length.

    Hint: Look through 6.1 to 6.4: `.mT`, `...` and axes that are counted from the end work with any leading axes. Which
    step counts from the front?

    Hint: Of the four only step 3 does: its loop runs over axis 0, which are texts here. The chunks are axis -3 of what
    they leave, (..., chunks, P, N), and axis -1 of their decays, (..., chunks). So does 6.5, in two places:
    `log_a[:, None]`, and where it joins the chunks.

    Hint: `updates.unbind(-3)` gives the loop one chunk of all texts at a time, and `torch.stack(entering, -3)` puts the
    chunks back. What has to be done with the decays?

    Insight: Three of the four steps have not changed: what is written with `...` for one text is written for a
    thousand.
    """
    length = X.shape[-2]
    X, log_a, B, C = (split_chunks(x, chunk_len) for x in (X, log_a[..., None], B, C))
    L, since = segsum(log_a[..., 0]).exp(), log_a.cumsum(-2).exp()
    updates = (L[..., -1, :, None] * X).mT @ B  # what each chunk leaves behind
    state, entering = torch.zeros_like(updates[..., 0, :, :]), []
    for decay, update in zip(since[..., -1:, :].unbind(-3), updates.unbind(-3), strict=True):
        entering.append(state)
        state = decay * state + update
    read = since * (C @ torch.stack(entering, -3).mT)
    return join_chunks((L * (C @ B.mT)) @ X + read, length)


def _texts(randn):
    """Leading axes, T, P, N and the length of a chunk; at last a reset in every text."""
    sizes = [((), 1, 1, 1, 1), ((), 5, 2, 1, 2), ((2,), 3, 1, 2, 1), ((2,), 7, 2, 3, 3), ((2, 3), 4, 2, 2, 8)]
    for lead, length, head_dim, features, chunk_len in sizes:
        X, B, C = (randn(*lead, length, size) for size in (head_dim, features, features))
        yield X, decays(randn, *lead, length), B, C, chunk_len
    X, B, C = (randn(3, 2, 8, size) for size in (2, 3, 3))
    yield X, with_a_reset(decays(randn, 3, 2, 8)), B, C, 3


def _as_many_texts_as_tokens(randn, length):
    X, B, C = (randn(length, length, size) for size in (2, 3, 3))
    return X, decays(randn, length, length), B, C, 2


def _recurrence(X, log_a, B, C, chunk_len):
    """One token after the other."""
    return ssd_recurrent(X, log_a, B, C)[0]


def _each(edits):
    """Exercise 6.5 with these edits, for one text after the other, each from an empty state."""
    one_text = Edited(ssd_in_chunks, [], edits)

    def ssd(X, log_a, B, C, chunk_len):
        texts = [x.reshape(-1, *x.shape[X.ndim - 2 :]) for x in (X, log_a, B, C)]
        empty = X.new_zeros(X.shape[-1], B.shape[-1])
        return torch.stack([one_text(*text, empty, chunk_len)[0] for text in zip(*texts, strict=True)]).view(X.shape)

    return ssd


def _one_long_text(X, log_a, B, C, chunk_len):
    """All texts, one behind the other."""
    joined = [x.reshape(-1, *x.shape[X.ndim - 1 :]) for x in (X, log_a, B, C)]
    return ssd(*joined, chunk_len).view(X.shape)


exercise(
    "7.5",
    "For texts and heads",
    claim="004:block-decomposition",
    level=2,
    minutes=12,
    cases=_texts,
    oracle=_recurrence,
    gradient=("X", "log_a"),
    way=Way(case=_as_many_texts_as_tokens, memory=2, loops=1, matters={"chunk_len": (4, 16)}),
    wrong={sentence: _each(edits) for sentence, edits in WRONG_STEPS.items()}
    | {
        "your states go from text to text: axis 0 was that of the chunks in 6.3, here it is that of the texts. The "
        "chunks are axis -3 of "
        "the states": "unbind(-3) → unbind(0) ; updates[..., 0, :, :] → updates[0] ; (entering, -3) → (entering)",
        "axis 1 was that of a chunk's tokens in chapter 06, here it is another: "
        "count axes from the end": "read = since → read = log_a.cumsum(1).exp()",
        "all your texts are one long text: each begins with an empty state of its own": _one_long_text,
        "you join the first two axes, which were chunks and tokens in chapter 06: "
        "join axes -3 and -2": "join_chunks( → ( ; read, length) → read).flatten(0, 1)[:length]",
        "the rows of the padding are still there: "
        "T rows are asked for": "join_chunks( → ( ; read, length) → read).flatten(-3, -2)",
        "you cut the leading axes, not time: `[:length]` takes the first texts. "
        "Rows of time are axis -2": "join_chunks( → ( ; read, length) → read).flatten(-3, -2)[:length]",
        "B and C have changed places: B is the key under which X is "
        "written, C asks": lambda X, log_a, B, C, chunk_len: ssd(X, log_a, C, B, chunk_len),
        "you return the last state too, as 6.5 does: Y alone is asked for": "read, length) → read, length), state",
        "one state for all: you add up what the texts leave. Each text and each head has "
        "a state of its own": "updates.unbind → updates.sum_to_size(updates.shape[-3:]).expand_as(updates).unbind",
    },
)(ssd)
