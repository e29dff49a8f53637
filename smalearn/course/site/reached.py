"""What a learner has reached, as a page to keep or to hand over."""

import datetime
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from smalearn.course import ladder
from smalearn.course.exercises import Exercise
from smalearn.course.workbook import ChapterProgress, table

__all__ = ["reached"]

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>smalearn: what I reached</title>
<style>body {{ max-width: 50em; margin: 2em auto; font: 1em/1.5 sans-serif; }} pre {{ overflow-x: auto; }}</style>
<h1>smalearn: what I reached</h1>
<p>{day}: {count} of {all} exercises passed. This is counted from the notebooks as they were saved; who wants a proof
runs <code>smalearn grade</code> on them.</p>
<pre>{table}</pre>
"""


def reached(rows: Sequence[ChapterProgress], course: Mapping[str, Exercise], work: Path, day: datetime.date) -> str:
    """Write the page: exercises, what they showed, the ladder of models, and the files that were taken home."""
    states = {id: state for row in rows for id, state in row.states.items()}
    passed = [course[id] for id, state in states.items() if state == "passed"]
    text = PAGE.format(day=day, count=len(passed), all=len(states), table=escape(table(rows)))
    shown = [f"{one.id} {one.title}: {one.insight}" for one in passed if one.insight]
    newest = {rung["name"]: rung for rung in ladder.rungs(work / "ladder.json")}
    climbed = [f"{name}: {rung['bits']:.2f} bits per character, {rung['steps']} steps" for name, rung in newest.items()]
    taken = [_program(path) for path in sorted(work.glob("my_*.py"))]
    parts = {
        "What the exercises showed": shown,
        "Models that I trained": climbed,
        "Programs that I took home": taken,
    }
    for title, lines in parts.items():
        items = "\n".join(f"<li>{escape(line)}" for line in lines)
        text += f"<h2>{title}</h2>\n<ul>\n{items}\n</ul>\n" if lines else ""
    return text


def _program(path):
    """Say how old a program is: it was right when a chapter wrote it, and may have been changed since."""
    lines, changed = path.read_text("utf-8").splitlines(), datetime.date.fromtimestamp(path.stat().st_mtime)
    return f"{path.name}: {len(lines)} lines, last changed on {changed}; not run again here"
