"""How far a learner is: what `check` left in the saved notebooks, counted and shown."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.workbook.notebook import Notebook, answers, exercises, notebooks, originals, outcomes, read

__all__ = ["ChapterProgress", "progress", "table"]

SYMBOLS = {"passed": "●", "started": "◐", "open": "○"}


@dataclass(frozen=True)
class ChapterProgress:
    """How far a learner is in one chapter.

    Args:
        title: "01 Attention is one contraction".
        states: exercise id -> "passed", "started" or "open", in the order of the chapter.
        upcoming: id, title and minutes of the first exercise that is not passed; empty where all are.
    """

    title: str
    states: dict[str, str]
    upcoming: str


def progress(work: Path, course: Mapping[str, object]) -> list[ChapterProgress]:
    """How far the learner is, by the outcomes that `check` left in the saved notebooks in `work`.

    An exercise is passed if any notebook says so, and started if one has another outcome, or an answer that is not
    checked yet. An answer that changed after its check passed stays passed until the check runs again.

    Args:
        work: folder of the learner's copies. What cannot be read counts as empty: see `unreadable`.
        course: id -> exercise with `title` and `minutes`, chapter by chapter: `smalearn.course.exercises.registry()`.

    Returns:
        A row for each chapter that has exercises.
    """
    copies = list(notebooks(work).values())
    seen = {outcome for notebook in copies for outcome in outcomes(notebook)}
    passed = {id for id, outcome in seen if outcome == "passed"}
    started = {id for id, outcome in seen if outcome != "not started"}
    started.update(answers(copies, filter(None, map(read, originals(work)))))
    rows = []
    for number, group in itertools.groupby(course, lambda id: id.partition(".")[0]):
        ids = list(group)
        copy = next((notebook for notebook in copies if exercises(notebook).keys() & ids), {"cells": []})
        ids = [id for id in dict.fromkeys([*exercises(copy), *ids]) if id in ids]
        states = {id: "passed" if id in passed else "started" if id in started else "open" for id in ids}
        left = next((id for id in ids if id not in passed), None)
        upcoming = f"{left} {course[left].title} ({course[left].minutes} min)" if left else ""
        rows.append(ChapterProgress(_title(copy) or f"{number:0>2}", states, upcoming))
    return rows


def _title(notebook: Notebook) -> str:
    """The first heading: "# 01 · Attention" as "01 Attention"."""
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    heading = re.search(r"(?m)^# (.+)$", text)
    return heading.group(1).replace(" · ", " ") if heading else ""


def table(rows: Iterable[ChapterProgress]) -> str:
    """A line for each chapter: its title, a mark for each exercise, how many are passed, and what comes next.

    Example:
        >>> states = {"1.2": "passed", "1.1": "started", "1.3": "open"}
        >>> print(table([ChapterProgress("01 Attention", states, "1.1 Hide the future (5 min)")]))
        01 Attention  ●◐○  1 of 3  next: 1.1 Hide the future (5 min)
    """
    cells = []
    for row in rows:
        marks = "".join(SYMBOLS[state] for state in row.states.values())
        count = f"{marks.count(SYMBOLS['passed'])} of {len(marks)}"
        cells.append([row.title, marks, count, f"next: {row.upcoming}" if row.upcoming else "done"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
