"""The benchmark `weights`: structured layers beside a dense one, and beside plain ways to write the same."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from benchmarks.bilinear import RANKS, entrant
from benchmarks.contest import contest, ratio
from benchmarks.peers import given
from benchmarks.problem import way
from benchmarks.report import at_least, record
from smalearn.testing import random_tensors
from smalearn.weights import BlockTensorTrain, MultiLevelLowRank, Weight, balanced_sizes

FASTER = {("BTT", 1024): 4, ("BTT", 4096): 10}
COLA = "CoLA"

Product = Callable[[torch.Tensor], torch.Tensor]


def _btt(dim: int) -> BlockTensorTrain:
    return BlockTensorTrain.random(balanced_sizes(dim, dim), 1, seed=1, dtype=torch.float32)


def _levels(dim: int) -> MultiLevelLowRank:
    """The paper's ranks, scaled so that both families have equally many numbers where dim is a power of four."""
    ranks = tuple(max(1, round(rank * dim**0.5 / sum(RANKS))) for rank in RANKS)
    blocks = [2**level for level in range(len(ranks))]
    return MultiLevelLowRank.random((dim, dim), ranks, blocks, seed=1, dtype=torch.float32)


FAMILIES: dict[str, Callable[[int], Weight]] = {"BTT": _btt, "MLR": _levels}
"""Weights of each family for a dimension, in float32."""


def _btt_einsum(weight: BlockTensorTrain) -> Product:
    """The formula as two einsums: what most would write first."""

    def run(x):
        z = torch.einsum("...cd,cdbs->...cbs", x.unflatten(-1, weight.sizes[2:]), weight.R)
        return torch.einsum("...cbs,bacs->...ab", z, weight.L).flatten(-2)

    return run


def _btt_bmm(weight: BlockTensorTrain) -> Product:
    """Two batched products, every regrouping a copy: what most would write second."""
    a, b, c, d = weight.sizes

    def run(x):
        z = torch.bmm(x.view(-1, c, d).transpose(0, 1), weight.R.flatten(2))
        z = z.view(c, -1, b, weight.rank).permute(2, 1, 0, 3).reshape(b, -1, c * weight.rank)
        return torch.bmm(z, weight.L.flatten(2).mT).permute(1, 2, 0).reshape(-1, a * b)

    return run


def _levels_einsum(weight: MultiLevelLowRank) -> Product:
    """Two einsums for each level."""
    factors = [
        (L.unflatten(0, (p, -1)), R.unflatten(0, (p, -1)))
        for p, L, R in zip(weight.blocks, weight.L.split(weight.ranks, 1), weight.R.split(weight.ranks, 1), strict=True)
    ]

    def run(x):
        y = 0
        for L, R in factors:
            z = torch.einsum("...pn,pnr->...pr", x.unflatten(-1, R.shape[:2]), R)
            y = y + torch.einsum("...pr,pmr->...pm", z, L).flatten(-2)
        return y

    return run


def _btt_cola(weight: BlockTensorTrain) -> Product:
    """P_L (⊕ L_b) P_R (⊕ R_c^T) from CoLA's operators; it works on columns, which is not timed against it."""
    from cola.ops import BlockDiag, Dense, Permutation

    a, b, c, _ = weight.sizes
    L, R = weight.L.detach().flatten(2), weight.R.detach().flatten(2)
    left = torch.arange(b * a).view(b, a).mT.flatten()
    right = torch.arange(c * b * weight.rank).view(c, b, -1).transpose(0, 1).flatten()
    P_L, P_R = (Permutation(order, dtype=L.dtype) for order in (left, right))
    M = P_L @ BlockDiag(*map(Dense, L)) @ P_R @ BlockDiag(*(Dense(block.mT) for block in R))
    return lambda x: (M @ x.mT).mT


OTHERS: dict[str, dict[str, Callable[[Weight], Product]]] = {
    "BTT": {"einsum": _btt_einsum, "bmm with copies": _btt_bmm, COLA: _btt_cola},
    "MLR": {"einsum": _levels_einsum},
}
"""Other ways to multiply by the same matrix, made from the weight. One may raise ImportError."""


def benchmark(
    dims: tuple[int, ...] = (1024, 4096), batch: int = 512, rounds: int = 21, keep: Callable | None = None
) -> dict[str, object]:
    """Compare both families at all dimensions, two minutes at the usual sizes: float32, one thread."""

    def measure(finish):
        cases = [(name, dim, backward) for dim in dims for name in FAMILIES for backward in (False, True)]
        return {"batch": batch, "contests": [finish(compare(*case, batch, rounds)) for case in cases]}

    return record("weights", rounds, measure, targets, keep)


def compare(name: str, dim: int, backward: bool, batch: int, rounds: int) -> dict[str, object]:
    """A structured layer beside `nn.Linear` with the same matrix, and beside `OTHERS`, each judged in float64.

    The `saving` is multiply-adds of the dense layer over its own, `reached` its speedup as a fraction of that.
    """
    weight = FAMILIES[name](dim)
    dense = nn.Linear(dim, dim, bias=False)
    dense.weight = nn.Parameter(weight.dense().detach())
    (x,) = random_tensors([(batch, dim)], dtype=torch.float32)

    loads = {"structured": given, "dense": lambda _: dense, **OTHERS[name]}

    def enter(key):
        return entrant(loads[key](weight), dense if key == "dense" else weight, _multiply, x, backward)

    entrants = {key: partial(enter, key) for key in loads if not (backward and key == COLA)}
    problem = f"{name}, D = {dim}, {batch} vectors, {way(backward)}"
    part = contest(problem, entrants, rounds, ["structured"])
    saving, reached = dim**2 / weight.macs, ratio(part, "structured", "dense")
    sizes = {"family": name, "dim": dim, "backward": backward}
    return part | sizes | {"saving": saving, "reached": reached and reached / saving}


def _multiply(layer, x):
    """The product with the matrix in full."""
    return x @ (layer.dense() if isinstance(layer, Weight) else layer.weight).mT


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on the speedups of the forward."""
    rows = []
    for part in (part for part in result["contests"] if not part["backward"]):
        name, dim = part["family"], part["dim"]
        if (name, dim) in FASTER:
            what = f"{name}, D = {dim}: times as fast as nn.Linear"
            rows.append(at_least(what, FASTER[name, dim], ratio(part, "structured", "dense")))
        rivals = [found for key in OTHERS[name] if (found := ratio(part, "structured", key))]
        rows.append(at_least(f"{name}, D = {dim}: times as fast as the best rival", 1, min(rivals, default=None)))
    return rows
