"""In-context regression by whole Transformers that differ in their scores (structured attention paper, section 4).

    python -m experiments.icl_regression -o assets/results/icl_regression.json

Two and four layers, inputs of five coordinates: what two cores train in two hours. Seed 0 tries three rates
for each model, the other seeds have the best of them and are reported; the examples that choose are not those of the
test. `icl_regression_questions` says what is asked, and which sentence each outcome allows. `--paper` has the paper's
sizes, six layers, 500,001 steps, widths 16 to 512: days of a graphics card, and nothing of it is recorded here.

Known differences from the paper's published code: its learning rate stays constant after the warmup, here it falls as
a cosine; its optimiser has other betas; it limits the root mean square of structured factors.
"""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from experiments.command import Experiment
from experiments.grid import each_seed, mean_seconds, means, model_lines, swept, trained
from experiments.icl_regression_questions import MARGIN, QUESTIONS
from smalearn._checks import ShapeError
from smalearn.course.ch10.layer import FAMILIES, Model, title
from smalearn.course.results import answers
from smalearn.data import curriculum, least_squares, regression, regression_prompt
from smalearn.models import Block
from smalearn.scores.bilinear import BilinearAttention, Logits
from smalearn.scores.mup import initialise, learning_rates
from smalearn.train import Plan
from smalearn.weights import as_mlbtc


@dataclass(frozen=True)
class Setting:
    """One size of the inputs, and the models that face it."""

    dim: int  # d, coordinates of an input; there are 2·d points
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)  # D of the models
    # of each the family, the heads, and the rank or the rank of every level; no ranks are one, D / heads
    models: tuple[Model, ...] = (
        ("low rank", 8, ()),
        ("low rank", 1, ()),
        ("BTT", 8, (1,)),
        ("MLR", 8, (4, 4, 8)),
    )
    layers: int = 6  # blocks of attention and MLP
    steps: int = 500_001  # of training
    seeds: int = 1  # the first tries every rate, all others have the best
    batch: int = 64  # examples of a step
    lrs: tuple[float, ...] = (1e-3,)  # the highest learning rates to try, at the width of `base`
    base: int = 64  # the width whose learning rate is `lr`; others follow by μP
    warmup: int = 1000  # steps in which it rises
    norm: float = 8.0  # C of the layer norm on queries and keys
    every: int = 2000  # steps from one size of the curriculum to the next
    tests: int = 1280  # examples of the validation, and of the test
    device: str = "cpu"  # as torch names it

    def runs(self, _: int) -> dict[str, dict[str, object]]:
        """Every model of every width at every rate, whatever the seed."""
        return {
            f"D = {width}, {title(*_ranked(model, width))}, lr {lr:.2g}": {"model": model, "width": width, "lr": lr}
            for width in self.widths
            for model in self.models
            for lr in self.lrs
        }


_MODELS = ("low rank", 8, ()), ("low rank", 1, ()), ("BTT", 8, (1,)), ("MLR", 4, (4, 4))
FULL = {
    f"{layers} layers": Setting(
        dim=5,
        widths=(32,),
        models=_MODELS,
        layers=layers,
        steps=6000,
        seeds=4,
        lrs=(2e-3, 4e-3, 8e-3),
        base=32,
        warmup=200,
        every=250,
    )
    for layers in (2, 4)
}
"""The recorded experiment: eight heads of rank 4 face inputs of five coordinates.

The levels have four heads, of as many parameters together. Eight heads of 2|2 were tried first and learned nothing at
any rate: of the two numbers of its coarse level a layer norm leaves 1 and -1, and almost no gradient.
"""

PAPER = {f"d = {dim}": Setting(dim, device="cuda") for dim in (16, 32, 64, 128)}
"""The paper's sizes."""

SMOKE = {"d = 5": Setting(5, (16,), layers=1, steps=8, seeds=2, batch=4, warmup=2, every=3, tests=8)}
"""The same in seconds, to see that it runs; its numbers say nothing."""


class Regressor(nn.Module):
    """A causal Transformer that reads a prompt of `regression_prompt` and predicts each value before it reads it.

    A linear layer makes tokens of inputs, learned positions are added, blocks of one dim follow, and a linear layer,
    zero at the start, makes a number of each token: all predictions are 0 then, and the expected loss is 1. The longest
    prompt has `points`.
    """

    def __init__(self, dim: int, points: int, blocks: Sequence[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        width = self.blocks[0].mixer.dim
        self.read_in, self.read_out = nn.Linear(dim, width, bias=False), nn.Linear(width, 1, bias=False)
        self.positions, self.norm = nn.Embedding(2 * points, width), nn.RMSNorm(width, eps=1e-5)
        nn.init.normal_(self.read_in.weight, std=dim**-0.5)
        nn.init.normal_(self.positions.weight, std=0.02)
        nn.init.zeros_(self.read_out.weight)

    def forward(self, prompt: torch.Tensor) -> torch.Tensor:
        """Predictions (..., n) of all values of a prompt (..., 2·n, d): the i-th reads x_i and the pairs before it."""
        if prompt.shape[-2] > self.positions.num_embeddings:
            most = self.positions.num_embeddings
            raise ShapeError(f"Regressor: prompt has at most {most} rows, got {prompt.shape[-2]}")
        x = self.read_in(prompt) + self.positions.weight[: prompt.shape[-2]]
        for block in self.blocks:
            x = block(x)
        return self.read_out(self.norm(x[..., 0::2, :]))[..., 0]


def build(model: Model, width: int, setting: Setting, seed: int = 0) -> Regressor:
    """A model as it is before its training, with starts and learning rates by μP (`smalearn.scores.mup`).

    What reads a token's last form starts at zero. A model without ranks has one, D / heads.
    """
    torch.manual_seed(seed)
    family, heads, ranks = _ranked(model, width)

    def scoring(seed):
        weight = FAMILIES[family](width, ranks, seed)
        return as_mlbtc(weight) if family == "MLR" else weight  # each level learns at a rate of its own

    def block(number):
        layer = BilinearAttention(width, heads, scoring, logits=Logits(norm=setting.norm))
        initialise(layer, seed + number)
        nn.init.zeros_(layer.out.weight)
        return Block(layer, 4 * width)

    network = Regressor(setting.dim, 2 * setting.dim, [block(number) for number in range(setting.layers)])
    for _, hidden, _, last in (block.mlp for block in network.blocks):
        nn.init.normal_(hidden.weight, std=width**-0.5)
        nn.init.zeros_(last.weight)
    return network


def _ranked(model, width):
    """Family, heads and ranks of a model of this width."""
    family, heads, ranks = model
    return family, heads, ranks or (width // heads,)


def scales(network: Regressor, setting: Setting) -> dict[str, float]:
    """Multiples of the learning rate by parameter: base / inputs for matrices of D or more inputs (μP)."""
    linears = [linear for block in network.blocks for linear in (block.mlp[1], block.mlp[3])]
    rates = {linear.weight: setting.base / linear.in_features for linear in (*linears, network.read_out)}
    for block in network.blocks:
        for group in learning_rates(block.mixer, 1.0, setting.base):
            rates |= dict.fromkeys(group["params"], group["lr"])
    return {name: rates[parameter] for name, parameter in network.named_parameters() if parameter in rates}


def task(setting: Setting, seed: int):
    """Prompts and their values for every step, by the curriculum."""

    def at(step):
        active = curriculum(step, setting.dim, every=setting.every)
        X, y = regression(setting.batch, setting.dim, 2 * active, seed * 10**7 + step, active)
        return regression_prompt(X, y).to(setting.device), y.to(setting.device)

    return at


def run(model: Model, width: int, lr: float, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train one model and test it; validation and test are the same for all seeds.

    `errors` are of every point from the first on; `losses` means over `every` steps; `validation_loss` the mean of all.
    """
    setting = Setting(**setting)
    network = build(model, width, setting, seed).to(setting.device)
    warmup = min(setting.warmup / setting.steps, 0.5)
    plan = Plan(
        setting.steps, lr, warmup, 0.0, every=setting.every, loss="squared error", scales=scales(network, setting)
    )
    began = time.perf_counter()
    record = trained(network, task(setting, seed), plan)
    errors, known = _errors(network, setting, seed=-1)
    return {
        "model": title(*_ranked(model, width)),
        "width": width,
        "lr": lr,
        "layers": setting.layers,
        "dim": setting.dim,
        "seed": seed,
        "parameters": sum(p.numel() for p in network.parameters()),
        "losses": means(record.losses, 5, setting.every),
        "errors": errors,
        "least squares": known,
        "error": errors[-1],
        "validation_loss": round(statistics.fmean(_errors(network, setting, seed=-2)[0]), 5),
        "seconds": round(time.perf_counter() - began, 2),
    }


@torch.no_grad()
def _errors(network, setting, seed):
    """Squared errors of every point, of the model and of least squares, on examples that no step has seen."""
    X, y = regression(setting.tests, setting.dim, 2 * setting.dim, seed)
    parts = regression_prompt(X, y).split(setting.batch)
    predictions = torch.cat([network(part.to(setting.device)).cpu() for part in parts])
    found = (predictions, least_squares(X, y))
    return [[round(error, 5) for error in (one - y).square().mean(0).tolist()] for one in found]


def table(result: Mapping[str, Mapping]) -> str:
    """A result for a terminal: for each model its size, the error at the last point, and the mean time; answers."""

    def line(name, runs):
        errors = each_seed(runs, "error", 4)
        return f"{name}  {runs[0]['parameters']:9} parameters  {errors}  {mean_seconds(runs)}"

    found = answers(QUESTIONS, result["runs"], "error", MARGIN)
    return "\n".join([*model_lines(result["runs"], line), *found.splitlines()])


OPTIONS = {"--paper": ("the sizes of the paper, on a graphics card", PAPER)}
main = Experiment("icl_regression", __doc__, FULL, SMOKE, run, table, OPTIONS, swept)
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
