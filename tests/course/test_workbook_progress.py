"""The learner's copies: counted, and put back after a backup; never overwritten."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from learner import (
    COURSE,
    HALF,
    IDS,
    MIME,
    NAME,
    RIGHT,
    A,
    B,
    C,
    answer,
    cells,
    edit,
    hashes,
    is_copy,
    publish,
    read,
    remove,
    states,
    sync,
    without_outputs,
    written,
)
from nbclient import NotebookClient

from smalearn.course import workbook
from smalearn.course.workbook import copies

# Progress


@pytest.mark.parametrize("copied", [True, False])
def test_progress_of_a_fresh_course(course, copied):
    if copied:
        sync(course)
    rows = workbook.progress(course / "work", COURSE, course / "chapters")
    titles = ["00 Start here: a state, or all the keys?", "01 Attention is one contraction", "02"]
    assert [row.title for row in rows[:3]] == titles
    assert sorted(id for row in rows for id in row.states) == sorted(COURSE)
    assert {state for row in rows for state in row.states.values()} == {"open"}
    assert list(rows[1].states) == IDS, "in the order of the chapter"
    assert rows[1].upcoming == f"{A} {COURSE[A].title} ({COURSE[A].minutes} min)"


@pytest.mark.parametrize("outcome", ["passed", "not as asked", "failed", "error", "timeout"])
def test_progress_reads_what_check_left(course, begun, outcome):
    answer(course, (B, written(B, "...")), outcome=outcome)
    before = hashes(course)
    assert states(course)[B] == (outcome if outcome in ("passed", "not as asked") else "started")
    assert set(states(course).values()) == {"open", states(course)[B]}
    assert hashes(course) == before


def test_what_passed_in_any_file_is_passed(course, begun):
    answer(course, (B, written(B, "...")), outcome="passed")
    publish(course)
    sync(course)
    assert states(course)[B] == "passed"
    answer(course, (B, written(B, "...")), name=f"{NAME}.new", outcome="failed")
    assert states(course)[B] == "passed"
    (course / f"work/{NAME}.ipynb").unlink()
    assert states(course)[B] == "started"


@pytest.mark.parametrize(
    "data", [[], {MIME: []}, {MIME: {"exercise": [B], "outcome": "passed"}}, {MIME: {"exercise": B, "outcome": []}}]
)
def test_odd_outputs_are_no_outcomes(course, begun, data):
    path = course / f"work/{NAME}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"][1]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert set(states(course).values()) == {"open"}


@pytest.mark.full
def test_check_writes_what_progress_reads(course):
    notebook = nbformat.v4.new_notebook()
    for source in [
        "from smalearn.course.exercises import check, registry",
        'check("0.1", registry()["0.1"].solution);',
        f'check("{B}", lambda *arguments: None);',
    ]:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
    NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    (course / "work").mkdir()
    nbformat.write(notebook, course / "work/mine.ipynb")
    assert states(course, 0) == {"0.1": "passed", "0.2": "open"}
    assert states(course)[B] == "started"


def test_the_table_is_one_line_for_each_chapter(course, begun):
    """What was not found as asked counts half."""
    answer(course, ("0.1", "def running_mean(V): ..."), name="00_start_here", outcome="passed")
    answer(course, (A, RIGHT), outcome="not as asked")
    answer(course, (B, written(B, "...")))
    course_of_two = {id: COURSE[id] for id in COURSE if id[:2] in ("0.", "1.")}
    first, second = workbook.table(workbook.progress(course / "work", course_of_two, course / "chapters")).splitlines()
    assert re.fullmatch(r"00 Start here: a state, or all the keys\? +●○ +1 of 2 +next: 0\.2 .*", first)
    assert re.match(r"01 Attention is one contraction +◐◔○", second)
    assert second.endswith(f"○  0.5 of {len(IDS)}  next: {B} {COURSE[B].title} ({COURSE[B].minutes} min)")
    assert first.index("1 of 2") == second.index("0.5 of")
    assert workbook.table([]) == ""


def test_an_exercise_that_no_copy_has_comes_last(course, begun):
    quiz = SimpleNamespace(title="Added later", minutes=3, solution=read)
    row = workbook.progress(course / "work", {"1.0": quiz, C: COURSE[C], A: COURSE[A]}, course / "chapters")[0]
    assert list(row.states) == [A, C, "1.0"]


# Reset


@pytest.fixture
def noon(monkeypatch):
    """It is noon, and stays so."""
    monkeypatch.setattr(copies.time, "strftime", lambda form: "2026-11-20-1200")


def reset(course, *arguments):
    return workbook.reset(course / "work", course / "chapters", *arguments)


@pytest.mark.parametrize("chapter", ["1", "01", NAME, f"{NAME}.ipynb", f"work/{NAME}.ipynb"])
def test_a_chapter_is_put_back_after_a_backup(course, begun, noon, chapter):
    answer(course, (A, RIGHT))
    mine = course / f"work/{NAME}.ipynb"
    before = mine.read_bytes()
    assert reset(course, chapter).splitlines() == [
        f"work/{NAME}.ipynb is as published again. Yours is kept as work/backups/{NAME}.2026-11-20-1200.ipynb.",
        "If it is open in JupyterLab, reload it there: File → Reload Notebook from Disk.",
    ]
    assert is_copy(mine, course / "chapters" / mine.name)
    assert (course / f"work/backups/{NAME}.2026-11-20-1200.ipynb").read_bytes() == before
    assert set(states(course).values()) == {"open"}, "a backup counts for nothing"


def test_no_backup_is_overwritten(course, begun, noon):
    backups = course / "work/backups"
    for number, name in enumerate(["", ".2", ".3"]):
        answer(course, (A, f"answer {number}"))
        before = (course / f"work/{NAME}.ipynb").read_bytes()
        reset(course, "1")
        assert (backups / f"{NAME}.2026-11-20-1200{name}.ipynb").read_bytes() == before
    assert len(list(backups.iterdir())) == 3


def test_one_exercise_is_put_back_and_nothing_else(course, begun, noon):
    answer(course, (A, RIGHT), (C, HALF), outcome="failed")
    mine = course / f"work/{NAME}.ipynb"
    edit(mine, lambda notebook: notebook.cells.append(nbformat.v4.new_markdown_cell("My notes ←")))
    expected, before = read(mine), mine.read_bytes()
    assert reset(course, "1", A).startswith(f"Exercise {A} in work/{NAME}.ipynb is as published again. Yours is")
    for cell, published in zip(
        cells(expected, A), cells(without_outputs(course / f"chapters/{NAME}.ipynb"), A), strict=True
    ):
        cell.update(published)
    assert mine.read_bytes() == (nbformat.writes(expected) + "\n").encode()
    assert (course / f"work/backups/{NAME}.2026-11-20-1200.ipynb").read_bytes() == before


@pytest.mark.parametrize("torn", [True, False])
def test_an_exercise_in_pieces_comes_back_in_its_place_and_a_deleted_one_at_the_end(course, begun, torn):
    mine = course / f"work/{NAME}.ipynb"
    before = [cell.id for cell in read(mine).cells]
    own = [cell.id for cell in cells(read(mine), A)]

    def tear(notebook):
        stub, check = cells(notebook, A)
        notebook.cells.remove(check)
        notebook.cells.insert(notebook.cells.index(stub) + 2, nbformat.from_dict({**stub, "id": "more"}))

    edit(mine, tear if torn else remove(A))
    reset(course, "1", A)
    after = before if torn else [id for id in before if id not in own] + own
    assert [cell.id for cell in read(mine).cells] == after
    assert cells(read(mine), A) == cells(without_outputs(course / f"chapters/{NAME}.ipynb"), A)


def test_a_newer_chapter_beside_the_learners_can_be_reset_by_its_name(course, begun):
    publish(course)
    sync(course)
    answer(course, (A, RIGHT))
    answer(course, (A, RIGHT), name=f"{NAME}.new")
    reset(course, f"{NAME}.new.ipynb")
    assert cells(read(course / f"work/{NAME}.ipynb"), A)[0].source == RIGHT
    assert is_copy(course / f"work/{NAME}.new.ipynb", course / f"chapters/{NAME}.ipynb")


def test_reset_takes_the_newest_version_and_sync_knows(course, begun):
    publish(course)
    reset(course, "1")
    assert is_copy(course / f"work/{NAME}.ipynb", course / f"chapters/{NAME}.ipynb")
    assert sync(course) == []


@pytest.mark.parametrize("exercise", [None, A])
def test_reset_of_a_chapter_that_is_missing_makes_it(course, exercise):
    text = reset(course, "1", exercise)
    assert "backups" not in text
    assert is_copy(course / f"work/{NAME}.ipynb", course / f"chapters/{NAME}.ipynb")
    assert not (course / "work/backups").exists()
    assert sync(course) == []


def test_reset_of_a_broken_copy(course, begun, noon):
    mine = course / f"work/{NAME}.ipynb"
    mine.write_bytes(b"<<<<<<< HEAD")
    with pytest.raises(ValueError, match=rf"reset: {NAME}\.ipynb cannot be read as a notebook; reset the whole"):
        reset(course, "1", A)
    assert mine.read_bytes() == b"<<<<<<< HEAD"
    reset(course, "1")
    assert (course / f"work/backups/{NAME}.2026-11-20-1200.ipynb").read_bytes() == b"<<<<<<< HEAD"
    assert is_copy(mine, course / "chapters" / mine.name)


UNKNOWN = rf"no chapter '.*'; there are 00_start_here, {NAME}$"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(([name], UNKNOWN) for name in ("7", "", "x", "²", "..", "01_attention", A, f"{NAME}.new.ipynb")),
        (["1", "0.1"], rf"no exercise '0\.1' in 01_.*; it has {', '.join(IDS)}$"),
        (["0", "0.1"], r"no exercise '0\.1' in 00_start_here\.ipynb; it has none"),
        (["2"], r"chapters/02_broken\.ipynb cannot be read as a notebook"),
    ],
)
def test_reset_of_what_there_is_not_lists_what_there_is_and_changes_nothing(course, begun, arguments, said):
    for id in ("0.1", "0.2"):
        edit(course / "chapters/00_start_here.ipynb", remove(id))
    if arguments == ["2"]:
        (course / "chapters/02_broken.ipynb").write_bytes(b"")
        (course / "work/02_broken.ipynb").write_bytes(b"mine")
    before = hashes(course)
    with pytest.raises(ValueError, match=f"^reset: {said}"):
        reset(course, *arguments)
    assert hashes(course) == before


def test_without_room_for_a_backup_nothing_changes(course, begun, monkeypatch):
    answer(course, (A, RIGHT))
    before = (course / f"work/{NAME}.ipynb").read_bytes()

    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        reset(course, "1")
    assert (course / f"work/{NAME}.ipynb").read_bytes() == before
