"""Exercise 7.5: the four steps of chapter 06 as a model calls them that is trained."""

from smalearn.course.ch06.mask import decays, with_a_reset
from smalearn.course.ch06.whole import WRONG_STEPS, ssd_in_chunks
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.edits import Edited
from smalearn.course.exercises.way import Way
from smalearn.ssd import ssd_recurrent


def ssd(X, log_a, B, C, chunk_len):
    """Y (..., T, P) of the scalar state space model, in chunks, each text from an empty state.

    Make of your four steps what a model calls in training: for texts and heads at once, from empty states, Y alone. The
    gradients must be right, too.

    Hint: Your `ssd_in_chunks` of 6.5 takes any axes in front. What does it want that is not given here?

    Hint: An empty state for each text and head is (..., P, N): `X.new_zeros(…)` with all axes of X but that of time,
    and the last one of B.

    Insight: Nothing has changed: what is written with `...` for one text is written for a thousand.
    """
    empty = X.new_zeros(*X.shape[:-2], X.shape[-1], B.shape[-1])
    return ssd_in_chunks(X, log_a, B, C, empty, chunk_len)[0]


def _texts(randn):
    """Leading axes, T, P, N and the length of a chunk; at last a reset in every text."""
    sizes = [((), 1, 1, 1, 1), ((), 5, 2, 1, 2), ((2,), 3, 1, 2, 1), ((2,), 5, 2, 3, 3), ((2, 3), 3, 1, 1, 8)]
    for lead, length, head_dim, features, chunk_len in sizes:
        X, B, C = (randn(*lead, length, size) for size in (head_dim, features, features))
        yield X, decays(randn, *lead, length), B, C, chunk_len
    X, B, C = (randn(2, 6, size) for size in (1, 2, 2))  # small: a learner looks at it
    yield X, with_a_reset(decays(randn, 2, 6)), B, C, 4


def _as_many_texts_as_tokens(randn, length):
    X, B, C = (randn(length, length, size) for size in (2, 3, 3))
    return X, decays(randn, length, length), B, C, 2


def _recurrence(X, log_a, B, C, chunk_len):
    """One token after the other."""
    return ssd_recurrent(X, log_a, B, C)[0]


def _edited(edits):
    """The answer, out of a 6.5 with these edits."""
    steps = Edited(ssd_in_chunks, [], edits)

    def ssd(X, log_a, B, C, chunk_len):
        empty = X.new_zeros(*X.shape[:-2], X.shape[-1], B.shape[-1])
        return steps(X, log_a, B, C, empty, chunk_len)[0]

    return ssd


exercise(
    "7.5",
    "For texts and heads",
    claim="004:block-decomposition",
    level=1,
    minutes=5,
    cases=_texts,
    oracle=_recurrence,
    gradient=("X", "log_a"),
    way=Way(
        case=_as_many_texts_as_tokens,
        memory=2,
        loops=1,
        matters={"chunk_len": (4, 16)},
        differences=False,
        axis="T = texts",
    ),
    wrong={sentence: _edited(edits) for sentence, edits in WRONG_STEPS.items()}
    | {
        "B and C have changed places: B is the key under which X is "
        "written, C asks": lambda X, log_a, B, C, chunk_len: ssd(X, log_a, C, B, chunk_len)
    },
)(ssd)
