"""The benchmark `bilinear`: attention with structured scores beside standard attention, forward and backward."""

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from benchmarks.contest import checked, contest, ratio
from benchmarks.problem import way
from benchmarks.report import at_most, record
from benchmarks.training import FusedAttention
from smalearn.scores import BilinearAttention
from smalearn.testing import random_tensors
from smalearn.weights import BlockTensorTrain, LowRank, MultiLevelLowRank, Weight, balanced_sizes

SDPA = "standard, SDPA"
RANKS = (32, 8, 6, 4, 4, 4, 4, 2)
SLOWER = 1.7


def _levels(dim: int, heads: int, seed: int) -> Weight:
    """The paper's eight levels, or those that fit, scaled to the numbers of a low rank head."""
    ranks = [max(1, rank * dim // heads // sum(RANKS)) for i, rank in enumerate(RANKS) if dim % 2**i == 0]
    return MultiLevelLowRank.random((dim, dim), ranks, [2**i for i in range(len(ranks))], seed, torch.float32)


FORMS = {
    "BTT, s = 1": lambda dim, heads, seed: BlockTensorTrain.random(balanced_sizes(dim, dim), 1, seed, torch.float32),
    "MLR": _levels,
    "low rank": lambda dim, heads, seed: LowRank.random(dim, dim, dim // heads, seed, torch.float32),
}
"""Functions that draw the weight of one head: form(dim, heads, seed)."""


def benchmark(
    dim: int = 512, length: int = 512, heads: int = 8, rounds: int = 21, keep: Callable | None = None
) -> dict[str, object]:
    """Compare all layers, half a minute at the usual sizes: float32, one sequence, one thread."""

    def measure(finish):
        return {"contests": [finish(compare(dim, length, heads, backward, rounds)) for backward in (False, True)]}

    return record("bilinear", rounds, measure, targets, keep)


def compare(dim: int, length: int, heads: int, backward: bool, rounds: int) -> dict[str, object]:
    """Time all layers on the same tokens, each judged against its own definition in float64."""
    layers = {SDPA: FusedAttention(dim, heads)}
    for name, form in FORMS.items():
        layers[name] = BilinearAttention(dim, heads, [form(dim, heads, seed) for seed in range(heads)])
    (x,) = random_tensors([(length, dim)], dtype=torch.float32)

    entrants = {name: partial(entrant, layer, layer, definition, x, backward) for name, layer in layers.items()}
    problem = f"causal attention, D = {dim}, T = {length}, {heads} heads, {way(backward)}"
    return contest(problem, entrants, rounds, [SDPA])


def definition(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The function of a layer head by head, with every matrix in full."""
    out = getattr(layer, "out_proj", None) or layer.out
    D, r = len(out.weight), len(out.weight) // layer.heads
    if isinstance(layer, FusedAttention):
        W_Q, W_K, W_V = layer.in_proj.weight.split(D)
        forms = [W_Q[h * r : (h + 1) * r].mT @ W_K[h * r : (h + 1) * r] / r**0.5 for h in range(layer.heads)]
    else:
        W_V, widths = layer.values.weight, {LowRank: r, BlockTensorTrain: D}
        forms = [w.dense() / widths.get(type(w), _levels_width(w)) ** 0.5 for w in layer.scores]
    later, heads = torch.ones(len(x), len(x), dtype=torch.bool).triu(1), []
    for h, M in enumerate(forms):
        S = (x @ M @ x.mT).masked_fill(later, -torch.inf)
        heads.append(S.softmax(-1) @ x @ W_V[h * r : (h + 1) * r].mT)
    return torch.cat(heads, -1) @ out.weight.mT


def _levels_width(weight):
    """Σ_l p_l r_l of multi-level low rank, 1 for others."""
    return sum(p * r for p, r in zip(getattr(weight, "blocks", [1]), getattr(weight, "ranks", [1]), strict=True))


def entrant(
    run: Callable, layer: nn.Module, exact: Callable, x: torch.Tensor, backward: bool
) -> tuple[list[float], bool, Callable]:
    """What `checked` returns for `run`, a way to compute a layer at x, beside `exact(layer, x)` in float64."""
    wide = copy.deepcopy(layer).double()
    expected = once(partial(exact, wide), wide, x.double(), backward)
    return checked(partial(once, run, layer, x, backward), expected)


def once(run: Callable, layer: nn.Module, x: torch.Tensor, backward: bool) -> list[torch.Tensor]:
    """The output, and for a backward the gradients of x and of all parameters of a layer; that of y is y."""
    with torch.set_grad_enabled(backward):
        x = x.detach().requires_grad_(backward)
        y = run(x)
        return [y.detach(), *(torch.autograd.grad(y, [x, *layer.parameters()], y.detach()) if backward else ())]


def targets(result: Mapping) -> list[dict[str, object]]:
    """The bound on the time of BTT."""
    name, part = "BTT, s = 1", result["contests"][1]
    return [at_most(f"{name}, {part['problem']}: time over that of {SDPA}", SLOWER, ratio(part, SDPA, name))]
