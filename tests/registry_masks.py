"""Every mask under test with its definition in plain Python. A new mask adds lines here and inherits the suite."""

import cmath
from collections.abc import Callable
from dataclasses import dataclass

import torch

from smalearn.masks import (
    BandedMask,
    BlockDiagonalMask,
    CausalMask,
    DecayMask,
    DilatedMask,
    FourierMask,
    HierarchicalMask,
    LowRankMask,
    Mask,
    SemiseparableMask,
    ToeplitzMask,
)
from smalearn.testing import random_tensors

# Masks of zeros and ones, without parameters: (mask, entry(t, s)). The entry is the definition, written out without the
# package.
MASKS = [
    *[(CausalMask(T, S), lambda t, s: s <= t) for T, S in [(1, 1), (33, 33), (7, 13), (13, 7), (31, None)]],
    *[
        (BandedMask(T, S, window), lambda t, s, window=window: abs(t - s) <= window)
        for T, S, window in [(1, 1, 0), (33, 33, 0), (33, 33, 4), (13, 7, 2), (7, 31, 3), (5, 5, 99)]
    ],
    *[
        (
            DilatedMask(T, S, window, gap),
            lambda t, s, window=window, gap=gap: abs(t - s) <= window * gap and (t - s) % gap == 0,
        )
        for T, S, window, gap in [(1, 1, 1, 2), (33, 33, 3, 4), (13, 29, 2, 3), (29, 13, 5, 1)]
    ],
    *[
        (BlockDiagonalMask(T, S, blocks), lambda t, s, T=T, S=S, blocks=blocks: t * blocks // T == s * blocks // S)
        for T, S, blocks in [(1, 1, 1), (33, 33, 3), (12, 20, 4), (20, 12, 1)]
    ],
    *[
        (BandedMask(T, S, 3) * CausalMask(T, S), lambda t, s: 0 <= t - s <= 3)
        for T, S in [(1, 1), (33, 33), (7, 13), (13, 7)]
    ],
    (BandedMask(12, 20, 5) * BlockDiagonalMask(12, 20, 4), lambda t, s: abs(t - s) <= 5 and t // 3 == s // 5),
]


@dataclass(frozen=True)
class Family:
    """Masks with parameters, or with entries other than zeros and ones.

    Attributes:
        name: as test ids show it.
        draw: parameters for leading axes and lengths T and S, float64.
        build: the mask with given parameters and lengths.
        entry: entry(T, t, s, *parameters), the definition, written out without the package: (...).
        square: T = S.
        dtype: of operands.
    """

    name: str
    draw: Callable[[tuple[int, ...], int, int], list[torch.Tensor]]
    build: Callable[..., Mask]
    entry: Callable[..., torch.Tensor]
    square: bool = True
    dtype: torch.dtype = torch.float64

    def __repr__(self):
        return self.name.replace(" ", "-")

    def oracle(self, T, S, parameters):
        """The matrix (..., T, S), entry by entry."""
        rows = [torch.stack([self.entry(T, t, s, *parameters).to(self.dtype) for s in range(S)], -1) for t in range(T)]
        return torch.stack(rows, -2)


def decays(leading, T, S):
    return [x.sigmoid() for x in random_tensors([leading], seed=1)]


def log_decays(leading, T, S):
    return [-x.abs() / 4 for x in random_tensors([(*leading, T)], seed=2)]


def strong_log_decays(leading, T, S):
    """Resets and decays of 1e-4343 among mild ones."""
    (log_a,) = log_decays(leading, T, S)
    log_a[..., 2::11], log_a[..., 5::7] = -torch.inf, -1e4
    return [log_a]


def turning_log_decays(leading, T, S):
    (log_a,), (theta,) = log_decays(leading, T, S), random_tensors([(*leading, T)], seed=3)
    return [torch.complex(log_a, theta)]


def vectors(*axes):
    """Normal parameters with these trailing axes, T, S or a number each."""

    def draw(leading, T, S):
        return random_tensors([(*leading, *({"T": T, "S": S}.get(axis, axis) for axis in one)) for one in axes])

    return draw


def complex_vectors(*axes):
    def draw(leading, T, S):
        return [torch.complex(x, x.flip(-1) - 1) for x in vectors(*axes)(leading, T, S)]

    return draw


def product_of_decays(T, t, s, log_a):
    return log_a[..., s + 1 : t + 1].exp().prod(-1) if s <= t else 0 * log_a[..., 0].real.exp()


def decay_of_a_level(T, t, s, log_a, weights):
    level = (t ^ s).bit_length()
    return weights[..., t, level] * product_of_decays(T, t, s, log_a)


def causal_alpha(T, t, s, column):
    return column[..., t - s] if s <= t else 0 * column[..., 0]


def two_sided_alpha(T, t, s, column, row):
    return column[..., t - s] + 0 * row[..., 0] if s <= t else row[..., s - t] + 0 * column[..., 0]


def low_rank(T, t, s, U, V):
    return sum(U[..., t, r] * V[..., s, r] for r in range(U.shape[-1]))


FAMILIES = [
    Family(
        "decay",
        decays,
        lambda T, S, gamma: DecayMask(T, gamma),
        lambda T, t, s, gamma: torch.stack([gamma] * (t - s)).prod(0) if s < t else (s == t) + 0 * gamma,
    ),
    Family("semiseparable", log_decays, lambda T, S, log_a: SemiseparableMask(log_a), product_of_decays),
    Family("semiseparable strong", strong_log_decays, lambda T, S, log_a: SemiseparableMask(log_a), product_of_decays),
    Family(
        "semiseparable complex",
        turning_log_decays,
        lambda T, S, log_a: SemiseparableMask(log_a),
        product_of_decays,
        dtype=torch.complex128,
    ),
    Family(
        "hierarchical",
        lambda leading, T, S: [*log_decays(leading, T, S), *vectors(("T", 10))(leading, T, S)],
        lambda T, S, log_a, weights: HierarchicalMask(log_a, weights),
        decay_of_a_level,
    ),
    Family(
        "hierarchical strong",
        lambda leading, T, S: [*strong_log_decays(leading, T, S), *vectors(("T", 10))((), T, S)],
        lambda T, S, log_a, weights: HierarchicalMask(log_a, weights),
        decay_of_a_level,
    ),
    Family("Toeplitz causal", vectors("T"), lambda T, S, column: ToeplitzMask(column), causal_alpha),
    Family(
        "Toeplitz",
        vectors("T", "S"),
        lambda T, S, column, row: ToeplitzMask(column, row),
        two_sided_alpha,
        square=False,
    ),
    Family(
        "Toeplitz complex",
        complex_vectors("T", "S"),
        lambda T, S, column, row: ToeplitzMask(column, row),
        two_sided_alpha,
        square=False,
        dtype=torch.complex128,
    ),
    Family(
        "Fourier",
        lambda leading, T, S: [],
        lambda T, S: FourierMask(T),
        lambda T, t, s: torch.tensor(cmath.exp(2j * cmath.pi * t * s / T), dtype=torch.complex128),
        dtype=torch.complex128,
    ),
    Family("low rank", vectors(("T", 3), ("S", 3)), lambda T, S, U, V: LowRankMask(U, V), low_rank, square=False),
    Family(
        "low rank ∘ causal",
        vectors(("T", 2), ("S", 2)),
        lambda T, S, U, V: LowRankMask(U, V) * CausalMask(T, S),
        lambda T, t, s, U, V: (s <= t) * low_rank(T, t, s, U, V),
        square=False,
    ),
    Family(
        "semiseparable ∘ low rank",
        lambda leading, T, S: [*log_decays(leading, T, S), *vectors(("T", 2), ("T", 2))((), T, S)],
        lambda T, S, log_a, U, V: SemiseparableMask(log_a) * LowRankMask(U, V),
        lambda T, t, s, log_a, U, V: product_of_decays(T, t, s, log_a) * low_rank(T, t, s, U, V),
    ),
    Family(
        "low rank ∘ Fourier",
        complex_vectors(("T", 2), ("T", 2)),
        lambda T, S, U, V: LowRankMask(U, V) * FourierMask(T),
        lambda T, t, s, U, V: low_rank(T, t, s, U, V) * FourierMask(T).dense(torch.complex128)[t, s],
        dtype=torch.complex128,
    ),
]
