"""Softmax attention by tiles of queries: scores above the tiles of the diagonal are never computed."""

from math import prod

import torch
from torch.autograd.function import once_differentiable

from smalearn._checks import ShapeError, check_dtypes, check_shapes

__all__ = ["TILE", "TOGETHER", "tiled_attention"]

TILE = 64
"""Queries at a time under a causal mask: as good as 128 on a CPU, and nearer to half the square."""
TOGETHER = 2**20
"""Weights of as many sequences at a time, at most: what is larger leaves the caches."""


def tiled_attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """Y = softmax(Q K^T) V, with −∞ in place of the scores of later tokens.

    There is no hidden scale: scale Q. The mask stands inside the softmax: a score times 0, as equations (14) and (17)
    have it, would still weigh exp(0) = 1.

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
        T·S·(N + P) multiply-adds for each head, half of it under a causal mask; twice as much for a backward, for
        which T·S weights, or half, are kept. A second derivative is not defined, and raises.
    """
    check_dtypes("tiled_attention", {"Q": Q, "K": K, "V": V})
    heads = _check(Q, K, V, causal)
    K, V = (F.repeat_interleave(heads // F.shape[-3], -3) if F.shape[-3] < heads else F for F in (K, V))
    leading = torch.broadcast_shapes(*(F.shape[:-3] for F in (Q, K, V)))
    Q, K, V = (F.expand(*leading, *F.shape[-3:]).reshape(prod(leading), *F.shape[-3:]) for F in (Q, K, V))
    sequences = max(1, TOGETHER // max(1, heads * Q.shape[-2] * K.shape[-2]))
    parts = zip(*(F.split(sequences) for F in (Q, K, V)), strict=True)
    Y = torch.cat([_Tiles.apply(*part, TILE if causal else 0) for part in parts])
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


class _Tiles(torch.autograd.Function):
    """Q (B, H or 1, T, N), K (B, H, S, N), V (B, H, S, P) to Y (B, H, T, P); a tile of 0: no mask, all in one."""

    @staticmethod
    def forward(ctx, Q, K, V, tile):
        queries, keys, values = _heads(Q, K, V)
        Y, weights = V.new_empty(*V.shape[:2], Q.shape[-2], V.shape[-1]), []
        later = torch.ones(tile, tile, dtype=torch.bool, device=Q.device).triu(1)
        for rows, seen in _tiles(Q.shape[-2], K.shape[-2], tile):
            S = torch.bmm(queries[:, rows], keys[:, seen].mT)
            if tile:
                S[:, :, rows].masked_fill_(later[: S.shape[1], : S.shape[1]], -torch.inf)
            weights.append(torch.softmax(S, -1))
            torch.bmm(weights[-1], values[:, seen], out=Y.flatten(0, 1)[:, rows])
        ctx.tile = tile
        ctx.save_for_backward(Q, K, V, Y, *weights)
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx, dY):
        Q, K, V, Y, *weights = ctx.saved_tensors
        (queries, keys, values), (dY, Y) = _heads(Q, K, V), (F.flatten(0, 1) for F in (dY, Y))
        tiles = list(_tiles(Q.shape[-2], K.shape[-2], ctx.tile))
        dS, dQ, dV = queries.new_empty(*queries.shape[:2], K.shape[-2]), torch.empty_like(Q), torch.zeros_like(values)
        for (rows, seen), P in zip(tiles, weights, strict=True):
            dP = torch.bmm(dY[:, rows], values[:, seen].mT)
            dS[:, rows, seen] = dP.sub_((dY[:, rows] * Y[:, rows]).sum(-1, keepdim=True)).mul_(P)
            dV[:, seen].baddbmm_(P.mT, dY[:, rows])
            _sum_over_heads(dP, keys[:, seen], dQ[:, :, rows])
        dK = K.new_empty(keys.mT.shape)  # its transpose: each tile of keys meets all the queries that saw it, at once
        for columns, _ in tiles:
            rows, columns = (slice(columns.start, None), columns) if ctx.tile else (slice(None), slice(None))
            torch.bmm(queries[:, rows].mT, dS[:, rows, columns], out=dK[:, :, columns])
        return dQ, dK.mT.view(K.shape), dV.view(V.shape), None


def _heads(Q, K, V):
    """Sequences and heads on one axis, the queries for every head: views for one sequence of any strides."""
    return Q.expand(*K.shape[:2], -1, -1).flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1)


def _tiles(target, source, tile):
    """For each tile its queries and the keys that they may see."""
    if not tile:
        return [(slice(0, target), slice(0, source))]
    return [(slice(t, min(t + tile, target)), slice(0, min(t + tile, target))) for t in range(0, target, tile)]


def _sum_over_heads(dS, K, dQ):
    """Write dS K to dQ (B, H or 1, T, N), summed over heads where they share their queries."""
    if dQ.shape[:2] == (1, 1):
        torch.addbmm(dQ[0, 0], dS, K, beta=0, out=dQ[0, 0])  # no head's gradient is stored
    else:
        dQ.copy_(torch.bmm(dS, K).unflatten(0, (len(dQ), -1)).sum_to_size(dQ.shape))
