"""State space models h_t = A_t h_(t-1) + B_t x_t, y_t = C_t^T h_t, and the matrices they multiply by.

    M[t, s] = C_t^T A_t ... A_(s+1) B_s  for s ≤ t,    0 for s > t

Parameters may change at every step. One file an idea: the recurrence, the associative scan, the discretisation that
makes A_t and B_t out of a differential equation; then the matrix M with its products and solves, its two
factorisations, the way back from a matrix to its generators by ranks, and the matrix of two directions.
"""

from smalearn.ssm.discretise import discretise_mamba, discretise_trapezoid, discretise_zero_order_hold
from smalearn.ssm.factors import bidiagonal_inverse, block_factors, product_generators, tril_factors
from smalearn.ssm.quasiseparable import Quasiseparable
from smalearn.ssm.ranks import block_ranks, from_dense
from smalearn.ssm.recurrent import ssm_matrix, ssm_recurrent, ssm_states
from smalearn.ssm.scan import ScanCost, scan_by_doubling, scan_by_pairs, scan_cost, ssm_scan
from smalearn.ssm.semiseparable import Semiseparable

__all__ = [
    "Quasiseparable",
    "ScanCost",
    "Semiseparable",
    "bidiagonal_inverse",
    "block_factors",
    "block_ranks",
    "discretise_mamba",
    "discretise_trapezoid",
    "discretise_zero_order_hold",
    "from_dense",
    "product_generators",
    "scan_by_doubling",
    "scan_by_pairs",
    "scan_cost",
    "ssm_matrix",
    "ssm_recurrent",
    "ssm_scan",
    "ssm_states",
    "tril_factors",
]
