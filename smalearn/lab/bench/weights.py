"""The benchmark `weights`: structured layers beside a dense one, and beside plain ways to write the same."""

import statistics
from collections.abc import Callable, Mapping

import torch
from torch import nn

from smalearn.lab.bench.parts import judged, target_lines
from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.timing import interleaved, machine, one_thread, seconds
from smalearn.testing import random_tensors
from smalearn.weights import BlockTensorTrain, MultiLevelLowRank, Weight, balanced_sizes

__all__ = ["FAMILIES", "RIVALS", "benchmark", "race", "table", "targets"]

RANKS = (32, 8, 6, 4, 4, 4, 4, 2)
"""Ranks of the paper's eight levels; Σ = 64, which at D = 4096 gives as many numbers as a block tensor train has."""
FASTER = {("BTT", 1024): 4, ("BTT", 4096): 10}
COLA = "CoLA"

Product = Callable[[torch.Tensor], torch.Tensor]


def _train(dim: int) -> BlockTensorTrain:
    return BlockTensorTrain.random(balanced_sizes(dim, dim), 1, seed=1, dtype=torch.float32)


def _levels(dim: int) -> MultiLevelLowRank:
    """The paper's ranks, scaled so that both families hold as many numbers where dim is a power of four."""
    ranks = tuple(max(1, round(rank * dim**0.5 / sum(RANKS))) for rank in RANKS)
    blocks = [2**level for level in range(len(ranks))]
    return MultiLevelLowRank.random((dim, dim), ranks, blocks, seed=1, dtype=torch.float32)


FAMILIES: dict[str, Callable[[int], Weight]] = {"BTT": _train, "MLR": _levels}
"""The weight of each contest for a given dimension, in float32."""


def _train_einsum(weight: BlockTensorTrain) -> Product:
    """The formula as two einsums: what most would write first."""

    def run(x):
        z = torch.einsum("...cd,cdbs->...cbs", x.unflatten(-1, weight.sizes[2:]), weight.R)
        return torch.einsum("...cbs,bacs->...ab", z, weight.L).flatten(-2)

    return run


def _train_bmm(weight: BlockTensorTrain) -> Product:
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


def _train_cola(weight: BlockTensorTrain) -> Product:
    """P_L (⊕ L_b) P_R (⊕ R_c^T) from CoLA's operators; it works on columns, which is not timed against it."""
    from cola.ops import BlockDiag, Dense, Permutation

    a, b, c, _ = weight.sizes
    L, R = weight.L.detach().flatten(2), weight.R.detach().flatten(2)
    left = torch.arange(b * a).view(b, a).mT.flatten()
    right = torch.arange(c * b * weight.rank).view(c, b, -1).transpose(0, 1).flatten()
    P_L, P_R = (Permutation(order, dtype=L.dtype) for order in (left, right))
    M = P_L @ BlockDiag(*map(Dense, L)) @ P_R @ BlockDiag(*(Dense(block.mT) for block in R))
    return lambda x: (M @ x.mT).mT


RIVALS: dict[str, dict[str, Callable[[Weight], Product]]] = {
    "BTT": {"einsum": _train_einsum, "bmm with copies": _train_bmm, COLA: _train_cola},
    "MLR": {"einsum": _levels_einsum},
}
"""Other ways to multiply by the same matrix, made from the weight. One may raise ImportError."""


def benchmark(dims: tuple[int, ...] = (1024, 4096), batch: int = 512, rounds: int = 21) -> dict[str, object]:
    """Run all contests, about two minutes at the usual sizes: float32, one thread.

    Args:
        dims: D of the square layers.
        batch: vectors at a time.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `batch`, `contests`, `targets`.
    """
    result = {"command": "smalearn bench weights", "machine": machine(), "rounds": rounds, "batch": batch}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result["contests"] = [race(name, dim, batch, rounds) for dim in dims for name in FAMILIES]
    result["load_at_the_end"] = machine()["load"]
    return result | {"targets": targets(result)}


def race(name: str, dim: int, batch: int, rounds: int) -> dict[str, object]:
    """A structured layer beside `nn.Linear` with the same matrix, and beside its rivals, forward and backward.

    Returns:
        `family`, `dim`; `saving`, multiply-adds of the dense layer over its own; for each contestant its `errors`
        against float64, or why it is `absent`. Of those within tolerance `seconds` of a forward, and, of what can be
        trained, `seconds_trained` of a forward and a backward. `speedups`, by how many times the structured forward is
        faster than each other one, and `reached`, that over the dense layer as a fraction of the saving.
    """
    weight = FAMILIES[name](dim)
    dense = nn.Linear(dim, dim, bias=False)
    dense.weight = nn.Parameter(weight.dense().detach())
    (x,) = random_tensors([(batch, dim)], dtype=torch.float32)
    expected = x.double() @ dense.weight.detach().double().mT
    found = {"family": name, "dim": dim, "saving": dim**2 / weight.macs, "errors": {}, "absent": {}}
    runs = {}
    for key, load in {"structured": lambda w: w, "dense": lambda _: dense, **RIVALS[name]}.items():
        try:
            run = load(weight)
        except ImportError as error:
            found["absent"][key] = f"{type(error).__name__}: {error}"
            continue
        found["errors"][key], passed = judge([run(x)], [expected])
        if passed:
            runs[key] = run
    with torch.no_grad():
        found["seconds"] = interleaved({key: _turn(run, x) for key, run in runs.items()}, rounds)
    layers = {key: dense if key == "dense" else weight for key in runs if key != COLA}
    trained = {key: _turn(_backward(runs[key], layer), x) for key, layer in layers.items()}
    found["seconds_trained"] = interleaved(trained, rounds)
    return found | _ratios(found)


def _turn(run, x):
    """A turn that measures a run right after the same run once unmeasured, which brings its numbers into the caches."""
    return lambda: (run(x), seconds(lambda: run(x)))[1]


def _backward(run, layer):
    """A run and its backward, for the input and the factors of a layer."""

    def both(x):
        x = x.detach().requires_grad_()
        y = run(x)
        return torch.autograd.grad(y, [x, *layer.parameters()], y.detach())

    return both


def _ratios(found):
    """`speedups` and `reached`, where the structured product was timed; and the speedups of a step of training."""
    ratios = {}
    for times, name in (("seconds", "speedups"), ("seconds_trained", "speedups_trained")):
        medians = {key: statistics.median(samples) for key, samples in found[times].items()}
        ours = medians.pop("structured", None)
        ratios[name] = {key: value / ours for key, value in medians.items()} if ours else {}
    reached = ratios["speedups"].get("dense")
    return ratios | {"reached": reached and reached / found["saving"]}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None if not timed), `met`."""
    rows = []
    for contest in result["contests"]:
        name, dim, speedups = contest["family"], contest["dim"], contest["speedups"]
        if (name, dim) in FASTER:
            what = f"{name}, D = {dim}: times as fast as nn.Linear, at least"
            rows.append((what, FASTER[name, dim], speedups.get("dense"), 1))
        rivals = [speedups[key] for key in RIVALS[name] if key in speedups]
        rows.append((f"{name}, D = {dim}: times as fast as the best rival, at least", 1, min(rivals, default=None), 1))
    return judged(rows)


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    for contest in result["contests"]:
        reached = f", of which the forward reaches {contest['reached']:.0%}" if contest["reached"] else ""
        saving = f"{contest['saving']:.1f} times fewer multiply-adds than dense{reached}"
        lines += ["", f"{contest['family']}, D = {contest['dim']}, {result['batch']} vectors: {saving}"]
        for key, error in contest["errors"].items():
            start = f"  {key:16} error {error:.0e}"
            if key not in contest["seconds"]:
                lines.append(f"{start}   not reported")
                continue
            times = f"forward {1e3 * statistics.median(contest['seconds'][key]):.2f} ms"
            if key in contest["seconds_trained"]:
                both = 1e3 * statistics.median(contest["seconds_trained"][key])
                times += f", with backward {both:.2f} ms"
            slower = contest["speedups"].get(key)
            lines.append(f"{start}   {times}" + (f"   ours is {slower:.1f} times as fast" if slower else ""))
        lines += [f"  {key:16} absent: {why}" for key, why in contest["absent"].items()]
    return "\n".join([*lines, "", *target_lines(result["targets"])])
