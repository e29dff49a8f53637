"""The exercises of chapter 01 on attention itself: the mask, and a window."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.kernel_attention import softmax_weights
from smalearn.masks import BandedMask, CausalMask, Mask
from smalearn.sma import sma_quadratic

# ------------------------------------------------------------------------------------------------- 1.1 what leaks


@exercise(
    "1.1",
    "What leaks",
    claim="002:causal-softmax-training",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=0.01,
    oracle=lambda: (torch.zeros(4, 4) * torch.ones(4, 4).tril()).softmax(-1)[0, 1:].sum().item(),
    wrong={
        "a score of 0 is not a weight of 0: what is exp(0)?": lambda: 0.0,
        "this is the weight of the token itself: the future is the rest of the row": lambda: 0.25,
        "a softmax leaves nothing out, and row 0 has one token besides the future": lambda: 1.0,
        "this is the row's sum before it is divided: divide by 4": lambda: 3.0,
        "four tokens share the weight, not three: the token itself has a part": lambda: 2 / 3,
        "it is not one part of three: four tokens share, and three of them are the future": lambda: 1 / 3,
        "weights are shares of 1, not percents": lambda: 75.0,
        "this is the weight in row 1: row 0 has three tokens of the future": lambda: 0.5,
    },
)
def weight_on_the_future():
    """The weight that row 0 gives to the future if the mask comes BEFORE the softmax, softmax(L ∘ QKᵀ).

    There are four tokens, and all scores are 0. L is causal: 1 on and below the diagonal, 0 above.

    Hint: Row 0 of L ∘ QKᵀ, four numbers: which?

    Hint: A softmax takes the exponential of each, then divides by their sum.

    Too little: The score of a hidden token is 0 here, as it is for the visible one, and e⁰ is the same for both.

    Too much: The token itself is visible, and keeps as much weight as each token of the future gets.

    Insight: A model with its mask in the wrong place still trains, and its loss looks ordinary, even a little too good:
    it sees an average of the future. Only a test reveals it.
    """
    return 0.75


# ------------------------------------------------------------------------------------------- 1.2 causal weights


def _causal_cases(randn):
    for length, features in [(1, 2), (2, 2), (5, 3), (12, 4)]:
        yield randn(length, features), randn(length, features)
    Q, K = randn(4, 2), randn(4, 2)
    yield Q * torch.tensor([1.0, 1.0, 0.0, 1.0]).double()[:, None], K  # a token whose scores are all 0
    yield 1000 * Q, K  # e^1000 is no number
    for scores in ([-3e6, -3e6 - 1, -3e6 - 2], [800.0, 900.0, 850.0], [0.0, 5e6, 10.0]):
        yield torch.ones(3, 1).double(), torch.tensor(scores).double()[:, None]
    yield torch.tensor([[1.0], [1.0], [1000.0]]).double(), torch.tensor([[1.0], [1.5], [0.5]]).double()
    yield randn(6, 2).float(), randn(6, 2).float()


def _rest_on_the_diagonal(weights):
    return weights + (1 - weights.sum(-1)).diag()


def _shifted(G, peak):
    """Weights by exponentials of what is left when `peak` is taken off."""
    E = (G - peak).exp().tril()
    return E / E.sum(-1, keepdim=True)


@exercise(
    "1.2",
    "Hide the future",
    claim="002:causal-softmax-training",
    level=1,
    minutes=5,
    tolerance=3e-7,  # one case is in float32
    cases=_causal_cases,
    oracle=lambda Q, K: torch.stack(
        [torch.cat([(K[: t + 1] @ Q[t]).softmax(0), K.new_zeros(len(K) - t - 1)]) for t in range(len(Q))]
    ),
    wrong={
        "the scores of the future became 0, and exp(0) = 1: the future keeps weight. "
        "The mask must act after the exponential, or the score must be -inf before it": lambda Q, K: (
            (Q @ K.mT).tril().softmax(-1)
        ),
        "the softmax still counted the future, and the diagonal got what is missing: divide by the sum of what the "
        "mask leaves": lambda Q, K: _rest_on_the_diagonal((Q @ K.mT).softmax(-1).tril()),
        "the softmax still counted the future: its rows no longer sum to 1 once the future is removed": lambda Q, K: (
            (Q @ K.mT).softmax(-1).tril()
        ),
        "the columns sum to 1: normalise over the sources, the last axis": lambda Q, K: (
            softmax_weights(K, Q, CausalMask(len(Q)).dense(Q.dtype).mT).mT
        ),
        "this hides the past and keeps the future: rows are targets, columns are sources": lambda Q, K: softmax_weights(
            Q, K, CausalMask(len(Q)).dense(Q.dtype).mT
        ),
        "the number that hides is not low enough: a visible score can be lower still. Hide by −∞": lambda Q, K: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).triu(1) > 0, -1e5).softmax(-1)
        ),
        "a hidden score can be larger than the number that you take off: hide by −∞": lambda Q, K: (
            Q @ K.mT - 1e5 * torch.ones(len(Q), len(Q), dtype=Q.dtype).triu(1)
        ).softmax(-1),
        "next to a hidden score that is far larger all visible weights are 0, and 0 / 0 is NaN; or its exponential is "
        "infinite, and 0 · ∞ is NaN. Hide by −∞ before the exponential": lambda Q, K: _shifted(
            Q @ K.mT, (Q @ K.mT).max(-1, keepdim=True).values
        ),
        "you subtract the largest score of all: where what is visible lies far below, all underflows, and 0 / 0 is "
        "NaN. Subtract the largest visible score of the row": lambda Q, K: _shifted(Q @ K.mT, (Q @ K.mT).max()),
        "you subtract the largest of a row in which hidden scores are 0: where all visible ones are far below 0 they "
        "underflow": lambda Q, K: _shifted(Q @ K.mT, (Q @ K.mT).tril().max(-1, keepdim=True).values),
        "you clamp the scores: different ones become equal. Subtract the largest instead": lambda Q, K: _shifted(
            (Q @ K.mT).clamp(max=700), 0
        ),
        "0 · (−∞) is NaN: fill in −∞ where the mask is 0, do not multiply by it": lambda Q, K: (
            Q @ K.mT + (1 - torch.ones(len(Q), len(Q), dtype=Q.dtype).tril()) * -torch.inf
        ).softmax(-1),
        "one token of the future is visible: `tril(1)` keeps a diagonal too many": lambda Q, K: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).triu(2) > 0, -torch.inf).softmax(-1)
        ),
        "in yours a token does not see itself, and must: the diagonal belongs to the past": lambda Q, K: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).triu() > 0, -torch.inf).softmax(-1)
        ),
        "in yours a token does not see itself, and row 0 sees nothing: the diagonal is past, too": lambda Q, K: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).triu() > 0, -torch.inf).softmax(-1).nan_to_num()
        ),
        "you hide what is visible: −∞ belongs where the mask is 0": lambda Q, K: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).tril() > 0, -torch.inf).softmax(-1)
        ),
        "your weights do not depend on Q and K: these are equal weights for all that is visible": lambda Q, K: (
            torch.ones(len(Q), len(Q), dtype=Q.dtype).tril() / torch.arange(1, len(Q) + 1, dtype=Q.dtype)[:, None]
        ),
        "nothing is hidden: every target still sees the future": softmax_weights,
        "the scores are divided by √N: in this course there is no hidden scale: scale "
        "Q where you want one": lambda Q, K: causal_weights(Q / Q.shape[-1] ** 0.5, K),
        "the exponential is missing: the weights of a softmax are e to the scores": lambda Q, K: (
            (Q @ K.mT).tril() / (Q @ K.mT).tril().sum(-1, keepdim=True)
        ),
        "a score that is 0 by itself is hidden too: hide by place, not by value": lambda Q, K: (
            (Q @ K.mT).tril().masked_fill((Q @ K.mT).tril() == 0, -torch.inf).softmax(-1)
        ),
        "exponentials overflow or vanish: e^1000 is infinite, e^−1000 is 0, 0/0 is NaN. Subtract the largest visible "
        "score of the row first, as `softmax` does": lambda Q, K: (
            (Q @ K.mT).exp().tril() / (Q @ K.mT).exp().tril().sum(-1, keepdim=True)
        ),
        "these are the scores K Qᵀ: in row t, target t asks with its query, Q[t] · K[s]": lambda Q, K: causal_weights(
            K, Q
        ),
    },
)
def causal_weights(Q, K):
    """The (T, T) matrix of causal softmax attention; Q and K are (T, N).

    Return the (T, T) weights of causal softmax attention: zero above the diagonal, rows that sum to 1.

    Hint: Which score has the exponential 0? (Not the score 0.)

    Hint: `torch.ones(T, T, dtype=torch.bool).triu(1)` is True above the diagonal; `masked_fill` takes it.

    Hint: Fill the scores above the diagonal with `-torch.inf`, then take the softmax over the last axis.

    Insight: Token t's weights do not change when a token is appended, which is why keys and values can be kept while a
    model writes.
    """
    G = Q @ K.mT
    future = torch.ones(G.shape, dtype=torch.bool).triu(1)
    return G.masked_fill(future, -torch.inf).softmax(-1)


# ---------------------------------------------------------------------------------------------- 1.6 a banded window


def _with_window(near):
    """Masked attention with another window: `near(t, window)` is the slice of sources that target t sees."""
    return lambda Q, K, V, window: torch.stack(
        [(K[near(t, window)] @ Q[t]) @ V[near(t, window)] for t in range(len(Q))]
    )


def _band_cases(randn):
    for length, window in [(1, 1), (4, 0), (5, 1), (12, 3), (6, 20)]:
        yield (*(randn(length, size) for size in (3, 3, 2)), window)


def _with_mask(build):
    """Masked attention under the mask `build(length, window)` makes."""

    def attention(Q, K, V, window):
        L = build(len(Q), window)
        return sma_quadratic(Q, K, V, L if isinstance(L, Mask) else L.to(Q.dtype))

    return attention


def _separately(Q, K, V, window):
    near = (_distance(len(Q)) <= window).to(Q.dtype)
    return (Q * (near @ K)).sum(-1, keepdim=True) * (near @ V)


def _diagonal_twice(Q, K, V, window):
    own = (Q * K).sum(-1, keepdim=True) * V
    return _with_mask(lambda length, window: _distance(length) <= window)(Q, K, V, window) + own


def _rolled(Q, K, V, window):
    """Every offset of the window by a roll: where it is wider than the text, tokens come more than once."""
    offsets = range(-window, window + 1)
    return sum((Q * K.roll(d, 0)).sum(-1, keepdim=True) * V.roll(d, 0) for d in offsets)


def _clamped(Q, K, V, window):
    """Offsets of the window whose places stop at both ends."""
    places = torch.arange(len(Q))
    near = ((places + d).clamp(0, len(Q) - 1) for d in range(-window, window + 1))
    return sum((Q * K[at]).sum(-1, keepdim=True) * V[at] for at in near)


def _from(first):
    """The sources of a window one by one, from `first(t, window, length)` on: one below 0 counts from the end."""

    def attention(Q, K, V, window):
        Y, length = torch.zeros(len(Q), V.shape[1], dtype=V.dtype), len(Q)
        for t in range(length):
            for s in range(first(t, window, length), min(t + window + 1, length)):
                Y[t] += (Q[t] @ K[s]) * V[s]
        return Y

    return attention


def _distance(length):
    return (torch.arange(length)[:, None] - torch.arange(length)).abs()


@exercise(
    "1.6",
    "Only what the window shows",
    claim="000:sparse-masks",
    level=2,
    minutes=10,
    cases=_band_cases,
    oracle=_with_mask(lambda length, window: _distance(length) <= window),
    way=Way(case=lambda randn, length: (*(randn(length, 2) for _ in "QKV"), 3), memory=1, work=1),
    wrong={
        "your window looks only back: the band has `window` sources on EITHER side of t": _with_mask(
            lambda length, window: BandedMask(length, length, window).dense().tril()
        ),
        "your window ends one source early: |t - s| ≤ window includes the distance `window` itself": _with_mask(
            lambda length, window: _distance(length) < max(window, 1)
        ),
        "the first targets see nothing: a slice that starts below 0 counts from the end, and is empty here. "
        "Start at max(t - window, 0)": _with_window(lambda t, window: slice(t - window, t + window + 1)),
        "the last source of your window is missing: the end of a slice is not included, so add 1": _with_window(
            lambda t, window: slice(max(t - window, 0), t + window)
        ),
        "you take a softmax over the window: no softmax is asked for here": lambda Q, K, V, window: torch.stack(
            [
                (K[max(t - window, 0) : t + window + 1] @ Q[t]).softmax(0) @ V[max(t - window, 0) : t + window + 1]
                for t in range(len(Q))
            ]
        ),
        "this is divided by the width of the window: (10) is a sum, not a mean": lambda Q, K, V, w: (
            (Q @ K.mT * (_distance(len(Q)) <= w)) @ V / (2 * w + 1)
        ),
        "your scores weigh the value of t itself: each belongs to the value V_s of its own source": lambda Q, K, V, w: (
            (Q @ K.mT * (_distance(len(Q)) <= w)).sum(-1, keepdim=True) * V
        ),
        "your window looks only ahead: it begins at t − window": _with_window(
            lambda t, window: slice(t, t + window + 1)
        ),
        "edges are repeated: beyond the first and the last token there is nothing": _clamped,
        "your windows are blocks, side by side: each target has a window of its own around it": _with_mask(
            lambda length, window: (
                (torch.arange(length) // (window + 1))[:, None] == torch.arange(length) // (window + 1)
            )
        ),
        "t itself is missing: its distance is 0, and in the window": _with_mask(
            lambda length, window: (_distance(length) <= window) & (_distance(length) > 0)
        ),
        "each source overwrites the one before, so that the last of the window stays: add them up": _with_mask(
            lambda length, window: (
                torch.arange(length) == (torch.arange(length) + window).clamp(max=length - 1)[:, None]
            )
        ),
        "you sum keys and values of the window separately: each value has a weight of its own": _separately,
        "the diagonal counts twice: a walk over offsets on both sides meets offset 0 two times": _diagonal_twice,
        "your window wraps around: `torch.roll` brings the end to the beginning, and the beginning to the end": _rolled,
        "`torch.roll` brings the end to the beginning, also where the offsets stop at the length of the text": (
            lambda Q, K, V, window: _rolled(Q, K, V, min(window, len(Q) - 1))
        ),
        "a source s below 0 counts from the end: begin at max(t - window, 0)": _from(
            lambda t, window, length: t - window
        ),
        "a source s below 0 counts from the end: only 0 ≤ s < T is there": _from(
            lambda t, window, length: max(t - window, -length)
        ),
        "you divide by how many sources are in sight: (10) is a sum, not a mean": lambda Q, K, V, window: (
            _with_mask(lambda length, window: _distance(length) <= window)(Q, K, V, window)
            / (_distance(len(Q)) <= window).sum(-1, keepdim=True)
        ),
        "your window wraps around: the first target sees the last sources. A negative index, `%` or torch.roll "
        "does that": _with_mask(
            lambda length, window: torch.minimum(_distance(length), length - _distance(length)) <= window
        ),
    },
)
def banded_attention(Q, K, V, window):
    """Masked attention Y_t = Σ (Q_t · K_s) V_s over |t - s| ≤ window, computing only those scores.

    Compute masked attention (no softmax) under a banded mask, without a (T, T) matrix; the window may be 0, or wider
    than the text.

    Hint: Go through the targets t one by one: which rows of K and V does target t see?

    Hint: `near = slice(max(t - window, 0), t + window + 1)`; a slice may run over the end, not below 0.

    Hint: `K[near] @ Q[t]` are the scores of target t; weigh the rows of `V[near]` with them.

    Insight: A stack of such layers sees further than its window: after n layers, n windows back.
    """
    Y = torch.zeros(len(Q), V.shape[1], dtype=V.dtype)
    for t in range(len(Q)):
        near = slice(max(t - window, 0), t + window + 1)
        Y[t] = (K[near] @ Q[t]) @ V[near]
    return Y
