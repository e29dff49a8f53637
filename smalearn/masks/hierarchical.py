"""The mask of log-linear attention: decays, times a weight for each level of a binary tree over time.

Two tokens meet at the level at which the tree joins them: bit_length(t xor s). Level 0 is the token itself, level ℓ > 0
is half a block of 2^ℓ tokens, the earlier half of the block in whose later half t lies. So a target meets every source
at one of log2(T) + 1 levels, and at each level in one sum for the whole half.
"""

import torch
import torch.nn.functional as F

from smalearn._checks import ShapeError, broadcast_shapes, check_count, check_dtypes, check_shapes, check_signs
from smalearn._structured import match_operand, widen
from smalearn.masks.base import RULES, Mask
from smalearn.masks.causal import SemiseparableMask
from smalearn.masks.decay import decay_matrix, join_chunks, split_chunks, until_end

CHUNK_LEN = 16  # Tokens, a power of 2, whose lowest levels are one dense product.


def level_count(length: int) -> int:
    """How many levels so many tokens have: bit_length(T - 1) + 1, that is 1 + ⌈log2(T)⌉, and 1 for T ≤ 1.

    Raises:
        ValueError: length is not an integer ≥ 0.
    """
    return max(check_count("level_count", "length", length, 0) - 1, 0).bit_length() + 1


def level_matrix(length: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The level at which the tree joins each pair of tokens: bit_length(t xor s), (T, T) integers.

    Args:
        length: T ≥ 0.
        device: of the result.

    Raises:
        ValueError: length is not an integer ≥ 0.

    Source:
        Guo et al. 2025 (Log-linear attention), section 3, where s is in the bucket of this level of the Fenwick tree.

    Example:
        >>> level_matrix(4)
        tensor([[0, 1, 2, 2],
                [1, 0, 2, 2],
                [2, 2, 0, 1],
                [2, 2, 1, 0]])
    """
    tokens = torch.arange(check_count("level_matrix", "length", length, 0), device=device)
    pairs = tokens[:, None] ^ tokens
    return sum(((pairs >> bit > 0).long() for bit in range(level_count(length) - 1)), torch.zeros_like(pairs))


class HierarchicalMask(Mask):
    """L[t, s] = a_t ... a_(s+1) · w[t, level(t, s)] if s ≤ t else 0: one state for each level, not one for all.

    All weights 1 give the 1-semiseparable mask. Each block of the tree below the diagonal has rank 1; a block L[k:, :k]
    has at most as many as k has ones in binary.

    Args:
        log_a: (..., T) log decays ≤ 0, −inf for a reset; the first acts on nothing.
        level_weights: (..., T, levels) weights w of each target for each level, at least `level_count(T)` of them.

    Raises:
        ShapeError: an argument has too few axes, T differs, or there are too few levels.
        ValueError: an argument is no real floating tensor, or log_a is (on a CPU) positive or NaN.

    Source:
        Guo et al. 2025 (Log-linear attention), section 3.

    Example:
        >>> HierarchicalMask(torch.zeros(4), torch.tensor([1.0, 2.0, 3.0]).expand(4, 3)).dense()
        tensor([[1., 0., 0., 0.],
                [2., 1., 0., 0.],
                [3., 3., 1., 0.],
                [3., 3., 2., 1.]])
    """

    parameters = ("log_a", "level_weights")

    def __init__(self, log_a: torch.Tensor, level_weights: torch.Tensor):
        check_dtypes("HierarchicalMask", {"log_a": log_a}, real=True)
        check_dtypes("HierarchicalMask", {"level_weights": level_weights}, real=True)
        sizes = check_shapes("HierarchicalMask", {"log_a": (log_a, "t"), "level_weights": (level_weights, "tl")})
        if sizes["l"] < level_count(sizes["t"]):
            needed = f"{sizes['l']}, expected at least {level_count(sizes['t'])} for {sizes['t']} tokens"
            raise ShapeError(f"HierarchicalMask: axis 'l' of level_weights is {needed}")
        if log_a.device.type == "cpu":
            check_signs("HierarchicalMask", log_a)
        self.log_a, self.level_weights = log_a, level_weights
        length = sizes["t"]
        self.shape = (*broadcast_shapes(log_a.shape[:-1], level_weights.shape[:-2]), length, length)

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of decays and weights, (..., T, T)."""
        log_a, weights = widen(self.log_a, self.log_a.to(device), self.level_weights.to(device))
        return _dense(log_a, weights).to(self._dense_dtype(dtype))

    def _product(self, x):
        log_a, weights = self._chunked(x)
        inside = _dense(log_a[..., 0], weights).to(x.dtype) @ split_chunks(x, CHUNK_LEN)
        sums = until_end(log_a).exp().to(x.dtype).mT @ split_chunks(x, CHUNK_LEN)
        ones = inside.new_ones(()).expand(*inside.shape[-3:-1], 1)
        return join_chunks(add_levels_(inside, ones, sums, log_a, weights), x.shape[-2])

    def _transpose_product(self, y):
        log_a, weights = self._chunked(y)
        chunks = split_chunks(y, CHUNK_LEN)
        inside = _dense(log_a[..., 0], weights).to(y.dtype).mT @ chunks
        ends = _spread_levels(chunks, log_a, weights)
        return join_chunks(inside + until_end(log_a).exp().to(y.dtype) * ends, y.shape[-2])

    def _chunked(self, x):
        """log_a (..., chunks, CHUNK_LEN, 1) and the weights, on the device of x and at least as precise."""
        log_a, weights = match_operand(x, self.log_a[..., None], self.level_weights)
        return split_chunks(log_a, CHUNK_LEN), split_chunks(weights, CHUNK_LEN)

    def cost(self, columns: int = 1) -> int:
        """T products with level 0; at each other level one multiply-add for each target, and one for each sum."""
        length = self.shape[-1]
        operations = length
        for level in range(1, level_count(length)):
            half = 1 << (level - 1)
            blocks, rest = divmod(length, 2 * half)
            targets = blocks * half + max(rest - half, 0)
            operations += 2 * targets + 2 * blocks
        return operations * columns


def add_levels_(
    y: torch.Tensor, Q: torch.Tensor, sums: torch.Tensor, log_a: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Add to y, in place, what each target reads from earlier chunks: at each level, one sum for half a block.

    At the level that joins blocks of m chunks in pairs, target t of the later block reads q_t S of the earlier one, S
    being its decayed sum, times the decay since its end and the weight of the level.

    y is (..., chunks, c, P), with all leading axes and c a power of 2; Q (..., chunks, c, N) of the targets; sums (...,
    chunks, N, P) of each chunk, decayed until its end; log_a (..., chunks, c, 1); weights (..., chunks, c, levels),
    levels inside a chunk included. It takes chunks·c·N·P·log2(chunks) / 2 multiply-adds, and one for each entry of the
    sums.
    """
    count, size = y.shape[-3:-1]
    half, level = 1, size.bit_length()  # the level that joins two chunks
    while half < count:
        whole, cut = zip(*(_later(x, half) for x in (y, Q, weights[..., level, None], log_a)), strict=True)
        if cut[0].shape[-3]:
            _read(*cut, sums[..., -1:, :, :])
        if whole[0].shape[-4]:
            earlier, later = sums[..., 0:-1:2, :, :], sums[..., 1::2, :, :]
            sums = _read(*whole, earlier) * earlier + later
        half, level = 2 * half, level + 1
    return y


def _read(y, Q, weights, log_a, earlier):
    """Add to later halves y what they read from earlier ones; return the decays of the whole halves."""
    decay = log_a.flatten(-3, -2).cumsum(-2).exp().to(y.dtype)
    Q, weights = (x.flatten(-3, -2).to(y.dtype) for x in (Q, weights))
    y += ((weights * decay * Q) @ earlier).unflatten(-2, y.shape[-3:-1])
    return decay[..., -1:, :]


def _later(x, half):
    """The later halves of blocks of 2·half chunks, (..., blocks, half, size, ·), and a last one that is cut short."""
    blocks = x.shape[-3] // (2 * half)
    whole = x[..., : 2 * half * blocks, :, :].unflatten(-3, (blocks, 2, half))[..., 1, :, :, :]
    return whole, x[..., None, (2 * blocks + 1) * half :, :, :]


def _spread_levels(y, log_a, weights):
    """The transpose of `add_levels_` for N = 1: what each chunk's end gets from later ones, (..., chunks, 1, P).

    Upwards, every pair's later half sums what it sends to the earlier half; downwards, that goes on to all chunks.
    """
    count, size = y.shape[-3:-1]
    missing = (1 << max(count - 1, 0).bit_length()) - count
    y, weights, log_a = (F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x for x in (y, weights, log_a))
    half, level, sent = 1, size.bit_length(), []
    while half < count:
        rows, w, gate = (_later(x, half)[0].flatten(-3, -2) for x in (y, weights[..., level, None], log_a))
        decay = gate.cumsum(-2).exp().to(y.dtype)
        sent.append(((w.to(y.dtype) * decay).mT @ rows, decay[..., -1:, :]))
        half, level = 2 * half, level + 1
    leading = broadcast_shapes(y.shape[:-3], weights.shape[:-3], log_a.shape[:-3])
    ends = y.new_zeros(*leading, 1, 1, y.shape[-1])
    for earlier, decay in reversed(sent):
        ends = torch.stack([decay * ends + earlier, ends.expand_as(earlier)], -3).flatten(-4, -3)
    return ends[..., :count, :, :]


def _dense(log_a, weights):
    """The matrix of log_a (..., T) and weights (..., T, levels)."""
    levels = level_matrix(log_a.shape[-1], weights.device)
    return decay_matrix(log_a) * weights.gather(-1, levels.expand(*weights.shape[:-1], levels.shape[-1]))


def _times_semiseparable(one, other):
    return HierarchicalMask(one.log_a + other.log_a, one.level_weights)


RULES.append((HierarchicalMask, SemiseparableMask, _times_semiseparable))
