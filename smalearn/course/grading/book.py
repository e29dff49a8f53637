"""Gradebook: every row as it was graded, a line of JSON each, so that a run goes on where one stopped."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from smalearn.course.grading import table
from smalearn.course.grading.alike import Pair
from smalearn.course.grading.pages import write_pages
from smalearn.course.grading.roster import Person
from smalearn.course.grading.rows import CUT, Row
from smalearn.course.grading.submission import Submission

__all__ = ["Gradebook"]

FIELDS = {field.name for field in dataclasses.fields(Row)}


class Gradebook:
    """Gradebook of a class, over all chapters: a table, and beside it the rows from which it is made again.

    The file of rows is only ever added to: the last line about a file counts, and one that was cut is passed over.

    Args:
        path: of the table; the rows are in the file of the same name that ends in `.jsonl`, read if it exists.
        people: the class list; empty where there is none.
        terms: what counts, and how much.
    """

    def __init__(self, path: Path, people: Sequence[Person], terms: table.Terms):
        self.path, self.people, self.terms = path, people, terms
        self.pages = path.with_name(f"{path.stem}_pages")
        self._file, self._rows = path.with_suffix(".jsonl"), {}
        for line in self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []:
            try:
                entry = json.loads(line)
                row = Row(**{name: entry[name] for name in FIELDS} | {"path": Path(entry["path"])})
            except (ValueError, TypeError, KeyError):
                continue
            self._rows[_key(row.path)] = row
        self._save()  # what cannot be written is known before it takes minutes

    @property
    def lines(self) -> list[table.Line]:
        """The lines of the table."""
        return table.lines(self._rows.values(), self.terms, self.people)

    def add(self, row: Row, weights: Mapping[str, float]) -> None:
        """Write a row, so that it is there whatever happens next."""
        row = dataclasses.replace(row, worth=dict(weights))
        self._rows.pop(_key(row.path), None)
        self._rows[_key(row.path)] = row
        entry = dataclasses.asdict(row) | {"path": str(row.path.absolute())}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(entry)}\n")  # on a line of its own, even after one that was cut
            file.flush()
            os.fsync(file.fileno())
        self._save()

    def has(self, submission: Submission, weights: Mapping[str, float]) -> bool:
        """Whether a file was graded to its end, as it is now and with these exercises; then these are their points."""
        row = self._rows.get(_key(submission.path))
        if row is None or row.digest != submission.digest or not row.outcomes.keys() >= weights.keys():
            return False
        if self.problem(submission).startswith(CUT):
            return False
        if row.worth != weights:
            self.add(row, weights)
        return True

    def problem(self, submission: Submission) -> str:
        """Why a file could not be read, set up or graded to its end; empty where it could."""
        row = self._rows.get(_key(submission.path))
        return row.notes.get("", "") if row else ""

    def _save(self) -> None:
        table.write(self.lines, self.terms, self.path)

    def publish(self, pairs: Sequence[Pair]) -> None:
        """Write the table, the pages, and, where there is a class list, what a learning management system imports."""
        self._save()
        if self.people:
            table.write_import(self.lines, self.terms, self.path.with_suffix(".import.csv"))
        write_pages(self.lines, self.terms, pairs, self.pages)


def _key(path: Path) -> str:
    return os.path.abspath(path)
