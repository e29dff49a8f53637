"""Discretisation of the differential equation h' = A h + B x in steps of length dt, which gives the recurrence."""

import torch

from smalearn._checks import broadcast_shapes, check_dtypes, check_shapes
from smalearn._structured import widen
from smalearn.ssm.transitions import check_generators

SERIES = 0.1  # below this size of z, (e^z - 1)/z and its derivative come from the Taylor series
TERMS = 12  # 0.1^12 / 13! is 1e-22


def discretise_zero_order_hold(dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact step of h' = A h + B x for an input that is constant while the step lasts.

    A_bar = exp(dt A), B_bar = ∫ exp(s A) ds B over 0 ≤ s ≤ dt, which is A^-1 (exp(dt A) - I) B where A is invertible
    and dt·B where A = 0. The structure of A follows from its number of axes. Pass a constant A as `A.expand(T, N)`.

    Args:
        dt: (..., T) lengths of the steps, in the unit of time in which A is a rate.
        A: (..., T), (..., T, N) or (..., T, N, N) rates; any matrix, singular ones included.
        B: (..., T, N).

    Returns:
        A_bar, as many trailing axes as A, and B_bar (..., T, N), in their dtype.

    Raises:
        ShapeError: an axis has two sizes, or A.ndim matches none of the layouts.
        ValueError: a dtype or device differs.

    Cost:
        Two functions of dt·A per step, elementwise for a scalar or diagonal A; the exponential of an (N + 1) × (N + 1)
        matrix per step for a general one, of order N³.

    Source:
        Gu and Dao 2023 (Mamba), Eq. (4); Van Loan 1978 for the exponential of the matrix with a column appended.
    """
    _check("discretise_zero_order_hold", dt, A, B)
    rates, dt_b = _rates(dt, A, B), dt[..., None]
    if A.ndim <= B.ndim:
        z = rates if A.ndim == B.ndim else rates[..., None]
        return rates.exp(), _phi(z) * dt_b * B
    # exp of [[dt A, dt B], [0, 0]] is [[A_bar, B_bar], [0, 1]]: no inverse of A is needed.
    inputs = dt_b * B
    leading = broadcast_shapes(rates.shape[:-2], inputs.shape[:-1])
    columns = torch.cat([rates.expand(*leading, *rates.shape[-2:]), inputs.expand(*leading, -1)[..., None]], -1)
    (wide,) = widen(columns, torch.nn.functional.pad(columns, (0, 0, 0, 1)))
    block = torch.linalg.matrix_exp(wide).to(columns.dtype)
    return block[..., :-1, :-1], block[..., :-1, -1]


def discretise_mamba(dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mamba's step: A_bar = exp(dt A) is exact, B_bar = dt B takes the input as a single kick at the end of the step.

    The zero-order hold has B_bar = dt·(I + dt A/2 + ...) B, so the two differ by dt²·A B/2 per step to first order.
    Arguments, results and errors are those of `discretise_zero_order_hold`.

    Cost:
        One exponential per entry of A, or a matrix exponential of order N³ per step; T·N products.

    Source:
        Gu and Dao 2023 (Mamba), whose text gives the zero-order hold and whose code does this.
    """
    _check("discretise_mamba", dt, A, B)
    rates = _rates(dt, A, B)
    A_bar = torch.linalg.matrix_exp(*widen(rates, rates)).to(rates.dtype) if A.ndim > B.ndim else rates.exp()
    return A_bar, dt[..., None] * B


def discretise_trapezoid(
    dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mamba-3's step: the input counts at both ends, h_t = A_bar_t h_(t-1) + before_t x_(t-1) + now_t x_t.

    before_t = (1 - weight_t) dt_t A_bar_t B_(t-1) and now_t = weight_t dt_t B_t, the trapezoidal rule for the integral
    of exp((dt - s) A) B x. With a weight of 1/2 the error of a whole sequence is of order dt², with any other of order
    dt; a weight of 1 is `discretise_mamba`. Nothing precedes the first token, so before_0 = 0.

    Args:
        dt: (..., T) lengths of the steps, in the unit of time in which A is a rate.
        A: (..., T), (..., T, N) or (..., T, N, N) rates.
        B: (..., T, N).
        weight: (..., T) share of a step's end, from 0 to 1.

    Returns:
        A_bar, as many trailing axes as A; before (..., T, N) and now (..., T, N).

    Raises:
        ShapeError: an axis has two sizes, or A.ndim matches none of the layouts.
        ValueError: a dtype or device differs.

    Cost:
        That of `discretise_mamba`, and 4·T·N products.

    Source:
        Lahoti et al. 2026 (Mamba-3), the exponential-trapezoidal rule.
    """
    _check("discretise_trapezoid", dt, A, B, weight=weight)
    A_bar, now = discretise_mamba(dt, A, B)
    earlier = torch.cat([torch.zeros_like(B[..., :1, :]), B[..., :-1, :]], -2)[..., : B.shape[-2], :]
    if A.ndim > B.ndim:
        before = (A_bar @ earlier[..., None])[..., 0]
    else:
        before = (A_bar if A.ndim == B.ndim else A_bar[..., None]) * earlier
    return A_bar, ((1 - weight) * dt)[..., None] * before, weight[..., None] * now


def _check(function, dt, A, B, **others):
    """Check steps (..., T), A with its structure and B (..., T, N), of one dtype and device; others are like steps."""
    steps = {"dt": dt} | others
    check_dtypes(function, {"B": B, "A": A} | steps)
    check_generators(function, A, B)
    check_shapes(function, {"B": (B, "tn")} | {name: (x, "t") for name, x in steps.items()})


def _rates(dt, A, B):
    """dt·A, with time where the structure of A has it."""
    return dt[(..., *(None,) * (A.ndim - B.ndim + 1))] * A


def _phi(z: torch.Tensor) -> torch.Tensor:
    """(e^z - 1)/z, 1 at z = 0, with a derivative that is accurate near 0 too."""
    small = z.abs() < SERIES
    z_small = torch.where(small, z, 0)
    series = torch.ones_like(z)
    for k in range(TERMS, 0, -1):
        series = 1 + z_small * series / (k + 1)
    z_large = torch.where(small, 1, z)
    return torch.where(small, series, torch.expm1(z_large) / z_large)
