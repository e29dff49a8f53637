"""Butterfly matrices (Dao et al. 2020): the shape of the fast Fourier transform, with free entries."""

import torch

from smalearn._checks import ShapeError, check_count, check_dtypes, seeded
from smalearn.weights.base import Weight, matrix, normal, parameter
from smalearn.weights.btt import BlockTensorTrain


class Butterfly(Weight):
    """M = B_k ... B_2 B_1 with n = 2^k: factor i mixes the features whose numbers differ in bit i alone.

    B_1 pairs neighbours, B_2 features at distance 2, B_k those at distance n/2. Each pair has its own 2 × 2 matrix.
    Parameters 2·n·log2 n, as many multiply-adds, full rank.

    Args:
        B: (k, n/2, 2, 2). Pair (h, w) of factor i has number h·2^(i−1) + w: the bits of its two features above bit i
            are h, those below are w, and bit i is 0 and 1.

    Raises:
        ShapeError: B does not have four axes, or they do not have these sizes.
        ValueError: B has no floating dtype.
    """

    def __init__(self, B: torch.Tensor):
        super().__init__()
        check_dtypes("Butterfly", {"B": B})
        levels = len(B) if B.ndim else 0
        expected = (levels, 2**levels // 2, 2, 2)
        if B.shape != expected or not levels:
            raise ShapeError(f"Butterfly: B needs axes (k, 2^(k-1), 2, 2) with k ≥ 1, got shape {tuple(B.shape)}")
        self.shape = (2**levels, 2**levels)
        self.B = parameter(B)

    @classmethod
    def random(cls, n: int, seed: int, dtype: torch.dtype | None = None) -> "Butterfly":
        """A seeded draw from N(0, 1/2), by the fan-in of a pair.

        Args:
            n: rows and columns, a power of two from 2 on.
            seed: of the draw.
            dtype: torch's default if None.

        Raises:
            ValueError: n is not a power of two.
        """
        levels = _levels("Butterfly.random", "n", n)
        return cls(normal((levels, n // 2, 2, 2), 2, seeded("Butterfly.random", seed, dtype), dtype))

    @classmethod
    def from_dense(cls, M: torch.Tensor) -> "Butterfly":
        """A butterfly near M: exact where M is one, and not always the nearest elsewhere.

        Cut every 2-column slice to rank 1 (a block tensor train with b = d = 2): that gives the first factor and two
        matrices of half the size, with which the same is done (Le, Zheng, Riccietti, Gribonval 2022).

        Args:
            M: (n, n), n a power of two from 2 on.

        Raises:
            ShapeError: M does not have two axes, or is not square.
            ValueError: M has no floating dtype, or n is not a power of two.
        """
        M = matrix("Butterfly.from_dense", M)
        if M.shape[0] != M.shape[1]:
            raise ShapeError(f"Butterfly.from_dense: M must be square, got shape {tuple(M.shape)}")
        _levels("Butterfly.from_dense", "the size of M", len(M))
        return cls(torch.stack(_factors(M)))

    @property
    def macs(self) -> int:
        """2·n·log2 n: four for every pair of every factor."""
        return self.B.numel()

    @property
    def rank_bound(self) -> int:
        """All n."""
        return self.shape[0]

    def dense(self):
        """The product of the k factors, (n, n), each formed in full."""
        M = torch.eye(self.shape[0], dtype=self.B.dtype, device=self.B.device)
        for i in range(len(self.B)):
            M = self.factor(i) @ M
        return M

    def factor(self, i: int) -> torch.Tensor:
        """One factor in full.

        Args:
            i: from 0, the one that is applied first, to k - 1.

        Returns:
            (n, n) with two entries in each row and column: B_(i+1).
        """
        pairs, width = self.shape[0] // 2, 2**i
        number = torch.arange(pairs, device=self.B.device)
        low = number // width * 2 * width + number % width
        feature = torch.stack([low, low + width], -1)
        F = self.B.new_zeros(self.shape)
        return F.index_put((feature[:, :, None], feature[:, None, :]), self.B[i])

    def _product(self, X):
        for i, F in enumerate(self.B):
            width = 2**i
            X, F = X.unflatten(0, (-1, 2, width)), F.unflatten(0, (-1, width))
            X = torch.einsum("hwpq,hqwz->hpwz", F, X).flatten(0, 2)
        return X


def _levels(function: str, name: str, n: int) -> int:
    """The k of n = 2^k, checked."""
    check_count(function, name, n, 2)
    if n & (n - 1):
        below = 2 ** (n.bit_length() - 1)
        raise ValueError(f"{function}: {name} must be a power of two, got {n}; the nearest are {below} and {2 * below}")
    return n.bit_length() - 1


def _factors(M: torch.Tensor) -> list[torch.Tensor]:
    """B_1, ..., B_k of a butterfly near M."""
    n = len(M)
    if n == 2:
        return [M[None]]
    btt = BlockTensorTrain.from_dense(M, (n // 2, 2, n // 2, 2), 1)
    first = btt.R.detach()[..., 0].mT  # (n/2, 2, 2): what comes out, what goes in
    halves = [_factors(L) for L in btt.L.detach()[..., 0]]
    # Pair (h, w) of the half that holds the features of parity p is pair (h, 2 w + p) of the whole.
    return [first, *(_interleaved(even, odd, 2**i) for i, (even, odd) in enumerate(zip(*halves, strict=True)))]


def _interleaved(even: torch.Tensor, odd: torch.Tensor, width: int) -> torch.Tensor:
    """The pairs of one factor of both halves, numbered as in the whole."""
    both = torch.stack([half.unflatten(0, (-1, width)) for half in (even, odd)], 2)  # (h, w, p, 2, 2)
    return both.flatten(0, 2)
