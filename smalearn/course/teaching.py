"""Arguments of the commands for teachers, and how they are read."""

import argparse
import contextlib
import datetime
from pathlib import Path

__all__ = ["add_grade"]

SANDBOX = """Submissions run in a sandbox where bubblewrap works: on Linux install the package bubblewrap, elsewhere
grade in a container; TEACHING.md has both."""


def add_grade(command: argparse.ArgumentParser) -> None:
    """Define the arguments of `smalearn grade`.

    These are `files`, names of notebooks and folders; `output`, the table; `roster`, the class list, or None, with
    `name_column` and `id_column`, titles of its columns; `due`, seconds since 1970, or None; `jobs`, notebooks at a
    time, or None; `on`, the place where they run; `partial`, `cases` and `flagged`, parts of the points for what is
    right but not as asked, for the cases that a wrong answer gets right, and for what has a flag; `exercises` and
    `weights`, files of the teacher's own, or None; `seconds` and `memory` in GiB, for each notebook.
    """
    add = command.add_argument
    command.epilog = SANDBOX
    add("files", nargs="+", help="notebooks, or folders of notebooks")
    text = "the gradebook, as CSV; one that is there goes on"
    add("-o", "--output", type=Path, required=True, metavar="TABLE", help=text)
    text = "class list as CSV, such as Canvas and Moodle export: a line for everybody, and a file for the import"
    add("--roster", type=Path, metavar="FILE", help=text)
    text = "column of the class list that has the name, or a part of it, if not called Name, First name or the like"
    add("--name-column", action="append", default=[], metavar="TITLE", help=text)
    add("--id-column", action="append", default=[], metavar="TITLE", help="column that has ids, if not called so")
    text = "date, or date and time, 2026-11-30T18:00, by which files should have been changed last"
    add("--due", type=_moment, metavar="TIME", help=text)
    add("-j", "--jobs", type=_count, metavar="N", help="notebooks at a time, if local (default: up to 4)")
    text = "local (the default), dask://HOST:PORT, slurm or mpi: workers that all have bubblewrap"
    add("--on", default="local", metavar="PLACE", help=text)
    add("--exercises", type=Path, metavar="FILE", help="Python file with exercises of your own")
    add("--weights", type=Path, metavar="FILE", help='points as JSON, {"3.1": 1, "3.4": 2}')
    text = "part of the points for ◐, right but not as asked (default: 0.5)"
    add("--partial", type=_share, default=0.5, metavar="PART", help=text)
    text = "part of the points for a wrong answer, times the share of the cases that it gets right (default: 0)"
    add("--cases", type=_share, default=0.0, metavar="PART", help=text)
    text = "part of the points that counts for an answer with a flag, before a teacher has read it (default: 0)"
    add("--flagged", type=_share, default=0.0, metavar="PART", help=text)
    add("--seconds", type=_count, default=120, help="time limit of each notebook (default: 120)")
    add("--memory", type=_count, default=2, metavar="GIB", help="memory limit, on Linux (default: 2)")


def _count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _share(text: str) -> float:
    """Read a number from 0 to 1."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return share


def _moment(text: str) -> float:
    """Read a local date and time as seconds since 1970; a date is its end."""
    with contextlib.suppress(ValueError):
        return datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time.max).timestamp()
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-11-30T18:00, got {text!r}") from None
