"""The students' edition: it checks and helps as the course does, and has no solution that can be read."""

import re
import subprocess
import sys
import zipfile

import notebooks
import pytest

from smalearn.course import cli, grading
from smalearn.course.exercises import registry
from smalearn.course.exercises.core import count_lines
from smalearn.course.grading import sandbox

COURSE = notebooks.CHAPTERS.parent
TRY = """
from smalearn.course import check, hint, solution
from smalearn.course.exercises import registry
from smalearn.course.exercises.edits import Edited
print(len(registry()))
def running_mean(V):
    return V.cumsum(0)
reference = check("0.1", running_mean)
check("0.1", lambda V: reference(V))
hint("0.1")
solution("0.1")
for one in registry().values():
    edits = [wrong for wrong in one.wrong.values() if isinstance(wrong, Edited)]
    assert all(callable(wrong.function) for wrong in edits[:1])
"""


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new") / "course"
    packed = grading.students(COURSE, folder)
    assert len(packed) > 50
    return folder


def test_no_solution_can_be_read(edition):
    assert {path.name for path in (edition / "tests").rglob("*.*")} == {"claims.toml"}  # which the site shows
    assert readable(edition) == []


def test_nor_in_the_sandbox(tmp_path):
    sandbox.without_solutions(tmp_path / "smalearn")
    assert readable(tmp_path) == []


def readable(folder):
    """Solutions whose body stands in some file; those of a line or two are looked for with their names."""
    text = "\n".join(path.read_text("latin-1") for path in folder.rglob("*") if path.is_file())
    return [id for id, exercise in registry().items() if body(exercise) in text]


def body(exercise):
    lines = exercise.code.encode().decode("latin-1").splitlines()
    count = count_lines(exercise.solution)
    return "\n".join(lines[-count:] if count > 2 else lines)


def test_it_checks_and_helps_all_the_same(edition, tmp_path):
    command = [sys.executable, "-c", TRY]
    environment = {"PYTHONPATH": str(edition), "PYTHONUTF8": "1", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8")
    assert done.stderr == ""
    number, *said = done.stdout.splitlines()
    assert int(number) == len(registry())
    assert said[0].startswith("✗ 0.1 Look back with equal weights: 1 of 4 cases passed")
    assert any(line.startswith("✓ 0.1") for line in said)
    assert any(line.startswith("Hint 1 of ") for line in said)
    assert said[-1].startswith("The source of 0.1 cannot be read")


@pytest.mark.full
def test_a_wheel_of_it_has_none_either(edition, tmp_path):
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, edition], check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if re.search(r"/course/ch\w+/[a-z]", name)]
        assert len(names) > 20
        assert all(b"def " not in files.read(name) for name in names)


@pytest.mark.full
def test_a_page_of_it_has_hints_and_no_solution(edition, tmp_path):
    code = f"""
from pathlib import Path
from smalearn.course.site.pages import chapter
cells = chapter(Path({str(edition / "chapters/00_start_here.ipynb")!r}))[0]["cells"]
help = [cell["source"] for cell in cells if cell["id"].startswith("help-")]
print(len(help), all("Hint 1" in text for text in help), any("Solution" in text for text in help))
"""
    environment = {"PYTHONPATH": str(edition), "PYTHONUTF8": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout == "2 True False\n"


def test_the_command_takes_a_new_folder_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(COURSE)
    monkeypatch.setattr(grading, "students", lambda course, output: ["a", "b"])
    assert cli.main(["export", "students", "-o", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new'}: the course, 2 modules without readable solutions\n"
    monkeypatch.undo()
    monkeypatch.chdir(COURSE)
    (tmp_path / "old").write_text("", encoding="utf-8")
    assert cli.main(["export", "students", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"smalearn export: {tmp_path} is not empty; give a new folder\n"
