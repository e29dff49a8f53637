"""The wheel: the course as those have it who install it, without a checkout beside it."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest

import smalearn
from smalearn.course import site
from smalearn.course.workbook.notebook import chapters

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "assets/results").rglob("*.json"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of what it is made of, without a network."""
    copy, folder = tmp_path_factory.mktemp("copy") / "smalearn", tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns("__pycache__")
    for name in ("smalearn", "assets", "chapters", "tests", ".jupyter"):
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, copy], check=True, capture_output=True)
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder with the programs of a new environment that has the wheel, and this one's other packages."""
    home = tmp_path_factory.mktemp("new")
    venv.create(home, with_pip=False)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    python = programs / Path(sys.executable).name
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-c", where], encoding="utf-8").strip())
    # A path adds the packages in it, but not the .pth files in it: so this project, installed to be edited, stays away.
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "others.pth").write_text("\n".join(here), encoding="utf-8")
    options = ["--no-deps", "--no-index", "--ignore-installed"]
    command = [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel]
    subprocess.run(command, check=True, capture_output=True)
    return programs


@pytest.fixture
def run(installed, tmp_path):
    """`run(program, *arguments)` in an empty folder: its exit status, its stdout and its stderr."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program, *arguments, **variables):
        command, env = [installed / program, *arguments], environment | variables
        process = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8")
        return process.returncode, process.stdout, process.stderr

    return run


def test_it_carries_the_package_and_the_course(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"smalearn", f"smalearn-{smalearn.__version__}.dist-info"}
    assets = {name for name in names if name.startswith("smalearn/assets/")}
    carried = [*RESULTS, ROOT / "assets/results/README.md", *(ROOT / "assets/shakespeare").iterdir()]
    wanted = {f"smalearn/{path.relative_to(ROOT).as_posix()}" for path in carried}
    assert assets == wanted | {"smalearn/assets/smalearn.mplstyle"}
    files = {path for path in (ROOT / "smalearn").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    sources = {path.relative_to(ROOT).as_posix() for path in files}
    folders = [*(ROOT / "tests").glob("ch*"), ROOT / "chapters", ROOT / ".jupyter"]
    files = {path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    course = {f"smalearn/{path.relative_to(ROOT).as_posix()}" for path in {*files, ROOT / "README.md"}}
    others = ("smalearn/tests/test_", "smalearn/tests/experiments/")  # which these are, `claims` shows
    marked = {name for name in names if name.startswith(others)}
    assert sources | course | marked == {name for name in names if name.startswith("smalearn/")} - assets


def test_it_is_imported_from_where_it_is_installed(run, installed):
    code = "import smalearn.fast, smalearn; print(smalearn.__file__); print(smalearn.__version__)"
    status, said, errors = run("python", "-c", code)
    file, version = said.splitlines()
    assert (status, version, errors) == (0, smalearn.__version__, "")
    assert Path(file).is_relative_to(installed.parent)


def test_its_version_has_one_source(run, wheel):
    assert wheel.name == f"smalearn-{smalearn.__version__}-py3-none-any.whl"
    assert run("smalearn", "--version") == (0, f"smalearn {smalearn.__version__}\n", "")
    assert f"version: {smalearn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_doctor_names_commands_that_work_without_a_checkout(run):
    code = "import sys; sys.modules['torch'] = None; from smalearn.course.cli import main; sys.exit(main(['doctor']))"
    status, said, errors = run("python", "-c", code)
    assert (status, errors) == (1, "")
    assert f"smalearn {smalearn.__version__}" in said
    assert 'pip install "smalearn[lab]"' in said
    assert "start.py" not in said
    assert "-e" not in said.split()


def test_it_finds_the_recorded_results_and_the_look_of_pictures(run):
    code = f"""
from smalearn.course.plots import use_style
from smalearn.data import recorded
import matplotlib
use_style()
print(sorted(matplotlib.rcParams["axes.prop_cycle"].by_key()))
print([len(recorded(name)) > 0 for name in {sorted({path.stem for path in RESULTS})}])
"""
    status, said, errors = run("python", "-c", code)
    assert (status, errors) == (0, "")
    assert ast.literal_eval(said.splitlines()[1]) == [True] * len({path.stem for path in RESULTS})


def test_jupyterlab_opens_copies_in_the_current_folder_with_the_courses_settings(run, tmp_path):
    shown = "print(os.getcwd(), *os.environ['JUPYTER_CONFIG_PATH'].split(os.pathsep), sep='\\n')"
    code = (
        f"import os; from smalearn.course import cli, server; server.open_lab = lambda *_: {shown}; cli.main(['lab'])"
    )
    _, said, errors = run("python", "-c", code)
    assert errors == ""
    here, lab, every, *_ = map(Path, said.splitlines())
    assert here == tmp_path
    for folder, name in ((lab, "jupyter_server_config.json"), (every, "labconfig/default_setting_overrides.json")):
        assert (folder / name).is_file()
    copies = {path.name for path in (tmp_path / "work").glob("*.ipynb")}
    assert copies == {path.name for path in chapters(ROOT / "chapters")}
    for command in ("progress", "reset 1", "review", "export nbgrader 1 -o new"):
        assert run("smalearn", *command.split())[::2] == (0, "")
    assert run("smalearn", "export", "students", "-o", "other")[0] == 1
    assert not (tmp_path / "other").exists()


def test_no_sandbox_gets_its_chapters_or_tests(run, tmp_path):
    """Tests hold answers; without what else a wheel has beside the code, a submission starts sooner."""
    code = "from pathlib import Path; from smalearn.course.grading.sandbox import without_solutions as copied"
    assert run("python", "-c", f"{code}; copied(Path('smalearn'))") == (0, "", "")
    assert (tmp_path / "smalearn/assets/results").is_dir()
    assert not list(tmp_path.glob("smalearn/tests")) + list(tmp_path.glob("smalearn/chapters"))


def test_its_claims_are_those_of_the_repository(run):
    for pattern in ("", ":"):
        assert run("smalearn", "claims", pattern) == (0, f"{site.table(site.claims(ROOT), pattern)}\n", "")


def test_its_site_has_every_chapter(run, tmp_path):
    status, _, errors = run("smalearn", "site", "-o", "pages")
    assert status == 0, errors
    pages = {path.stem for path in (tmp_path / "pages").rglob("*.html")}
    assert pages >= {path.stem for path in chapters(ROOT / "chapters")}
    assert "<small></small>" not in (tmp_path / "pages/index.html").read_text(encoding="utf-8")


def test_benchmarks_stay_with_the_repository(run):
    said = "smalearn bench: the benchmarks come with the repository of the course, not with the installed package\n"
    assert run("smalearn", "bench", "ssd") == (1, "", said)


def test_it_has_all_that_the_chapters_import(run):
    """Every import of every chapter, in a folder without the course."""
    lines = set()
    for path in chapters(ROOT / "chapters"):
        cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        trees = [ast.parse("\n".join(line for line in cell.splitlines() if line[:1] not in "%!")) for cell in cells]
        imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        lines |= {ast.unparse(node) for node in imports} - {"from my_ssd import ssd_in_chunks"}  # the learner's own
    assert any("smalearn.course.ch10" in line for line in lines)
    status, _, errors = run("python", "-W", "ignore", "-c", "\n".join(sorted(lines)))
    assert (status, errors) == (0, "")


def test_a_chapter_runs_from_it_as_stored(run, tmp_path):
    """One with explorers, pictures and exercises, and nothing of the course beside it."""
    shutil.copy(ROOT / "chapters/02_kernel_attention.ipynb", tmp_path)
    options = ["--nbval", "--nbval-current-env", f"--nbval-sanitize-with={ROOT / 'tests/sanitize.cfg'}"]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
    status, said, errors = run("python", *pytest, SMALEARN_QUICK="ladder")  # whose trainings no output shows
    assert (status, errors) == (0, ""), said
