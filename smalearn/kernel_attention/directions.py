"""Random directions for random features, the same on every machine for the same seed."""

import torch

from smalearn._checks import check_count, seeded


def gaussian_directions(count: int, inputs: int, seed: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Independent directions ω ~ N(0, I).

    Args:
        count: m, how many.
        inputs: N, their size.
        seed: of the draw.
        dtype: of the result; torch's default dtype if None. The draw itself is in float64.

    Returns:
        (m, N) tensor, one direction a row.

    Raises:
        TypeError: dtype is not one.
        ValueError: count or inputs is not an integer ≥ 1, the seed not one of 64 bits, or dtype not a floating one.

    Example:
        >>> gaussian_directions(256, 16, seed=0).shape
        torch.Size([256, 16])
    """
    check_count("gaussian_directions", "count", count)
    check_count("gaussian_directions", "inputs", inputs)
    return _normal((count, inputs), seeded("gaussian_directions", seed, dtype)).to(dtype or torch.get_default_dtype())


def orthogonal_directions(count: int, inputs: int, seed: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Directions that are orthogonal within each block of N, each of them distributed as N(0, I).

    The rows of a rotation drawn from the Haar measure, block by block, times norms drawn from the chi distribution
    with N degrees of freedom. The rotation is the orthogonal factor of a Gaussian matrix; as QR leaves the signs of
    its columns to the algorithm, each is multiplied by the sign of R's diagonal. Without that it is not Haar, the
    directions have a mean other than 0, and one-sided features become biased.

    The last block is cut where N does not divide m. Arguments, results and errors are those of `gaussian_directions`.

    Cost:
        O(m·N²) operations.

    Source:
        Choromanski et al. 2021 (Performer); Mezzadri 2007, "How to generate random matrices from the
        classical compact groups", for the signs.
    """
    check_count("orthogonal_directions", "count", count)
    check_count("orthogonal_directions", "inputs", inputs)
    generator = seeded("orthogonal_directions", seed, dtype)
    blocks = -(-count // inputs)
    rotations, R = torch.linalg.qr(_normal((blocks, inputs, inputs), generator))
    rotations = rotations * R.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    norms = _normal((count, inputs), generator).norm(dim=-1, keepdim=True)
    return (rotations.flatten(0, 1)[:count] * norms).to(dtype or torch.get_default_dtype())


def _normal(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)
