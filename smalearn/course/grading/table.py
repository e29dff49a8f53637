"""Choice of files, exercises and points; and the table that comes of them."""

import csv
import importlib.util
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from smalearn.course.exercises import Exercise, registry
from smalearn.course.grading.rows import PARTIAL, Row
from smalearn.course.grading.submission import Submission

__all__ = ["exercises", "files", "load", "remark", "summary", "weigh", "write"]

NOTE = 120  # characters of a note in the table


def files(names: Iterable[str]) -> list[Path]:
    """Find the files that names stand for: a folder stands for the notebooks in it and below, `*` for any characters.

    Raises:
        ValueError: there is no such file, or no notebook in a folder.
    """
    paths = []
    for name in names:
        path = Path(name)
        if path.is_file():
            paths.append(path)
            continue
        below = path.rglob("*.ipynb") if path.is_dir() else path.parent.glob(path.name)
        matches = sorted(match for match in below if not any(part.startswith(".") for part in match.parts[-2:]))
        if not matches:
            raise ValueError(f"grade: there is no {'notebook in' if path.is_dir() else 'file'} {name}")
        paths += matches
    return list(dict.fromkeys(paths))


def load(path: Path) -> None:
    """Run a teacher's own file, whose exercises register themselves.

    Raises:
        ValueError: the file cannot be run, or has no exercise.
    """
    spec = importlib.util.spec_from_file_location("_exercises_of_a_teacher", path)
    if spec is None:
        raise ValueError(f"grade: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"grade: {path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        del sys.modules[spec.name]  # so that nothing of it is sent to a submission's process by its name
    if not any(exercise.solution.__module__ == spec.name for exercise in registry().values()):
        raise ValueError(f"grade: {path} has no exercise")


def weigh(submissions: Sequence[Submission], path: Path | None = None) -> dict[str, float]:
    """Decide the points of each exercise that counts.

    Args:
        submissions: where no file is given, the exercises of one chapter count a point each: the chapter that most of
            these are of. A cell of another chapter earns nothing.
        path: a JSON file, `{"3.1": 1, "3.4": 2.5}`; exercises that it does not name do not count.

    Raises:
        ValueError: the file is not such a file, or no submission has an exercise that we know.
    """
    known = registry()
    if path is None:
        counts = [Counter(_chapter(id) for id in submission.cells if id in known) for submission in submissions]
        chapters = Counter(count.most_common(1)[0][0] for count in counts if count)
        if not chapters:
            raise ValueError("grade: none of the exercises of the course is in these files")
        commonest = chapters.most_common(1)[0][0]
        return {id: 1 for id in known if _chapter(id) == commonest}
    try:
        weights = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"grade: {path} is not JSON") from None
    if not isinstance(weights, dict) or not weights or not all(map(_is_weight, weights.values())):
        raise ValueError(f'grade: {path} must name exercises and their points, {{"3.1": 1, "3.4": 2.5}}')
    unknown = [id for id in weights if id not in known]
    if unknown:
        raise ValueError(f"grade: {path} has points for {', '.join(unknown)}, which no exercise is called")
    return weights


def exercises(weights: Mapping[str, float]) -> dict[str, Exercise]:
    """List all exercises of the chapters in which some count, in order: one may call the function of another."""
    chapters = set(map(_chapter, weights))
    return {id: exercise for id, exercise in registry().items() if _chapter(id) in chapters}


def _chapter(id: str) -> str:
    return id.partition(".")[0]


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def write(rows: Sequence[Row], weights: Mapping[str, float], path: Path, partial: float = PARTIAL) -> None:
    """Write the table as CSV: student, file, the points of each exercise, total, remark.

    Args:
        rows: of `grade`.
        weights: points of each exercise.
        path: the table.
        partial: part of the points for a right answer that was not found as asked.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "file", *weights, "total", "remark"])
        for row in rows:
            points = row.points(weights, partial)
            numbers = [_number(value) for value in (*points.values(), sum(points.values()))]
            table.writerow([_text(row.student), _text(str(row.path)), *numbers, _text(remark(row, rows, weights))])


def remark(row: Row, rows: Sequence[Row], ids: Iterable[str]) -> str:
    """Say on one line why a row is as it is: of the notebook, then of each of these exercises, then what to look at."""
    twice = [other.path for other in rows if other is not row and other.student == row.student]
    parts = [f"also handed in as {twice[0]}"] if twice else []
    parts += [row.notes[""]] if "" in row.notes else []
    for id in ids:
        plain = {"not started": "not started", "timeout": "took too long"}
        reason = plain.get(row.outcomes.get(id), row.notes.get(id))
        parts += [f"{id}: {reason}"] if reason else []
    return "; ".join([*map(_short, parts), *(f"{id} {row.marks[id]}" for id in ids if id in row.marks)])


def _short(text: str) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= NOTE else text[: NOTE - 1] + "…"


def _text(text: str) -> str:
    """Change a text so that no spreadsheet takes it for a formula."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _number(value: float) -> str:
    return f"{value:.10g}"


def summary(rows: Sequence[Row], weights: Mapping[str, float], partial: float = PARTIAL) -> str:
    """Say how many passed each exercise, the mean, and which notebooks could not be run.

    Args:
        rows: of `grade`.
        weights: points of each exercise.
        partial: part of the points for a right answer that was not found as asked.

    Example:
        >>> ada = Row("ada", Path("a.ipynb"), {"3.1": "passed"})
        >>> bob = Row("bob", Path("b.ipynb"), {}, {"": "no notebook"})
        >>> print(summary([ada, bob], {"3.1": 2}))
        2 notebooks, on average 1 of 2 points
          3.1  passed by 1
        b.ipynb: no notebook
    """
    totals = [sum(row.points(weights, partial).values()) for row in rows]
    plural = "" if len(rows) == 1 else "s"
    mean = f"{sum(totals) / len(rows):.2f}".rstrip("0").rstrip(".")
    lines = [f"{len(rows)} notebook{plural}, on average {mean} of {_number(sum(weights.values()))} points"]
    for id in weights:
        counts = Counter(row.outcomes.get(id) for row in rows)
        other = f", right but not as asked by {counts['not as asked']}" if counts["not as asked"] else ""
        lines.append(f"  {id}  passed by {counts['passed']}{other}")
    lines += [f"{row.path}: {_short(row.notes[''])}" for row in rows if "" in row.notes]
    return "\n".join(lines)
