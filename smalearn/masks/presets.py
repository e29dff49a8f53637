"""Masks that models are known by: the slopes of ALiBi, the decays of RetNet, and a decay that turns."""

import math

import torch

from smalearn._checks import check_count, check_dtypes, check_number, check_shapes, check_values
from smalearn._structured import widen
from smalearn.masks.causal import SemiseparableMask, check_decay


def alibi_slopes(heads: int) -> torch.Tensor:
    """Slopes m_h = 2^(-8 (h+1) / heads) of ALiBi.

    ALiBi adds -m (t-s) to the scores of softmax attention. Under the exponential that is a factor exp(-m)^(t-s), the
    mask `DecayMask(T, torch.exp(-alibi_slopes(heads)))`.

    Args:
        heads: their number ≥ 1.

    Returns:
        (heads,), float64.

    Raises:
        ValueError: heads is not an integer ≥ 1.

    Source:
        Press, Smith and Lewis 2022 (ALiBi), section 3; for powers of two.
    """
    check_count("alibi_slopes", "heads", heads)
    return 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)


def retnet_decays(heads: int) -> torch.Tensor:
    """Decays γ_h = 1 - 2^(-5-h) of RetNet.

    Args:
        heads: their number ≥ 1.

    Returns:
        (heads,), float64.

    Raises:
        ValueError: heads is not an integer ≥ 1.

    Source:
        Sun et al. 2023 (RetNet), section 2.2.
    """
    check_count("retnet_decays", "heads", heads)
    return 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))


def rotary_decay_mask(length: int, gamma: float | torch.Tensor, theta: float | torch.Tensor) -> SemiseparableMask:
    """The complex mask L[t, s] = (γ e^(iθ))^(t-s) for s ≤ t: rotation of queries and keys, and decay, in one.

    Turn the complex numbers q_t by t θ and k_s by s θ: then q_t conj(k_s) γ^(t-s) becomes q_t conj(k_s) L[t, s], whose
    real part is the score. Rotary positions are a mask.

    Args:
        length: T ≥ 0.
        gamma: decay in [0, 1], a number or a tensor (...).
        theta: angle per step in radians, a number or a tensor (...), such as one for each frequency.

    Returns:
        Complex mask of shape (..., T, T).

    Raises:
        ShapeError: γ and θ do not broadcast.
        TypeError: γ or θ is neither a number nor a tensor.
        ValueError: length is not an integer ≥ 0, γ (on a CPU) is outside [0, 1], or θ is not real.

    Source:
        Sun et al. 2023 (RetNet), equation (3); Su et al. 2021 (RoPE).
    """
    gamma = check_decay("rotary_decay_mask", length, gamma)
    if isinstance(theta, torch.Tensor):
        check_dtypes("rotary_decay_mask", {"theta": theta})
    elif not math.isfinite(check_number("rotary_decay_mask", "theta", theta)):
        raise ValueError(f"rotary_decay_mask: theta must be finite, got {theta}")
    theta = theta if isinstance(theta, torch.Tensor) else torch.tensor(theta, dtype=torch.float64)
    if theta.is_complex():
        raise ValueError(f"rotary_decay_mask: theta must be real, got {theta.dtype}")
    if not gamma.is_meta:
        check_values("rotary_decay_mask", "theta", theta)
    check_shapes("rotary_decay_mask", {"gamma": (gamma, ""), "theta": (theta, "")})
    (gamma,) = widen(gamma, gamma)  # PyTorch computes with no complex numbers of half precision
    log_a = torch.complex(*torch.broadcast_tensors(gamma.log(), theta.to(gamma)))
    return SemiseparableMask(log_a[..., None].expand(*log_a.shape, length))
