"""Entrywise products of masks that multiply fast again: one table of rules."""

from collections.abc import Callable

import torch

from smalearn._checks import check_shapes
from smalearn.masks.base import Mask
from smalearn.masks.fourier import ToeplitzMask
from smalearn.masks.lowrank import HadamardMask, LowRankMask
from smalearn.masks.scan import CausalMask, DecayMask, SemiseparableMask
from smalearn.masks.sparse import IntersectionMask, SparseMask

__all__ = ["hadamard"]


def hadamard(L1: Mask, L2: Mask) -> Mask:
    """The entrywise product L1 ∘ L2, as a mask with a fast product; also written L1 * L2.

    | families | product |
    |---|---|
    | low rank, any | R products with the other mask |
    | decay, decay | decay γ1·γ2 |
    | 1-semiseparable, 1-semiseparable or decay | 1-semiseparable, the log_a add |
    | Toeplitz, Toeplitz or decay | Toeplitz, the α multiply |
    | sparse, sparse or causal | sparse |

    A causal mask with as many targets as sources is a decay of γ = 1. A decay γ = 0 has no gradient once it is a log_a.

    Args:
        L1: (..., T, S) mask.
        L2: (..., T, S) mask; leading axes broadcast.

    Returns:
        (..., T, S) mask.

    Raises:
        ShapeError: the shapes differ.
        TypeError: no rule makes the product fast.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.3, for the families.
    """
    check_shapes("hadamard", {"L1": (L1, "ts"), "L2": (L2, "ts")})
    for one, other, product in RULES:
        for first, second in ((L1, L2), (L2, L1)):
            if (found := _as(first, one)) and (partner := _as(second, other)):
                return product(found, partner)
    names = f"{type(L1).__name__} ∘ {type(L2).__name__}"
    raise TypeError(f"hadamard: no fast product is known for {names}; multiply L1.dense() * L2.dense()")


def _as(mask: Mask, family: type[Mask]) -> Mask | None:
    """The mask as a member of a family to which it belongs, else None."""
    if isinstance(mask, family):
        return mask
    promote = PROMOTIONS.get((type(mask), family))
    return promote(mask) if promote else None


def _causal_as_decay(mask):
    target, source = mask.shape
    return DecayMask(target, 1.0) if target == source else None


def _causal_as_toeplitz(mask):
    target, source = mask.shape
    return ToeplitzMask(torch.ones(target), torch.arange(source).eq(0).float())


def _decay_as_semiseparable(mask):
    return SemiseparableMask(mask.gamma.log()[..., None].expand(mask.shape[:-1]))


def _decay_as_toeplitz(mask):
    return ToeplitzMask(mask.gamma[..., None] ** torch.arange(mask.shape[-1], device=mask.gamma.device))


def _causal_as_semiseparable(mask):
    decay = _causal_as_decay(mask)
    return decay and _decay_as_semiseparable(decay)


def _toeplitz(one, other):
    column = one.column * other.column
    rows = [mask.row for mask in (one, other)]
    return ToeplitzMask(column, None if None in rows else rows[0] * rows[1])


PROMOTIONS: dict[tuple[type[Mask], type[Mask]], Callable[[Mask], Mask | None]] = {
    (CausalMask, DecayMask): _causal_as_decay,
    (CausalMask, SemiseparableMask): _causal_as_semiseparable,
    (CausalMask, ToeplitzMask): _causal_as_toeplitz,
    (DecayMask, SemiseparableMask): _decay_as_semiseparable,
    (DecayMask, ToeplitzMask): _decay_as_toeplitz,
}

RULES: list[tuple[type[Mask], type[Mask], Callable[[Mask, Mask], Mask]]] = [
    (LowRankMask, Mask, HadamardMask),
    (CausalMask, CausalMask, lambda one, other: one),
    (DecayMask, DecayMask, lambda one, other: DecayMask(one.shape[-1], one.gamma * other.gamma)),
    (SemiseparableMask, SemiseparableMask, lambda one, other: SemiseparableMask(one.log_a + other.log_a)),
    (ToeplitzMask, ToeplitzMask, _toeplitz),
    (SparseMask, SparseMask, IntersectionMask),
    (SparseMask, CausalMask, IntersectionMask),
]
