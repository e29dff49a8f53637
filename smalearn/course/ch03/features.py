"""The exercise of chapter 03 on gates that differ from feature to feature: scores of a chunk, without a quotient."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def gated_scores(Q, K, log_a):
    """Scores of one chunk under a gate for each feature, A[t, s] = Σ_n Q[t, n] K[s, n] ∏_{s < r ≤ t} a[r, n].

    Return the scores A (T, T) of all tokens of one chunk, 0 for s > t: log_a is (T, N), a gate for each feature of the
    keys. Take no quotient of decays, no difference of running sums, no (T, T, N) tensor; some gates are 0, log_a = −∞.
    Any border in the chunk will do for the pairs on its two sides.

    Hint: For s < border ≤ t the decay of feature n has two factors, as in exercise 3.4. Which belongs to K[s, n], and
    which to Q[t, n]?

    Hint: Cut the chunk in the middle. The pairs across are one product of matrices, (queries · since) @ (keys ·
    until)ᵀ; each half is a shorter chunk: let the function call itself, down to a single token.

    Hint: `since = log_a[b:].cumsum(0).exp()`. For `until` add up, from the end, the gates after each token: those of
    `log_a[1:b]`, and a row of zeros for the last.

    Insight: Cut in halves, nearly all of it is products of matrices, and no exponent is positive. The code of GLA stops
    at blocks of 16, and computes these pair by pair.
    """
    if len(Q) == 1:
        return Q @ K.mT
    b = len(Q) // 2  # the border
    since = log_a[b:].cumsum(0).exp()
    later = torch.cat([log_a[1:b], torch.zeros_like(log_a[:1])])  # the gate after each token
    until = later.flip(0).cumsum(0).flip(0).exp()
    A = Q.new_zeros(len(Q), len(Q))
    A[:b, :b] = gated_scores(Q[:b], K[:b], log_a[:b])
    A[b:, b:] = gated_scores(Q[b:], K[b:], log_a[b:])
    A[b:, :b] = (Q[b:] * since) @ (K[:b] * until).mT
    return A


def _feature_by_feature(Q, K, log_a):
    """Triple by triple: target, source, feature."""
    gates, length, features = log_a.exp().tolist(), *Q.shape

    def score(t, s):
        decays = [math.prod(gate[n] for gate in gates[s + 1 : t + 1]) for n in range(features)]
        return sum(Q[t, n].item() * K[s, n].item() * decays[n] for n in range(features))

    rows = [[score(t, s) if s <= t else 0.0 for s in range(length)] for t in range(length)]
    return torch.tensor(rows, dtype=Q.dtype)


def _feature_cases(randn):
    for length, features in [(1, 1), (2, 2), (4, 3), (7, 2)]:
        yield randn(length, features), randn(length, features), -randn(length, features).abs()
    for place in (2, 3, 4):  # a reset of one feature
        log_a = -randn(7, 3).abs()
        log_a[place, 1] = -torch.inf
        yield randn(7, 3), randn(7, 3), log_a
    yield randn(9, 2), randn(9, 2), -200 * randn(9, 2).abs()
    K = randn(11, 2)  # the longest, so that a plain mistake is shown in a plain case
    K[1] = 1e200  # a key that an exact 0 alone forgets
    after = torch.arange(11)[:, None] >= 3
    yield randn(11, 2) * after, K, torch.zeros_like(K).index_fill(0, torch.tensor(3), -torch.inf)


def _as_many_features(randn, length):
    """A chunk with T features: (T, T, N) grows faster than T², the scores do not."""
    return randn(length, length), randn(length, length), -randn(length, length).abs()


UP = "b = len(Q) // 2 → b = (len(Q) + 1) // 2"  # other halves, other wrong numbers
FIRST = "if len → log_a = {}\n    if len"
EARLIER, HALF = (f"gated_scores(Q[{part}], K[{part}], log_a[{part}])" for part in (":b", "b:"))

exercise(
    "3.7",
    "A gate for every feature",
    claim="002:gla-chunkwise",
    level=3,
    minutes=20,
    cases=_feature_cases,
    oracle=_feature_by_feature,
    way=Way(case=_as_many_features, memory=2, loops=1, differences=False, axis="T = N"),
    wrong={
        # how the gates enter
        "you mix the features' gates: each feature has a decay of its own, inside the sum over n": FIRST.format(
            "log_a.mean(1, keepdim=True).expand_as(Q)"
        ),
        "a gate of 0 is left out: log_a = −∞ makes its product 0": FIRST.format("log_a.nan_to_num(neginf=0.0)"),
        "log_a is cut off from below: sums of −∞ are fine here": FIRST.format("log_a.clamp(min=-50)"),
        "log_a has met two exponentials: one makes it the gate": lambda Q, K, log_a: gated_scores(Q, K, log_a.exp()),
        "a decay has met two exponentials: one is enough": ".exp() → .exp().exp()",
        "your decays have met two exponentials: one is enough": f"{UP} ; .exp() → .exp().exp()",
        "these are sums of logarithms: a decay is their exponential": ".exp() → ",
        "the decay since the border is still a sum of logarithms": "[b:].cumsum(0).exp() → [b:].cumsum(0)",
        "the decay until the border is still a sum of logarithms": "flip(0).exp() → flip(0)",
        # until the border
        "the decay until the border is a difference of two sums: after a reset −∞ − (−∞) is not a number. Add up the "
        "gates after each token themselves": "later.flip(0).cumsum(0).flip(0) → (log_a[:b].sum(0) - "
        "log_a[:b].cumsum(0))",
        "keys across the border have not faded: the gates after them act, until the border": " * until → ",
        # since the border
        "the decay since the border has met two exponentials": "[b:].cumsum(0).exp() → [b:].cumsum(0).exp().exp()",
        "two exponentials in the decay since the border: one is enough": f"{UP} ; [b:].cumsum(0).exp() → "
        "[b:].cumsum(0).exp().exp()",
        "the decay until the border has met two exponentials": "flip(0).exp() → flip(0).exp().exp()",
        "two exponentials in the decay until the border: one is enough": f"{UP} ; flip(0).exp() → flip(0).exp().exp()",
        "since the border all gates up to token t act, not its own alone": "log_a[b:].cumsum(0) → log_a[b:]",
        "what is read across the border has not faded since: the gates from the border to t act": " * since → ",
        "every gate acts one token late": lambda Q, K, log_a: gated_scores(Q, K, log_a.roll(1, 0)),
        # which pairs
    },
)(gated_scores)
