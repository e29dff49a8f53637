"""RoPE: positions as rotations of queries and keys, so that a score knows how far apart its two tokens are."""

from collections.abc import Sequence

import torch
from torch.library import custom_op

from smalearn._checks import ShapeError, check_counts, check_dtypes, check_number, check_shapes, check_tensor


def rope(x: torch.Tensor, positions: torch.Tensor | None = None, base: float = 10000.0) -> torch.Tensor:
    """Rotary position embedding: every pair of neighbouring features is a point in a plane, turned by its position.

        (x_2k, x_2k+1) at position i turns by the angle i·base^(-2k/N)

    A rotation keeps lengths, and R_i^T R_j = R_(j-i): rotated queries and keys have scores that depend on i - j alone.

    Args:
        x: (..., T, N) queries or keys, N even.
        positions: (..., T) of the tokens, any numbers; 0, 1, 2, ... if None.
        base: > 0; the slowest pair turns by nearly 1/base a token.

    Returns:
        (..., T, N), dtype of x.

    Raises:
        ShapeError: x has fewer than two axes, N is odd, or positions do not fit.
        ValueError: x has no floating dtype, or base is not positive.

    Cost:
        2·T·N multiply-adds, T·N/2 sines and cosines. The angles are float64: far positions are as exact as near ones.

    Source:
        Su et al. 2021 (RoFormer), section 3.2.2. Others pair feature k with k + N/2: the same up to a permutation.
    """
    _check("rope", x, positions, base)
    if x.shape[-1] % 2:
        raise ShapeError(f"rope: axis 'n' of x is {x.shape[-1]}, expected an even number: a rotation turns pairs")
    return _rotate(x, positions, _frequencies(x, x.shape[-1], base))


def rope_levels(
    x: torch.Tensor, ranks: Sequence[int], positions: torch.Tensor | None = None, base: float = 10000.0
) -> torch.Tensor:
    """RoPE for multi-level attention: the features of every level are rotated as if they were alone.

        x = [x_1|...|x_L]  becomes  [rope(x_1)|...|rope(x_L)]

    A level adds q_l · k_l to the score or it does not, so no pair may lie half in one level, half in the next. Within a
    level only tokens of one block meet, so the position in the block, i mod block_lens[l], gives the same scores as i.

    `ranks` are the features of each level, all even, or a ValueError says so; their sum is N, or a ShapeError says so.
    The base is the same for every level. All other arguments, results, errors and the cost are those of `rope`.

    Source:
        Kuang et al. 2025, section 3.4, which says that both are compatible; they are if no split cuts a pair.
    """
    allocation = check_pairs("rope_levels", ranks)
    _check("rope_levels", x, positions, base)
    if sum(ranks) != x.shape[-1]:
        expected = f"{sum(ranks)}, the sum of ranks {allocation}"
        raise ShapeError(f"rope_levels: axis 'n' of x is {x.shape[-1]}, expected {expected}")
    return _rotate(x, positions, torch.cat([_frequencies(x, rank, base) for rank in ranks]))


def check_pairs(function: str, ranks: Sequence[int]) -> str:
    """Check that no split between levels cuts a rotated pair in two; return the ranks as r_1|r_2|..."""
    allocation = "|".join(map(str, check_counts(function, "ranks", ranks, 0)))
    if any(rank % 2 for rank in ranks):
        raise ValueError(f"{function}: ranks must be even, got {allocation}: an odd one cuts a rotated pair in two")
    return allocation


def _check(function, x, positions, base):
    """Check shape and dtype of x, one position for each token, and a positive base."""
    check_dtypes(function, {"x": x})
    operands = {"x": (x, "tn")}
    if positions is not None:
        check_tensor(function, "positions", positions)
        operands["positions"] = (positions, "t")
    check_shapes(function, operands)
    if not check_number(function, "base", base) > 0:
        raise ValueError(f"{function}: base must be positive, got {base!r}")


def _frequencies(x, features, base):
    """Angle per token for each of the pairs, on the device of x."""
    return base ** -(torch.arange(0, features, 2, dtype=torch.float64, device=x.device) / features)


def _rotate(x, positions, frequencies):
    """Each pair of neighbours of x, turned by position · frequency."""
    if positions is None:
        positions = torch.arange(x.shape[-2], device=x.device)
    return turn_pairs(x, positions.to(x.device, torch.float64)[..., None] * frequencies)


def turn_pairs(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Each pair of neighbouring features of x (..., N) turned by an angle of its own: 2·N multiply-adds.

    Angles (..., N/2) are radians of any floating dtype; axes of size 1 are shared.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    cos, sin = _table(angles, wide) if compiled and not angles.requires_grad else _cos_and_sin(angles, wide)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


def _cos_and_sin(angles: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Cosines and sines, computed in the dtype of the angles."""
    return [angles.cos().to(dtype), angles.sin().to(dtype)]


_table = custom_op("smalearn::cos_and_sin", _cos_and_sin, mutates_args=())
"""The same as one operation: Inductor would compute cosines again for every sequence and head that they turn."""
_table.register_fake(_cos_and_sin)
_table.register_vmap(lambda info, in_dims, angles, dtype: (_table(angles, dtype), [in_dims[0]] * 2))
