"""Pages to give back: one for each student, with the cards of `check`; and one for the teacher, on the class.

Everything that a student wrote, a name too, is escaped.
"""

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from smalearn.course.exercises import registry
from smalearn.course.grading.alike import Pair
from smalearn.course.grading.gradebook import Line, Terms, worth
from smalearn.course.workbook import notebook as notebooks

__all__ = ["write_pages"]

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root {{ color-scheme: light dark; --bar: #4e79a7; --good: #2e9e5b; --part: #d08a00; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .4rem; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
.card {{ margin: 1.2rem 0; }}
.bars {{ display: grid; grid-template-columns: minmax(8rem, 24rem) 1fr; gap: .25rem .8rem; align-items: center; }}
.bar {{ display: flex; align-items: center; gap: .5rem; }}
.bar i {{ height: .9rem; border-radius: 2px; background: var(--bar); flex: none; }}
.bar .passed {{ background: var(--good); }} .bar .part {{ background: var(--part); }}
@media (max-width: 34rem) {{ .bars {{ grid-template-columns: 1fr; gap: 0 }} .bar {{ margin-bottom: .5rem }} }}
</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
WORDS = {
    "not started": "not started",
    "missing": "not in the notebook",
    "timeout": "took too long",
    "lost": "ended its process",
    "error": "raised an error",
    "failed": "wrong in another way",
    "not run": "not run",
}
WIDEST = 14  # rem


def write_pages(lines: Sequence[Line], terms: Terms, pairs: Sequence[Pair], folder: Path) -> None:
    """Write `index.html`, on the class, and a page for each student in `students/`."""
    (folder / "students").mkdir(parents=True, exist_ok=True)
    names = {}
    for line in lines:
        slug = re.sub(r"[^\w-]+", "_", line.name).strip("_")[:60] or "student"
        taken = [name for name in names.values() if name == slug or name.startswith(f"{slug}.")]
        names[line.name] = f"{slug}.{len(taken) + 1}" if taken else slug
        page = PAGE.format(title=escape(line.name), body=_student(line, terms))
        notebooks.write(folder / "students" / f"{names[line.name]}.html", page.encode("utf-8", "replace"))
    page = PAGE.format(title="The class", body=_class(lines, terms, pairs, names))
    notebooks.write(folder / "index.html", page.encode("utf-8", "replace"))


def _student(line: Line, terms: Terms) -> str:
    """What a student gets back: the points, and for each exercise the card, or why there is none."""
    points, weights = line.points(terms), worth([line])
    total = f"<p>{sum(points.values()):g} of {sum(weights.values()):g} points</p>"
    parts = [f"<p>{escape(str(row.path.name))}: {escape(row.notes[''])}</p>" for row in line.rows if "" in row.notes]
    for id in weights:
        row = line.row(id)
        if row is None:
            continue
        card = row.cards.get(id)
        if not card:
            reason = WORDS.get(row.outcomes.get(id), "")
            note = row.notes.get(id, "")
            text = f"{_title(id)}: {note if note and note != reason else reason}"
            card = f"<p>○ {escape(text)}</p>"
        wait = ". It counts once it has been read." if id in row.flags and not points[id] else ""
        parts.append(f'<div class="card">{card}<p>{points[id]:g} of {weights[id]:g}{wait}</p></div>')
    return "\n".join([total if line.rows else "<p>Nothing handed in.</p>", *parts])


def _class(lines: Sequence[Line], terms: Terms, pairs: Sequence[Pair], names: dict[str, str]) -> str:
    """What a teacher wants to know: points, who is like whom, and what each exercise was taken for."""
    rows = [
        f'<tr><td><a href="students/{escape(names[line.name])}.html">{escape(line.name)}</a></td>'
        f'<td class="number">{sum(line.points(terms).values()):g}</td></tr>'
        for line in lines
    ]
    parts = [f"<table><tr><th>Student</th><th>Points</th></tr>{''.join(rows)}</table>"]
    for id, points in worth(lines).items():
        parts.append(f"<h2>{escape(_title(id))}</h2>{_bars(lines, id)}<p>Points: {points:g}</p>")
    if pairs:
        items = "".join(f"<li>{escape(str(pair))}</li>" for pair in pairs)
        about = "Shares of passages that answers have in common, of five lines or more; to be read, not to be believed."
        parts.append(f"<h2>Alike</h2><p>{about}</p><ul>{items}</ul>")
    return "\n".join(parts)


def _bars(lines: Sequence[Line], id: str) -> str:
    """How many passed an exercise, and how many had each misconception; the longest bar would be the whole class."""
    counts, passed = Counter(), Counter()
    for line in lines:
        row = line.row(id)
        outcome = row.outcomes.get(id, "not run") if row else None
        if outcome in ("passed", "not as asked"):
            passed[outcome] += 1
        elif row:
            counts[row.misconceptions.get(id) or WORDS.get(outcome, outcome)] += 1
    bars = [("passed", passed["passed"], "passed"), ("right, but not as asked", passed["not as asked"], "part")]
    bars = [bar for bar in bars if bar[1]] + [(text, count, "") for text, count in counts.most_common()]
    cells = [
        f'<div>{escape(text)}</div><div class="bar">'
        f'<i class="{kind}" style="width: {WIDEST * count / len(lines):.2f}rem"></i>{count}</div>'
        for text, count, kind in bars
    ]
    return f'<div class="bars">{"".join(cells)}</div>'


def _title(id: str) -> str:
    exercise = registry().get(id)
    return f"{id} {exercise.title}" if exercise else id
