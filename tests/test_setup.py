"""The files that set the course up agree with each other, and the programs that read them understand them."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import nbformat
import pytest
from loaded_start import ROOT, module
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOW = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
# Which extras a folder may import, beside the dependencies of the package.
FOLDERS = {
    "smalearn": ("lab", "gpu", "bench", "site", "dask", "slurm", "mpi", "weights"),
    "benchmarks": ("gpu", "bench"),
    "experiments": (),
    "chapters": ("lab",),
    "tests": tuple(EXTRAS),
}
MODULES = {
    "huggingface-hub": "huggingface_hub",
    "math-core": "math_core",
    "opt-einsum": "opt_einsum",
    "fla-core": "fla",
    "axe-playwright-python": "axe_playwright_python",
}
COMES_WITH = {
    "matplotlib": ("PIL",),
    "ipywidgets": ("IPython", "matplotlib_inline", "traitlets"),
    "jupyterlab": [
        "ipykernel",
        "jsonschema",
        "jupyter_client",
        "jupyter_server",
        "nbconvert",
        "nbformat",
        "tornado",
        "zmq",
    ],
    "pooch": ("requests",),
    "pytest": ("_pytest", "packaging"),
    "pytest-xdist": ("xdist",),
    "sphinx": ("docutils",),
}
PEERS = {"cola", "mamba_ssm", "transformers"}  # compared with where they are installed, too much to ask for
PROGRAMS = {"furo", "hatchling", "myst-nb", "nbval", "pytest-cov", "pytest-xdist", "ruff"}  # run, but not imported
PROGRAMS |= {"tokenizers"}  # for who loads weights, not for us
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def lines(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.split("  #")[0] for line in text.splitlines() if line and not line.startswith("#")]


def pins():
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, lines("constraints.txt"))}


def trees(folder):
    """Every file of Python and every code cell of a folder, parsed."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / folder).rglob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield from (ast.parse(cell.source) for cell in cells if cell.cell_type == "code")


def imported(folder):
    """First names of what a folder imports and the standard library lacks; its own modules aside."""
    names = set()
    for node in (node for tree in trees(folder) for node in ast.walk(tree)):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                names.add(node.module)
            case ast.Call(func=ast.Attribute(attr="importorskip" | "import_module"), args=[ast.Constant(name), *_]):
                names.add(name)
    own = {name for name in FOLDERS if name not in ("tests", "chapters")} | {"my_ssd"}  # which chapter 06 writes
    own |= {path.stem for path in (ROOT / folder).rglob("*.py")} if folder == "tests" else set()
    own |= {path.name for path in (ROOT / "tests").glob("ch*")}
    return {name.partition(".")[0] for name in names} - own - sys.stdlib_module_names


# Dependencies


@pytest.mark.full
def test_what_is_imported_is_declared_and_the_other_way_round():
    uses, provided = {folder: imported(folder) for folder in FOLDERS}, set()
    for folder, extras in FOLDERS.items():
        declared = {Requirement(text).name for text in sum((EXTRAS[name] for name in extras), PROJECT["dependencies"])}
        known = {module for name in declared for module in (MODULES.get(name, name), *COMES_WITH.get(name, ()))}
        assert uses[folder] <= known | PEERS, folder
        provided |= declared
    every = set.union(*uses.values())
    assert {MODULES.get(name, name) for name in provided - PROGRAMS} <= every
    assert {module for modules in COMES_WITH.values() for module in modules} | PEERS <= every, "an entry too many"


def test_environment_yml_names_the_dependencies_of_the_package_and_its_lab():
    wanted = [Requirement(text) for text in PROJECT["dependencies"] + EXTRAS["lab"]]
    wanted = {CONDA_NAMES.get(requirement.name, requirement.name): str(requirement.specifier) for requirement in wanted}
    listed = [line[4:].partition(" ") for line in lines("environment.yml") if line.startswith("  - ")]
    listed = {name: bounds for name, _, bounds in listed if name not in ("conda-forge", "pip", "pip:")}
    assert listed == wanted | {"python": PROJECT["requires-python"]}
    assert "      - -e .[lab]" in lines("environment.yml")


def test_constraints_pin_one_version_each_for_every_system():
    assert len(pins()) == len(lines("constraints.txt"))
    for pin in pins().values():
        (version,) = pin.specifier
        assert version.operator == "==", pin
        assert "+" not in version.version, f"{pin}: a local version exists on one index only"
        assert not pin.url
    assert str(pins()["triton"].marker) == 'sys_platform == "linux"'


def test_constraints_pin_every_direct_dependency_within_its_range():
    for requirement in map(Requirement, sum(EXTRAS.values(), PROJECT["dependencies"])):
        (version,) = pins()[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(version.version), requirement


# JupyterLab


@pytest.mark.parametrize(
    ("plugin", "settings"),
    json.loads((ROOT / ".jupyter/labconfig/default_setting_overrides.json").read_text(encoding="utf-8")).items(),
)
def test_settings_of_jupyterlab_exist_there(plugin, settings):
    package, _, name = plugin.partition(":")
    share = Path(sys.prefix) / "share/jupyter"
    roots = [share / "lab/schemas", *share.glob("labextensions/*/*/schemas")]
    (schema,) = [path for root in roots if (path := root / package / f"{name}.json").exists()]
    properties = json.loads(schema.read_text(encoding="utf-8"))["properties"]
    for key, value in settings.items():
        jsonschema.validate(value, properties[key])


def test_jupyterlab_opens_work_at_the_first_chapter(monkeypatch, tmp_path):
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.contents.largefilemanager import LargeFileManager
    from jupyterlab.labapp import LabApp
    from traitlets.config import Config

    from smalearn.course.workbook import explorers

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    every, lab = (
        json.loads((ROOT / ".jupyter" / folder / "jupyter_server_config.json").read_text(encoding="utf-8"))
        for folder in ("", "lab")
    )
    assert Path(ServerApp(**lab["ServerApp"]).root_dir).samefile(tmp_path / "work")
    assert LabApp.class_traits()["default_url"].metadata["config"]
    assert lab["LabApp"] == {"default_url": "/lab/tree/00_start_here.ipynb"}
    manager = LargeFileManager(config=Config(every), root_dir=str(tmp_path))
    assert manager.pre_save_hook is explorers.before_saving
    assert list(every) == ["ContentsManager"], "on a hub, which has a folder of its own"


# Tests


def run_pytest(folder, *arguments, **environment):
    """The closing line of pytest, and all that it printed, in a folder with this conftest.py."""
    shutil.copy(ROOT / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    environment = inherited | {"PYTHONPATH": str(ROOT / "tests")} | environment  # for the plugins of conftest.py
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    return process.stdout.strip().splitlines()[-1], process.stdout + process.stderr


SKIPS = """
import pytest

def test_unlisted():
    pytest.skip("no idea why")

@pytest.mark.skip(reason="some other time")
def test_unlisted_mark(): ...

def test_listed():
    pytest.skip("needs a GPU with 8 GB")

@pytest.mark.skipif(True, reason="needs Chromium")
def test_listed_mark(): ...

@pytest.mark.xfail(reason="known", strict=True)
def test_expected_failure():
    assert False
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("environment", "closing"),
    [({}, "4 skipped, 1 xfailed"), ({"CI": "true"}, "1 failed, 2 skipped, 1 xfailed, 1 error")],
)
def test_under_ci_an_unlisted_skip_fails(tmp_path, environment, closing):
    (tmp_path / "test_skips.py").write_text(SKIPS, encoding="utf-8")
    line, output = run_pytest(tmp_path, **environment)
    assert line.startswith(closing), output
    assert ("'no idea why' begins with none of" in output) == bool(environment)


@pytest.mark.full
def test_under_ci_an_unlisted_skip_of_a_module_fails(tmp_path):
    (tmp_path / "test_module.py").write_text("import pytest; pytest.importorskip('no_such_thing')", encoding="utf-8")
    (tmp_path / "test_peer.py").write_text(
        "import pytest; pytest.importorskip('no_such_thing', reason='needs a peer: no_such_thing')", encoding="utf-8"
    )
    line, output = run_pytest(tmp_path, CI="true")
    assert line.startswith("1 skipped, 1 error"), output


@pytest.mark.full
def test_chapters_are_compared_but_for_addresses_and_not_traced(tmp_path):
    cells = [
        ("print(object())", "<object object at 0x123456789abc>\n"),
        ("import sys\nprint('coverage' in sys.modules)", "False\n"),
        ("print(1 + 1)", "3\n"),
    ]
    notebook = nbformat.v4.new_notebook()
    for count, (source, text) in enumerate(cells, 1):
        output = nbformat.v4.new_output("stream", text=text)
        notebook.cells.append(nbformat.v4.new_code_cell(source, execution_count=count, outputs=[output]))
    nbformat.write(notebook, tmp_path / "chapter.ipynb")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/sanitize.cfg", tmp_path / "tests")
    line, output = run_pytest(tmp_path, *module(ROOT).NBVAL, "--cov", "--cov-report=")
    assert line.startswith("1 failed, 2 passed"), output
    assert "FAILED chapter.ipynb::Cell 2" in output


def test_the_workflow_tests_the_oldest_python_and_a_newer_one_on_three_systems():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert re.search(rf'python: \["{re.escape(oldest)}", "3\.\d+"\]', WORKFLOW)
    assert "[ubuntu-latest, macos-latest, windows-latest]" in WORKFLOW
    assert "if: runner.os != 'Linux'\n        run: python start.py test --full\n" in WORKFLOW  # all of it there too


def test_ci_can_be_run_and_ends_with_the_closing_line_of_pytest():
    assert os.name == "nt" or os.access(ROOT / ".ci/run", os.X_OK)
    *_, last = lines(".ci/run")
    assert last == "python3 start.py test --full"


def test_one_cell_runs_the_oldest_releases_that_are_promised():
    oldest = WORKFLOW[WORKFLOW.index("\n  oldest:") :]
    assert "uv pip install --resolution lowest-direct" in oldest
    assert all(option.partition("=")[0] in oldest for option in module(ROOT).NBVAL)
    assert " -m pytest " in oldest
