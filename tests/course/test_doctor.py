"""`smalearn doctor`: every probe with fakes for each of its answers, the block it makes, and one real run."""

import importlib.metadata
import ntpath
import os
import re
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import pytest

from smalearn.course import doctor
from smalearn.course.doctor import findings, probes
from smalearn.course.doctor.findings import PROBES, Finding

NAMES = [
    *("system", "Python", "torch", "numpy", "einops", "matplotlib", "jupyterlab", "ipywidgets", "anywidget"),
    *("widgets in JupyterLab", "kernel python3", "folder work", "disk", "memory", "data", "GPU", "Triton"),
    *("test tools", "site tools", "Chromium"),
]
DLL = OSError(22, r"The specified module could not be found. Error loading C:\x\fbgemm.dll")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, and nothing set that the probes look at."""
    monkeypatch.chdir(tmp_path)
    for name in ("SMALEARN_DATA", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def installed(monkeypatch):
    """Package -> version, or None: where the tests change it, the probes see it."""
    versions = {}
    real = importlib.metadata.version

    def version(name):
        if versions.get(name, "") is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def ask(name):
    """Status, what was found, cost and remedy, with a remedy wherever there is a cost."""
    status, found, *rest = PROBES[name][0]()
    assert status in ("ok", "missing", "warning")
    assert len(rest) == (0 if status == "ok" else 2)
    return types.SimpleNamespace(status=status, found=found, cost="".join(rest[:1]), remedy="".join(rest[1:]))


def system(monkeypatch, name, machine="x86_64"):
    monkeypatch.setattr(probes.platform, "system", lambda: name)
    monkeypatch.setattr(probes.platform, "machine", lambda: machine)


def fake_torch(monkeypatch, **changes):
    """A module torch with the attributes that the probes ask for; a dotted name in `changes` has __ for its dots."""

    class Ones:
        all = __matmul__ = __eq__ = lambda self, *other: self
        __hash__ = None
        __bool__ = lambda self: changes.get("right", True)  # noqa: E731

    torch = types.ModuleType("torch")
    torch.__version__ = changes.get("version", "2.13.0+cpu")
    torch.version = types.SimpleNamespace(cuda=changes.get("cuda"), hip=changes.get("hip"))
    torch.ones = lambda *shape: Ones()
    torch.get_num_threads = lambda: 2
    card = types.SimpleNamespace(name="NVIDIA H200", total_memory=150.1e9)
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: changes.get("gpu", False), get_device_properties=lambda index: card
    )
    mps = types.SimpleNamespace(is_available=lambda: changes.get("mps", False))
    torch.backends = types.SimpleNamespace(mps=mps)
    monkeypatch.setitem(sys.modules, "torch", torch)


def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def smi(monkeypatch, output):
    """What nvidia-smi prints; None where there is none."""

    def run(command, **options):
        if output is None:
            raise FileNotFoundError(command[0])
        assert options["timeout"] <= 2
        return subprocess.CompletedProcess(command, 0, stdout=output)

    monkeypatch.setattr(probes.subprocess, "run", run)


# The whole


def test_a_real_run_here(here):
    (here / "chapters").mkdir()
    (here / "chapters/00_start.ipynb").touch()
    before = time.process_time()
    found = doctor.report()
    assert time.process_time() - before < 5
    assert [finding.name for finding in found] == NAMES
    assert [f for f in found if f.needed and f.status != "ok"] == []
    assert not [f for f in found if "could not be looked at" in f.cost]
    assert doctor.can_work(found)
    assert [path.name for path in here.iterdir()] == ["chapters"]
    text = doctor.render(found)
    assert text.isascii()
    assert text.startswith("```text\nok       system: ")
    assert text.endswith("\nYou can work: everything that the course needs is here.\n```")
    assert os.path.expanduser("~") not in text


def test_without_torch_it_says_so():
    """In a Python of its own, since no test can forget torch: the package and the probes do without it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from smalearn.course import doctor\n"
        "findings = doctor.report(); print(doctor.render(findings)); sys.exit(not doctor.can_work(findings))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert process.returncode == 1, process.stderr
    assert "\nmissing  torch: ModuleNotFoundError: " in process.stdout
    assert "\nYou cannot work yet: torch.\n" in process.stdout
    assert "could not be looked at" not in process.stdout


@pytest.mark.parametrize("error", [ZeroDivisionError("division\n  by zero"), SystemExit(3)])
def test_a_probe_that_fails_is_a_finding(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(findings, "PROBES", {"first": (fail, True), "second": (lambda: ("ok", "1.0"), False)})
    first, second = doctor.report()
    assert first.status == "warning"
    assert first.found in ("ZeroDivisionError: division by zero", "SystemExit: 3")
    assert first.needed
    assert second == Finding("second", "ok", "1.0")


def test_a_probe_that_warns_is_heard_out(monkeypatch):
    def warn():
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return "ok", "1.0"

    monkeypatch.setattr(findings, "PROBES", {"only": (warn, False)})
    assert doctor.report() == [Finding("only", "ok", "1.0")]


@pytest.mark.parametrize(
    ("status", "needed", "can"),
    [("missing", True, False), ("missing", False, True), ("warning", True, True), ("ok", True, True)],
)
def test_who_can_work(status, needed, can):
    found = [Finding("torch", "ok", "", needed=True), Finding("part", status, "", needed=needed)]
    assert doctor.can_work(found) is can
    assert ("You cannot work yet: part." in doctor.render(found)) is not can


def test_a_long_message_is_cut():
    assert len(findings.said(ValueError("long " * 1000))) == 300


def test_the_block_is_plain():
    text = doctor.render([Finding("GPU", "missing", "Grafik­karte ✗ ```", "nichts: ü", "do → it")])
    assert text.splitlines() == [
        "```text",
        "missing  GPU: Grafik?karte ? '''",
        "         so: nichts: ?",
        "         do: do ? it",
        "You can work: everything that the course needs is here.",
        "```",
    ]


@pytest.mark.parametrize(
    ("home", "text", "expected"),
    [
        ("/home/ada", "in /home/ada/kurs", "in ~/kurs"),
        ("/home/ada", "'/home/ada'", "'~'"),
        ("/home/ada", "/home/adam/x /data/ada/x /data/adam ada", "/home/adam/x /data/<user>/x /data/adam ada"),
        ("/Users/Jürgen", "/users/jürgen/x", "~/x"),
        ("/", "/usr/bin/ and /", "/usr/bin/ and /"),
    ],
)
def test_the_block_names_nobody(monkeypatch, home, text, expected):
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    assert findings._anonymous(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"C:\Users\Ada\x", r"~\x"),
        (r"'C:\\Users\\Ada\\x'", r"'~\\x'"),
        ("c:/users/ada/x", "~/x"),
        (r"D:\ADA\x", r"D:\<user>\x"),
        (r"C:\Users\Adam", r"C:\Users\Adam"),
    ],
)
def test_the_block_names_nobody_on_windows(monkeypatch, text, expected):
    monkeypatch.setattr(findings, "os", types.SimpleNamespace(path=ntpath))
    monkeypatch.setenv("USERPROFILE", r"C:\Users\Ada")
    assert findings._anonymous(text) == expected


# Each probe


def test_system_64(monkeypatch):
    assert ask("system").status == "ok"
    assert probes.platform.node() not in ask("system").found


def test_system_32(monkeypatch):
    monkeypatch.setattr(probes.sys, "maxsize", 2**31 - 1)
    assert ask("system").status == "missing"
    assert "64-bit" in ask("system").remedy


@pytest.mark.parametrize(
    ("prefix", "conda", "place"),
    [("elsewhere", "", "virtual environment"), (None, "base", "conda"), (None, "", "no virtual environment")],
)
def test_python(monkeypatch, prefix, conda, place):
    monkeypatch.setattr(sys, "prefix", prefix or sys.base_prefix)
    monkeypatch.setenv("CONDA_PREFIX", conda)
    assert ask("Python").status == "ok"
    assert f", {place}, smalearn 0" in ask("Python").found


def test_python_that_is_too_old(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert ask("Python").status == "missing"
    assert ask("Python").cost == "the course needs 3.11 or newer"


@pytest.mark.parametrize(
    ("changes", "build"),
    [({}, "CPU"), ({"cuda": "12.8"}, "CUDA 12.8"), ({"hip": "6.4"}, "ROCm 6.4")],
)
def test_torch(monkeypatch, changes, build):
    fake_torch(monkeypatch, **changes)
    assert ask("torch").status == "ok"
    assert re.fullmatch(rf"2\.13\.0\+cpu, {build} build, 2 threads, a matrix product in \d+\.\d ms", ask("torch").found)


@pytest.mark.parametrize(
    ("changes", "end"), [({"right": False}, "and it is wrong"), ({"version": "2.2.2"}, "older than 2.6")]
)
def test_torch_with_something_wrong(monkeypatch, changes, end):
    fake_torch(monkeypatch, **changes)
    assert ask("torch").status == "warning"
    assert ask("torch").found.endswith(f", {end}")


@pytest.mark.parametrize(
    ("name", "machine", "error", "remedy"),
    [
        ("Linux", "x86_64", None, "python start.py"),
        ("Darwin", "arm64", None, "python start.py"),
        ("Darwin", "x86_64", None, "no PyTorch for Intel Macs since 2.3"),
        ("Windows", "AMD64", None, "python start.py"),
        ("Windows", "AMD64", DLL, "vc_redist.x64.exe"),
        ("Linux", "x86_64", OSError("libcudart.so.12: cannot open shared object file"), "python start.py"),
    ],
)
def test_torch_missing(monkeypatch, name, machine, error, remedy):
    system(monkeypatch, name, machine)
    without_torch(monkeypatch)
    if error:
        monkeypatch.setattr(probes, "_product", lambda: (_ for _ in ()).throw(error))
    assert ask("torch").status == "missing"
    assert remedy in ask("torch").remedy
    assert str(error or "torch") in ask("torch").found


def test_a_folder_called_torch_is_not_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert ask("torch").status == "missing"


@pytest.mark.parametrize("name", ["numpy", "einops", "matplotlib", "jupyterlab", "ipywidgets", "anywidget"])
def test_packages(installed, name):
    assert ask(name).status == "ok"
    assert re.match(r"\d+\.\d+", ask(name).found)
    installed[name] = "0.0.1"
    assert ask(name).status == "warning"
    least = next(text for text in importlib.metadata.requires("smalearn") if text.startswith(name + ">="))
    assert ask(name).found == f"0.0.1, older than {re.search('>=([0-9.]+)', least).group(1)}"
    installed[name] = None
    assert (ask(name).status, ask(name).found) == ("missing", "not installed")
    assert ".[lab]" in ask(name).remedy


def test_versions_compare_as_numbers():
    assert probes._numbers("2.13.0+cpu") > probes._numbers("2.6")
    assert probes._numbers("2025.7") == (2025, 7)
    assert probes._numbers("2.7.0rc1") == (2, 7, 0)
    assert probes._least("no-such-package") == "0"


def test_widgets(monkeypatch, here, installed):
    assert ask("widgets in JupyterLab").status == "ok"
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda name: [str(here)])
    (here / "anywidget").mkdir()
    assert ask("widgets in JupyterLab").status == "missing"
    assert ask("widgets in JupyterLab").found == "no @jupyter-widgets/jupyterlab-manager"
    installed["jupyterlab"] = None
    assert ask("widgets in JupyterLab").found == "no JupyterLab"


@pytest.mark.parametrize(
    ("program", "status"),
    [("python", "ok"), (sys.executable, "ok"), (os.path.abspath("/somewhere/else/bin/python"), "missing")],
)
def test_kernel(monkeypatch, installed, program, status):
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda self, name: KernelSpec(argv=[program, "-m"]))
    assert ask("kernel python3").status == status
    installed["ipykernel"] = None
    assert (ask("kernel python3").status, ask("kernel python3").found) == ("missing", "no ipykernel")


def test_work(monkeypatch, here):
    assert (ask("folder work").status, ask("folder work").found) == ("warning", "no chapters here")
    (here / "chapters").mkdir()
    (here / "chapters/00_start.ipynb").touch()
    assert (ask("folder work").status, ask("folder work").found) == ("ok", "not made yet, can be made")
    (here / "work").mkdir()
    assert (ask("folder work").status, ask("folder work").found) == ("ok", "can be written")
    assert list((here / "work").iterdir()) == []

    def fail(dir):
        raise PermissionError(13, "Permission denied", str(here / dir))

    monkeypatch.setattr(probes.tempfile, "TemporaryFile", fail)
    assert ask("folder work").status == "missing"
    assert ask("folder work").found.startswith("PermissionError: [Errno 13]")


@pytest.mark.parametrize(("free", "status", "found"), [(2.1e9, "ok", "2 GB free"), (1.9e9, "warning", "1.9 GB free")])
def test_disk(monkeypatch, free, status, found):
    monkeypatch.setattr(probes.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=free))
    assert (ask("disk").status, ask("disk").found) == (status, found)


@pytest.mark.parametrize(("pages", "status"), [(2_000_000, "ok"), (900_000, "warning")])
@pytest.mark.parametrize("windows", [False, True])
def test_memory(monkeypatch, pages, status, windows):
    values = {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}
    if windows:
        monkeypatch.delattr(os, "sysconf", raising=False)
        psutil = types.ModuleType("psutil")
        psutil.virtual_memory = lambda: types.SimpleNamespace(total=4096 * pages)
        monkeypatch.setitem(sys.modules, "psutil", psutil)
    else:
        monkeypatch.setattr(os, "sysconf", values.__getitem__, raising=False)
    assert ask("memory").status == status
    assert ask("memory").found == f"{4096e-9 * pages:.1f} GB, {os.cpu_count()} processors"


def test_data(monkeypatch, here, installed):
    installed["pooch"] = "1.9.0"
    assert (ask("data").status, ask("data").found) == ("ok", "pooch 1.9.0 downloads them when they are asked for")
    installed["pooch"] = None
    assert (ask("data").status, ask("data").found) == ("missing", "no pooch, which downloads them")
    assert ask("data").remedy == probes.INSTALL_LAB
    monkeypatch.setenv("SMALEARN_DATA", str(here / "private name"))
    assert ask("data").status == "warning"
    (here / "private name").mkdir()
    assert (ask("data").status, ask("data").found) == ("ok", "SMALEARN_DATA has 0 entries")


@pytest.mark.parametrize(
    ("changes", "output", "status", "found"),
    [
        ({}, None, "missing", "none"),
        ({}, "", "missing", "none"),
        ({}, "No devices were found\n", "missing", "none"),
        ({}, "RTX 4090, 550.1\n", "warning", "this PyTorch cannot use it: RTX 4090, driver 550.1"),
        ({"gpu": True}, "H200, 550.1\nH200, 550.1\n", "ok", "NVIDIA H200, 150 GB, H200, driver 550.1"),
        ({"gpu": True}, None, "ok", "NVIDIA H200, 150 GB, driver unknown"),
        ({"mps": True}, None, "missing", "Apple's (MPS), which the course does not use"),
    ],
)
def test_gpu(monkeypatch, changes, output, status, found):
    fake_torch(monkeypatch, **changes)
    smi(monkeypatch, output)
    assert (ask("GPU").status, ask("GPU").found) == (status, found)


def test_gpu_without_torch(monkeypatch):
    without_torch(monkeypatch)
    smi(monkeypatch, "RTX 4090, 550.1\n")
    assert (ask("GPU").status, ask("GPU").found) == ("missing", "RTX 4090, driver 550.1")


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(probes.subprocess, "run", run)
    assert probes._nvidia_smi() == ""


@pytest.mark.parametrize(
    ("platform", "name", "found", "remedy"),
    [
        ("linux", "Linux", "not installed", 'python -m pip install -e ".[gpu]"'),
        ("win32", "Windows", "there is none for Windows", "nothing"),
        ("darwin", "Darwin", "there is none for Darwin", "nothing"),
    ],
)
def test_triton(monkeypatch, installed, platform, name, found, remedy):
    installed["triton"] = "3.7.1"
    assert (ask("Triton").status, ask("Triton").found) == ("ok", "3.7.1")
    installed["triton"] = None
    monkeypatch.setattr(sys, "platform", platform)
    system(monkeypatch, name)
    assert (ask("Triton").status, ask("Triton").found, ask("Triton").remedy) == ("missing", found, remedy)
    assert "tile machine" in ask("Triton").cost


def test_test_tools(installed):
    assert ask("test tools").status == "ok"
    installed.update(nbval=None, hypothesis=None)
    assert (ask("test tools").status, ask("test tools").found) == ("missing", "no nbval, hypothesis")


def test_site_tools(installed):
    installed.update({"sphinx": "9.0", "myst-nb": "1.4", "furo": "2025.12"})
    assert (ask("site tools").status, ask("site tools").found) == ("ok", "sphinx 9.0, myst-nb 1.4, furo 2025.12")
    installed.update({"sphinx": None, "furo": None})
    assert (ask("site tools").status, ask("site tools").found) == ("missing", "no sphinx, furo")
    assert ask("site tools").remedy.endswith('".[site]"')


@pytest.mark.parametrize("cache", [".cache", "Library/Caches", "AppData/Local", None])
def test_chromium(monkeypatch, here, cache):
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    monkeypatch.setattr(Path, "home", lambda: here)
    assert ask("Chromium").status == "missing"
    if cache:
        (here / cache / "ms-playwright/chromium-1200").mkdir(parents=True)
        assert (ask("Chromium").status, ask("Chromium").found) == ("ok", "chromium-1200")
    monkeypatch.setattr(probes.shutil, "which", lambda name: "/usr/bin/x" if name == "google-chrome" else None)
    assert ask("Chromium").status == "ok"
