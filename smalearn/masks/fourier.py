"""Masks whose product is a fast Fourier transform: Toeplitz and the Fourier matrix itself."""

import math

import torch

from smalearn._checks import broadcast_shapes, check_count, check_dtypes, check_shapes
from smalearn._structured import match_operand
from smalearn.masks.base import PROMOTIONS, RULES, Mask
from smalearn.masks.causal import CausalMask, DecayMask
from smalearn.masks.scan import decay_powers

BATCH_NUMBERS = 1 << 20
"""Numbers that are transformed at once: half takes 1.15 times as long, double the same (one thread of an AMD EPYC)."""


class ToeplitzMask(Mask):
    """L[t, s] = α_(t-s): entries depend on the relative position alone (Mamba-2 paper, section 4.3).

    The paper's α in R^T has the offsets 0..T-1 only, which is the causal case; all offsets need T + S - 1 numbers. The
    product is a convolution, hence a product of spectra: its rounding errors are relative to the largest entries of a
    column, not to each.

    Args:
        column: (..., T) the first column α_0, α_1, ..., α_(T-1), real or complex.
        row: (..., S) the first row α_0, α_(-1), ..., α_(-(S-1)), dtype and device of column; its first entry is not
            read: α_0 is the column's. Causal, with S = T and zeros above the diagonal, if None.

    Raises:
        ShapeError: column or row has no axis, or their leading axes do not broadcast.
        ValueError: column is not a floating tensor, or row has another dtype or device.

    Example:
        >>> ToeplitzMask(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -2.0])).dense()
        tensor([[ 1., -2.],
                [ 2.,  1.],
                [ 3.,  2.]])
    """

    def __init__(self, column: torch.Tensor, row: torch.Tensor | None = None):
        given = {"column": (column, "t")} | ({} if row is None else {"row": (row, "s")})
        check_dtypes("ToeplitzMask", {name: x for name, (x, _) in given.items()})
        sizes = check_shapes("ToeplitzMask", given)
        self.column, self.row, self.parameters = column, row, tuple(given)
        leading = broadcast_shapes(*(x.shape[:-1] for x, _ in given.values()))
        self.shape = (*leading, sizes["t"], sizes.get("s", sizes["t"]))

    @property
    def stored(self) -> int:
        """Numbers that are read: all but the first of each row."""
        return self.column.numel() + (0 if self.row is None else self.row[..., 1:].numel())

    def dense(self, dtype=None, device=None):
        """The Toeplitz matrix, (..., T, S)."""
        dtype, (target, source) = self._dense_dtype(dtype), self.shape[-2:]
        # The last S-1 entries hold the negative offsets: as indices they count from the end.
        circle = self._circle(target + max(source, 1) - 1, device)
        offsets = torch.arange(target, device=circle.device)[:, None] - torch.arange(source, device=circle.device)
        return circle[..., offsets].to(dtype)

    def _product(self, x):
        return self._convolved(x, self.shape[-2], self._circle)

    def _transpose_product(self, y):
        def backwards(size, device):  # offset t-s becomes s-t
            return self._circle(size, device).flip(-1).roll(1, -1)

        return self._convolved(y, self.shape[-1], backwards)

    def _circle(self, size, device):
        """One period of α as a circular convolution of that size has it: offsets 0..T-1, zeros, offsets -(S-1)..-1."""
        target, source = self.shape[-2:]
        column = self.column.to(device).expand(*self.shape[:-2], target)
        if self.row is None or source < 2:
            before = column[..., :0]
        else:
            before = self.row[..., 1:].flip(-1).to(device).expand(*self.shape[:-2], source - 1)
        gap = column.new_zeros(*self.shape[:-2], size - target - before.shape[-1])
        return torch.cat([column, gap, before], -1)

    def _convolved(self, x, length, circle):
        """The first `length` rows of the circular convolution of x with a circle long enough not to wrap around."""
        target, source = self.shape[-2:]
        shape = (*broadcast_shapes(self.shape[:-2], x.shape[:-2]), length, x.shape[-1])
        if 0 in (*shape, target, source):  # no library transforms nothing
            return x.new_zeros(shape)
        size = _period(target, source)
        (alpha,) = match_operand(x, circle(size, x.device))  # (..., size)
        if x.is_complex():
            forward, inverse = torch.fft.fft, torch.fft.ifft
        else:
            forward, inverse = torch.fft.rfft, torch.fft.irfft
        complex_x = torch.promote_types(x.dtype, torch.complex32)  # the complex dtype of the precision of x
        spectrum = forward(alpha)[..., None].to(complex_x)  # (..., frequencies, 1)
        # Few columns at a time: their spectra stay in a cache, and need little memory.
        outputs = []
        for part in x.split(max(1, BATCH_NUMBERS // size), -1):
            product = spectrum * forward(part, size, dim=-2)  # padded with zeros to the period
            outputs.append(inverse(product, size, dim=-2)[..., :length, :])
        return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]

    def cost(self, columns: int = 1) -> int:
        """Transforms of 2.5·n·log2(n), two for each column and one of α, and 3·n to multiply; n ≥ T + S - 1."""
        if not self.shape[-2] * self.shape[-1]:
            return 0
        size = _period(*self.shape[-2:])
        transform = math.ceil(2.5 * size * math.log2(size))
        return (2 * columns + 1) * transform + 3 * size * columns


class FourierMask(Mask):
    """L[t, s] = exp(2π i t s / T), the matrix of the discrete Fourier transform (Mamba-2 paper, section 4.3).

    It is complex, has full rank, and is not causal: every target sees all sources. The product is T times the inverse
    transform. The paper writes ω^(ts/T), which is this with ω = exp(2π i) read as a formal power: for the usual root
    ω = exp(2π i / T) the exponent would be divided by T twice.

    Args:
        length: T ≥ 0.

    Raises:
        ValueError: length is not an integer ≥ 0.

    Example:
        >>> FourierMask(2).dense().real
        tensor([[ 1.,  1.],
                [ 1., -1.]])
    """

    is_complex = True

    def __init__(self, length: int):
        check_count("FourierMask", "length", length, 0)
        self.shape = (length, length)

    def dense(self, dtype=None, device=None):
        """The matrix of roots of unity, (T, T), complex."""
        dtype, length = self._dense_dtype(dtype), self.shape[-1]
        steps = torch.arange(length, device=device)
        # t·s counts modulo T, which keeps the angles small, and so the digits of their sines.
        angle = (2 * math.pi / max(length, 1)) * (steps[:, None] * steps % max(length, 1)).double()
        return torch.polar(torch.ones_like(angle), angle).to(dtype)

    def _product(self, x):
        return torch.fft.ifft(x, dim=-2, norm="forward") if x.numel() else x

    def _transpose_product(self, y):
        return self._product(y)  # t·s = s·t

    def cost(self, columns: int = 1) -> int:
        """One complex transform for each column: 5·T·log2(T)."""
        length = self.shape[-1]
        return math.ceil(5 * length * math.log2(length)) * columns if length else 0


def _period(target: int, source: int) -> int:
    """The least power of two that holds all T + S - 1 offsets."""
    return 1 << (target + source - 2).bit_length()


def _product(one, other):
    rows = [mask.row for mask in (one, other)]
    return ToeplitzMask(one.column * other.column, None if None in rows else rows[0] * rows[1])


def _causal_as_toeplitz(mask):
    target, source = mask.shape
    return ToeplitzMask(torch.ones(target), torch.arange(source).eq(0).float())


def _decay_as_toeplitz(mask):
    return ToeplitzMask(decay_powers(mask.gamma, mask.shape[-1]))


RULES.append((ToeplitzMask, ToeplitzMask, _product))
PROMOTIONS |= {(CausalMask, ToeplitzMask): _causal_as_toeplitz, (DecayMask, ToeplitzMask): _decay_as_toeplitz}
