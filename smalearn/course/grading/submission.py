"""A submission, read without running it: whose it is, and its cells."""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smalearn.course.exercises import registry
from smalearn.course.grading.handins import Handin, files
from smalearn.course.grading.roster import Roster
from smalearn.course.workbook import notebook as notebooks
from smalearn.course.workbook.names import Numbers, outcomes, registered, renumbered

__all__ = ["RIGHT", "Submission", "content", "read"]

RIGHT = ("passed", "not as asked")  # outcomes of right answers
LARGEST = 32 * 2**20  # bytes of a notebook


@dataclass(frozen=True)
class Submission:
    """Content of one file that was handed in."""

    path: Path
    student: str
    code: list[dict] = field(default_factory=list)  # code cells in the order of the page, as `needed.Notebook` takes it
    cells: dict[str, list[str]] = field(default_factory=dict)  # exercise id -> sources of its cells, tagged or not
    problem: str = ""  # why it cannot be graded at all
    digest: str = ""  # of the file
    time: float = 0.0  # when the file was changed last, in seconds since 1970

    @property
    def right(self) -> set[str]:
        """Ids of the exercises of which a saved output says that they are right."""
        return {id for cell in self.code for id in cell["right"]}

    def answer(self, id: str) -> str:
        """Return the code of an exercise, without a cell that does no more than call `check`."""
        return "\n\n".join(cell for cell in self.cells.get(id, []) if "def " in cell or "check(" not in cell)


def read(
    names: Iterable[str | os.PathLike | Handin], roster: Roster | None = None, ours: Iterable[Path] = ()
) -> list[Submission]:
    """Read the submissions in files and folders: whose each is says the class list, or its place, not what is in it.

    What is no notebook has a problem; it is somebody's where nothing else is, else the student is empty. Exercises of
    an earlier version of the course have the ids that go with their functions now.
    """
    roster, numbers, submissions = roster or Roster(), registered(registry()), []
    found = [(one, roster.called(one.place)) for one in files(names, ours)]
    busy = {student.partition("/")[0] for one, student in found if not one.problem}
    for one, student in found:
        if one.problem:
            likely = one.path.is_dir() or ".ipynb" in one.path.name.lower() or student in roster.labels
            student = student if likely and student.partition("/")[0] not in busy else ""
        submissions.append(
            Submission(one.path, student, problem=one.problem) if one.problem else _read(one.path, student, numbers)
        )
    return submissions


def content(path: Path) -> tuple[bytes, float]:
    """Read a file that somebody handed in, and when it was changed; never a link, a pipe or a device."""
    if path.is_symlink():
        raise ValueError("it is a link, not a file")
    options = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY"))
    with open(os.open(path, sum(options, os.O_RDONLY)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("the file is too large")
    return data, status.st_mtime


def _read(path: Path, student: str, numbers: Numbers) -> Submission:
    try:
        data, time = content(path)
    except OSError as error:
        return Submission(path, student, problem=f"the file cannot be read: {error.strerror}")
    except ValueError as error:
        return Submission(path, student, problem=str(error))
    digest, notebook = hashlib.sha256(data).hexdigest(), notebooks.parse(data)
    if notebook is None:
        return Submission(path, student, problem="no notebook", digest=digest, time=time)
    current = renumbered(notebook, numbers)
    sources = {id: [cell["source"] for cell in group] for id, group in notebooks.exercises(current).items()}
    code = [_cell(cell, numbers) for cell in current["cells"] if cell["cell_type"] == "code"]
    for id, cell in _untagged(code, numbers, set(sources)):
        sources.setdefault(id, []).append(cell)
    return Submission(path, student, code, sources, digest=digest, time=time)


def _cell(cell: dict, numbers: Numbers) -> dict:
    """What the process of a submission gets to know of a code cell."""
    id, count = cell["metadata"].get("exercise"), cell.get("execution_count")
    shown = outcomes({"cells": [cell]}, numbers, registry())
    return {
        "source": cell["source"],
        "count": count if isinstance(count, int) else None,
        "id": id if isinstance(id, str) else None,
        "setup": "setup" in _tags(cell),
        "right": [number for number, outcome in shown if outcome in RIGHT],
    }


def _untagged(cells: Sequence[dict], numbers: Numbers, tagged: set[str]) -> Iterator[tuple[str, str]]:
    """Yield exercise and source of cells that answer or check an exercise and do not have its tag."""
    checked = [
        {*cell["right"], *re.findall(r"""\bcheck\(\s*["']([\w.]+)["']""", cell["source"])} & {*numbers.values()}
        for cell in cells
    ]
    chapters = {id.partition(".")[0] for id in set().union(tagged, *checked)}
    names = {name: id for name, id in numbers.items() if id.partition(".")[0] in chapters}
    for cell, ids in zip(cells, checked, strict=True):
        defined = set(re.findall(r"(?m)^(?:async +)?(?:def|class) +(\w+)", cell["source"]))
        defined |= set(re.findall(r"(?m)^(\w+) *=(?!=)(?!.*\bcheck\()", cell["source"]))
        ids |= {names[name] for name in defined & names.keys()}
        yield from ((id, cell["source"]) for id in sorted(ids - {cell["id"]}))


def _tags(cell: dict) -> list:
    tags = cell["metadata"].get("tags")
    return tags if isinstance(tags, list) else []
