"""Multi-level attention in its slowest obvious forms: pair by pair, row by row, and with all scores at once."""

import math

import torch

from smalearn.multilevel import multilevel_scores

PAPER = (32, 8, 6, 4, 4, 4, 4, 2)


def loop_scores(Q, K, ranks, block_lens):
    """Pair by pair and level by level: the definition. Instead of a length, a level may have a number per token."""
    length = Q.shape[0]
    blocks = [[i // x for i in range(length)] if isinstance(x, int) else x.tolist() for x in block_lens]
    S = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        for j in range(length):
            start = 0
            for rank, number in zip(ranks, blocks, strict=True):
                if number[i] == number[j]:
                    S[i, j] += Q[i, start : start + rank].double() @ K[j, start : start + rank].double()
                start += rank
    return S


def loop(Q, K, V, ranks, block_lens, causal=True, bias=None):
    """Row by row, with Python's exp."""
    S = loop_scores(Q, K, ranks, block_lens) + (0 if bias is None else bias.double())
    rows = []
    for i in range(len(Q)):
        sources = range(i + 1 if causal else len(Q))
        highest = max(S[i, j].item() for j in sources)
        weights = [math.exp(S[i, j].item() - highest) for j in sources]
        rows.append(sum(w * V[j].double() for w, j in zip(weights, sources, strict=True)) / sum(weights))
    return torch.stack(rows)


def dense(Q, K, V, ranks, block_lens, causal=True, bias=None):
    """softmax(S + bias) V with all of S."""
    S = multilevel_scores(Q, K, ranks, block_lens)
    S = S if bias is None else S + bias
    future = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1)
    return (S.masked_fill(future, -math.inf) if causal else S).softmax(-1) @ V


def windowed(Q, K, V, window, causal=False, since=0):
    """Every score, -∞ where the window does not reach, and for keys before `since`, a number of each query."""
    i = torch.arange(K.shape[-2])
    seen = (i[:, None] - i).abs() <= window
    if causal:
        seen &= i[:, None] >= i
    seen = seen[K.shape[-2] - Q.shape[-2] :] & (i >= torch.as_tensor(since)[..., None])
    scores = (Q @ K.mT).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ V
