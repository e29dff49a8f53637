"""What the commands of the experiments have alike: where the result goes, which settings, and how it ends."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from smalearn.data import Source
from smalearn.lab.experiments.jobs import run_jobs

__all__ = ["Experiment", "run_experiment"]


@dataclass(frozen=True)
class Experiment:
    """An experiment, as a command needs it.

    Args:
        name: of its module.
        purpose: one line.
        variants: for each option, "" for none, a line of help and the settings by title.
        jobs: from settings to the arguments of each run.
        run: does one of them.
        table: from the result to what the terminal shows.
        load: on real data, from the field `data` of a setting to the source of what is there.
    """

    name: str
    purpose: str
    variants: Mapping[str, tuple[str, Mapping[str, object]]]
    jobs: Callable[[Mapping[str, object]], Mapping[str, Mapping[str, object]]]
    run: Callable[..., Mapping[str, object]]
    table: Callable[[Mapping[str, object]], str]
    load: Callable[[str], Source] | None = None


def run_experiment(experiment: Experiment, argv: Sequence[str] | None = None) -> int:
    """The command of an experiment: read its options, load the data once, do what is left to do, print the table.

    The file says which data it was made with, by name and checksum: data that stand in for others have another name,
    and a result that was begun with one is not gone on with with the other.

    Args:
        experiment: what to do.
        argv: the arguments; those of the process where None.

    Returns:
        Exit status.
    """
    args = _arguments(experiment, argv)
    option = args.variant or ""
    command = f"python -m smalearn.lab.experiments.{experiment.name} {option}".rstrip()
    try:
        settings, sources = _settings(experiment, option)
        described = sources | {title: asdict(setting) for title, setting in settings.items()}
        result = run_jobs(args.output, command, described, experiment.jobs(settings), experiment.run, args.workers)
    except (ImportError, ValueError) as error:
        print(f"{experiment.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{experiment.name}: stopped; the same command goes on with {args.output}", file=sys.stderr)
        return 130
    print(experiment.table(result))
    return 0


def _arguments(experiment, argv):
    """The options."""
    module = f"python -m smalearn.lab.experiments.{experiment.name}"
    parser = argparse.ArgumentParser(prog=module, description=experiment.purpose)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="JSON; gone on with if it exists"
    )
    which = parser.add_mutually_exclusive_group()
    for option, (line, _) in experiment.variants.items():
        if option:
            which.add_argument(option, dest="variant", action="store_const", const=option, help=line)
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one thread")
    return parser.parse_args(argv)


def _settings(experiment, option):
    """The settings, on real data each with those that there are, and where these come from."""
    if experiment.load is None:
        return experiment.variants[option][1], {}
    settings, sources = {}, {}
    for title, setting in experiment.variants[option][1].items():
        source = experiment.load(setting.data)
        if source.name not in sources:
            print(f"{experiment.name}: data: {source.sentence}", file=sys.stderr)
        sources[source.name] = asdict(source)
        settings[title] = replace(setting, data=source.name)
    return settings, {"data": sources}
