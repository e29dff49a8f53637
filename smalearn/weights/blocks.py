"""Direct sums: a tall factor F (size, r) cut into p blocks F_k of rows, standing for ⊕_k F_k or its transpose."""

from collections.abc import Sequence

import torch


def project(F: torch.Tensor, sizes: Sequence[int], X: torch.Tensor) -> torch.Tensor:
    """(⊕_k F_k^T) X, (p, r, columns): each block of X (size, columns) meets its own rows of F (size, r)."""
    if len(set(sizes)) == 1:
        p = len(sizes)
        return torch.bmm(F.unflatten(0, (p, -1)).mT, X.unflatten(0, (p, -1)))
    return torch.stack([F_k.mT @ X_k for F_k, X_k in zip(F.split(sizes), X.split(sizes), strict=True)])


def expand(F: torch.Tensor, sizes: Sequence[int], Z: torch.Tensor) -> torch.Tensor:
    """(⊕_k F_k) Z, (size, columns), for Z (p, r, columns): the transpose of `project`, with its F, sizes and cost."""
    if len(set(sizes)) == 1:
        return torch.bmm(F.unflatten(0, (len(sizes), -1)), Z).flatten(0, 1)
    return torch.cat([F_k @ Z_k for F_k, Z_k in zip(F.split(sizes), Z, strict=True)])


def direct_sum(F: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """⊕_k F_k itself, (size, p·r), for F and sizes of `project`: block k has rows and columns k, zeros elsewhere."""
    return torch.block_diag(*F.split(sizes))
