"""The sandbox: what a submission finds there, and attacks on the grader, each of which costs its own row alone."""

import ast
import inspect
import json
import os
import shutil
import socket
import sys
import textwrap
import types
from dataclasses import replace
from pathlib import Path

import pytest
from test_grading import IDS, LIMITS, RIGHT, notebook
from test_grading_process import task

from smalearn.course import grading
from smalearn.course.exercises import AnswerKey, registry
from smalearn.course.exercises.core import of_a_chapter
from smalearn.course.grading import grader, pool, sandbox, wire
from smalearn.course.grading.grader import _part
from smalearn.course.grading.process import Child, Lost
from smalearn.course.grading.reference import names_in, reference

# ------------------------------------------------------------------------------------------ a package without solutions


def test_of_a_module_stays_what_it_offers_and_needs():
    source = """
        import math
        import torch
        from smalearn.course.exercises.core import exercise
        __all__ = ["Judge"]
        LIMIT = math.pi
        OTHER = 3
        def _helper(): return LIMIT
        class Judge:
            def __call__(self): return _helper()
        @exercise("9.9", "Title")
        def answer(): return 42
        """
    kept = sandbox.reduced(textwrap.dedent(source))
    assert [ast.unparse(node).split("\n")[0] for node in ast.parse(kept).body] == [
        "import math",
        "__all__ = ['Judge']",
        "LIMIT = math.pi",
        "def _helper():",
        "class Judge:",
    ]
    assert sandbox.reduced("def answer(): return 42") == ""


def test_the_copy_has_no_solution_no_oracle_and_no_wrong_answer(box):
    course = box.package / "smalearn/course"
    files = sandbox.solutions(course.parent)
    kept = {f"smalearn.course.{path.parent.name}.{path.stem}": path.read_text(encoding="utf-8") for path in files}
    assert kept.keys() == {
        "smalearn.course.ch04.invent",
        "smalearn.course.ch04.structure",
        "smalearn.course.ch07.constant_decay",
        "smalearn.course.ch07.recall_questions",
        "smalearn.course.ch10.layer",
        "smalearn.course.ch11.charlm_questions",
        "smalearn.course.ch12.counts",
        "smalearn.course.ch12.exponents",
        "smalearn.course.ch12.ladder",
    }  # what cases and chapters need of them
    compiled = b"".join(path.read_bytes() for path in course.glob("ch*/__pycache__/*.pyc"))
    for exercise in registry().values():
        for sentence in exercise.wrong:
            assert not any(sentence in text for text in kept.values())
            assert sentence.encode() not in compiled
        for function in called(exercise.oracle, called(exercise.solution, set())):
            assert f"def {function.__name__}(" not in kept.get(function.__module__, "")


def called(function, found):
    """A function and all that it calls, as far as modules of exercises define it."""
    function = inspect.unwrap(function) if callable(function) else function
    ours = isinstance(function, types.FunctionType) and of_a_chapter(function.__module__)
    if ours and function not in found:
        found.add(function)
        for name in names_in(function.__code__):
            called(function.__globals__.get(name), found)
        for cell in function.__closure__ or ():
            called(cell.cell_contents, found)
    return found


@pytest.mark.full
def test_our_solutions_run_there_when_they_are_sent(box):
    keys = {id: AnswerKey(exercise, 1) for id, exercise in registry().items()}
    parts, cells = {}, []
    for number, (id, key) in enumerate(keys.items()):
        source = f"def probe{number}(*arguments):\n    return {key.exercise.solution.__name__}(*arguments)"
        parts[id] = _part(key) | {"name": f"probe{number}"}
        cells.append({"source": source, "count": None, "id": id, "setup": False, "right": []})
    child = Child({"cells": cells, "exercises": parts, "limit": 30, "memory": 2**31, "seconds": 600}, box)
    try:
        child.ask({"do": "setup"}, 60)
        for id, key in keys.items():
            name = key.exercise.solution.__name__
            child.ask({"do": "reference", "id": id, "name": name, "source": reference(key.exercise)}, 60)
            answer = child.ask({"do": "call", "id": id, "order": "run"}, 60)
            assert key.judge(wire.unpack(answer["calls"], key.cases)).outcome == "passed", (id, answer)
    finally:
        child.close()


def test_a_seed_is_one_with_which_our_solutions_pass(monkeypatch):
    ours = {"3.1": registry()["3.1"]}
    assert grading.seed_for(ours, 5) == 5
    monkeypatch.setattr(pool, "evaluate", lambda exercise, attempt, seed: replace(PASSED, outcome=str(seed)))
    with pytest.raises(ValueError, match=r"grade: with no seed from 5 to 14 do the solutions of all exercises pass"):
        grading.seed_for(ours, 5)


PASSED = grader.Result(registry()["3.1"], "passed", 0, 1)


def test_without_bubblewrap_it_says_what_does_not_hold(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with grading.opened() as made:
        assert made.prefix == ()
        assert made.weakness.startswith("bubblewrap does not work here (")
        assert "submissions run as you" in made.weakness


@pytest.mark.full
def test_packages_that_are_installed_elsewhere_are_there(tmp_path, monkeypatch):
    """As on a cluster: in a folder of `PYTHONPATH`, and in one that a `.pth` file names; not a folder of sources."""
    listed, named, sources = folders = [tmp_path / name for name in ("listed", "named", "sources")]
    for folder in folders:
        (folder / "package.dist-info").mkdir(parents=True)
        (folder / f"{folder.name}_module.py").write_text("", encoding="utf-8")
    (sources / "package.dist-info").rmdir()
    (listed / "more.pth").write_text(f"{named}\n{sources}\n", encoding="utf-8")
    (listed / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(listed)!r})", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(listed))
    with grading.opened() as made:
        child = Child(task("import listed_module, named_module"), made)
        try:
            assert child.ask({"do": "setup"}, 60) == {"to": 1, "error": ""}
        finally:
            child.close()
        assert str(sources) not in made.prefix


def test_the_probe_tries_what_will_run(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcuda.so.9')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with grading.opened() as made:
        assert "libcuda.so.9" in made.weakness or not shutil.which("bwrap")
        with pytest.raises(Lost, match=r"it does not start: its process ended: ImportError: libcuda.so.9"):
            Child(task(""), made)


def test_a_submission_gets_none_of_the_teachers_variables(box, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    assert "abc" not in box.environment.values()


# -------------------------------------------------------------------------------------------------------------- attacks

HELP = """
import os, socket, subprocess, sys, time

def each(act, *places):
    # tries an act on every place, and forgets what does not work
    for place in places:
        try:
            act(place)
        except (OSError, ValueError):
            pass

def see(*places):
    found = []
    each(lambda place: found.append(os.listdir(place) if os.path.isdir(place) else open(place, "rb").read(9)), *places)
    return found

multiplied = []

def multiply(copies, size):
    # copies of this process, once, that take memory and stay
    multiplied.append(size)
    for _ in range(copies if multiplied.count(size) == 1 else 0):
        if os.fork() == 0:
            held = b"x" * size
            time.sleep(10**6)

def fill(folder):
    each(lambda number: open(f"{folder}/{number}", "wb").write(bytes(2**24)), *range(40))
"""
CANNOT = sys.platform != "linux" or shutil.which("bwrap")
ENDED, WRONG = {"lost"}, {"failed", "error"}
EITHER = ENDED | WRONG | {"timeout"}
# What is tried before a right answer, and what the exercise then gets: "passed" where it came to nothing.
ATTACKS = {
    "kills": {
        "3.1": ("each(lambda id: os.kill(id, 9), os.getppid(), -1)", ENDED | {"passed"}),
        "3.2": ("os.kill(os.getpid(), 9)", ENDED),
        "3.3": ("each(lambda id: os.kill(id, 9), *range(1, 4000))", ENDED),
    },
    "signals": {
        "3.1": ("os.killpg(0, 15)", ENDED),
        "3.2": ("import signal\nos.kill(os.getpid(), signal.SIGSTOP)", ENDED),
        "3.3": ("each(lambda id: os.kill(id, 19), os.getppid(), 1)", EITHER | {"passed"}),
    },
    "crashes": {
        "3.1": ("import ctypes\nctypes.string_at(0)", ENDED),
        "3.2": ("os.abort()", ENDED),
        "3.3": ("sys.setrecursionlimit(10**9)\ndef down():\n    return down()\ndown()", EITHER),
    },
    "detaches": {
        "3.1": ("subprocess.Popen([sys.executable, '-c', LATER], start_new_session=True)", {"passed"}),
        "3.2": ("if os.fork() == 0:\n    os.setsid()\n    while True: pass", {"passed"}),
        "3.3": ("while True:\n    os.fork()", EITHER),
    },
    "reads": {
        "3.1": ("assert not see(PLACE, PLACE + '/ada.ipynb', REPOSITORY + '/tests', REPOSITORY + '/.git')", {"passed"}),
        "3.2": ("assert not see('/home', '/etc/passwd', '/etc/shadow', '/proc/1/environ', '/proc/1/mem')", {"passed"}),
        "3.3": ("assert len(set(filter(str.isdigit, os.listdir('/proc')))) <= 2", {"passed"}),
    },
    "writes": {
        "3.1": ("each(lambda place: open(place, 'w').write('1'), PLACE + '/table.csv', PLACE + '/mark')", {"passed"}),
        "3.2": ("each(lambda name: open('/proc/sys/kernel/' + name, 'w').write('1'), 'hostname')", {"passed"}),
        "3.3": ("each(lambda place: open(place, 'w'), torch.__file__, sys.executable, os.__file__)", {"passed"}),
    },
    "fills": {
        "3.1": ("fill('/tmp')", {"passed"}),
        "3.2": ("each(fill, '/dev/shm', '/dev', '/', '/var/tmp', '/run')", {"passed"}),
        "3.3": ("each(lambda number: os.mkdir(f'/tmp/{number}'), *range(10**5))", EITHER | {"passed"}),
    },
    "eats": {
        "3.1": ("x = []\nwhile True:\n    x.append(torch.ones(2**24))", EITHER),
        "3.2": ("return 'x' * 30_000_000", {"failed"}),
        "3.3": ("return torch.zeros(1).expand(2**40)", {"error"}),
    },
    "multiplies": {  # whose memory limit is of one process; 3 GiB at most
        "3.1": ("multiply(8, 2**27)", {"passed"}),
        "3.2": ("for _ in range(4):\n    os.fork()\nheld = b'x' * 2**25", EITHER | {"passed"}),
        # what 3.2 leaves behind reads the same channel, so that it may end this one as well
        "3.3": ("each(lambda size: multiply(64, size), 2**23)", EITHER | {"passed"}),
    },
    "floods": {
        "3.1": ("while True:\n    each(lambda number: os.write(number, b'x' * 2**20), *range(3, 9))", EITHER),
        "3.2": ("each(os.close, *range(3, 20))", ENDED),
        "3.3": ("each(lambda number: os.write(number, b'[' * 10**6 + bytes([10])), *range(3, 9))", ENDED),
    },
    "calls home": {
        "3.1": ("socket.create_connection(('1.1.1.1', 53), 1)", {"error"}),
        "3.2": ("socket.create_connection(('127.0.0.1', PORT), 1)", {"error"}),
        "3.3": ("os.setuid(0)\nos.chroot('/')", {"error"}),
    },
    "lingers": {
        "3.1": ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", EITHER),
        "3.2": ("time.sleep(10**6)", EITHER),
        "3.3": ("torch.ones(1500, 1500).matrix_power(2**62 - 1)", EITHER),
    },
    "pretends": {
        "3.1": ("class Any:\n    def __getattr__(self, name): raise SystemExit\nreturn Any()", WRONG),
        "3.2": ("import builtins\nbuiltins.len = lambda x: 0\nreturn V", EITHER),
        "3.3": ("import smalearn.course.grading.wire as wire\nwire.pack = lambda run: CLAIM\nreturn V", {"failed"}),
    },
}
HONEST = ["ada", "kim", "mia", "zoe"]  # by name, as files are graded
FILES = ["fifo.ipynb", "zero.ipynb", "link.ipynb", "dangling.ipynb", "large.ipynb", "folder.ipynb"]


def attack(id, code):
    """An answer that is right but for what it does first."""
    head, *lines = textwrap.dedent(RIGHT[id]).strip().splitlines()
    return "\n".join([head, textwrap.indent(code, "    "), *lines])


def spread(folder, port):
    """Put all attacks into a folder, and honest notebooks before, beside and after them."""
    setup = f"""
import torch
from smalearn.course.exercises import check
PLACE, REPOSITORY, PORT = {str(folder)!r}, {str(Path(__file__).parents[2])!r}, {port}
CLAIM = [{{"answer": ["none"], "error": [], "stub": False, "modified": []}}] * 9
LATER = "import time; time.sleep(3); open({str(folder / "mark")!r}, 'w')"
{HELP}"""
    honest = notebook({id: textwrap.dedent(RIGHT[id]) for id in IDS})
    for name in HONEST:
        (folder / f"{name}.ipynb").write_text(json.dumps(honest), encoding="utf-8")
    for name, tried in ATTACKS.items():
        made = notebook({id: attack(id, code) for id, (code, _) in tried.items()}, setup)
        (folder / f"{name}.ipynb").write_text(json.dumps(made), encoding="utf-8")
    os.mkfifo(folder / "fifo.ipynb")
    os.symlink("/dev/zero", folder / "zero.ipynb")
    os.symlink(folder / "ada.ipynb", folder / "link.ipynb")
    os.symlink(folder / "nobody", folder / "dangling.ipynb")
    with (folder / "large.ipynb").open("wb") as file:
        file.truncate(2**40)
    (folder / "folder.ipynb").mkdir()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, box):
    if box.weakness:  # a system may have it and not let it work
        pytest.skip(
            "needs a peer: bubblewrap" if CANNOT else "start.py test --full brings bubblewrap, and it is missing"
        )
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "table.csv").write_text("untouched", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.MonkeyPatch.context() as patch:
        spread(folder, server.getsockname()[1])
        patch.setattr(grader, "GRACE", 2.0)
        submissions = grading.read(grading.files([str(folder)]))
        rows = list(grading.grade(submissions, {id: registry()[id] for id in IDS}, box, LIMITS, jobs=2))
    return folder, {row.path.name: row for row in rows}


@pytest.mark.full
@pytest.mark.parametrize(("name", "id"), [(name, id) for name in ATTACKS for id in IDS])
def test_an_attack_costs_what_it_did(attacked, name, id):
    row = attacked[1][f"{name}.ipynb"]
    assert row.outcomes[id] in ATTACKS[name][id][1], row.notes


@pytest.mark.full
def test_everybody_else_has_what_they_had(attacked):
    folder, rows = attacked
    for name in HONEST:
        assert rows[f"{name}.ipynb"].outcomes == dict.fromkeys(IDS, "passed"), name
    assert (folder / "table.csv").read_text(encoding="utf-8") == "untouched"
    assert not (folder / "mark").exists()


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none_cost_their_row(attacked, name):
    row = attacked[1][name]
    said = {"fifo": "it is not a file", "large": "the file is too large", "folder": "no notebook in this folder"}
    assert row.notes == {"": said.get(name.partition(".")[0], "it is a link, not a file")}
    assert not row.ran
