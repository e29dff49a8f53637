"""Two versions of a course: the second gives the numbers of the first to other exercises, and nothing is mixed up."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import learner
import nbformat
import pytest
from learner import cells as own
from learner import sync

from smalearn.course import exercises, workbook
from smalearn.course.exercises.report import MIME
from smalearn.course.workbook import names
from smalearn.course.workbook.notebook import blank, chapters
from smalearn.course.workbook.notebook import exercises as in_notebook
from smalearn.course.workbook.notebook import read as read_notebook

FIRST = {  # chapter -> number -> title and function
    "06_duality": {
        "6.1": ("The mask", "mask"),
        "6.2": ("States of chunks", "chunk_states"),
        "6.3": ("Hand over", "hand_over"),
        "6.7": ("One token more", "step"),
    },
    "07_scoring": {
        "7.1": ("Level by level", "levels_product"),
        "7.4": ("The cheapest train", "cheapest_train"),
        "7.9": ("No look ahead", "causal_weights"),
    },
}
SECOND = {
    "06_duality": {
        "6.1": ("The mask", "mask"),
        "6.2": ("Inserted", "inserted"),
        "6.3": ("States of chunks", "chunk_states"),
        "6.4": ("Handed on, safely", "hand_over"),  # it has another title, too
    },
    "07_layer": {"7.1": ("One token more", "step"), "7.2": ("A gate", "gate")},
    "10_scoring": {"10.1": ("Level by level", "levels_product")},
    "appendix/A_atlas": {"A.1": ("The cheapest train", "cheapest_train")},
}
COURSE = {
    number: SimpleNamespace(title=title, minutes=5, solution=SimpleNamespace(__name__=name))
    for chapter in SECOND.values()
    for number, (title, name) in chapter.items()
}
NUMBERS = names.registered(COURSE)


def code(number, source):
    return nbformat.v4.new_code_cell(source, metadata={"exercise": number})


def exercise(number, name):
    return [
        code(number, f"def {name}(x):\n    raise NotImplementedError"),
        code(number, f'{name} = check("{number}", {name})\n# hint("{number}")'),
    ]


def publish(folder, version):
    """The chapters of a version: for each exercise its title, its stub, its check."""
    shutil.rmtree(folder, ignore_errors=True)
    for chapter, inside in version.items():
        path = folder / f"{chapter}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = [nbformat.v4.new_markdown_cell(f"# {path.stem.partition('_')[0]} · {path.stem}")]
        for number, (title, name) in inside.items():
            cells.append(nbformat.v4.new_markdown_cell(f"Now you.\n\n**Exercise {number} · {title}** (●○○ · 5 min)"))
            cells += exercise(number, name)
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def course(tmp_path):
    """A learner of the first version, on the day on which the second is published."""
    publish(tmp_path / "chapters", FIRST)
    assert workbook.sync(tmp_path / "chapters", tmp_path / "work") == []
    publish(tmp_path / "chapters", SECOND)
    return tmp_path


def read(course, name):
    return learner.read(course / f"work/{name}.ipynb")


def edit(course, name, change):
    learner.edit(course / f"work/{name}.ipynb", change)


def stub(course, name, number):
    return own(read(course, name), number)[0].source


def solve(course, name, number, text=None, outcome="passed"):
    """Write an answer to a copy; `text` is what `check` said about it. Returns the answer."""
    function = own(read(course, name), number)[1].source.partition(" ")[0]
    source = f"def {function}(x):\n    return x  # {number}"

    def change(notebook):
        stub, check = own(notebook, number)
        stub.source = source
        if text:
            record = {"exercise": number, "outcome": outcome, "seed": 0, "cases": 4, "passed": 4}
            check.outputs = [nbformat.v4.new_output("display_data", {"text/plain": text, MIME: record})]

    edit(course, name, change)
    return source


def states(course):
    rows = workbook.progress(course / "work", COURSE, course / "chapters")
    return {id: state for row in rows for id, state in row.states.items() if state != "open"}


def test_every_exercise_of_the_course_has_a_name_of_its_own_which_its_chapter_gives_to_check():
    registry = exercises.registry()
    published = names.published(map(read_notebook, chapters(Path(__file__).parents[2] / "chapters")))
    assert published == names.registered(registry)
    assert len(published) == len(registry)


# Answers


def test_an_exercise_put_before_others_takes_no_answer_of_theirs(course):
    answers = {number: solve(course, "06_duality", number) for number in ("6.1", "6.2", "6.3")}
    assert sync(course)[:2] == [
        "There is a newer 06_duality.ipynb: it is beside yours, as work/06_duality.new.ipynb.",
        "  Your answers are in it: 6.1, 6.3, 6.4.",
    ]
    for new, old in {"6.1": "6.1", "6.3": "6.2", "6.4": "6.3"}.items():
        assert stub(course, "06_duality.new", new) == answers[old]
        assert stub(course, "06_duality", old) == answers[old]
    assert stub(course, "06_duality.new", "6.2") == exercise("6.2", "inserted")[0].source
    assert states(course) == dict.fromkeys(("6.1", "6.3", "6.4"), "started")


def test_answers_go_to_the_chapters_in_which_their_exercises_are_now(course):
    moved = {"7.1": ("07_layer", "06_duality", "6.7"), "10.1": ("10_scoring", "07_scoring", "7.1")}
    moved["A.1"] = ("A_atlas", "07_scoring", "7.4")
    answers = {new: solve(course, *old) for new, (_, *old) in moved.items()}
    gone = solve(course, "07_scoring", "7.9")
    assert sync(course) == [
        "There is a newer 06_duality.ipynb: it is beside yours, as work/06_duality.new.ipynb.",
        *("07_layer.ipynb is new.", "  Your answers are in it: 7.1."),
        *("10_scoring.ipynb is new.", "  Your answers are in it: 10.1."),
        *("A_atlas.ipynb is new.", "  Your answers are in it: A.1."),
    ]
    for new, (name, *_) in moved.items():
        assert stub(course, name, new) == answers[new]
    assert stub(course, "07_scoring", "7.9") == gone
    assert "NotImplementedError" in stub(course, "07_layer", "7.2")
    assert sync(course) == []


def test_an_answer_that_calls_check_itself_calls_it_by_the_new_number(course):
    def merge(notebook):
        first, check = own(notebook, "7.1")
        first.source = f'def levels_product(x):\n    return x\n\n\n{check.source}\n# case("7.1"), check("7.4", f)'
        notebook.cells.remove(check)

    edit(course, "07_scoring", merge)
    sync(course)
    last = ['levels_product = check("10.1", levels_product)', '# hint("10.1")', '# case("10.1"), check("7.4", f)']
    assert stub(course, "10_scoring", "10.1").splitlines()[-3:] == last


# Which exercise it is


def found(*cells):
    """Sources of the cells under each number of today."""
    notebook = names.renumbered({"cells": list(cells)}, NUMBERS)
    return {number: [cell["source"] for cell in group] for number, group in in_notebook(notebook).items()}


@pytest.mark.parametrize(
    ("cells", "number"),
    [
        (["def chunk_states(x): ...", 'chunk_states = check("6.2", chunk_states)'], "6.3"),
        (["def step(x): ...\ngate = 1", 'chunk_states = check("6.2", step)'], "6.3"),
        (["def mine(x): ...", 'result = check("6.2", chunk_states)'], "6.3"),
        (["def mine(x): ...", 'check("6.2", chunk_states)'], "6.3"),
        (["gate = 1", "def chunk_states(x): ..."], "6.3"),
        (["gate = 1\nchunk_states = torch.add"], "6.3"),
        (["gate = 1\ndef mine(x): ...", 'check("6.2", mine)'], "6.2"),
        (["levels = ...", "print(gate == 1)"], "6.2"),
    ],
)
def test_an_exercise_is_what_is_checked_or_else_the_last_that_is_defined_or_else_its_number(cells, number):
    assert list(found(*(code("6.2", source) for source in cells))) == [number]


@pytest.mark.parametrize(("name", "number"), [("mask", "6.2"), ("chunk_states", "6.2 ?")], ids=["stayed", "moved"])
def test_a_number_says_nothing_where_others_in_the_notebook_have_moved(name, number):
    beside = exercise("6.1" if name == "mask" else "6.9", name)
    assert next(iter(found(code("6.2", "levels = ..."), *beside))) == number


def test_exercises_of_two_versions_under_one_number_are_two():
    pasted = [code("6.2", "past = 1"), *exercise("6.2", "chunk_states"), code("6.2", "my_notes = 1")]
    both = found(*exercise("6.2", "inserted"), *pasted)
    assert [len(both[number]) for number in ("6.2", "6.3")] == [2, 4]
    assert both["6.3"][0] == "past = 1"


# Progress


def test_what_passed_counts_for_the_exercise_under_its_number_of_today(course):
    solve(course, "07_scoring", "7.1", "✓ 7.1 Level by level: 4 cases passed (seed 0)")
    solve(course, "06_duality", "6.7", "✓ 6.7 One token more: 4 cases passed (seed 0)")
    solve(course, "06_duality", "6.3", "✓ 6.3 Hand over: 4 cases passed (seed 0)")
    solve(course, "07_scoring", "7.9", "✓ 7.9 No look ahead: 4 cases passed (seed 0)")
    expected = {"10.1": "passed", "7.1": "passed", "6.4": "passed"}
    assert states(course) == expected
    sync(course)
    assert states(course) == expected


@pytest.mark.parametrize("outcome", ["passed", "failed", "error"])
def test_an_old_check_that_is_run_again_counts_for_no_other_exercise(course, outcome):
    solve(course, "07_scoring", "7.1", f"{'✓' if outcome == 'passed' else '✗'} 7.1 One token more: 0 cases", outcome)
    assert states(course) == {"10.1": "started"}
    sync(course)
    assert states(course) == {"10.1": "started"}


def test_a_check_in_the_new_version_counts(course):
    sync(course)
    solve(course, "07_layer", "7.1", "✓ 7.1 One token more: 4 cases passed (seed 0)")
    solve(course, "A_atlas", "A.1", ["✓ A.1 The cheapest train: 4 cases passed (seed 0)\n", "more"])
    solve(course, "07_layer", "7.2", "✗ 7.2 A gate: expected a tensor", "error")
    assert states(course) == {"7.1": "passed", "7.2": "started", "A.1": "passed"}


# Reset, and both folders


def test_the_appendix_lies_beside_the_chapters_and_is_reset_by_its_letter(course):
    sync(course)
    published = blank(nbformat.read(course / "chapters/appendix/A_atlas.ipynb", as_version=4))
    for arguments in (("A",), ("a", "A.1"), ("A_atlas.ipynb", "A.1")):
        solve(course, "A_atlas", "A.1")
        assert read(course, "A_atlas") != published
        workbook.reset(course / "work", course / "chapters", *arguments)
        assert read(course, "A_atlas") == published
    with pytest.raises(ValueError, match="no chapter '9'"):
        workbook.reset(course / "work", course / "chapters", "9")


@pytest.mark.parametrize("name", ["levels_product", "causal_weights"], ids=["moved", "gone"])
def test_an_exercise_is_put_back_beside_another_that_had_its_number(course, name):
    sync(course)
    edit(course, "07_layer", lambda notebook: notebook.cells.extend(exercise("7.1", name)))
    before = [cell.source for cell in read(course, "07_layer").cells]
    solve_first = "def step(x):\n    return x"
    edit(course, "07_layer", lambda notebook: own(notebook, "7.1")[0].update(source=solve_first))
    workbook.reset(course / "work", course / "chapters", "7", "7.1")
    assert [cell.source for cell in read(course, "07_layer").cells] == before
    with pytest.raises(ValueError, match=r"no exercise '6\.7'"):
        workbook.reset(course / "work", course / "chapters", "6", "6.7")
