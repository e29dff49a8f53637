"""Grading one notebook: the way, longer inputs and gradients; and a process that is lost, ended or never starts."""

import csv
import json
import os
import textwrap
import time
from dataclasses import replace

import pytest
from test_grading import LIMITS, RIGHT, body, notebook

from smalearn.course import grading
from smalearn.course.exercises import registry
from smalearn.course.grading import grader
from smalearn.course.grading.process import Child, Lost


def graded(folder, box, answers, ids=None, setup="import torch", limits=LIMITS):
    """The row of a notebook with these answers."""
    path = folder / "ada.ipynb"
    path.write_text(json.dumps(notebook(answers, setup, check=False)), encoding="utf-8")
    (row,) = grading.grade(grading.read([path]), {id: registry()[id] for id in ids or answers}, box, limits)
    return row


LOOP = """
    def running_attention(Q, K, V):
        state, rows = K.new_zeros(K.shape[1], V.shape[1]), []
        for q, k, v in zip(Q, K, V):
            state = state + torch.outer(k, v)
            rows.append(q @ state)
        return torch.stack(rows)
    """
TWENTY_TOKENS = textwrap.dedent(RIGHT["3.3"]).rstrip() + " * (torch.arange(len(V)) < 20)[:, None]"
MASK = "return steps.cumsum(-2).exp().tril()"


@pytest.fixture(scope="module")
def measured(tmp_path_factory, box):
    """The row of a notebook in which each exercise comes out in another way."""
    answers = {"3.1": LOOP, "3.2": body("3.2", "raise NotImplementedError"), "3.3": TWENTY_TOKENS, "3.4": "def f(:"}
    answers |= {"3.5": registry()["3.5"].code, "6.1": registry()["6.1"].code.replace(MASK, f"{MASK}.detach()")}
    answers["6.4"] = "def read_states(C, log_a, H):\n    return log_a.cumprod(-1)[..., None] * (C @ H.mT)"
    row = graded(tmp_path_factory.mktemp("measured"), box, answers, [*answers, "6.5"])
    return replace(row, worth=dict.fromkeys(row.outcomes, 1))


def test_the_remark_says_why_an_answer_earns_nothing(measured):
    outcomes = ["not as asked", "not started", "failed", "error", "passed", "failed", "failed", "missing"]
    assert list(measured.outcomes.values()) == outcomes
    assert "you multiply logarithms" in measured.notes["6.4"] == measured.misconceptions["6.4"]
    assert measured.notes["3.4"].startswith("SyntaxError: ")
    assert measured.notes["6.5"] == "not in the notebook"
    assert "✓" in measured.cards["3.5"]


def test_a_wrong_answer_may_earn_by_the_cases_that_it_gets_right(tmp_path, box):
    answer = textwrap.dedent(RIGHT["3.3"]).rstrip() + " * (len(V) < 5)"  # right in three of the five cases
    row = replace(graded(tmp_path, box, {"3.3": answer}), worth={"3.3": 2})
    assert row.points(grading.Terms()) == {"3.3": 0}
    assert row.points(grading.Terms(cases=0.5)) == {"3.3": pytest.approx(3 / 5)}


def test_what_is_wrong_for_more_tokens_than_the_cases_have_earns_nothing(measured):
    assert measured.notes["3.3"].endswith("but not one with T = 32: wrong values")


def test_gradients_are_graded(measured):
    assert "the gradient by log_a is not" in measured.notes["6.1"]


@pytest.mark.parametrize(("partial", "total"), [(0.5, "1"), (0, "0"), (1, "2")])
def test_what_is_right_but_not_as_asked_earns_a_part(tmp_path, measured, partial, total):
    assert measured.notes["3.1"].endswith("a loop over time")
    row, terms = replace(measured, worth={"3.1": 2}), grading.Terms(partial)
    grading.write(grading.lines([row], terms), terms, tmp_path / "table.csv")
    (line,) = csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines())
    assert (line["3.1"], line["total"]) == (total, total)
    said = grading.summary(grading.lines([row], terms), terms)
    assert f"on average {total} of 2 points" in said
    assert "passed by 0, right but not as asked by 1" in said


@pytest.mark.full
def test_our_solutions_stand_in_for_what_is_missing_wrong_or_lost(tmp_path, box):
    ids = ["6.1", "6.2", "6.3", "6.4", "6.5"]  # 6.2 calls 6.1, 6.5 calls all of them
    sources = {id: registry()[id].code for id in ("6.2", "6.5")}
    sources["6.3"] = "import os\ndef hand_over(decay, updates, state):\n    os._exit(3)"
    sources["6.4"] = "def read_states(C, log_a, entering):\n    return C"
    setup = "import torch\nfrom smalearn.masks.decay import split_chunks"
    row = graded(tmp_path, box, {id: sources[id] for id in ids[1:]}, ids, setup)
    assert row.outcomes == dict(zip(ids, ["missing", "passed", "lost", "failed", "passed"], strict=True))
    assert row.notes["6.1"] == "not in the notebook"


def test_the_time_of_a_notebook_is_limited(tmp_path, box):
    row = graded(tmp_path, box, {"3.1": "import time\ntime.sleep(60)"}, limits=grading.Limits(exercise=30, notebook=0))
    assert row.notes == {"": "not graded to the end: its 0 s are over"}
    assert row.outcomes == {"3.1": "not run"}


def test_a_fault_of_the_grader_costs_one_row_and_is_named(tmp_path, monkeypatch, box):
    class Fails:
        def __init__(self, task, box):
            raise OSError("no more processes")

    monkeypatch.setattr(grader, "Child", Fails)
    row = graded(tmp_path, box, {"3.1": RIGHT["3.1"]})
    assert row.notes == {"": "not graded to the end: the grader failed with OSError: no more processes"}


def task(setup, **exercises):
    """A task of one cell, which is tagged `setup`."""
    cells = [{"source": setup, "count": None, "id": None, "setup": True, "right": []}]
    return {"cells": cells, "exercises": exercises, "limit": 5, "memory": 2**30, "seconds": 60}


@pytest.mark.full
def test_a_process_ends_with_what_it_started(tmp_path):
    """A child of the submission holds both ends of the pipes; where there is no sandbox, its group is ended."""
    mark = tmp_path / "still here"
    script = f"import time, pathlib; time.sleep(1); pathlib.Path({str(mark)!r}).touch()"
    setup = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {script!r}], close_fds=False)"
    with grading.opened() as made:
        child = Child(task(f"{setup}\nraise KeyboardInterrupt"), replace(made, prefix=()))
        try:
            assert child.ask({"do": "setup"}, 30)["error"] == "KeyboardInterrupt"
            with pytest.raises(Lost, match=r"its process ended: KeyError: '9.9'"):
                child.ask({"do": "call", "id": "9.9"}, 30)  # an exercise that the session does not know ends it
        finally:
            child.close()
    assert not child._reader.is_alive()
    if hasattr(os, "killpg"):
        time.sleep(1.5)
        assert not mark.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a peer: a system that forks")
@pytest.mark.full
def test_a_process_that_leaves_the_group_and_keeps_the_channel_open_holds_up_nobody(box):
    setup = """
import os, time
reads, writes = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(writes, b"left")
    time.sleep(4)
    os._exit(0)
left = os.read(reads, 4)
"""
    child = Child(task(setup), replace(box, prefix=()))
    assert child.ask({"do": "setup"}, 30)["error"] == ""
    child.close()
    assert child._reader.is_alive()  # the other still holds the pipe, and close did not wait for it
    child._reader.join(60)
    assert not child._reader.is_alive()


def test_a_process_that_does_not_start_is_named(monkeypatch, box):
    monkeypatch.setenv("PYTHONHOME", os.devnull)  # so that Python finds nothing of its own
    with pytest.raises(Lost, match=r"it does not start: its process ended: .*No module named 'encodings'"):
        Child(task(""), box)
