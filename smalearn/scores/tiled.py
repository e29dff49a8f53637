"""Softmax attention by tiles of queries: scores above the tiles of the diagonal are never computed."""

from math import prod

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_dtypes, check_shapes
from smalearn._operator import Operator

__all__ = ["TILE", "TOGETHER", "tiled_attention"]

TILE = 64
"""Queries at a time under a causal mask: 32 takes 0.95, 128 takes 1.05 times as long (one thread of an AMD EPYC)."""
TOGETHER = 2**20
"""Weights of as many sequences at a time, at most, so that they stay in the caches; half and double take 0.99."""


def tiled_attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """Y = softmax(Q K^T) V, with −∞ in place of the scores of later tokens.

    There is no hidden scale: scale Q. The mask stands inside the softmax: a score times 0, as equations (14) and (17)
    have it, would still weigh exp(0) = 1. A NaN or infinity in V may reach the outputs before it: those of its tile of
    64, or all where PyTorch's own attention computes.

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
        which T·S weights, or half, are kept. On a CPU PyTorch's own attention computes what it can, N = P; it keeps no
        weights. A second derivative needs T·S weights and more.
    """
    check_dtypes("tiled_attention", {"Q": Q, "K": K, "V": V}, real=True)
    heads = _check(Q, K, V, causal)
    K, V = (F.repeat_interleave(heads // F.shape[-3], -3) if F.shape[-3] < heads else F for F in (K, V))
    leading = broadcast_shapes(*(F.shape[:-3] for F in (Q, K, V)))
    Q, K, V = (F.expand(*leading, *F.shape[-3:]).reshape(prod(leading), *F.shape[-3:]) for F in (Q, K, V))
    if Q.device.type == "cpu" and Q.shape[-1] == V.shape[-1] and Q.numel() and K.numel():
        (Y,) = FUSED(Q.expand(*K.shape[:2], *Q.shape[-2:]), K, V, settings=(causal,))
        return Y.view(*leading, *Y.shape[-3:])
    sequences = max(1, TOGETHER // max(1, heads * Q.shape[-2] * K.shape[-2]))
    parts = zip(*(F.split(sequences) for F in (Q, K, V)), strict=True)
    Y = torch.cat([TILES(*part, settings=(causal,))[0] for part in parts])
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


def _tiles_forward(tensors, settings, keep):
    """Y of Q (B, H or 1, T, N), K (B, H, S, N), V (B, H, S, P), and the weights of every tile."""
    Q, K, V = tensors
    queries, keys, values = _heads(Q, K, V)
    Y, weights = V.new_empty(*V.shape[:2], Q.shape[-2], V.shape[-1]), []
    later = torch.ones(TILE, TILE, dtype=torch.bool, device=Q.device).triu(1)
    for rows, seen in _tiles(Q, K, settings):
        S = torch.bmm(queries[:, rows], keys[:, seen].mT)
        if settings[0]:
            S[:, :, rows].masked_fill_(later[: S.shape[1], : S.shape[1]], -torch.inf)
        P = torch.softmax(S, -1)
        weights += [P] if keep else []
        torch.bmm(P, values[:, seen], out=Y.flatten(0, 1)[:, rows])
    return [Y, *weights]


def _tiles_shapes(tensors, settings, keep):
    """Tensors like those of `_tiles_forward`."""
    Q, K, V = tensors
    tiles = _tiles(Q, K, settings) if keep else []
    weights = [Q.new_empty(K.shape[:2].numel(), rows.stop - rows.start, seen.stop) for rows, seen in tiles]
    return [V.new_empty(*V.shape[:2], Q.shape[-2], V.shape[-1]), *weights]


def _tiles_backward(gradients, tensors, kept, settings, needs):
    """Gradients of Q, K and V."""
    (dY,), (Q, K, V), (Y, *weights) = gradients, tensors, kept
    (queries, keys, values), (dY, Y) = _heads(Q, K, V), (F.flatten(0, 1) for F in (dY, Y))
    tiles = _tiles(Q, K, settings)
    dS, dQ, dV = queries.new_empty(*queries.shape[:2], K.shape[-2]), torch.empty_like(Q), torch.zeros_like(values)
    for (rows, seen), P in zip(tiles, weights, strict=True):
        dP = torch.bmm(dY[:, rows], values[:, seen].mT)
        dS[:, rows, seen] = dP.sub_((dY[:, rows] * Y[:, rows]).sum(-1, keepdim=True)).mul_(P)
        dV[:, seen].baddbmm_(P.mT, dY[:, rows])
        _sum_over_heads(dP, keys[:, seen], dQ[:, :, rows])
    dK = K.new_empty(keys.mT.shape)  # its transpose: each tile of keys meets all the queries that saw it, at once
    for columns, _ in tiles:
        rows, columns = (slice(columns.start, None), columns) if settings[0] else (slice(None), slice(None))
        torch.bmm(queries[:, rows].mT, dS[:, rows, columns], out=dK[:, :, columns])
    return [dQ, dK.mT.view(K.shape), dV.view(V.shape)]


def _fused_forward(tensors, settings, keep):
    """Y (B, H, T, P) and log Σ exp S of every row, by PyTorch's attention on a CPU."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    results = attend(*map(_dense_rows, tensors), is_causal=bool(settings[0]), scale=1.0)
    return list(results) if keep else [results[0]]


def _fused_backward(gradients, tensors, kept, settings, needs):
    """Gradients of Q, K and V."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    operands = map(_dense_rows, (*gradients, *tensors, *kept))
    return list(attend(*operands, 0.0, bool(settings[0]), scale=1.0))


def _dense_rows(x):
    """Rows without gaps, which PyTorch's attention takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _readable(tensors, settings):
    """Y with all weights."""
    Q, K, V = tensors
    S = Q @ K.mT
    if settings[0]:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1), -torch.inf)
    return (S.softmax(-1) @ V,)


INSTEAD = "softmax(Q K^T) V as you write it"
TILES = Operator("tiled_attention", _tiles_forward, _tiles_backward, _tiles_shapes, _readable, (3, 1), 0, INSTEAD)
FUSED = Operator("fused_attention", _fused_forward, _fused_backward, _fused_forward, _readable, (3, 1), 0, INSTEAD)


def _heads(Q, K, V):
    """Sequences and heads on one axis, the queries for every head: views for one sequence of any strides."""
    return Q.expand(*K.shape[:2], -1, -1).flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1)


def _tiles(Q, K, settings):
    """For each tile its queries and the keys that they may see."""
    length = Q.shape[-2]
    if not settings[0]:
        return [(slice(0, length), slice(0, K.shape[-2]))]
    return [(slice(t, min(t + TILE, length)), slice(0, min(t + TILE, length))) for t in range(0, length, TILE)]


def _sum_over_heads(dS, K, dQ):
    """Write dS K to dQ (B, H or 1, T, N), summed over heads where they share their queries."""
    if dQ.shape[:2] == (1, 1):
        torch.addbmm(dQ[0, 0], dS, K, beta=0, out=dQ[0, 0])  # no head's gradient is stored
    elif dQ.numel():
        dQ.copy_(torch.bmm(dS, K).unflatten(0, (len(dQ), -1)).sum_to_size(dQ.shape))
