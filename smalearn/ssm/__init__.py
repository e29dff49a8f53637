"""State space models: h_t = A_t h_(t-1) + B_t x_t, y_t = C_t^T h_t, with parameters that may change at every step.

Each file holds one algorithm: the recurrence, the associative scan, and the discretisation that makes A_t and B_t out
of a differential equation. `ssm_matrix` is the (T, T) matrix that all of them multiply by.
"""

from smalearn.ssm.discretise import discretise_mamba, discretise_zero_order_hold
from smalearn.ssm.recurrent import ssm_matrix, ssm_recurrent, ssm_states
from smalearn.ssm.scan import ScanCost, scan_by_doubling, scan_by_pairs, scan_cost, ssm_scan

__all__ = [
    "ScanCost",
    "discretise_mamba",
    "discretise_zero_order_hold",
    "scan_by_doubling",
    "scan_by_pairs",
    "scan_cost",
    "ssm_matrix",
    "ssm_recurrent",
    "ssm_scan",
    "ssm_states",
]
