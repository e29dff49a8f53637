"""The folder listing explains the architecture: a module imports only from lower levels, or from its own room."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("smalearn", "benchmarks", "experiments")

MATHEMATICS = [
    {"_bar", "_checks", "_files", "_torch", "testing"},
    {"_operator", "_structured"},
    {"contractions", "masks", "weights"},
    {"sma", "linear_attention", "ssm"},
    {"ssd", "kernel_attention", "scores", "multilevel"},
    {"fast"},
    {"models", "data"},
    {"train"},
]
WORKSHOP = [
    {"course.progress", "course.results", "course.spawned"},
    {"course.executors", "course.timing"},
    {"benchmarks", "course.plots"},
    {
        "course.widgets",
        "course.exercises",
        "course.workbook",
        "course.doctor",
        "course.ladder",
        "course.server",
        "course.takeaway",
        "course.teaching",
    },
    {"course.ch", "course.grading", "course.site"},
    {"course.cli", "experiments"},
]
LEVEL = {room: level for level, rooms in enumerate(MATHEMATICS + WORKSHOP) for room in rooms}
ATTENTION = {"contractions", "masks", "sma", "linear_attention", "kernel_attention"}
STATE_SPACES = {"ssm", "ssd", "fast"}
LAZY = {"triton", "ipywidgets", "anywidget", "matplotlib", "IPython", "nbformat", "sphinx"}
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def parts(path):
    """The dotted name of a file, as a list; of the package, what is below it."""
    names = list(path.relative_to(ROOT).with_suffix("").parts)
    return names["smalearn" in names : len(names) - (names[-1] == "__init__")]


def room(names):
    """The room of a dotted name; None for the package itself, `course`, a missing level. All chapters are one room."""
    rooms = (re.sub(r"^course\.ch(\d\d|[A-Z])$", "course.ch", ".".join(names[:k])) for k in (1, 2))
    return next((room for room in rooms if room in LEVEL), None)


def imports(tree):
    """Every absolute import as (line, dotted parts); ours begin with "smalearn"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((node.lineno, [*node.module.split("."), alias.name]) for alias in node.names)


def ours(path):
    """What a file imports of ours: (place, dotted name)."""
    for line, names in imports(MODULES[path]):
        if names[0] in FOLDERS and names != ["smalearn"]:
            yield f"{path.relative_to(ROOT)}:{line} imports {'.'.join(names)}", names[names[0] == "smalearn" :]


def test_every_module_has_a_level():
    homeless = [path for path in MODULES if not room(parts(path)) and parts(path) not in ([], ["course"])]
    assert not homeless


def test_imports_point_down_and_take_nothing_private():
    offenders = []
    for path in MODULES:
        own = room(parts(path))
        for place, names in ours(path):
            other = room(names)
            if own and other and other != own:
                private = any(name.startswith("_") for name in names[1:])
                if LEVEL[other] >= LEVEL[own] or private:
                    offenders.append(place)
    assert not offenders


def test_mathematics_needs_no_workshop():
    """Not even by the names that `course` itself gives."""
    files = [path for path in MODULES if room(parts(path)) in set().union(*MATHEMATICS)]
    assert not [place for path in files for place, names in ours(path) if names[0] in {"course", *FOLDERS}]


def test_attention_route_needs_no_state_space_model():
    files = [path for path in MODULES if room(parts(path)) in ATTENTION]
    assert not [place for path in files for place, names in ours(path) if room(names) in STATE_SPACES]


def test_optional_parts_are_imported_lazily():
    offenders = []
    for path, tree in MODULES.items():
        if room(parts(path)) != "course.widgets":
            top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
            offenders += [f"{path}:{line}" for line, names in imports(top) if names[0] in LAZY]
    assert not offenders


def test_private_names_of_torch_stand_in_one_room():
    places = {
        f"{path}:{node.lineno}"
        for path, tree in MODULES.items()
        if path.relative_to(ROOT).parts[0] == FOLDERS[0] and parts(path) != ["_torch"]
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
        if node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert not places


def test_functions_and_modules_stay_small():
    long = [path for path in MODULES if path.read_text(encoding="utf-8").count("\n") > 400]
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node, clean=False) or ""
                if node.end_lineno - node.lineno + 1 - (doc.count("\n") + 1) > 40:
                    long.append(f"{path}:{node.name}")
    assert not long


IMPORTS = """
import sys, torch
def missing(*names):
    assert not set(names) & set(sys.modules), set(names) & set(sys.modules)
import smalearn
missing("triton", "ipywidgets", "anywidget", "matplotlib")
from smalearn import contractions, masks, sma, ssd, ssm, weights
x, log_a = torch.ones(2, 3, 4), -torch.ones(2, 3)
ssd.ssd_quadratic(x, log_a, x[0], x)
ssd.ssd_recurrent(x, log_a, x[0], x)
ssd.ssd_chunked(x, log_a, x[0], x)
ssm.ssm_matrix(log_a, x, x).matmul(x)
sma.sma_linear(x, x, x, masks.SemiseparableMask(log_a))
contractions.contract("TN, SN -> TS", x, x)
weights.LowRank.random(4, 4, 2, seed=0)(x)
missing("sympy")  # for which a first call would wait
import smalearn.train
from smalearn.data import load_text, zen_of_python
zen_of_python()
load_text("python topics")
from smalearn.course import plots
plots.attends([[1.0]], "a", 0)
missing("IPython", "ipywidgets", "pooch", "matplotlib")
"""


def test_importing_and_first_calls_bring_only_what_they_need_and_print_nothing():
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert run.stdout == ""
