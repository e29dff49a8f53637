"""Linear attention in its slowest obvious form, and each model of the catalogue as its own recurrence.

Nothing here uses the package but its random numbers: plain loops over tokens, in the dtype of the arguments,
differentiable by autograd.
"""

import math

import torch

from smalearn.testing import random_tensors


def linear_attention(Q, K, V, log_a=None, state=None):
    """(Y, state after the last token) for any gate, token by token; leading axes broadcast."""
    gate_axes = 1 if log_a is None else log_a.ndim - K.ndim + 2
    log_a = V.new_zeros(V.shape[-2]) if log_a is None else log_a
    state = V.new_zeros(V.shape[-1], K.shape[-1]) if state is None else state
    operands = [(K, 2), (V, 2), (log_a, gate_axes), (state, 2)]
    written = torch.broadcast_shapes(*(x.shape[: x.ndim - axes] for x, axes in operands))
    read = torch.broadcast_shapes(written, Q.shape[:-2])
    Y, _ = each_head(_one_head, read, (Q, 2), *operands)
    _, state = each_head(_one_head, written, (K, 2), *operands)  # whatever is read: queries may have more heads
    return Y, state


def each_head(one_head, leading, *operands):
    """(Y, state) of Q, K, V, others, and a state; each comes with the number of its axes behind the leading ones."""
    expanded = [x.expand(*leading, *x.shape[x.ndim - axes :]) for x, axes in operands]
    if 0 in leading:
        return expanded[2], expanded[-1]
    flat = (x.reshape(math.prod(leading), *x.shape[len(leading) :]) for x in expanded)
    Y, S = map(torch.stack, zip(*(one_head(*head) for head in zip(*flat, strict=True)), strict=True))
    return Y.reshape(expanded[2].shape), S.reshape(expanded[-1].shape)


def _one_head(Q, K, V, log_a, S):
    outputs = []
    for t in range(Q.shape[0]):
        S = log_a[t].exp() * S + torch.outer(V[t], K[t])
        outputs.append(S @ Q[t])
    return torch.stack(outputs) if outputs else V, S


def sum_of_products(Q, K, V, log_a):
    """The unrolled sum with every decay multiplied out, (T, N), (T, N), (T, P) and log_a (T, P, N)."""
    Y = torch.zeros_like(V)
    for t in range(len(Q)):
        for s in range(t + 1):
            for p in range(V.shape[1]):
                for n in range(Q.shape[1]):
                    decay = 1.0
                    for k in range(s + 1, t + 1):
                        decay = decay * log_a[k, p, n].exp()
                    Y[t, p] += Q[t, n] * decay * K[s, n] * V[s, p]
    return Y


# One function for each model, on one head, in the model's own words: a state per equation, one token after the other.


def katharopoulos(Q, K, V):
    S, z, Y = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype), torch.zeros(K.shape[1], dtype=V.dtype), []
    for q, k, v in zip(Q, K, V, strict=True):
        S, z = S + torch.outer(k, v), z + k
        Y.append((q @ S) / (q @ z))
    return torch.stack(Y)


def retnet(Q, K, V, gamma, theta):
    half = Q.shape[1] // 2
    Q, K = (torch.complex(x[:, :half], x[:, half:]) for x in (Q, K))
    S, Y = torch.zeros(V.shape[1], half, dtype=Q.dtype), []
    for t in range(len(Q)):
        rotation = torch.polar(torch.ones_like(theta), t * theta)
        S = gamma * S + torch.outer(V[t].to(Q.dtype), (K[t] * rotation).conj())
        Y.append((S @ (Q[t] * rotation)).real)
    return torch.stack(Y)


def gated_retnet(Q, K, V, z):
    S, Y = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        S = (1 / (1 + torch.exp(-z[t]))) ** (1 / 16) * S + torch.outer(K[t], V[t])
        Y.append(Q[t] @ S)
    return torch.stack(Y)


def gated_rfa(Q, K, V, z):
    S, norm, Y = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype), torch.zeros(K.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        g, write = 1 / (1 + torch.exp(-z[t])), 1 / (1 + torch.exp(z[t]))  # 1 − g, with all digits of a small one
        S = g * S + write * torch.outer(K[t], V[t])
        norm = g * norm + write * K[t]
        Y.append((Q[t] @ S) / (Q[t] @ norm))
    return torch.stack(Y)


def mamba2(C, B, X, z, a):
    h, Y = torch.zeros(X.shape[1], B.shape[1], dtype=X.dtype), []
    for t in range(len(X)):
        dt = torch.log1p(torch.exp(z[t]))
        h = torch.exp(dt * -torch.exp(a)) * h + torch.outer(X[t], dt * B[t])
        Y.append(h @ C[t])
    return torch.stack(Y)


def mlstm(Q, K, V, i, f):
    """Without stabiliser, as the paper defines it."""
    C, n, Y = torch.zeros(V.shape[1], K.shape[1], dtype=V.dtype), torch.zeros(K.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        keep, take = 1 / (1 + torch.exp(-f[t])), torch.exp(i[t])
        C = keep * C + take * torch.outer(V[t], K[t])
        n = keep * n + take * K[t]
        Y.append(C @ Q[t] / max(abs(n @ Q[t]), torch.tensor(1.0, dtype=V.dtype)))
    return torch.stack(Y)


def gla(Q, K, V, z):
    S, Y = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        alpha = (1 / (1 + torch.exp(-z[t]))) ** (1 / 16)
        S = torch.diag(alpha) @ S + torch.outer(K[t], V[t])
        Y.append(Q[t] @ S)
    return torch.stack(Y)


def hgrn2(o, i, z, b):
    S, Y = torch.zeros(z.shape[1], i.shape[1], dtype=i.dtype), []
    for t in range(len(i)):
        f, write = b[0] + (1 - b[0]) / (1 + torch.exp(-z[t])), (1 - b[0]) / (1 + torch.exp(z[t]))  # 1 − f
        S = torch.diag(f) @ S + torch.outer(write, i[t])
        Y.append(o[t] @ S)
    return torch.stack(Y)


def rwkv6(R, K, V, z, u):
    S, Y = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype), []
    for t in range(len(R)):
        kv = torch.outer(K[t], V[t])
        Y.append(R[t] @ (S + torch.diag(u[0]) @ kv))
        S = torch.diag(torch.exp(-torch.exp(z[t]))) @ S + kv
    return torch.stack(Y)


def gateloop(Q, K, V, z, phi):
    h, Y = torch.zeros(K.shape[1], V.shape[1], dtype=torch.complex128), []
    for t in range(len(Q)):
        a = torch.polar(1 / (1 + torch.exp(-z[t])), phi[t])
        h = a[:, None] * h + torch.outer(K[t], V[t])
        Y.append(Q[t] @ h.real)
    return torch.stack(Y)


def mamba(C, B, X, z, a):
    h, Y = torch.zeros(X.shape[1], B.shape[1], dtype=X.dtype), []
    for t in range(len(X)):
        h, y = h.clone(), torch.zeros(X.shape[1], dtype=X.dtype)
        for p in range(X.shape[1]):
            dt = torch.log1p(torch.exp(z[t, p]))
            h[p] = torch.exp(dt * -torch.exp(a[p])) * h[p] + dt * B[t] * X[t, p]
            y[p] = h[p] @ C[t]
        Y.append(y)
    return torch.stack(Y)


# Random inputs of every model: (its recurrence, [(shape for a length, map from random numbers)] of the inputs, rows of
# the state).

N, P = 4, 3
KEYS, VALUES = (lambda T: (T, N)), (lambda T: (T, P))


def per_token(T):
    return (T,)


def positive(x):
    return x.abs() + 0.1


def unchanged(x):
    return x


def decay(x):
    return torch.sigmoid(x)


QKV = [(KEYS, unchanged), (KEYS, unchanged), (VALUES, unchanged)]
POSITIVE = [(KEYS, positive), (KEYS, positive), (VALUES, unchanged)]
CASES = {
    "linear attention": (katharopoulos, POSITIVE, P + 1),
    "RetNet": (retnet, [*QKV, (lambda T: (), decay), (lambda T: (N // 2,), unchanged)], P),
    "gated RetNet": (gated_retnet, [*QKV, (per_token, unchanged)], P),
    "gated RFA": (gated_rfa, [*POSITIVE, (per_token, unchanged)], P + 1),
    "Mamba-2": (mamba2, [*QKV, (per_token, unchanged), (lambda T: (), unchanged)], P),
    "mLSTM": (mlstm, [*QKV, (per_token, unchanged), (per_token, unchanged)], P + 1),
    "GLA": (gla, [*QKV, (KEYS, unchanged)], P),
    "HGRN2": (hgrn2, [QKV[0], QKV[2], (KEYS, unchanged), (lambda T: (1, N), decay)], P),
    "RWKV-6": (rwkv6, [*QKV, (KEYS, unchanged), (lambda T: (1, N), unchanged)], P),
    "GateLoop": (gateloop, [*QKV, (KEYS, unchanged), (KEYS, unchanged)], P),
    "Mamba": (mamba, [*QKV, (VALUES, unchanged), (lambda T: (P, N), unchanged)], P),
}


def inputs(name, length, leading=(), seed=0):
    _, makers, _ = CASES[name]
    drawn = random_tensors([(*leading, *shape(length)) for shape, _ in makers], seed=seed)
    return [make(x) for x, (_, make) in zip(drawn, makers, strict=True)]
