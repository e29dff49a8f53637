"""Gradebook as a table, one line for each student: all chapters, what to look at, and why points are missing."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.exercises import registry
from smalearn.course.grading import roster
from smalearn.course.grading.rows import PARTIAL, Row
from smalearn.course.workbook import notebook as notebooks

__all__ = ["Line", "Terms", "flags", "lines", "remark", "short", "summary", "worth", "write", "write_import"]

NOTE = 120  # characters of a note in the table


@dataclass(frozen=True)
class Terms:
    """What counts, and how much.

    Args:
        partial: part of the points for a right answer that was not found as asked.
        flagged: part of the points that counts for what has a flag.
        due: seconds since 1970 after which a file is late; None for no such time.
    """

    partial: float = PARTIAL
    flagged: float = 0.0
    due: float | None = None

    def late(self, row: Row) -> float:
        """Hours by which a file was changed after it was due."""
        return max(0.0, (row.time - self.due) / 3600) if self.due and row.time else 0.0


@dataclass(frozen=True)
class Line:
    """One student in the table.

    Args:
        name: of the student.
        columns: the line of the class list; only the name where there is none.
        rows: of the student's files, the one that counts first: it could be run, is in time, and the newest.
    """

    name: str
    columns: Mapping[str, str]
    rows: list[Row]

    def row(self, id: str) -> Row | None:
        """The file that counts for an exercise."""
        return next((row for row in self.rows if id in row.worth), None)

    def points(self, terms: Terms) -> dict[str, float]:
        """Points by exercise."""
        ids = dict.fromkeys(id for row in self.rows for id in row.worth)
        return {id: self.row(id).points(terms.partial, terms.flagged)[id] for id in ids if self.row(id)}


def lines(rows: Iterable[Row], terms: Terms, people: Sequence[roster.Person] = ()) -> list[Line]:
    """Put rows together by student: everybody of the class list, then by name whom it does not have."""
    files = {person.label: [] for person in people}
    columns = {person.label: person.columns for person in people}
    for row in rows:
        person = roster.find(row.path, people) if people else None
        files.setdefault(person.label if person else row.student, []).append(row)
    titles = list(people[0].columns) if people else ["student"]
    made = []
    for name in [*columns, *sorted(files.keys() - columns.keys())]:
        own = sorted(files[name], key=lambda row: (not row.ran, terms.late(row) > 0, -row.time))
        made.append(Line(name, columns.get(name, dict.fromkeys(titles, "") | {_name_title(titles): name}), own))
    return made


def _name_title(titles: Sequence[str]) -> str:
    """The column of a class list into which a name goes that it does not have."""
    return next((title for title in titles if title.lower() in ("student", "name", "full name")), titles[0])


def worth(lines: Sequence[Line]) -> dict[str, float]:
    """Points that each exercise can bring, in the order of the course."""
    found = {id: points for line in lines for row in line.rows for id, points in row.worth.items()}
    order = list(registry())
    return {id: found[id] for id in sorted(found, key=lambda id: order.index(id) if id in order else len(order))}


def write(lines: Sequence[Line], terms: Terms, path: Path) -> None:
    """Write the table as CSV, whole or not at all: who, points, total, flags, hours late, remark, files."""
    weights = worth(lines)
    table = [[*(lines[0].columns if lines else ["student"]), *weights, "total", "flags", "late", "remark", "files"]]
    for line in lines:
        points = line.points(terms)
        numbers = [_number(points[id]) if id in points else "" for id in weights]
        late = max(map(terms.late, line.rows), default=0.0)
        texts = [flags(line), f"{late:.1f} h" if late else "", remark(line, weights)]
        files = "; ".join(str(row.path) for row in line.rows)
        table.append([*line.columns.values(), *numbers, _number(sum(points.values())), *texts, files])
    _save(table, path)


def write_import(lines: Sequence[Line], terms: Terms, path: Path) -> None:
    """Write what a learning management system imports: the columns of the class list, and a column for each chapter."""
    chapters = list(dict.fromkeys(id.partition(".")[0] for id in worth(lines)))
    table = [[*lines[0].columns, *(f"smalearn {chapter.zfill(2)}" for chapter in chapters)]]
    for line in lines:
        points = line.points(terms).items()
        totals = [sum(value for id, value in points if id.partition(".")[0] == chapter) for chapter in chapters]
        table.append([*line.columns.values(), *map(_number, totals)])
    _save(table, path)


def _save(table: Sequence[Sequence[str]], path: Path) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_text(str(cell)) for cell in row] for row in table)
    notebooks.write(path, text.getvalue().encode("utf-8", "replace"))


def flags(line: Line) -> str:
    """What a teacher should look at before it counts."""
    return "; ".join(f"{id} {text}" for row in line.rows for id, text in row.flags.items() if row is line.row(id))


def remark(line: Line, ids: Iterable[str]) -> str:
    """Say on one line why points are missing: of the files as a whole, then of each exercise."""
    parts = [] if line.rows else ["nothing handed in"]
    if len(line.rows) > 1:
        counted = {id: str(row.path) for id in ids if (row := line.row(id))}
        idle = [str(row.path) for row in line.rows if str(row.path) not in counted.values()]
        parts += [f"does not count: {', '.join(idle)}"] if idle else []
    parts += [row.notes[""] for row in line.rows if "" in row.notes]
    for id in ids:
        plain = {"not started": "not started", "timeout": "took too long"}
        row = line.row(id)
        reason = row and plain.get(row.outcomes.get(id), row.notes.get(id))
        parts += [f"{id}: {reason}"] if reason else []
    return "; ".join(map(short, parts))


def short(text: str) -> str:
    """Put a text on one line that is not long."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= NOTE else text[: NOTE - 1] + "…"


def _text(text: str) -> str:
    """Change a text so that no spreadsheet takes it for a formula."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _number(value: float) -> str:
    return f"{value:.10g}"


def summary(lines: Sequence[Line], terms: Terms) -> str:
    """Say how many passed each exercise, the mean, and which files could not be run.

    Example:
        >>> ada = Row("ada", Path("a.ipynb"), {"3.1": "passed"}, worth={"3.1": 2}, digest="1")
        >>> bob = Row("bob", Path("b.ipynb"), {}, {"": "no notebook"})
        >>> print(summary([Line("ada", {}, [ada]), Line("bob", {}, [bob])], Terms()))
        2 students, on average 1 of 2 points
          3.1  passed by 1
        b.ipynb: no notebook
    """
    weights = worth(lines)
    totals = [sum(line.points(terms).values()) for line in lines]
    mean = f"{sum(totals) / max(1, len(lines)):.2f}".rstrip("0").rstrip(".")
    plural = "" if len(lines) == 1 else "s"
    said = [f"{len(lines)} student{plural}, on average {mean} of {_number(sum(weights.values()))} points"]
    for id in weights:
        counts = Counter(row.outcomes.get(id) for line in lines if (row := line.row(id)))
        other = f", right but not as asked by {counts['not as asked']}" if counts["not as asked"] else ""
        said.append(f"  {id}  passed by {counts['passed']}{other}")
    said += [f"{row.path}: {short(row.notes[''])}" for line in lines for row in line.rows if "" in row.notes]
    missing = [line.name for line in lines if not line.rows]
    return "\n".join(said + ([f"Nothing handed in: {', '.join(missing)}"] if missing else []))
