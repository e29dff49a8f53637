"""When do many narrow heads fail? One layer of attention of which only the scoring is trained.

    python -m experiments.bottleneck -o assets/results/bottleneck.json

The models differ in their scoring matrices alone: how many heads, and of which structure.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

from experiments import icl_regression
from experiments.command import Experiment
from experiments.grid import each_seed, grid, model_lines
from smalearn.course.ch10.layer import Model, Setting, batch, build, squared_error, title, training
from smalearn.course.timing import CLOCK, interleaved


@dataclass(frozen=True)
class Timing:
    """Timed models."""

    setting: Setting | icl_regression.Setting  # models of one layer, or Transformers of one width
    rounds: int = 20  # of the measurement; in each, every model is timed once


def _growing(dim):
    """One head of full rank, eight heads of growing rank, and full rank from few parameters."""
    wide = [("low rank", 8, (dim * k // 8,)) for k in (1, 2, 4, 6, 8)]
    return ("low rank", 1, (dim,)), *wide, ("BTT", 8, (1,)), ("BTT", 1, (1,))


_BETWEEN = ("low rank", 2, (8,)), ("low rank", 4, (4,)), ("MLR", 4, (1, 1, 2)), ("MLR", 1, (4, 4, 8))
_HEADS = ("low rank", 1, (16,)), ("low rank", 1, (8,)), ("low rank", 1, (2,)), ("low rank", 8, (2,))
_MORE = ("low rank", 8, (16,)), ("BTT", 8, (1,)), ("BTT", 1, (1,))

FULL = {
    "nearest, d = 16": Setting("nearest", 16, 16, _growing(16) + _BETWEEN, seeds=3),
    "nearest, d = 8": Setting("nearest", 8, 16, _growing(8)),
    "nearest, d = 32": Setting("nearest", 32, 16, _growing(32)),
    "regression, linear": Setting("regression", 16, 32, _HEADS, softmax=False),
    "regression, softmax": Setting("regression", 16, 32, _HEADS + _MORE),
    "time, nearest, d = 16": Timing(Setting("nearest", 16, 16, _growing(16) + _BETWEEN)),
    "time, Transformers": Timing(icl_regression.Setting(16, (64,), (("low rank", 8, (8,)), ("BTT", 8, (1,))), batch=8)),
}
"""The recorded experiment: the sphere at three sizes; regression, where heads add up; and the time of a step."""

SMOKE = {
    "nearest, d = 4": Setting(
        "nearest",
        4,
        3,
        (("low rank", 2, (2,)), ("BTT", 1, (1,)), ("MLR", 1, (1, 1))),
        steps=30,
        batch=4,
        tests=8,
    ),
    "regression, linear": Setting(
        "regression", 4, 8, (("low rank", 1, (2,)),), softmax=False, steps=3, seeds=1, batch=4, tests=8
    ),
    "time, nearest, d = 4": Timing(Setting("nearest", 4, 3, (("low rank", 1, (1,)), ("BTT", 1, (1,)))), rounds=2),
    "time, Transformers": Timing(
        icl_regression.Setting(4, (8,), (("low rank", 2, (4,)),), layers=1, batch=2), rounds=2
    ),
}
"""The same in seconds, to see that it runs; its numbers say nothing."""


def run(model: Model, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train and test one model; the test is the same for all seeds.

    `macs` are those of an example's forward; `accuracy` is how often the nearest neighbour has the most attention.
    """
    setting = Setting(**setting)
    layer = build(model, setting, seed)
    (query, X, V), answers = batch(setting, setting.tests, seed=-1)
    errors, began = {}, time.perf_counter()
    for done in training(layer, setting, seed):
        if done == setting.steps or done in [25 * 2**k for k in range(20)]:
            with torch.no_grad():
                errors[str(done)] = round(squared_error(layer(query, X, V), answers).item(), 4)
    record = {
        "model": title(*model),
        "family": model[0],
        "heads": model[1],
        "ranks": list(model[2]),
        "dim": setting.dim,
        "seed": seed,
        "parameters": sum(p.numel() for p in layer.parameters()),
        "macs": layer.count(setting.points, V.shape[-1]),
        "errors": errors,
        "error": errors[str(setting.steps)],
    }
    if setting.task == "nearest":
        with torch.no_grad():
            most = layer.attention(query, X).argmax(-1)
        right = (X[torch.arange(len(X)), most] == answers).all(-1)
        record["accuracy"] = round(right.double().mean().item(), 4)
    return record | {"seconds": round(time.perf_counter() - began, 2)}


def clock(setting: Mapping[str, object], rounds: int) -> dict[str, object]:
    """Time 20 training steps of every model in each round: `milliseconds` of a step, of the processor where known."""
    endless = replace(Setting(**setting), steps=20 * (rounds + 1))
    return _timed({title(*m): training(build(m, endless, 0), endless, 0) for m in endless.models}, rounds, 20)


def clock_transformers(setting: Mapping[str, object], rounds: int) -> dict[str, object]:
    """Time two training steps of whole Transformers, which differ in their scores alone, in each round."""
    setting = icl_regression.Setting(**setting)
    batches = icl_regression.task(setting, 0)
    last = setting.every * 10**3  # all coordinates are active

    def steps(model):
        optimizer = torch.optim.Adam(model.parameters())
        while True:
            prompt, answers = batches(last)
            optimizer.zero_grad()
            (model(prompt) - answers).square().mean().backward()
            optimizer.step()
            yield

    (width,) = setting.widths
    return _timed({title(*m): steps(icl_regression.build(m, width, setting)) for m in setting.models}, rounds, 2)


def _timed(trainings, rounds, steps):
    """`milliseconds` of a step of each training, a generator that does one step at a time."""

    def sample(training):
        began = CLOCK()
        for _ in range(steps):
            next(training)
        return (CLOCK() - began) / steps

    samplers = {name: partial(sample, training) for name, training in trainings.items()}
    for sampler in samplers.values():
        sampler()  # the first is slower
    times = interleaved(samplers, rounds)
    return {"milliseconds": {name: [round(1e3 * t, 4) for t in samples] for name, samples in times.items()}}


WORK = {"run": run, "clock": clock, "clock transformers": clock_transformers}


def work(kind: str, **job: object) -> dict[str, object]:
    """Do one job by the function of `WORK` with that name."""
    return WORK[kind](**job)


def jobs(settings: Mapping[str, Setting | Timing]) -> dict[str, dict[str, object]]:
    """All runs by name: every model, seed after seed, then what is timed."""
    trained = {name: setting for name, setting in settings.items() if isinstance(setting, Setting)}
    timed = {name: timing for name, timing in settings.items() if isinstance(timing, Timing)}
    runs = {name: {"kind": "run", **job} for name, job in grid(trained).items()}
    for name, timing in timed.items():
        kind = "clock" if isinstance(timing.setting, Setting) else "clock transformers"
        runs[name] = {"kind": kind, **asdict(timing)}
    return runs


def table(result: Mapping[str, Mapping]) -> str:
    """A result for a terminal: for each model its size, and the last error of every seed."""

    def line(name, runs):
        first = runs[0]
        task = name.rpartition(f", {first['model']}")[0]
        sizes = f"{first['parameters']:6} parameters  {first['macs']:6} MACs"
        return f"{task:20}  {first['model']:16}  {sizes}  {each_seed(runs, 'error')}"

    lines = model_lines({name: one for name, one in result["runs"].items() if "error" in one}, line)
    for name, one in result["runs"].items():
        for model, samples in one.get("milliseconds", {}).items():
            lines.append(f"{name:20}  {model:16}  {statistics.median(samples):.2f} ms a step")
    return "\n".join(lines)


main = Experiment("bottleneck", __doc__, FULL, SMOKE, work, table, jobs=lambda settings, _: jobs(settings))
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
