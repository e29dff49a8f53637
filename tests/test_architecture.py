"""The folder listing explains the architecture: a module imports only from lower levels, or from its own folder."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "smalearn"

LEVELS = [
    {"_checks", "testing"},
    {"contractions", "features", "masks", "semiseparable", "weights"},
    {"sma", "linear_attention", "ssm"},
    {"ssd", "kernel_attention", "kernels"},
    {"fast", "attention"},
    {"models", "tasks", "data", "distributed"},
    {"train", "bench", "plots"},
    {"widgets", "exercises", "experiments", "workbook", "doctor"},
    {"grading", "site"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
LAZY = {"triton", "ipywidgets", "anywidget", "matplotlib", "IPython", "nbformat", "sphinx"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def module_name(path: Path) -> list[str]:
    parts = ["smalearn", *path.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path, tree: ast.AST) -> list[tuple[int, list[str]]]:
    """Every import of the file as (line, dotted parts), relative ones resolved."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path)[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            found += [(node.lineno, [*base, alias.name]) for alias in node.names]
    return found


def room(parts: list[str]) -> str | None:
    """The level table's name of a dotted module; None for the package itself and for foreign modules."""
    if parts[0] != "smalearn" or len(parts) == 1 or parts[1] not in LEVEL:
        return None
    return parts[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(module_name(path)))
def test_imports_point_down(path):
    own = room(module_name(path))
    assert own or path.parent == PACKAGE, f"{path} has no level"
    if own is None:
        assert path.name == "__init__.py", f"{path.name} is missing from the table of levels"
        return
    for line, parts in imports(path, ast.parse(path.read_text(encoding="utf-8"))):
        other = room(parts)
        if other is None or other == own:
            continue
        assert LEVEL[other] < LEVEL[own], f"{path}:{line} imports {'.'.join(parts)} from level {LEVEL[other]}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: ".".join(module_name(path)))
def test_optional_parts_are_imported_lazily(path):
    if room(module_name(path)) == "widgets":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {parts[0] for _, parts in imports(path, ast.Module(top, []))}
    assert not names & LAZY


def test_attention_route_needs_no_state_space_model():
    route = {"contractions", "masks", "sma", "linear_attention", "kernel_attention", "features"}
    for path in MODULES:
        if room(module_name(path)) in route:
            for line, parts in imports(path, ast.parse(path.read_text(encoding="utf-8"))):
                assert room(parts) not in {"ssm", "ssd", "semiseparable", "kernels"}, f"{path}:{line}"


def test_functions_and_modules_stay_small():
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        assert source.count("\n") <= 400, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node, clean=False) or ""
                length = node.end_lineno - node.lineno + 1 - (doc.count("\n") + 1)
                assert length <= 40, f"{path}:{node.name} has {length} lines"


def test_import_is_light():
    code = (
        "import sys, time, torch; began = time.perf_counter(); import smalearn; "
        "assert not {'triton', 'ipywidgets', 'anywidget', 'matplotlib'} & set(sys.modules) - before"
    ).replace("began = time.perf_counter()", "before = set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)
