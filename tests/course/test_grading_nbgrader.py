"""Chapters as assignments of nbgrader: the format always, and nbgrader itself where it is installed."""

import csv
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest

from smalearn.course import cli, grading, workbook
from smalearn.course.exercises import registry

CHAPTERS = workbook.chapters(notebooks.CHAPTERS)
SMALLEST = notebooks.CHAPTERS / "00_start_here.ipynb"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder with all chapters as source notebooks."""
    folder = tmp_path_factory.mktemp("kurs für nbgrader")
    written = grading.export(CHAPTERS, folder, {"3.1": 2.5})
    assert written == [folder / "source" / path.stem / path.name for path in CHAPTERS]
    return folder


def cells(path):
    return notebooks.read(path).cells


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_stubs_hold_solutions_and_checks_are_locked(exported, path):
    made, original = cells(exported / "source" / path.stem / path.name), cells(path)
    assert [cell.id for cell in made] == [cell.id for cell in original]
    seen = []
    for new, old in zip(made, original, strict=True):
        details = new.metadata.get("nbgrader")
        assert (details is not None) is ("exercise" in old.metadata)
        if details is None:
            assert new.source == old.source
            assert new.metadata == old.metadata
            continue
        id, name = old.metadata.exercise, registry()[old.metadata.exercise].solution.__name__
        assert (details.schema_version, details.cell_type, details.task) == (3, "code", False)
        seen.append(details.grade_id)
        if details.solution:
            head = old.source[: old.source.index("raise NotImplementedError")].rstrip()
            assert new.source.startswith(f"{head}\n    ### BEGIN SOLUTION\n")
            assert new.source.endswith("\n    ### END SOLUTION")
            assert "    import torch\n" not in new.source  # every setup cell has it
            assert not details.locked
            assert not details.grade
        else:
            assert details.locked
            assert details.grade
            assert details.points == (2.5 if id == "3.1" else 0 if registry()[id].opener else 1)
            shown, _, hidden = new.source.partition("### BEGIN HIDDEN TESTS\n")
            assert f'{name} = check("{id}", attempt)' in shown
            assert "solution(" not in shown
            assert hidden.endswith("### END HIDDEN TESTS")
    assert len(seen) == len(set(seen)) == sum("exercise" in cell.metadata for cell in original) > 1
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in made)


def set_up(exported, path):
    """The code cells of an exported chapter, and the names of its setup."""
    made = [cell for cell in cells(exported / "source" / path.stem / path.name) if cell.cell_type == "code"]
    namespace = {"__name__": "__main__"}
    for cell in made:
        if "setup" in cell.metadata.get("tags", []):
            exec(cell.source, namespace)
    return made, namespace


SHORT = [path for path in CHAPTERS if path.stem[:2] in ("01", "03")]


@pytest.mark.parametrize(
    "path",
    [*SHORT, *(pytest.param(path, marks=pytest.mark.full) for path in CHAPTERS if path not in SHORT)],
    ids=lambda path: path.stem,
)
def test_the_source_notebook_solves_itself_and_the_untouched_one_does_not(exported, path, capsys):
    made, namespace = set_up(exported, path)
    for cell in made:
        details = cell.metadata.get("nbgrader", {})
        if details.get("solution"):
            untouched = cell.source.partition("### BEGIN SOLUTION")[0] + "raise NotImplementedError()"
            exec(compile(untouched, "<untouched>", "exec"), namespace)
            solved = cell.source
        elif details.get("grade"):
            with pytest.raises(AssertionError):
                exec(cell.source, namespace)
            exec(compile(solved, "<solved>", "exec"), namespace)
            capsys.readouterr()
            exec(cell.source, namespace)
            assert capsys.readouterr().out.startswith("✓ ")


@pytest.mark.parametrize(
    ("attempt", "points"),
    [
        ("states = torch.einsum('tn,tp->tpn', K, V).cumsum(0)\n    return (states @ Q[:, :, None])[:, :, 0]", 3),
        ("return (Q @ K.mT).tril() @ V", 1.5),
    ],
)
def test_the_last_line_of_a_check_is_its_points(attempt, points, tmp_path):
    """nbgrader takes the number that a test cell shows for the points, where it shows one."""
    chapter = next(path for path in CHAPTERS if path.stem.startswith("03"))
    (made,) = grading.export([chapter], tmp_path, {"3.1": 3})
    source = next(
        cell.source for cell in cells(made) if cell.metadata.get("nbgrader", {}).get("grade_id") == "check-3-1"
    )
    namespace = {"check": lambda id, attempt: attempt}
    exec(f"import torch\ndef running_attention(Q, K, V):\n    {attempt}", namespace)
    *lines, last = source.removesuffix("\n### END HIDDEN TESTS").split("\n")
    exec("\n".join(lines), namespace)
    assert eval(last, namespace) == points


def test_chapters_are_meant_by_number_or_name():
    names = ["0", "03", "01_one_contraction", "chapters/02_kernel_attention.ipynb", "a", "A", CHAPTERS[-1].name]
    by = grading.chapters(names, CHAPTERS[0].parent)
    assert [path.stem[:2] for path in by] == ["00", "03", "01", "02", "A_", "A_", CHAPTERS[-1].stem[:2]]
    with pytest.raises(ValueError, match="no chapter '77'; there are 00_start_here, "):
        grading.chapters(["77"], CHAPTERS[0].parent)


def test_what_is_no_chapter_is_not_exported(tmp_path):
    path = tmp_path / "plain.ipynb"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"plain.ipynb cannot be read as a notebook"):
        grading.export([path], tmp_path / "course")
    path.write_text('{"cells": []}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"plain.ipynb has no exercise of the course"):
        grading.export([path], tmp_path / "course")
    assert not (tmp_path / "course").exists()


def test_the_command_exports_from_anywhere_in_the_course(tmp_path, monkeypatch, capsys):
    (tmp_path / "chapters").mkdir()
    (tmp_path / "start.py").touch()
    shutil.copy(SMALLEST, tmp_path / "chapters")
    monkeypatch.chdir(tmp_path / "chapters")
    assert cli.main(["export", "nbgrader", "0", "-o", "kurs"]) == 0
    written = tmp_path / "chapters/kurs/source/00_start_here/00_start_here.ipynb"
    assert capsys.readouterr().out == f"{written}\n"
    assert written.exists()
    assert cli.main(["export", "nbgrader", "5", "-o", "kurs"]) == 1
    assert capsys.readouterr().err == "smalearn export: no chapter '5'; there are 00_start_here\n"
    (tmp_path / "taken").touch()
    assert cli.main(["export", "nbgrader", "0", "-o", str(tmp_path / "taken")]) == 1
    assert capsys.readouterr().err.startswith("smalearn export: ")


def test_nbgrader_gives_all_points_to_the_solution_and_none_to_the_stub(tmp_path):
    if importlib.util.find_spec("nbgrader") is None:
        pytest.skip("needs a peer: nbgrader")

    def nbgrader(*arguments):
        command = [sys.executable, "-m", "nbgrader", *arguments]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
        assert process.returncode == 0, process.stdout + process.stderr

    (source,) = grading.export([SMALLEST], tmp_path, {"0.1": 3})
    nbgrader("generate_assignment", SMALLEST.stem)
    released = tmp_path / "release" / SMALLEST.stem / SMALLEST.name
    text = released.read_text(encoding="utf-8")
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    solved = json.loads(text)
    answers = {cell.id: cell.source for cell in cells(source)}
    for cell in solved["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = answers[cell["id"]]
    for student, notebook in {"ada": json.dumps(solved), "bob": text}.items():
        path = tmp_path / "submitted" / student / SMALLEST.stem / SMALLEST.name
        path.parent.mkdir(parents=True)
        Path(path).write_text(notebook, encoding="utf-8")
    nbgrader("autograde", SMALLEST.stem)
    nbgrader("export")
    with (tmp_path / "grades.csv").open(encoding="utf-8") as file:
        grades = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}
    assert grades == {"ada": (3, 3), "bob": (0, 3)}
