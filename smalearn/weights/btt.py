"""Block tensor train (Kuang et al. 2025, sections 3.1 and A.2): full rank D × D from 2·D^1.5 parameters."""

from collections.abc import Sequence
from math import prod

import torch

from smalearn._checks import check_count, check_type, seeded
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, truncated


class BlockTensorTrain(Weight):
    """M = P_L (⊕_j L_j) P_R (⊕_k R_k^T), equation (11): mix within blocks, regroup, mix within the new blocks, regroup.

    M is (m, n) with m = a·b and n = c·d; P_L and P_R are fixed permutations. With indices i < a, j < b, k < c, l < d::

        M[i·b + j, k·d + l] = Σ_r L[j, i, k, r] R[k, l, j, r],    r < s

    For fixed (j, k) the a × d slice of M has rank at most s; that is the only constraint, so with s = min(a, d) every
    matrix is a block tensor train. It has s·(m·c + n·b) parameters, as many multiply-adds, and rank at most
    min(m, n, b·c·s). For a = b = c = d = √D: 2·s·D^1.5 parameters and multiply-adds, rank up to D. Erratum: the paper's
    second direct sum should run to c, not b.

    To apply one matrix per head to the same input, stack them into one weight with heads·b in place of b; its output
    rows are ordered (a, heads, b).

    Args:
        L: (b, a, c, s). Block j of the first direct sum is L[j] as an (a, c·s) matrix.
        R: (c, d, b, s), dtype and device of L. Block k of the second direct sum is R[k] as a (d, b·s) matrix,
            transposed.

    Raises:
        ShapeError: a factor does not have four axes, or b, c or s differs.
        ValueError: a factor has no floating dtype, or another dtype or device.
    """

    shown = ("rank",)

    def __init__(self, L: torch.Tensor, R: torch.Tensor):
        super().__init__()
        sizes = check_factors(type(self).__name__, {"L": (L, "bacs"), "R": (R, "cdbs")})
        a, b, c, d = (sizes[axis] for axis in "abcd")
        self.sizes = (a, b, c, d)
        self.rank = sizes["s"]
        self.shape = (a * b, c * d)
        self.L = parameter(L)
        self.R = parameter(R)

    def dense(self):
        """The matrix (m, n), entry by entry from the formula above."""
        M = torch.einsum("bacs,cdbs->abcd", self.L, self.R)
        return M.reshape(self.shape)

    def _product(self, X):
        a, b, c, d = self.sizes
        columns = X.shape[-1]
        X = X.unflatten(0, (c, d))  # (c, d, columns)
        R = self.R.permute(0, 3, 2, 1).reshape(c, self.rank * b, d)
        Z = torch.bmm(R, X)  # (c, s·b, columns): each of the c blocks mixed
        # P_R is no copy: what is laid out (c, s, b) reads, by strides, as b blocks of (c, s).
        Z = Z.view(c * self.rank, b, columns).transpose(0, 1)
        Y = torch.bmm(self.L.flatten(2), Z)  # (b, a, columns): each of the b blocks mixed
        return Y.transpose(0, 1).reshape(a * b, columns)  # P_L: rows (b, a) to (a, b)

    @property
    def macs(self) -> int:
        """Multiply-adds for one vector, one per parameter: s·(m·c + n·b)."""
        return self.L.numel() + self.R.numel()

    @property
    def rank_bound(self) -> int:
        """Largest rank for these sizes, which almost all factors reach: min(m, n, b·c·s)."""
        _, b, c, _ = self.sizes
        return min(*self.shape, b * c * self.rank)

    @classmethod
    def random(cls, sizes: tuple[int, int, int, int], rank: int, seed: int, dtype: torch.dtype | None = None):
        """A seeded draw, L from N(0, 1/(c·s)) and R from N(0, 1/d): the paper's variances, by the fan-in of a block.

        Args:
            sizes: (a, b, c, d), such as `balanced_sizes(m, n)`.
            rank: s.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a size is not an integer ≥ 1.
        """
        function = f"{cls.__name__}.random"
        a, b, c, d = check_sizes(function, sizes)
        check_count(function, "rank", rank)
        generator = seeded(function, seed, dtype)
        L = normal((b, a, c, rank), c * rank, generator, dtype)
        R = normal((c, d, b, rank), d, generator, dtype)
        return cls(L, R)

    @classmethod
    def from_dense(cls, M: torch.Tensor, sizes: tuple[int, int, int, int], rank: int):
        """The nearest block tensor train in the Frobenius norm: every slice of M, cut to rank s by its truncated SVD.

        Args:
            M: (m, n).
            sizes: (a, b, c, d) with a·b = m and c·d = n.
            rank: s.

        Returns:
            The weight; ‖M − dense‖² is the sum, over all slices, of the squared singular values beyond the s-th.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, a size is not an integer ≥ 1, or the sizes do not multiply to (m, n).
        """
        function = f"{cls.__name__}.from_dense"
        M = matrix(function, M)
        a, b, c, d = check_sizes_of(function, M, sizes)
        check_count(function, "rank", rank)
        slices = M.reshape(a, b, c, d).permute(1, 2, 0, 3)  # (b, c, a, d)
        L, R = truncated(slices, rank)  # (b, c, a, s) and (b, c, d, s)
        return cls(L.transpose(1, 2).contiguous(), R.permute(1, 2, 0, 3).contiguous())


def balanced_sizes(m: int, n: int) -> tuple[int, int, int, int]:
    """Sizes (a, b, c, d) for a block tensor train of shape (m, n), each pair as near to a square as it can be.

    Both pairs are ordered the same way (a ≤ b, c ≤ d), so b·c = m where m = n, and s = 1 reaches full rank. Where m ≠ n
    it may not.

    Args:
        m: rows, a·b.
        n: columns, c·d.

    Returns:
        (a, b, c, d).

    Raises:
        ValueError: a size is not an integer ≥ 1.

    Example:
        >>> balanced_sizes(768, 3072)
        (24, 32, 48, 64)
    """
    check_count("balanced_sizes", "m", m)
    check_count("balanced_sizes", "n", n)
    a = _largest_divisor_below_root(m)
    c = _largest_divisor_below_root(n)
    return a, m // a, c, n // c


def check_sizes(function: str, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Check that sizes are four integers ≥ 1, and return them."""
    check_type(function, "sizes", sizes, Sequence)
    if len(sizes) != 4:
        raise ValueError(f"{function}: sizes must be (a, b, c, d), got {sizes!r}")
    return tuple(check_count(function, name, size) for name, size in zip("abcd", sizes, strict=True))


def check_sizes_of(function: str, M: torch.Tensor, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Check that sizes multiply to the shape of M: a·b = m and c·d = n; the message names all pairs that do."""
    a, b, c, d = check_sizes(function, sizes)
    for names, pair, size in (("(a, b)", (a, b), M.shape[0]), ("(c, d)", (c, d), M.shape[1])):
        if prod(pair) != size:
            fitting = ", ".join(str((k, size // k)) for k in range(1, size + 1) if size % k == 0)
            raise ValueError(f"{function}: {names} must multiply to {size}, got {pair}; what fits: {fitting}")
    return a, b, c, d


def _largest_divisor_below_root(size):
    """The largest k that divides a size, with k² at most that."""
    return max(k for k in range(1, size + 1) if size % k == 0 and k * k <= size)
