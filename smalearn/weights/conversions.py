"""Inclusions of families: a weight of one as a weight of a larger one, the same matrix entry by entry.

::

    BlockDiagonal, Kronecker, Butterfly, Monarch in BlockTensorTrain in MultiLevelBlockTensorContraction
    LowRank, BlockDiagonal, BlockLowRank in MultiLevelLowRank in MultiLevelBlockTensorContraction

The larger family may need more numbers for the same matrix. Nothing is shared: training one leaves the other as it is.
"""

import copy

import torch

from smalearn.weights.base import Weight
from smalearn.weights.blockdiagonal import BlockDiagonal, BlockLowRank
from smalearn.weights.btt import BlockTensorTrain
from smalearn.weights.butterfly import Butterfly
from smalearn.weights.kronecker import Kronecker
from smalearn.weights.lowrank import LowRank
from smalearn.weights.mlbtc import MultiLevelBlockTensorContraction
from smalearn.weights.mlr import MultiLevelLowRank


def as_btt(weight: Weight) -> BlockTensorTrain:
    """A block diagonal, Kronecker, butterfly or Monarch matrix as a block tensor train of rank 1; one stays as it is.

    A ⊗ B is one whose L does not depend on b and whose R does not depend on c. A butterfly is cut in the middle: its
    first factors mix the low bits of a feature's number within blocks, the others the high bits.

    Args:
        weight: of one of these families, or a block tensor train.

    Returns:
        The same matrix, with factors of its own.

    Raises:
        TypeError: the weight is of another family.
    """
    match weight:
        case BlockTensorTrain():
            return BlockTensorTrain(weight.L.detach().clone(), weight.R.detach().clone())
        case BlockDiagonal():
            W = weight.W.detach()
            identity = torch.eye(weight.blocks, dtype=W.dtype, device=W.device)
            return BlockTensorTrain(identity.repeat(W.shape[1], 1, 1)[..., None], W.mT[..., None].clone())
        case Kronecker():
            _, b, c, _ = weight.sizes
            A, B = weight.A.detach(), weight.B.detach()
            return BlockTensorTrain(A.repeat(b, 1, 1)[..., None], B.mT.repeat(c, 1, 1)[..., None])
        case Butterfly():
            return _cut(weight)
    raise TypeError(f"as_btt: {type(weight).__name__} is not a special case of BlockTensorTrain")


def as_mlr(weight: Weight) -> MultiLevelLowRank:
    """A low rank, block diagonal or block low rank matrix as one level; a multi-level one stays as it is.

    Args:
        weight: of one of these families, or multi-level low rank.

    Returns:
        The same matrix, with factors of its own.

    Raises:
        TypeError: the weight is of another family.
    """
    match weight:
        case MultiLevelLowRank():
            blocks = list(zip(weight.rows, weight.columns, strict=True))
            return MultiLevelLowRank(weight.L.detach().clone(), weight.R.detach().clone(), weight.ranks, blocks)
        case LowRank():
            return MultiLevelLowRank(weight.L.detach().clone(), weight.R.detach().clone(), [weight.rank], [1])
        case BlockLowRank():
            L, R = (factor.detach().clone().flatten(0, 1) for factor in (weight.L, weight.R))
            return MultiLevelLowRank(L, R, [weight.rank], [weight.blocks])
        case BlockDiagonal():
            W = weight.W.detach().clone()
            rank = min(W.shape[1:])
            eyes = torch.eye(rank, dtype=W.dtype, device=W.device).repeat(weight.blocks, 1)
            L, R = (W.flatten(0, 1), eyes) if W.shape[2] == rank else (eyes, W.mT.flatten(0, 1))
            return MultiLevelLowRank(L, R, [rank], [weight.blocks])
    raise TypeError(f"as_mlr: {type(weight).__name__} is not a special case of MultiLevelLowRank")


def as_mlbtc(weight: Weight) -> MultiLevelBlockTensorContraction:
    """Any weight of this package as a multi-level block tensor contraction (appendix C); one stays as it is.

    Args:
        weight: of any family.

    Returns:
        The same matrix, with factors of its own.

    Raises:
        TypeError: the weight is of no family of this package.
    """
    match weight:
        case MultiLevelBlockTensorContraction():
            return copy.deepcopy(weight)
        case LowRank() | BlockLowRank() | BlockDiagonal() | MultiLevelLowRank():
            return MultiLevelBlockTensorContraction.from_mlr(as_mlr(weight))
        case BlockTensorTrain() | Kronecker() | Butterfly():
            return MultiLevelBlockTensorContraction.from_btt(as_btt(weight))
    raise TypeError(f"as_mlbtc: {type(weight).__name__} is not a special case of MultiLevelBlockTensorContraction")


def _cut(weight: Butterfly) -> BlockTensorTrain:
    """A butterfly as a BTT with a = c and b = d: its two halves, each multiplied out in its own blocks."""
    half = len(weight.B) // 2
    n, b = weight.shape[0], 2**half
    c = n // b
    low = high = torch.eye(n, dtype=weight.B.dtype, device=weight.B.device)
    for i in range(half):
        low = weight.factor(i).detach() @ low
    for i in range(half, len(weight.B)):
        high = weight.factor(i).detach() @ high
    R = low.view(c, b, c, b).diagonal(dim1=0, dim2=2)  # (out, in, c)
    L = high.view(c, b, c, b).diagonal(dim1=1, dim2=3)  # (out, in, b)
    return BlockTensorTrain(L.permute(2, 0, 1)[..., None].clone(), R.permute(2, 1, 0)[..., None].clone())
