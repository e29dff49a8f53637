"""A file to take home, out of the functions that a learner wrote: it needs no smalearn, and has run once without it."""

import inspect
import subprocess
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

__all__ = ["take_home"]

ALONE = """
import runpy, sys, torch
sys.modules["smalearn"] = None  # an import of it is an error now
file, function, given = sys.argv[1:]
arguments, expected = torch.load(given)
torch.testing.assert_close(runpy.run_path(file)[function](*arguments), expected, rtol=1e-12, atol=1e-12)
"""


def take_home(file: str, functions: Sequence[Callable], arguments: tuple, expected: object, about: str) -> None:
    """Write a learner's functions into one file, if it runs without smalearn and the last function is right there.

    What they use comes along: imports, constants, other functions of the notebook or of a file beside it. Where there
    is a file of that name with another text, it is kept under another name. Prints what came of it.

    Args:
        file: its name, "my_ssd.py", in the working directory.
        functions: as `check` returned them, in the order of the file; among them those that the chapter gave.
        arguments: of the last function: tensors, numbers, and tuples, lists and dicts of these.
        expected: its answer, a tensor or a tuple of tensors, from which the file's may differ by 1e-12.
        about: the docstring of the file.
    """
    pages = _Pages(functions)
    if pages.missing:
        print(f"○ {file} is not written yet: it waits for exercise {', '.join(pages.missing)}.")
    elif pages.foreign:
        print(f"✗ {file} is not written: your functions use {', '.join(pages.foreign)}, which it cannot hold.")
        if any(function.__module__.startswith("smalearn.ssd") for function in functions):
            print("  To have yours there, run the last cells of chapter 06, then the cell here that reads my_ssd.py.")
    elif error := _error(text := pages.text(about), functions[-1].__name__, (arguments, expected)):
        print(f"✗ {file} is not written. Without smalearn it ends so:\n{error}")
    else:
        kept = _write(Path(file), text)
        print(f"✓ {file} is yours: {len(text.splitlines())} lines, right without smalearn.{kept}")


class _Pages:
    """The parts of a file; the exercises that are missing; the names of what cannot come along."""

    def __init__(self, functions: Sequence[Callable]):
        self.functions, self.known = functions, {}
        self.imports, self.parts, self.missing, self.foreign = set(), [], [], []
        for function in functions:
            self.add(function.__name__, function)

    def add(self, name: str, value: object) -> None:
        """Take in what a name stands for, after all that this uses itself."""
        if name in self.known:
            return
        written = any(value is other for other in self.known.values())
        self.known[name] = value
        first = getattr(inspect.unwrap(value) if callable(value) else value, "__name__", name)
        renamed = "" if name == first else f" as {name}"
        module = getattr(value, "__module__", None) or ""
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        theirs = inspect.isroutine(value) and (module == "__main__" or Path(file).parent == Path.cwd())
        if exercise := getattr(value, "__smalearn_reference__", None):
            self.missing.append(exercise)
        elif module.startswith(("smalearn.course.ch", "smalearn.ssd")):  # a solution, and what stands in for one
            self.foreign.append(name)
        elif inspect.ismodule(value):
            self.imports.add(f"import {first}{renamed}")
        elif theirs or any(value is one for one in self.functions):
            self.parts += [] if written else [self.source(inspect.unwrap(value))]
            self.parts += [f"{name} = {first}"] if renamed else []
        elif isinstance(value, int | float | str):
            self.parts.append(f"{name} = {value!r}")
        elif hasattr(value, "__name__") and (package := module.partition(".")[0]) not in ("", "__main__", "smalearn"):
            public = (package, f"{package}.nn.functional")  # a built-in of torch has a module of C++
            found = (name for name in public if getattr(sys.modules.get(name), first, None) is value)
            self.imports.add(f"from {next(found, module)} import {first}{renamed}")
        else:
            self.foreign.append(name)

    def source(self, function: Callable) -> str:
        """Its source, once all that it takes from outside is taken in, for decorators and defaults, too."""
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
        tables = [symtable.symtable(source, "answer", "exec")]
        for table in tables:
            tables += table.get_children()
            used = [one for one in table.get_symbols() if one.is_referenced()]
            for name in (one.get_name() for one in used if one.is_global() or table.get_type() == "module"):
                if name in function.__globals__:
                    self.add(name, function.__globals__[name])
        return source

    def text(self, about: str) -> str:
        """The file's text."""
        imports = sorted(self.imports, key=lambda line: (line.startswith("from"), line))
        return "\n\n\n".join(["\n".join([f'"""{about.strip()}"""\n', *imports]), *self.parts]) + "\n"


def _error(text: str, function: str, case: tuple) -> str:
    """How the file ends in a process of its own; nothing where its answer is right."""
    with tempfile.TemporaryDirectory() as folder:
        file, given = Path(folder) / "answer.py", Path(folder) / "given"
        file.write_text(text, encoding="utf-8")
        torch.save(case, given)
        command = [sys.executable, "-c", ALONE, file, function, given]
        run = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=300)
    return run.stderr if run.returncode else ""


def _write(path: Path, text: str) -> str:
    """Write a file; say which name the one has now that had its name and another text."""
    kept, number = "", 1
    if path.exists() and path.read_text(encoding="utf-8") != text:
        while (other := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
            number += 1
        kept = f"\n  What had this name is {path.rename(other)} now."
    path.write_text(text, encoding="utf-8", newline="\n")
    return kept
