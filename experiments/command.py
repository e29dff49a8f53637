"""Commands of the experiments: where the result goes, which settings, and how it ends."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from experiments.grid import grid
from experiments.jobs import run_jobs
from smalearn.course import progress
from smalearn.course.executors import Lost, executor
from smalearn.course.spawned import killed_by_ctrl_c
from smalearn.data import Source


@dataclass(frozen=True)
class Experiment:
    """The command of an experiment: call it with its arguments."""

    name: str  # of its module
    doc: str  # of its module, whose first line says the purpose
    full: Mapping[str, object]  # the recorded settings, by title
    smoke: Mapping[str, object]  # those of `--smoke`, which take seconds
    run: Callable[..., Mapping[str, object]]  # does one run
    table: Callable[[Mapping[str, object]], str]  # from the result to what the terminal shows
    # for each further option, a line of help and the settings by title
    variants: Mapping[str, tuple[str, Mapping[str, object]]] = field(default_factory=dict)
    # from settings, and the records so far by name, to the arguments of each run; asked again when these are
    # done, for runs that depend on what earlier ones found
    jobs: Callable[[Mapping, Mapping], Mapping[str, Mapping[str, object]]] = lambda settings, _: grid(settings)
    # on real data, from the field `data` of a setting to the source of what is there
    load: Callable[[str], Source] | None = None

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Read the options, load the data once, do what is left to do, print the table.

        The file says which data it was made with, by name and checksum: data that stand in for others have another
        name, and a result that was begun with one is not continued with the other.
        """
        options = self.variants | {"--smoke": ("tiny sizes, to see that it runs", self.smoke)}
        parser = command_parser(self.name, self.doc)
        exclusive = parser.add_mutually_exclusive_group()
        for option, (line, _) in options.items():
            exclusive.add_argument(option, dest="variant", action="store_const", const=option, default="", help=line)
        parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one thread, if local")
        parser.add_argument(
            "--on", default="local", metavar="PLACE", help="local (the default), dask://HOST:PORT, slurm or mpi"
        )
        args = parser.parse_args(argv)

        def work():
            settings, sources = self._loaded(options[args.variant][1] if args.variant else self.full)
            described = sources | {title: asdict(setting) for title, setting in settings.items()}
            command = f"{parser.prog} {args.variant}".rstrip()
            result = {"runs": {}}
            with executor(args.on, args.workers, args.output.with_suffix(".slurm")) as pool:
                while (jobs := self.jobs(settings, result["runs"])).keys() - result["runs"].keys():
                    result = run_jobs(args.output, command, described, jobs, self.run, pool)
            return self.table(result)

        return print_result(self.name, args.output, work)

    def _loaded(self, settings):
        """The settings, on real data each with those that there are, and where these come from."""
        if self.load is None:
            return settings, {}
        loaded, sources = {}, {}
        for title, setting in settings.items():
            source = self.load(setting.data)
            if source.name not in sources:
                print(f"{self.name}: data: {source.sentence}", file=sys.stderr)
            sources[source.name] = asdict(source)
            loaded[title] = replace(setting, data=source.name)
        return loaded, {"data": sources}


def command_parser(name: str, doc: str) -> argparse.ArgumentParser:
    """A parser for the command of a module of this folder, with the option that all have, `-o FILE`."""
    command = f"python -m experiments.{name}"
    example = f"Example: {command} -o {name}.json"
    parser = argparse.ArgumentParser(prog=command, description=doc.splitlines()[0], epilog=example)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="JSON; gone on with if it exists"
    )
    return parser


def print_result(name: str, output: Path, work: Callable[[], str]) -> int:
    """Print the table that `work` returns, or one line on what stopped it; return the exit status.

    What `work` prints tells how far it is, and goes to stderr.
    """
    try:
        if output.parent.is_dir():
            progress.try_to_write(output.parent)  # what cannot be kept is known before it takes hours
        with contextlib.redirect_stdout(sys.stderr), killed_by_ctrl_c():
            table = work()
    except (ImportError, OSError, ValueError, Lost) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on with {output}", file=sys.stderr)
        return 130
    print(table)
    return 0
