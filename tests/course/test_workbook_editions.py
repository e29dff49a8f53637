"""Two editions of a course: the second gives the numbers of the first to other exercises, and nothing is mixed up."""

import hashlib
import shutil
from types import SimpleNamespace

import nbformat
import pytest

from smalearn.course import workbook
from smalearn.course.exercises.report import MIME
from smalearn.course.workbook import editions
from smalearn.course.workbook.notebook import blank, exercises

FIRST = {
    "01_contraction": {"1.2": ("Hide the future", "causal_weights")},
    "06_duality": {
        "6.1": ("The mask", "mask"),
        "6.4": ("What a chunk reads", "read_chunk"),
        "6.7": ("One token more", "step"),
    },
    "07_scoring": {
        "7.1": ("Level by level", "levels_product"),
        "7.2": ("The rank of levels", "generic_rank"),
        "7.4": ("The cheapest train", "cheapest_train"),
        "7.9": ("No look ahead", "causal_weights"),
    },
    "09_kernel": {"9.4": ("What a chunk reads", "read_tile")},
}
SECOND = {
    "01_contraction": FIRST["01_contraction"],
    "06_duality": {id: FIRST["06_duality"][id] for id in ("6.1", "6.4")},
    "07_layer": {"7.1": ("One token more", "step"), "7.2": ("A gate", "gate")},
    "10_scoring": {"10.1": ("Level by level", "levels_product"), "10.2": ("The rank of levels", "generic_rank")},
    "12_kernel": {"12.4": ("What a chunk reads", "read_tile")},
    "appendix/A_atlas": {"A.1": ("The cheapest train", "cheapest_train")},
}
COURSE = {
    id: SimpleNamespace(title=title, minutes=5, solution=SimpleNamespace(__name__=name))
    for chapter in SECOND.values()
    for id, (title, name) in chapter.items()
}


def code(id, source):
    return nbformat.v4.new_code_cell(source, metadata={"exercise": id})


def publish(folder, edition):
    """The chapters of an edition: for each exercise its title, its stub, its check."""
    shutil.rmtree(folder, ignore_errors=True)
    for chapter, inside in edition.items():
        path = folder / f"{chapter}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        cells = [nbformat.v4.new_markdown_cell(f"# {path.stem.partition('_')[0]} · {path.stem}")]
        for id, (title, name) in inside.items():
            cells.append(nbformat.v4.new_markdown_cell(f"Now you.\n\n**Exercise {id} · {title}** (●○○ · 5 min)"))
            cells.append(code(id, f"def {name}(x):\n    raise NotImplementedError"))
            cells.append(code(id, f'{name} = check("{id}", {name})\n# hint("{id}")'))
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def course(tmp_path):
    """A learner of the first edition, on the day on which the second is published."""
    publish(tmp_path / "chapters", FIRST)
    assert workbook.sync(tmp_path / "chapters", tmp_path / "work") == []
    publish(tmp_path / "chapters", SECOND)
    return tmp_path


def sync(course):
    """What `sync` says; no file that was there changes."""
    before = hashes(course)
    lines = workbook.sync(course / "chapters", course / "work")
    assert before.items() <= hashes(course).items()
    for path in (course / "work").glob("*.ipynb"):
        nbformat.validate(read(course, path.stem))
    return lines


def hashes(course):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in course.rglob("*") if path.is_file()}


def read(course, name):
    return nbformat.read(course / f"work/{name}.ipynb", as_version=4)


def edit(course, name, change):
    notebook = read(course, name)
    change(notebook)
    nbformat.write(notebook, course / f"work/{name}.ipynb")


def own(notebook, id):
    return [cell for cell in notebook.cells if cell.metadata.get("exercise") == id]


def solve(course, name, id, text=None, outcome="passed"):
    """Write an answer to a copy; `text` is what `check` said about it. Returns the answer."""
    function = own(read(course, name), id)[1].source.partition(" ")[0]
    source = f"def {function}(x):\n    return x  # {id}"

    def change(notebook):
        stub, check = own(notebook, id)
        stub.source = source
        if text:
            record = {"exercise": id, "outcome": outcome, "seed": 0, "cases": 4, "passed": 4}
            check.outputs = [nbformat.v4.new_output("display_data", {"text/plain": text, MIME: record})]

    edit(course, name, change)
    return source


def untitled(*ids):
    """Without the text above the stubs of these exercises."""

    def change(notebook):
        gone = [f"**Exercise {id} ·" for id in ids]
        notebook.cells = [cell for cell in notebook.cells if not any(text in cell.source for text in gone)]

    return change


def states(course):
    rows = workbook.progress(course / "work", COURSE, course / "chapters")
    return {id: state for row in rows for id, state in row.states.items() if state != "open"}


# What moves


def test_answers_go_where_their_exercises_are_now(course):
    answers = {id: solve(course, "07_scoring", id) for id in ("7.1", "7.4", "7.9")}
    answers |= {id: solve(course, "06_duality", id) for id in ("6.1", "6.7")}
    assert sync(course) == [
        "There is a newer 06_duality.ipynb: it is beside yours, as work/06_duality.new.ipynb.",
        "  Your answers are in it: 6.1.",
        "07_layer.ipynb is new.",
        "  Your answers are in it: 7.1.",
        "10_scoring.ipynb is new.",
        "  Your answers are in it: 10.1.",
        "A_atlas.ipynb is new.",
        "  Your answers are in it: A.1.",
    ]
    places = {"6.1": "06_duality.new", "7.1": "07_layer", "10.1": "10_scoring", "A.1": "A_atlas"}
    for (new, name), old in zip(places.items(), ("6.1", "6.7", "7.1", "7.4"), strict=True):
        stub, check = own(read(course, name), new)
        assert stub.source == answers[old]
        assert f'check("{new}", ' in check.source
    assert own(read(course, "07_scoring"), "7.9")[0].source == answers["7.9"]  # in no chapter any more
    assert "NotImplementedError" in own(read(course, "07_layer"), "7.2")[0].source
    assert sync(course) == []


def test_copies_from_elsewhere_give_their_answers_too(course):
    answer = solve(course, "07_scoring", "7.1")
    (course / "work/07_scoring.ipynb").rename(course / "work/copy of 07.ipynb")
    shutil.rmtree(course / "work/.originals")
    sync(course)
    assert own(read(course, "10_scoring"), "10.1")[0].source == answer


def test_an_answer_that_calls_check_itself_calls_it_by_the_new_number(course):
    def merge(notebook):
        stub, check = own(notebook, "7.1")
        stub.source = f"def levels_product(x):\n    return x\n\n\n{check.source}"
        notebook.cells.remove(check)

    edit(course, "07_scoring", merge)
    sync(course)
    stub = own(read(course, "10_scoring"), "10.1")[0].source
    assert stub.endswith('levels_product = check("10.1", levels_product)\n# hint("10.1")')


# Which exercise it is


def test_where_the_title_is_deleted_the_function_says_it(course):
    answer = solve(course, "07_scoring", "7.1")
    edit(course, "07_scoring", untitled("7.1"))
    sync(course)
    assert own(read(course, "10_scoring"), "10.1")[0].source == answer
    assert own(read(course, "07_layer"), "7.1")[0].source != answer
    assert states(course) == {"10.1": "started"}


def test_a_function_that_another_exercise_has_too_does_not_make_it_that_one(course):
    solve(course, "07_scoring", "7.9")
    edit(course, "07_scoring", untitled("7.9"))
    assert not any("1.2" in line for line in sync(course))
    assert states(course) == {}


def test_of_two_exercises_with_one_function_the_number_of_that_day_says_which(course):
    first, second = ("Scores by rank", "scores"), ("Scores by level", "scores")
    publish(course / "chapters", {"08_levels": {"8.1": first}, "09_kernel": {"9.4": second}})
    workbook.sync(course / "chapters", course / "work")
    answer = solve(course, "08_levels", "8.1")
    edit(course, "08_levels", untitled("8.1"))
    publish(course / "chapters", {"09_levels": {"9.4": first}, "10_kernel": {"10.4": second}})
    sync(course)
    assert own(read(course, "09_levels"), "9.4")[0].source == answer
    assert "NotImplementedError" in own(read(course, "10_kernel"), "10.4")[0].source


def test_of_two_exercises_with_one_title_the_function_says_which(course):
    answer = solve(course, "09_kernel", "9.4", "✓ 9.4 What a chunk reads: 4 cases passed (seed 0)")
    sync(course)
    assert own(read(course, "12_kernel"), "12.4")[0].source == answer
    assert states(course) == {"12.4": "passed"}


def test_an_exercise_with_another_title_under_its_number_is_the_same(course):
    answer = solve(course, "06_duality", "6.1", "✓ 6.1 The mask: 4 cases passed (seed 0)")
    new = SECOND["06_duality"] | {"6.1": ("The mask, safely", "mask")}
    publish(course / "chapters", SECOND | {"06_duality": new})
    sync(course)
    assert own(read(course, "06_duality.new"), "6.1")[0].source == answer
    renamed = COURSE | {"6.1": SimpleNamespace(**vars(COURSE["6.1"]) | {"title": "The mask, safely"})}
    rows = workbook.progress(course / "work", renamed, course / "chapters")
    assert [row.states["6.1"] for row in rows if "6.1" in row.states] == ["passed"]


NOTHING = [nbformat.v4.new_markdown_cell("My notes"), code("7.1", "levels = ...")]


@pytest.mark.parametrize(
    ("beside", "number"),
    [([], "7.1"), ([code("7.4", "def cheapest_train(x): ...")], "7.1 ?"), ([code("7.2", "gate = 1")], "7.1")],
    ids=["alone", "with one that moved", "with one that stayed"],
)
def test_where_nothing_says_it_the_number_does_unless_others_moved(beside, number):
    course = editions.registered(COURSE)
    notebook = editions.renumbered({"cells": [*NOTHING, *beside]}, course)
    assert next(iter(exercises(notebook))) == number


def test_titles_and_functions_that_disagree_say_nothing():
    title = nbformat.v4.new_markdown_cell("**Exercise 7.1 · Level by level**")
    notebook = {"cells": [title, code("7.1", "def step(x): ...")]}
    assert list(exercises(editions.renumbered(notebook, editions.registered(COURSE)))) == ["7.1 Level by level"]


def test_exercises_of_two_editions_in_one_file_are_two():
    cells = []
    for title, name in [("Level by level", "levels_product"), ("One token more", "step")]:
        cells += [nbformat.v4.new_markdown_cell(f"**Exercise 7.1 · {title}**"), code("7.1", f"{name} = 1")]
    notebook = editions.renumbered({"cells": cells}, editions.registered(COURSE))
    assert {id: own[0]["source"] for id, own in exercises(notebook).items()} == {
        "10.1": "levels_product = 1",
        "7.1": "step = 1",
    }


# Progress


def test_what_passed_counts_for_the_exercise_of_its_title(course):
    solve(course, "07_scoring", "7.1", "✓ 7.1 Level by level: 4 cases passed (seed 0)")
    solve(course, "06_duality", "6.7", "✓ 6.7 One token more: 4 cases passed (seed 0)")
    solve(course, "07_scoring", "7.9", "✓ 7.9 No look ahead: 4 cases passed (seed 0)")
    expected = {"10.1": "passed", "7.1": "passed"}
    assert states(course) == expected
    sync(course)
    assert states(course) == expected


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("outcome", ["passed", "failed", "error"])
def test_an_old_check_that_is_run_again_counts_for_no_other_exercise(course, outcome, titled):
    text = {"passed": "✓ 7.1 One token more: 4 cases passed (seed 0)"}.get(
        outcome, "✗ 7.1 One token more: 0 of 4 cases"
    )
    solve(course, "07_scoring", "7.1", text, outcome)
    if not titled:
        edit(course, "07_scoring", untitled("7.1"))
    assert states(course) == {"10.1": "started"}
    sync(course)
    assert states(course) == {"10.1": "started"}


def test_a_check_of_the_new_edition_counts(course):
    sync(course)
    solve(course, "07_layer", "7.1", "✓ 7.1 One token more: 4 cases passed (seed 0)")
    solve(course, "A_atlas", "A.1", ["✓ A.1 The cheapest train: 4 cases passed (seed 0)\n", "more"])
    solve(course, "07_layer", "7.2", "✗ 7.2 A gate: expected a tensor", "error")
    assert states(course) == {"7.1": "passed", "7.2": "started", "A.1": "passed"}


def test_chapters_have_the_titles_of_today(course):
    titles = ["01 01_contraction", "06 06_duality", "07 07_layer", "10 10_scoring", "12 12_kernel", "A A_atlas"]
    assert [row.title for row in workbook.progress(course / "work", COURSE, course / "chapters")] == titles
    sync(course)
    assert [row.title for row in workbook.progress(course / "work", COURSE, course / "chapters")] == titles


# Both folders


def test_the_appendix_lies_beside_the_chapters_and_is_reset_by_its_letter(course):
    sync(course)
    published = blank(nbformat.read(course / "chapters/appendix/A_atlas.ipynb", as_version=4))
    mine = course / "work/A_atlas.ipynb"
    for arguments in (("A",), ("a", "A.1"), ("A_atlas.ipynb", "A.1")):
        solve(course, "A_atlas", "A.1")
        assert nbformat.read(mine, as_version=4) != published
        workbook.reset(course / "work", course / "chapters", *arguments)
        assert nbformat.read(mine, as_version=4) == published
    with pytest.raises(ValueError, match=r"reset: no chapter '9'; there are 01_contraction, .*, 12_kernel, A_atlas$"):
        workbook.reset(course / "work", course / "chapters", "9")


def test_an_exercise_is_put_back_in_a_copy_of_an_earlier_edition(course):
    def another(notebook):
        notebook.cells += [nbformat.v4.new_markdown_cell("**Exercise 7.1 · Level by level**"), code("7.1", "mine = 1")]

    sync(course)
    edit(course, "07_layer", another)
    solve_first = own(read(course, "07_layer"), "7.1")
    workbook.reset(course / "work", course / "chapters", "7", "7.1")
    assert [cell.source for cell in own(read(course, "07_layer"), "7.1")] == [cell.source for cell in solve_first]
    with pytest.raises(ValueError, match=r"reset: no exercise '6\.7' in 06_duality\.ipynb; it has 6\.1, 6\.4"):
        workbook.reset(course / "work", course / "chapters", "6", "6.7")


def test_a_broken_chapter_of_the_appendix_is_left_out(course):
    (course / "chapters/appendix/A_atlas.ipynb").write_bytes(b"")
    assert "appendix/A_atlas.ipynb cannot be read as a notebook: it is left out." in sync(course)
