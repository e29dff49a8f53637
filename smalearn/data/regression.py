"""In-context linear regression: a linear function for each sequence (structured attention paper, section 4)."""

import torch
from torch.nn import functional

from smalearn._checks import ShapeError, check_count, check_dtypes, check_finite, check_shapes, seeded
from smalearn.testing import TOLERANCE


def regression(
    examples: int, dim: int, points: int, seed: int, active: int | None = None, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """In-context linear regression: each example has a weight vector of its own, to be found from its pairs.

    x_i ~ N(0, I/d), w ~ N(0, I), y_i = w^T x_i, so that E y² = 1 is the error of whoever answers 0. With fewer `active`
    coordinates a, x_i ~ N(0, I/a) in the first a of them and zero in the others: an easier task in the same space, as
    `curriculum` wants it.

    Args:
        examples: how many.
        dim: d.
        points: N; the paper has 2·d.
        seed: the same seed gives the same examples on every machine.
        active: a, from 1 to d; all d if None.
        dtype: torch's default if None; another one draws other numbers.

    Returns:
        Inputs (examples, N, d) and their values (examples, N).

    Raises:
        ValueError: a count is not an integer ≥ 1, or active is above dim.

    Source:
        Garg et al. 2022; the structured attention paper, section 4.
    """
    active = dim if active is None else active
    for name, value in (("examples", examples), ("dim", dim), ("points", points), ("active", active)):
        check_count("regression", name, value)
    if active > dim:
        raise ValueError(f"regression: active must be at most dim = {dim}, got {active}")
    generator = seeded("regression", seed, dtype)
    w, X = torch.randn(examples, 1 + points, active, dtype=dtype, generator=generator).split([1, points], 1)
    X = X / active**0.5
    return functional.pad(X, (0, dim - active)), torch.linalg.vecdot(X, w)


def regression_prompt(X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The pairs as a sequence, x_1, y_1, x_2, y_2, …: causally read, row 2·i knows x_i and the pairs before it.

    Args:
        X: (..., N, d).
        y: (..., N).

    Returns:
        (..., 2·N, d). Row 2·i, counted from 0, is x_i and row 2·i + 1 is (y_i, 0, …, 0).

    Raises:
        ShapeError: X and y disagree about N or the leading axes.
    """
    check_dtypes("regression_prompt", {"X": X, "y": y})
    check_shapes("regression_prompt", {"X": (X, "nd"), "y": (y, "n")})
    _check_leading("regression_prompt", X, y)
    values = functional.pad(y[..., None], (0, X.shape[-1] - 1))
    return torch.stack([X, values], -2).flatten(-3, -2)


def least_squares(X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Predict each value by least squares from the pairs before it, with the shortest solution if there are many.

    n pairs determine w in n directions, so after n < d of them the expected squared error is 1 - n/d (for x and w of
    `regression`); from n = d on it is 0.

    Args:
        X: (..., N, d).
        y: (..., N), dtype of X.

    Returns:
        (..., N) predictions; the first, which has seen no pair, is 0.

    Raises:
        ShapeError: X and y disagree about N.
        ValueError: X has no dtype with a singular value decomposition, or (on a CPU) a number that is not finite.

    Cost:
        N pseudo-inverses, N²·d² multiply-adds or so.
    """
    check_dtypes("least_squares", {"X": X, "y": y})
    if X.dtype not in TOLERANCE:
        raise ValueError(f"least_squares: X is {X.dtype}, expected {' or '.join(map(str, TOLERANCE))}")
    check_shapes("least_squares", {"X": (X, "nd"), "y": (y, "n")})
    _check_leading("least_squares", X, y)
    check_finite("least_squares", "X", X)
    predictions = [torch.zeros_like(y[..., 0])]
    for n in range(1, y.shape[-1]):
        w = torch.linalg.pinv(X[..., :n, :]) @ y[..., :n, None]
        predictions.append(torch.linalg.vecdot(X[..., n, :], w[..., 0]))
    return torch.stack(predictions, -1)


def curriculum(step: int, dim: int, first: int = 4, every: int = 2000, updates: int = 15) -> int:
    """Number of coordinates that `regression` has at a step of training; it has twice as many points.

        active = min(d, first + increment·⌊step / every⌋),   increment = ⌈(d - first) / updates⌉

    Args:
        step: from 0.
        dim: d, reached after `updates` updates at the latest.
        first: coordinates at the start, or d if that is less.
        every: steps from one update to the next.
        updates: how many there are at most.

    Returns:
        The number of active coordinates, from 1 to d.

    Raises:
        ValueError: an argument is not an integer, or too small.

    Source:
        Garg et al. 2022, whose task grows by one coordinate and two points per 2000 steps; the paper's code has the
        increment above.

    Example:
        >>> [curriculum(step, 64) for step in (0, 1999, 2000, 4000, 30000)]
        [4, 4, 8, 12, 64]
    """
    check_count("curriculum", "step", step, 0)
    for name, value in (("dim", dim), ("first", first), ("every", every), ("updates", updates)):
        check_count("curriculum", name, value)
    increment = -(-max(0, dim - first) // updates)
    return min(dim, first + increment * (step // every))


def _check_leading(function, X, y):
    """Check that X and y have the same leading axes."""
    if X.shape[:-1] != y.shape:
        raise ShapeError(
            f"{function}: leading axes {tuple(y.shape[:-1])} of y are not {tuple(X.shape[:-2])}, those of X"
        )
