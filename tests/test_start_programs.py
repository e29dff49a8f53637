"""What start.py runs: pip, venv, the program that was asked for, apt-get; and where it looks for PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_start import loaded


@pytest.fixture
def bare(tmp_path):
    return loaded(tmp_path)


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


@pytest.mark.parametrize("sudo", [[], ["sudo", "--non-interactive"]])
def test_programs_are_installed_by_root_or_by_a_sudo_that_does_not_ask(system, monkeypatch, sudo, capsys):
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000 * len(sudo), raising=False)
    assert system.install_programs(["chromium", "bubblewrap"]) is None
    install = [*sudo, *APT, "install", "--no-install-recommends", "chromium", "bubblewrap"]
    assert system.calls == [*[[*sudo, "true"]] * bool(sudo), [*sudo, *APT, "update"], install]
    assert capsys.readouterr().out == "Installing chromium and bubblewrap, for tests in a browser or in a sandbox.\n"


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
