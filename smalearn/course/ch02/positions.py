"""The exercise of chapter 02 on positions in features: cosFormer."""

import math

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way

# ------------------------------------------------------------------------------------------------ 2.6 cosFormer


def _cosformer_oracle(Q, K, V, horizon, weight=math.cos):
    """One weight after the other."""
    rows = []
    for t in range(len(Q)):
        weights = [
            sum(max(q, 0.0) * max(k, 0.0) for q, k in zip(Q[t].tolist(), K[s].tolist(), strict=True))
            * weight(math.pi * (t - s) / (2 * horizon))
            for s in range(len(K))
        ]
        rows.append(sum(w * v for w, v in zip(weights, V, strict=True)) / sum(weights))
    return torch.stack(rows)


def _cosformer_cases(randn):
    ones = torch.ones(2, 1, dtype=torch.float64)
    yield ones[:1], ones[:1], randn(1, 1), 4
    yield ones, ones.clone(), randn(2, 1), 4
    for length, features, horizon in [
        (4, 2, 4),
        (6, 3, 16),
        (7, 3, 4),
        (5, 2, 6),
    ]:  # in the last some cosines are negative
        Q, K = randn(length, features), randn(length, features)
        Q[:, 0], K[:, 0] = Q[:, 0].abs() + 1, K[:, 0].abs() + 1
        yield Q, K, randn(length, 2), horizon
    yield 1 + 0.1 * randn(6, 2).abs(), 1 + 0.1 * randn(6, 2).abs(), randn(6, 2), 2  # some rows have a sum below 0


def _rectified_cosines(x, angles):
    return x.relu() * angles.cos()


def _features(first=_rectified_cosines, second=lambda x, angles: x.relu() * angles.sin(), first_of_keys=None):
    """Attention by other features, made of the tokens and of their angles."""

    def attention(Q, K, V, horizon):
        angles = math.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)[:, None]
        pairs = (Q, first), (K, first_of_keys or first)
        q, k = (torch.cat([begin(x, angles), second(x, angles)], dim=1) for x, begin in pairs)
        return q @ (k.mT @ V) / (q @ k.sum(0))[:, None]

    return attention


_unrectified = _features(lambda x, angles: x * angles.cos(), lambda x, angles: x * angles.sin())


def _split(first, second, divide=lambda W, Q, K: W.sum(1, keepdim=True)):
    """Attention by weights relu(q)·relu(k) (first(θ_t, θ_s) + second(θ_t, θ_s)), divided by something."""

    def attention(Q, K, V, horizon):
        angles = math.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)
        W = (Q.relu() @ K.relu().mT) * (first(angles[:, None], angles) + second(angles[:, None], angles))
        return W @ V / divide(W, Q, K)

    return attention


def _cosines(a, b):
    return a.cos() * b.cos()


def _sines(a, b):
    return a.sin() * b.sin()


def _undivided(Q, K, V, horizon):
    distance = torch.arange(len(Q))[:, None] - torch.arange(len(Q), dtype=Q.dtype)
    return (Q.relu() @ K.relu().mT * (math.pi / (2 * horizon) * distance).cos()) @ V


@exercise(
    "2.6",
    "Positions in the features",
    claim="000:cosformer",
    level=2,
    minutes=12,
    cases=_cosformer_cases,
    oracle=_cosformer_oracle,
    way=Way(case=lambda randn, length: (*(randn(length, 2).abs() for _ in "QKV"), length), memory=1, loops=0),
    wrong={
        "the second half is x sin θ, not sin θ alone: only then does cos·cos + sin·sin become cos(θ_t - θ_s), "
        "times q·k. (The Mamba-2 paper prints it without the x)": _features(
            second=lambda x, angles: angles.sin().expand(x.shape)
        ),
        "the second half is sin θ alone, one column: it is relu(x) sin θ, one for each entry of x": _features(
            second=lambda x, angles: angles.sin()
        ),
        "the ReLU is missing: the weights can be negative": lambda *given: _unrectified(*given),
        "the ReLU of the keys is missing: both sides need it": lambda Q, K, V, horizon: _unrectified(
            Q.relu(), K, V, horizon
        ),
        "the ReLU of the queries is missing: both sides need it": lambda Q, K, V, horizon: _unrectified(
            Q, K.relu(), V, horizon
        ),
        "the positions are missing: without cos(θ_t - θ_s) these are weights of linear attention": _features(
            lambda x, angles: x.relu(), lambda x, angles: 0 * x
        ),
        "π/2 is missing: the angle of position t is π/2 · t / horizon": lambda Q, K, V, horizon: _cosformer_oracle(
            Q, K, V, horizon * math.pi / 2
        ),
        "you take the ReLU of the finished features: where the cosine is negative, beyond the horizon, it must "
        "stay": _features(lambda x, angles: (x * angles.cos()).relu(), lambda x, angles: (x * angles.sin()).relu()),
        "in your keys the ReLU comes after the cosine and cuts off its negative values: ReLU first": _features(
            first_of_keys=lambda x, angles: (x * angles.cos()).relu()
        ),
        "your angle runs to π instead of π/2: the cosine of a large distance becomes "
        "negative": lambda Q, K, V, horizon: _cosformer_oracle(Q, K, V, horizon / 2),
        "the answer is right to seven digits: the angles are float32, because `torch.arange` holds integers "
        "and these times a float are float32; give it `dtype=Q.dtype`": _features(
            lambda x, angles: x.relu() * angles.float().cos(), lambda x, angles: x.relu() * angles.float().sin()
        ),
        "the division is missing: the weights of a row must sum to 1": _undivided,
        "your sums run over s ≤ t: no causal mask is asked for here": lambda Q, K, V, horizon: torch.stack(
            [_cosformer_oracle(Q[: t + 1], K[: t + 1], V[: t + 1], horizon)[t] for t in range(len(Q))]
        ),
        "you divide the positions by T: the horizon is given": lambda Q, K, V, horizon: _cosformer_oracle(
            Q, K, V, len(Q)
        ),
        "your weights are cos(θ_t + θ_s): the sines come with a plus": _split(_cosines, lambda a, b: -_sines(a, b)),
        "your weights are sin(θ_t + θ_s): cosine belongs to cosine, and sine to sine": _split(
            lambda a, b: a.sin() * b.cos(), lambda a, b: a.cos() * b.sin()
        ),
        "the cosines are missing from what you divide by: it is the sum of the weights as they are": _split(
            _cosines, _sines, lambda W, Q, K: (Q.relu() @ K.relu().mT).sum(1, keepdim=True)
        ),
        "you divide by one number for all rows: each row has a sum of its own": _split(
            _cosines, _sines, lambda W, Q, K: W.sum()
        ),
        "beyond the horizon a row's sum can be negative: divide by it as it is": _split(
            _cosines, _sines, lambda W, Q, K: W.sum(1, keepdim=True).clamp(min=1e-6)
        ),
        "beyond the horizon a row's sum can be negative: divide by it with its sign": _split(
            _cosines, _sines, lambda W, Q, K: W.sum(1, keepdim=True).abs()
        ),
        "you divide each half by a sum of its own: a row's weights are both halves together, and have one sum": (
            lambda Q, K, V, horizon: sum(
                _split(one, lambda a, b: 0 * b)(Q, K, V, horizon) for one in (_cosines, _sines)
            )
        ),
        "your angles are whole numbers times π/2: `//` cuts off what lies between": _features(
            lambda x, angles: x.relu() * (angles // (math.pi / 2) * math.pi / 2).cos(),
            lambda x, angles: x.relu() * (angles // (math.pi / 2) * math.pi / 2).sin(),
        ),
        "you divide by the sums of the columns: for each t, sum over s": _split(
            _cosines, _sines, lambda W, Q, K: W.sum(0)[:, None]
        ),
        "only the cosines are there: cos θ_t · cos θ_s is not cos(θ_t - θ_s)": _features(
            second=lambda x, angles: 0 * x * angles
        ),
    },
)
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
