"""The exercises of appendix B that keep inputs instead of states: back to an accepted draft, and replay."""

from torch.nn import functional as F

from smalearn.course.ch06.mask import decays, with_a_reset
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.ssd import ssd_recurrent

# --------------------------------------------------------------------------------------- B.2 back to an accepted draft


def roll_back(state, X, log_a, B, accepted):
    """The state (..., P, N) after the first `accepted` of k drafts.

    A state (..., P, N) came in, and k drafted tokens were read: X (..., k, P), log_a (..., k), B (..., k, N). The first
    `accepted` of them stand, from 0 to k; the others must leave no trace. Return the state after those that stand.

    Hint: Do not undo anything. The state before the drafts is still there, and so are all inputs.

    Hint: Read the accepted tokens once more, one after the other: decay the state, then write the token.

    Hint: `log_a[..., s, None, None].exp() * state` decays it, and X[..., s, :, None] * B[..., s, None, :] is what token
    s writes.

    Insight: One state and k inputs do for any number of accepted drafts. Going back is a smaller number in a loop;
    nothing is divided.
    """
    for s in range(accepted):
        written = X[..., s, :, None] * B[..., s, None, :]
        state = log_a[..., s, None, None].exp() * state + written
    return state


def _chunk(randn, lead, length, head_dim, features, reset=False):
    log_a = decays(randn, *lead, length)
    state, X, B = randn(*lead, head_dim, features), randn(*lead, length, head_dim), randn(*lead, length, features)
    return state, X, with_a_reset(log_a) if reset else log_a, B


def _drafts(randn):
    yield *_chunk(randn, (), 1, 1, 1), 1
    sizes = [((), 3, 0, 0), ((), 4, 2, 0), ((2,), 4, 4, 0), ((2,), 5, 3, 1), ((3,), 4, 1, 1)]
    for lead, length, accepted, reset in sizes:
        yield *_chunk(randn, lead, length, 2, 3, reset), accepted


def _after(state, X, log_a, B, accepted):
    """The last state of the recurrence over the accepted tokens alone."""
    X, log_a, B = X[..., :accepted, :], log_a[..., :accepted], B[..., :accepted, :]
    return ssd_recurrent(X, log_a, B, B, state)[1] if accepted else state


def _undone(state, X, log_a, B, accepted):
    """From the state after all drafts, by division."""
    state = _after(state, X, log_a, B, X.shape[-2])
    for s in reversed(range(accepted, X.shape[-2])):
        written = X[..., s, :, None] * B[..., s, None, :]
        state = (state - written) / log_a[..., s, None, None].exp()
    return state


exercise(
    "B.2",
    "Back to an accepted draft",
    claim="009:rollback",
    level=1,
    minutes=8,
    cases=_drafts,
    oracle=_after,
    wrong={
        "you divide by decays to take tokens back: after a reset there is nothing to divide. "
        "Begin at the state before the drafts": _undone,
        "you read all drafts: those after the first `accepted` must leave no trace": "accepted → X.shape[-2]",
        "you subtract running sums: after a reset that is ∞ − ∞": (
            lambda state, X, log_a, B, n: (
                log_a[..., :n].sum(-1)[..., None, None].exp() * state
                + (
                    (log_a[..., :n].sum(-1, keepdim=True) - log_a[..., :n].cumsum(-1)).exp()[..., None] * X[..., :n, :]
                ).mT
                @ B[..., :n, :]
            )
        ),
        "you read one draft too many": "range(accepted) → range(min(accepted + 1, X.shape[-2]))",
        "you read one draft too few": "range(accepted) → range(accepted - 1)",
        "you give back the state before the drafts: those that stand have been read": "range(accepted) → range(0)",
        "nothing decays in yours: each token multiplies the state by e^(log a)": ".exp() * state → .exp() ** 0 * state",
        "you multiply by log a: the decay is its exponential": "None].exp() → None].clamp_min(-1e9)",
        "your token decays what it writes itself: decay the old state, then write": (
            "state + written → (state + written)"
        ),
        "you begin with an empty state: the drafts came after a text": "for s → state = 0 * state\n    for s",
        "each draft replaces what was there: the decayed state belongs in the sum": "* state + written → * 0 + written",
        "what a draft writes does not decay under the later ones: each token's decay acts on all before it": (
            lambda state, X, log_a, B, n: (
                log_a[..., :n].sum(-1)[..., None, None].exp() * state + X[..., :n, :].mT @ B[..., :n, :]
            )
        ),
    },
)(roll_back)


# ----------------------------------------------------------------------------------------------------------- B.3 replay


def replay(state, X, log_a, B, C):
    """What the last token reads, y (..., P), from the state at the border and the inputs since then.

    The state (..., P, N) is the one at the last border; since then c tokens have come: X (..., c, P), log_a (..., c), B
    (..., c, N), the last one included. The last token asks C (..., N). Write what it reads without a loop over tokens:
    chapter 06's steps 4 and 1, of one row.

    Hint: Two terms. What is left of the state at the border when the last token reads? And with which weight does it
    read token s of the c?

    Hint: The state has met all c decays. What token s wrote has met the decays after it, none of them its own.

    Hint: `F.pad(log_a[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)` sums, for each s, the log decays after it. The
    scores are its exponential times `(B @ C[..., None]).squeeze(-1)`.

    Insight: The state need only be read: tokens between two borders leave their inputs behind, and the border pays for
    all of them at once.
    """
    asked = C[..., None]  # (..., N, 1)
    entered = log_a.sum(-1, keepdim=True).exp() * (state @ asked).squeeze(-1)
    later = F.pad(log_a[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)  # (..., c)
    scores = later.exp() * (B @ asked).squeeze(-1)
    return entered + (scores[..., None, :] @ X).squeeze(-2)


def _chunks(randn):
    sizes = [((), 1, 1, 1), ((), 1, 2, 3), ((), 3, 2, 2), ((2,), 4, 2, 3), ((2,), 5, 3, 2), ((2, 3), 4, 2, 1)]
    for number, (lead, length, head_dim, features) in enumerate(sizes):
        yield *_chunk(randn, lead, length, head_dim, features, number > 3), randn(*lead, features)


def _last_read(state, X, log_a, B, C):
    """The last output of the recurrence."""
    asked = C[..., None, :].expand_as(B)
    return ssd_recurrent(X, log_a, B, asked, state)[0][..., -1, :]


exercise(
    "B.3",
    "Replay",
    claim="009:replay",
    kind="prove",
    level=2,
    minutes=12,
    cases=_chunks,
    oracle=_last_read,
    way=Way(case=lambda randn, length: (*_chunk(randn, (), length, 2, 3), randn(3)), loops=0),
    wrong={
        "this is step 1 alone: what the state at the border says is missing": "return entered + ( → return (",
        "this is step 4 alone: the tokens since the border are missing": "return entered + → return entered + 0 *",
        "the state is read as it was at the border: it has met all c decays since": (
            "log_a.sum(-1, keepdim=True).exp() * (state → (state"
        ),
        "the last token's own decay acts on the state, too: it has met all c": (
            "log_a.sum(-1, keepdim=True) → log_a[..., :-1].sum(-1, keepdim=True)"
        ),
        "nothing decays between the border and the last token: each score has its decays": "later.exp() * ( → (",
        "what a token wrote has not met its own decay, only those after it": "F.pad(log_a[..., 1:], (0, 1)) → log_a",
        "the last token's decay is missing in the scores: it acts on what the tokens before it wrote": (
            "later = F.pad(log_a[..., 1:], (0, 1)) → later = F.pad(log_a[..., 1:-1], (0, min(2, log_a.shape[-1])))"
        ),
        "your sums run from the border: a token's write decays by what comes AFTER it": (
            "F.pad(log_a[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1) → log_a.cumsum(-1)"
        ),
        "a difference of running sums is ∞ − ∞ after a reset: sum each segment by itself": (
            "F.pad(log_a[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1) → "
            "log_a.sum(-1, keepdim=True) - log_a.cumsum(-1)"
        ),
        "the last token reads itself as well: it is written before it asks": "later.exp() → later.exp() * (later < 0)",
    },
)(replay)
