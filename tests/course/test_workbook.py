"""The learner's copies: made, renewed with the answers carried over, counted, put back; and never overwritten."""

import hashlib
import itertools
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from smalearn.course import exercises, workbook
from smalearn.course.exercises.report import MIME
from smalearn.course.workbook import copies

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


@pytest.fixture
def course(tmp_path):
    """The course's first two chapters, and no copies yet, in a folder with a space and an umlaut."""
    folder = tmp_path / "mein kürs"
    (folder / "chapters").mkdir(parents=True)
    for name in ("00_start_here", NAME):
        shutil.copy(CHAPTERS / f"{name}.ipynb", folder / "chapters")
    return folder


def sync(course):
    """What `sync` says; it changes no file that was there before, and leaves no unfinished one."""
    before = hashes(course)
    lines = workbook.sync(course / "chapters", course / "work")
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


# Copying


def test_missing_chapters_are_copied_without_outputs(course):
    assert any(cell.get("outputs") for cell in read(course / f"chapters/{NAME}.ipynb").cells)
    odd = course / f"chapters/{NAME}.ipynb"
    odd.write_text(json.dumps(read(odd), indent=4) + "\n\n", encoding="utf-8", newline="\r\n")
    assert sync(course) == []
    assert as_published(course)
    assert sync(course) == []
    assert names(course) == [f"{NAME}.ipynb"]


def test_a_copy_knows_the_kernel_that_will_open_it(course):
    about = {"language_info": {"name": "python", "version": "3.99"}}
    workbook.sync(course / "chapters", course / "work", about)
    copy, chapter = (workbook.notebook.read(course / folder / f"{NAME}.ipynb") for folder in ("work", "chapters"))
    assert copy["metadata"] == chapter["metadata"] | about
    assert workbook.sync(course / "chapters", course / "work", {"language_info": {"name": "other"}}) == []


def test_a_learners_own_changes_make_no_chapter_newer(course):
    sync(course)
    answer(course, (A, RIGHT))
    assert sync(course) == []


def test_other_outputs_and_line_endings_make_no_chapter_newer(course):
    sync(course)

    def run_again(notebook):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], 7

    edit(course / f"chapters/{NAME}.ipynb", run_again)
    published = course / f"chapters/{NAME}.ipynb"
    published.write_bytes(published.read_bytes().replace(b"\n", b"\r\n"))
    assert sync(course) == []
    assert names(course) == [f"{NAME}.ipynb"]


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "renamed"])
def test_a_chapter_that_was_deleted_or_renamed_comes_back_as_published(course, deleted):
    sync(course)
    answer(course, (A, RIGHT))
    mine = course / f"work/{NAME}.ipynb"
    mine.unlink() if deleted else mine.rename(course / "work/mine.ipynb")
    publish(course)
    assert sync(course) == []
    assert is_copy(mine, course / "chapters" / mine.name)
    assert names(course) == [mine.name] if deleted else [mine.name, "mine.ipynb"]


def test_a_file_that_was_there_before_counts_as_the_chapter_of_that_day(course):
    sync(course)
    shutil.rmtree(course / "work/.originals")
    answer(course, (A, RIGHT))
    assert sync(course) == []
    publish(course)
    assert len(sync(course)) == 2
    assert cells(read(course / f"work/{NAME}.new.ipynb"), A)[0].source == RIGHT


def test_an_interrupted_copy_leaves_no_half_a_chapter(course, monkeypatch):
    def fill_the_disk(path, data):
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fill_the_disk)
        with pytest.raises(OSError, match="No space left"):
            workbook.sync(course / "chapters", course / "work")
    assert not list((course / "work").glob("*.ipynb"))
    assert workbook.sync(course / "chapters", course / "work") == []
    assert sync(course) == []
    assert as_published(course)


def test_what_a_crash_left_is_cleared_away(course):
    (course / "work/.originals").mkdir(parents=True)
    for name in (".00_start_here.ipynb.part", ".originals/.x.ipynb.part", ".lock"):
        (course / "work" / name).touch()
    os.utime(course / "work/.lock", (1, 1))
    workbook.sync(course / "chapters", course / "work")
    assert as_published(course)
    assert not [*course.rglob("*.part"), *course.rglob(".lock")]


def test_who_starts_at_the_same_time_waits(course):
    """Three at once: nobody fails, and a newer chapter is there once."""
    sync(course)
    answer(course, (A, RIGHT))
    publish(course)
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: workbook.sync(course / "chapters", course / "work"), range(3)))
    assert sorted(map(len, said)) == [0, 0, 2]
    assert names(course) == [f"{NAME}.ipynb", f"{NAME}.new.ipynb"]


def test_a_link_stays_a_link(course, tmp_path):
    sync(course)
    mine, elsewhere = course / f"work/{NAME}.ipynb", tmp_path / "kept.ipynb"
    mine.replace(elsewhere)
    mine.symlink_to(elsewhere)
    workbook.reset(course / "work", course / "chapters", "1", A)
    assert mine.is_symlink()
    assert is_copy(elsewhere, course / f"chapters/{NAME}.ipynb")


def test_a_broken_chapter_is_left_out(course):
    (course / f"chapters/{NAME}.ipynb").write_text("<<<<<<< HEAD", encoding="utf-8")
    assert sync(course) == [f"chapters/{NAME}.ipynb cannot be read as a notebook: it is left out."]
    assert sync(course) == [f"chapters/{NAME}.ipynb cannot be read as a notebook: it is left out."]
    assert names(course) == []


def test_what_a_system_hides_is_no_chapter(course):
    (course / f"chapters/._{NAME}.ipynb").write_bytes(b"\0\5\26\7")
    assert sync(course) == []
    assert names(course) == [f"{NAME}.ipynb"]


def test_the_appendix_comes_after_the_chapters(course):
    (course / "chapters/appendix").mkdir()
    (course / "chapters/appendix/._A_atlas.ipynb").write_bytes(b"\0")
    shutil.copy(course / f"chapters/{NAME}.ipynb", course / "chapters/appendix/00_atlas.ipynb")
    names = ["00_start_here.ipynb", f"{NAME}.ipynb", "appendix/00_atlas.ipynb"]
    folder = course / "chapters"
    assert [path.relative_to(folder).as_posix() for path in workbook.chapters(folder)] == names


# A newer chapter


def test_a_newer_chapter_stands_beside_the_learners_with_the_answers(course):
    sync(course)
    answer(course, (A, RIGHT), (C, HALF))
    publish(course, replace_stub(A, '"""', '"""Better: '))
    assert sync(course) == [
        f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.new.ipynb.",
        f"  Your answers are in it: {A}, {C}.",
    ]
    expected = without_outputs(course / f"chapters/{NAME}.ipynb")
    for exercise, source in [(A, RIGHT), (C, HALF)]:
        cells(expected, exercise)[0].source = source
    new = (course / f"work/{NAME}.new.ipynb").read_bytes()
    assert new == (nbformat.writes(expected) + "\n").encode()


def test_one_version_is_offered_once(course):
    sync(course)
    publish(course)
    assert sync(course) == [f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.new.ipynb."]
    assert is_copy(course / f"work/{NAME}.new.ipynb", course / f"chapters/{NAME}.ipynb")
    assert sync(course) == []
    (course / f"work/{NAME}.new.ipynb").unlink()
    assert sync(course) == [], "the learner does not want it"
    assert names(course) == [f"{NAME}.ipynb"]


def test_the_next_version_gets_another_name_and_the_answers_saved_last(course):
    sync(course)
    answer(course, (A, written(A, "return 0")), (C, HALF))
    publish(course)
    sync(course)
    answer(course, (A, RIGHT), (B, bound(B, None)), name=f"{NAME}.new")
    publish(course)
    assert sync(course) == [
        f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.new.2.ipynb.",
        f"  Your answers are in it: {A}, {B}, {C}.",
    ]
    new = read(course / f"work/{NAME}.new.2.ipynb")
    assert [cells(new, id)[0].source for id in (A, B, C)] == [RIGHT, bound(B, None), HALF]
    answer(course, (A, written(A, "return 2")))
    publish(course)
    sync(course)
    assert cells(read(course / f"work/{NAME}.new.3.ipynb"), A)[0].source.endswith("return 2")


def test_who_goes_on_in_the_new_one_may_delete_or_rename(course):
    sync(course)
    publish(course)
    sync(course)
    mine, new = course / f"work/{NAME}.ipynb", course / f"work/{NAME}.new.ipynb"
    answer(course, (A, RIGHT), name=new.stem)
    mine.unlink()
    assert sync(course) == []
    assert names(course) == [new.name], "the old one stays away"
    publish(course)
    assert sync(course)[0] == f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.ipynb."
    assert cells(read(mine), A)[0].source == RIGHT
    new.replace(mine)
    assert sync(course) == []
    assert names(course) == [mine.name]


def test_a_file_with_answers_to_several_chapters_gives_each_its_own(course):
    sync(course)
    scratch = nbformat.v4.new_notebook()
    for exercise, source in [("0.1", "running_mean = None"), (A, RIGHT)]:
        scratch.cells.append(nbformat.v4.new_code_cell(source, metadata={"exercise": exercise}))
    nbformat.write(scratch, course / "work/scratch.ipynb")
    publish(course)
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]


def test_a_kernel_above_the_answer_is_not_the_function_that_is_asked_for(course):
    kernel = "def kernel(source, target, width):\n    ...\n\n\n"
    publish(course, replace_stub(A, "def ", f"{kernel}def "))
    sync(course)
    answer(course, (A, kernel + RIGHT))
    publish(course, replace_stub(A, kernel, ""))  # from now on the learner writes its head, too
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]


def test_an_answer_to_an_exercise_with_other_arguments_stays_where_it_is(course):
    sync(course)
    answer(course, (A, RIGHT), (C, HALF))
    publish(course, replace_stub(A, "(", "(first, "))
    assert sync(course)[1:] == [
        f"  Your answers are in it: {C}.",
        f"  They take other arguments now; your answers stay in your file: {A}.",
    ]
    stub = cells(read(course / f"work/{NAME}.new.ipynb"), A)[0].source
    assert stub == cells(read(course / f"chapters/{NAME}.ipynb"), A)[0].source
    assert cells(read(course / f"work/{NAME}.ipynb"), A)[0].source == RIGHT


@pytest.mark.parametrize(
    "source",
    [RIGHT.replace("(", "(q, k, ", 1), bound(A, "torch.add"), RIGHT.replace("):", ", eps=1):"), "def f(Q: retu"],
)
def test_where_an_exercise_takes_what_it_took_every_answer_fits(course, source):
    sync(course)
    answer(course, (A, source))
    publish(course)
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]


def test_an_answer_that_has_the_new_arguments_fits(course):
    sync(course)
    answer(course, (A, RIGHT.replace("(", "(first, ", 1)))
    publish(course, replace_stub(A, "(", "(first, "))
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]


def test_an_untouched_stub_is_no_answer_though_the_chapter_has_a_better_one(course):
    sync(course)
    publish(course, replace_stub(A, '"""', '"""Better: '))
    assert len(sync(course)) == 1
    publish(course)
    assert len(sync(course)) == 1, "nor one that is two versions old"
    assert "Better: " in cells(read(course / f"work/{NAME}.new.2.ipynb"), A)[0].source


def test_an_answer_in_several_cells_is_carried_over_whole_and_without_its_check(course):
    sync(course)

    def split(notebook):
        stub, check = cells(notebook, A)
        stub.source, check.source = "past = torch.tril", check.source + "\nprint(past)"
        for source in (RIGHT, "\n"):
            more = nbformat.v4.new_code_cell(source, metadata={"exercise": A})
            notebook.cells.insert(notebook.cells.index(stub) + 1, more)

    edit(course / f"work/{NAME}.ipynb", split)
    publish(course)
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]
    stub, check = cells(read(course / f"work/{NAME}.new.ipynb"), A)
    assert stub.source == f"past = torch.tril\n\n\n{RIGHT}"
    assert "print" not in check.source


def test_a_deleted_or_emptied_stub_is_no_answer_nor_is_text(course):
    sync(course)
    answer(course, (A, "  \n"))

    def as_text(notebook):
        place = notebook.cells.index(cells(notebook, C)[0])
        notebook.cells[place] = nbformat.v4.new_markdown_cell("I give up.", metadata={"exercise": C})

    edit(course / f"work/{NAME}.ipynb", as_text)
    edit(course / f"work/{NAME}.ipynb", lambda notebook: notebook.cells.remove(cells(notebook, B)[0]))
    publish(course)
    assert sync(course)[1:] == []


BROKEN = {
    "merged": b"<<<<<<< HEAD\n{}",
    "empty": b"",
    "cut": b'{"cells": [{"cell_type": "co',
    "list": b"[]",
    "no cells": b'{"nbformat": 3, "worksheets": []}',
    "odd cells": b'{"cells": ["def f(): pass"]}',
    "no type": b'{"cells": [{"source": "", "metadata": {}}]}',
    "no metadata": b'{"cells": [{"cell_type": "code", "source": ""}]}',
    "odd metadata": b'{"cells": [{"cell_type": "code", "source": "", "metadata": []}]}',
    "odd outputs": b'{"cells": [{"cell_type": "code", "source": "", "metadata": {}, "outputs": [1]}]}',
    "latin": '{"cells": [], "author": "Jürgen"}'.encode("latin-1"),
    "deep": b'{"cells": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_a_copy_that_is_no_notebook_is_named_and_left_alone(course, data):
    sync(course)
    answer(course, (A, RIGHT))
    (course / f"work/{NAME}.ipynb").rename(course / "work/other.ipynb")
    (course / f"work/{NAME}.ipynb").write_bytes(data)
    publish(course)
    assert sync(course) == [
        f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.new.ipynb.",
        f"  Your answers are in it: {A}.",
        f"  work/{NAME}.ipynb cannot be read as a notebook: nothing is carried over.",
    ]
    assert sync(course) == []
    assert workbook.unreadable(course / "work") == [f"{NAME}.ipynb"]
    assert [row.states[A] for row in workbook.progress(course / "work", COURSE, course / "chapters")[1:2]] == [
        "started"
    ]


def test_the_broken_copy_of_another_chapter_is_not_named(course):
    sync(course)
    (course / "work/00_start_here.ipynb").write_bytes(b"")
    publish(course)
    assert len(sync(course)) == 1


def test_a_folder_called_like_a_chapter_does_no_harm(course):
    (course / f"work/{NAME}.ipynb").mkdir(parents=True)
    sync(course)
    publish(course)
    assert len(sync(course)) == 2


def test_half_a_character_does_no_harm(course):
    sync(course)
    mine = course / f"work/{NAME}.ipynb"
    answer(course, (A, RIGHT))
    mine.write_bytes(mine.read_bytes().replace("←".encode(), rb"\ud83d"))
    publish(course)
    sync(course)
    assert cells(read(course / f"work/{NAME}.new.ipynb"), A)[0].source == RIGHT.replace("←", "?")


def test_a_broken_original_does_no_harm(course):
    sync(course)
    answer(course, (A, RIGHT))
    for path in (course / "work/.originals").iterdir():
        path.write_bytes(b"")
    assert sync(course) == []
    assert states(course)[A] == "started"
    publish(course)
    assert sync(course)[1].startswith(f"  Your answers are in it: {A}")


# Progress


def states(course, chapter=1):
    return workbook.progress(course / "work", COURSE, course / "chapters")[chapter].states


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


@pytest.mark.parametrize("outcome", ["passed", "failed", "error", "timeout"])
def test_progress_reads_what_check_left(course, outcome):
    sync(course)
    answer(course, (B, written(B, "...")), outcome=outcome)
    before = hashes(course)
    assert states(course)[B] == ("passed" if outcome == "passed" else "started")
    assert set(states(course).values()) == {"open", states(course)[B]}
    assert hashes(course) == before


def test_what_passed_in_any_file_is_passed(course):
    sync(course)
    answer(course, (B, written(B, "...")), outcome="passed")
    publish(course)
    sync(course)
    assert states(course)[B] == "passed"
    answer(course, (B, written(B, "...")), name=f"{NAME}.new", outcome="failed")
    assert states(course)[B] == "passed"
    (course / f"work/{NAME}.ipynb").unlink()
    assert states(course)[B] == "started"


@pytest.mark.parametrize(
    "data",
    [
        [],
        {MIME: []},
        {MIME: {"exercise": B}},
        {MIME: {"exercise": [B], "outcome": "passed"}},
        {MIME: {"exercise": B, "outcome": []}},
    ],
)
def test_odd_outputs_are_no_outcomes(course, data):
    sync(course)
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


def test_the_table_is_one_line_for_each_chapter(course):
    sync(course)
    answer(course, ("0.1", "def running_mean(V): ..."), name="00_start_here", outcome="passed")
    answer(course, (A, RIGHT), outcome="passed")
    answer(course, (B, written(B, "...")))
    course_of_two = {id: COURSE[id] for id in COURSE if id[:2] in ("0.", "1.")}
    first, second = workbook.table(workbook.progress(course / "work", course_of_two, course / "chapters")).splitlines()
    assert re.fullmatch(r"00 Start here: a state, or all the keys\? +●○ +1 of 2  next: 0\.2 .*", first)
    assert re.match(r"01 Attention is one contraction +●◔○", second)
    assert second.endswith(f"○  1 of {len(IDS)}  next: {B} {COURSE[B].title} ({COURSE[B].minutes} min)")
    assert first.index("1 of 2") == second.index("1 of")


def test_an_answer_that_was_not_found_as_asked_counts_half(course):
    sync(course)
    answer(course, (A, RIGHT), outcome="not as asked")
    answer(course, (B, written(B, "...")), outcome="failed")
    assert states(course)[A] == "not as asked"
    line = workbook.table(workbook.progress(course / "work", {id: COURSE[id] for id in IDS}, course / "chapters"))
    assert re.search(rf"contraction  ◐◔○+  0\.5 of {len(IDS)}  next: {re.escape(B)} ", line)
    answer(course, (A, RIGHT), outcome="passed")
    assert states(course)[A] == "passed"


def test_the_table_of_a_course_without_exercises_is_empty():
    assert workbook.table([]) == ""


def test_an_exercise_that_no_copy_has_comes_last(course):
    sync(course)
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
def test_a_chapter_is_put_back_after_a_backup(course, noon, chapter):
    sync(course)
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


def test_no_backup_is_overwritten(course, noon):
    sync(course)
    backups = course / "work/backups"
    for number, name in enumerate(["", ".2", ".3"]):
        answer(course, (A, f"answer {number}"))
        before = (course / f"work/{NAME}.ipynb").read_bytes()
        reset(course, "1")
        assert (backups / f"{NAME}.2026-11-20-1200{name}.ipynb").read_bytes() == before
    assert len(list(backups.iterdir())) == 3


def test_the_backup_has_its_date(course):
    sync(course)
    reset(course, "1")
    (backup,) = (course / "work/backups").iterdir()
    assert re.fullmatch(rf"{NAME}\.\d{{4}}-\d\d-\d\d-\d{{4}}\.ipynb", backup.name)


def test_one_exercise_is_put_back_and_nothing_else(course, noon):
    sync(course)
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


def test_an_exercise_in_pieces_comes_back_in_its_place(course):
    sync(course)
    mine = course / f"work/{NAME}.ipynb"
    order = [cell.id for cell in read(mine).cells]

    def tear(notebook):
        stub, check = cells(notebook, A)
        notebook.cells.remove(check)
        notebook.cells.insert(notebook.cells.index(stub) + 2, nbformat.from_dict({**stub, "id": "more"}))

    edit(mine, tear)
    reset(course, "1", A)
    assert [cell.id for cell in read(mine).cells] == order


def test_a_deleted_exercise_comes_back_at_the_end(course):
    sync(course)
    edit(course / f"work/{NAME}.ipynb", remove(A))
    reset(course, "1", A)
    published = cells(without_outputs(course / f"chapters/{NAME}.ipynb"), A)
    assert read(course / f"work/{NAME}.ipynb").cells[-2:] == published


def test_a_newer_chapter_beside_the_learners_can_be_reset_by_its_name(course):
    sync(course)
    publish(course)
    sync(course)
    answer(course, (A, RIGHT))
    answer(course, (A, RIGHT), name=f"{NAME}.new")
    reset(course, f"{NAME}.new.ipynb")
    assert cells(read(course / f"work/{NAME}.ipynb"), A)[0].source == RIGHT
    assert is_copy(course / f"work/{NAME}.new.ipynb", course / f"chapters/{NAME}.ipynb")


def test_reset_takes_the_newest_version_and_sync_knows(course):
    sync(course)
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


def test_reset_of_a_broken_copy(course, noon):
    sync(course)
    mine = course / f"work/{NAME}.ipynb"
    mine.write_bytes(b"<<<<<<< HEAD")
    with pytest.raises(ValueError, match=rf"reset: {NAME}\.ipynb cannot be read as a notebook; reset the whole"):
        reset(course, "1", A)
    assert mine.read_bytes() == b"<<<<<<< HEAD"
    reset(course, "1")
    assert (course / f"work/backups/{NAME}.2026-11-20-1200.ipynb").read_bytes() == b"<<<<<<< HEAD"
    assert is_copy(mine, course / "chapters" / mine.name)


@pytest.mark.parametrize("chapter", ["7", "", "x", "²", "..", "01_attention", A, f"{NAME}.new.ipynb"])
def test_reset_of_an_unknown_chapter_lists_those_there_are(course, chapter):
    sync(course)
    before = hashes(course)
    with pytest.raises(ValueError, match=rf"reset: no chapter '.*'; there are 00_start_here, {NAME}$"):
        reset(course, chapter)
    assert hashes(course) == before


def test_reset_of_an_unknown_exercise_lists_those_there_are(course):
    sync(course)
    before = hashes(course)
    with pytest.raises(ValueError, match=rf"reset: no exercise '0\.1' in 01_.*; it has {', '.join(IDS)}$"):
        reset(course, "1", "0.1")
    edit(course / "chapters/00_start_here.ipynb", remove("0.1"))
    edit(course / "chapters/00_start_here.ipynb", remove("0.2"))
    with pytest.raises(ValueError, match=r"reset: no exercise '0\.1' in 00_start_here\.ipynb; it has none"):
        reset(course, "0", "0.1")
    assert hashes(course).items() >= {k: v for k, v in before.items() if "work" in k.parts}.items()


def test_reset_to_a_broken_chapter_changes_nothing(course):
    sync(course)
    (course / f"chapters/{NAME}.ipynb").write_bytes(b"")
    before = hashes(course)
    with pytest.raises(ValueError, match=rf"reset: chapters/{NAME}\.ipynb cannot be read as a notebook"):
        reset(course, "1")
    assert hashes(course) == before


def test_without_room_for_a_backup_nothing_changes(course, monkeypatch):
    sync(course)
    answer(course, (A, RIGHT))
    before = (course / f"work/{NAME}.ipynb").read_bytes()

    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        reset(course, "1")
    assert (course / f"work/{NAME}.ipynb").read_bytes() == before
