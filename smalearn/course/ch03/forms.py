"""The exercises of chapter 03 on the forms of linear attention: running sum, state, chunks."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def _qkv(randn, length, features, head_dim):
    return [randn(length, size) for size in (features, features, head_dim)]


def _turned(x):
    """(T, 2) vectors turned by a right angle: row by row orthogonal to x."""
    return torch.stack([-x[:, 1], x[:, 0]], 1)


def _double_loop(Q, K, V):
    """Y_t = Σ_{s ≤ t} (Q_t · K_s) V_s, one pair after the other."""
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


# --------------------------------------------------------------------------------------------- 3.1 a running sum


def _running_cases(randn):
    for length, features, head_dim in [(1, 1, 1), (1, 3, 2), (4, 2, 3), (9, 3, 2)]:
        yield tuple(_qkv(randn, length, features, head_dim))
    Q, _, V = _qkv(randn, 5, 2, 3)
    yield Q, _turned(Q), V


def _read(Q, H):
    return torch.einsum("tpn,tn->tp", H, Q)


def _outer(K, V):
    return V[:, :, None] * K[:, None, :]


@exercise(
    "3.1",
    "One running sum",
    claim="000:eq14",
    level=1,
    minutes=8,
    cases=_running_cases,
    oracle=_double_loop,
    way=Way(case=lambda randn, length: tuple(randn(length, 2) for _ in "QKV"), memory=1, loops=0),
    wrong={
        "this is Q (KᵀV): every query reads the sum over ALL tokens. Each needs the "
        "state of its own time": lambda Q, K, V: Q @ (K.mT @ V),
        "KᵀV is (N, P) and has no time axis left: you summed along the features. Sum the outer products of the "
        "tokens, before time is summed away": lambda Q, K, V: Q @ (K.mT @ V).cumsum(0),
        "each query reads the state before its own token was written; the causal mask has "
        "ones on the diagonal": lambda Q, K, V: _read(Q, _outer(K, V).cumsum(0) - _outer(K, V)),
        "your sum runs from the end: token t reads tokens t and later": lambda Q, K, V: _read(
            Q, _outer(K, V).flip(0).cumsum(0).flip(0)
        ),
        "you sum after reading: each value was weighed by its own query, (Q_s · K_s) V_s. Sum first; then "
        "query t reads the sum": lambda Q, K, V: ((Q * K).sum(-1, keepdim=True) * V).cumsum(0),
        **{
            f"your running sum goes along axis {axis} of the (T, P, N) outer products: time is axis 0": (
                lambda Q, K, V, axis=axis: _read(Q, _outer(K, V).cumsum(axis))
            )
            for axis in (1, 2)
        },
        "you divide by the number of tokens read: no mean is asked for": lambda Q, K, V: (
            _double_loop(Q, K, V) / torch.arange(1, len(Q) + 1, dtype=Q.dtype)[:, None]
        ),
        "you divide by the sum of the weights: there is no normaliser here": lambda Q, K, V: (
            _read(Q, _outer(K, V).cumsum(0)) / (Q * K.cumsum(0)).sum(-1, keepdim=True)
        ),
        "you sum the keys alone, and every key meets the value of the reading token: sum the outer products": (
            lambda Q, K, V: (Q * K.cumsum(0)).sum(-1, keepdim=True) * V
        ),
        "you sum keys and values separately: then every key meets every value. Take the outer products first, "
        "so that each value stays with its own key": lambda Q, K, V: _read(Q, _outer(K.cumsum(0), V.cumsum(0))),
    },
)
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


# --------------------------------------------------------------------------------- 3.2 the normaliser rides along


def _decode_cases(randn):
    for length in (1, 3):  # all weights are 1
        yield *torch.ones(2, length, 1, dtype=torch.float64), randn(length, 2)
    for length, features, head_dim in [(1, 3, 2), (4, 2, 3), (8, 3, 2)]:
        Q, K, V = _qkv(randn, length, features, head_dim)
        Q, K = Q.exp(), K.exp()
        below_1 = length == 4  # sums of weights below 1, the first one at least
        yield Q / (2 * (Q @ K.mT).max() if below_1 else 1), K, V


def _divided(by):
    """Linear attention divided by `by(Q, K)`, a number for each token."""
    return lambda Q, K, V: running_attention(Q, K, V) / by(Q, K)[:, None]


def _by_last_value(Q, K, V):
    Y = running_attention(*(torch.cat([x, torch.ones_like(x[:, :1])], 1) for x in (Q, K)), V)
    return Y / Y[:, -1:]


def _late(Q, K, V):
    """What is read before the token is written; the first token reads nothing."""
    later = _read(Q[1:], _outer(K, V).cumsum(0)[:-1]) / (Q[1:] * K.cumsum(0)[:-1]).sum(-1, keepdim=True)
    return torch.cat([torch.zeros_like(V[:1]), later])


def _dividing(Q, K, V):
    """A decoder that goes on with the divided state."""
    state, rows = torch.zeros(V.shape[1] + 1, K.shape[1], dtype=V.dtype), []
    for q, k, v in zip(Q, K, V, strict=True):
        state = state + torch.outer(torch.cat([v, v.new_ones(1)]), k)
        rows.append((state @ q)[:-1] / (state @ q)[-1])
        state = state / (state @ q)[-1]
    return torch.stack(rows)


@exercise(
    "3.2",
    "The normaliser rides along",
    claim="002:rnn-form",
    level=1,
    minutes=10,
    cases=_decode_cases,
    oracle=lambda Q, K, V: torch.stack(
        [(K[: t + 1] @ Q[t]) @ V[: t + 1] / (K[: t + 1] @ Q[t]).sum() for t in range(len(Q))]
    ),
    way=Way(case=lambda randn, length: tuple(randn(length, 2).abs() for _ in "QKV"), memory=1, loops=1),
    wrong={
        "the division is missing: the weights of a row must sum to 1": running_attention,
        "you divide by the number of tokens: right only if all weights are 1. The sum of the weights depends "
        "on the query": _divided(lambda Q, K: torch.arange(1, len(Q) + 1, dtype=Q.dtype)),
        "you divide by the weight of the present token alone: the ones must be added up as the values are": _divided(
            lambda Q, K: (Q * K).sum(-1)
        ),
        "your normaliser knows the future: it adds up the keys of all tokens, not of those read so far": _divided(
            lambda Q, K: Q @ K.sum(0)
        ),
        "your sum of keys is the first key throughout: every token must add its own": _divided(lambda Q, K: Q @ K[0]),
        "you divide by the sum of what is read: the weights are to sum to 1, not the values": lambda Q, K, V: (
            running_attention(Q, K, V) / running_attention(Q, K, V).sum(-1, keepdim=True)
        ),
        "you divide by the sum of the keys: the query must read that row of the state too": _divided(
            lambda Q, K: K.cumsum(0).sum(-1)
        ),
        "a sum of weights below 1 is raised to 1: divide by the sum as it is": _divided(
            lambda Q, K: (Q * K.cumsum(0)).sum(-1).clamp(min=1)
        ),
        "each token reads the state before its own was written: write first, then read": _late,
        "the 1 stands at the end of queries and keys, and you divide by the last value: the 1 belongs to the values": (
            _by_last_value
        ),
        "you divide the state itself at every token: divide what is read, and keep the state as it is": _dividing,
        "each token overwrites the state, so that you read its own value back: add the outer product to the "
        "state instead": lambda Q, K, V: V.clone(),
        "the 1 stands in front of the value, and you divide by the last entry: that is a sum of values. Divide by "
        "the entry in which you put the 1": lambda Q, K, V: (
            running_attention(Q, K, torch.cat([torch.ones_like(V[:, :1]), V[:, :-1]], 1))
            / running_attention(Q, K, V)[:, -1:]
        ),
        "the 1 is the last entry of your value, and you divide by the first": lambda Q, K, V: (
            running_attention(Q, K, torch.cat([V[:, 1:], torch.ones_like(V[:, :1])], 1))
            / running_attention(Q, K, V)[:, :1]
        ),
        "every query reads all tokens, later ones too: a decoder has read those up to its own": lambda Q, K, V: (
            (Q @ K.mT) @ V / (Q @ K.mT).sum(1, keepdim=True)
        ),
        "you divide the state, entry by entry, before the query reads: read both, then divide": lambda Q, K, V: (
            torch.einsum("tn,tpn->tp", Q, torch.einsum("tp,tn->tpn", V, K).cumsum(0) / K.cumsum(0)[:, None])
        ),
        "you take a softmax: the weights are the dot products Q_t · K_s themselves": lambda Q, K, V: (
            (Q @ K.mT).masked_fill(torch.ones(len(Q), len(Q)).triu(1) > 0, -torch.inf).softmax(-1) @ V
        ),
    },
)
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
