"""Progress of a learner: the outcomes that `check` left in the saved notebooks, counted and shown."""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.workbook.names import outcomes, registered, renumbered, with_gone
from smalearn.course.workbook.notebook import Notebook, answers, chapters, exercises, notebooks, originals, read

__all__ = ["ChapterProgress", "progress", "table"]

SYMBOLS = {"passed": "●", "not as asked": "◐", "started": "◔", "open": "○"}
POINTS = {"passed": 1, "not as asked": 0.5}


@dataclass(frozen=True)
class ChapterProgress:
    """Progress of a learner in one chapter.

    Args:
        title: "01 Attention is one contraction".
        states: exercise id -> "passed", "not as asked", "started" or "open", in the order of the chapter.
        upcoming: id, title and minutes of the first exercise that has no right answer; empty where all have one.
    """

    title: str
    states: dict[str, str]
    upcoming: str


def progress(work: Path, course: Mapping[str, object], folder: Path) -> list[ChapterProgress]:
    """Count how far the learner is, by the outcomes that `check` left in the saved notebooks in `work`.

    An exercise is passed if any notebook says so, or else right but not as asked, which counts half. It is started if
    one has another outcome, or an answer that is not checked yet. An answer that changed after its check passed stays
    passed until the check runs again. Exercises count under the number
    that they have now.
    """
    versions = list(filter(None, map(read, originals(work))))
    numbers = with_gone(registered(course), versions)
    saved = list(notebooks(work).values())
    copies = [renumbered(notebook, numbers) for notebook in saved]
    seen = {outcome for notebook in saved for outcome in outcomes(notebook, numbers, course)}
    best = {id: outcome for outcome in reversed(POINTS) for id, found in seen if found == outcome}
    started = {id for id, outcome in seen if outcome != "not started"}
    started.update(answers(copies, (renumbered(notebook, numbers) for notebook in versions)))
    published = list(filter(None, map(read, chapters(folder))))
    candidates = [*zip(saved, copies, strict=True), *zip(published, published, strict=True)]
    rows = []
    for number, group in itertools.groupby(course, lambda id: id.partition(".")[0]):
        ids = list(group)
        copy = _copy(ids, candidates)
        ids = [id for id in dict.fromkeys([*exercises(copy), *ids]) if id in ids]
        states = {id: best.get(id, "started" if id in started else "open") for id in ids}
        next_id = next((id for id in ids if id not in best), None)
        upcoming = f"{next_id} {course[next_id].title} ({course[next_id].minutes} min)" if next_id else ""
        title = _title(copy) or (number.zfill(2) if number.isdigit() else number)
        rows.append(ChapterProgress(title, states, upcoming))
    return rows


def _copy(ids: list[str], copies: Iterable[tuple[Notebook, Notebook]]) -> Notebook:
    """Find the first of the fullest copies of a chapter, in pairs of a copy and the same with today's numbers."""

    def shared(
        pair,
    ):  # a notebook in which the exercises have other numbers is none, one made of many is not the fullest
        return len(exercises(pair[0]).keys() & exercises(pair[1]).keys() & set(ids))

    fullest = max(copies, key=shared, default=None)
    return fullest[1] if fullest and shared(fullest) else {"cells": []}


def _title(notebook: Notebook) -> str:
    """Return the first heading: "# 01 · Attention" as "01 Attention"."""
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    heading = re.search(r"(?m)^# (.+)$", text)
    return heading.group(1).replace(" · ", " ") if heading else ""


def table(rows: Iterable[ChapterProgress]) -> str:
    """Write a line for each chapter: its title, a mark for each exercise, how many are passed, and what comes next.

    Example:
        >>> states = {"1.2": "passed", "1.1": "started", "1.3": "not as asked", "1.4": "open"}
        >>> print(table([ChapterProgress("01 Attention", states, "1.1 Hide the future (5 min)")]))
        01 Attention  ●◔◐○  1.5 of 4  next: 1.1 Hide the future (5 min)
    """
    cells = []
    for row in rows:
        marks = "".join(SYMBOLS[state] for state in row.states.values())
        count = f"{sum(POINTS.get(state, 0) for state in row.states.values()):g} of {len(marks)}"
        cells.append([row.title, marks, count, f"next: {row.upcoming}" if row.upcoming else "done"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
