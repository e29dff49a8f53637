"""Chapters as source notebooks for nbgrader, which makes the students' version of them and grades what comes back.

nbgrader runs a submission and its tests in one process and believes what that says; `smalearn grade` does not.
"""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from smalearn.course.exercises import Exercise, registry
from smalearn.course.exercises.way import names_in
from smalearn.course.grading.gradebook import PARTIAL
from smalearn.course.grading.sandbox import defined
from smalearn.course.workbook import notebook as notebooks

__all__ = ["chapters", "export"]

CHECK = """\
attempt = {name}
{name} = check("{id}", attempt)
### BEGIN HIDDEN TESTS
from smalearn.course.exercises import evaluate, registry

outcome = evaluate(registry()["{id}"], attempt, seed=1).outcome
assert outcome in ("passed", "not as asked")
{points} if outcome == "passed" else {part}
### END HIDDEN TESTS"""


def chapters(names: Iterable[str], folder: Path) -> list[Path]:
    """Find chapters of a folder by their numbers ("3", "03", "A") or names ("03_linear_attention.ipynb")."""
    paths = []
    for name in names:
        path = notebooks.find(folder, Path(name).name.removesuffix(".ipynb"))
        if path is None:
            known = ", ".join(path.stem for path in notebooks.chapters(folder))
            raise ValueError(f"no chapter {name!r}; there are {known}")
        paths.append(path)
    return paths


def export(paths: Sequence[Path], folder: Path, weights: Mapping[str, float] | None = None) -> list[Path]:
    """Write chapters as assignments of a course folder of nbgrader, `folder/source/NN_name/NN_name.ipynb`.

    An exercise becomes a cell with our solution between `### BEGIN SOLUTION` and `### END SOLUTION`, which nbgrader
    cuts out for the students, and a locked cell with `check`, worth its points. There `check` shows what it always
    shows; a hidden test, with other random data, gives the points. The other cells stay, without outputs.
    """
    sources = {path: notebooks.read(path) for path in paths}
    for path, notebook in sources.items():
        if notebook is None:
            raise ValueError(f"{path} cannot be read as a notebook")
        if not notebooks.exercises(notebook).keys() & registry().keys():
            raise ValueError(f"{path} has no exercise of the course")
    targets = []
    for path, notebook in sources.items():
        target = folder / "source" / path.stem / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        notebooks.write(target, notebooks.dump(_assignment(notebook, weights or {})))
        targets.append(target)
    return targets


def _assignment(notebook: notebooks.Notebook, weights: Mapping[str, float]) -> notebooks.Notebook:
    """Give the cells of a notebook's exercises nbgrader's form."""
    course, cells, notebook = registry(), [], notebooks.blank(notebook)
    exercises = {id: group for id, group in notebooks.exercises(notebook).items() if id in course}
    setup = [cell["source"] for cell in notebook["cells"] if "setup" in cell["metadata"].get("tags", [])]
    known = {name for source in setup for node in ast.parse(source).body for name in defined(node)}
    known.update(course[id].solution.__name__ for id in exercises)
    for cell in notebook["cells"]:
        id = cell["metadata"].get("exercise")
        if id in exercises:
            first = cell["source"] == exercises[id][0]["source"]
            cell = (
                _stub(cell, course[id], known)
                if first
                else _check(cell, course[id], weights.get(id, 0 if course[id].opener else 1))
            )
        cells.append(cell)
    return notebook | {"cells": cells}


def _stub(cell: dict, exercise: Exercise, known: set[str]) -> dict:
    """Make the cell that a student fills in, solved."""
    return _cell(cell, f"exercise-{exercise.id}", _solved(cell["source"], exercise, known), solution=True)


def _check(cell: dict, exercise: Exercise, points: float) -> dict:
    """Make the cell that gives the points."""
    source = CHECK.format(id=exercise.id, name=exercise.solution.__name__, points=points, part=PARTIAL * points)
    return _cell(cell, f"check-{exercise.id}", source, grade=True, locked=True, points=points)


def _cell(cell: dict, name: str, source: str, **kind: float) -> dict:
    """Give a cell the metadata of nbgrader, version 3 of its schema."""
    kind = {"grade": False, "locked": False, "solution": False, "task": False} | kind
    details = kind | {"grade_id": name.replace(".", "-"), "schema_version": 3, "cell_type": "code"}
    return cell | {"source": source, "metadata": cell["metadata"] | {"nbgrader": details}}


def _solved(stub: str, exercise: Exercise, known: set[str]) -> str:
    """Put our solution, marked, into a stub, with imports of the names that the notebook does not have."""
    function = ast.parse(stub).body[-1]
    head = stub.splitlines()[: function.body[-1].lineno - 1]  # its comments, too
    if len(ast.parse(exercise.code).body) > 1:  # kernels, and the function that launches them: they come after the stub
        whole = [*_imports(exercise.solution, known), *exercise.code.splitlines()]
        return "\n".join([*head, "    ### BEGIN SOLUTION", "    pass", "", "", *whole, "    ### END SOLUTION"])
    docstring = ast.parse(exercise.code).body[0].body[0]
    body = textwrap.dedent("\n".join(exercise.code.splitlines()[docstring.end_lineno :]))
    lines = ["### BEGIN SOLUTION", *_imports(exercise.solution, known), *body.splitlines(), "### END SOLUTION"]
    return "\n".join([*head, *(f"    {line}".rstrip() for line in lines)])


def _imports(solution: types.FunctionType, known: set[str]) -> list[str]:
    """Write the imports that a solution needs where only these names are defined."""
    function = inspect.unwrap(solution)
    lines = []
    for name in dict.fromkeys(names_in(function.__code__)):
        value = function.__globals__.get(name)
        if name in known or name not in function.__globals__:
            continue
        if isinstance(value, types.ModuleType):
            lines.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        else:
            lines.append(f"from {function.__module__} import {name}")
    return lines
