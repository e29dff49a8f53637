"""The exercises of chapter 03 on the forms of linear attention: running sum, state, chunks."""

import torch

from smalearn.course.exercises.core import Exercise, Mutant, register


def _randn(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _qkv(generator, length, features, head_dim):
    return [_randn(generator, length, size) for size in (features, features, head_dim)]


def _turned(x):
    """(T, 2) vectors turned by a right angle: row by row orthogonal to x."""
    return torch.stack([-x[:, 1], x[:, 0]], 1)


def _double_loop(Q, K, V):
    """Y_t = Σ_{s ≤ t} (Q_t · K_s) V_s, one pair after the other."""
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


# --------------------------------------------------------------------------------------------- 3.1 a running sum


def running_attention(Q, K, V):
    """Causal linear attention Y_t = H_t Q_t by one running sum over time; no (T, T) matrix, no loop."""
    Z = V[:, :, None] * K[:, None, :]
    H = Z.cumsum(0)
    return torch.einsum("tpn,tn->tp", H, Q)


def _running_cases(generator):
    for length, features, head_dim in [(1, 1, 1), (1, 3, 2), (4, 2, 3), (9, 3, 2)]:
        yield tuple(_qkv(generator, length, features, head_dim))
    Q, _, V = _qkv(generator, 5, 2, 3)
    yield Q, _turned(Q), V


def _read(Q, H):
    return torch.einsum("tpn,tn->tp", H, Q)


def _outer(K, V):
    return V[:, :, None] * K[:, None, :]


register(
    Exercise(
        id="3.1",
        title="One running sum",
        statement="Compute causal linear attention (no softmax) by a running sum of outer products.",
        oracle=_double_loop,
        cases=_running_cases,
        solution=running_attention,
        hints=(
            "Steps (15a), (15b), (15c): outer products, a sum over the past, a product with the query. Which axis is "
            "time in each?",
            "`Z = V[:, :, None] * K[:, None, :]` is (T, P, N), one outer product for each token. Axis 0 is time.",
            'After `H = Z.cumsum(0)`, each query reads its own state: `torch.einsum("tpn,tn->tp", H, Q)`.',
        ),
        mutants=(
            Mutant(
                "no mask",
                lambda Q, K, V: Q @ (K.mT @ V),
                "this is Q (KᵀV): every query reads the sum over ALL tokens. Each needs the state of its own time",
            ),
            Mutant(
                "(14) to the letter",
                lambda Q, K, V: Q @ (K.mT @ V).cumsum(0),
                "KᵀV is (N, P) and has no time axis left: you summed along the features. Sum the outer products of the "
                "tokens, before time is summed away",
            ),
            Mutant(
                "one token late",
                lambda Q, K, V: _read(Q, _outer(K, V).cumsum(0) - _outer(K, V)),
                "each query reads the state before its own token was written; the causal mask has ones on the diagonal",
            ),
            Mutant(
                "the future",
                lambda Q, K, V: _read(Q, _outer(K, V).flip(0).cumsum(0).flip(0)),
                "your sum runs from the end: token t reads tokens t and later",
            ),
            Mutant(
                "read, then summed",
                lambda Q, K, V: ((Q * K).sum(-1, keepdim=True) * V).cumsum(0),
                "you sum after reading: each value was weighed by its own query, (Q_s · K_s) V_s. Sum first; then "
                "query t reads the sum",
            ),
            *(
                Mutant(
                    f"summed along axis {axis}",
                    lambda Q, K, V, axis=axis: _read(Q, _outer(K, V).cumsum(axis)),
                    f"your running sum goes along axis {axis} of the (T, P, N) outer products: time is axis 0",
                )
                for axis in (1, 2)
            ),
            Mutant(
                "keys and values summed apart",
                lambda Q, K, V: _read(Q, _outer(K.cumsum(0), V.cumsum(0))),
                "you sum keys and values separately: then every key meets every value. Take the outer products first, "
                "so that each value stays with its own key",
            ),
        ),
        claim="000:eq14",
        difficulty=1,
        minutes=8,
        lines=3,
    )
)

# --------------------------------------------------------------------------------- 3.2 the normaliser rides along


def decode(Q, K, V):
    """Normalised linear attention, token by token: the state's last row adds up the keys."""
    state = torch.zeros(V.shape[1] + 1, K.shape[1], dtype=V.dtype)
    Y = torch.zeros_like(V)
    for t in range(len(Q)):
        state = state + torch.outer(torch.cat([V[t], V.new_ones(1)]), K[t])
        y = state @ Q[t]
        Y[t] = y[:-1] / y[-1]
    return Y


def _decode_cases(generator):
    for length in (1, 3):  # all weights are 1
        yield *torch.ones(2, length, 1, dtype=torch.float64), _randn(generator, length, 2)
    for length, features, head_dim in [(1, 3, 2), (4, 2, 3), (8, 3, 2)]:
        Q, K, V = _qkv(generator, length, features, head_dim)
        yield Q.exp(), K.exp(), V


def _divided(by):
    """Linear attention divided by `by(Q, K)`, a number for each token."""
    return lambda Q, K, V: running_attention(Q, K, V) / by(Q, K)[:, None]


register(
    Exercise(
        id="3.2",
        title="The normaliser rides along",
        statement="Go through the tokens with a state of P + 1 rows; divide what you read by its last entry.",
        oracle=lambda Q, K, V: torch.stack(
            [(K[: t + 1] @ Q[t]) @ V[: t + 1] / (K[: t + 1] @ Q[t]).sum() for t in range(len(Q))]
        ),
        cases=_decode_cases,
        solution=decode,
        hints=(
            "The normaliser is the same attention on a value of 1. So what is the value of a token, with the 1 added?",
            "`torch.cat([V[t], V.new_ones(1)])` is the longer value: its outer product with `K[t]` is added to a state "
            "(P + 1, N).",
            "`y = state @ Q[t]`, after the token is written; the output is `y[:-1] / y[-1]`.",
        ),
        mutants=(
            Mutant(
                "not divided",
                running_attention,
                "the division is missing: the weights of a row must sum to 1",
            ),
            Mutant(
                "divided by the count",
                _divided(lambda Q, K: torch.arange(1, len(Q) + 1, dtype=Q.dtype)),
                "you divide by the number of tokens: right only if all weights are 1. The sum of the weights depends "
                "on the query",
            ),
            Mutant(
                "only the last weight",
                _divided(lambda Q, K: (Q * K).sum(-1)),
                "you divide by the weight of the present token alone: the ones must be added up as the values are",
            ),
            Mutant(
                "all weights",
                _divided(lambda Q, K: Q @ K.sum(0)),
                "your normaliser knows the future: it adds up the keys of all tokens, not of those read so far",
            ),
            Mutant(
                "without the query",
                _divided(lambda Q, K: K.cumsum(0).sum(-1)),
                "you divide by the sum of the keys: the query must read that row of the state too",
            ),
            Mutant(
                "no accumulation",
                lambda Q, K, V: V.clone(),
                "each token overwrites the state, so that you read its own value back: add the outer product to the "
                "state instead",
            ),
        ),
        claim="002:rnn-form",
        difficulty=1,
        minutes=10,
        lines=7,
    )
)

# ----------------------------------------------------------------------------------------------- 3.4 chunk by chunk


def chunked_attention(Q, K, V, chunk_len):
    """Causal linear attention, quadratic inside chunks, with a state between them."""
    state = torch.zeros(V.shape[1], K.shape[1], dtype=V.dtype)
    outputs = []
    for q, k, v in zip(Q.split(chunk_len), K.split(chunk_len), V.split(chunk_len), strict=True):
        outputs.append((q @ k.mT).tril() @ v + q @ state.mT)
        state = state + v.mT @ k
    return torch.cat(outputs)


def _chunk_cases(generator):
    for length, features, head_dim, chunk_len in [(1, 1, 1, 1), (5, 2, 3, 8), (6, 3, 2, 3), (7, 2, 2, 3), (8, 2, 3, 2)]:
        yield *_qkv(generator, length, features, head_dim), chunk_len
    Q, _, V = _qkv(generator, 4, 2, 3)
    yield Q, _turned(Q), V, 1


def _last_lost(Q, K, V, chunk_len):
    """Attention in whole chunks only; zeros for the tokens that are left over."""
    Y = _double_loop(Q, K, V)
    Y[len(Q) // chunk_len * chunk_len :] = 0
    return Y


def _with_pairs(count):
    """Linear attention that counts the pair (t, s) `count(same chunk, chunks between, s ≤ t)` times."""

    def attention(Q, K, V, chunk_len):
        time = torch.arange(len(Q))
        chunk = time // chunk_len
        between = chunk[:, None] - chunk
        return (count(between == 0, between, time[:, None] >= time).to(Q.dtype) * (Q @ K.mT)) @ V

    return attention


register(
    Exercise(
        id="3.4",
        title="Chunk by chunk",
        statement="Compute causal linear attention in chunks; the last chunk may be shorter.",
        oracle=lambda Q, K, V, chunk_len: _double_loop(Q, K, V),
        cases=_chunk_cases,
        solution=chunked_attention,
        hints=(
            "Each pair s ≤ t must be counted once: inside a chunk by scores, across chunks through the state.",
            "`Q.split(chunk_len)` gives the chunks. Inside one: `(q @ k.mT).tril() @ v`.",
            "Add `q @ state.mT`, what the earlier chunks say. Only then write the whole chunk: "
            "`state = state + v.mT @ k`.",
        ),
        mutants=(
            Mutant(
                "no state",
                _with_pairs(lambda same, between, causal: same & causal),
                "the chunks know nothing of one another: the state of the earlier chunks is never read",
            ),
            Mutant(
                "no mask inside",
                _with_pairs(lambda same, between, causal: between >= 0),
                "inside a chunk a token sees the tokens after it: the scores of a chunk need the causal mask",
            ),
            Mutant(
                "own chunk twice",
                _with_pairs(lambda same, between, causal: (between >= 0) + (same & causal).long()),
                "the state already holds the present chunk when it is read: its tokens count twice. Read, then write",
            ),
            Mutant(
                "only the chunk before",
                _with_pairs(lambda same, between, causal: causal & (between <= 1)),
                "the state holds only the last chunk: add to it, do not replace it",
            ),
            Mutant(
                "the rest left out",
                _last_lost,
                "the last, shorter chunk is lost: after the whole chunks, T mod c tokens may be left",
            ),
        ),
        claim="002:chunkwise",
        difficulty=2,
        minutes=15,
        lines=6,
    )
)
