"""The exercises of chapter 01 on attention itself: the mask, and a window."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.sma import sma_quadratic


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


exercise(
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
        "this is the future's part before the division: divide it by the row's sum, 4": lambda: 3.0,
        "four tokens share the weight, not three: the token itself has a part": lambda: 2 / 3,
        "it is not one part of three: four tokens share, and three of them are the future": lambda: 1 / 3,
        "weights are shares of 1, not percents": lambda: 75.0,
        "this is the weight in row 1: row 0 has three tokens of the future": lambda: 0.5,
    },
)(weight_on_the_future)


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


def _causal_cases(randn):
    for length, features in [(1, 2), (2, 2), (5, 3), (12, 4)]:
        yield randn(length, features), randn(length, features)
    Q, K = randn(4, 2), randn(4, 2)
    yield Q * torch.tensor([1.0, 1.0, 0.0, 1.0]).double()[:, None], K  # a token whose scores are all 0
    yield 1000 * Q, K  # e^1000 is no number
    low = torch.tensor([[-3.0, 0.0], [-3.0, -1.0], [-3.0, -2.0]]).double()  # scores −3e6, −3e6 − 1, −3e6 − 2
    yield torch.tensor([[1e6, 1.0]] * 3).double(), low
    for scores in ([800.0, 900.0, 850.0], [0.0, 5e6, 10.0]):
        yield torch.ones(3, 1).double(), torch.tensor(scores).double()[:, None]
    yield torch.tensor([[1.0], [1.0], [1000.0]]).double(), torch.tensor([[1.0], [1.5], [0.5]]).double()
    yield randn(6, 2).float(), randn(6, 2).float()


RETURN = "return G.masked_fill(future, -torch.inf).softmax(-1)"
SHIFT = f"{RETURN} → E = (G - peak).exp().tril()\n    return E / E.sum(-1, keepdim=True)"

exercise(
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
    way=Way(case=lambda randn, length: (randn(length, 2), randn(length, 2))),
    wrong={
        # when the mask acts
        "the scores of the future became 0, and exp(0) = 1: the future keeps weight. "
        "The mask must act after the exponential, or the score must be -inf before it": "-torch.inf → 0.0",
        "the softmax still counted the future: "
        "its rows no longer sum to 1 once the future is removed": f"{RETURN} → return G.softmax(-1).tril()",
        # axes
        "the columns sum to 1: normalise over the sources, the last axis": "softmax(-1) → softmax(-2)",
        "this hides the past and keeps the future: rows are targets, columns are sources": "triu(1) → tril(-1)",
        # limits
        "the number that hides is not low enough: a visible score can be lower still. Hide by −∞": "-torch.inf → -1e5",
        "a hidden score can be larger than the number that you take off: "
        "hide by −∞": "G.masked_fill(future, -torch.inf) → (G - 1e5 * future.to(G.dtype))",
        "next to a hidden score that is far larger all visible weights are 0, and 0 / 0 is NaN; or its exponential is "
        "infinite, and 0 · ∞ is NaN. Hide by −∞ before "
        "the exponential": f"{SHIFT} ; peak → G.max(-1, keepdim=True).values",
        "a row in which all visible weights have vanished sums to 0, not to 1: hide by −∞ before the "
        "exponential": f"{RETURN} → W = G.softmax(-1).tril()\n    return (W / W.sum(-1, keepdim=True)).nan_to_num()",
        "you subtract the largest score of all: where what is visible lies far below, "
        "all underflows, and 0 / 0 is NaN. Subtract the largest visible score of the row": f"{SHIFT} ; peak → G.max()",
        "you subtract the largest of a row in which hidden scores are 0: where "
        "all visible ones are far below 0 they underflow": f"{SHIFT} ; peak → G.tril().max(-1, keepdim=True).values",
        "you clamp the scores: "
        "different ones become equal. Subtract the largest instead": f"{SHIFT} ; G - peak → G.clamp(max=700)",
        # the diagonal
        "one token of the future is visible: `tril(1)` keeps a diagonal too many": "triu(1) → triu(2)",
        "in yours a token does not see itself, and must: the diagonal belongs to the past": "triu(1) → triu()",
        # what is weighed, and what is hidden
        "nothing is hidden: every target still sees the future": ".masked_fill(future, -torch.inf) → ",
        "the scores are divided by √N: "
        "in this course there is no hidden scale: scale Q where you want one": "Q @ → Q / Q.shape[-1] ** 0.5 @",
        "the exponential is missing: the weights of a softmax are e to the scores": f"{SHIFT} ; (G - peak).exp() → G",
        "a score that is 0 by itself is hidden too: hide by place, not by value": "future, → G.tril() == 0,",
        "these are the scores K Qᵀ: in row t, target t asks with its query, Q[t] · K[s]": "Q @ K.mT → K @ Q.mT",
    },
)(causal_weights)


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


def _band_cases(randn):
    for length, window in [(1, 1), (4, 0), (5, 1), (12, 3), (6, 20)]:
        yield (*(randn(length, size) for size in (3, 3, 2)), window)


def _band_oracle(Q, K, V, window):
    time = torch.arange(len(Q))
    return sma_quadratic(Q, K, V, ((time[:, None] - time).abs() <= window).to(Q.dtype))


WINDOW = "slice(max(t - window, 0), t + window + 1)"
TURNED = f"{WINDOW} → torch.arange(t - window, t + window + 1) % len(Q)"

exercise(
    "1.6",
    "Only what the window shows",
    claim="000:sparse-masks",
    level=2,
    minutes=10,
    cases=_band_cases,
    oracle=_band_oracle,
    way=Way(case=lambda randn, length: (*(randn(length, 2) for _ in "QKV"), 3), memory=1, work=1),
    wrong={
        "your window looks only back: the band has `window` sources on EITHER side of t": "t + window + 1 → t + 1",
        "your window ends one source early: "
        "|t - s| ≤ window includes the distance `window` itself": "window → (max(window, 1) - 1)",
        "the first targets see nothing: a slice that starts below 0 counts from the end, and is empty here. "
        "Start at max(t - window, 0)": "max(t - window, 0) → t - window",
        "the last source of your window is missing: the end of a slice is not included, so add 1": " + 1 → ",
        "you take a softmax over the window: no softmax is asked for here": "Q[t]) → Q[t]).softmax(0)",
        "this is divided by the width of the window: "
        "(10) is a sum, not a mean": "return Y → return Y / (2 * window + 1)",
        "your scores weigh the value of t itself: "
        "each belongs to the value V_s of its own source": "(K[near] @ Q[t]) @ V[near] → (K[near] @ Q[t]).sum() * V[t]",
        "edges are repeated: beyond the first and "
        "the last token there is nothing": f"{WINDOW} → torch.arange(t - window, t + window + 1).clamp(0, len(Q) - 1)",
        "you sum keys and values of the window separately: "
        "each value has a weight of its own": "(K[near] @ Q[t]) @ V[near] → (K[near].sum(0) @ Q[t]) * V[near].sum(0)",
        "the diagonal counts twice: "
        "a walk over offsets on both sides meets offset 0 two times": "@ V[near] → @ V[near] + (K[t] @ Q[t]) * V[t]",
        "your window wraps around: `torch.roll` brings the end to the beginning, and the beginning to the end": TURNED,
        "a source s below 0 counts from the end: "
        "begin at max(t - window, 0)": f"{WINDOW} → list(range(t - window, min(t + window + 1, len(Q))))",
        "you divide by how many sources are in sight: (10) is a sum, not a mean": "V[near] → V[near] / len(V[near])",
    },
)(banded_attention)
