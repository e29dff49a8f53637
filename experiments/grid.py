"""Runs of a grid of settings: their jobs, the parts that their records have alike, and the lines of their table."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from smalearn.course.results import model_of
from smalearn.train import Record, train


def grid(settings: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """All runs by name, seed after seed, so that a file that is not finished has something of everything.

    A setting has `seeds`, how many, and `runs(seed)`: by a model's name, its own arguments.
    """
    return {
        f"{title}, {name}, seed {seed}": {**job, "setting": asdict(setting), "seed": seed}
        for seed in range(max(setting.seeds for setting in settings.values()))
        for title, setting in settings.items()
        if seed < setting.seeds
        for name, job in setting.runs(seed).items()
    }


def swept(settings: Mapping[str, Any], runs: Mapping[str, Mapping]) -> dict[str, dict[str, object]]:
    """The jobs of `grid`, of which seed 0 tries every rate and all others have the best of these alone.

    So no seed that is reported has chosen its rate, and no example that chose it is in the test.
    """
    jobs, best = grid(settings), best_rates(runs)
    tried = {model_of(name) for name, job in jobs.items() if job["seed"] == 0 and name not in runs}
    wanted = {model: lr for model, lr in best.items() if model not in tried}
    return {name: job for name, job in jobs.items() if job["seed"] == 0 or job["lr"] == wanted.get(model_of(name))}


def best_rates(runs: Mapping[str, Mapping]) -> dict[str, float]:
    """By model the rate at which seed 0 has the lowest `validation_loss`."""
    tried: dict[str, dict[float, float]] = {}
    for name, run in runs.items():
        if run["seed"] == 0:
            tried.setdefault(model_of(name), {})[run["lr"]] = run["validation_loss"]
    return {model: min(losses, key=losses.__getitem__) for model, losses in tried.items()}


def trained(model: nn.Module, *args: object, **kwargs: object) -> Record:
    """Train a model in place, without a bar; the arguments, the record and the errors are those of `train`."""
    _, record = train(model, *args, **kwargs, progress=False)
    if record.interrupted:
        raise KeyboardInterrupt
    return record


def means(losses: Sequence[float], digits: int, steps: int = 10) -> list[float]:
    """Means of so many steps each, rounded to so many digits; the last is of what remains."""
    return [round(statistics.fmean(losses[k : k + steps]), digits) for k in range(0, len(losses), steps)]


def model_lines(runs: Mapping[str, Mapping], line: Callable[[str, list[Mapping]], str]) -> list[str]:
    """Lines of a table: for each model that of its name, padded to the longest of all, and its runs, one a seed."""
    models: dict[str, list[Mapping]] = {}
    for name, run in runs.items():
        models.setdefault(name.partition(", seed ")[0], []).append(run)
    width = max(map(len, models), default=0)
    return [line(name.ljust(width), of_model) for name, of_model in models.items()]


def each_seed(runs: Sequence[Mapping], measure: str, digits: int = 3) -> str:
    """A measure of each seed, for a table."""
    return " ".join(f"{run[measure]:.{digits}f}" for run in runs)


def mean_seconds(runs: Sequence[Mapping]) -> str:
    """The mean time of a run, for a table."""
    return f"{statistics.fmean(run['seconds'] for run in runs):.0f} s"
