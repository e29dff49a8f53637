"""Causal multi-level attention on a GPU: one program for a tile of rows, whose products are as wide as distance allows.

The letters are those of `fast.multilevel_attention`: S the scores, d the number of levels that two tokens share.
Blocks nest, so the first d levels are a prefix of the columns. The keys before a tile fall into segments, from where
one level's block of the first row begins to where that of the next level does; all keys of segment d share d levels
with that row. The inner loop of each segment is compiled for its own width, a power of two: that is what is saved.

- A row that has left the first row's block of a level shares none of its keys before the tile: its columns are zeroed
  in Q, once for each segment, so that block lengths need not fit tiles. Keys are read whole, and meet these zeros.
- In the tile on the diagonal, levels whose blocks do not fit it are products of their own, kept where both tokens share
  a block. It comes first: every row meets itself there, and so has a finite maximum ever after.
- Softmax runs along: m is the largest score so far in bits, z the sum of 2^(S - m), and Y that of the values.
- No atomics: every entry is written by one program, once, so that two runs give the same bits.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch

from smalearn.fast import tile as tl
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch
from smalearn.fast.triton.checks import DTYPES, check_programs, check_triton, strided
from smalearn.fast.triton.configs import LARGE, LARGEST, padded, without_matrix_units
from smalearn.fast.triton.pieces import put, read, write, zeros
from smalearn.fast.triton.plan import architecture


def attend(
    q, k, v, y, log_sum, length, groups, heads, sizes: tl.constexpr, ends: tl.constexpr, widths: tl.constexpr,
    owns: tl.constexpr, blocks: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Outputs of one tile of rows of one head; the grid is (batch·groups·heads·tiles,).

    An operand is a tuple: a pointer, and the strides of its axes (batch, group, head, row, column).

    Args:
        q: (batch, group, head, T, N).
        k: (batch, group, 1, T, N).
        v: (batch, group, 1, T, P).
        y: (batch, group, head, T, P) outputs.
        log_sum: (batch, group, head, T, 1), log Σ exp S of every row.
        length: T.
        groups: number of groups of a batch.
        heads: number of heads of a group.
        sizes: (N, P, rows of a tile, padded P, levels, those whose blocks are whole tiles, those with a segment).
        ends: columns of the first d levels, for d from 0.
        widths: the same, padded.
        owns: padded columns of each level.
        blocks: block length of each level; that of the first is never read, it holds all tokens.
        precision: of products of float32.
    """
    N: tl.constexpr = sizes[0]
    P: tl.constexpr = sizes[1]
    tile: tl.constexpr = sizes[2]
    whole: tl.constexpr = sizes[5]
    deepest: tl.constexpr = sizes[6]
    tiles = (length + tile - 1) // tile
    which = tl.program_id(0) // tiles
    group = (which // (groups * heads), which // heads % groups, 0)
    head = (which // (groups * heads), which // heads % groups, which % heads)
    first = (tiles - 1 - tl.program_id(0) % tiles) * tile  # the last tile, which takes longest, begins first
    i, p = tl.arange(0, tile), tl.arange(0, sizes[3])
    rows = first + i
    S = on_diagonal(q, k, head, group, rows, length, sizes, ends, widths, owns, blocks, precision)
    S = tl.where(i[:, None] >= i[None, :], S, float("-inf"))
    m, z, Y = tl.full((tile,), float("-inf"), tl.float32), zeros(tile), zeros(tile, sizes[3])
    m, z, Y = met(S, read(v, group, rows, p, length, P), m, z, Y, precision)
    for d in tl.static_range(1, deepest + 1):
        start, end = 0, first
        if d > 1:
            start = first // blocks[d - 1] * blocks[d - 1]
        if d < deepest:
            end = first // blocks[d] * blocks[d]
        columns = tl.arange(0, widths[d])
        Q = read(q, head, rows, columns, length, ends[d])
        for level in tl.static_range(whole, d):
            shared = rows // blocks[level] == first // blocks[level]
            Q = tl.where(shared[:, None] | (columns < ends[level])[None, :], Q, 0.0)
        for key in range(start, end, tile):
            keys = key + i
            K_d = read(k, group, keys, columns, end, N)
            S_d = tl.dot(Q, tl.trans(K_d), input_precision=precision)
            if d >= whole and deepest > whole:  # a border of the segment is none of tiles
                S_d = tl.where((keys < end)[None, :], S_d, float("-inf"))
            m, z, Y = met(S_d, read(v, group, keys, p, end, P), m, z, Y, precision)
    write(y, head, rows, p, length, P, Y / z[:, None])
    put(log_sum, head, rows, length, m * 0.6931471805599453 + tl.log(z))


def on_diagonal(
    q, k, head, group, rows, length, sizes: tl.constexpr, ends: tl.constexpr, widths: tl.constexpr, owns: tl.constexpr,
    blocks: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Scores of the rows of a tile with themselves: all columns that they share, and those that some of them do."""
    levels: tl.constexpr = sizes[4]
    whole: tl.constexpr = sizes[5]
    c = tl.arange(0, widths[whole])
    K = read(k, group, rows, c, length, ends[whole])
    S = tl.dot(read(q, head, rows, c, length, ends[whole]), tl.trans(K), input_precision=precision)
    for level in tl.static_range(whole, levels):
        own = ends[level] + tl.arange(0, owns[level])
        K = read(k, group, rows, own, length, ends[level + 1])
        S_own = tl.dot(read(q, head, rows, own, length, ends[level + 1]), tl.trans(K), input_precision=precision)
        block = rows // blocks[level]
        S += tl.where(block[:, None] == block[None, :], S_own, 0.0)
    return S


def met(S, V, m, z, Y, precision: tl.constexpr):
    """m, z and Y of rows that have met more keys, with these scores and values."""
    highest = tl.maximum(m, tl.max(S, 1) * 1.4426950408889634)
    E = tl.exp2(S * 1.4426950408889634 - highest[:, None])
    f = tl.exp2(m - highest)
    Y = Y * f[:, None] + tl.dot(tl.cast(E, V.dtype), V, input_precision=precision)
    return highest, z * f + tl.sum(E, 1), Y


def multilevel_forward(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, ranks: Sequence[int], block_lens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal multi-level attention by Triton, and what a backward needs: Y = softmax(S) V and log Σ exp S.

    `fast.multilevel_attention` is the function for use. It checks shapes and levels, calls this one on a GPU, and has
    gradients; arguments and errors are its own, with N and P from 1 to 256, half precision only with the assembler that
    `multilevel_handles` asks for, and RuntimeError if Triton is missing, or does not interpret though there is no GPU.
    Tensors on a CPU go through Triton's interpreter, which is for learning and tests. Two calls give the same bits.

    Returns:
        Y (..., T, P), dtype of Q, and log Σ_j exp S_ij of every row, (..., T), float32, natural.

    Cost:
        For a segment of keys that share d levels, as many multiply-adds for each pair as r_1 + ... + r_d padded to a
        power of two, at least 16; and P. Reads Q for each segment, K and V once for each tile of rows (of 128 at
        most; 32 in float32), and writes Y.

    Source:
        Kuang et al. 2025, section 3.4.
    """
    if not launch.has_triton():
        remedy = "which exists for Linux: fast.multilevel_attention does without"
        raise RuntimeError(f"multilevel_forward: Triton is missing, {remedy}")
    check_programs("multilevel_forward", "V", V, K)
    check_triton("multilevel_forward", V)
    (Q, _, K, V, _), restore = grouped(Q, None, K, V, None)
    Y = Q.new_empty(*Q.shape[:4], V.shape[-1])
    log_sum = Q.new_empty(*Q.shape[:4], 1, dtype=torch.float32)
    if Y.numel():
        _launch(*map(strided, (Q, K, V, Y, log_sum)), *Q.shape[3:0:-1], **_constants(Q, V, ranks, block_lens))
    Y, log_sum = restore(Y, log_sum)
    return Y, log_sum[..., 0]


def multilevel_handles(Q: torch.Tensor, V: torch.Tensor) -> bool:
    """Tell whether `multilevel_forward` is to compute with such Q (..., T, N) and V (..., T, P): on a GPU, of its kind.

    In half precision it takes an assembler of CUDA 12.9 or later, which PyTorch brings along from CUDA 13 on. That of
    Triton 3.6 and 3.7, of CUDA 12.8, computes addresses wrongly, see `launch`: on an H200 levels of 32, 8, 6, 4, ...
    columns gave wrong outputs, or ended in illegal accesses; assembled by CUDA 13.0 the same program was right.
    """
    sizes = 1 <= Q.shape[-1] <= LARGEST and 1 <= V.shape[-1] <= LARGEST
    if not (Q.device.type == "cuda" and Q.dtype in DTYPES and sizes and launch.has_triton()):
        return False
    return Q.dtype == torch.float32 or launch.assembler() >= (12, 9)


def _launch(q, k, v, y, log_sum, length, heads, groups, **constants):
    """One program for each tile of rows of each head, where the tensors are."""
    tiles = -(-length // constants["sizes"][2])
    grid = (tiles * q[0].shape[:3].numel(),)
    launch.on_triton(attend, grid, q, k, v, y, log_sum, length, groups, heads, **constants)


def _constants(Q, V, ranks, block_lens):
    """Constants for which `attend` is compiled; Q (b, g, r, T, N) and V (b, g, 1, T, P)."""
    (features, head_dim), length = (Q.shape[-1], V.shape[-1]), Q.shape[-2]
    tile, num_warps, num_stages = _tile(architecture(Q.device), max(features, head_dim), Q.dtype)
    levels = {0: 0}  # block lengths and ranks: levels that join all tokens are one, and so are equal ones
    for rank, size in zip(ranks, block_lens, strict=True):
        size = size if size < length else 0
        if rank:
            levels[size] = levels.get(size, 0) + rank
    ends = tuple(accumulate(levels.values(), initial=0))
    whole, deepest = sum(size % tile == 0 for size in levels), sum(not size or tile % size != 0 for size in levels)
    return {
        "sizes": (features, head_dim, tile, padded(head_dim), len(levels), whole, deepest),
        "ends": ends,
        "widths": tuple(map(padded, ends)),
        "owns": tuple(map(padded, levels.values())),
        "blocks": tuple(levels),
        "precision": "ieee" if Q.dtype == torch.float32 else "tf32",
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _tile(architecture, widest, dtype):
    """Rows of a tile, warps and stages; `widest` is the larger of N and P."""
    if architecture == "cpu":  # interpreted: the fewer operations the better
        return 64, 4, 1
    if without_matrix_units(architecture, dtype):  # tiles that fit the registers
        return (32 if widest <= 64 else 16), 8, 1
    large = architecture in LARGE
    if widest <= 64:
        return (128, 8, 2) if large else (64, 4, 2)
    return (64, 4, 2 if large else 1) if widest <= 128 else (32, 4, 2)
