"""Kronecker products: two small matrices, each on its own digit of the feature's number."""

import torch

from smalearn._checks import seeded
from smalearn.weights.base import Weight, check_factors, matrix, normal, parameter, truncated
from smalearn.weights.btt import check_sizes, check_sizes_of


class Kronecker(Weight):
    """M = A ⊗ B: M[(a b), (c d)] = A[a, c] B[b, d].

    Parameters a·c + b·d. Multiply-adds min(b·c·(a + d), a·d·(b + c)), by the order of the two: far more than
    parameters, √D times as many for square factors. Rank at most min(a, c)·min(b, d).

    Args:
        A: (a, c).
        B: (b, d), dtype and device of A.

    Raises:
        ShapeError: a factor does not have two axes.
        ValueError: a factor has no floating dtype, or another dtype or device.
    """

    def __init__(self, A: torch.Tensor, B: torch.Tensor):
        super().__init__()
        sizes = check_factors("Kronecker", {"A": (A, "ac"), "B": (B, "bd")})
        self.sizes = tuple(sizes[axis] for axis in "abcd")
        a, b, c, d = self.sizes
        self.shape = (a * b, c * d)
        self.A, self.B = parameter(A), parameter(B)

    @classmethod
    def random(cls, sizes: tuple[int, int, int, int], seed: int, dtype: torch.dtype | None = None) -> "Kronecker":
        """A seeded draw, A from N(0, 1/c) and B from N(0, 1/d), by the fan-in.

        Args:
            sizes: (a, b, c, d).
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: a size is not an integer ≥ 1.
        """
        a, b, c, d = check_sizes("Kronecker.random", sizes)
        generator = seeded("Kronecker.random", seed, dtype)
        return cls(normal((a, c), c, generator, dtype), normal((b, d), d, generator, dtype))

    @classmethod
    def from_dense(cls, M: torch.Tensor, sizes: tuple[int, int, int, int]) -> "Kronecker":
        """The nearest Kronecker product (Van Loan, Pitsianis): a rank-1 matrix, once M is read as (a c, b d).

        Args:
            M: (m, n).
            sizes: (a, b, c, d) with a·b = m and c·d = n.

        Returns:
            The weight; ‖M − dense‖² is the sum of the squares of all but the first singular value of M as (a c, b d).

        Raises:
            ShapeError: M does not have two axes.
            ValueError: M has no floating dtype, a size is not an integer ≥ 1, or the sizes do not multiply to (m, n).
        """
        M = matrix("Kronecker.from_dense", M)
        a, b, c, d = check_sizes_of("Kronecker.from_dense", M, sizes)
        A, B = truncated(M.reshape(a, b, c, d).permute(0, 2, 1, 3).reshape(a * c, b * d), 1)
        return cls(A.view(a, c), B.view(b, d))

    @property
    def macs(self) -> int:
        """min(b·c·(a + d), a·d·(b + c)): B first, or A first."""
        return min(self._costs())

    @property
    def rank_bound(self) -> int:
        """min(a, c)·min(b, d), the largest rank of A times that of B."""
        a, b, c, d = self.sizes
        return min(a, c) * min(b, d)

    def dense(self):
        """All products of an entry of A and one of B, (m, n)."""
        return torch.kron(self.A, self.B)

    def _product(self, X):
        a, b, c, d = self.sizes
        B_first, A_first = self._costs()
        if B_first <= A_first:
            return (self.A @ (self.B @ X.unflatten(0, (c, d))).reshape(c, -1)).view(a * b, -1)
        Z = self.A @ X.reshape(c, -1)
        return (self.B @ Z.view(a, d, -1)).flatten(0, 1)

    def _costs(self):
        a, b, c, d = self.sizes
        return b * c * (a + d), a * d * (b + c)
