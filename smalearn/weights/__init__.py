"""Structured weights: (m, n) matrices over features with fewer numbers than m·n, trained like an `nn.Linear`.

Every weight is an `nn.Module` made from its factors, or by `random(...)` or `from_dense(M, ...)`. It has `shape`,
`dense()`, `forward(x)`, `bilinear(x, y)` = x^T M y, `num_parameters`, `macs` (multiply-adds of one forward) and
`rank_bound`. Weights know no time axis. As a scoring function M takes the place of W_Q W_K^T.
"""

from smalearn.weights.base import Weight
from smalearn.weights.blockdiagonal import BlockDiagonal, BlockLowRank
from smalearn.weights.btt import BlockTensorTrain, balanced_sizes
from smalearn.weights.butterfly import Butterfly
from smalearn.weights.conversions import as_btt, as_mlbtc, as_mlr
from smalearn.weights.kronecker import Kronecker
from smalearn.weights.lowrank import LowRank
from smalearn.weights.mlbtc import Level, MultiLevelBlockTensorContraction
from smalearn.weights.mlr import MultiLevelLowRank
from smalearn.weights.monarch import Monarch

__all__ = [
    "BlockDiagonal",
    "BlockLowRank",
    "BlockTensorTrain",
    "Butterfly",
    "Kronecker",
    "Level",
    "LowRank",
    "Monarch",
    "MultiLevelBlockTensorContraction",
    "MultiLevelLowRank",
    "Weight",
    "as_btt",
    "as_mlbtc",
    "as_mlr",
    "balanced_sizes",
]
