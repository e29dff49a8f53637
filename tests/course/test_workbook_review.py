"""Closed-book questions come back after 1, 7 and 30 days; a wrong answer after one."""

import datetime
import json
import os
import shutil

import nbformat
import pytest
from learner import CHAPTERS, COURSE, cells, output, read

from smalearn.course import workbook

START = datetime.date(2026, 11, 29)
NAME = "03_linear_attention"
IDS = ["3.a", "3.b", "3.c"]


@pytest.fixture
def work(tmp_path):
    """The learner's folder, with a copy of chapter 03, whose questions have no answers."""
    (tmp_path / "work").mkdir()
    (tmp_path / "chapters").mkdir()
    for path in CHAPTERS.glob("0[23]_*.ipynb"):
        shutil.copy(path, tmp_path / "chapters")
        shutil.copy(path, tmp_path / "work")
    return tmp_path / "work"


def review(work, days):
    return workbook.review(work, COURSE, work.parent / "chapters", START + datetime.timedelta(days))


def answer(path, days, **outcomes):
    """Save a notebook on that day, with what `check` says of some questions: _3a="passed"."""
    notebook = read(path)
    for name, outcome in outcomes.items():
        id = f"{name[1]}.{name[2:]}"
        _, check = cells(notebook, id)
        check.outputs = [output(id, outcome)]
    nbformat.write(notebook, path)
    noon = datetime.datetime.combine(START + datetime.timedelta(days), datetime.time(12)).timestamp()
    os.utime(path, (noon, noon))


def asked(work):
    """The questions of the review, in its order."""
    notebook = read(work / "review.ipynb")
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    return list(dict.fromkeys(cell.metadata.exercise for cell in notebook.cells if "exercise" in cell.metadata))


def test_nothing_is_asked_of_a_chapter_that_is_not_begun(work):
    assert review(work, 0).startswith("Nothing is due: questions come from chapters that you have begun")
    assert not (work / "review.ipynb").exists()


def test_what_was_passed_over_in_a_chapter_that_is_begun_is_due(work):
    answer(work / f"{NAME}.ipynb", 0, _31="failed")
    assert review(work, 0) == "3 questions due, in work/review.ipynb: 3.a, 3.b, 3.c."
    assert asked(work) == IDS


def test_right_answers_come_back_after_1_and_7_and_30_days_and_then_no_more(work):
    answer(work / f"{NAME}.ipynb", 0, _3a="passed", _3b="passed", _3c="passed")
    asked_on, day = [], 0
    while day < 100:
        if review(work, day).startswith("3 questions"):
            assert asked(work) == IDS
            asked_on.append(day)
            answer(work / "review.ipynb", day, _3a="passed", _3b="passed", _3c="passed")
        day += 1
    assert asked_on == [1, 1 + 7, 1 + 7 + 30]
    assert review(work, 1000).startswith("Nothing is due")


def test_a_wrong_answer_comes_back_after_a_day_and_begins_anew(work):
    answer(work / f"{NAME}.ipynb", 0, _3a="passed", _3b="failed", _3c="passed")
    assert review(work, 0) == "Nothing is due before 2026-11-30."
    assert review(work, 1).startswith("3 questions")
    answer(work / "review.ipynb", 1, _3a="failed", _3b="passed", _3c="not as asked")
    assert review(work, 2) == "2 questions due, in work/review.ipynb: 3.a, 3.b."
    assert asked(work) == ["3.a", "3.b"]


def test_what_is_not_answered_stays_due_and_nothing_counts_twice(work):
    answer(work / f"{NAME}.ipynb", 0, _3a="passed", _3b="passed", _3c="passed")
    review(work, 1)
    answer(work / "review.ipynb", 1, _3a="passed")
    assert review(work, 1) == "2 questions due, in work/review.ipynb: 3.b, 3.c."
    assert review(work, 1) == "2 questions due, in work/review.ipynb: 3.b, 3.c."
    assert json.loads((work / "review.json").read_text())["waiting_matrix"] == ["2026-11-30", 2]


def test_what_the_learner_wrote_in_a_review_is_kept(work):
    answer(work / f"{NAME}.ipynb", 0, _3a="passed")
    review(work, 1)
    notebook = read(work / "review.ipynb")
    cells(notebook, "3.b")[0].source += "  # my own"
    nbformat.write(notebook, work / "review.ipynb")
    review(work, 1)
    (kept,) = (work / "backups").iterdir()
    assert "# my own" in kept.read_text(encoding="utf-8")
    assert "# my own" not in (work / "review.ipynb").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "[]", '{"waiting_matrix": 1}', '{"waiting_matrix": ["soon", 1]}', "{"])
def test_a_broken_state_is_none(work, text):
    (work / "review.json").write_text(text, encoding="utf-8")
    answer(work / f"{NAME}.ipynb", 0, _3a="passed", _3b="passed", _3c="passed")
    assert review(work, 1).startswith("3 questions")


def test_the_questions_need_no_more_than_their_own_setup_cell(work):
    answer(work / f"{NAME}.ipynb", 0, _3a="passed")
    answer(work / "02_kernel_attention.ipynb", 0, _21="passed")
    review(work, 1)
    namespace = {}
    for cell in read(work / "review.ipynb").cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
    assert asked(work) == ["2.a", "2.b", "2.c", *IDS]
