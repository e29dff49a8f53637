"""The command `smalearn`: what each sub-command prints and returns; what it does is tested with its module."""

import datetime
import html
import io
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import benchmarks as bench
from smalearn import __version__
from smalearn.course import cli, doctor, exercises, timing, workbook
from smalearn.course import progress as lab_progress

STUB = "def running_mean(V):\n    raise NotImplementedError"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two chapters, in a folder with a space and an umlaut; the working directory."""
    folder = tmp_path / "mein kürs"
    (folder / "chapters").mkdir(parents=True)
    publish(folder / "chapters/00_start_here.ipynb", "Start here", {"exercise": "0.1"})
    publish(folder / "chapters/01_next.ipynb", "Next", {})
    (folder / "start.py").touch()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    return folder


def publish(path, title, metadata):
    """A chapter with a heading and a cell."""
    cells = [nbformat.v4.new_markdown_cell(f"# {title}"), nbformat.v4.new_code_cell(STUB, metadata=metadata)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def settings(course):
    """The folders with the course's settings of JupyterLab."""
    return [str(course / ".jupyter/lab"), str(course / ".jupyter")]


@pytest.fixture
def jupyterlab(monkeypatch):
    """Calls instead of JupyterLab: its options, its search path of settings, and whether it was to show its log."""
    calls, server = [], types.ModuleType("smalearn.course.server")

    def open_lab(options, log):
        calls.append((options, os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep), log))
        return 0

    server.open_lab, server.kernel = open_lab, lambda: {"kernelspec": {"name": "ours"}}
    monkeypatch.setitem(sys.modules, "smalearn.course.server", server)
    return calls


@pytest.mark.parametrize("log", [False, True])
def test_lab_opens_the_copies_with_the_courses_settings_and_keeps_one_option(course, jupyterlab, log, capsys):
    passed_on = ["--allow-root", "--port", "9999", "--ServerApp.ip=*", "--log-level=INFO", "--lo=3"]
    assert cli.main(["lab", *["--log"] * log, *passed_on]) == 0
    assert jupyterlab == [(passed_on, settings(course), log)]
    assert nbformat.read(course / "work/00_start_here.ipynb", 4).metadata.kernelspec.name == "ours"
    assert capsys.readouterr().out == ""


def test_afternoon_opens_its_own_notebook_like_lab_and_keeps_other_settings_behind(course, jupyterlab, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "elsewhere")
    assert cli.main(["afternoon", "--port", "9999"]) == 0
    options = ["--LabApp.default_url=/lab/tree/afternoon.ipynb", "--port", "9999"]
    assert jupyterlab == [(options, [*settings(course), "elsewhere"], False)]
    assert nbformat.read(course / "work/afternoon.ipynb", 4).metadata.kernelspec.name == "ours"


def test_control_c_is_one_line(monkeypatch, capsys):
    def report():
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "report", report)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"


def test_lab_announces_newer_chapters(course, jupyterlab, capsys):
    cli.main(["lab"])
    publish(course / "chapters/01_next.ipynb", "Second edition", {})
    cli.main(["lab"])
    out = capsys.readouterr().out
    assert out == "There is a newer 01_next.ipynb: it is beside yours, as work/01_next.new.ipynb.\n"
    assert len(jupyterlab) == 2


@pytest.mark.parametrize("half", [None, "start.py", "chapters"])
@pytest.mark.parametrize("installed", ["checkout", "wheel"])
def test_elsewhere_the_course_is_that_of_the_package(
    course, tmp_path, monkeypatch, jupyterlab, installed, half, capsys
):
    """A folder with half a course is none; work/ is the checkout's, or where the command was first typed."""
    monkeypatch.setattr(cli, "FILES", course)
    if installed == "wheel":
        (course / "start.py").unlink()
    here = tmp_path / "here"
    (here / (half or "")).mkdir(parents=True)
    monkeypatch.chdir(here)
    assert cli.main(["lab"]) == 0
    assert jupyterlab == [([], settings(course), False)]
    home = course if installed == "checkout" else here
    assert [path.parents[1] for path in tmp_path.rglob("work/00_start_here.ipynb")] == [home]
    (home / "work/backups").mkdir()
    monkeypatch.chdir(home / "work/backups")
    publish(home / "work/00_start_here.ipynb", "Mine", {"exercise": "0.1"})
    assert cli.main(["reset", "0"]) == 0
    assert "Yours is kept as work/backups/" in capsys.readouterr().out


def test_a_command_finds_the_course_from_a_folder_in_it(course, jupyterlab, monkeypatch, capsys):
    (course / "work/backups").mkdir(parents=True)
    monkeypatch.chdir(course / "work/backups")
    assert cli.main(["lab"]) == 0
    assert jupyterlab == [([], settings(course), False)]
    assert (course / "work/00_start_here.ipynb").exists()
    assert cli.main(["progress"]) == 0
    assert "next: 0.1" in capsys.readouterr().out
    assert Path.cwd() == course / "work/backups"
    seen = []
    monkeypatch.setattr(doctor, "report", lambda: seen.append(Path.cwd()) or [])
    cli.main(["doctor"])
    assert seen == [course]


def test_lab_without_jupyterlab_says_what_to_install(course, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jupyterlab.labapp", None)
    monkeypatch.delitem(sys.modules, "smalearn.course.server", raising=False)
    assert cli.main(["lab"]) == 1
    assert '".[lab]"' in capsys.readouterr().err


def test_progress_shows_a_line_for_each_chapter(course, jupyterlab, capsys):
    cli.main(["lab"])
    (course / "work/01_next.ipynb").write_text("cut sho", encoding="utf-8")
    assert cli.main(["progress"]) == 0
    first, *table = capsys.readouterr().out.splitlines()
    assert first == "work/01_next.ipynb cannot be read as a notebook: it does not count."
    counted = {id: one for id, one in exercises.registry().items() if not one.opener}
    assert table == workbook.table(workbook.progress(course / "work", counted, course / "chapters")).splitlines()
    assert table[0].startswith("Start here")


def test_progress_makes_a_page_of_what_was_reached(course, jupyterlab, capsys):
    cli.main(["lab"])
    rung = {"name": "mine & more", "bits": 1.5, "steps": 500, "milliseconds": {}}
    (course / "work/ladder.json").write_text(json.dumps([rung]), encoding="utf-8")
    (course / "work/my_mamba2.py").write_text("one\ntwo\n", encoding="utf-8")
    os.utime(course / "work/my_mamba2.py", (0, datetime.datetime(2026, 5, 4, 12).timestamp()))
    record = {"exercise": "0.1", "outcome": "passed", "seed": 0, "cases": 4, "passed": 4}
    output = nbformat.v4.new_output("display_data", {"text/plain": "✓", exercises.report.MIME: record})
    notebook = nbformat.read(course / "work/00_start_here.ipynb", 4)
    notebook.cells[1].outputs = [output]
    nbformat.write(notebook, course / "work/00_start_here.ipynb")
    assert cli.main(["progress", "--page"]) == 0
    assert "work/progress.html" in capsys.readouterr().out.replace(os.sep, "/")
    page = (course / "work/progress.html").read_text(encoding="utf-8")
    one = exercises.registry()["0.1"]
    for text in (f"{one.title}: {one.insight}", "mine & more: 1.50 bits", "my_mamba2.py: 2 lines", ": 1 of "):
        assert html.escape(text) in page
    assert "2 lines, last changed on 2026-05-04; not run again here" in page, "whoever changed it may not have run it"
    (course / "work/ladder.json").write_text("{", encoding="utf-8")
    assert cli.main(["progress", "--page"]) == 1
    assert "is not a ladder" in capsys.readouterr().err


def test_review_says_what_is_due(course, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(workbook, "review", lambda *places: asked.append(places) or "3 questions due")
    assert cli.main(["review"]) == 0
    assert capsys.readouterr().out == "3 questions due\n"
    ((work, known, chapters, today),) = asked
    assert (work, known, chapters) == (Path("work"), exercises.registry(), course / "chapters")
    assert isinstance(today, datetime.date)


def test_progress_without_copies_shows_what_is_to_be_done_and_makes_none(course, capsys):
    assert cli.main(["progress"]) == 0
    assert "next: 0.1" in capsys.readouterr().out
    assert not (course / "work").exists()


@pytest.mark.parametrize("arguments", [["0"], ["0", "0.1"]])
def test_reset_puts_back_and_says_where_the_backup_is(course, jupyterlab, arguments, capsys):
    cli.main(["lab"])
    mine = course / "work/00_start_here.ipynb"
    publish(mine, "Mine", {"exercise": "0.1"})
    assert cli.main(["reset", *arguments]) == 0
    (backup,) = (course / "work/backups").iterdir()
    assert f" Yours is kept as work/backups/{backup.name}.\n" in capsys.readouterr().out
    assert nbformat.read(backup, 4).cells[0].source == "# Mine"
    assert nbformat.read(mine, 4).cells[0].source == ("# Start here" if len(arguments) == 1 else "# Mine")


@pytest.mark.parametrize(
    ("command", "said"),
    [("lab", "smalearn lab: the chapters cannot be copied to work/: "), ("reset 1", "smalearn reset: ")],
)
def test_where_nothing_can_be_written_a_command_ends_in_one_line(course, jupyterlab, command, said, capsys):
    (course / "work").touch()
    assert cli.main(command.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert jupyterlab == []


@pytest.mark.parametrize("status", ["ok", "missing"])
def test_doctor_prints_its_block_and_returns_whether_one_can_work(monkeypatch, status, capsys):
    findings = [doctor.Finding("torch", status, "2.13.0", needed=True)]
    monkeypatch.setattr(doctor, "report", lambda: findings)
    assert cli.main(["doctor"]) == (status == "missing")
    assert capsys.readouterr().out == doctor.render(findings) + "\n"


def test_doctor_starts_without_torch():
    code = "import sys; sys.modules['torch'] = None; from smalearn.course.cli import main; status = main(['doctor']); "
    code += "from smalearn._files import install; install('lab'); import setuptools; sys.exit(status)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert (process.returncode, process.stderr) == (1, "")
    assert process.stdout.endswith("You cannot work yet: torch.\n```\n")
    assert "\nmissing  torch: ModuleNotFoundError: " in process.stdout
    assert "could not be looked at" not in process.stdout


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert "usage: smalearn" in shown
    assert "open the course in JupyterLab" in shown


@pytest.fixture
def dance(monkeypatch):
    """A benchmark of no seconds, on a device too."""
    calls, times = [], {"machine": timing.machine()}
    monkeypatch.setattr(bench, "BENCHMARKS", {"dance": lambda keep: times, "ssd": None})
    monkeypatch.setitem(bench.DEVICE_BENCHMARKS, "ssd", lambda on, keep: calls.append(on) or times)
    monkeypatch.setattr(bench, "table", lambda result: f"times: {result is times}")
    return SimpleNamespace(times=times, calls=calls)


def test_bench_prints_the_result_and_keeps_it(dance, tmp_path, capsys):
    for arguments in (["dance"], ["ssd", "--device", "cpu"]):
        assert cli.main(["bench", *arguments, "-o", str(tmp_path / "x.json")]) == 0
        assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == dance.times
        assert cli.main(["bench", *arguments]) == 0
        assert capsys.readouterr().out == 2 * "times: True\n"
    assert dance.calls == ["cpu", "cpu"]


def test_bench_keeps_times_by_cpu_or_gpu(dance, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench.device, "can_run", lambda on: None)
    monkeypatch.setattr(bench.device, "gpu_name", lambda on: "NVIDIA H200")
    assert cli.main(["bench", "ssd", "--device", "cuda", "-o", str(tmp_path)]) == 0
    assert [*tmp_path.rglob("*.json")] == [tmp_path / "gpu/nvidia-h200/ssd.json"]
    assert cli.main(["bench", "dance", "-o", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("cpu/*/dance.json")
    other = json.dumps({"machine": dance.times["machine"] | {"model": "another"}})
    file.write_text(other, encoding="utf-8")
    for output in (tmp_path, file):
        assert cli.main(["bench", "dance", "-o", str(output)]) == 1
        assert f"smalearn bench: {file} holds times of " in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == other


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("polka", "there is no benchmark 'polka', only "),
        ("masks -o nowhere/result.json", "there is no folder nowhere for"),
        ("ssd --device cpu -o .", "or . is no file"),
        ("masks ssd -o here.json", "-o must be a folder for several benchmarks, got here.json"),
        ("masks --device cpu", "--device is for delta-rule, multilevel, ssd, not for masks\n"),
        ("ssd --device cuda", "no GPU that Triton compiles for; --device cpu tries the harness at tiny sizes\n"),
        ("masks -o full.json", "nothing can be written to "),
    ],
)
def test_bench_refuses_before_it_takes_minutes(arguments, said, tmp_path, monkeypatch, capsys):
    def refuse(folder):
        raise OSError(f"nothing can be written to {folder.name}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab_progress, "try_to_write", refuse)
    monkeypatch.setattr(bench.device.torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", *arguments.split()]) == 1
    err = capsys.readouterr().err
    assert err.startswith("smalearn bench: ")
    assert said in err


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_bench_keeps_parts_as_they_come(way, tmp_path, monkeypatch, capsys):
    file, seen = tmp_path / "x.json", []

    def steps(finish):
        for step in range(2):
            finish({"step": step})
            kept = json.loads((tmp_path / "x.stopped.json").read_text(encoding="utf-8"))
            seen.append((kept["command"], len(kept["finished"]), kept["targets"]))
        raise KeyboardInterrupt if way == "stopped" else MemoryError

    monkeypatch.setattr(bench, "BENCHMARKS", {"dance": lambda keep: bench.report.record("dance", 1, steps, list, keep)})
    if way == "stopped":
        assert cli.main(["bench", "dance", "-o", str(file)]) == 130
        assert f"finished parts stand above and in {tmp_path / 'x.stopped.json'}." in capsys.readouterr().err
    else:
        with pytest.raises(MemoryError):
            cli.main(["bench", "dance", "-o", str(file)])
    assert seen == [("smalearn bench dance", 1, []), ("smalearn bench dance", 2, [])]
    assert [path.name for path in tmp_path.iterdir()] == ["x.stopped.json"]
    monkeypatch.setattr(bench, "BENCHMARKS", {"dance": lambda keep: {"command": "smalearn bench dance"}})
    monkeypatch.setattr(bench, "table", str)
    assert cli.main(["bench", "dance", "-o", str(file)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"smalearn {__version__}\n"


@pytest.mark.parametrize("command", ["dance", "--port 9999", "reset", "reset 1 1.1 1.2", "doctor --allow-root"])
def test_a_wrong_command_ends_with_usage(command, capsys):
    with pytest.raises(SystemExit) as failure:
        cli.main(command.split())
    assert failure.value.code == 2
    assert "usage: smalearn" in capsys.readouterr().err


def test_a_console_without_the_character_prints_it_all_the_same(course, jupyterlab, monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    cli.main(["lab"])
    print("✓ \udcff", flush=True)
    assert console.buffer.getvalue() == "✓ ?".encode() + os.linesep.encode()


def test_a_pipe_that_closes_early_is_no_error(tmp_path, monkeypatch):
    class Pipe(io.FileIO):
        closed_by_reader = False

        def write(self, data):
            if not self.closed_by_reader:
                self.closed_by_reader = True
                raise BrokenPipeError(32, "Broken pipe")
            return super().write(data)

    with io.TextIOWrapper(io.BufferedWriter(Pipe(tmp_path / "pipe", "w"))) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(doctor, "report", list)
        assert cli.main(["doctor"]) == 1
    assert (tmp_path / "pipe").read_bytes() == b""  # what was left went nowhere


def test_every_command_explains_itself():
    commands = next(action for action in cli._parser()._actions if action.choices)
    for name, one in commands.choices.items():
        shown = " ".join(one.format_help().split())
        assert re.fullmatch(r"[A-Z].+\.", one.description)
        assert one.description in shown
        assert f"Example: smalearn {name}" in shown


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "smalearn.course.cli", "--help"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert process.returncode == 0
    assert "open the course in JupyterLab" in process.stdout
