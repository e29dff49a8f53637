"""Gradebook: what came of each file, the student's line in which it counts, and the tables that are made of the lines.

Rows are kept as they were graded, a line of JSON each, so that a run goes on where one stopped.
"""

import csv
import dataclasses
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smalearn.course.exercises import registry
from smalearn.course.grading.roster import Roster, copy_of
from smalearn.course.grading.submission import Submission
from smalearn.course.workbook import notebook as notebooks

__all__ = [
    "CUT",
    "PARTIAL",
    "Gradebook",
    "Line",
    "Row",
    "Terms",
    "lines",
    "summary",
    "worth",
    "write",
    "write_import",
    "written",
]

PARTIAL = 0.5
CUT = "not graded to the end"  # begins the note on a notebook of which that is so
NOTE = 120  # characters of a note in the table
NOBODY = Roster()


@dataclass
class Row:
    """Outcomes of one file; dictionaries go from an exercise's id.

    An outcome is "passed", "not as asked", "failed", "not started", "error" or "timeout", as in `check`; "missing"
    where it is not in the notebook, "lost" where its process ended or had to be ended, also when it ran alone, "not
    run" where the process was gone.
    """

    student: str
    path: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # why, in a few words; from "" for the notebook as a whole
    flags: dict[str, str] = field(default_factory=dict)  # what a teacher should look at before it counts
    misconceptions: dict[str, str] = field(default_factory=dict)  # the one that the answer shows
    cards: dict[str, str] = field(default_factory=dict)  # what `check` would show, as HTML
    shares: dict[str, float] = field(default_factory=dict)  # of the cases that are right, in an answer that is not
    worth: dict[str, float] = field(default_factory=dict)  # points that it can bring
    digest: str = ""  # of the file
    time: float = 0.0  # when the file was changed last, in seconds since 1970
    seed: int = 0  # of the cases' random data

    @property
    def ran(self) -> bool:
        """Whether anything in it was judged."""
        return any(outcome != "not run" for outcome in self.outcomes.values())

    @property
    def broke_off(self) -> bool:
        """Whether its process was lost, by its own doing or by what ran beside it."""
        return "lost" in self.outcomes.values() or self.notes.get("", "").startswith(CUT)

    def points(self, terms: "Terms") -> dict[str, float]:
        """Map each exercise that counts to its points."""
        parts = {"passed": 1, "not as asked": terms.partial}
        parts = {id: parts.get(self.outcomes.get(id), terms.cases * self.shares.get(id, 0)) for id in self.worth}
        return {id: self.worth[id] * part * (terms.flagged if id in self.flags else 1) for id, part in parts.items()}


@dataclass(frozen=True)
class Terms:
    """What counts, and how much."""

    partial: float = PARTIAL  # of the points, for a right answer that was not found as asked
    flagged: float = 0.0  # of the points, for what has a flag
    cases: float = 0.0  # of the points, for a wrong answer, times the share of the cases that are right
    due: float | None = None  # seconds since 1970 after which a file is late; None for no such time

    def late(self, row: Row) -> float:
        """Hours by which a file was changed after it was due."""
        return max(0.0, (row.time - self.due) / 3600) if self.due and row.time else 0.0


@dataclass(frozen=True)
class Line:
    """One student in the table."""

    name: str
    columns: Sequence[tuple[str, str]]  # title and cell of the class list; only the name where there is none
    rows: list[Row]  # of the files, the one that counts first: it could be run, is in time, and the newest
    unknown: str = ""  # why that is nobody on the class list

    def row(self, id: str) -> Row | None:
        """The file that counts for an exercise."""
        return next((row for row in self.rows if id in row.worth), None)

    def points(self, terms: Terms) -> dict[str, float]:
        """Points by exercise."""
        ids = dict.fromkeys(id for row in self.rows for id in row.worth)
        return {id: self.row(id).points(terms)[id] for id in ids}


def lines(rows: Iterable[Row], terms: Terms, roster: Roster = NOBODY) -> list[Line]:
    """Put rows together by student: everybody of the class list, then by name whom it does not have."""
    files = {label: [] for label in roster.labels}
    for row in rows:
        person, _ = roster.named(row.student)
        files.setdefault(person.label if person else row.student, []).append(row)
    for own in files.values():
        own.sort(key=lambda row: (not row.ran, terms.late(row) > 0, -row.time, -copy_of(row.path.stem)[1]))
    made = [Line(label, person.columns, files.pop(label)) for label, person in roster.labels.items()]
    for name, own in sorted(files.items()):
        cells = [(title, name if title == roster.name else "") for title in roster.titles]
        made.append(Line(name, cells, own, roster.named(name)[1]))
    return made


def worth(lines: Sequence[Line]) -> dict[str, float]:
    """Points that each exercise can bring, in the order of the course."""
    found = {id: points for line in lines for row in line.rows for id, points in row.worth.items()}
    order = list(registry())
    return {id: found[id] for id in sorted(found, key=lambda id: order.index(id) if id in order else len(order))}


def write(lines: Sequence[Line], terms: Terms, path: Path) -> None:
    """Write the table as CSV, whole or not at all: who, points, total, flags, hours late, remark, files."""
    weights = worth(lines)
    table = [[*weights, "total", "flags", "late", "remark", "files"]]
    for line in lines:
        points = line.points(terms)
        numbers = [_number(points[id]) if id in points else "" for id in weights]
        late = max(map(terms.late, line.rows), default=0.0)
        flags = "; ".join(f"{id} {said}" for row in line.rows for id, said in row.flags.items() if row is line.row(id))
        texts = [flags, f"{late:.1f} h" if late else "", _remark(line, weights)]
        files = "; ".join(str(row.path) for row in line.rows)
        table.append([*numbers, _number(sum(points.values())), *texts, files])
    _save(lines, table, path)


def write_import(lines: Sequence[Line], terms: Terms, path: Path) -> None:
    """Write what a learning platform imports: the columns of the class list, and a column for each chapter."""
    chapters = list(dict.fromkeys(id.partition(".")[0] for id in worth(lines)))
    table = [[f"smalearn {chapter.zfill(2)}" for chapter in chapters]]
    for line in lines:
        points = line.points(terms).items()
        totals = [sum(value for id, value in points if id.partition(".")[0] == chapter) for chapter in chapters]
        table.append([*map(_number, totals)])
    _save(lines, table, path)


def _save(lines: Sequence[Line], table: Sequence[Sequence[str]], path: Path) -> None:
    """Write titles and a row for each line as CSV, behind the columns of the class list."""
    text, titles = io.StringIO(newline=""), [title for title, _ in lines[0].columns] if lines else ["student"]
    columns = [titles, *([cell for _, cell in line.columns] for line in lines)]
    csv.writer(text).writerows(
        [_text(str(cell)) for cell in own + row] for own, row in zip(columns, table, strict=True)
    )
    notebooks.write(path, text.getvalue().encode("utf-8", "replace"))


def _remark(line: Line, ids: Iterable[str]) -> str:
    """Say on one line why points are missing: of the files as a whole, then of each exercise."""
    parts = [line.unknown] if line.rows else ["nothing handed in"]
    if len(line.rows) > 1:
        counted = {str(row.path) for id in ids if (row := line.row(id))}
        idle = [str(row.path) for row in line.rows if str(row.path) not in counted]
        parts += [f"does not count: {', '.join(idle)}"] if idle else []
    parts += [row.notes[""] for row in line.rows if "" in row.notes]
    for id in ids:
        plain = {"not started": "not started", "timeout": "took too long"}
        row = line.row(id)
        reason = row and plain.get(row.outcomes.get(id), row.notes.get(id))
        parts += [f"{id}: {reason}"] if reason else []
    return "; ".join(map(_short, filter(None, parts)))


def _short(text: str) -> str:
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
    """Say how many passed each exercise, the mean, which files could not be run, and whose is unclear."""
    weights = worth(lines)
    totals = [sum(line.points(terms).values()) for line in lines]
    mean = f"{sum(totals) / max(1, len(lines)):.2f}".rstrip("0").rstrip(".")
    plural = "" if len(lines) == 1 else "s"
    said = [f"{len(lines)} student{plural}, on average {mean} of {_number(sum(weights.values()))} points"]
    for id in weights:
        counts = Counter(row.outcomes.get(id) for line in lines if (row := line.row(id)))
        other = f", right but not as asked by {counts['not as asked']}" if counts["not as asked"] else ""
        said.append(f"  {id}  passed by {counts['passed']}{other}")
    files = [(row.path, _short(row.notes.get("", "")), line.unknown) for line in lines for row in line.rows]
    said += [f"{path}: {'; '.join(filter(None, why))}" for path, *why in files if any(why)]
    missing = [line.name for line in lines if not line.rows]
    return "\n".join(said + ([f"Nothing handed in: {', '.join(missing)}"] if missing else []))


def written(path: Path) -> list[Path]:
    """All that a gradebook writes: the table, the rows, what is imported, and the folder of pages."""
    return [path, path.with_suffix(".jsonl"), path.with_suffix(".import.csv"), path.with_name(f"{path.stem}_pages")]


class Gradebook:
    """Gradebook of a class, over all chapters: a table, and beside it the rows from which it is made again.

    The rows are in the file of the same name that ends in `.jsonl`, read if it exists. It is only ever added to: the
    last line about a file counts, and one that was cut is passed over.
    """

    def __init__(self, path: Path, roster: Roster, terms: Terms):
        self.path, self._file, self._import, self.pages = written(path)
        self.roster, self.terms, self._rows = roster, terms, {}
        for line in self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []:
            try:
                entry = json.loads(line)
                row = Row(**entry | {"path": Path(entry["path"])})
            except (ValueError, TypeError, KeyError):
                continue
            self._rows[os.path.abspath(row.path)] = row
        self._save()  # what cannot be written is known before it takes minutes

    @property
    def lines(self) -> list[Line]:
        """The lines of the table."""
        return lines(self._rows.values(), self.terms, self.roster)

    def add(self, row: Row, weights: Mapping[str, float]) -> None:
        """Write a row, so that it is there whatever happens next."""
        row = dataclasses.replace(row, worth=dict(weights))
        key = os.path.abspath(row.path)
        self._rows.pop(key, None)
        self._rows[key] = row
        with self._file.open("a", encoding="utf-8") as file:
            entry = json.dumps(dataclasses.asdict(row) | {"path": key})
            file.write(f"\n{entry}\n")  # on a line of its own, even after one that was cut
            file.flush()
            os.fsync(file.fileno())
        self._save()

    def has(self, submission: Submission, weights: Mapping[str, float]) -> bool:
        """Whether a file was graded to its end, as it is now and with these exercises.

        Then these are its points, and it is whose it is now: a class list may have come, or another file.
        """
        row = self._rows.get(os.path.abspath(submission.path))
        if row is None or row.digest != submission.digest or not row.outcomes.keys() >= weights.keys():
            return False
        if self.problem(submission).startswith(CUT):
            return False
        if row.worth != weights or row.student != submission.student:
            self.add(dataclasses.replace(row, student=submission.student), weights)
        return True

    def problem(self, submission: Submission) -> str:
        """Why a file could not be read, set up or graded to its end; empty where it could."""
        row = self._rows.get(os.path.abspath(submission.path))
        return row.notes.get("", "") if row else ""

    def _save(self) -> None:
        write(self.lines, self.terms, self.path)

    def publish(self) -> None:
        """Write the table and, where there is a class list, what a learning platform imports."""
        self._save()
        if self.roster.people:
            write_import(self.lines, self.terms, self._import)
