"""Softmax attention by tiles of queries: scores above the tiles of the diagonal are never computed."""

from math import prod

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_dtypes, check_shapes
from smalearn._operator import Operator

TILE = 64
"""Queries at a time."""
TOGETHER = 2**18
"""Weights of a tile, all its heads together, at most, so that they stay in the caches."""


def tiled_attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """Y = softmax(Q K^T) V, with −∞ in place of the scores of later tokens.

    There is no hidden scale: scale Q. The mask stands inside the softmax: a score times 0, as equations (14) and (17)
    have it, would still weigh exp(0) = 1. A NaN or infinity in V may reach the outputs before it: those of its tile of
    64.

    Args:
        Q: (..., H, T, N) queries; H may be 1 where all heads ask the same.
        K: (..., H, S, N) keys, of any strides; their H may be a divisor of that of Q, for groups of heads.
        V: (..., H, S, P) values, likewise.
        causal: whether token t sees tokens up to t only; then S = T.

    Returns:
        (..., H, T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, heads do not fit, or S is not T under a causal mask.
        ValueError: dtypes or devices differ.

    Cost:
        T·S·(N + P) multiply-adds for each head, and T·S·(3·N + 2·P) for a backward, which keeps no weights and computes
        them again; half of it under a causal mask. Memory for a tile; a second derivative needs T·S weights and more.
    """
    check_dtypes("tiled_attention", {"Q": Q, "K": K, "V": V}, real=True)
    heads = _check(Q, K, V, causal)
    K, V = (F.repeat_interleave(heads // F.shape[-3], -3) if F.shape[-3] < heads else F for F in (K, V))
    leading = broadcast_shapes(*(F.shape[:-3] for F in (Q, K, V)))
    Q, K, V = (F.expand(*leading, *F.shape[-3:]).reshape(prod(leading), *F.shape[-3:]) for F in (Q, K, V))
    (Y,) = TILES(Q, K, V, settings=(causal,))
    return Y.view(*leading, *Y.shape[-3:])


def _check(Q, K, V, causal):
    """The number of heads of a checked call."""
    name, operands = "tiled_attention", {"Q": (Q, "htw"), "K": (K, "hsw"), "V": (V, "hsp")}
    for argument, operand in operands.items():
        check_shapes(name, {argument: operand})
    sizes = check_shapes(name, {argument: (F[..., :1, :, :], axes) for argument, (F, axes) in operands.items()})
    if causal and sizes["s"] != sizes["t"]:
        raise ShapeError(f"{name}: a causal mask needs as many keys as queries, got {sizes['s']} and {sizes['t']}")
    counts = [F.shape[-3] for F in (Q, K, V)]
    if counts[0] not in (1, max(counts)) or any(count < 1 or max(counts) % count for count in counts):
        got = ", ".join(map(str, counts))
        raise ShapeError(f"{name}: heads of K and V must divide those of Q, or Q have one, got {got} of Q, K, V")
    return max(counts)


def _forward(tensors, settings, keep):
    """Y of Q (B, H or 1, T, N), K (B, H, S, N), V (B, H, S, P)."""
    Y = _shapes(tensors, settings, keep)
    queries, keys, values = _heads(*tensors)
    for heads, rows, seen in _tiles(queries, keys, settings):
        P = _weights(queries[heads, rows], keys[heads, seen], settings)
        Y[0].flatten(0, 1)[heads, rows] = torch.bmm(P, values[heads, seen])
    return Y


def _shapes(tensors, settings, keep):
    """Memory for Y."""
    Q, _, V = tensors
    return [V.new_empty(*V.shape[:2], Q.shape[-2], V.shape[-1])]


def _backward(gradients, tensors, kept, settings, needs):
    """Gradients of Q, K and V; those of queries that heads share are not yet summed."""
    queries, keys, values = _heads(*tensors)
    dY, Y = (F.flatten(0, 1) for F in (*gradients, *kept))
    dQ, dK, dV = torch.empty_like(queries), torch.zeros_like(keys.mT), torch.zeros_like(values.mT)
    for heads, rows, seen in _tiles(queries, keys, settings):
        q, k, v, dy = queries[heads, rows], keys[heads, seen], values[heads, seen], dY[heads, rows]
        P = _weights(q, k, settings)
        dS = torch.bmm(dy, v.mT).sub_((dy * Y[heads, rows]).sum(-1, keepdim=True)).mul_(P)
        dQ[heads, rows] = torch.bmm(dS, k)
        dK[heads, :, seen] += torch.bmm(q.mT, dS)  # transposed: the fast shape for few columns
        dV[heads, :, seen] += torch.bmm(dy.mT, P)
    return [dx.unflatten(0, tensors[1].shape[:2]) for dx in (dQ, dK.mT, dV.mT)]


def _readable(tensors, settings):
    """Y with all weights."""
    Q, K, V = tensors
    S = Q @ K.mT
    if settings[0]:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1), -torch.inf)
    return (S.softmax(-1) @ V,)


INSTEAD = "softmax(Q K^T) V as you write it"
TILES = Operator("tiled_attention", _forward, _backward, _shapes, _readable, (3, 1), 0, INSTEAD)


def _heads(Q, K, V):
    """Sequences and heads on one axis, the queries for every head: views for one sequence of any strides."""
    return Q.expand(*K.shape[:2], -1, -1).flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1)


def _tiles(queries, keys, settings):
    """For each tile its heads, its queries, and the keys that they may see."""
    length, source = queries.shape[1], keys.shape[1]
    step = max(1, TOGETHER // max(1, TILE * source))
    for head in range(0, len(keys), step):
        for first in range(0, length, TILE):
            end = min(first + TILE, length)
            yield slice(head, head + step), slice(first, end), slice(0, end if settings[0] else source)


def _weights(q, k, settings):
    """Softmax weights of a tile; under a causal mask its last keys are those of its queries."""
    S = torch.bmm(q, k.mT)
    if settings[0]:
        here = S[..., S.shape[2] - S.shape[1] :]
        here.masked_fill_(torch.ones(here.shape[1:], dtype=torch.bool, device=S.device).triu(1), -torch.inf)
    return torch.softmax(S, -1)
