"""A structured weight of any family and size: its matrix, its factors, what it costs, and its singular values."""

from __future__ import annotations

import base64
import math

import torch
import traitlets

from smalearn.course.widgets.base import Choice, Explorer, Size, module
from smalearn.testing import TOLERANCE, random_tensors
from smalearn.weights import (
    BlockDiagonal,
    BlockLowRank,
    BlockTensorTrain,
    Butterfly,
    Kronecker,
    LowRank,
    MultiLevelLowRank,
    Weight,
)

__all__ = ["WeightExplorer"]

FAMILIES = [
    "low rank",
    "block diagonal",
    "block low rank",
    "multi-level",
    "block tensor train",
    "Kronecker",
    "butterfly",
]
DIMS, BLOCKS, MAX_RANK = [8, 16, 32], [1, 2, 4, 8, 16, 32], 4
DRAWN = 2 * DIMS[-1] ** 2 * MAX_RANK  # numbers of the largest BTT
CUT = TOLERANCE[torch.float64]
FLOOR = 1e-18  # of the axis of singular values


class WeightExplorer(Explorer):
    """A (D, D) weight of a structured family with random factors, from "low rank" to "butterfly".

    The matrix stands before its factors, permutations among them, as one product; pointing at an entry shows the path
    through the factors that makes it. Below are its singular values, with those of a low-rank matrix of as many numbers
    behind them. Sizes that a family does not have are hidden. A multi-level matrix has levels of 1, 2, 4, ... up to p
    blocks, a block tensor train b = c = p, so that it leads from low rank (p = 1) to every matrix (p = D); a Kronecker
    product is (p, p) ⊗ (D/p, D/p).

    Args:
        family: one of the seven.
        dim: D, one of 8, 16 and 32.
        blocks: p, a power of two up to 32; D takes its place where it is larger.
        rank: r of each block or level, or s of a block tensor train, from 1 to 4.

    Raises:
        ValueError: an argument is not one of the above.

    Cost: the numbers of all factors go to the browser once, 44 kB. A singular value decomposition there at every move.

    Source: structured attention paper, section 3.1 and Table 1.

    Example:
        >>> explorer = WeightExplorer("block tensor train", dim=16, blocks=4)
        >>> explorer.weight.num_parameters, explorer.measured_rank
        (128, 16)
        >>> explorer.blocks = 2
        >>> explorer.weight.num_parameters, explorer.measured_rank
        (64, 4)
    """

    _esm = module(
        "singular_values.js",
        "numbers.js",
        "weight_explorer.js",
        FAMILIES=FAMILIES,
        LOW=round(math.log10(FLOOR)),
        MAX_RANK=MAX_RANK,
        LEAST=round(math.log2(DIMS[0])),
        MOST=round(math.log2(DIMS[-1])),
    )
    _draws = traitlets.Unicode().tag(sync=True)
    _cut = traitlets.Float(CUT).tag(sync=True)
    family = Choice(FAMILIES).tag(sync=True)
    dim = Choice(DIMS).tag(sync=True)
    blocks = Choice(BLOCKS).tag(sync=True)
    rank = Size(1, MAX_RANK).tag(sync=True)

    def __init__(self, family: str = "block tensor train", dim: int = 16, blocks: int = 4, rank: int = 1) -> None:
        packed = base64.b64encode(_draw().float().numpy().astype("<f4").tobytes()).decode("ascii")
        super().__init__(_draws=packed, family=family, dim=dim, blocks=blocks, rank=rank)

    @property
    def weight(self) -> Weight:
        """The weight itself, float64."""
        D, p, r = self.dim, min(self.blocks, self.dim), self.rank
        left = _draw()

        def take(*shape: int) -> torch.Tensor:
            nonlocal left
            taken, left = left.tensor_split([math.prod(shape)])
            return taken.view(shape)

        match self.family:
            case "low rank":
                return LowRank(take(D, r), take(D, r))
            case "block diagonal":
                return BlockDiagonal(take(p, D // p, D // p))
            case "block low rank":
                return BlockLowRank(take(p, D // p, r), take(p, D // p, r))
            case "multi-level":
                blocks = [k for k in BLOCKS if k <= p]
                width = r * len(blocks)
                return MultiLevelLowRank(take(D, width), take(D, width), [r] * len(blocks), blocks)
            case "block tensor train":
                return BlockTensorTrain(take(p, D // p, p, r), take(p, D // p, p, r))
            case "Kronecker":
                return Kronecker(take(p, p), take(D // p, D // p))
        levels = D.bit_length() - 1
        return Butterfly(take(levels, D // 2, 2, 2))

    @property
    def matrix(self) -> torch.Tensor:
        """M (D, D), float64."""
        return self.weight.dense().detach()

    @property
    def singular_values(self) -> torch.Tensor:
        """Singular values of M, the largest first, (D,) float64."""
        return torch.linalg.svdvals(self.matrix)

    @property
    def cut(self) -> float:
        """The size at and below which singular values count as 0: 1e-12 ‖M‖ (Frobenius)."""
        return CUT * torch.linalg.matrix_norm(self.matrix).item()

    @property
    def measured_rank(self) -> int:
        """Number of singular values above `cut`."""
        return int((self.singular_values > self.cut).sum())

    def __repr__(self) -> str:
        """The state without its numbers, the same text on every machine."""
        names = ["family", "dim", "blocks", "rank"]
        return f"WeightExplorer({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _draw() -> torch.Tensor:
    """Draw numbers, of which every factor takes its own from the front, float32 as float64."""
    return random_tensors([(DRAWN,)], seed=7)[0].float().double()
