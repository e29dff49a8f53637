"""Notebook files of the learner and of the course: found, read, written; the exercises and the answers in them.

An exercise is the code cells with `{"exercise": "1.2"}` in their metadata: in a chapter first the stub, then the check.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = [
    "Notebook",
    "alone",
    "answers",
    "blank",
    "chapters",
    "dump",
    "exercises",
    "files",
    "find",
    "free",
    "notebooks",
    "original",
    "originals",
    "parse",
    "read",
    "unreadable",
    "write",
]

STALE = 30.0  # seconds: to make all copies takes less than one
Notebook = dict  # what JSON makes of the file, with each cell's source as one string


def files(folder: Path) -> list[Path]:
    """List the notebook files of a folder by name, without those that a system hides there."""
    return sorted(path for path in folder.glob("*.ipynb") if not path.name.startswith("."))


def chapters(folder: Path) -> list[Path]:
    """List the published chapters of a course: the notebooks of its folder, then those of `appendix/` in it."""
    return files(folder) + files(folder / "appendix")


def find(folder: Path, name: str) -> Path | None:
    """Find the published chapter of a number ("1", "01", "A"), or of a name without its ending; else None."""
    for path in chapters(folder):
        number = path.stem.partition("_")[0]
        if name and (name == path.stem or name.lstrip("0").upper() == number.lstrip("0").upper()):
            return path
    return None


def notebooks(work: Path) -> dict[Path, Notebook]:
    """Read the learner's notebooks that can be read, the one saved last first."""
    readable = {path: notebook for path in files(work) if (notebook := read(path))}
    return dict(sorted(readable.items(), key=lambda item: -item[0].stat().st_mtime_ns))


def unreadable(work: Path) -> list[str]:
    """List files in `work` that cannot be read as notebooks: cut short, half merged, empty."""
    return [path.name for path in files(work) if read(path) is None]


def original(work: Path, path: Path, chapter: Notebook) -> Path:
    """Return the path under which a version of a chapter is kept; its cells without outputs make a version."""
    text = json.dumps([(cell["cell_type"], cell["source"]) for cell in chapter["cells"]])
    return work / ".originals" / f"{path.stem}.{hashlib.sha256(text.encode()).hexdigest()[:12]}.ipynb"


def originals(work: Path, stem: str = "*") -> list[Path]:
    """List the versions of a chapter, or of all chapters, that the learner was given."""
    return sorted((work / ".originals").glob(f"{stem}.*.ipynb"))


def free(folder: Path, stem: str) -> Path:
    """Return `stem.ipynb`, or else the first of `stem.2.ipynb`, `stem.3.ipynb`, … that does not exist."""
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(2)))
    return next(path for name in names if not (path := folder / f"{name}.ipynb").exists())


def read(path: Path) -> Notebook | None:
    """Read the notebook in a file; None where there is none."""
    try:
        return parse(path.read_bytes())
    except OSError:
        return None


def parse(data: bytes) -> Notebook | None:
    """Read the bytes of a notebook; None where they are none."""
    try:
        notebook = json.loads(data)
        cells = [cell | {"source": "".join(cell["source"])} for cell in notebook["cells"]]
        for cell in cells:
            dicts = [cell["metadata"], *cell.get("outputs", [])]
            if not cell["cell_type"] or not all(isinstance(entry, dict) for entry in dicts):
                return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return notebook | {"cells": cells}


def blank(notebook: Notebook) -> Notebook:
    """Leave out what cells printed and explorers showed: no question stands above its answer before it is run."""
    empty = {"outputs": [], "execution_count": None}
    cells = [cell | (empty if cell["cell_type"] == "code" else {}) for cell in notebook["cells"]]
    metadata = {name: value for name, value in notebook.get("metadata", {}).items() if name != "widgets"}
    return notebook | {"cells": cells, "metadata": metadata}


def dump(notebook: Notebook) -> bytes:
    """Write a notebook as bytes, in the form in which Jupyter saves it."""
    cells = [cell | {"source": cell["source"].splitlines(True)} for cell in notebook["cells"]]
    text = json.dumps(notebook | {"cells": cells}, indent=1, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode("utf-8", "replace")  # JSON can hold half a character (a lone surrogate), UTF-8 cannot


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: half a notebook would count as the learner's own. A link stays a link."""
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(work: Path) -> Iterator[None]:
    """Have the learner's folder to oneself, made where it is missing, for as long as files in it are made.

    Who finds it taken waits; a lock that is older than `STALE`, and what else a crash has left, is removed.
    """
    (work / ".originals").mkdir(parents=True, exist_ok=True)
    lock = work / ".lock"
    while not _created(lock):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - lock.stat().st_mtime > STALE:
                lock.unlink()
        time.sleep(0.05)
    try:
        for part in [*work.glob(".*.part"), *work.glob(".originals/.*.part")]:
            part.unlink(missing_ok=True)
        yield
    finally:
        lock.unlink(missing_ok=True)


def _created(path: Path) -> bool:
    """Make an empty file, if nobody has."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def exercises(notebook: Notebook) -> dict[str, list[dict]]:
    """Map each exercise id to its code cells, in the order of the notebook."""
    groups = {}
    for cell in notebook["cells"]:
        id = cell["metadata"].get("exercise")
        if isinstance(id, str) and cell["cell_type"] == "code":
            groups.setdefault(id, []).append(cell)
    return groups


def answers(copies: Iterable[Notebook], versions: Iterable[Notebook]) -> dict[str, str]:
    """Map each exercise id to the source in the first of the copies where it differs from every known stub."""
    stubs = {(id, _without_check(cells)) for notebook in versions for id, cells in exercises(notebook).items()}
    sources = {}
    for notebook in copies:
        for id, cells in exercises(notebook).items():
            answer = _without_check(cells)
            if answer and (id, answer) not in stubs:
                sources.setdefault(id, answer)
    return sources


def _without_check(cells: list[dict]) -> str:
    """Join an exercise's cells but for the check: a learner may have split a cell in JupyterLab."""
    sources = (cell["source"].strip() for cell in cells)
    return "\n\n\n".join(source for source in sources if source and not re.match(r"(\w+ *= *)?check\(", source))
