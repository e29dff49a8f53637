"""Semiseparable matrices: lower triangular matrices over time that a state of N numbers can run.

    M[t, s] = C_t^T A_t ... A_(s+1) B_s  for s ≤ t,    0 for s > t

Each file holds one idea: the recurrence, the matrix with its products and solves, the two factorisations (tril(U V^T)
and the block-bidiagonal system), and the way back from the matrix to its generators by ranks.
"""

from smalearn.semiseparable.factors import bidiagonal_inverse, block_factors, product_generators, tril_factors
from smalearn.semiseparable.matrix import Semiseparable
from smalearn.semiseparable.ranks import block_ranks, from_dense

__all__ = [
    "Semiseparable",
    "bidiagonal_inverse",
    "block_factors",
    "block_ranks",
    "from_dense",
    "product_generators",
    "tril_factors",
]
