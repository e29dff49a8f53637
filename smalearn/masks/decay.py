"""Decays between tokens: segment sums, the dense 1-semiseparable matrix, and sequences cut into chunks.

A decay has |a_k| ≤ 1; log_a[k] has a real part ≤ 0, −inf for a reset. From token s to token t everything decays by the
exponential of a sum of log_a's own entries. No sum is computed as a difference of two running sums: after a strong
decay that would lose the small terms to rounding, and after a reset it would be inf − inf.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from smalearn._checks import check_dtypes, check_shapes


def segsum(log_a: torch.Tensor) -> torch.Tensor:
    """Segment sums, the logarithm of the 1-semiseparable matrix: Σ_{s < k ≤ t} log_a[k] for s ≤ t, else −inf.

    Args:
        log_a: (..., T) log decays, real or complex; −inf for a reset. The first is in no segment.

    Returns:
        (..., T, T), dtype of log_a. `segsum(log_a).exp()` has NaN-free gradients for log_a, resets included; other
        functions of the −inf entries may not.

    Raises:
        ShapeError: log_a has no axis.

    Cost:
        T² additions.

    Source:
        Dao and Gu 2024 (Mamba-2), listing 1, in the stable form of their post, part III.

    Example:
        >>> segsum(torch.tensor([-5.0, -1.0, -2.0]))
        tensor([[ 0., -inf, -inf],
                [-1.,  0., -inf],
                [-3., -2.,  0.]])
    """
    check_dtypes("segsum", {"log_a": log_a})
    check_shapes("segsum", {"log_a": (log_a, "t")})

    def across(earlier, later):
        return since_start(*later) + until_end(*earlier).mT

    return join_neighbours(torch.zeros_like(log_a), [log_a[..., None]], across, above=-torch.inf)


def decay_matrix(log_a: torch.Tensor) -> torch.Tensor:
    """The 1-semiseparable matrix L[t, s] = exp(Σ_{s < k ≤ t} log_a[k]) for s ≤ t, else 0.

    Equal to `segsum(log_a).exp()`, with T·log2(T) exponentials instead of T². Argument, result and errors are those of
    `segsum`.

    Cost:
        T² multiplications, T·log2(T) exponentials.
    """
    check_dtypes("decay_matrix", {"log_a": log_a})
    check_shapes("decay_matrix", {"log_a": (log_a, "t")})

    def across(earlier, later):
        return since_start(*later).exp() * until_end(*earlier).exp().mT

    return join_neighbours(torch.ones_like(log_a), [log_a[..., None]], across)


def join_neighbours(
    diagonal: torch.Tensor,
    rows: Sequence[torch.Tensor],
    across: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor],
    above: float = 0.0,
) -> torch.Tensor:
    """A lower triangular matrix (..., T, T) from blocks of one token, joined in pairs until one block is left.

    For s in the earlier block and t in the later one, decay(s → t) = decay(s → end of the earlier block) · decay(start
    of the later block → t). Both exponents are sums of log_a's own entries, with real parts ≤ 0: no quotient can
    overflow, and no difference of sums can lose small terms.

    On the diagonal (..., T) stand these entries, above it everywhere `above`. `rows` are tensors (..., T, ·), which are
    cut into blocks; across(earlier, later), of `rows` cut to one block each, gives the entries (..., size, size) of
    later targets × earlier sources.
    """
    length = diagonal.shape[-1]
    blocks = _pad_to_power_of_two(diagonal[..., None])[..., None]  # (..., T, 1, 1)
    rows = [_pad_to_power_of_two(x) for x in rows]
    while (size := blocks.shape[-1]) < length:
        pairs = [x.unflatten(-2, (-1, 2, size)) for x in rows]  # (..., blocks / 2, 2, size, ·)
        earlier = [x[..., 0, :, :] for x in pairs]  # indexed: Inductor of torch 2.13 loses gradients of unbind
        later = [x[..., 1, :, :] for x in pairs]
        first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)  # (..., blocks / 2, size, size)
        top = torch.cat([first, torch.full_like(first, above)], -1)
        bottom = torch.cat([across(earlier, later), second], -1)
        blocks = torch.cat([top, bottom], -2)
    return blocks[..., 0, :length, :length]


def since_start(log_a: torch.Tensor) -> torch.Tensor:
    """Σ_{k ≤ t} log_a[k] along axis -2: the log decay from before the first token to t.

    Takes log_a (..., T, N or 1) and returns sums of logarithms, of the same shape.
    """
    return log_a.cumsum(-2)


def until_end(log_a: torch.Tensor) -> torch.Tensor:
    """Σ_{k > s} log_a[k] along axis -2: the log decay from s to the last token.

    Takes log_a (..., T, N or 1) and returns sums of logarithms, of the same shape.
    """
    after = torch.cat([log_a[..., 1:, :], torch.zeros_like(log_a[..., :1, :])], -2)
    return after.flip(-2).cumsum(-2).flip(-2)


def split_chunks(x: torch.Tensor, chunk_len: int, axis: int = -2) -> torch.Tensor:
    """Cut (..., T, D) into (..., chunks, c, D), or (..., T) where axis is -1; zeros fill the last chunk, c ≤ T."""
    length = x.shape[axis]
    chunk_len = max(1, min(chunk_len, length))
    chunks = max(1, -(-length // chunk_len))
    missing = chunks * chunk_len - length
    x = F.pad(x, (0, 0) * (-1 - axis) + (0, missing)) if missing else x
    return x.unflatten(axis, (chunks, chunk_len))


def join_chunks(x: torch.Tensor, length: int) -> torch.Tensor:
    """Inverse of `split_chunks`: (..., C, chunk_len, D) as (..., T, D)."""
    return x.flatten(-3, -2)[..., :length, :]


def _pad_to_power_of_two(x):
    """Append rows of zeros along axis -2: padding tokens, log_a = 0 and x = 0."""
    missing = (1 << max(x.shape[-2] - 1, 0).bit_length()) - x.shape[-2]
    return F.pad(x, (0, 0, 0, missing)) if missing else x
