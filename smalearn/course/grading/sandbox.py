"""Sandbox for submissions: the package without our solutions, and nothing of the teacher's or of others in reach.

Linux has what it takes, and bubblewrap (`bwrap`) asks for it: processes, files, network and users of its own, which end
with the submission. Where it does not work, submissions run as the teacher, and `Sandbox.weakness` says so.
"""

import ast
import compileall
import contextlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import smalearn
from smalearn._files import FILES

__all__ = ["LONGEST", "PATIENCE", "Sandbox", "defined", "last_words", "opened", "reduced", "without_solutions"]

PACKAGE = Path(smalearn.__file__).parent
DISK = 64 * 2**20  # bytes of all that a submission writes
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "nix")
REQUIRED = ("torch", "numpy", "einops")
LONGEST = 300  # characters of a reason
PATIENCE = 120.0  # seconds for Python and torch to start, however busy the machine is
LIBRARIES = ("/etc/ld.so.cache", "/etc/alternatives")  # which libraries, where there are several
CAN_SWITCH = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
LOST = (
    "submissions run as you: they can read and change what you can, other submissions too, use the network, and leave "
    "processes behind"
)


@dataclass(frozen=True)
class Sandbox:
    """Way to start a submission's process."""

    prefix: tuple[str, ...]  # what stands before the command
    package: Path  # the folder of the package without our solutions, to be found first where there is no prefix
    weakness: str = ""  # what it does not hold, and why; empty where it is one

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a submission's process: none of the teacher's but those that a program needs to start."""
        needed = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "PYTHONHOME")
        ours = {name: os.environ[name] for name in needed if name in os.environ}
        threads = dict.fromkeys(["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1")
        folders = [str(PACKAGE.parent if self.prefix else self.package), *_listed("PYTHONPATH")]
        place = {"PYTHONPATH": os.pathsep.join(folders)}
        names = {"HOME": tempfile.gettempdir() if not self.prefix else "/tmp", "USER": "student"}
        names |= {"MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}
        # A chapter's training that an answer needs takes three steps; a forgotten breakpoint is passed over.
        return ours | threads | place | names | {"SMALEARN_QUICK": "all", "PYTHONBREAKPOINT": "0"}


@contextlib.contextmanager
def opened() -> Iterator[Sandbox]:
    """Make a sandbox, the strongest that works here, and take it down in the end."""
    with tempfile.TemporaryDirectory(prefix="smalearn-") as folder:
        package = Path(folder) / "smalearn"
        without_solutions(package)
        os.chmod(folder, 0o755)  # the submissions' users read it
        box = Sandbox(tuple(_bubblewrap(package)), package.parent)
        why = _failure(box)
        yield replace(box, prefix=(), weakness=f"bubblewrap does not work here ({why}): {LOST}") if why else box


def without_solutions(target: Path) -> None:
    """Copy the package, and the results that it reads, but of the modules of exercises only what they offer."""
    shutil.copytree(PACKAGE, target, ignore=_left_out)
    for path in solutions(target):
        source = reduced(path.read_text(encoding="utf-8"))
        path.unlink()
        if source:
            path.write_text(source, encoding="utf-8")
    compileall.compile_dir(target, quiet=2)  # once, and not by every submission
    shutil.copytree(FILES / "assets", target / "assets", ignore=shutil.ignore_patterns("*.gif", "*.png"))


def solutions(package: Path) -> list[Path]:
    """List the modules of a package that hold exercises with their solutions: those in the folders of the chapters."""
    return sorted((package / "course").glob("ch[0-9A-Z]*/[!_]*.py"))


def _left_out(folder, names):
    """Leave out what Python has compiled of the solutions, and what of the course a wheel carries beside the code."""
    if Path(folder) == PACKAGE:
        return {"assets", "chapters", "tests"} & set(names)
    return {"__pycache__"} & set(names) if Path(folder) in {path.parent for path in solutions(PACKAGE)} else set()


def reduced(source: str) -> str:
    """Keep of a module what its `__all__` names, with what that needs; nothing where there is no `__all__`."""
    body = ast.parse(source).body
    nodes = {name: node for node in body for name in defined(node)}
    kept, asked = set(), ["__all__"] if "__all__" in nodes else []
    asked += ast.literal_eval(nodes["__all__"].value) if asked else []
    while asked:
        node = nodes.get(asked.pop())
        if node not in kept | {None}:
            kept.add(node)
            asked += [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return "\n\n".join(ast.unparse(node) for node in body if node in kept)


def defined(node: ast.stmt) -> list[str]:
    """Names that a statement of a module defines."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def _bubblewrap(package: Path) -> list[str]:
    """Write the arguments of `bwrap`: Python and the system to read, 64 MiB in memory to write, no network."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", *CAN_SWITCH]
    command = ["bwrap", *(spaces if is_root else ["--unshare-all"]), "--die-with-parent", "--new-session"]
    for path in (Path("/") / name for name in SYSTEM):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    command += ["--size", str(DISK), "--perms", "1777", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    for target, source in _binds(package).items():
        parents = [parent for parent in reversed(Path(target).parents) if parent.parts[1:] not in ((), ("tmp",))]
        for parent in parents:
            command += ["--perms", "0755", "--dir", str(parent)]  # bwrap's own are for root alone
        command += ["--ro-bind", source, target]
    for path in LIBRARIES:
        command += ["--ro-bind-try", path, path]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _binds(package: Path) -> dict[str, str]:
    """Folders of Python, each to itself, and the package, wherever it is in them, to the one without solutions."""
    prefixes = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])}
    folders = sorted({*prefixes, *site.getsitepackages(), site.getusersitepackages(), *_elsewhere()})
    folders = [folder for folder in folders if Path(folder).is_dir() and Path(folder).parts[1] not in SYSTEM]
    inner = {folder for folder in folders for other in folders if Path(other) in Path(folder).parents}
    copies = {str(path) for folder in folders if (path := Path(folder) / PACKAGE.name).is_dir()}
    outer = {folder: folder for folder in folders if folder not in inner}
    return outer | dict.fromkeys(sorted({*copies, str(PACKAGE)}), str(package))


def _elsewhere() -> Iterator[str]:
    """Yield the folders of `PYTHONPATH` and of `.pth` files in which packages are installed, and those of libraries."""
    command = [sys.executable, "-P", "-X", "utf8", "-c", "import sys; print(*sys.path, sep=chr(10))"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    for folder in map(Path, done.stdout.splitlines()):
        # not one of sources: it may have anything beside them, the course with its solutions or submissions
        if any(folder.glob("*.dist-info")) or any((folder / name).is_dir() for name in REQUIRED):
            yield str(folder)
    yield from (folder for folder in _listed("LD_LIBRARY_PATH") if any(Path(folder).glob("*.so*")))


def _listed(variable: str) -> list[str]:
    """The absolute folders that a variable lists."""
    return [folder for folder in os.environ.get(variable, "").split(os.pathsep) if os.path.isabs(folder)]


def _failure(box: Sandbox) -> str:
    """Say why a submission's process cannot be started so; empty where it can."""
    try:
        command = [*box.prefix, sys.executable, "-P", "-c", "import torch, smalearn.course.exercises"]
        tried = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE, env=box.environment
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}"
    return (last_words(tried.stderr) or "it fails") if tried.returncode else ""


def last_words(text: str) -> str:
    """The last line of an error output that names an error, or else its last; empty where there is none."""
    lines = text.strip().splitlines()
    return ([*lines[-1:], *(line for line in lines if "Error: " in line)] or [""])[-1].strip()[:LONGEST]
