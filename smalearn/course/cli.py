"""The command `smalearn`: one sub-command for each thing a learner or a teacher does outside a notebook.

A sub-command is a function of its parsed arguments that returns an exit status, and a few lines in `_parser`.
"""

import argparse
import contextlib
import datetime
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from smalearn import __version__
from smalearn._files import FILES, install
from smalearn.course import teaching, workbook
from smalearn.course.workbook import road

__all__ = [
    "afternoon",
    "bench",
    "claims",
    "doctor",
    "export",
    "grade",
    "lab",
    "main",
    "progress",
    "reset",
    "review",
    "site",
    "slides",
]

EXAMPLES = {
    "lab": "--no-browser --port 9999",
    "afternoon": "--no-browser",
    "progress": "",
    "review": "",
    "reset": "01 1.3",
    "doctor": "",
    "bench": "masks -o masks.json",
    "site": "-o pages",
    "claims": "semiseparable",
    "grade": "submissions -o points.csv",
    "export": "nbgrader 01 02 -o assignments",
    "slides": "06 -o slides",
}
WORK = Path("work")


def _places() -> tuple[Path, Path]:
    """Find the folder with the chapters, and the one whose `work/` is the learner's.

    Both are the nearest folder, the current one or above it, that has start.py and the chapters, or else the checkout
    of this package. A wheel has the chapters in it: `work/` is the nearest there is, or comes to the current folder.
    """
    here = Path.cwd()
    above = (here, *here.parents)
    checkouts = (folder for folder in above if (folder / "start.py").is_file())
    course = next((folder for folder in checkouts if any(folder.glob("chapters/*.ipynb"))), FILES)
    if (course / "start.py").is_file():
        return course, course
    return course, next((folder for folder in above if (folder / WORK / ".originals").is_dir()), here)


def _in_course(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Run a sub-command from the folder of `work/`, with the course's folder among its arguments."""

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> int:
        args.course, home = _places()
        with contextlib.chdir(home):
            return command(args)

    return run


@_in_course
def lab(args: argparse.Namespace) -> int:
    """Bring `work/` up to date with the chapters and open it in JupyterLab, with the course's settings."""
    return _lab(args, {}, [])


@_in_course
def afternoon(args: argparse.Namespace) -> int:
    """Make `work/afternoon.ipynb`, a road to your own Mamba-2, of cells of the chapters, and open it as `lab` does."""
    return _lab(args, road.made(args.course / "chapters"), [f"--LabApp.default_url=/lab/tree/{road.NAME}"])


def _lab(args: argparse.Namespace, made: dict[Path, dict], options: list[str]) -> int:
    """Copy what is newer of the chapters, and of notebooks made of them, to `work/`, and open JupyterLab there."""
    try:
        from smalearn.course.server import kernel, open_lab
    except ImportError:
        return _fail(f"{args.run.__name__}: JupyterLab is not installed here; run: {install('lab')}")
    try:
        lines = workbook.sync(args.course / "chapters", WORK, kernel(), made)
    except OSError as error:
        return _fail(f"{args.run.__name__}: the chapters cannot be copied to work/: {error}")
    print(*lines, sep="\n", end="\n" if lines else "")
    ours = (str(args.course / folder) for folder in (".jupyter/lab", ".jupyter"))
    paths = [*ours, os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    return open_lab([*options, *args.passed_on], args.log)


@_in_course
def progress(args: argparse.Namespace) -> int:
    """Print how far the learner is in each chapter, by the notebooks saved in `work/`."""
    from smalearn.course.exercises import registry

    for name in workbook.unreadable(WORK):
        print(f"work/{name} cannot be read as a notebook: it does not count.")
    course = {id: one for id, one in registry().items() if not one.opener}
    rows = workbook.progress(WORK, course, args.course / "chapters")
    print(workbook.table(rows))
    if line := road.progress(rows, args.course / "chapters"):
        print(line)
    return _page(rows, course) if args.page else 0


def _page(rows: list[workbook.ChapterProgress], course: dict) -> int:
    """Write what was reached as a page in `work/`."""
    from smalearn.course.site.reached import reached

    try:
        page = reached(rows, course, WORK, datetime.date.today())
        workbook.notebook.write(WORK / "progress.html", page.encode("utf-8"))
    except (ValueError, OSError) as error:
        return _fail(f"progress: {error}")
    print(f"The page: {WORK / 'progress.html'}")
    return 0


@_in_course
def review(args: argparse.Namespace) -> int:
    """Write the closed-book questions that are due again to a notebook in `work/`."""
    from smalearn.course.exercises import registry

    try:
        print(workbook.review(WORK, registry(), args.course / "chapters", datetime.date.today()))
    except OSError as error:
        return _fail(f"review: {error}")
    return 0


@_in_course
def reset(args: argparse.Namespace) -> int:
    """Put a chapter, or one exercise in it, back to what is published, after a backup."""
    try:
        chapters = args.course / "chapters"
        print(workbook.reset(WORK, chapters, args.chapter, args.exercise, road.made(chapters)))
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"reset: {error}")
    return 0


@_in_course
def doctor(args: argparse.Namespace) -> int:
    """Print what is installed and what is missing, as one block for a bug report."""
    from smalearn.course import doctor

    findings = doctor.report()
    print(doctor.render(findings))
    return 0 if doctor.can_work(findings) else 1


def bench(args: argparse.Namespace) -> int:
    """Measure against peers and print the result, which takes minutes."""
    if not (FILES / "benchmarks").is_dir():
        return _fail("bench: the benchmarks come with the repository of the course, not with the installed package")
    from benchmarks.command import measure

    try:
        return measure(args.names, args.output, args.device)
    except (ValueError, OSError) as error:
        return _fail(f"bench: {error}")


@_in_course
def site(args: argparse.Namespace) -> int:
    """Write the course as pages that can be read without a server, a network or a kernel."""
    from smalearn.course import site

    try:
        pages = site.build(args.course, args.output, args.repository)
    except (ImportError, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"site: {error}")
    print(f"{pages} pages; open {args.output / 'index.html'}")
    return 0


@_in_course
def claims(args: argparse.Namespace) -> int:
    """Print what the sources claim, where the course derives it, and which test holds it."""
    from smalearn.course import site

    print(site.table(site.claims(args.course), args.pattern))
    return 0


def grade(args: argparse.Namespace) -> int:
    """Grade notebooks, each in a process of its own, and write the gradebook.

    The status is 0 if every notebook could be read, set up and graded to its end; 1 if one could not (its row says
    why), or if there is no table; 130 if it was stopped.
    """
    from smalearn.course.grading.command import run

    try:
        return run(args)
    except ValueError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"grade: {error}")


@_in_course
def export(args: argparse.Namespace) -> int:
    """Write chapters as assignments for another grader, or the course without its solutions."""
    from smalearn.course import grading

    try:
        if args.form == "students":
            packed = grading.students(args.course, args.output)
            print(f"{args.output}: the course, {len(packed)} modules without readable solutions")
        else:
            print(*grading.export(grading.chapters(args.chapters, args.course / "chapters"), args.output), sep="\n")
    except (ValueError, OSError) as error:
        return _fail(f"export: {error}")
    return 0


@_in_course
def slides(args: argparse.Namespace) -> int:
    """Write chapters as slides, which need no network."""
    from smalearn.course.grading import chapters
    from smalearn.course.site.slides import slides

    try:
        pages = [slides(path, args.output) for path in chapters(args.chapters, args.course / "chapters")]
    except (ImportError, ValueError, OSError) as error:
        return _fail(f"slides: {error}")
    print(*pages, sep="\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # a Windows console of cp1252 has no ✓
    parser = _parser()
    args, unknown = parser.parse_known_args(argv)
    if "passed_on" in args:
        args.passed_on = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)  # the terminal has written ^C
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    """Define the sub-commands; one with `passed_on` takes arguments that it hands to another program."""
    parser = argparse.ArgumentParser(prog="smalearn", description="The tools of the course smalearn.")
    parser.add_argument("--version", action="version", version=f"smalearn {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help(sys.stderr) or 2)
    commands = parser.add_subparsers(metavar="command")
    _add_lab(commands)
    command = commands.add_parser("progress", help="show how many exercises of each chapter you have solved")
    command.add_argument(
        "--page", action="store_true", help="write what you reached as a page, work/progress.html, too"
    )
    command.set_defaults(run=progress)
    command = commands.add_parser("review", help="ask the closed-book questions again that are due today")
    command.set_defaults(run=review)
    command = commands.add_parser("reset", help="put a chapter or an exercise back as published, after a backup")
    command.add_argument("chapter", help="number or letter of the chapter, or the name of its file in work/")
    command.add_argument("exercise", nargs="?", help="id of an exercise, such as 1.2; the whole chapter without it")
    command.set_defaults(run=reset)
    command = commands.add_parser("doctor", help="show what is installed, what is missing and how to get it")
    command.set_defaults(run=doctor)
    _add_bench(commands)
    command = commands.add_parser("site", help="write the course as web pages that need no server")
    text = "a new folder, or one with an older site (default: site)"
    command.add_argument("-o", "--output", type=_anywhere, default="site", metavar="FOLDER", help=text)
    command.add_argument("--repository", metavar="OWNER/NAME", help="on GitHub; adds buttons to Colab and Binder")
    command.set_defaults(run=site)
    command = commands.add_parser("claims", help="list the claims of the sources, each with its chapter and its test")
    text = "text in an id such as 000:eq10, a statement, a function or a test (default: a summary)"
    command.add_argument("pattern", nargs="?", default="", help=text)
    command.set_defaults(run=claims)
    _add_teaching(commands)
    for name, command in commands.choices.items():
        command.description = command.get_default("run").__doc__.partition("\n")[0]
        example = f"Example: smalearn {name} {EXAMPLES[name]}".strip() + "."
        command.epilog = " ".join(filter(None, [example, command.epilog]))
    return parser


def _add_lab(commands: argparse._SubParsersAction) -> None:
    """Define the sub-commands that hand options they do not know to JupyterLab."""
    words = {
        lab: "open the course in JupyterLab, with newer chapters copied to work/",
        afternoon: f"open a road of {road.hours()} through the chapters, to your own Mamba-2",
    }
    for run, text in words.items():
        name = run.__name__
        options = "[--log] [options of JupyterLab, such as --no-browser --port 9999; --help-all lists them]"
        command = commands.add_parser(name, help=text, usage=f"smalearn {name} {options}", allow_abbrev=False)
        command.add_argument("--log", action="store_true", help="show JupyterLab's log in place of three lines")
        command.set_defaults(run=run, passed_on=[])


def _add_bench(commands: argparse._SubParsersAction) -> None:
    """Define the sub-command that measures."""
    command = commands.add_parser("bench", help="time this package beside others; takes minutes")
    names = "bilinear, delta-rule, linear-attention, masks, multilevel, ssd, training or weights"
    command.add_argument("names", nargs="+", metavar="name", help=names)
    text = "keep the result with all samples, as JSON: in a file, or in a folder such as assets/results, by CPU or GPU"
    command.add_argument("-o", "--output", type=Path, metavar="PLACE", help=text)
    text = "of delta-rule, multilevel and ssd: time the GPU programs, or try that on a CPU"
    command.add_argument("--device", choices=["cuda", "cpu"], help=text)
    command.set_defaults(run=bench)


def _add_teaching(commands: argparse._SubParsersAction) -> None:
    """Define the sub-commands for teachers."""
    command = commands.add_parser("grade", help="grade notebooks into a gradebook (for teachers)")
    teaching.add_grade(command)
    command.set_defaults(run=grade)
    command = commands.add_parser("export", help="write assignments, or the course without solutions (for teachers)")
    text = "assignments for nbgrader, or the course for students, whose solutions come later"
    command.add_argument("form", choices=["nbgrader", "students"], help=text)
    text = "for nbgrader: its number or letter, or its file"
    command.add_argument("chapters", nargs="*", metavar="chapter", help=text)
    command.add_argument("-o", "--output", type=_anywhere, required=True, metavar="FOLDER", help="their folder")
    command.set_defaults(run=export)
    command = commands.add_parser("slides", help="write chapters as slides (for teachers)")
    command.add_argument("chapters", nargs="+", metavar="chapter", help="its number or letter, or its file")
    text = "their folder (default: slides)"
    command.add_argument("-o", "--output", type=_anywhere, default="slides", metavar="FOLDER", help=text)
    command.set_defaults(run=slides)


def _anywhere(path: str) -> Path:
    """Read a path relative to the folder in which the command is typed, whatever folder the command works in."""
    return Path(path).absolute()


def _fail(message: str) -> int:
    """Print one line on stderr; return the exit status of a failure."""
    print(f"smalearn {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
