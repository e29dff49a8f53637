"""Block tensor train (structured attention paper, sections 3.1 and A.2): full rank from D^1.5 parameters."""

from math import prod

import torch

from smalearn._checks import check_count
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, truncated

__all__ = ["BlockTensorTrain", "balanced_sizes", "check_sizes", "fit_sizes"]


class BlockTensorTrain(Weight):
    """M = P_L (⊕_b L_b) P_R (⊕_c R_c^T), equation (11): mix within blocks, regroup, mix within the new blocks, regroup.

    With m = a·b, n = c·d, rows numbered (a b) and columns (c d), entry by entry::

        M[(a b), (c d)] = Σ_s L[b, a, c, s] R[c, d, b, s]

    So for fixed (b, c) the a × d slice of M has rank s, and nothing else is asked of M: with s = min(a, d) every matrix
    is one. Parameters s·(m·c + n·b), as many multiply-adds, rank at most min(m, n, b·c·s). With a = b = c = d = √D
    these are 2·s·D^1.5 and D. The paper's second direct sum runs to b; it has c blocks.

    Several matrices for one input, one for each head, are one weight whose b is heads·b; its rows are (a, heads, b).

    Args:
        L: (b, a, c, s). Block b of the first direct sum is its (a, c·s) matrix.
        R: (c, d, b, s), dtype and device of L. Block c of the second direct sum is its (d, b·s) matrix, transposed.

    Raises:
        ShapeError: a factor does not have four axes, or b, c or s differs.
        ValueError: a factor has no floating dtype, or another dtype or device.
    """

    shown = ("rank",)

    def __init__(self, L: torch.Tensor, R: torch.Tensor):
        super().__init__()
        name = type(self).__name__
        sizes = check_factors(name, {"L": (L, "bacs"), "R": (R, "cdbs")})
        self.sizes, self.rank = tuple(sizes[axis] for axis in "abcd"), sizes["s"]
        a, b, c, d = self.sizes
        self.shape = (a * b, c * d)
        self.L, self.R = parameter(L), parameter(R)

    @classmethod
    def random(cls, sizes: tuple[int, int, int, int], rank: int, seed: int, dtype: torch.dtype | None = None):
        """A seeded draw, L from N(0, 1/(c·s)) and R from N(0, 1/d): the paper's variances, by the fan-in of a block.

        Args:
            sizes: (a, b, c, d), such as `balanced_sizes(m, n)`.
            rank: s.
            seed: of the draw.
            dtype: torch's default if None.

        Returns:
            The weight, (a·b, c·d).

        Raises:
            ValueError: a size is not an integer ≥ 1.
        """
        a, b, c, d = check_sizes(f"{cls.__name__}.random", sizes)
        check_count(f"{cls.__name__}.random", "rank", rank)
        generator = torch.Generator().manual_seed(seed)
        L = normal((b, a, c, rank), c * rank, generator, dtype)
        return cls(L, normal((c, d, b, rank), d, generator, dtype))

    @classmethod
    def from_dense(cls, M: torch.Tensor, sizes: tuple[int, int, int, int], rank: int):
        """The nearest such matrix: every slice of M cut to rank s by its singular value decomposition.

        Args:
            M: (m, n).
            sizes: (a, b, c, d) with a·b = m and c·d = n.
            rank: s.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares of all singular values of the slices after the s-th.

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, a size is not an integer ≥ 1, or the sizes do not multiply to (m, n).
        """
        function = f"{cls.__name__}.from_dense"
        M = matrix(function, M)
        a, b, c, d = fit_sizes(function, M, sizes)
        check_count(function, "rank", rank)
        L, R = truncated(M.reshape(a, b, c, d).permute(1, 2, 0, 3), rank)  # of the slices, (b, c, a, d)
        return cls(L.transpose(1, 2).contiguous(), R.permute(1, 2, 0, 3).contiguous())

    @property
    def macs(self) -> int:
        """s·(m·c + n·b)."""
        return self.L.numel() + self.R.numel()

    @property
    def rank_bound(self) -> int:
        """min(m, n, b·c·s)."""
        _, b, c, _ = self.sizes
        return min(*self.shape, b * c * self.rank)

    def dense(self):
        """Its entries by the formula, (m, n)."""
        return torch.einsum("bacs,cdbs->abcd", self.L, self.R).reshape(self.shape)

    def _product(self, X):
        a, b, c, d = self.sizes
        # In the order (c, s, b) the numbers in between can be read as c blocks and as b blocks: P_R moves nothing.
        Z = torch.bmm(self.R.permute(0, 3, 2, 1).reshape(c, -1, d), X.unflatten(0, (c, d)))
        Z = Z.view(c * self.rank, b, -1).transpose(0, 1)
        Y = torch.bmm(self.L.flatten(2), Z)
        return Y.transpose(0, 1).reshape(a * b, -1)  # P_L


def balanced_sizes(m: int, n: int) -> tuple[int, int, int, int]:
    """Sizes (a, b, c, d) for a block tensor train of shape (m, n), each pair as near to a square as it can be.

    a ≤ b and c ≤ d, because then b·c, on which the rank depends, is at least m where m = n: full rank at s = 1.

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
    a, c = (max(k for k in range(1, size + 1) if size % k == 0 and k * k <= size) for size in (m, n))
    return a, m // a, c, n // c


def check_sizes(function: str, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Check that sizes are four integers ≥ 1.

    Returns:
        (a, b, c, d).

    Raises:
        ValueError: naming function, argument, expected and got.
    """
    if len(sizes) != 4:
        raise ValueError(f"{function}: sizes must be (a, b, c, d), got {sizes!r}")
    return tuple(check_count(function, name, size) for name, size in zip("abcd", sizes, strict=True))


def fit_sizes(function: str, M: torch.Tensor, sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Check that sizes multiply to the shape of M: a·b = m and c·d = n.

    Returns:
        (a, b, c, d).

    Raises:
        ValueError: naming function, argument, expected, got and all pairs that fit.
    """
    a, b, c, d = check_sizes(function, sizes)
    for names, pair, size in (("(a, b)", (a, b), M.shape[0]), ("(c, d)", (c, d), M.shape[1])):
        if prod(pair) != size:
            fitting = ", ".join(str((k, size // k)) for k in range(1, size + 1) if size % k == 0)
            raise ValueError(f"{function}: {names} must multiply to {size}, got {pair}; what fits: {fitting}")
    return a, b, c, d
