"""Grading many: who lost a process has a second chance, and workers elsewhere make the rows of this computer."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_grading import RIGHT, notebook
from test_grading_guide import ANSWER, GUIDE

from smalearn.course import cli, grading
from smalearn.course.exercises import core
from smalearn.course.grading import Row, Submission, pool

# ------------------------------------------------------------------------------------------------------ second chances


@pytest.mark.parametrize(
    ("outcome", "note", "again"),
    [
        ("lost", {"3.1": "its process ended"}, True),
        ("not run", {"": "not graded to the end: its process ended"}, True),
        ("passed", {"": "setup: NameError: x"}, False),
        ("timeout", {}, False),
        ("error", {"3.1": "MemoryError"}, False),
    ],
)
def test_whose_process_was_lost_is_graded_once_more_alone_after_the_others(tmp_path, outcome, note, again):
    running, calls, beside = [], [], []

    def work(submission):
        calls.append(submission.student)
        running.append(submission)
        time.sleep(0.05)  # so that two would meet
        beside.append(len(running))
        running.remove(submission)
        troubled = submission.student in ("ada", "bob")
        return Row(submission.student, tmp_path, {"3.1": outcome if troubled else "passed"}, note if troubled else {})

    submissions = [Submission(tmp_path, name) for name in ("ada", "bob", "carl", "dora", "eve")]
    with ThreadPoolExecutor(5) as threads:
        rows = list(pool._finished(threads, work, submissions))
    assert sorted(row.student for row in rows) == ["ada", "bob", "carl", "dora", "eve"]
    assert sorted(calls[5:]) == (["ada", "bob"] if again else [])
    assert beside[5:] == [1] * len(calls[5:])


class GoneError(Exception):
    """What a cluster raises, each one its own."""


def test_a_worker_that_is_gone_costs_one_row_and_only_if_it_happens_twice(tmp_path):
    calls = []

    def work(submission):
        calls.append(submission.student)
        if submission.student == "ada" or (submission.student == "bob" and calls.count("bob") == 1):
            raise GoneError("out of memory\non node 7")
        return Row(submission.student, tmp_path, {"3.1": "passed"})

    submissions = [Submission(tmp_path, name, digest=name) for name in ("ada", "bob", "carl")]
    with ThreadPoolExecutor(1) as threads:
        rows = {row.student: row for row in pool._finished(threads, work, submissions)}
    assert sorted(calls) == ["ada", "ada", "bob", "bob", "carl"]
    assert [rows[name].ran for name in ("ada", "bob", "carl")] == [False, True, True]
    assert rows["ada"].notes == {"": "not graded to the end: its worker is gone: out of memory"}
    assert rows["ada"].digest == "ada"
    with ThreadPoolExecutor(1) as threads, pytest.raises(ValueError, match="no sandbox"):
        list(pool._finished(threads, lambda submission: exec("raise ValueError('no sandbox')"), submissions))


# ----------------------------------------------------------------------------------------------------------- elsewhere

OWN = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL).group(1)
SUMS = "def window_sums(x, width):\n    return x.cumsum(0)"


@pytest.fixture
def no_traces(own_registry):
    """What a worker keeps is forgotten too."""
    for kept in (pool._course, pool._box):
        kept.cache_clear()
    yield
    for kept in (pool._course, pool._box):
        kept.cache_clear()


@pytest.fixture
def classroom(tmp_path):
    """A folder with ada, who is right, and bob, who is not."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, answer in {"ada": ANSWER, "bob": SUMS}.items():
        made = notebook({"3.1": RIGHT["3.1"], "quiz.1": answer}, check=False)
        (folder / f"{name}.ipynb").write_text(json.dumps(made), encoding="utf-8")
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "points.json").write_text('{"3.1": 1, "quiz.1": 1}', encoding="utf-8")
    return tmp_path


OUTCOMES = {"ada": {"3.1": "passed", "quiz.1": "passed"}, "bob": {"3.1": "passed", "quiz.1": "failed"}}


@pytest.mark.full
def test_the_next_class_may_have_other_exercises_of_the_same_names(classroom, no_traces):
    """A worker of Dask lives on after an order."""
    submissions = grading.read(grading.files([str(classroom / "in" / "ada.ipynb")]))
    known = set(core._registry)
    with ThreadPoolExecutor(1) as threads:
        for own in (OWN, OWN.replace("The last few rows", "Another title"), OWN):
            rows = pool.grade_elsewhere(threads, submissions, grading.Order(("quiz.1",), grading.Limits(), 7, own))
            assert [(row.outcomes, row.seed) for row in rows] == [({"quiz.1": "passed"}, 7)]
            assert set(core._registry) == known


def test_a_worker_without_a_sandbox_is_refused(classroom, monkeypatch, no_traces):
    monkeypatch.setenv("PATH", "")
    submissions = grading.read(grading.files([str(classroom / "in")]))
    order = grading.Order(("3.1",), grading.Limits(), 7)
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(ValueError, match=r"grade: on .+ bubblewrap does not work here \(.+\): submissions run as you"),
    ):
        list(grading.grade_elsewhere(threads, submissions, order))


def command(classroom, place):
    files = ["--exercises", str(classroom / "mine.py"), "--weights", str(classroom / "points.json")]
    return cli.main(["grade", str(classroom / "in"), "-o", str(classroom / "table.csv"), *files, "--on", place])


@pytest.mark.full
def test_a_dask_cluster_makes_the_table_of_this_computer(classroom, no_traces, box, cluster, capsys):
    if box.weakness:
        pytest.skip("needs a peer: bubblewrap")
    assert command(classroom, "local") == 0
    here = (classroom / "table.csv").read_text(encoding="utf-8")
    for path in classroom.glob("table.*"):
        path.unlink()
    assert command(classroom, cluster) == 0
    assert (classroom / "table.csv").read_text(encoding="utf-8") == here
    assert "2 students, on average 1.5 of 2 points\n" in capsys.readouterr().out


def test_a_place_that_is_not_there_is_named(classroom, no_traces, monkeypatch, capsys):
    monkeypatch.setattr("smalearn.course.grading.command.seed_for", lambda exercises: 5)
    assert command(classroom, "here") == 1
    said = "smalearn grade: --on must be local, dask://HOST:PORT, slurm or mpi, got here\n"
    assert capsys.readouterr().err == said
