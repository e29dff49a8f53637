"""Choice of what counts: the exercises, and their points."""

import importlib.util
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from smalearn.course.exercises import Exercise, registry
from smalearn.course.grading.submission import Submission

__all__ = ["exercises", "load", "weigh"]


def load(path: Path) -> None:
    """Run a teacher's own file, whose exercises register themselves."""
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
    """Decide the points of each exercise that counts, by a JSON file, `{"3.1": 1, "3.4": 2.5}`.

    Without one the exercises of what most submissions are count a point each: those of a chapter, or of an afternoon.
    """
    known = registry()
    if path is None:
        sheets = Counter(sheet for submission in submissions if (sheet := _sheet(submission)))
        if not sheets:
            raise ValueError("grade: none of the exercises of the course is in these files")
        return dict.fromkeys(sheets.most_common(1)[0][0], 1)
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


def _sheet(submission: Submission) -> tuple[str, ...]:
    """List the exercises of the notebook that a submission is of: those that it follows, or its chapter's."""
    known = registry()
    for cell in submission.code:
        if cell["setup"] and (road := re.search(r"^follow\((.+)\)$", cell["source"], re.MULTILINE)):
            return tuple(id for id in known if f'"{id}"' in road[1])
    chapters = Counter(_chapter(id) for id in submission.cells if id in known)
    of_most = chapters.most_common(1)[0][0] if chapters else ""
    return tuple(id for id, one in known.items() if _chapter(id) == of_most and not one.opener)


def _chapter(id: str) -> str:
    return id.partition(".")[0]


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
