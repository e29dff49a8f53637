"""A submission, read without running it: whose it is, its cells, and what makes two answers the same."""

import ast
import copy
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smalearn.course.exercises import registry
from smalearn.course.workbook import editions
from smalearn.course.workbook import notebook as notebooks

__all__ = ["Submission", "borrows", "fingerprint", "read"]

LARGEST = 100 * 2**20  # bytes of a notebook
LONGEST = 100_000  # characters of an answer that is compared with others


@dataclass(frozen=True)
class Submission:
    """Content of one file that was handed in.

    Args:
        path: the file.
        student: who handed it in.
        setup: the sources of the cells tagged `setup`.
        cells: exercise id -> the sources of its cells, the one with `check` included.
        problem: why it cannot be graded at all; empty where it can.
    """

    path: Path
    student: str
    setup: list[str] = field(default_factory=list)
    cells: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""

    def answer(self, id: str) -> str:
        """Return the code of an exercise, without a cell that does no more than call `check`."""
        cells = self.cells.get(id, [])
        checks = [bool(re.search(r"(?m)^(\w+ *= *)?check\(", cell)) and "def " not in cell for cell in cells]
        return "\n\n".join(cell for cell, check in zip(cells, checks, strict=True) if not check)


def read(paths: Sequence[Path]) -> list[Submission]:
    """Read the submissions in files.

    A student is named by `student` in the metadata of the first cell, else by the name of the file, or, where several
    files have that name, by the name of its folder. Exercises of an earlier edition of the course have the ids that go
    with their titles now.
    """
    counts, course = Counter(path.stem for path in paths), editions.registered(registry())
    names = [path.stem if counts[path.stem] == 1 else path.absolute().parent.name for path in paths]
    return [_read(path, name, course) for path, name in zip(paths, names, strict=True)]


def _read(path: Path, student: str, course: editions.Course) -> Submission:
    try:
        if path.stat().st_size > LARGEST:
            return Submission(path, student, problem="the file is too large")
    except OSError as error:
        return Submission(path, student, problem=f"the file cannot be read: {error.strerror}")
    notebook = notebooks.read(path)
    if notebook is None:
        return Submission(path, student, problem="no notebook")
    cells = notebook["cells"]
    named = cells[0]["metadata"].get("student") if cells else None
    setup = [cell["source"] for cell in cells if cell["cell_type"] == "code" and "setup" in _tags(cell)]
    exercises = notebooks.exercises(editions.renumbered(notebook, course))
    sources = {id: [cell["source"] for cell in group] for id, group in exercises.items()}
    return Submission(path, named if isinstance(named, str) and named.strip() else student, setup, sources)


def _tags(cell: dict) -> list:
    tags = cell["metadata"].get("tags")
    return tags if isinstance(tags, list) else []


def fingerprint(source: str, name: str) -> str | None:
    r"""Describe an answer's code without names, docstrings, comments, annotations and layout; None if not Python.

    Args:
        source: of the answer.
        name: of the function that is asked for; where it is not there, all of the source counts.

    Example:
        >>> a = "def mean(V):  # of rows\n    total = V.sum(0)\n    return total / len(V)"
        >>> b = "def mean(x):\n    'The mean.'\n    s = x.sum(0)\n    return s / len(x)"
        >>> fingerprint(a, "mean") == fingerprint(b, "mean")
        True
    """
    tree = _parsed(source)
    if tree is None:
        return None
    definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    tree = ast.Module(definitions[-1:] or tree.body, [])
    try:
        return ast.dump(_Plain().visit(copy.deepcopy(tree)))
    except RecursionError:
        return None


def _parsed(source: str) -> ast.Module | None:
    """Parse a source; None where it is not Python, or too long for an answer."""
    try:
        return ast.parse(source) if len(source) < LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Plain(ast.NodeTransformer):
    """Transformer that gives every name a number in the order of appearance, and drops what does not compute."""

    def __init__(self):
        self.numbers = {}

    def _number(self, name: str) -> str:
        return self.numbers.setdefault(name, f"name{len(self.numbers)}")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(getattr(node, "body", None), list):
            node.body = [line for line in node.body if not _is_comment(line)]
        for slot in ("annotation", "returns"):
            if hasattr(node, slot):
                setattr(node, slot, None)
        if isinstance(node, ast.AnnAssign) and node.value:
            node = ast.Assign([node.target], node.value)
        for slot in ("name", "id", "arg"):
            if isinstance(getattr(node, slot, None), str) and not isinstance(node, ast.keyword | ast.alias):
                setattr(node, slot, self._number(getattr(node, slot)))
        return super().generic_visit(node)


def _is_comment(line: ast.stmt) -> bool:
    return isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))


def borrows(source: str) -> bool:
    """Say whether an answer names our solutions: `registry`, `.solution`, `.oracle`, or imports of exercises."""
    nodes = list(ast.walk(_parsed(source) or ast.Module([], [])))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    modules = [node.name for node in nodes if isinstance(node, ast.alias)]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported = any(module.startswith("smalearn.course.exercises") for module in modules)
    return imported or "registry" in names | attributes or bool(attributes & {"solution", "oracle"})
