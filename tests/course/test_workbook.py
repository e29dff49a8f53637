"""The learner's copies: made, and renewed with the answers carried over; never overwritten."""

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from learner import (
    HALF,
    NAME,
    RIGHT,
    A,
    B,
    C,
    answer,
    as_published,
    bound,
    cells,
    edit,
    is_copy,
    names,
    publish,
    read,
    replace_stub,
    states,
    sync,
    without_outputs,
    written,
)

from smalearn.course import workbook

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


def test_other_outputs_line_endings_and_answers_make_no_chapter_newer(course, begun):
    answer(course, (A, RIGHT))
    published = course / f"chapters/{NAME}.ipynb"
    nbformat.write(without_outputs(published), published)
    published.write_bytes(published.read_bytes().replace(b"\n", b"\r\n"))
    assert sync(course) == []
    assert names(course) == [f"{NAME}.ipynb"]


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "renamed"])
def test_a_chapter_that_was_deleted_or_renamed_comes_back_as_published(course, begun, deleted):
    answer(course, (A, RIGHT))
    mine = course / f"work/{NAME}.ipynb"
    mine.unlink() if deleted else mine.rename(course / "work/mine.ipynb")
    publish(course)
    assert sync(course) == []
    assert is_copy(mine, course / "chapters" / mine.name)
    assert names(course) == [mine.name] if deleted else [mine.name, "mine.ipynb"]


def test_cells_of_ones_own_come_along_behind_those_that_they_stood_behind(course, begun):
    """Once each, however many files have them; what is published, moved or under another id, is nobody's own."""
    mine = course / f"work/{NAME}.ipynb"
    notebook = read(mine)
    before = notebook.cells[1]
    own = [nbformat.v4.new_markdown_cell("A note"), nbformat.v4.new_code_cell("1 + 1", outputs=[])]
    notebook.cells[2:2] = [*own, nbformat.v4.new_markdown_cell(before.source), nbformat.v4.new_code_cell(" ")]
    nbformat.write(notebook, mine)
    kept = mine.read_bytes()
    for name in (f"{NAME}.new", f"{NAME}.new.2"):
        publish(course)
        assert sync(course)[-1] == "  Cells that you added are in it: 2."
        renewed = read(course / f"work/{name}.ipynb")
        place = [cell.id for cell in renewed.cells].index(before.id)
        assert [cell.source for cell in renewed.cells[place + 1 : place + 3]] == ["A note", "1 + 1"]
        assert len(renewed.cells) == len(read(course / f"chapters/{NAME}.ipynb").cells) + 2
    assert mine.read_bytes() == kept


@pytest.mark.parametrize("broken", [True, False])
def test_without_its_original_a_file_counts_as_the_chapter_of_that_day(course, begun, broken):
    answer(course, (A, RIGHT))
    for path in (course / "work/.originals").iterdir():
        path.write_bytes(b"") if broken else path.unlink()
    assert sync(course) == []
    assert states(course)[A] == "started"
    publish(course)
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]
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


def test_who_starts_at_the_same_time_waits(course, begun):
    """Three at once: nobody fails, and a newer chapter is there once."""
    answer(course, (A, RIGHT))
    publish(course)
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: workbook.sync(course / "chapters", course / "work"), range(3)))
    assert sorted(map(len, said)) == [0, 0, 2]
    assert names(course) == [f"{NAME}.ipynb", f"{NAME}.new.ipynb"]


def test_a_link_stays_a_link(course, begun, tmp_path):
    mine, elsewhere = course / f"work/{NAME}.ipynb", tmp_path / "kept.ipynb"
    mine.replace(elsewhere)
    mine.symlink_to(elsewhere)
    workbook.reset(course / "work", course / "chapters", "1", A)
    assert mine.is_symlink()
    (backup,) = (course / "work/backups").iterdir()
    assert re.fullmatch(rf"{NAME}\.\d{{4}}-\d\d-\d\d-\d{{4}}\.ipynb", backup.name)
    assert is_copy(elsewhere, course / f"chapters/{NAME}.ipynb")


def test_a_broken_chapter_and_what_a_system_hides_are_left_out(course):
    (course / f"chapters/{NAME}.ipynb").write_text("<<<<<<< HEAD", encoding="utf-8")
    (course / "chapters/._01_hidden.ipynb").write_bytes(b"\0\5\26\7")
    for _ in range(2):
        assert sync(course) == [f"chapters/{NAME}.ipynb cannot be read as a notebook: it is left out."]
    assert names(course) == []


def test_the_appendix_comes_after_the_chapters(course):
    (course / "chapters/appendix").mkdir()
    (course / "chapters/appendix/._A_atlas.ipynb").write_bytes(b"\0")
    shutil.copy(course / f"chapters/{NAME}.ipynb", course / "chapters/appendix/00_atlas.ipynb")
    names = ["00_start_here.ipynb", f"{NAME}.ipynb", "appendix/00_atlas.ipynb"]
    folder = course / "chapters"
    assert [path.relative_to(folder).as_posix() for path in workbook.chapters(folder)] == names


# A newer chapter


def test_a_newer_chapter_stands_beside_the_learners_with_the_answers(course, begun):
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


def test_one_version_is_offered_once(course, begun):
    publish(course)
    assert sync(course) == [f"There is a newer {NAME}.ipynb: it is beside yours, as work/{NAME}.new.ipynb."]
    assert is_copy(course / f"work/{NAME}.new.ipynb", course / f"chapters/{NAME}.ipynb")
    assert sync(course) == []
    (course / f"work/{NAME}.new.ipynb").unlink()
    assert sync(course) == [], "the learner does not want it"
    assert names(course) == [f"{NAME}.ipynb"]


def test_the_next_version_gets_another_name_and_the_answers_saved_last(course, begun):
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


def test_who_goes_on_in_the_new_one_may_delete_or_rename(course, begun):
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


def test_a_file_with_answers_to_several_chapters_gives_each_its_own(course, begun):
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


def test_an_answer_to_an_exercise_with_other_arguments_stays_where_it_is(course, begun):
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
    ("source", "new"),
    [
        (RIGHT.replace("(", "(q, k, ", 1), "("),
        (bound(A, "torch.add"), "("),
        (RIGHT.replace("):", ", eps=1):"), "("),
        ("def f(Q: retu", "("),
        (RIGHT.replace("(", "(first, ", 1), "(first, "),
    ],
)
def test_every_answer_fits_where_an_exercise_takes_what_it_took_or_what_the_answer_takes(course, begun, source, new):
    answer(course, (A, source))
    publish(course, replace_stub(A, "(", new))
    assert sync(course)[1:] == [f"  Your answers are in it: {A}."]


def test_an_untouched_stub_is_no_answer_though_the_chapter_has_a_better_one(course, begun):
    publish(course, replace_stub(A, '"""', '"""Better: '))
    assert len(sync(course)) == 1
    publish(course)
    assert len(sync(course)) == 1, "nor one that is two versions old"
    assert "Better: " in cells(read(course / f"work/{NAME}.new.2.ipynb"), A)[0].source


def test_an_answer_in_several_cells_is_carried_over_whole_and_without_its_check(course, begun):
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


def test_a_deleted_or_emptied_stub_is_no_answer_nor_is_text(course, begun):
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
    "no cells": b'{"nbformat": 3, "worksheets": []}',
    "odd cells": b'{"cells": ["def f(): pass"]}',
    "odd metadata": b'{"cells": [{"cell_type": "code", "source": "", "metadata": []}]}',
    "odd outputs": b'{"cells": [{"cell_type": "code", "source": "", "metadata": {}, "outputs": [1]}]}',
    "latin": '{"cells": [], "author": "Jürgen"}'.encode("latin-1"),
    "deep": b'{"cells": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_a_copy_that_is_no_notebook_is_named_and_left_alone(course, begun, data):
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
    assert states(course)[A] == "started"


@pytest.mark.parametrize(("name", "said"), [("00_start_here", 1), (NAME, 2)])
def test_a_folder_called_like_a_chapter_does_no_harm_and_is_named_for_that_chapter_only(course, name, said):
    (course / f"work/{name}.ipynb").mkdir(parents=True)
    sync(course)
    publish(course)
    assert len(sync(course)) == said


def test_half_a_character_does_no_harm(course, begun):
    mine = course / f"work/{NAME}.ipynb"
    answer(course, (A, RIGHT))
    mine.write_bytes(mine.read_bytes().replace("←".encode(), rb"\ud83d"))
    publish(course)
    sync(course)
    assert cells(read(course / f"work/{NAME}.new.ipynb"), A)[0].source == RIGHT.replace("←", "?")
