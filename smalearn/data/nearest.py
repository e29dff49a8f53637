"""Nearest neighbour on the sphere: a task that scores of low rank cannot solve (structured attention paper, 2.2)."""

import math

import torch
from torch.nn import functional

from smalearn._checks import check_count, check_dtypes, check_number, check_shapes, seeded
from smalearn.kernel_attention import softmax_attention


def nearest_neighbour(
    examples: int, dim: int, points: int, seed: int, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nearest neighbour on the sphere: which of these points lies closest to the query?

    Query and points are drawn independently and uniformly from the unit sphere of R^d. The answer is the point
    x_k with k = argmin_i ‖x - x_i‖, which on a sphere is argmax_i x^T x_i: one scoring function answers it, and all d
    directions matter alike.

    The answer's index is guessed with probability 1/points. Whoever answers 0 has the squared error ‖x_k‖² = 1.

    Args:
        examples: how many.
        dim: d ≥ 2.
        points: N, to choose from.
        seed: the same seed gives the same examples on every machine.
        dtype: torch's default if None; another one draws other numbers.

    Returns:
        Queries (examples, d), points (examples, N, d), and the index k of the nearest (examples,), int64.

    Raises:
        ValueError: a count is not an integer ≥ 1, or dim is below 2.

    Source:
        Amsel et al. 2024; the structured attention paper, section 2.2.
    """
    for name, value, least in (("examples", examples, 1), ("dim", dim, 2), ("points", points, 1)):
        check_count("nearest_neighbour", name, value, least)
    generator = seeded("nearest_neighbour", seed, dtype)
    drawn = torch.randn(examples, 1 + points, dim, dtype=dtype, generator=generator)
    queries, X = functional.normalize(drawn, dim=-1).split([1, points], 1)
    return queries[:, 0], X, torch.linalg.vecdot(queries, X).argmax(-1)


def full_rank_head(queries: torch.Tensor, X: torch.Tensor, beta: float) -> torch.Tensor:
    """The attention head that solves `nearest_neighbour`: s(x, x') = β x^T x', values the points themselves.

    Its largest score is that of the nearest point; as β grows, the softmax takes that point alone and the error falls
    to 0. The scoring matrix β I has rank d.

    Args:
        queries: (..., d).
        X: (..., N, d), the points.
        beta: β.

    Returns:
        (..., d), the answers.

    Raises:
        ShapeError: queries and X disagree about d, or do not broadcast.
        ValueError: beta is not finite.
    """
    check_dtypes("full_rank_head", {"queries": queries, "X": X})
    if not math.isfinite(check_number("full_rank_head", "beta", beta)):
        raise ValueError(f"full_rank_head: beta must be finite, got {beta}")
    check_shapes("full_rank_head", {"queries": (queries, "d"), "X": (X, "nd")})
    return softmax_attention(beta * queries[..., None, :], X, X)[..., 0, :]
