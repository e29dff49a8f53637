"""The course in two commands, on any system with Python 3.11 or newer (on Windows: py start.py).

    python start.py [--log] [options of JupyterLab]   install what is missing and open the course in JupyterLab;
                                                      --log shows JupyterLab's log
    python start.py test [options of pytest]          install what is missing and test in a few minutes, or test what
                                                      the options select
    python start.py test --full                       test everything, with the required coverage; brings Chromium and
                                                      bubblewrap, for tests in a browser and in a sandbox, where
                                                      apt-get can

All else goes into the folder .venv beside this file. `python start.py install` only installs, for all of them.
"""

# The standard library alone, and only syntax of Python 3.6: an old Python must get as far as saying that it is too old.
import hashlib
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "installed.txt"
PINS = ROOT / "constraints.txt"
OLDEST = (3, 11)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=300", "--nbval-sanitize-with=tests/sanitize.cfg"]
ALL_FOLDERS = ["-n", "2", "--dist", "loadscope"]  # which these are, and how much coverage is required: pyproject.toml
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome", "msedge"]
PROGRAMS = {"chromium": BROWSERS, "bubblewrap": ["bwrap"]}  # a package of apt-get, and what its program may be called
NO_BUILD = "No matching distribution found for torch"
REMEDIES = {
    r"No space left|not enough space|Errno 28\b|WinError 112": "The disk is full: this needs 3 GB, and more with CUDA.",
    r"Retrying \(|NewConnectionError|Max retries|[Tt]imed out|name resolution|getaddrinfo|ProxyError|SSLError": (
        "The package index cannot be reached: check the network (behind a proxy, HTTPS_PROXY), then start again."
    ),
    NO_BUILD: "PyTorch has no build for this Python on this system: use a 64-bit Python 3.11 to 3.14.",
    r"No module named '?(venv|ensurepip)": (
        "This Python lacks its module venv: install it (Debian, Ubuntu: sudo apt install python3-venv)."
    ),
    r"Permission denied|Access is denied|Errno 13\b|WinError (5|32)\b": (
        "A file in this folder cannot be written: close JupyterLab, check whose folder it is, then start again."
    ),
}


class SetupError(Exception):
    """Error of pip or of the module venv, in its own words."""


def explain(complaints):
    """Find the line that says what to do, or else return the last of the complaints."""
    for pattern, remedy in REMEDIES.items():
        if re.search(pattern, complaints):
            return remedy
    last = complaints.strip().splitlines()[-15:]
    return "\n".join(
        [*last, "This failed (see above). Start again; if that does not help, delete the folder .venv first."]
    )


def python_in_venv():
    """Find the version of the Python in .venv; nothing where it is missing, does not run, lacks pip or is too old."""
    code = f"import sys, pip; print(sys.version_info[:2] if sys.version_info >= {OLDEST} else '')"
    try:
        return subprocess.check_output([str(PYTHON), "-c", code], stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        return b""


def make_venv():
    """Make .venv, or make it anew where it is broken."""
    print("The Python in .venv does not work: making .venv anew." if VENV.exists() else "Making .venv.")
    create = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)]
    for command in (create, [str(PYTHON), "-m", "ensurepip", "--default-pip"]):
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if process.returncode:
            raise SetupError(process.stdout.decode("utf-8", "replace"))


def pip(*arguments):
    """Run `pip install` in .venv with its progress shown."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    process = subprocess.run(command, cwd=str(ROOT), stderr=subprocess.PIPE)
    if process.returncode:
        raise SetupError(process.stderr.decode("utf-8", "replace"))


def cpu_index_helps():
    """Say whether PyTorch's index of CPU builds answers and is of use: the usual build for Linux brings CUDA."""
    if sys.platform != "linux" or shutil.which("nvidia-smi") or Path("/proc/driver/nvidia").exists():
        return False
    try:
        urllib.request.urlopen(CPU_INDEX + "/torch/", timeout=5).close()
        return True
    except OSError:
        print("PyTorch's index of CPU builds does not answer: its usual build brings CUDA, 3 GB.")
        return False


def pip_torch(requirement):
    """Install torch alone, since it alone may come from PyTorch's index."""
    if cpu_index_helps():
        try:
            return pip("--no-deps", requirement, "--index-url", CPU_INDEX)
        except SetupError:
            print("PyTorch's index of CPU builds did not help: taking the usual build.")
    return pip("--no-deps", requirement)


def install_torch():
    """Install torch, before everything that depends on it; return the constraints that the rest must keep."""
    pinned = re.search(r"^torch==\S+", PINS.read_text(encoding="utf-8"), re.MULTILINE)
    try:
        pip_torch(pinned.group())
    except SetupError as error:
        if explain(str(error)) != REMEDIES[NO_BUILD]:
            raise
        print("The pinned PyTorch has no build for this Python on this system (on a Mac it needs macOS 14).")
        print("Taking the newest that has one, and nothing pinned.")
        pip_torch("torch")
        return []
    return ["--constraint", str(PINS)]


def install(extras):
    """Install the package with these extras, unless the stamp says that this was finished for the files as they are."""
    if not python_in_venv():
        make_venv()
    state = [python_in_venv(), os.fsencode(ROOT), PINS.read_bytes(), (ROOT / "pyproject.toml").read_bytes()]
    stamp = hashlib.sha256(b"\n".join(state)).hexdigest()
    finished = STAMP.read_text(encoding="utf-8").split() if STAMP.exists() else []
    if stamp in finished and extras <= set(finished):
        return
    STAMP.unlink(missing_ok=True)
    print("Installing into .venv: PyTorch (200 MB, with CUDA 3 GB), then the rest (100 MB, with tests 400 MB).")
    pins = install_torch()
    pip("--editable", ".[" + ",".join(sorted(extras)) + "]", *pins)
    STAMP.write_text(" ".join([stamp, *sorted(extras)]), encoding="utf-8")


def as_root():
    """Return what makes a command run as root without a question, or nothing where that cannot be done."""
    if os.geteuid() == 0:
        return ["env"]
    sudo = ["sudo", "--non-interactive"]
    allowed = shutil.which("sudo") and not subprocess.run([*sudo, "true"], stderr=subprocess.DEVNULL).returncode
    return [*sudo, "env"] if allowed else None


def install_programs(packages):
    """Install packages by apt-get; return what keeps them away."""
    if not shutil.which("apt-get"):
        return "there is no apt-get to bring it"
    prefix = as_root()
    if not prefix:
        return "apt-get needs root, or sudo without a password"
    print("Installing " + " and ".join(packages) + ", for tests in a browser or in a sandbox.")
    for arguments in (["update"], ["install", "--no-install-recommends", *packages]):
        command = [*prefix, "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "--yes", *arguments]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        if subprocess.run(command, **pipes).returncode:
            return "apt-get does not bring it"


def run(*arguments):
    """Run the Python of .venv to its end; Ctrl-C is left to it: JupyterLab stops, pytest sums up."""
    process = subprocess.Popen([str(PYTHON), *arguments], cwd=str(ROOT))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def test(arguments):
    """Run pytest on what the arguments select, or else on all folders, in minutes or with --full; return its status."""
    coverage = []
    if "--full" in arguments:
        coverage = ["--cov"]
        missing = [package for package, names in PROGRAMS.items() if not any(map(shutil.which, names))]
        trouble = install_programs(missing) if missing else None
        if trouble:
            print("No " + " and no ".join(missing) + " here, and " + trouble + ": tests that need it are skipped.")
    if not [argument for argument in arguments if argument != "--full"]:
        arguments = [*ALL_FOLDERS, *coverage, *arguments]
    return run("-m", "pytest", *NBVAL, *arguments)


def start(arguments):
    """Install what the command needs and run it; return the exit status."""
    command = arguments[0] if arguments[:1] in (["test"], ["install"]) else "lab"
    install({"lab"} if command == "lab" else {"lab", "dev", "bench", "site"})
    if command == "install":
        return 0
    if command == "test":
        return test(arguments[1:])
    return run("-m", "smalearn.course.cli", "lab", *arguments)


def main(arguments):
    """Run a command; return its exit status, or one line that says what is wrong."""
    if sys.version_info < OLDEST:
        version = "{}.{}".format(*sys.version_info)
        return "Python 3.11 or newer is needed, this is " + version + ": see https://www.python.org/downloads"
    sys.stdout.reconfigure(errors="replace", line_buffering=True)
    if arguments[:1] in (["-h"], ["--help"]):
        return print(__doc__)
    try:
        return start(arguments)
    except (SetupError, OSError) as error:
        return explain(str(error))
    except KeyboardInterrupt:
        return "Stopped. The next start continues here."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
