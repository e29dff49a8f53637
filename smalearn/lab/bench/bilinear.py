"""The benchmark `bilinear`: attention with structured scores beside standard attention, forward and backward."""

import statistics
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from smalearn.lab.bench.parts import judged, target_lines
from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.timing import interleaved, machine, one_thread, seconds
from smalearn.scores import BilinearAttention
from smalearn.testing import random_tensors
from smalearn.weights import BlockTensorTrain, LowRank, MultiLevelLowRank, Weight, balanced_sizes

__all__ = ["FORMS", "SDPA", "StandardAttention", "benchmark", "race", "table", "targets"]

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
"""What draws the weight of one head: form(dim, heads, seed)."""


class StandardAttention(nn.Module):
    """Causal attention by torch's `scaled_dot_product_attention`, with one matrix for queries, keys and values."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.asked = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D)."""
        Q, K, V = self.asked(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).movedim(-2, -3)
        Y = functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        return self.out(Y.movedim(-3, -2).flatten(-2))


def benchmark(dim: int = 512, length: int = 512, heads: int = 8, rounds: int = 21) -> dict[str, object]:
    """Run the contest, half a minute at the usual sizes: float32, one sequence, one thread.

    Args:
        dim: D.
        length: T.
        heads: H.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, what `race` finds, `targets`.
    """
    result = {"command": "smalearn bench bilinear", "machine": machine(), "rounds": rounds}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result |= race(dim, length, heads, rounds)
    result["load_at_the_end"] = machine()["load"]
    return result | {"targets": targets(result)}


def race(dim: int, length: int, heads: int, rounds: int) -> dict[str, object]:
    """All layers on the same tokens, each judged against its own definition in float64.

    Returns:
        `dim`, `length`, `heads`; for each layer its `errors`; of those within tolerance `seconds` of a forward and
        `seconds_trained` of a forward and a backward; `slower` and `slower_trained`, the medians over those of
        standard attention.
    """
    layers = {SDPA: StandardAttention(dim, heads)}
    for name, form in FORMS.items():
        layers[name] = BilinearAttention(dim, heads, [form(dim, heads, seed) for seed in range(heads)])
    (x,) = random_tensors([(length, dim)], dtype=torch.float32)
    found = {"dim": dim, "length": length, "heads": heads, "errors": {}}
    right = {}
    for name, layer in layers.items():
        with torch.no_grad():
            found["errors"][name], passed = judge([layer(x)], [_definition(layer, x.double())])
        if passed:
            right[name] = layer
    with torch.no_grad():
        found["seconds"] = interleaved({name: _turn(layer, x) for name, layer in right.items()}, rounds)
    found["seconds_trained"] = interleaved({name: _turn(_step(layer), x) for name, layer in right.items()}, rounds)
    return found | {f"slower{kind}": _slower(found[f"seconds{kind}"]) for kind in ("", "_trained")}


def _definition(layer, x):
    """What a layer is to compute, head by head, with every matrix in full."""
    D, r = layer.out.weight.shape[0], layer.out.weight.shape[0] // layer.heads
    if isinstance(layer, StandardAttention):
        W_Q, W_K, W_V = layer.asked.weight.double().split(D)
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


def _turn(run, x):
    """A turn that measures a run right after the same run once unmeasured, which brings its numbers into the caches."""
    return lambda: (run(x), seconds(lambda: run(x)))[1]


def _step(layer):
    """A layer's forward and backward, for the input and all parameters."""

    def both(x):
        x = x.detach().requires_grad_()
        y = layer(x)
        return torch.autograd.grad(y, [x, *layer.parameters()], y.detach())

    return both


def _slower(times):
    """Median times over that of standard attention, where that was timed."""
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    standard = medians.pop(SDPA, None)
    return {name: value / standard for name, value in medians.items()} if standard else {}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None if not timed), `met`."""
    sizes = f"D = {result['dim']}, T = {result['length']}, H = {result['heads']}"
    name = "BTT, s = 1"
    what = f"{name}, {sizes}: time of a forward and backward over that of {SDPA}, at most"
    return judged([(what, SLOWER, result["slower_trained"].get(name), -1)])


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    lines += ["", f"causal attention, D = {result['dim']}, T = {result['length']}, {result['heads']} heads"]
    for name, error in result["errors"].items():
        start = f"  {name:16} error {error:.0e}"
        if name not in result["seconds"]:
            lines.append(f"{start}   not reported")
            continue
        once, both = (1e3 * statistics.median(result[key][name]) for key in ("seconds", "seconds_trained"))
        slower = result["slower_trained"].get(name)
        times = f"forward {once:.1f} ms, with backward {both:.1f} ms"
        lines.append(f"{start}   {times}" + (f"   {slower:.2f} times {SDPA}" if slower else ""))
    return "\n".join([*lines, "", *target_lines(result["targets"])])
