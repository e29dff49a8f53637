"""start.py without a network and without an installation: what it asks pip for, and what it says when that fails."""

import ast
import errno
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from loaded_start import ROOT, loaded

SOURCE = (ROOT / "start.py").read_text(encoding="utf-8")
NO_NETWORK = """
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)
ERROR: No matching distribution found for torch==2.13.0
"""
NO_BUILD = """
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: 2.20.0)
ERROR: No matching distribution found for torch==2.13.0
"""
DISK_FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"


@pytest.fixture
def bare(tmp_path):
    return loaded(tmp_path)


@pytest.fixture
def start(bare, monkeypatch):
    """`bare`, except that pip, venv and programs only note that they were called.

    `start.calls` is what was called; `start.answers` the complaints of the next calls of pip, none where it is empty.
    """
    bare.calls, bare.answers = [], []

    def run(*arguments):
        bare.calls.append(list(arguments))
        return 0

    def pip(*arguments):
        bare.calls.append(["pip", *arguments])
        if bare.answers and (complaints := bare.answers.pop(0)):
            raise bare.SetupError(complaints)

    def make_venv():
        bare.calls.append(["venv"])
        shutil.rmtree(bare.VENV, ignore_errors=True)
        bare.PYTHON.parent.mkdir(parents=True)
        bare.PYTHON.touch()

    monkeypatch.setattr(bare, "pip", pip)
    monkeypatch.setattr(bare, "make_venv", make_venv)
    monkeypatch.setattr(bare, "python_in_venv", lambda: b"(3, 11)" if bare.PYTHON.exists() else b"")
    monkeypatch.setattr(bare, "cpu_index_helps", lambda: False)
    monkeypatch.setattr(bare, "run", run)
    monkeypatch.setattr(bare, "install_programs", lambda packages: bare.calls.append(["apt-get", *packages]))
    monkeypatch.setattr(bare.shutil, "which", lambda name: None)
    return bare


def pips(start):
    return [call for call in start.calls if call[0] == "pip"]


# What an old Python meets


def test_an_old_python_can_read_the_file():
    ast.parse(SOURCE, feature_version=(3, 6))
    for newer in ("(n := 1)", "def f(a, /): pass"):
        with pytest.raises(SyntaxError):
            ast.parse(newer, feature_version=(3, 6))


def test_only_the_standard_library_is_imported():
    nodes = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


def test_an_old_python_is_told_so_before_anything_happens(start, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert re.fullmatch(r"Python 3\.11 or newer is needed, this is 3\.10: .*python\.org.*", start.main([]))
    assert start.calls == []


def test_the_oldest_python_is_that_of_the_package(bare):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, bare.OLDEST))


def test_the_exit_status_and_stderr_say_what_is_wrong():
    code = "import runpy, sys; sys.version_info = (3, 9, 0); runpy.run_path('start.py', run_name='__main__')"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("Python 3.11 or newer is needed")


# The commands


def test_lab_installs_and_passes_its_arguments_on(start):
    assert start.main(["--allow-root", "--port", "9999"]) == 0
    torch = re.search(r"^torch==.*$", start.PINS.read_text(encoding="utf-8"), re.MULTILINE).group()
    assert start.calls == [
        ["venv"],
        ["pip", "--no-deps", torch],
        ["pip", "--editable", ".[lab]", "--constraint", str(start.PINS)],
        ["-m", "smalearn.course.cli", "lab", "--allow-root", "--port", "9999"],
    ]


WORKERS = ["-n", "2", "--dist", "loadscope"]


@pytest.mark.parametrize(
    ("arguments", "passed_on", "programs"),
    [
        ([], WORKERS, False),
        (["--full"], [*WORKERS, "--cov", "--full"], True),
        (["tests/test_cli.py", "-k", "lab"], ["tests/test_cli.py", "-k", "lab"], False),
        (["tests/browser", "--full"], ["tests/browser", "--full"], True),
    ],
)
def test_test_runs_the_default_set_or_all_with_coverage_or_what_is_named(start, arguments, passed_on, programs):
    assert start.main(["test", *arguments]) == 0
    assert pips(start)[-1][2] == ".[bench,dev,lab,site]"
    assert (["apt-get", "chromium", "bubblewrap"] in start.calls) == programs
    assert start.calls[-1] == ["-m", "pytest", *start.NBVAL, *passed_on]


@pytest.mark.parametrize(
    ("there", "brought"), [(["chromium"], ["bubblewrap"]), (["bwrap"], ["chromium"]), (["msedge", "bwrap"], [])]
)
def test_a_program_that_is_there_is_not_installed(start, monkeypatch, there, brought):
    monkeypatch.setattr(start.shutil, "which", lambda wanted: wanted if wanted in there else None)
    start.main(["test", "--full"])
    assert [program for call in start.calls if call[0] == "apt-get" for program in call[1:]] == brought


def test_without_these_programs_the_tests_run_all_the_same(start, monkeypatch, capsys):
    monkeypatch.setattr(start, "install_programs", lambda packages: "there is none for the abacus")
    assert start.main(["test", "--full"]) == 0
    said = "No chromium and no bubblewrap here, and there is none for the abacus: tests that need it are skipped.\n"
    assert capsys.readouterr().out.endswith(said)
    assert start.calls[-1][:2] == ["-m", "pytest"]


def test_the_browsers_are_those_that_the_tests_look_for(bare):
    tree = ast.parse((ROOT / "tests/browser/conftest.py").read_text(encoding="utf-8"))
    names = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "NAMES"]
    assert [ast.literal_eval(value) for value in names] == [bare.BROWSERS]


def test_the_exit_status_is_that_of_the_program(start, monkeypatch):
    monkeypatch.setattr(start, "run", lambda *arguments, **options: 5)
    assert start.main(["test"]) == 5


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_installs_nothing(start, option, capsys):
    assert start.main([option]) is None
    shown = capsys.readouterr().out
    for wanted in ("python start.py [--log] [options of JupyterLab]", "python start.py test --full"):
        assert wanted in shown
    assert start.calls == []


# The stamp


@pytest.mark.parametrize(
    ("first", "second", "installs"),
    [([], [], 0), (["install"], [], 0), (["install"], ["test"], 0), (["test"], [], 0), ([], ["test"], 2)],
)
def test_what_is_installed_is_not_installed_again(start, first, second, installs):
    start.main(first)
    assert [call[0] for call in start.calls] == ["venv", "pip", "pip", *["-m"] * (first != ["install"])]
    start.calls.clear()
    start.main(second)
    assert len(pips(start)) == installs


def appended(name):
    return lambda start, patch: (start.ROOT / name).write_text(
        (ROOT / name).read_text("utf-8") + "# changed\n", "utf-8"
    )


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (appended("pyproject.toml"), []),
        (appended("constraints.txt"), []),
        (lambda start, patch: patch.setattr(start, "python_in_venv", lambda: b"(3, 12)"), []),
        (lambda start, patch: patch.setattr(start, "ROOT", start.ROOT / ".." / start.ROOT.name), []),
        (lambda start, patch: start.PYTHON.unlink(), ["venv"]),
    ],
    ids=["pyproject.toml", "constraints.txt", "another Python", "a moved folder", "a broken venv"],
)
def test_what_changed_installs_again(start, monkeypatch, change, made):
    start.main([])
    start.calls.clear()
    change(start, monkeypatch)
    start.main([])
    assert [call[0] for call in start.calls] == [*made, "pip", "pip", "-m"]


@pytest.mark.parametrize(
    ("before", "answers", "command"),
    [([], [DISK_FULL], []), ([], [None, DISK_FULL], []), ([[]], [DISK_FULL], ["test"])],
    ids=["torch", "the rest", "an addition"],
)
def test_an_unfinished_installation_is_taken_up_again(start, before, answers, command):
    for earlier in before:
        start.main(earlier)
    start.answers = answers
    assert "disk is full" in start.main(command)
    assert start.calls[-1][0] == "pip", "JupyterLab must not open"
    start.calls.clear()
    assert start.main([]) == 0
    assert len(pips(start)) == 2


# torch


def test_torch_comes_from_the_index_of_cpu_builds_where_that_helps_or_else_from_the_usual_one(start, monkeypatch):
    monkeypatch.setattr(start, "cpu_index_helps", lambda: True)
    start.answers = [NO_BUILD]
    assert start.main([]) == 0
    first, second, third = pips(start)
    assert first[-2:] == ["--index-url", start.CPU_INDEX]
    assert "--index-url" not in second
    assert "--constraint" in third


def test_without_a_build_of_the_pinned_torch_nothing_is_pinned(start, capsys):
    start.answers = [NO_BUILD]
    assert start.main([]) == 0
    assert pips(start)[1:] == [["pip", "--no-deps", "torch"], ["pip", "--editable", ".[lab]"]]
    assert "no build for this Python" in capsys.readouterr().out


# What goes wrong


@pytest.mark.parametrize(
    ("complaints", "remedy"),
    [
        (NO_NETWORK, "The package index cannot be reached"),
        ("urlopen error [Errno 11001] getaddrinfo failed", "The package index cannot be reached"),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.", "The package index cannot be reached"),
        (NO_BUILD, "PyTorch has no build"),
        (DISK_FULL, "The disk is full"),
        ("OSError: [WinError 112] There is not enough space on the disk", "The disk is full"),
        ("/usr/bin/python3: No module named ensurepip", "This Python lacks its module venv"),
        (r"[WinError 5] Access is denied: 'c:\course\.venv\Scripts\python.exe'", "A file in this folder"),
        ("PermissionError: [Errno 13] Permission denied: '/course/.venv'", "A file in this folder"),
    ],
)
def test_a_known_failure_is_one_line_with_its_remedy(start, complaints, remedy):
    start.answers = [complaints] * 2
    message = start.main([])
    assert len(pips(start)) == 1 + (complaints == NO_BUILD), "only that is a reason for another torch"
    assert message.startswith(remedy)
    assert "\n" not in message


def test_an_unknown_failure_shows_the_end_of_the_complaints(start):
    start.answers = ["\n".join(f"line {number}" for number in range(100))]
    lines = start.main([]).splitlines()
    assert lines[-2] == "line 99"
    assert len(lines) == 16
    assert "delete the folder .venv" in lines[-1]


def test_an_error_of_the_system_is_explained(start, monkeypatch):
    def fail():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr(start, "make_venv", fail)
    assert start.main([]).startswith("The disk is full")


def test_control_c_is_quiet(start, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "install_torch", interrupt)
    assert start.main([]).startswith("Stopped")
    assert not start.STAMP.exists()
