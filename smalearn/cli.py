"""The command `smalearn`: one sub-command for each thing a learner or a teacher does outside a notebook.

A sub-command is a function of its parsed arguments that returns an exit status, and a few lines in `_parser`.
"""

import argparse
import filecmp
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["copy_chapters", "lab", "main"]


def copy_chapters(chapters: Path, work: Path) -> list[str]:
    """Copy to `work` the chapters that are missing there; a file that exists is never touched.

    `work/.originals` keeps each chapter as it was copied, which tells a newer chapter from a learner's own changes.

    Args:
        chapters: folder of the course's notebooks.
        work: folder of the learner's copies, created where missing.

    Returns:
        Names of the chapters that have changed since the learner's copy was made.

    Example:
        >>> copy_chapters(Path("chapters"), Path("work"))  # doctest: +SKIP
        ['03_linear_attention.ipynb']
    """
    originals = work / ".originals"
    originals.mkdir(parents=True, exist_ok=True)
    newer = []
    for chapter in sorted(chapters.glob("*.ipynb")):
        mine, original = work / chapter.name, originals / chapter.name
        if not mine.exists():
            shutil.copyfile(chapter, original)
            unfinished = original.with_suffix(".part")
            shutil.copyfile(chapter, unfinished)
            unfinished.replace(mine)  # whole or not at all: half a copy would count as the learner's own
        elif original.exists() and not filecmp.cmp(chapter, original, shallow=False):
            newer.append(chapter.name)
    return newer


def lab(args: argparse.Namespace) -> int:
    """Copy missing chapters to `work/` and open that folder in JupyterLab, with the course's settings.

    Args:
        args: `passed_on`, the arguments for JupyterLab.

    Returns:
        Exit status.
    """
    root = Path.cwd()
    if not any(root.glob("chapters/*.ipynb")):
        return _fail(f"lab: no chapters/*.ipynb in {root}; run it in the course's folder, the one with start.py")
    try:
        from jupyterlab.labapp import main as jupyterlab
    except ImportError:
        return _fail('lab: JupyterLab is not installed here; run: python -m pip install -e ".[lab]"')
    for name in copy_chapters(root / "chapters", root / "work"):
        print(f"There is a newer {name}. Yours is kept; to get the new one, rename work/{name} and start again.")
    paths = [str(root / ".jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    return jupyterlab(args.passed_on) or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command.

    Args:
        argv: the arguments; those of the process where None.

    Returns:
        Exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # a Windows console of cp1252 has no ✓
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if "passed_on" in args:
        args.passed_on = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args.run(args)


def _parser() -> argparse.ArgumentParser:
    """The sub-commands; one with `passed_on` takes arguments that it hands to another program."""
    parser = argparse.ArgumentParser(prog="smalearn", description="The tools of the course smalearn.")
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser(
        "lab", help="open the course in JupyterLab", usage="smalearn lab [JupyterLab options]"
    )
    command.set_defaults(run=lab, passed_on=[])
    return parser


def _fail(message: str) -> int:
    """One line on stderr, and the exit status of a failure."""
    print(f"smalearn {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
