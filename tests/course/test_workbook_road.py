"""The afternoon: a notebook made of the chapters' tagged cells, kept like a chapter, and said everywhere alike."""

import ast
import builtins
import json
import re
from pathlib import Path

import nbformat
import pytest
from learner import COURSE, NAME, RIGHT, A, answer, cells, edit, read, sync

from smalearn.course import grading, workbook
from smalearn.course.site import home
from smalearn.course.workbook import road

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "chapters"
FIRST = "three-steps"  # a cell on the road


def walk(course):
    """What `smalearn afternoon` says."""
    return sync(course, made=road.made(course / "chapters"))


def newer(course):
    """Publish another edition of a cell on the road."""

    def change(notebook):
        next(cell for cell in notebook.cells if cell.id == FIRST).source += "\n\nA new edition."

    edit(course / f"chapters/{NAME}.ipynb", change)


def test_it_is_a_notebook_of_the_chapters_own_cells():
    made = road.afternoon(CHAPTERS)
    nbformat.validate(nbformat.reads(json.dumps(made), as_version=4))
    published = {path.stem[:2]: {c.id: c.source for c in read(path).cells} for path in workbook.chapters(CHAPTERS)}
    whole = set()
    for cell in made["cells"]:
        number, _, id = cell["id"].partition("-")
        if id and not id.startswith("rest-"):
            assert cell["source"] == published[number][id]
            whole.add(number)
    assert whole == set(road.PLACES)
    links = {link for cell in made["cells"] for link in re.findall(r"\]\((\S+?\.ipynb)\)", cell["source"])}
    assert {f"{path.name}" for path in workbook.chapters(CHAPTERS) if path.stem[:2] in road.PLACES} <= links
    assert all((CHAPTERS / link).exists() for link in links)


def test_every_name_in_it_is_defined_at_its_own_place():
    """A cell that needs one that is skipped would find a namesake of another chapter, or nothing."""
    known = known_everywhere = set(dir(builtins))
    for cell in road.afternoon(CHAPTERS)["cells"]:
        if cell["cell_type"] == "markdown":
            known = known_everywhere if cell["id"] in road.PLACES else known
            continue
        tree = ast.parse(cell["source"])
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                bound |= {name.asname or name.name.partition(".")[0] for name in node.names}
        assert {name.id for name in names} <= known | bound, cell["id"]
        known = known | bound
        known_everywhere = known if cell["id"] == "setup" else known_everywhere


def test_it_is_renewed_like_a_chapter_with_the_answers_of_both(course):
    workbook.sync(course / "chapters", course / "work")
    answer(course, (A, RIGHT))
    assert walk(course) == ["afternoon.ipynb is new.", f"  Your answers are in it: {A}."]
    assert walk(course) == []
    copy = course / "work" / road.NAME
    later = RIGHT.replace("past = 1", "past = 2")

    def change(notebook):
        cells(notebook, A)[0].source = later
        notebook.cells.append(nbformat.v4.new_markdown_cell("mine"))

    edit(copy, change)
    newer(course)
    said = walk(course)
    assert "There is a newer afternoon.ipynb: it is beside yours, as work/afternoon.new.ipynb." in said
    assert said.count(f"  Your answers are in it: {A}.") == 2, "the chapter has a new edition, too"
    assert read(copy).cells[-1].source == "mine"
    for name in ("afternoon.new.ipynb", f"{NAME}.new.ipynb"):
        assert cells(read(course / "work" / name), A)[0].source == later


def test_an_exercise_in_it_is_put_back_after_a_backup(course):
    walk(course)
    copy = course / "work" / road.NAME
    before = read(copy)
    answer(course, (A, RIGHT), name=road.NAME.stem)
    made = road.made(course / "chapters")
    said = workbook.reset(course / "work", course / "chapters", "afternoon", A, made)
    assert said.startswith(f"Exercise {A} in work/afternoon.ipynb is as published again.")
    assert read(copy) == before
    (backup,) = (course / "work/backups").iterdir()
    assert cells(read(backup), A)[0].source == RIGHT
    assert walk(course) == []


def test_what_is_solved_in_it_counts_in_the_chapter_which_keeps_its_title(course):
    walk(course)
    answer(course, (A, RIGHT), name=road.NAME.stem, outcome="passed")
    rows = workbook.progress(course / "work", COURSE, course / "chapters")
    assert rows[1].states[A] == "passed"
    assert rows[1].title == "01 Attention is one contraction"
    on_the_road = workbook.notebook.exercises(road.afternoon(course / "chapters"))
    assert road.progress(rows, course / "chapters").endswith(f" 1 of {len(on_the_road)}")


@pytest.mark.parametrize("place", ["README.md", "TEACHING.md", "chapters/00_start_here.ipynb", "the site"])
def test_it_is_as_long_everywhere(place):
    if place == "the site":
        text = home.page("index", ROOT, {path: path.name for path in workbook.chapters(CHAPTERS)})[0]
        assert road.table(CHAPTERS) in text
    else:
        text = (ROOT / place).read_text(encoding="utf-8")
    assert "`smalearn afternoon`" in text
    assert road.hours() in text


def test_what_counts_of_an_afternoon_that_is_handed_in_are_its_exercises(tmp_path):
    made, path = road.afternoon(CHAPTERS), tmp_path / "ada.ipynb"
    path.write_text(json.dumps(made), encoding="utf-8")
    assert sorted(grading.weigh(grading.read([path]))) == sorted(workbook.notebook.exercises(made))
