"""`smalearn doctor`: one real run, one without torch, and what each check says where its part is missing."""

import importlib.metadata
import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.utils import collect_env

from smalearn.course import doctor
from smalearn.course.doctor import CHECKS, PACKAGES, Finding


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def installed(monkeypatch):
    """Package -> version, or None: where a test changes it, the checks see it."""
    versions, real = {}, importlib.metadata.version

    def version(name):
        if versions.get(name, "") is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def oldest(name):
    """The oldest version that pyproject.toml allows."""
    line = next(line for line in importlib.metadata.requires("smalearn") if line.startswith(name + ">="))
    return re.search(">=([0-9.]+)", line)[1]


def test_a_real_run(here):
    (here / "chapters").mkdir()
    (here / "chapters/00_start.ipynb").touch()
    findings = doctor.report()
    assert [finding.name for finding in findings] == list(CHECKS)
    assert [finding for finding in findings if finding.needed and finding.status != "ok"] == []
    assert not [finding for finding in findings if "could not be looked at" in finding.cost]
    assert all(bool(finding.cost) == bool(finding.remedy) == (finding.status != "ok") for finding in findings)
    assert [path.name for path in here.iterdir()] == ["chapters"]
    text = doctor.render(findings)
    assert re.match(r"```text\nok       Python: 3\.\d+\.\d+.* on .*, smalearn \d", text)
    assert text.endswith("\nYou can work: everything that the course needs is here.\n```")


@pytest.mark.parametrize("error", [ZeroDivisionError("division\n  by zero"), SystemExit(3)])
def test_a_check_that_fails_is_a_warning(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(doctor, "CHECKS", {"torch": fail, "second": lambda: ("ok", "1.0")})
    first, second = doctor.report()
    assert (first.status, first.needed) == ("warning", True)
    assert first.detail in ("ZeroDivisionError: division by zero", "SystemExit: 3")
    assert second == Finding("second", "ok", "1.0")


@pytest.mark.parametrize(
    ("status", "needed", "can"),
    [("missing", True, False), ("missing", False, True), ("warning", True, True), ("ok", True, True)],
)
def test_who_can_work(status, needed, can):
    findings = [Finding("torch", "ok", "", needed=True), Finding("part", status, "", needed=needed)]
    assert doctor.can_work(findings) is can
    assert ("You cannot work yet: part." in doctor.render(findings)) is not can


def test_the_block_is_plain_and_names_no_home(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: r"C:\Users\Ada")
    text = doctor.render([Finding("GPU", "missing", r"in C:\Users\Ada\x ✗ ```", r"'C:\\Users\\Ada\\x'", "do → it")])
    assert text.splitlines() == [
        "```text",
        r"missing  GPU: in ~\x ? '''",
        r"         so: '~\\x'",
        "         do: do ? it",
        "You can work: everything that the course needs is here.",
        "```",
    ]
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/")  # a container whose home is the root
    assert "in /usr/bin" in doctor.render([Finding("GPU", "ok", "in /usr/bin")])


@pytest.mark.parametrize(("name", "value"), [("version_info", (3, 10, 13)), ("maxsize", 2**31 - 1)])
def test_python_that_is_too_old(monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value)
    assert CHECKS["Python"]()[::2] == ("missing", "the course needs a 64-bit Python 3.11 or newer")


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({}, "ok", "2.13.0+cpu, CPU build"),
        ({"cuda": "12.8"}, "ok", "2.13.0+cpu, CUDA 12.8 build"),
        ({"hip": "6.4"}, "ok", "2.13.0+cpu, ROCm 6.4 build"),
        ({"version": "2.2.2"}, "warning", "2.2.2, CPU build, older than {oldest}"),
    ],
)
def test_torch(monkeypatch, changes, status, detail):
    monkeypatch.setattr(torch, "__version__", changes.pop("version", "2.13.0+cpu"))
    monkeypatch.setattr(torch, "version", types.SimpleNamespace(**{"cuda": None, "hip": None} | changes))
    assert CHECKS["torch"]()[:2] == (status, detail.format(oldest=oldest("torch")))


@pytest.mark.parametrize(
    ("system", "machine", "broken", "remedy"),
    [
        ("Linux", "x86_64", False, "python start.py"),
        ("Darwin", "arm64", False, "python start.py"),
        ("Darwin", "x86_64", False, "no PyTorch for Intel Macs since 2.3"),
        ("Windows", "AMD64", False, "python start.py"),
        ("Windows", "AMD64", True, "vc_redist.x64.exe"),
    ],
)
def test_torch_missing(monkeypatch, system, machine, broken, remedy):
    monkeypatch.setattr(doctor.platform, "system", lambda: system)
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch") if broken else None)
    status, detail, _, said = CHECKS["torch"]()
    assert (status, detail.partition(":")[0]) == ("missing", "AttributeError" if broken else "ModuleNotFoundError")
    assert remedy in said


@pytest.mark.parametrize("name", PACKAGES)
def test_packages(monkeypatch, installed, name):
    installed[name] = "9999.1"
    assert CHECKS[name]() == ("ok", "9999.1")
    installed[name] = "0.0.1"
    assert CHECKS[name]()[:2] == ("warning", f"0.0.1, older than {oldest(name)}")
    installed[name] = None
    monkeypatch.setattr(sys, "platform", "linux")
    extra, cost = PACKAGES[name]
    assert CHECKS[name]() == ("missing", "not installed", cost, f'python -m pip install -e ".[{extra}]"')


def test_triton_exists_for_linux_alone(monkeypatch, installed):
    installed["triton"] = None
    monkeypatch.setattr(sys, "platform", "win32")
    assert CHECKS["triton"]()[::3] == ("missing", "nothing")


@pytest.mark.parametrize(
    ("program", "status"),
    [("python", "ok"), (sys.executable, "ok"), (os.path.abspath("/somewhere/else/bin/python"), "missing")],
)
def test_kernel(monkeypatch, program, status):
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda self, name: KernelSpec(argv=[program, "-m"]))
    assert CHECKS["kernel python3"]()[0] == status
    monkeypatch.setitem(sys.modules, "jupyter_client.kernelspec", None)
    assert CHECKS["kernel python3"]()[2:] == ("no cell runs", 'python -m pip install -e ".[lab]"')


def test_work(monkeypatch, here):
    (here / "work").mkdir()
    assert CHECKS["folder work"]() == ("ok", "can be written")
    assert list((here / "work").iterdir()) == []

    def fail(dir):
        raise PermissionError(13, "Permission denied", dir)

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", fail)
    assert CHECKS["folder work"]()[:2] == ("missing", "PermissionError: [Errno 13] Permission denied: 'work'")


@pytest.mark.parametrize(
    ("gpu", "seen", "driver", "status", "detail"),
    [
        (False, None, None, "missing", "none"),
        (False, "No devices found.", "550.1", "missing", "none"),
        (False, "GPU 0: RTX 4090\nGPU 1: RTX 4090", "550.1", "warning", "it: GPU 0: RTX 4090, driver 550.1"),
        (True, "GPU 0: H200", "550.1", "ok", "NVIDIA H200, 150 GB, driver 550.1"),
        (True, None, None, "ok", "NVIDIA H200, 150 GB, driver unknown"),
    ],
)
def test_gpu(monkeypatch, gpu, seen, driver, status, detail):
    card = types.SimpleNamespace(total_memory=150.1e9)
    found = {"is_available": gpu, "get_device_properties": card, "get_device_name": "NVIDIA H200"}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *index, value=value: value)
    monkeypatch.setattr(collect_env, "get_gpu_info", lambda run: seen)
    monkeypatch.setattr(collect_env, "get_nvidia_driver_version", lambda run: driver)
    found = CHECKS["GPU"]()
    assert (found[0], found[1].endswith(detail)) == (status, True)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert CHECKS["GPU"]()[:2] == ("missing", "not looked for without torch")


@pytest.mark.parametrize("cache", [".cache", "Library/Caches", "AppData/Local"])
def test_chromium(monkeypatch, here, cache):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(Path, "home", lambda: here)
    assert CHECKS["Chromium"]()[0] == "missing"
    (here / cache / "ms-playwright/chromium-1200").mkdir(parents=True)
    assert CHECKS["Chromium"]() == ("ok", "chromium-1200")
