"""Identity of an exercise: the name of its function, whatever number a version of the course gives to it.

In a chapter, the cell below the stub says it: `mask = check("6.1", mask)`. No two exercises have one name, and an
exercise keeps its name when others are put before it, moved or taken away.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from smalearn.course.workbook.notebook import Notebook, exercises

__all__ = ["Numbers", "outcomes", "published", "registered", "renumbered", "with_gone"]

Numbers = Mapping[str, str]  # from the name of an exercise's function to its number of today
CHECK = re.compile(r"(?:(\w+) *= *)?\bcheck\([^,()]*, *(\w+)")  # bound to the first name, handed the second
DEFINITION = re.compile(r"(?m)^(?:def +(\w+)|(\w+) *=(?!=))")


def published(chapters: Iterable[Notebook]) -> dict[str, str]:
    """Number the exercises in published chapters."""
    return {
        call[1] or call[2]: number
        for notebook in chapters
        for number, cells in exercises(notebook).items()
        for call in CHECK.finditer(_text(cells))
    }


def registered(course: Mapping[str, object]) -> dict[str, str]:
    """Number the exercises of a registry, each with `solution`."""
    return {exercise.solution.__name__: number for number, exercise in course.items()}


def with_gone(numbers: Numbers, versions: Iterable[Notebook]) -> dict[str, str]:
    """Add the exercises of earlier versions that the course has no more, as "6.2 mask": no number of today."""
    return {name: f"{number} {name}" for name, number in published(versions).items()} | numbers


def renumbered(notebook: Notebook, numbers: Numbers) -> Notebook:
    """Give the exercises in a notebook of any version the numbers of today.

    One whose function has no known name keeps its number, unless others in the notebook have moved.
    """
    groups = exercises(notebook)
    found = {old: _numbers_in(cells, numbers) for old, cells in groups.items()}
    moved = any(new not in (None, old) for old, group in found.items() for new in group)
    changed = {}
    for old, cells in groups.items():
        for cell, new in zip(cells, found[old], strict=True):
            changed[id(cell)] = _with_number(cell, old, new or (f"{old} ?" if moved else old))
    return notebook | {"cells": [changed.get(id(cell), cell) for cell in notebook["cells"]]}


def outcomes(notebook: Notebook, numbers: Numbers, course: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield number of today, and outcome, of every check whose output is saved.

    The output says by its title what was checked, "✓ 7.1 Level by level: …". Where the function belongs to another
    exercise, as when a cell of an earlier version is run in a later one, the outcome counts for none.
    """
    titles = {exercise.title: number for number, exercise in course.items()}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            match output:
                case {
                    "data": {
                        "application/vnd.smalearn.check+json": {"exercise": str(old), "outcome": str(outcome)},
                        "text/plain": str(text) | [str(text), *_],
                    }
                }:
                    title = re.match(rf"[✓✗] {re.escape(old)} (.+?): ", text)
                    checked = titles.get(title[1]) if title else None
                    named = _numbers_in([cell], numbers)[0]
                    if (named or checked) and checked in (None, named or checked):
                        yield named or checked, outcome


def _numbers_in(cells: list[dict], numbers: Numbers) -> list[str | None]:
    """Find today's number of each cell among those of one old number: of the function that it checks or defines.

    Where cells of two versions came together, a cell that names none of their functions goes with what follows it.
    """
    names = [name for cell in cells if (name := _checked(cell, numbers))]
    if not names and not CHECK.search(_text(cells)):
        names = [name for name in _defined(_text(cells)) if name in numbers][-1:]  # what is above it are helpers
    name, found = (names or [""])[-1], []
    for cell in reversed(cells):
        name = next((one for one in names if one in _defined(cell["source"])), _checked(cell, numbers) or name)
        found.insert(0, numbers.get(name))
    return found


def _checked(cell: dict, numbers: Numbers) -> str | None:
    """Return the first name of an exercise to which a cell binds the result of `check`, or which it hands over."""
    return next((name for call in CHECK.findall(cell["source"]) for name in call if name in numbers), None)


def _defined(source: str) -> list[str]:
    """List the functions and variables that a cell defines."""
    return [function or variable for function, variable in DEFINITION.findall(source)]


def _text(cells: list[dict]) -> str:
    return "\n".join(cell["source"] for cell in cells)


def _with_number(cell: dict, old: str, new: str) -> dict:
    """Give a cell of an exercise, and the calls of `check` and its like in it, another number."""
    source = cell["source"]
    if old == new:
        return cell
    if " " not in new:
        calls = rf"\b((?:check|hint|solution|case)\(\s*[\"']){re.escape(old)}(?=[\"'])"
        source = re.sub(calls, rf"\g<1>{new}", source)
    return cell | {"source": source, "metadata": cell["metadata"] | {"exercise": new}}
