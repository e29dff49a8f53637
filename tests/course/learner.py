"""A learner with a course of two chapters: syncs, answers, saves, and meets newer editions."""

import hashlib
import itertools
import os
import re
from pathlib import Path

import nbformat

from smalearn.course import exercises, workbook
from smalearn.course.exercises.report import MIME

CHAPTERS = Path(__file__).parents[2] / "chapters"
NAME = "01_one_contraction"
COURSE = exercises.registry()
CELLS = [cell for cell in nbformat.read(CHAPTERS / f"{NAME}.ipynb", as_version=4).cells if "exercise" in cell.metadata]
IDS = list(dict.fromkeys(cell.metadata.exercise for cell in CELLS))
A, B, C = IDS[:3]  # the exercises that the tests answer, whatever they are


def written(exercise, body):
    """An answer: the first line of the stub, and a body."""
    stub = next(cell for cell in CELLS if cell.metadata.exercise == exercise)
    return f"{stub.source.splitlines()[0]}\n    {body}"


def bound(exercise, value):
    """An answer that defines no function."""
    return f"{re.match(r'def (.*?)[(]', written(exercise, '')).group(1)} = {value}"


RIGHT = written(A, "past = 1\n    return past  # nach links schauen ←")
HALF = written(C, "return 1 +")
clock = itertools.count(1)


def sync(course, **options):
    """What `sync` says; it changes no file that was there before, and leaves no unfinished one."""
    before = hashes(course)
    lines = workbook.sync(course / "chapters", course / "work", **options)
    assert before.items() <= hashes(course).items()
    assert not [*course.rglob("*.part"), *course.rglob(".lock")]
    for path in (course / "work").glob("*.new*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))
    return lines


def hashes(course):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in course.rglob("*") if path.is_file()}


def as_published(course):
    return all(is_copy(course / "work" / path.name, path) for path in (course / "chapters").iterdir())


def is_copy(copy, chapter):
    """Say whether a file in `work` is the published chapter, without what its cells printed."""
    return read(copy) == without_outputs(chapter)


def without_outputs(chapter):
    notebook = read(chapter)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def names(course):
    """The notebooks in `work`, by name, without the first chapter's."""
    return sorted(path.name for path in (course / "work").glob("*.ipynb") if path.name != "00_start_here.ipynb")


def read(path):
    return nbformat.read(path, as_version=4)


def edit(path, change):
    """Save a notebook after `change(notebook)`, as JupyterLab does, a second later than any other."""
    notebook = read(path)
    change(notebook)
    nbformat.write(notebook, path)
    later(path)


def later(path):
    stamp = 2_000_000_000 + next(clock)
    os.utime(path, (stamp, stamp))


def cells(notebook, exercise):
    return [cell for cell in notebook.cells if cell.metadata.get("exercise") == exercise]


def answer(course, *answers, name=NAME, outcome=None):
    """The learner writes answers, (exercise, source) each, into a copy, and may have them checked."""

    def change(notebook):
        for exercise, source in answers:
            stub, check = cells(notebook, exercise)
            stub.source = source
            if outcome:
                check.outputs = [output(exercise, outcome)]

    edit(course / f"work/{name}.ipynb", change)


def output(exercise, outcome):
    record = {"exercise": exercise, "outcome": outcome, "seed": 0, "cases": 4, "passed": 1}
    return nbformat.v4.new_output("display_data", {"text/plain": "…", MIME: record})


def publish(course, change=lambda notebook: None, name=NAME):
    """A newer edition of a chapter, with another title and what else `change(notebook)` does."""

    def edition(notebook):
        notebook.cells[0].source += "\n\nA new edition."
        change(notebook)

    edit(course / f"chapters/{name}.ipynb", edition)


def replace_stub(exercise, old, new):
    def change(notebook):
        stub = cells(notebook, exercise)[0]
        assert old in stub.source
        stub.source = stub.source.replace(old, new, 1)

    return change


def remove(exercise):
    def change(notebook):
        notebook.cells = [cell for cell in notebook.cells if cell.metadata.get("exercise") != exercise]

    return change


def states(course, chapter=1):
    return workbook.progress(course / "work", COURSE, course / "chapters")[chapter].states
