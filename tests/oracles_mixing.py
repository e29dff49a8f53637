"""Attention and state space models in their slowest obvious forms, which broadcast and which autograd differentiates.

Nothing here uses the package.
"""

import math

import torch


def attention(Q, K, V, weight):
    """Y_t = Σ_s w[t, s] V_s / Σ_s w[t, s], where `weight(score, t, s)` is w of one pair."""
    return normalised(pairs(Q, K, weight), V)


def pairs(Q, K, weight):
    """All w[t, s], from the scores Q_t · K_s."""
    rows = []
    for t in range(Q.shape[-2]):
        scores = (Q[..., t : t + 1, :] * K).sum(-1)
        rows.append(torch.stack([weight(scores[..., s], t, s) for s in range(K.shape[-2])], -1))
    return torch.stack(rows, -2) if rows else Q @ K.mT


def normalised(weights, V):
    return weights @ V / weights.sum(-1, keepdim=True)


def softmax(Q, K, V):
    return attention(Q, K, V, lambda score, t, s: score.exp())


def causal_softmax(Q, K, V):
    return attention(Q, K, V, lambda score, t, s: score.exp() * (s <= t))


def windowed(window, ahead=0):
    return lambda Q, K, V: attention(Q, K, V, lambda score, t, s: score.exp() * (-ahead <= t - s <= window))


def window_of_scores(window):
    """Masked attention, without a softmax, to so many tokens before one's own."""
    return lambda Q, K, V: pairs(Q, K, lambda score, t, s: score * (0 <= t - s <= window)) @ V


def elu_plus_one(Q, K, V):
    """Causal kernel attention with φ(x) = elu(x) + 1."""
    Q, K = (torch.where(x > 0, x + 1, x.exp()) for x in (Q, K))
    return attention(Q, K, V, lambda score, t, s: score * (s <= t))


def under(L, Q, K, V):
    """Structured masked attention, Y_t = Σ_s L[t, s] (Q_t · K_s) V_s, which no sum divides."""
    return pairs(Q, K, lambda score, t, s: score * L[t, s]) @ V


def masked(Q, K, V, log_a):
    """The same with the decays multiplied out."""
    return pairs(Q, K, lambda score, t, s: score * product(log_a, t, s)) @ V


def product(log_a, t, s):
    """The decay between two tokens: the product of a_k for s < k ≤ t, 0 if s > t."""
    return log_a[..., s + 1 : t + 1].exp().prod(-1) if s <= t else torch.zeros_like(log_a[..., 0])


def log_linear(Q, K, V, log_a, level_weights):
    """Every pair with the weight of the level at which a binary tree joins its tokens."""
    return (
        pairs(Q, K, lambda score, t, s: score * product(log_a, t, s) * level_weights[..., t, (t ^ s).bit_length()]) @ V
    )


def multilevel(ranks, block_lens):
    """Causal softmax of scores to which a level adds where both tokens are in one block of it."""

    def loop(Q, K, V, bias=0):
        scores, levels = 0, zip(Q.split(ranks, -1), K.split(ranks, -1), block_lens, strict=True)
        for q, k, size in levels:
            scores = scores + pairs(q, k, lambda score, t, s, size=size: score * (t // size == s // size))
        future = torch.ones(Q.shape[-2], Q.shape[-2], dtype=torch.bool).triu(1)
        return (scores + bias).masked_fill(future, -math.inf).softmax(-1) @ V

    return loop


def ssm(X, A, B, C, initial_state=None):
    """(Y, state after the last token) for A of axes (..., T), (..., T, N) or (..., T, N, N), token by token."""
    Y, states = walk(X, A, B, C, initial_state)
    return Y, states[-1]


def walk(X, A, B, C, initial_state=None):
    """Y, and the states before the first token and after every one."""
    axes = A.ndim - B.ndim + 1  # of one token
    states, outputs = [X.new_zeros(X.shape[-1], B.shape[-1]) if initial_state is None else initial_state], []
    for t in range(X.shape[-2]):
        a = A.select(A.ndim - 1 - axes, t)
        S = states[-1] @ a.mT if axes == 2 else states[-1] * (a[..., None, :] if axes else a[..., None, None])
        states.append(S + X[..., t, :, None] * B[..., t, None, :])
        outputs.append((states[-1] * C[..., t, None, :]).sum(-1))
    if outputs:
        return torch.stack(outputs, -2), states
    leading = torch.broadcast_shapes(X.shape[:-2], B.shape[:-2], states[0].shape[:-2])
    return X.expand(*leading, *X.shape[-2:]), [states[0].expand(*leading, *states[0].shape[-2:])]


def full(A, state=None):
    """Transitions as matrices (T, N, N), also of their diagonals (T, N) and of the factors of I (T,)."""
    A = A[:, None].expand(-1, state) if A.ndim == 1 else A
    return A if A.ndim == 3 else torch.diag_embed(A)


def transition(A, s, t):
    """A_t ⋯ A_(s+1) as a matrix."""
    result = torch.eye(A.shape[-1], dtype=A.dtype)
    for j in range(s + 1, t + 1):
        result = A[j] @ result
    return result


def matrix(entry, target, source=None):
    """The matrix of what `entry` says of every pair: a tensor, or a number in float64."""
    sources = range(target if source is None else source)
    return torch.stack([torch.stack([as_number(entry(t, s)) for s in sources]) for t in range(target)])


def as_number(x):
    return x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64)


def entries(A, B, C):
    """M[t, s] = C_t^T A_t ⋯ A_(s+1) B_s, one after the other; A as in `full`."""
    A = full(A, B.shape[1])
    return matrix(lambda t, s: C[t] @ transition(A, s, t) @ B[s] if s <= t else B.new_zeros(()), len(B))


def decays(a):
    """The mask of decays multiplied out: L[t, s] = a_t ⋯ a_(s+1), and 0 for s > t."""
    return matrix(lambda t, s: a[s + 1 : t + 1].prod() if s <= t else a.new_zeros(()), len(a))


def scan(x, log_a):
    """H_t = a_t H_{t-1} + x_t."""
    one = torch.ones_like(x[..., :1])
    return ssm(x, log_a.exp(), one, one)[0]


def slots(Q, K, V, log_a):
    """Gated slot attention: two memories of as many rows as log_a has columns, read by a softmax over them."""
    return walk_of_slots(Q, K, V, log_a)[0]


def walk_of_slots(Q, K, V, log_a):
    """Y, and of the slots the weights (T, M), and the keys and values after the last token."""
    keys, values, weights, outputs = 0, 0, [], []
    for t in range(Q.shape[-2]):
        a = log_a[..., t, :, None].exp()
        keys = a * keys + (1 - a) * K[..., t, None, :]
        values = a * values + (1 - a) * V[..., t, None, :]
        weights.append((keys * Q[..., t, None, :]).sum(-1).softmax(-1))
        outputs.append((weights[-1][..., None] * values).sum(-2))
    return (torch.stack(outputs, -2), torch.stack(weights, -2), keys, values) if outputs else (V, 0, 0, 0)


def rope(x, positions=None, base=10000.0):
    """Each pair of neighbouring features as one complex number, turned."""
    places = torch.arange(x.shape[-2]) if positions is None else positions
    turned = []
    for k in range(x.shape[-1] // 2):
        angle = places.double() * base ** (-2 * k / x.shape[-1])
        z = torch.complex(x[..., 2 * k], x[..., 2 * k + 1]) * torch.polar(torch.ones_like(angle), angle)
        turned += [z.real, z.imag]
    return torch.stack(turned, -1)
