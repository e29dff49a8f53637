"""How the project compares numbers: one metric, one assertion, seeded inputs, covering arrays. Needs no test runner."""

import itertools
import math
from collections.abc import Iterable, Mapping

import torch

__all__ = ["assert_close", "pairwise", "random_tensors", "relative_rms"]

TOLERANCE = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-5, torch.complex64: 1e-5}


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative root-mean-square error ‖actual − expected‖ / ‖expected‖, in float64.

    Two tensors without entries, or two zero tensors, differ by 0; a NaN or infinity on either side gives NaN. A zero
    `expected` with a non-zero `actual` gives infinity.

    Args:
        actual: any shape.
        expected: the same shape; nothing is broadcast.

    Returns:
        The error, a Python float without unit.

    Raises:
        AssertionError: the shapes differ.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"shape: got {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    wide = torch.complex128 if actual.is_complex() or expected.is_complex() else torch.float64
    actual, expected = actual.detach().to("cpu", wide), expected.detach().to("cpu", wide)
    if not (torch.isfinite(actual).all() and torch.isfinite(expected).all()):
        return math.nan
    error, scale = torch.linalg.vector_norm(actual - expected).item(), torch.linalg.vector_norm(expected).item()
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """Assert that shapes are equal and the relative RMS error is within a tolerance; NaN fails.

    Args:
        actual: the result; its dtype sets the default tolerance (float64 1e-12, float32 1e-5).
        expected: the oracle's result, of any floating dtype.
        tolerance: replaces the default; required for half precision.

    Raises:
        AssertionError: naming shape, or error and tolerance.
    """
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    error = relative_rms(actual, expected)
    if not error <= tolerance:
        raise AssertionError(f"relative RMS error {error:.2e} exceeds {tolerance:.0e} for shape {tuple(actual.shape)}")


def random_tensors(
    shapes: Iterable[tuple[int, ...]], seed: int = 0, dtype: torch.dtype = torch.float64, grad: bool = False
) -> list[torch.Tensor]:
    """Standard normal tensors of the given shapes, the same on every machine for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [tensor.requires_grad_(grad) for tensor in drawn]


def pairwise(factors: Mapping[str, Iterable]) -> list[dict]:
    """Choose cases that together have every pair of values of two factors: a covering array.

    Args:
        factors: for each factor's name, its values, which can be hashed.

    Returns:
        Cases, a value for each factor in their order. Each case starts with a pair that was missing.

    Example:
        >>> len(pairwise({"length": [1, 5, 33], "dtype": ["half", "float"], "causal": [True, False]}))
        6
    """
    factors = {name: list(values) for name, values in factors.items()}
    both = list(itertools.combinations(factors, 2))
    missing = {
        pair: None for a, b in both for pair in itertools.product(*([(x, v) for v in factors[x]] for x in (a, b)))
    }
    chosen = []
    while missing:
        case = dict(next(iter(missing)))
        for name in factors:
            news = [
                sum(((m, case[m]), (name, v)) in missing or ((name, v), (m, case[m])) in missing for m in case)
                for v in factors[name]
            ]
            case.setdefault(name, factors[name][news.index(max(news))])
        chosen.append({name: case[name] for name in factors})
        for a, b in both:
            missing.pop(((a, case[a]), (b, case[b])), None)
    return chosen
