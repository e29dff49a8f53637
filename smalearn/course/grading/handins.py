"""What was handed in: the files that a teacher names, each with what its place says of whose it is."""

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.grading.roster import Place, copy_of, is_chapter, is_week, kind_of

__all__ = ["Handin", "files"]

PACKED = {".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".bz2", ".xz"}


@dataclass(frozen=True)
class Handin:
    """What somebody handed in: a file, or a folder without a notebook."""

    path: Path
    place: Place  # what says whose it is
    problem: str = ""  # why it is not a notebook


def files(names: Iterable[str | os.PathLike | Handin], ours: Iterable[Path] = ()) -> list[Handin]:
    """Find the files that names stand for: a folder stands for all in it and below, `*` for any characters.

    A folder without a notebook is listed as one. What begins with `.` or `__` is hidden, or added by a system, and is
    passed over, and so is what is ours: the gradebook, the class list. What was found before stays as it is.
    """
    names, ours, kinds = list(names), set(map(os.path.abspath, ours)), functools.cache(_kinds)
    found = [name for name in names if isinstance(name, Handin)]
    given = [path for name in names if not isinstance(name, Handin) for path in _given(Path(name))]
    given = [path for path in given if os.path.abspath(path) not in ours]
    folders = [path for path in given if path.is_dir()]
    for folder in folders:
        below, root = _below(folder, ours), Path(os.path.abspath(folder))
        each = len(folders) > 1 and not is_week(root.name)  # as `in/*`: "draft" here is not who is "draft" in the next
        if not any(map(_is_notebook, below)):
            others = ", ".join(path.name for path in below[:3])
            if not each:
                raise ValueError(f"grade: there is no notebook in {folder}" + (others and f", only {others}"))
            below = [folder]
        found += [_handin(path, root.parent if each else root, kinds) for path in below]
    single = [path for path in given if path not in folders]
    roots = {os.path.dirname(os.path.abspath(path)) for path in single}
    found += [_handin(path, Path(os.path.commonpath(roots)), kinds) for path in single]
    return list({os.path.abspath(one.path): one for one in found}.values())


def _given(path: Path) -> list[Path]:
    found = [path] if os.path.lexists(path) else _visible(path.parent.glob(path.name))
    if not found:
        raise ValueError(f"grade: there is no file {path}")
    return found


def _visible(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if not path.name.startswith((".", "__")))


def _below(folder: Path, ours: Collection[str]) -> list[Path]:
    """List the files in a folder and below it, and the folders without a notebook."""
    found = []
    for path in _visible(folder.iterdir()):
        if os.path.abspath(path) not in ours:
            inner = _below(path, ours) if path.is_dir() and not path.is_symlink() else []
            found += inner if any(map(_is_notebook, inner)) else [path]
    return found


def _is_notebook(path: Path) -> bool:
    return path.suffix.lower() == ".ipynb" and (path.is_symlink() or not path.is_dir())


def _kinds(folder: Path) -> int:
    """Count kinds of notebooks in a folder; one student's are of one kind, "hw3" and "hw4", or of none."""
    return len({kind_of(_stem(path)) for path in _visible(folder.iterdir()) if _is_notebook(path)} - {""})


def _stem(path: Path) -> str:
    """Name of a file as it was before a browser added to it; empty where it is a chapter's."""
    stem = re.sub(r"\.ipynb.*|\.\w{1,5}$", "", path.name, flags=re.IGNORECASE | re.DOTALL)
    stem, _ = copy_of(stem)
    return "" if is_chapter(stem) else stem


def _handin(path: Path, root: Path, kinds: Callable) -> Handin:
    """Describe a file, or a folder without a notebook, below the folder that was named."""
    where, is_file = Path(os.path.abspath(path)), path.is_symlink() or not path.is_dir()
    inner = (where.parent if is_file else where).relative_to(root).parts
    folders = tuple(name for name in inner if not is_chapter(name))
    place = Place(folders, _stem(path) if is_file else "", root.name, kinds(where.parent) > 1)
    return Handin(path, place, "" if _is_notebook(path) else _problem(path))


def _problem(path: Path) -> str:
    """Say why a file is not graded."""
    if path.is_symlink():
        return "it is a link, not a file"
    if path.is_dir():
        return "no notebook in this folder"
    if path.suffix.lower() in PACKED:
        return "an archive: unpack it"
    return "rename it to end in .ipynb" if ".ipynb" in path.name.lower() else "no notebook"
