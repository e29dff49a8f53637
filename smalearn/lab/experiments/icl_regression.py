"""In-context regression by whole Transformers, as in the structured attention paper (section 4): for a device.

    python -m smalearn.lab.experiments.icl_regression -o icl.json --device cuda

Six layers, 500,001 steps, widths 16 to 512, inputs of 16 to 128 coordinates: days of a graphics card, and nothing of it
is recorded here. Each run writes checkpoints beside the result; the same command goes on with them.

Known differences from the paper's published code: its learning rate stays constant after the warmup, here it falls as
a cosine; its optimiser has other betas; it limits the root mean square of structured factors.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from smalearn._checks import ShapeError
from smalearn.data import curriculum, least_squares, regression, regression_prompt
from smalearn.lab.experiments.command import command_parser, print_result
from smalearn.lab.experiments.grid import each_seed, means, model_lines, trained
from smalearn.lab.experiments.jobs import run_jobs
from smalearn.lab.experiments.one_layer import FAMILIES, Model, title
from smalearn.models import Block
from smalearn.scores.bilinear import BilinearAttention, Logits
from smalearn.scores.mup import initialise, learning_rates
from smalearn.train import Plan
from smalearn.weights import as_mlbtc

__all__ = ["FULL", "SMOKE", "Regressor", "Setting", "build", "jobs", "main", "run", "table", "task"]


@dataclass(frozen=True)
class Setting:
    """One size of the inputs, and the models that face it.

    Args:
        dim: d, coordinates of an input; there are 2·d points.
        widths: D of the models.
        models: of each the family, the heads, and the rank or the rank of every level; no ranks are one, D / heads.
        layers: blocks of attention and MLP.
        steps: of training.
        batch: examples of a step.
        lr: the highest learning rate, at the width of `base`.
        base: the width whose learning rate is `lr`; others follow by μP.
        warmup: steps in which it rises.
        norm: C of the layer norm on queries and keys.
        every: steps from one size of the curriculum to the next, and from one checkpoint to the next.
        tests: examples of the test.
    """

    dim: int
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    models: tuple[Model, ...] = (
        ("low rank", 8, ()),
        ("low rank", 1, ()),
        ("BTT", 8, (1,)),
        ("MLR", 8, (2, 2, 4)),
    )
    layers: int = 6
    steps: int = 500_001
    batch: int = 64
    lr: float = 1e-3
    base: int = 64
    warmup: int = 1000
    norm: float = 8.0
    every: int = 2000
    tests: int = 1280


FULL = {f"d = {dim}": Setting(dim) for dim in (16, 32, 64, 128)}
"""The paper's sizes."""

SMOKE = {"d = 5": Setting(5, (16,), layers=1, steps=8, batch=4, warmup=2, every=3, tests=8)}
"""The same in seconds, to see that it runs; its numbers say nothing."""


class Regressor(nn.Module):
    """A causal Transformer that reads a prompt of `regression_prompt` and predicts each value before it reads it.

    A linear layer makes tokens of inputs, learned positions are added, blocks follow, and a linear layer, zero at the
    start, makes a number of each token: all predictions are 0 then, and the expected loss is 1.

    Args:
        dim: d, size of an input.
        points: N, of the longest prompt.
        blocks: of one dim.
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
        """Predictions of all values.

        Args:
            prompt: (..., 2·n, d) with n ≤ N.

        Returns:
            (..., n): the i-th from x_i and the pairs before it, read at row 2·i.

        Raises:
            ShapeError: the prompt is longer than the positions.
        """
        if prompt.shape[-2] > self.positions.num_embeddings:
            most = self.positions.num_embeddings
            raise ShapeError(f"Regressor: prompt has at most {most} rows, got {prompt.shape[-2]}")
        x = self.read_in(prompt) + self.positions.weight[: prompt.shape[-2]]
        for block in self.blocks:
            x = block(x)
        return self.read_out(self.norm(x[..., 0::2, :]))[..., 0]


def build(model: Model, width: int, setting: Setting, seed: int = 0) -> Regressor:
    """A model as it is before its training, with starts and learning rates by μP (`smalearn.scores.mup`).

    What reads a token's last form starts at zero.

    Args:
        model: family, heads and ranks; no ranks are one, D / heads.
        width: D.
        setting: sizes, norm and base.
        seed: of all parameters.
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
    """Multiples of the learning rate by parameter: base / inputs for matrices of D or more inputs (μP).

    Args:
        network: from `build`.
        setting: its base.
    """
    linears = [linear for block in network.blocks for linear in (block.mlp[1], block.mlp[3])]
    rates = {linear.weight: setting.base / linear.in_features for linear in (*linears, network.read_out)}
    for block in network.blocks:
        for group in learning_rates(block.mixer, 1.0, setting.base):
            rates |= dict.fromkeys(group["params"], group["lr"])
    return {name: rates[parameter] for name, parameter in network.named_parameters() if parameter in rates}


def task(setting: Setting, seed: int, device: str = "cpu"):
    """Prompts and their values for every step, by the curriculum.

    Args:
        setting: dim, batch and every.
        seed: of the draws.
        device: where the batch goes.

    Returns:
        The function that `train` takes.
    """

    def at(step):
        active = curriculum(step, setting.dim, every=setting.every)
        X, y = regression(setting.batch, setting.dim, 2 * active, seed * 10**7 + step, active)
        return regression_prompt(X, y).to(device), y.to(device)

    return at


def run(
    model: Model, width: int, setting: Mapping[str, object], seed: int, device: str, checkpoint: str
) -> dict[str, object]:
    """Train one model, continuing from its checkpoint if there is one, and test it.

    Args:
        model: family, heads and ranks.
        width: D.
        setting: the fields of a `Setting`.
        seed: of the weights and the batches; the test is the same for all.
        device: as torch names it.
        checkpoint: its file.

    Returns:
        `model`, `width`, `dim`, `seed`, `parameters`; `losses`, means over `every` steps; `errors` of every point from
        the first on, and those of `least_squares`; the last of them, `error`.

    Raises:
        KeyboardInterrupt: it was interrupted; the checkpoint stays.
    """
    setting = Setting(**setting)
    network = build(model, width, setting, seed).to(device)
    warmup = min(setting.warmup / setting.steps, 0.5)
    plan = Plan(
        setting.steps,
        setting.lr,
        warmup,
        0.0,
        every=setting.every,
        loss="squared error",
        scales=scales(network, setting),
    )
    record = trained(network, task(setting, seed, device), plan, None, checkpoint)
    X, y = regression(setting.tests, setting.dim, 2 * setting.dim, seed=-1)
    with torch.no_grad():
        parts = regression_prompt(X, y).split(setting.batch)
        predictions = torch.cat([network(part.to(device)).cpu() for part in parts])
    errors = [round(error, 5) for error in (predictions - y).square().mean(0).tolist()]
    return {
        "model": title(*_ranked(model, width)),
        "width": width,
        "dim": setting.dim,
        "seed": seed,
        "parameters": sum(p.numel() for p in network.parameters()),
        "losses": means(record.losses, 5, setting.every),
        "errors": errors,
        "least squares": [round(e, 5) for e in (least_squares(X, y) - y).square().mean(0).tolist()],
        "error": errors[-1],
    }


def jobs(settings: Mapping[str, Setting], device: str, folder: Path) -> dict[str, dict[str, object]]:
    """All runs by name; the checkpoint of each is a file of its own in the folder."""
    listed = {}
    for name, setting in settings.items():
        for width in setting.widths:
            for model in setting.models:
                job = {"model": model, "width": width, "setting": asdict(setting), "seed": 0, "device": device}
                path = str(folder / f"{len(listed)}.pt")
                listed[f"{name}, D = {width}, {title(*_ranked(model, width))}"] = job | {"checkpoint": path}
    return listed


def table(result: Mapping[str, Mapping]) -> str:
    """A result for a terminal: for each model its size, and the error at the last point."""

    def line(name, runs):
        return f"{name:36}  {runs[0]['parameters']:9} parameters  {each_seed(runs, 'error', 4)}"

    return "\n".join(model_lines(result["runs"], line))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; those of the process where None.

    Returns:
        Exit status.
    """
    parser = command_parser("icl_regression", __doc__)
    parser.add_argument("--device", default="cpu", help="as torch names it, such as cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(argv)
    settings = SMOKE if args.smoke else FULL
    described = {title: asdict(setting) for title, setting in settings.items()}
    folder = args.output.with_suffix(".checkpoints")

    def work():
        if args.output.parent.is_dir():
            folder.mkdir(exist_ok=True)
        todo = jobs(settings, args.device, folder)
        result = run_jobs(args.output, parser.prog + " --smoke" * args.smoke, described, todo, run, workers=0)
        shutil.rmtree(folder)
        return table(result)

    return print_result("icl_regression", args.output, work)


if __name__ == "__main__":
    sys.exit(main())
