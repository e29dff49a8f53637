"""Masks whose product with a matrix is a scan over time: causal, decay, 1-semiseparable.

All are y_t = a_t y_(t-1) + x_t, with a_t = 1, a_t = γ, or any a_t. The scan has three algorithms: step by step, in
chunks, and in log2(T) rounds, each parallel over all tokens.
"""

import torch

from smalearn._checks import (
    ShapeError,
    broadcast_shapes,
    check_count,
    check_dtypes,
    check_number,
    check_shapes,
    check_signs,
    check_tensor,
    holds,
)
from smalearn._structured import widen
from smalearn.masks.base import PROMOTIONS, RULES, Mask
from smalearn.masks.decay import decay_matrix, join_chunks, since_start, split_chunks

__all__ = [
    "CausalMask",
    "DecayMask",
    "SemiseparableMask",
    "check_decay",
    "scan_associative",
    "scan_chunked",
    "scan_recurrent",
]

CHUNK_LEN = 16  # Chunk length of the scans: larger costs more decays, smaller more recursion levels.
SUM_LEN = 64  # Chunk length of running sums, which need no decays.


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
        self.shape = (check_count("CausalMask", "target", target, 0), check_count("CausalMask", "source", source, 0))

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of ones, (T, S)."""
        return torch.ones(self.shape, dtype=self._dense_dtype(dtype), device=device).tril()

    def _product(self, x):
        target, source = self.shape
        return _extend(_running_sum(x[..., :target, :]), target, repeat_last=target > source)

    def _transpose_product(self, y):
        # Summing from the end: (L^T y)_s = Σ_{t ≥ s} y_t. Rows t ≥ S enter every column, and the cut to S keeps their
        # sum.
        return _extend(_running_sum(y.flip(-2)).flip(-2)[..., : self.shape[1], :], self.shape[1])

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
        gamma = check_decay("DecayMask", length, gamma)
        self.gamma, self.shape = gamma, (*gamma.shape, length, length)

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of powers, (..., T, T)."""
        powers = _powers(*widen(self.gamma, self.gamma.to(device)), self.shape[-1])
        return _triangle(powers).to(self._dense_dtype(dtype))

    def _product(self, x):
        return _scan_constant(x, _matched_to(self.gamma, x))

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
        if log_a.ndim < 1:
            raise ShapeError("SemiseparableMask: log_a needs axes (..., T), got shape ()")
        log_size = log_a.real if log_a.is_complex() else log_a
        if log_size.device.type == "cpu":
            check_signs("SemiseparableMask", log_size)
        self.log_a, self.shape = log_a, (*log_a.shape, log_a.shape[-1])

    def dense(self, dtype=None, device=None):
        """The lower triangular matrix of products of decays, (..., T, T)."""
        return decay_matrix(*widen(self.log_a, self.log_a.to(device))).to(self._dense_dtype(dtype))

    def _product(self, x):
        return scan_chunked(x, _matched_to(self.log_a, x))

    def _transpose_product(self, y):
        # Back in time, what reaches s from s+1 is decayed by a_(s+1). The roll wraps a_0 to the end; after the flip it
        # is first, and acts on nothing.
        log_a = _matched_to(self.log_a, y)
        return scan_chunked(y.flip(-2), log_a.roll(-1, -1).flip(-1)).flip(-2)

    def cost(self, columns: int = 1) -> int:
        """One multiplication and one addition for each step of the recurrence: 2·(T - 1)·columns."""
        return 2 * max(self.shape[-1] - 1, 0) * columns


def scan_recurrent(x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """y_t = exp(log_a[t]) y_(t-1) + x_t, one step after the other.

    Args:
        x: (..., T, columns).
        log_a: (..., T) log decays; the first acts on nothing.

    Returns:
        (..., T, columns), dtype of x.

    Raises:
        ShapeError: an operand has too few axes, T differs, or leading axes do not broadcast.

    Cost:
        2·T·columns operations in T steps.
    """
    _check_scan("scan_recurrent", x, log_a)
    leading = broadcast_shapes(x.shape[:-2], log_a.shape[:-1])
    y, rows = x.new_zeros(*leading, x.shape[-1]), []
    # Decays with an axis behind them: of unbind(-1), and 8 tokens or more, Inductor of torch 2.13 has wrong gradients.
    for decay, now in zip(log_a.exp().to(x.dtype)[..., None].unbind(-2), x.unbind(-2), strict=True):
        y = decay * y + now
        rows.append(y)
    return torch.stack(rows, -2) if rows else x.expand(*leading, *x.shape[-2:])


def scan_chunked(x: torch.Tensor, log_a: torch.Tensor, chunk_len: int = CHUNK_LEN) -> torch.Tensor:
    """`scan_recurrent` in chunks: a dense product inside each, and a scan over their carry-outs.

    1. Multiply each chunk by its decay matrix as if it stood alone.
    2. The last row of each chunk goes through this same function (recursion), with one decay per chunk; the result is
       the state at each chunk's end, its carry-out.
    3. Add the previous carry-out, decayed, to each row.

    A NaN or infinity in x may reach all rows but those of the first chunk, also rows before it. Results and errors are
    those of `scan_recurrent`, and one error more.

    Args:
        x: (..., T, columns).
        log_a: (..., T) log decays; the first acts on nothing.
        chunk_len: tokens of a chunk, ≥ 2; the last chunk may be shorter.

    Raises:
        ValueError: chunk_len is not an integer ≥ 2.

    Cost:
        About T·(chunk_len + 2)·columns multiply-adds in matrix products, T·chunk_len decays, log(T) / log(chunk_len)
        levels.
    """
    _check_scan("scan_chunked", x, log_a)
    check_count("scan_chunked", "chunk_len", chunk_len, 2)
    length = x.shape[-2]
    if length <= chunk_len:
        return decay_matrix(log_a).to(x.dtype) @ x
    log_a_chunks = split_chunks(log_a[..., None], chunk_len)
    inside = decay_matrix(log_a_chunks[..., 0]).to(x.dtype) @ split_chunks(x, chunk_len)
    log_decay = since_start(log_a_chunks)
    carry_out = scan_chunked(inside[..., -1, :], log_decay[..., -1, 0], chunk_len)
    return _add_carry(inside, log_decay.exp().to(x.dtype), carry_out, length)


def scan_associative(x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """`scan_recurrent` in log2(T) rounds, each parallel over all tokens.

    Pairs compose: first (a, x), then (a', x') is (a' a, a' x + x'), with a = exp(log_a), which is associative. After
    round r every token holds the composition of the 2^r tokens up to it; next it takes over that of the token 2^r
    before. Arguments, results and errors are those of `scan_recurrent`.

    Cost:
        2·T·log2(T)·columns operations in log2(T) rounds.

    Source:
        Hillis and Steele 1986, "Data parallel algorithms".
    """
    _check_scan("scan_associative", x, log_a)
    x = x.expand(*broadcast_shapes(x.shape[:-2], log_a.shape[:-1]), *x.shape[-2:])
    a, step, length = log_a.exp(), 1, x.shape[-2]  # no sums of log_a: complex, -inf + -inf has an imaginary part NaN
    while step < length:
        decayed = a[..., step:, None].to(x.dtype) * x[..., :-step, :]
        x = torch.cat([x[..., :step, :], x[..., step:, :] + decayed], -2)
        a = torch.cat([a[..., :step], a[..., step:] * a[..., :-step]], -1)
        step *= 2
    return x


def check_decay(function: str, length: int, gamma: float | torch.Tensor) -> torch.Tensor:
    """Check length and gamma of a mask with constant decay.

    Returns:
        gamma as a tensor, float64 if it was a number.

    Raises:
        TypeError: γ is neither a number nor a tensor.
        ValueError: length is not an integer ≥ 0, γ is not real, or (on a CPU) outside [0, 1].
    """
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


def _check_scan(function, x, log_a):
    """Check x (..., T, columns) and log_a (..., T), of any floating dtypes."""
    check_dtypes(function, {"x": x})
    check_dtypes(function, {"log_a": log_a})
    if log_a.is_complex() and not x.is_complex():
        raise ValueError(f"{function}: log_a is complex but x is {x.dtype}; make it complex")
    if log_a.device != x.device:
        raise ValueError(f"{function}: log_a is on {log_a.device} but x is on {x.device}")
    check_shapes(function, {"x": (x, "tp"), "log_a": (log_a, "t")})


def _scan_constant(x, gamma, stride=1):
    """`scan_chunked` for the constant decay γ^stride, without a logarithm: γ = 0 is exact, and so is its gradient."""
    length = x.shape[-2]
    chunk_len = min(CHUNK_LEN, length)
    powers = _powers(gamma, chunk_len + 1, stride).to(x.dtype)
    toeplitz = _triangle(powers[..., :chunk_len])
    if length == chunk_len:
        return toeplitz @ x
    inside = toeplitz[..., None, :, :] @ split_chunks(x, chunk_len)
    carry_out = _scan_constant(inside[..., -1, :], gamma, stride * chunk_len)
    return _add_carry(inside, powers[..., None, 1:, None], carry_out, length)


def _running_sum(x):
    """`x.cumsum(-2)`, in chunks: cumsum along axis -2 strides through memory, which many columns make slow."""
    length = x.shape[-2]
    if length <= SUM_LEN:
        return x.cumsum(-2)
    inside = split_chunks(x, SUM_LEN).cumsum(-2)
    return _add_carry(inside, inside.new_ones(()), _running_sum(inside[..., -1, :]), length)


def _add_carry(inside, decay, carry_out, length):
    """Add the carry: inside + decay · (carry-out of the previous chunk)."""
    carry_in = torch.cat([torch.zeros_like(carry_out[..., :1, :]), carry_out[..., :-1, :]], -2)
    return join_chunks(torch.addcmul(inside, decay, carry_in[..., None, :]), length)


def _powers(gamma, count, stride=1):
    """γ^0, γ^stride, γ^(2·stride), ...: (..., count)."""
    return gamma[..., None] ** (stride * torch.arange(count, device=gamma.device))


def _triangle(column):
    """The lower triangular Toeplitz matrix with this first column: (..., T) as (..., T, T)."""
    steps = torch.arange(column.shape[-1], device=column.device)
    return column[..., (steps[:, None] - steps).clamp(min=0)].tril()


def _matched_to(parameter, x):
    """A parameter on the operand's device, at least as precise as the operand."""
    return parameter.to(x.device, torch.promote_types(parameter.dtype, (x.real if x.is_complex() else x).dtype))


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
    target, source = mask.shape
    return DecayMask(target, 1.0) if target == source else None


def _decay_as_semiseparable(mask):
    return SemiseparableMask(mask.gamma.log()[..., None].expand(mask.shape[:-1]))


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
