"""Masks whose product is a scan over time, y_t = a_t y_(t-1) + x_t: causal, decay, 1-semiseparable.

They differ in the decay: a_t = 1, a_t = γ, or any a_t. Their products are the scans of `masks.scan`, from the last
token to the first for the transpose.
"""

import torch

from smalearn._checks import check_count, check_dtypes, check_number, check_shapes, check_signs, check_tensor, holds
from smalearn._structured import match_operand, widen
from smalearn.masks.base import PROMOTIONS, RULES, Mask
from smalearn.masks.decay import decay_matrix
from smalearn.masks.scan import decay_powers, lower_toeplitz, running_sum, scan_chunked, scan_constant


class CausalMask(Mask):
    """L[t, s] = 1 if s ≤ t else 0: target t sees sources 0..t (Mamba-2 paper, section 4.1.4).

    Its product is the running sum y_t = y_(t-1) + x_t.

    Args:
        target: length T ≥ 0.
        source: length S ≥ 0; T if None. No target sees a source later than the last target, and targets later than
            the last source see all of them.

    Raises:
        ValueError: a length is not an integer ≥ 0.

    Example:
        >>> CausalMask(3).matmul(torch.tensor([[1.0], [2.0], [3.0]])).ravel()
        tensor([1., 3., 6.])
    """

    def __init__(self, target: int, source: int | None = None):
        source = target if source is None else source
        check_count("CausalMask", "target", target, 0)
        check_count("CausalMask", "source", source, 0)
        self.shape = (target, source)

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of ones, (T, S)."""
        return torch.ones(self.shape, dtype=self._dense_dtype(dtype), device=device).tril()

    def _product(self, x):
        target, source = self.shape
        sums = running_sum(x[..., :target, :])
        return _extend(sums, target, repeat_last=target > source)

    def _transpose_product(self, y):
        # Summing from the end: (L^T y)_s = Σ_{t ≥ s} y_t. Rows t ≥ S enter every column, and the cut to S keeps their
        # sum.
        source = self.shape[1]
        sums = running_sum(y.flip(-2)).flip(-2)
        return _extend(sums[..., :source, :], source)

    def cost(self, columns: int = 1) -> int:
        """One addition per entry of the running sum: min(T, S)·columns."""
        return min(self.shape) * columns


class DecayMask(Mask):
    """L[t, s] = γ^(t-s) if s ≤ t else 0: the mask of RetNet (Mamba-2 paper, section 4.3).

    Its product is y_t = γ y_(t-1) + x_t. γ = 1 gives the causal mask, γ = 0 the identity, because 0^0 = 1.

    Args:
        length: T ≥ 0.
        gamma: decay γ in [0, 1], a number or a tensor (...) with one for each head.

    Raises:
        ValueError: length is not an integer ≥ 0, γ is not real, or (on a CPU) outside [0, 1].

    Example:
        >>> DecayMask(3, 0.5).dense()
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 1.0000, 0.0000],
                [0.2500, 0.5000, 1.0000]])
    """

    parameters = ("gamma",)

    def __init__(self, length: int, gamma: float | torch.Tensor):
        self.gamma = check_decay("DecayMask", length, gamma)
        self.shape = (*self.gamma.shape, length, length)

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of powers, (..., T, T)."""
        (gamma,) = widen(self.gamma, self.gamma.to(device))
        powers = decay_powers(gamma, self.shape[-1])
        return lower_toeplitz(powers).to(self._dense_dtype(dtype))

    def _product(self, x):
        (gamma,) = match_operand(x, self.gamma)
        return scan_constant(x, gamma)

    def _transpose_product(self, y):
        return self._product(y.flip(-2)).flip(-2)

    def cost(self, columns: int = 1) -> int:
        """One multiplication and one addition for each step of the recurrence: 2·(T - 1)·columns."""
        return 2 * max(self.shape[-1] - 1, 0) * columns


class SemiseparableMask(Mask):
    """L[t, s] = a_t a_(t-1) ... a_(s+1) if s ≤ t else 0: the 1-semiseparable mask of SSD, a decay that depends on time.

    Its product is y_t = a_t y_(t-1) + x_t. Constant a gives the decay mask. Nothing precedes the first token, so a_0
    does not occur. An imaginary part of log_a rotates the phase; π i gives a negative a.

    Args:
        log_a: (..., T) log of a, real part ≤ 0; −inf for a = 0, a reset: nothing before it is seen from there on.

    Raises:
        ShapeError: log_a has no axis.
        ValueError: log_a is not a floating tensor, or (on a CPU) its real part is positive or NaN.

    Source:
        Dao and Gu 2024 (Mamba-2), section 3.2.2, definition 3.3.

    Example:
        >>> SemiseparableMask(torch.tensor([1.0, 0.5, 0.0, 0.25]).log()).dense()
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 1.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 1.0000, 0.0000],
                [0.0000, 0.0000, 0.2500, 1.0000]])
    """

    parameters = ("log_a",)

    def __init__(self, log_a: torch.Tensor):
        check_dtypes("SemiseparableMask", {"log_a": log_a})
        check_shapes("SemiseparableMask", {"log_a": (log_a, "t")})
        log_size = log_a.real if log_a.is_complex() else log_a
        if log_size.device.type == "cpu":
            check_signs("SemiseparableMask", log_size)
        self.log_a = log_a
        self.shape = (*log_a.shape, log_a.shape[-1])

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of products of decays, (..., T, T)."""
        (log_a,) = widen(self.log_a, self.log_a.to(device))
        return decay_matrix(log_a).to(self._dense_dtype(dtype))

    def _product(self, x):
        (log_a,) = match_operand(x, self.log_a)
        return scan_chunked(x, log_a)

    def _transpose_product(self, y):
        # Back in time, what reaches s from s+1 is decayed by a_(s+1). The roll wraps a_0 to the end; after the flip it
        # is first, and acts on nothing.
        (log_a,) = match_operand(y, self.log_a)
        backwards = log_a.roll(-1, -1).flip(-1)
        return scan_chunked(y.flip(-2), backwards).flip(-2)

    def cost(self, columns: int = 1) -> int:
        """One multiplication and one addition for each step of the recurrence: 2·(T - 1)·columns."""
        return 2 * max(self.shape[-1] - 1, 0) * columns


def check_decay(function: str, length: int, gamma: float | torch.Tensor) -> torch.Tensor:
    """Check length and gamma of a mask with constant decay; return gamma as a tensor, float64 if it was a number."""
    check_count(function, "length", length, 0)
    if isinstance(gamma, torch.Tensor):
        check_tensor(function, "gamma", gamma)
    else:
        gamma = torch.tensor(check_number(function, "gamma", gamma), dtype=torch.float64)
    if not gamma.is_floating_point() or gamma.element_size() < 2:
        raise ValueError(f"{function}: gamma must be real and floating, got {gamma.dtype}")
    if gamma.device.type == "cpu" and not holds((gamma >= 0) & (gamma <= 1)):
        worst = gamma.ravel()[(gamma - 0.5).abs().argmax()].item()  # argmax prefers NaN
        raise ValueError(f"{function}: gamma must be in [0, 1], got {worst:.3g}")
    return gamma


def _extend(x: torch.Tensor, length: int, repeat_last: bool = False) -> torch.Tensor:
    """Extend axis -2 of x to a length: with copies of its last row, or with zeros."""
    missing = length - x.shape[-2]
    if missing <= 0:
        return x
    if repeat_last and x.shape[-2]:
        tail = x[..., -1:, :].expand(*x.shape[:-2], missing, x.shape[-1])
    else:
        tail = x.new_zeros(*x.shape[:-2], missing, x.shape[-1])
    return torch.cat([x, tail], dim=-2)


def _causal_as_decay(mask):
    """γ = 1, where there are as many targets as sources."""
    target, source = mask.shape
    return DecayMask(target, 1.0) if target == source else None


def _decay_as_semiseparable(mask):
    log_a = mask.gamma.log()[..., None]  # (..., 1)
    return SemiseparableMask(log_a.expand(mask.shape[:-1]))


def _causal_as_semiseparable(mask):
    decay = _causal_as_decay(mask)
    return decay and _decay_as_semiseparable(decay)


RULES += [
    (CausalMask, CausalMask, lambda one, other: one),
    (DecayMask, DecayMask, lambda one, other: DecayMask(one.shape[-1], one.gamma * other.gamma)),
    (SemiseparableMask, SemiseparableMask, lambda one, other: SemiseparableMask(one.log_a + other.log_a)),
]
PROMOTIONS |= {
    (CausalMask, DecayMask): _causal_as_decay,
    (CausalMask, SemiseparableMask): _causal_as_semiseparable,
    (DecayMask, SemiseparableMask): _decay_as_semiseparable,
}
