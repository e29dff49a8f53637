"""The benchmark `bilinear`: attention with structured scores beside standard attention, forward and backward."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.report import at_most, medians, milliseconds, record
from smalearn.lab.bench.timing import interleaved, warm_seconds
from smalearn.scores import BilinearAttention
from smalearn.testing import random_tensors
from smalearn.weights import BlockTensorTrain, LowRank, MultiLevelLowRank, Weight, balanced_sizes

__all__ = [
    "FORMS",
    "SDPA",
    "StandardAttention",
    "benchmark",
    "compare",
    "definition",
    "gradients",
    "sections",
    "targets",
]

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


class StandardAttention(nn.Module):
    """Causal attention by torch's `scaled_dot_product_attention`, with one matrix for queries, keys and values."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D)."""
        Q, K, V = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).movedim(-2, -3)
        Y = functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        return self.out(Y.movedim(-3, -2).flatten(-2))


def benchmark(dim: int = 512, length: int = 512, heads: int = 8, rounds: int = 21) -> dict[str, object]:
    """Compare all layers, half a minute at the usual sizes: float32, one sequence, one thread.

    Args:
        dim: D.
        length: T.
        heads: H.
        rounds: samples of each time.

    Returns:
        See `record`, with the parts of `compare`.
    """
    return record("bilinear", rounds, lambda: compare(dim, length, heads, rounds), targets)


def compare(dim: int, length: int, heads: int, rounds: int) -> dict[str, object]:
    """Time all layers on the same tokens, each judged against its own definition in float64.

    Returns:
        `dim`, `length`, `heads`; for each layer its `errors`; of those within tolerance `seconds` of a forward and
        `seconds_trained` of a forward and a backward; `slower` and `slower_trained`, the medians over those of
        standard attention.
    """
    layers = {SDPA: StandardAttention(dim, heads)}
    for name, form in FORMS.items():
        layers[name] = BilinearAttention(dim, heads, [form(dim, heads, seed) for seed in range(heads)])
    (x,) = random_tensors([(length, dim)], dtype=torch.float32)
    result, right = {"dim": dim, "length": length, "heads": heads, "errors": {}}, {}
    with torch.no_grad():
        for name, layer in layers.items():
            result["errors"][name], passed = judge([layer(x)], [definition(layer, x.double())])
            if passed:
                right[name] = layer
        runs = {name: partial(warm_seconds, partial(layer, x)) for name, layer in right.items()}
        result["seconds"] = interleaved(runs, rounds)
    runs = {name: partial(warm_seconds, partial(gradients, layer, layer, x)) for name, layer in right.items()}
    result["seconds_trained"] = interleaved(runs, rounds)
    return result | {f"slower{kind}": _slower(result[f"seconds{kind}"]) for kind in ("", "_trained")}


def definition(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The function of a layer head by head, with every matrix in full.

    Args:
        layer: `StandardAttention`, or `BilinearAttention` with weights of `FORMS`.
        x: (T, D), float64.

    Returns:
        (T, D), float64.
    """
    D, r = layer.out.weight.shape[0], layer.out.weight.shape[0] // layer.heads
    if isinstance(layer, StandardAttention):
        W_Q, W_K, W_V = layer.qkv.weight.double().split(D)
        forms = [W_Q[h * r : (h + 1) * r].mT @ W_K[h * r : (h + 1) * r] / r**0.5 for h in range(layer.heads)]
    else:
        W_V, widths = layer.values.weight.double(), {LowRank: r, BlockTensorTrain: D}
        forms = [w.dense().double() / widths.get(type(w), _levels_width(w)) ** 0.5 for w in layer.scores]
    later, heads = torch.ones(len(x), len(x), dtype=torch.bool).triu(1), []
    for h, M in enumerate(forms):
        S = (x @ M @ x.mT).masked_fill(later, -torch.inf)
        heads.append(S.softmax(-1) @ x @ W_V[h * r : (h + 1) * r].mT)
    return torch.cat(heads, -1) @ layer.out.weight.double().mT


def _levels_width(weight):
    """Σ_l p_l r_l of multi-level low rank, 1 for others."""
    return sum(p * r for p, r in zip(getattr(weight, "blocks", [1]), getattr(weight, "ranks", [1]), strict=True))


def gradients(run: nn.Module, layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forward and backward, for the input and all parameters of a layer; the gradient of the output is the output."""
    x = x.detach().requires_grad_()
    y = run(x)
    return torch.autograd.grad(y, [x, *layer.parameters()], y.detach())


def _slower(times):
    """Median times over that of standard attention, where that was timed."""
    middle = medians(times)
    standard = middle.pop(SDPA, None)
    return {name: value / standard for name, value in middle.items()} if standard else {}


def targets(result: Mapping) -> list[dict[str, object]]:
    """The bound on the time of BTT."""
    name = "BTT, s = 1"
    what = f"{name}, D = {result['dim']}, T = {result['length']}, H = {result['heads']}"
    what += f": time of a forward and backward over that of {SDPA}"
    return [at_most(what, SLOWER, result["slower_trained"].get(name))]


def sections(result: Mapping) -> Iterator[tuple[str, list]]:
    """Titles and rows for `render`."""
    rows = []
    for name, error in result["errors"].items():
        times = ["not reported"]
        if name in result["seconds"]:
            forward, both = (milliseconds(result[key][name]) for key in ("seconds", "seconds_trained"))
            times = [f"forward {forward}", f"with backward {both}"]
        if name in result["slower_trained"]:
            times.append(f"{result['slower_trained'][name]:.2f} times {SDPA}")
        rows.append((name, f"error {error:.0e}", *times))
    yield f"causal attention, D = {result['dim']}, T = {result['length']}, {result['heads']} heads", rows
