"""The exercises of chapter 03 on the forms of linear attention: running sum, state, chunks."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def running_attention(Q, K, V):
    """Causal linear attention Y_t = H_t Q_t by one running sum over time; no (T, T) matrix, no loop.

    Compute causal linear attention (no softmax) by a running sum of outer products.

    Hint: Steps (15a), (15b), (15c): outer products, a sum over the past, a product with the query. Which axis is time
    in each?

    Hint: `Z = V[:, :, None] * K[:, None, :]` is (T, P, N), one outer product for each token. Axis 0 is time.

    Hint: After `H = Z.cumsum(0)`, each query reads its own state: `torch.einsum("tpn,tn->tp", H, Q)`.

    Insight: The running sum is all that a model has to keep while it writes: P·N numbers, however long the text.
    """
    Z = V[:, :, None] * K[:, None, :]
    H = Z.cumsum(0)
    return torch.einsum("tpn,tn->tp", H, Q)


def _qkv(randn, length, features, head_dim):
    return [randn(length, size) for size in (features, features, head_dim)]


def _double_loop(Q, K, V):
    """Y_t = Σ_{s ≤ t} (Q_t · K_s) V_s, one pair after the other."""
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


def _running_cases(randn):
    for length, features, head_dim in [(1, 1, 1), (1, 3, 2), (4, 2, 3), (9, 3, 2)]:
        yield tuple(_qkv(randn, length, features, head_dim))
    Q, _, V = _qkv(randn, 5, 2, 3)
    yield Q, torch.stack([-Q[:, 1], Q[:, 0]], 1), V  # K and Q are orthogonal, row by row


exercise(
    "3.1",
    "One running sum",
    claim="000:eq14",
    level=1,
    minutes=8,
    cases=_running_cases,
    oracle=_double_loop,
    way=Way(case=lambda randn, length: tuple(randn(length, 2) for _ in "QKV"), memory=1, loops=0),
    wrong={
        "KᵀV is (N, P) and has no time axis left: you summed along the features. Sum the outer products of the tokens, "
        "before time is summed away": "Z.cumsum(0) → Z.sum(0).cumsum(1).expand(Z.shape)",
        "each query reads the state before its own token was written; "
        "the causal mask has ones on the diagonal": "Z.cumsum(0) → Z.cumsum(0) - Z",
        "you sum after reading: each value was weighed by its own query, (Q_s · K_s) V_s. "
        "Sum first; then query t reads the sum": "Z.cumsum(0) → Z ; H, Q) → H, Q).cumsum(0)",
        "your running sum goes along axis 1 of the (T, P, N) outer products: time is axis 0": "cumsum(0) → cumsum(1)",
        "your running sum goes along axis 2 of the (T, P, N) outer products: time is axis 0": "cumsum(0) → cumsum(2)",
        "you divide by the number of tokens read: "
        "no mean is asked for": "H, Q) → H, Q) / torch.arange(1, len(Q) + 1)[:, None]",
        "you divide by the sum of the weights: "
        "there is no normaliser here": "H, Q) → H, Q) / (Q * K.cumsum(0)).sum(-1, keepdim=True)",
        "you sum the keys alone, and every key meets the value of the reading token: "
        "sum the outer products": "K[ → K.cumsum(0)[ ; Z.cumsum(0) → Z",
        "you sum keys and values separately: then every key meets every value. Take the outer products first, "
        "so that each value stays with its own key": "V[ → V.cumsum(0)[ ; K[ → K.cumsum(0)[ ; Z.cumsum(0) → Z",
    },
)(running_attention)


def decode(Q, K, V):
    """Normalised linear attention, token by token: the state's last row adds up the keys.

    Go through the tokens; a state of P + 1 rows is all that must be kept. Divide what you read by its last entry.

    Hint: The normaliser is the same attention on a value of 1. So what is the value of a token, with the 1 added?

    Hint: `torch.cat([V[t], V.new_ones(1)])` is the longer value: its outer product with `K[t]` is added to a state (P +
    1, N).

    Hint: `y = state @ Q[t]`, after the token is written; the output is `y[:-1] / y[-1]`.

    Insight: The denominator is linear attention to values that are all 1, so that any fast form of the one is a fast
    form of both.
    """
    state = torch.zeros(V.shape[1] + 1, K.shape[1], dtype=V.dtype)
    Y = torch.zeros_like(V)
    for t in range(len(Q)):
        state = state + torch.outer(torch.cat([V[t], V.new_ones(1)]), K[t])
        y = state @ Q[t]
        Y[t] = y[:-1] / y[-1]
    return Y


def _decode_cases(randn):
    for length in (1, 3):  # all weights are 1
        yield *torch.ones(2, length, 1, dtype=torch.float64), randn(length, 2)
    for length, features, head_dim in [(1, 3, 2), (4, 2, 3), (8, 3, 2)]:
        Q, K, V = _qkv(randn, length, features, head_dim)
        Q, K = Q.exp(), K.exp()
        below_1 = length == 4  # sums of weights below 1, the first one at least
        yield Q / (2 * (Q @ K.mT).max() if below_1 else 1), K, V


exercise(
    "3.2",
    "The normaliser rides along",
    claim="002:rnn-form",
    level=1,
    minutes=10,
    cases=_decode_cases,
    oracle=lambda Q, K, V: torch.stack(
        [(K[: t + 1] @ Q[t]) @ V[: t + 1] / (K[: t + 1] @ Q[t]).sum() for t in range(len(Q))]
    ),
    way=Way(
        # many features: to read all keys again, T²·N, shows beside the writing of rows into Y, T²·P
        case=lambda randn, length: tuple(randn(length, size).abs() for size in (16, 16, 2)),
        memory=1,
        work=1,
        loops=1,
        forbids=("torch.cumsum", "torch.Tensor.cumsum"),  # all states at once
    ),
    wrong={
        "the division is missing: the weights of a row must sum to 1": " / y[-1] → ",
        "you divide by the number of tokens: right only if all weights are 1. "
        "The sum of the weights depends on the query": "y[-1] → (t + 1)",
        "you divide by the weight of the present token alone: "
        "the ones must be added up as the values are": "y[-1] → (Q[t] @ K[t])",
        "your normaliser knows the future: "
        "it adds up the keys of all tokens, not of those read so far": "y[-1] → (Q[t] @ K.sum(0))",
        "your sum of keys is the first key throughout: every token must add its own": "y[-1] → (Q[t] @ K[0])",
        "you divide by the sum of what is read: the weights are to sum to 1, not the values": "y[-1] → y[:-1].sum()",
        "you divide by the sum of the keys: the query must read that row of the state too": "y[-1] → state[-1].sum()",
        "a sum of weights below 1 is raised to 1: divide by the sum as it is": "y[-1] → y[-1].clamp(min=1)",
        "the first token reads an empty state, 0/0: write first, then read": "state = state + → "
        "before, state = state, state + ; state @ → before @",
        "the 1 stands at the end of queries and keys, and you divide by the last value: "
        "the 1 belongs to the values": "state @ Q[t] → (state @ Q[t])[:-1] + V[: t + 1].sum(0) ; y[:-1] → y",
        "you divide the state itself at every token: "
        "divide what is read, and keep the state as it is": "/ y[-1] → / y[-1]\n        state = state / y[-1]",
        "the 1 stands in front of the value, and you divide by the last entry: that is a sum of values. "
        "Divide by the entry in which you put the 1": "[V[t], V.new_ones(1)] → [V.new_ones(1), V[t]]",
        "the 1 is the last entry of your value, and you divide by the first": "y[:-1] / y[-1] → y[1:] / y[0]",
        "every query reads all tokens, later ones too: a "
        "decoder has read those up to its own": "state @ Q[t] → torch.cat([V, V.new_ones(len(V), 1)], 1).mT @ K @ Q[t]",
        "you take a softmax: the weights are "
        "the dot products Q_t · K_s themselves": "y[:-1] / y[-1] → (K[: t + 1] @ Q[t]).softmax(0) @ V[: t + 1]",
    },
)(decode)
