"""Say which parts are here and which are missing, what their lack costs, and how to get them: `smalearn doctor`.

Nothing in this module needs torch, or anything else that it looks for, to be installed.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from smalearn._files import FILES, install

__all__ = ["Finding", "can_work", "render", "report"]

PACKAGES = {  # name: (the extra that brings it, what a learner cannot do without it)
    "numpy": ("lab", "nothing of the course runs"),
    "einops": ("lab", "chapters that rearrange axes fail"),
    "matplotlib": ("lab", "chapters fail in their first cell: no pictures"),
    "jupyterlab": ("lab", "the chapters do not open"),
    "ipywidgets": ("lab", "no sliders, and chapters that have some fail"),
    "anywidget": ("lab", "no interactive pictures, and chapters that have some fail"),
    "pooch": ("lab", "a cell of chapter 11 fails, and experiments with real data"),
    "triton": ("gpu", "little: chapter 12 runs the same programs in the Triton emulator"),
    **dict.fromkeys(["pytest", "nbval"], ("bench,dev,lab", "the tests do not run; the course needs none")),
    **dict.fromkeys(["sphinx", "myst-nb", "furo"], ("site", "smalearn site writes no pages; the course needs none")),
    "math-core": ("site", "smalearn site and slides write no pages; the course needs none"),
}
NEEDED = {"Python", "torch", *list(PACKAGES)[:6], "kernel python3", "folder work"}  # a learner cannot work without
INTEL_MAC = (
    "pip has had no PyTorch for Intel Macs since 2.3. Try conda-forge: conda install -c conda-forge pytorch. "
    "(On a Mac with an Apple chip, this is an Intel Python: install an arm64 one.)"
)
START = "python start.py" if (FILES / "start.py").is_file() else install("lab")
VISUAL_C = "install https://aka.ms/vs/17/release/vc_redist.x64.exe (Microsoft's Visual C++ runtime), then try again"
GPU_BUILD = "install PyTorch with the line for your driver from https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Finding:
    """State of one part: its `status` is "ok", "missing", or "warning" where it is there but something is wrong.

    `cost` and `remedy` are empty where all is well; without a part that is `needed`, a learner cannot work.
    """

    name: str
    status: str
    detail: str
    cost: str = ""
    remedy: str = ""
    needed: bool = False


def report() -> list[Finding]:
    """Look at everything, in the current folder, as long as importing torch takes; a check that fails is a warning."""
    findings = []
    for name, check in CHECKS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parts = check()
        except (Exception, SystemExit) as error:
            parts = "warning", _one_line(error), "this could not be looked at", "report it, with this text"
        findings.append(Finding(name, *parts, needed=name in NEEDED))
    return findings


def can_work(findings: Iterable[Finding]) -> bool:
    """Say whether nothing is missing that a learner needs."""
    return not any(finding.needed and finding.status == "missing" for finding in findings)


def render(findings: Iterable[Finding]) -> str:
    """Write the findings as one block to paste into a bug report: plain ASCII, and the home folder is ~.

    Example:
        >>> print(render([Finding("triton", "missing", "not installed", "nothing so far", "nothing")]))
        ```text
        missing  triton: not installed
                 so: nothing so far
                 do: nothing
        You can work: everything that the course needs is here.
        ```
    """
    lines, missing = [], [finding.name for finding in findings if not can_work([finding])]
    for finding in findings:
        lines.append(f"{finding.status:<9}{finding.name}: {finding.detail}")
        lines += [f"{'':9}so: {finding.cost}", f"{'':9}do: {finding.remedy}"] if finding.cost else []
    needs = f"You cannot work yet: {', '.join(missing)}."
    text = "\n".join([*lines, needs if missing else "You can work: everything that the course needs is here."])
    home = os.path.expanduser("~")
    for form in (home, repr(home)[1:-1]) if len(home) > 1 else ():  # a path in a Windows error has its \ doubled
        text = text.replace(form, "~")
    return f"```text\n{text.replace('`', chr(39)).encode('ascii', 'replace').decode()}\n```"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _too_old(name: str, version: str) -> str:
    """Return the oldest version that smalearn works with if this one is older; else an empty string."""
    numbers = list(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))  # 2.13.0+cpu is [2, 13, 0]
    matches = (re.match(rf"{name}>=([\d.]+)", line) for line in importlib.metadata.requires("smalearn") or [])
    oldest = next((match[1] for match in matches if match), "0")
    return oldest if numbers < list(map(int, oldest.split("."))) else ""


def _python() -> tuple:
    machine = f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} processors"
    if sys.version_info < (3, 11) or sys.maxsize < 2**32:
        return "missing", machine, "the course needs a 64-bit Python 3.11 or newer", "https://www.python.org/downloads"
    free = shutil.disk_usage(".").free / 1e9
    return "ok", f"{machine}, {free:.0f} GB of disk free, smalearn {importlib.metadata.version('smalearn')}"


def _torch() -> tuple:
    try:
        import torch

        cuda, rocm = torch.version.cuda, torch.version.hip
        detail = f"{torch.__version__}, {f'CUDA {cuda}' if cuda else f'ROCm {rocm}' if rocm else 'CPU'} build"
    except Exception as error:
        intel_mac = platform.system() == "Darwin" and platform.machine() == "x86_64"
        broken = platform.system() == "Windows" and not isinstance(error, ModuleNotFoundError)
        remedy = INTEL_MAC if intel_mac else VISUAL_C if broken else START
        return "missing", _one_line(error), "nothing of the course runs", remedy
    if oldest := _too_old("torch", torch.__version__):
        return "warning", f"{detail}, older than {oldest}", "code that needs a newer one fails", START
    return "ok", detail


def _package(name: str) -> tuple:
    extra, cost = PACKAGES[name]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name == "triton" and sys.platform != "linux":
            return "missing", "there is none for this system", cost, "nothing"
        return "missing", "not installed", cost, install(extra)
    if oldest := _too_old(name, version):
        return "warning", f"{version}, older than {oldest}", f"it may be that {cost}", install(extra)
    return "ok", version


def _kernel() -> tuple:
    try:
        from jupyter_client.kernelspec import KernelSpecManager
    except ImportError as error:
        return "missing", _one_line(error), "no cell runs", install("lab")
    program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    if os.path.isabs(program) and os.path.dirname(program) != os.path.dirname(sys.executable):
        cost = "cells run where smalearn may be missing"
        return "missing", "starts another Python than this one", cost, "python -m ipykernel install --sys-prefix"
    return "ok", "starts this Python"


def _work() -> tuple:
    try:
        tempfile.TemporaryFile(dir="work" if Path("work").exists() else ".").close()
    except OSError as error:
        return "missing", _one_line(error), "nothing that you write is saved", "check whose folder it is, and the disk"
    return "ok", "can be written"


def _gpu() -> tuple:
    cost = "no times of your own in chapter 12; its programs run in the Triton emulator"
    try:
        import torch
        from torch.utils import collect_env
    except Exception:  # its own line says what is wrong with torch
        return "missing", "not looked for without torch", cost, START
    name, driver = (look(collect_env.run) for look in (collect_env.get_gpu_info, collect_env.get_nvidia_driver_version))
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        return "ok", f"{torch.cuda.get_device_name(0)}, {memory:.0f} GB, driver {driver or 'unknown'}"
    if (name or "").startswith("GPU "):
        return "warning", f"this PyTorch cannot use it: {name.splitlines()[0]}, driver {driver}", cost, GPU_BUILD
    return "missing", "none", cost, "use a Linux machine with an NVIDIA GPU, if you want times of your own"


def _chromium() -> tuple:
    caches = (".cache", "Library/Caches", "AppData/Local")
    browsers = [path.name for cache in caches for path in Path.home().glob(f"{cache}/ms-playwright/chromium*")]
    browsers += filter(shutil.which, ["chromium", "chromium-browser", "google-chrome", "chrome", "msedge"])
    if browsers:
        return "ok", browsers[0]
    cost = "the tests of interactive pictures are skipped; the course needs none"
    return "missing", "not found", cost, "python -m playwright install chromium"


CHECKS = {
    "Python": _python,
    "torch": _torch,
    **{name: partial(_package, name) for name in PACKAGES},
    "kernel python3": _kernel,
    "folder work": _work,
    "GPU": _gpu,
    "Chromium": _chromium,
}
