"""Identity of exercises, when a later edition of the course gives their numbers to others.

An exercise is what its title says, in the text before its stub, "**Exercise 7.1 · Level by level**", and what its
function is called. Its number is the one under which the course has this title now.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from smalearn.course.workbook.notebook import Notebook

__all__ = ["Course", "Known", "outcomes", "published", "registered", "renumbered", "with_past"]


@dataclass(frozen=True)
class Known:
    """Marks by which an exercise is known: its title, the names of its function, the numbers it has or had."""

    title: str
    names: frozenset[str]
    numbers: frozenset[str]


Course = Mapping[str, Known]  # by the number of today

TITLE = re.compile(r"\*\*Exercise ([\w.]+) · (.+?)\*\*")


def published(chapters: Iterable[Notebook]) -> Course:
    """Collect the exercises in the chapters of a course, in their order."""
    labels = (label for notebook in chapters for label in _named(notebook).items())
    return {id: Known(title, names, frozenset([id])) for (id, title), names in labels}


def registered(exercises: Mapping[str, object]) -> Course:
    """Collect the exercises of a registry, each with `title` and `solution`."""
    return {
        id: Known(exercise.title, frozenset([exercise.solution.__name__]), frozenset([id]))
        for id, exercise in exercises.items()
    }


def with_past(course: Course, notebooks: Iterable[Notebook]) -> Course:
    """Add to a course the numbers that its exercises had in earlier chapters, and after it the exercises that are gone.

    One that is gone is called by its number and title, "7.9 No look ahead".
    """
    extended = dict(course)
    for notebook in notebooks:
        for (id, title), names in _named(notebook).items():
            key = _number_in(id, title, names, course) or f"{id} {title}".strip()
            exercise = extended.get(key, Known(title, names, frozenset([key])))
            extended[key] = Known(exercise.title, exercise.names, exercise.numbers | {id})
    return extended


def renumbered(notebook: Notebook, course: Course) -> Notebook:
    """Give the exercises of a notebook of any edition the numbers that they have in a course.

    One that the course does not have gets a number that none has, "7.9 No look ahead". Where neither title nor function
    says what an exercise is, its number does, unless others in the notebook have moved.
    """
    groups = _named(notebook)
    numbers = {label: _number_in(*label, names, course) for label, names in groups.items()}
    moved = any(key and key != id for (id, _), key in numbers.items())
    cells = []
    for cell, label in zip(notebook["cells"], _labels(notebook), strict=True):
        if label:
            id, title = label
            key = id if numbers[label] is None and not moved else numbers[label] or f"{id} {title or '?'}"
            cell = _with_number(cell, id, key) if key != id else cell
        cells.append(cell)
    return notebook | {"cells": cells}


def _with_number(cell: dict, old: str, new: str) -> dict:
    """Give a cell of an exercise, and the calls of `check` in it, another number."""
    source = cell["source"]
    if " " not in new:
        source = re.sub(rf"\b((?:check|hint|solution)\([\"']){re.escape(old)}(?=[\"'])", rf"\g<1>{new}", source)
    return cell | {"source": source, "metadata": cell["metadata"] | {"exercise": new}}


def outcomes(notebook: Notebook, course: Course) -> Iterator[tuple[str, str]]:
    """Yield number in a course, and outcome, of every check whose output is saved.

    What was checked is what the output says, "✓ 7.1 Level by level: …". Where the function belongs to another exercise,
    as when a cell of an earlier edition is run in a later one, the outcome counts for none.
    """
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            match output:
                case {
                    "data": {
                        "application/vnd.smalearn.check+json": {"exercise": str(id), "outcome": str(outcome)},
                        "text/plain": str(text) | [str(text), *_],
                    }
                }:
                    title = re.match(rf"[✓✗] {re.escape(id)} (.+?): ", text)
                    if number := _number_in(id, title[1] if title else "", _names([cell]), course):
                        yield number, outcome


def _labels(notebook: Notebook) -> list[tuple[str, str] | None]:
    """List number and title of the exercise that each cell belongs to; "" for a title that is not there."""
    texts = [cell["source"] if cell["cell_type"] == "markdown" else "" for cell in notebook["cells"]]
    headings = [dict(TITLE.findall(text)) for text in texts]
    labels, titles = [], {}
    for heading in reversed(headings):
        titles |= heading  # the first of each, for cells above it
    for cell, heading in zip(notebook["cells"], headings, strict=True):
        titles |= heading
        id = cell["metadata"].get("exercise")
        labels.append((id, titles.get(id, "")) if isinstance(id, str) and cell["cell_type"] == "code" else None)
    return labels


def _named(notebook: Notebook) -> dict[tuple[str, str], frozenset[str]]:
    """Map number and title of each exercise to the names by which its function may be called."""
    cells = {}
    for cell, label in zip(notebook["cells"], _labels(notebook), strict=True):
        if label:
            cells.setdefault(label, []).append(cell)
    return {label: _names(group) for label, group in cells.items()}


def _names(cells: Iterable[dict]) -> frozenset[str]:
    """Collect names that cells hand to `check` and bind to its result; without a check every name that they define."""
    text = "\n".join(cell["source"] for cell in cells)
    bound = re.findall(r"(?m)^(\w+) *= *check\(", text) + re.findall(r"\bcheck\([^,()]*, *(\w+)", text)
    return frozenset(bound or re.findall(r"(?m)^(?:def +)?(\w+) *[=(]", text))


def _number_in(id: str, title: str, names: frozenset[str], course: Course) -> str | None:
    """Find an exercise's number in a course: "" if it is not in it, None if neither title nor names can say."""
    by_title = {key for key, known in course.items() if title and title == known.title}
    by_name = {key for key, known in course.items() if names & known.names}
    if not title and not by_name:
        return None
    matches = by_title & by_name if by_title and by_name else by_title | by_name
    if len(matches) > 1 or (title and not by_title):  # or it has another title now
        matches = {key for key in matches if id in course[key].numbers}
    return matches.pop() if len(matches) == 1 else ""
