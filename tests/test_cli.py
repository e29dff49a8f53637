"""The command `smalearn`: chapters are copied and never overwritten, and JupyterLab gets the course's settings."""

import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from smalearn import cli


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two chapters, in a folder with a space and an umlaut; the working directory."""
    folder = tmp_path / "mein kürs"
    (folder / "chapters").mkdir(parents=True)
    for name in ("00_start_here", "01_next"):
        (folder / "chapters" / f"{name}.ipynb").write_text(f"{name} as published", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    return folder


@pytest.fixture
def jupyterlab(monkeypatch):
    """Calls of JupyterLab, each its arguments and its search path of settings, instead of JupyterLab."""
    calls = []

    def main(arguments):
        calls.append((arguments, os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)))

    labapp = types.ModuleType("jupyterlab.labapp")
    labapp.main = main
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", labapp)
    return calls


def copy(course):
    return cli.copy_chapters(course / "chapters", course / "work")


def read(course, name):
    return (course / "work" / name).read_text(encoding="utf-8")


def test_missing_chapters_are_copied(course):
    assert copy(course) == []
    assert sorted(path.name for path in (course / "work").glob("*.*")) == [
        ".originals",
        "00_start_here.ipynb",
        "01_next.ipynb",
    ]
    assert read(course, "01_next.ipynb") == "01_next as published"


def test_a_learners_file_is_never_overwritten(course):
    copy(course)
    (course / "work/00_start_here.ipynb").write_text("my answers", encoding="utf-8")
    (course / "chapters/00_start_here.ipynb").write_text("second edition", encoding="utf-8")
    assert copy(course) == ["00_start_here.ipynb"]
    assert copy(course) == ["00_start_here.ipynb"], "as long as it is so"
    assert read(course, "00_start_here.ipynb") == "my answers"


def test_a_learners_own_changes_make_no_chapter_newer(course):
    copy(course)
    (course / "work/00_start_here.ipynb").write_text("my answers", encoding="utf-8")
    assert copy(course) == []


def test_after_renaming_ones_own_the_newer_chapter_comes(course):
    copy(course)
    (course / "chapters/00_start_here.ipynb").write_text("second edition", encoding="utf-8")
    (course / "work/00_start_here.ipynb").rename(course / "work/mine.ipynb")
    assert copy(course) == []
    assert read(course, "00_start_here.ipynb") == "second edition"
    assert read(course, "mine.ipynb") == "00_start_here as published"


def test_a_file_that_was_there_before_is_left_alone(course):
    (course / "work").mkdir()
    (course / "work/01_next.ipynb").write_text("from elsewhere", encoding="utf-8")
    assert copy(course) == []
    assert read(course, "01_next.ipynb") == "from elsewhere"


@pytest.mark.parametrize("last", range(4))
def test_an_interrupted_copy_leaves_no_half_a_chapter(course, monkeypatch, last):
    def copy_until_the_disk_is_full(source, target):
        if next(copies) == last:
            Path(target).write_text("half", encoding="utf-8")
            raise OSError(28, "No space left on device")
        copyfile(source, target)

    copies, copyfile = iter(range(5)), cli.shutil.copyfile
    with monkeypatch.context() as patch:
        patch.setattr(cli.shutil, "copyfile", copy_until_the_disk_is_full)
        with pytest.raises(OSError, match="No space left"):
            copy(course)
    for _ in range(2):
        assert {read(course, path.name)[-12:] for path in (course / "work").glob("*.ipynb")} <= {"as published"}
        assert copy(course) == []
    assert len(list((course / "work").glob("*.ipynb"))) == 2


def test_lab_opens_the_copies_with_the_courses_settings(course, jupyterlab, capsys):
    assert cli.main(["lab", "--allow-root", "--port", "9999", "--ServerApp.ip=*"]) == 0
    assert jupyterlab == [(["--allow-root", "--port", "9999", "--ServerApp.ip=*"], [str(course / ".jupyter")])]
    assert (course / "work/00_start_here.ipynb").exists()
    assert capsys.readouterr().out == ""


def test_lab_keeps_other_settings_behind_those_of_the_course(course, jupyterlab, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "elsewhere")
    cli.main(["lab"])
    assert jupyterlab == [([], [str(course / ".jupyter"), "elsewhere"])]


def test_lab_announces_newer_chapters(course, jupyterlab, capsys):
    cli.main(["lab"])
    (course / "chapters/01_next.ipynb").write_text("second edition", encoding="utf-8")
    cli.main(["lab"])
    out = capsys.readouterr().out
    assert out.startswith("There is a newer 01_next.ipynb. Yours is kept")
    assert out.count("\n") == 1


def test_lab_without_chapters_says_where_to_go(tmp_path, monkeypatch, jupyterlab, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab"]) == 1
    assert "smalearn lab: no chapters/*.ipynb in " in capsys.readouterr().err
    assert jupyterlab == []
    assert not (tmp_path / "work").exists()


def test_lab_without_jupyterlab_says_what_to_install(course, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", None)
    assert cli.main(["lab"]) == 1
    assert '".[lab]"' in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["dance"], ["--port", "9999"]])
def test_a_wrong_command_ends_with_usage(arguments, capsys):
    with pytest.raises(SystemExit) as failure:
        cli.main(arguments)
    assert failure.value.code == 2
    assert "usage: smalearn" in capsys.readouterr().err


def test_only_a_command_that_passes_them_on_takes_unknown_arguments(monkeypatch, capsys):
    parser = cli._parser()
    commands = next(action for action in parser._actions if action.choices)
    commands.add_parser("stay").set_defaults(run=lambda args: 7)
    monkeypatch.setattr(cli, "_parser", lambda: parser)
    assert cli.main(["stay"]) == 7
    with pytest.raises(SystemExit):
        cli.main(["stay", "--allow-root"])
    assert "unrecognized arguments: --allow-root" in capsys.readouterr().err


def test_a_console_without_the_character_prints_it_all_the_same(course, jupyterlab, monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    cli.main(["lab"])
    print("✓ \udcff", flush=True)
    assert console.buffer.getvalue() == "✓ ?".encode() + os.linesep.encode()


def test_the_module_is_the_command():
    process = subprocess.run([sys.executable, "-m", "smalearn.cli", "--help"], capture_output=True, encoding="utf-8")
    assert process.returncode == 0
    assert "open the course in JupyterLab" in process.stdout
