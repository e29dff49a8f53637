"""The exercise of chapter 02 on positions in features: cosFormer."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def cosformer(Q, K, V, horizon):
    """Y (T, P) with weights relu(Q_t)·relu(K_s)·cos(π (t - s) / (2 horizon)), divided by their sum; no (T, T) matrix.

    Return attention with these weights, every row divided by the sum of its weights (with our inputs never 0; no causal
    mask), in O(T) and without a loop over tokens: put the cosine into features of t and of s alone. Any horizon may be
    given, one below T too.

    Hint: cos(a - b) = cos a cos b + sin a sin b. So 2N features for each token: what are they?

    Hint: One angle for each row: `torch.arange(len(Q), dtype=Q.dtype)[:, None] * math.pi / (2 * horizon)`; the features
    of a token are relu(x) cos θ and relu(x) sin θ.

    Hint: With features q and k: `q @ (k.mT @ V)`, divided by `q @ k.sum(0)`, a number for each row.

    Insight: Every weight of relative position that is a sum of cosines can be split like this, a pair of features for
    each; RoPE turns Q and K by the same identity.
    """
    angles = math.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)[:, None]
    q, k = (torch.cat([x.relu() * angles.cos(), x.relu() * angles.sin()], dim=1) for x in (Q, K))
    return q @ (k.mT @ V) / (q @ k.sum(0))[:, None]


def _cosformer_oracle(Q, K, V, horizon):
    """One weight after the other."""
    rows = []
    for t in range(len(Q)):
        weights = [
            sum(max(q, 0.0) * max(k, 0.0) for q, k in zip(Q[t].tolist(), K[s].tolist(), strict=True))
            * math.cos(math.pi * (t - s) / (2 * horizon))
            for s in range(len(K))
        ]
        rows.append(sum(w * v for w, v in zip(weights, V, strict=True)) / sum(weights))
    return torch.stack(rows)


def _cosformer_cases(randn):
    ones = torch.ones(2, 1, dtype=torch.float64)
    yield ones[:1], ones[:1], randn(1, 1), 4
    yield ones, ones.clone(), randn(2, 1), 4
    for length, features, horizon in [(4, 2, 4), (6, 3, 16), (7, 3, 4), (5, 2, 6)]:  # with negative cosines in the last
        Q, K = randn(length, features), randn(length, features)
        Q[:, 0], K[:, 0] = Q[:, 0].abs() + 1, K[:, 0].abs() + 1
        yield Q, K, randn(length, 2), horizon
    yield 1 + 0.1 * randn(6, 2).abs(), 1 + 0.1 * randn(6, 2).abs(), randn(6, 2), 2  # some rows have a sum below 0


exercise(
    "2.6",
    "Positions in the features",
    claim="000:cosformer",
    level=2,
    minutes=12,
    cases=_cosformer_cases,
    oracle=_cosformer_oracle,
    way=Way(case=lambda randn, length: (*(randn(length, 2).abs() for _ in "QKV"), length), memory=1, loops=0),
    wrong={
        "the second half is sin θ alone, one column: "
        "it is relu(x) sin θ, one for each entry of x": "x.relu() * angles.sin() → angles.sin()",
        "the ReLU is missing: the weights can be negative": ".relu() → ",
        "the ReLU of the keys is missing: both sides need it": "x.relu() → x ; (Q, K) → (Q.relu(), K)",
        "the ReLU of the queries is missing: both sides need it": "x.relu() → x ; (Q, K) → (Q, K.relu())",
        "the positions are missing: "
        "without cos(θ_t - θ_s) these are weights of linear attention": "angles.cos() → 1 ; angles.sin() → 0",
        "π/2 is missing: the angle of position t is π/2 · t / horizon": "math.pi / (2 * horizon) → 1 / horizon",
        "you take the ReLU of the finished features: "
        "where the cosine is negative, beyond the horizon, it must stay": "x.relu() → x ; dim=1) → dim=1).relu()",
        "in your keys the ReLU comes after the cosine and cuts off its negative values: ReLU first": "return → "
        "k = torch.cat([(K * angles.cos()).relu(), K.relu() * angles.sin()], dim=1)\n    return",
        "the division is missing: the weights of a row must sum to 1": " / (q @ k.sum(0))[:, None] → ",
        "your sums run over s ≤ t: no causal mask is asked for here": "q @ (k.mT @ V) / (q @ k.sum(0)) → "
        "(q @ k.mT).tril() @ V / (q @ k.mT).tril().sum(1)",
        "your weights are cos(θ_t + θ_s): the sines come with a plus": "sin() → sin() * (1 if x is Q else -1)",
        "your weights are sin(θ_t + θ_s): "
        "cosine belongs to cosine, and sine to sine": "return → k = k.roll(Q.shape[1], 1)\n    return",
        "the cosines are missing from what you divide by: "
        "it is the sum of the weights as they are": "q @ k.sum(0) → Q.relu() @ K.relu().sum(0)",
        "you divide by one number for all rows: each row has a sum of its own": "sum(0))[:, None] → sum(0)).sum()",
        "beyond the horizon a row's sum can be negative: divide by it as it is": "sum(0)) → sum(0)).clamp(min=1e-6)",
        "beyond the horizon a row's sum can be negative: divide by it with its sign": "sum(0)) → sum(0)).abs()",
        "you divide each half by a sum of its own: a row's weights are both halves together, and have "
        "one sum": "q @ (k.mT → sum(q @ (k.mT ; 0))[:, None] → "
        "0))[:, None] for q, k in zip(q.chunk(2, 1), k.chunk(2, 1)))",
        "your angles are whole numbers times π/2: "
        "`//` cuts off what lies between": "q, k = → angles = angles // (math.pi / 2) * math.pi / 2\n    q, k =",
        "you divide by the sums of the columns: for each t, sum over s": "q @ k.sum(0) → k @ q.sum(0)",
        "only the cosines are there: cos θ_t · cos θ_s is not cos(θ_t - θ_s)": "angles.sin() → 0 * angles",
    },
)(cosformer)
