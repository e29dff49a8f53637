"""The probes, those for what a learner needs first.

Each is a small function that returns status, what was found, and, unless that is "ok", what it costs and what gets it.
A probe may fail in any way: `report` says so and goes on.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from smalearn.course.doctor.findings import probe, said

__all__ = []

INSTALL_LAB = 'python -m pip install -e ".[lab]"'
INSTALL_TESTS = 'python -m pip install -e ".[bench,dev,lab]"'
INTEL_MAC = (
    "pip has had no PyTorch for Intel Macs since 2.3. Try conda-forge: conda env create -f environment.yml. Otherwise "
    "use a Linux machine or Google Colab. (On a Mac with an Apple chip, this is an Intel Python: install an arm64 one.)"
)
PYTHON = "https://www.python.org/downloads"
VISUAL_C = "install https://aka.ms/vs/17/release/vc_redist.x64.exe (Microsoft's Visual C++ runtime), then try again"
NO_GPU = "the times of chapter 12; its programs run and are checked in the tile machine"
GET_GPU = "use a Linux machine with an NVIDIA GPU, if you want times of your own"
GB = 1e9


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu as (2, 13, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _least(name: str) -> str:
    """The oldest version of a package that smalearn works with."""
    for requirement in importlib.metadata.requires("smalearn") or []:
        match = re.match(rf"{name}>=([\d.]+)", requirement)
        if match:
            return match.group(1)
    return "0"


def _version(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@probe("system", needed=True)
def _system() -> tuple:
    found = f"{platform.platform()}, {platform.machine()}"
    if sys.maxsize < 2**32:
        return "missing", f"{found}, a 32-bit Python", "PyTorch has no 32-bit build", f"get a 64-bit Python: {PYTHON}"
    return "ok", found


@probe("Python", needed=True)
def _python() -> tuple:
    conda = "conda" if os.environ.get("CONDA_PREFIX") else "no virtual environment"
    place = "virtual environment" if sys.prefix != sys.base_prefix else conda
    found = f"{platform.python_version()}, {platform.python_implementation()}, {place}"
    least = re.search(r"[\d.]+", importlib.metadata.metadata("smalearn")["Requires-Python"]).group()
    if sys.version_info < _numbers(least):
        return "missing", found, f"the course needs {least} or newer", f"get it: {PYTHON}, then python start.py"
    return "ok", f"{found}, smalearn {_version('smalearn')}"


@probe("torch", needed=True)
def _torch() -> tuple:
    intel_mac = platform.system() == "Darwin" and platform.machine() == "x86_64"
    remedy = INTEL_MAC if intel_mac else "python start.py"
    try:
        version, found, right = _product()
    except Exception as error:
        installed = not isinstance(error, ModuleNotFoundError)
        remedy = VISUAL_C if installed and platform.system() == "Windows" else remedy
        return "missing", said(error), "nothing of the course runs", remedy
    if not right:
        return (
            "warning",
            f"{found}, and it is wrong",
            "trust no result",
            "delete the folder .venv, then python start.py",
        )
    if _numbers(version) < _numbers(_least("torch")):
        return "warning", f"{found}, older than {_least('torch')}", "code that needs a newer one fails", remedy
    return "ok", found


def _product() -> tuple[str, str, bool]:
    """PyTorch's version, what is to be said of it, and whether its matrix product is right."""
    import torch

    cuda, rocm = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU"
    ones = torch.ones(512, 512)
    ones @ ones  # the first one also starts the threads
    began = time.perf_counter()
    right = bool((ones @ ones == 512).all())
    took = 1e3 * (time.perf_counter() - began)
    found = f"{torch.__version__}, {build} build, {torch.get_num_threads()} threads, a matrix product in {took:.1f} ms"
    return torch.__version__, found, right


def _package(name: str, cost: str) -> tuple:
    version, least = _version(name), _least(name)
    if version is None:
        return "missing", "not installed", cost, INSTALL_LAB
    if _numbers(version) < _numbers(least):
        return "warning", f"{version}, older than {least}", f"it may be that {cost}", INSTALL_LAB
    return "ok", version


for _name, _cost in {
    "numpy": "nothing of the course runs",
    "einops": "chapters that rearrange axes fail",
    "matplotlib": "chapters fail in their first cell: no pictures",
    "jupyterlab": "the chapters do not open",
    "ipywidgets": "no sliders, and chapters that have some fail",
    "anywidget": "no interactive pictures, and chapters that have some fail",
}.items():
    probe(_name, needed=True)(partial(_package, _name, _cost))


@probe("widgets in JupyterLab")
def _widgets() -> tuple:
    cost = "interactive pictures show as text"
    if _version("jupyterlab") is None:
        return "missing", "no JupyterLab", cost, INSTALL_LAB
    from jupyter_core.paths import jupyter_path

    wanted = ["@jupyter-widgets/jupyterlab-manager", "anywidget"]
    folders = [Path(folder) for folder in jupyter_path("labextensions")]
    lacking = [name for name in wanted if not any((folder / name).exists() for folder in folders)]
    if lacking:
        return "missing", f"no {', '.join(lacking)}", cost, f"{INSTALL_LAB} --force-reinstall"
    return "ok", ", ".join(wanted)


@probe("kernel python3", needed=True)
def _kernel() -> tuple:
    if _version("ipykernel") is None:
        return "missing", "no ipykernel", "no cell runs", INSTALL_LAB
    from jupyter_client.kernelspec import KernelSpecManager

    program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    folders = {os.path.normcase(os.path.dirname(path)) for path in (program, sys.executable)}
    if os.path.isabs(program) and len(folders) > 1:  # a bare "python" starts the Python that JupyterLab runs in
        cost = "cells run where smalearn may be missing"
        return "missing", "starts another Python than this one", cost, "python -m ipykernel install --sys-prefix"
    return "ok", "starts this Python"


@probe("folder work", needed=True)
def _work() -> tuple:
    if not any(Path("chapters").glob("*.ipynb")):
        return "warning", "no chapters here", "this says nothing of work/", "run it in the folder with start.py"
    folder = Path("work") if Path("work").exists() else Path()
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return "missing", said(error), "nothing that you write is saved", "check whose folder this is, and the disk"
    return "ok", "can be written" if folder.name else "not made yet, can be made"


@probe("disk")
def _disk() -> tuple:
    free = shutil.disk_usage(".").free / GB
    if free < 2:
        return "warning", f"{free:.1f} GB free", "what you write may not be saved", "make room"
    return "ok", f"{free:.0f} GB free"


@probe("memory")
def _memory() -> tuple:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
    except (AttributeError, ValueError):  # Windows
        import psutil  # JupyterLab's kernel brings it

        total = psutil.virtual_memory().total / GB
    found = f"{total:.1f} GB, {os.cpu_count()} processors"
    if total < 4:
        return "warning", found, "a chapter takes up to 1.5 GB, the browser more", "close other programs"
    return "ok", found


@probe("data")
def _data() -> tuple:
    folder = os.environ.get("SMALEARN_DATA")
    cost = "a cell of chapter 11 fails, and experiments with real data"
    if not folder:
        if _version("pooch") is None:
            return "missing", "no pooch, which downloads them", cost, INSTALL_LAB
        return "ok", f"pooch {_version('pooch')} downloads them when they are asked for"
    if not Path(folder).is_dir():
        return "warning", "SMALEARN_DATA names no folder", cost, "set SMALEARN_DATA to the folder, or to nothing"
    return "ok", f"SMALEARN_DATA has {len(os.listdir(folder))} entries"


@probe("GPU")
def _gpu() -> tuple:
    driver = _nvidia_smi()
    try:
        import torch
    except Exception:
        return "missing", driver or "none", "PyTorch is missing, which would use it", "see torch, above"
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return "ok", f"{card.name}, {card.total_memory / GB:.0f} GB, {driver or 'driver unknown'}"
    if driver:
        remedy = "install PyTorch with the line for your driver from https://pytorch.org/get-started/locally"
        return "warning", f"this PyTorch cannot use it: {driver}", NO_GPU, remedy
    if torch.backends.mps.is_available():
        return "missing", "Apple's (MPS), which the course does not use", NO_GPU, GET_GPU
    return "missing", "none", NO_GPU, GET_GPU


def _nvidia_smi() -> str:
    """Name and driver of the first NVIDIA GPU, in the words of its driver; empty where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    name, _, driver = output.partition("\n")[0].partition(", ")
    return f"{name}, driver {driver}" if driver else ""


@probe("Triton")
def _triton() -> tuple:
    cost = "little: chapter 12 runs the same programs in the tile machine"
    if version := _version("triton"):
        return "ok", version
    if sys.platform != "linux":
        return "missing", f"there is none for {platform.system()}", cost, "nothing"
    return "missing", "not installed", cost, 'python -m pip install -e ".[gpu]"'


@probe("test tools")
def _tests() -> tuple:
    lacking = [name for name in ("pytest", "nbval", "hypothesis", "nbclient") if _version(name) is None]
    if lacking:
        return "missing", f"no {', '.join(lacking)}", "the tests do not run; the course needs none", INSTALL_TESTS
    return "ok", f"pytest {_version('pytest')}, nbval {_version('nbval')}"


@probe("site tools")
def _site() -> tuple:
    lacking = [name for name in ("sphinx", "myst-nb", "furo") if _version(name) is None]
    if lacking:
        cost = "smalearn site writes no pages; the course needs none"
        return "missing", f"no {', '.join(lacking)}", cost, 'python -m pip install -e ".[site]"'
    return "ok", f"sphinx {_version('sphinx')}, myst-nb {_version('myst-nb')}, furo {_version('furo')}"


@probe("Chromium")
def _chromium() -> tuple:
    names = ["chromium", "chromium-browser", "google-chrome", "chrome", "msedge"]
    caches = [".cache/ms-playwright", "Library/Caches/ms-playwright", "AppData/Local/ms-playwright"]
    own = [path for cache in caches for path in Path.home().glob(f"{cache}/chromium*")]
    if own or any(map(shutil.which, names)):
        return "ok", own[0].name if own else next(name for name in names if shutil.which(name))
    cost = "the tests of interactive pictures are skipped; the course needs none"
    return "missing", "not found", cost, "python -m playwright install chromium"
