"""start.py without a network and without an installation: what it asks pip for, and what it says when that fails."""

import ast
import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
    """start.py in a folder of its own, with a space and an umlaut in its name."""
    folder = tmp_path / "mein kürs"
    folder.mkdir()
    for name in ("start.py", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    spec = importlib.util.spec_from_file_location("start", folder / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_test_runs_the_default_set_without_coverage(start):
    assert start.main(["test"]) == 0
    assert start.calls[-2][2] == ".[bench,dev,lab,site]"
    assert start.calls[-1] == ["-m", "pytest", *start.NBVAL, "-n", "2", "--dist", "loadscope"]


def test_test_full_runs_everything_with_coverage_and_brings_chromium_and_a_sandbox(start):
    assert start.main(["test", "--full"]) == 0
    assert start.calls[-2] == ["apt-get", "chromium", "bubblewrap"]
    assert start.calls[-1] == ["-m", "pytest", *start.NBVAL, "-n", "2", "--dist", "loadscope", "--cov", "--full"]


@pytest.mark.parametrize("arguments", [["tests/test_cli.py", "-k", "lab"], ["-x"], ["tests/browser", "--full"]])
def test_arguments_of_test_replace_the_default_selection(start, arguments):
    assert start.main(["test", *arguments]) == 0
    assert start.calls[-1] == ["-m", "pytest", *start.NBVAL, *arguments]
    assert any("apt-get" in call for call in start.calls) == ("--full" in arguments)


@pytest.mark.parametrize(
    ("there", "brought"),
    [
        (["chromium"], [["apt-get", "bubblewrap"]]),
        (["google-chrome"], [["apt-get", "bubblewrap"]]),
        (["bwrap"], [["apt-get", "chromium"]]),
        (["msedge", "bwrap"], []),
    ],
)
def test_a_program_that_is_there_is_not_installed(start, monkeypatch, there, brought):
    monkeypatch.setattr(start.shutil, "which", lambda wanted: wanted if wanted in there else None)
    start.main(["test", "--full"])
    assert [call for call in start.calls if call[0] == "apt-get"] == brought


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


def test_install_runs_nothing(start):
    assert start.main(["install"]) == 0
    assert [call[0] for call in start.calls] == ["venv", "pip", "pip"]


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
    start.calls.clear()
    start.main(second)
    assert len(pips(start)) == installs


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again(start, name):
    start.main([])
    start.calls.clear()
    with (start.ROOT / name).open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    start.main([])
    assert len(pips(start)) == 2


def test_another_python_in_the_venv_installs_again(start, monkeypatch):
    start.main([])
    start.calls.clear()
    monkeypatch.setattr(start, "python_in_venv", lambda: b"(3, 12)")
    start.main([])
    assert len(pips(start)) == 2


def test_a_broken_venv_is_made_anew(start):
    start.main([])
    start.calls.clear()
    start.PYTHON.unlink()
    start.main([])
    assert [call[0] for call in start.calls] == ["venv", "pip", "pip", "-m"]


def test_a_moved_folder_installs_again(start, monkeypatch):
    start.main([])
    start.calls.clear()
    monkeypatch.setattr(start, "ROOT", start.ROOT / ".." / start.ROOT.name)
    start.main([])
    assert len(pips(start)) == 2


@pytest.mark.parametrize("answers", [[DISK_FULL], [None, DISK_FULL]], ids=["torch", "the rest"])
def test_an_unfinished_installation_is_taken_up_again(start, answers):
    start.answers = answers
    assert "disk is full" in start.main([])
    assert start.calls[-1][0] == "pip", "JupyterLab must not open"
    start.calls.clear()
    assert start.main([]) == 0
    assert len(pips(start)) == 2


def test_after_a_failed_addition_nothing_counts_as_installed(start):
    start.main([])
    start.answers = [DISK_FULL]
    start.main(["test"])
    start.calls.clear()
    start.main([])
    assert len(pips(start)) == 2


# torch


def test_torch_comes_from_the_index_of_cpu_builds_where_that_helps(start, monkeypatch):
    monkeypatch.setattr(start, "cpu_index_helps", lambda: True)
    start.main([])
    assert pips(start)[0][-2:] == ["--index-url", start.CPU_INDEX]
    assert len(pips(start)) == 2


def test_torch_comes_from_the_usual_index_where_that_of_cpu_builds_fails(start, monkeypatch):
    monkeypatch.setattr(start, "cpu_index_helps", lambda: True)
    start.answers = [NO_BUILD]
    assert start.main([]) == 0
    assert "--index-url" not in pips(start)[1]
    assert "--constraint" in pips(start)[2]


def test_without_a_build_of_the_pinned_torch_nothing_is_pinned(start, capsys):
    start.answers = [NO_BUILD]
    assert start.main([]) == 0
    assert pips(start)[1:] == [["pip", "--no-deps", "torch"], ["pip", "--editable", ".[lab]"]]
    assert "no build for this Python" in capsys.readouterr().out


@pytest.mark.parametrize("complaints", [NO_NETWORK, DISK_FULL])
def test_only_a_missing_build_is_a_reason_for_another_torch(start, complaints):
    start.answers = [complaints]
    assert isinstance(start.main([]), str)
    assert len(pips(start)) == 1


@pytest.mark.parametrize(
    ("system", "driver", "answers", "helps"),
    [
        ("linux", None, True, True),
        ("linux", "nvidia-smi", True, False),
        ("linux", None, False, False),
        ("win32", None, True, False),
        ("darwin", None, True, False),
    ],
)
def test_where_the_index_of_cpu_builds_helps(bare, monkeypatch, system, driver, answers, helps):
    def urlopen(url, timeout):
        assert timeout <= 5
        if not answers:
            raise OSError("Name or service not known")
        return open(os.devnull, encoding="utf-8")

    monkeypatch.setattr(bare.sys, "platform", system)
    monkeypatch.setattr(bare.shutil, "which", lambda name: driver)
    monkeypatch.setattr(bare.urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(bare.Path, "exists", lambda path: False)
    assert bare.cpu_index_helps() is helps


# Chromium and bubblewrap


@pytest.fixture
def system(bare, monkeypatch):
    """A system whose programs only note that they were called; `has` names them, `fails` those that fail."""
    bare.has, bare.fails, bare.calls = {"apt-get", "sudo"}, set(), []

    def run(command, **options):
        bare.calls.append(command)
        return subprocess.CompletedProcess(command, bool(bare.fails & set(command)))

    monkeypatch.setattr(bare.subprocess, "run", run)
    monkeypatch.setattr(bare.shutil, "which", lambda name: name if name in bare.has else None)
    monkeypatch.setattr(bare.os, "geteuid", lambda: 0, raising=False)
    return bare


APT = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "--yes"]


def test_root_installs_programs(system, capsys):
    assert system.install_programs(["chromium", "bubblewrap"]) is None
    assert system.calls == [[*APT, "update"], [*APT, "install", "--no-install-recommends", "chromium", "bubblewrap"]]
    assert capsys.readouterr().out == "Installing chromium and bubblewrap, for tests in a browser or in a sandbox.\n"


def test_others_install_programs_with_a_sudo_that_does_not_ask(system, monkeypatch):
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000, raising=False)
    assert system.install_programs(["bubblewrap"]) is None
    assert system.calls[0] == ["sudo", "--non-interactive", "true"]
    assert [call[:3] for call in system.calls[1:]] == [["sudo", "--non-interactive", "env"]] * 2


@pytest.mark.parametrize(
    ("user", "missing", "fails", "reason"),
    [
        (0, "apt-get", None, "there is no apt-get to bring it"),
        (1000, "sudo", None, "apt-get needs root, or sudo without a password"),
        (1000, None, "true", "apt-get needs root, or sudo without a password"),
        (0, None, "update", "apt-get does not bring it"),
        (0, None, "install", "apt-get does not bring it"),
    ],
)
def test_what_keeps_a_program_away_is_said(system, monkeypatch, user, missing, fails, reason):
    monkeypatch.setattr(system.os, "geteuid", lambda: user, raising=False)
    system.has.discard(missing)
    system.fails.add(fails)
    assert system.install_programs(["chromium"]) == reason


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
    assert message.startswith(remedy)
    assert "\n" not in message


def test_an_unknown_failure_shows_the_end_of_the_complaints(start):
    start.answers = ["\n".join(f"line {number}" for number in range(100))]
    lines = start.main([]).splitlines()
    assert lines[-2] == "line 99"
    assert len(lines) == 16
    assert "delete the folder .venv" in lines[-1]


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "The disk is full"), (errno.EACCES, "A file in this folder")]
)
def test_an_error_of_the_system_is_explained(start, monkeypatch, number, remedy):
    def fail():
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr(start, "make_venv", fail)
    assert start.main([]).startswith(remedy)


def test_control_c_is_quiet(start, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "install_torch", interrupt)
    assert start.main([]).startswith("Stopped")
    assert not start.STAMP.exists()


# The same with real programs


def test_a_broken_venv_is_recognised_and_made_anew(bare, monkeypatch, capsys):
    def run_but_ensurepip(command, **options):
        return run([sys.executable, "-c", ""] if "ensurepip" in command else command, **options)

    run = subprocess.run
    monkeypatch.setattr(bare.subprocess, "run", run_but_ensurepip)  # unpacking pip takes seconds
    assert bare.python_in_venv() == b""
    bare.PYTHON.parent.mkdir(parents=True)
    bare.PYTHON.write_text("no program", encoding="utf-8")
    assert bare.python_in_venv() == b""
    bare.make_venv()
    assert "making .venv anew" in capsys.readouterr().out
    assert run([str(bare.PYTHON), "-c", ""]).returncode == 0
    assert bare.python_in_venv() == b"", "a Python without pip is of no use"
    packages = bare.VENV / "Lib/site-packages" if os.name == "nt" else next(bare.VENV.glob("lib/*/site-packages"))
    (packages / "pip.py").touch()
    assert bare.python_in_venv().decode() == str(sys.version_info[:2])
    monkeypatch.setattr(bare, "OLDEST", (99, 0))
    assert bare.python_in_venv() == b"", "too old"


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_a_missing_module_venv_is_explained(bare, monkeypatch, missing):
    def run_without(command, **options):
        return run(
            [sys.executable, "-m", f"{missing}_"] if missing in command else [sys.executable, "-c", ""], **options
        )

    run = subprocess.run
    monkeypatch.setattr(bare.subprocess, "run", run_without)
    with pytest.raises(bare.SetupError) as failure:
        bare.make_venv()
    assert bare.explain(str(failure.value)).startswith("This Python lacks its module venv")


def test_pip_runs_in_the_course_folder_and_its_complaints_are_heard(bare, monkeypatch):
    monkeypatch.setattr(bare, "PYTHON", Path(sys.executable))
    (bare.ROOT / "wanted.txt").write_text("no-such-package==0.0.1", encoding="utf-8")
    with pytest.raises(bare.SetupError, match=r"No matching distribution found for no-such-package==0\.0\.1"):
        bare.pip("--no-index", "--dry-run", "--ignore-installed", "--requirement", "wanted.txt")


def test_run_waits_for_the_program_through_control_c(bare, monkeypatch):
    class Program:
        outcomes = iter([KeyboardInterrupt, KeyboardInterrupt, 3])

        def wait(self):
            if (outcome := next(self.outcomes)) == 3:
                return outcome
            raise outcome

    monkeypatch.setattr(bare, "PYTHON", Path(sys.executable))
    assert bare.run("-c", "import os, sys; sys.exit(not os.path.samefile('.', sys.argv[1]))", str(bare.ROOT)) == 0
    monkeypatch.setattr(bare.subprocess, "Popen", lambda *arguments, **options: Program())
    assert bare.run("-c", "") == 3
