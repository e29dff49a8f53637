"""Students' edition of the course: all of it, but the solutions, which the whole course brings later.

`check` needs the solutions too. So they are there, packed, and not to be read by opening a file, printing a source or
asking `solution`; who unpacks them has them.
"""

import base64
import shutil
import zlib
from pathlib import Path

from smalearn.course.grading.sandbox import solutions

__all__ = ["students"]

PARTS = ("chapters", "assets", "smalearn", "deploy", ".jupyter")
FILES = ("start.py", "pyproject.toml", "constraints.txt", "environment.yml", "README.md", "LICENSE")
PACKED = '''"""Exercises whose solutions come later."""

import base64
import zlib

PACKED = zlib.decompress(base64.b64decode("{text}")).decode()
exec(compile(PACKED, "<solutions come later>", "exec"))
'''


def students(course: Path, output: Path) -> list[Path]:
    """Write the students' edition into a new folder, to hand out or to install; return the packed modules."""
    if not (course / "start.py").is_file():
        raise ValueError("students: the edition is made of the course's repository, not of the installed package")
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty; give a new folder")
    leave = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in PARTS:
        shutil.copytree(course / name, output / name, ignore=leave, dirs_exist_ok=True)
    claims = [path.relative_to(course) for path in course.glob("tests/*/claims.toml")]  # which the site shows
    for name in (*FILES, *claims):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(course / name, output / name)
    modules = solutions(output / "smalearn")
    for path in modules:
        text = base64.b64encode(zlib.compress(path.read_bytes(), 9)).decode("ascii")
        path.write_text(PACKED.format(text=text), encoding="utf-8")
    return modules
