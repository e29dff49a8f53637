"""Do far hours deserve less compute? Small models of forecasts that differ in the levels of their scores alone.

    python -m experiments.forecast -o assets/results/forecast.json

The oil temperature of a transformer 96, 192 and 336 hours ahead, by an encoder with learned positions; and a series in
bins, as tokens, by an encoder-decoder with relative biases, as Chronos has them. One level is standard attention.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from experiments.command import Experiment
from experiments.encoders import EncoderDecoder, Forecaster, LevelAttention, Repeat
from experiments.grid import each_seed, mean_seconds, means, model_lines, trained
from smalearn.course.results import changes, interval
from smalearn.data import load_series, series_windows, split_series
from smalearn.models import Block
from smalearn.multilevel import parse_ranks, score_macs
from smalearn.train import Plan, mean_loss

REPEATS = {"last value": 1, "day before": 24}
"""Forecasts that learn nothing, and how many hours they repeat."""


@dataclass(frozen=True)
class Setting:
    """A forecast, the splits of the scores that try it, and how they are trained."""

    ranks: tuple[str, ...]  # splits of dim/heads, such as "12|4"; the first is a single level, the standard
    bins: int = 0  # 0 for numbers, by an encoder; else tokens, by an encoder-decoder
    data: str = "ETTh1"  # name of the series
    context: int = 96  # hours known
    horizon: int = 96  # hours to forecast
    dim: int = 32  # D
    heads: int = 2  # of each layer
    layers: int = 2  # of the encoder, and of the decoder if there is one
    mlp: int = 128  # width of the hidden layers
    steps: int = 200  # of training
    seeds: int = 3  # how many runs of each split
    batch: int = 16  # windows of a step
    lr: float = 1e-2  # the highest learning rate
    tests: int = 240  # windows of the test, spread evenly over its months

    def runs(self, seed: int) -> dict[str, dict[str, object]]:
        """Every split; what learns nothing has one seed."""
        repeats = () if seed or self.bins else REPEATS
        return {ranks: {"ranks": ranks} for ranks in (*self.ranks, *repeats)}


FULL = {
    **{f"{horizon} hours": Setting(("16", "12|4", "10|4|1|1"), horizon=horizon) for horizon in (96, 192, 336)},
    **{
        f"bins, D = {dim}": Setting(
            ("32", "16|5|4|4|2|1"),
            bins=64,
            data="seasonal",
            context=128,
            horizon=32,
            dim=dim,
            heads=dim // 32,
            mlp=4 * dim,
            seeds=2,
            lr=5e-3,
        )
        for dim in (32, 64, 96)
    },
}
"""The recorded experiment. The splits are those of the paper, a quarter or half as wide: equal parts of the scores."""

SMOKE = {
    "12 hours": Setting(
        ("4", "2|2"), data="seasonal", context=24, horizon=12, dim=8, mlp=8, steps=3, seeds=2, batch=4, tests=6
    ),
    "bins, D = 8": Setting(
        ("4", "2|1|1"), 8, "seasonal", context=8, horizon=4, dim=8, mlp=8, steps=3, seeds=2, batch=4, tests=6
    ),
}
"""The same in seconds, to see that it runs; its numbers say nothing."""


def build(ranks: str, setting: Setting, columns: int, seed: int) -> torch.nn.Module:
    """A model as it is before its training, the same on every machine for the same seed."""
    if ranks in REPEATS:
        return Repeat(REPEATS[ranks], setting.horizon)
    torch.manual_seed(seed)
    context, horizon, split = setting.context, setting.horizon, parse_ranks(ranks)
    if setting.bins:
        sizes = {"dim": setting.dim, "heads": setting.heads, "layers": setting.layers, "mlp": setting.mlp}
        return EncoderDecoder(setting.bins, context, horizon, split, sizes)
    mixers = [
        LevelAttention(setting.dim, setting.heads, split, context + horizon, causal=False)
        for _ in range(setting.layers)
    ]
    return Forecaster(columns, context, horizon, [Block(mixer, setting.mlp) for mixer in mixers])


def quantise(series: torch.Tensor, context: int, bins: int, limit: float = 4.0) -> torch.Tensor:
    """Series (B, T) as tokens: divided by the mean size of what is known of each, then cut into equal bins, 0 to n - 1.

    What lies beyond ±limit is in the outermost bins.

    Source:
        Ansari et al. 2024 (Chronos), section 3.1, with 4094 bins up to 15.
    """
    size = series[:, :context].abs().mean(-1, keepdim=True).clamp(min=1e-6)
    return ((series / size + limit) / (2 * limit) * bins).long().clamp(0, bins - 1)


def run(ranks: str, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train and test one model, or test a forecast of `REPEATS`; the test is the same for all seeds.

    The `loss` is the mean absolute error in units of the training months' deviation, or the cross-entropy in nats a
    token; `error` is that of the last column, the oil temperature. `score_macs` are those of one example.
    """
    setting = Setting(**setting)
    series = load_series(setting.data)
    if series.source.name != setting.data:
        raise ValueError(f"run: series must be {setting.data}, got {series.source.name}: {series.source.sentence}")
    known, _, unseen = split_series(series.values, setting.context)
    model, began = build(ranks, setting, len(series.columns), seed), time.perf_counter()
    places = torch.linspace(0, len(unseen) - setting.context - setting.horizon, setting.tests).long()
    test = _batch(unseen, places, setting)
    kind, losses = "cross-entropy" if setting.bins else "absolute error", []
    if ranks not in REPEATS:
        plan = Plan(steps=setting.steps, lr=setting.lr, loss=kind)
        losses = trained(model, lambda step: _drawn(known, setting, seed * 10**6 + step), plan).losses
    record = {
        "ranks": ranks,
        **{name: getattr(setting, name) for name in ("horizon", "dim", "bins")},
        "seed": seed,
        "rows": len(series.values),
        "columns": len(series.columns),
        "parameters": sum(p.numel() for p in model.parameters()),
        "score_macs": _macs(model, setting),
        "losses": means(losses, 5),
        "loss": round(mean_loss(model, *test, kind, batch=32), 5),
    }
    if not setting.bins:
        record["error"] = round(_last_error(model, *test), 5)
    return record | {"seconds": round(time.perf_counter() - began, 2)}


def _drawn(part, setting, seed):
    """Windows that begin anywhere."""
    generator = torch.Generator().manual_seed(seed)
    last = len(part) - setting.context - setting.horizon
    return _batch(part, torch.randint(last + 1, (setting.batch,), generator=generator), setting)


def _batch(part, places, setting):
    """Inputs and targets: numbers of all columns, or the tokens of one column, another in every window."""
    inputs, targets = series_windows(part, places, setting.context, setting.horizon)
    if not setting.bins:
        return inputs, targets
    columns = torch.cat([inputs, targets], 1)
    tokens = quantise(columns[torch.arange(len(places)), :, places % part.shape[1]], setting.context, setting.bins)
    return tokens[:, :-1], tokens[:, setting.context :]


@torch.no_grad()
def _last_error(model, inputs, targets):
    """Mean absolute error of the last column."""
    predictions = torch.cat([model(part) for part in inputs.split(32)])
    return (predictions - targets)[..., -1].abs().mean().item()


def _macs(model, setting):
    """Multiply-adds of the scores of one example: of all layers that have levels."""
    total = 0
    for layer in model.modules():
        if isinstance(layer, LevelAttention):
            length = setting.context + setting.horizon if not setting.bins else layer.context
            total += layer.heads * score_macs(length, layer.ranks, layer.block_lens, layer.causal)
    return total


def table(result: Mapping[str, Mapping]) -> str:
    """A result for a terminal: for each model cost and losses, and its change against the standard with an interval."""

    def line(name, runs):
        losses = each_seed(runs, "error" if "error" in runs[0] else "loss", 4)
        return f"{name}  {runs[0]['score_macs']:9} score MACs  {losses}  {mean_seconds(runs)}"

    lines = model_lines(result["runs"], line)
    for (title, ranks), values in changes(result).items():
        ends = " to ".join(f"{100 * end:+.2f} %" for end in interval(values)) if len(values) > 1 else "one seed"
        lines.append(f"{title}, {ranks}: {100 * statistics.fmean(values):+.2f} % of the standard's loss ({ends})")
    return "\n".join(lines)


main = Experiment("forecast", __doc__, FULL, SMOKE, run, table, load=lambda name: load_series(name).source)
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
