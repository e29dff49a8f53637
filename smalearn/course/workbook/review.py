"""Openers that come back: the closed-book questions of a chapter, asked again after 1, 7 and 30 days.

`work/review.json` keeps, by the name of its function, when a question was answered last, and how many answers in a row
were right. It is brought up to date from the checks saved in the learner's notebooks.
"""

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from smalearn.course.workbook.names import outcomes, registered
from smalearn.course.workbook.notebook import (
    Notebook,
    alone,
    answers,
    blank,
    chapters,
    dump,
    exercises,
    free,
    notebooks,
    read,
    write,
)

__all__ = ["review"]

WAITS = (1, 1, 7, 30)  # days until a question comes back, by its right answers in a row; after the fourth it is known
NAME, STATE = "review.ipynb", "review.json"
TEXT = """# Review, {today}

Closed book: {count} from chapters that you have begun. Answer, run the check, and save. The next `smalearn review`
counts what you answered: a wrong answer brings its question back after a day, right ones after 1, 7 and 30 days."""


def review(work: Path, course: Mapping[str, object], folder: Path, today: datetime.date) -> str:
    """Write today's questions to `work/review.ipynb`, and return a line that says which they are.

    A notebook of an earlier review that has answers is counted, and kept in `work/backups`.
    """
    openers = {id: one.solution.__name__ for id, one in course.items() if one.opener}
    with alone(work):
        state, begun = _load(work / STATE), set()
        for path, id, right, day in _outcomes(work, course, today):
            begun.add(id.partition(".")[0])
            known = state.get(openers.get(id))
            if id in openers and (known is None or path.name == NAME):
                state[openers[id]] = (day, known[1] + 1 if known and right else int(right))
        days = {id: _due(state.get(name), today) for id, name in openers.items() if id.partition(".")[0] in begun}
        days = {id: day for id, day in days.items() if day}
        due = [id for id, day in days.items() if day <= today]
        published = list(filter(None, map(read, chapters(folder))))
        _put_away(work, published, today)
        write(
            work / STATE, json.dumps({name: [day.isoformat(), right] for name, (day, right) in state.items()}).encode()
        )
        if due:
            write(work / NAME, dump(_notebook(published, due, today)))
    if due:
        return f"{_count(due)} due, in {work.name}/{NAME}: {', '.join(due)}."
    later = min(days.values(), default=None)
    return (
        f"Nothing is due before {later}."
        if later
        else "Nothing is due: questions come from chapters that you have begun."
    )


def _count(due: list[str]) -> str:
    return "1 question" if len(due) == 1 else f"{len(due)} questions"


def _due(known: tuple[datetime.date, int] | None, today: datetime.date) -> datetime.date | None:
    """Say when a question comes back; today if it has no answer yet, None if it is known."""
    if known is None:
        return today
    day, right = known
    return day + datetime.timedelta(WAITS[right]) if right < len(WAITS) else None


def _outcomes(
    work: Path, course: Mapping[str, object], today: datetime.date
) -> Iterator[tuple[Path, str, bool, datetime.date]]:
    """Yield file, exercise, whether it is right, and the day on which the file was saved, of every saved check."""
    numbers = registered(course)
    for path, notebook in notebooks(work).items():
        day = min(today, datetime.date.fromtimestamp(path.stat().st_mtime))
        for id, outcome in outcomes(notebook, numbers, course):
            if outcome != "not started":
                yield path, id, outcome in ("passed", "not as asked"), day


def _load(path: Path) -> dict[str, tuple[datetime.date, int]]:
    """Read what is known of each question; nothing where the file is missing or broken."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {name: (datetime.date.fromisoformat(day), max(0, int(right))) for name, (day, right) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _put_away(work: Path, published: Iterable[Notebook], today: datetime.date) -> None:
    """Move a review with answers to the backups, so that it is counted once."""
    if (asked := read(work / NAME)) and (answers([asked], published) or asked["cells"] != blank(asked)["cells"]):
        (work / "backups").mkdir(exist_ok=True)
        (work / NAME).rename(free(work / "backups", f"review.{today}"))


def _notebook(published: Iterable[Notebook], due: list[str], today: datetime.date) -> Notebook:
    """Make a notebook of the questions as they stand in their chapters, without outputs."""
    text = TEXT.format(today=today, count=_count(due))
    cells, metadata = [{"cell_type": "markdown", "id": "review", "metadata": {}, "source": text}], {}
    for chapter in published:
        ids = [id for id in due if id in exercises(chapter)]
        if ids and len(cells) == 1:
            metadata = blank(chapter)["metadata"]
            cells += [cell for cell in chapter["cells"] if "setup" in cell["metadata"].get("tags", [])][:1]
        places = tuple("ex-" + id.lower().replace(".", "-") for id in ids)
        cells += [cell for cell in chapter["cells"] if ids and str(cell.get("id")).startswith(places)]
    return blank({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
