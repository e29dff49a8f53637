"""Grading: whose files, which exercises, how many points, and the table; no submission is run here."""

import contextlib
import csv
import json
import re
import time
from dataclasses import replace

import pytest

from smalearn.course import cli, grading
from smalearn.course.exercises import registry
from smalearn.course.exercises.compare import same
from smalearn.course.grading import Row, command, gradebook, grader, submission, wire
from smalearn.course.grading.sandbox import PACKAGE, Sandbox

MEAN = "def mean(V):\n    total = V.sum(0)\n    return total / len(V)"


def write(path, cells=(), metadata=None):
    """A notebook with these code cells, each a source and an exercise id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [{"cell_type": "markdown", "source": "# 03", "metadata": metadata or {}}]
    made += [{"cell_type": "code", "source": source, "metadata": {"exercise": id}} for id, source in cells]
    path.write_text(json.dumps({"cells": made}), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------- files and students


def found(*names):
    return sorted(one.path for one in grading.files(map(str, names)))


def test_a_folder_stands_for_what_is_in_it_and_below(tmp_path):
    paths = [write(tmp_path / name) for name in ("ada/03.ipynb", "bob/03.ipynb", "carl.ipynb")]
    write(tmp_path / "ada/.ipynb_checkpoints/03-checkpoint.ipynb")
    write(tmp_path / ".hidden.ipynb")
    assert found(tmp_path) == sorted(paths)
    (tmp_path / "dora/deep").mkdir(parents=True)
    (tmp_path / "dora/deep/hw.pdf").touch()
    (tmp_path / "__MACOSX").mkdir()
    assert found(tmp_path) == sorted([*paths, tmp_path / "dora"])  # who handed in no notebook
    assert found(tmp_path / "ada") == paths[:1]
    assert found(tmp_path / "*.ipynb", paths[2]) == [paths[2]]
    again = grading.files(grading.files([paths[0], paths[2]]))
    assert [(one.path, one.place.label) for one in again] == [(paths[0], "ada"), (paths[2], "carl")]


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"grade: there is no file .*nowhere.ipynb"):
        grading.files([str(tmp_path / "nowhere.ipynb")])
    (tmp_path / "bob.ipynb.json").touch()
    with pytest.raises(ValueError, match=r"grade: there is no notebook in .*, only bob\.ipynb\.json"):
        grading.files([str(tmp_path)])


def test_what_cannot_be_read_has_a_problem(tmp_path, monkeypatch):
    link = tmp_path / "link.ipynb"
    link.symlink_to(write(tmp_path / "ada.ipynb"))
    assert [one.problem for one in grading.read([link, tmp_path / "ada.ipynb"])] == ["it is a link, not a file", ""]
    found = grading.files([tmp_path])
    (tmp_path / "ada.ipynb").unlink()  # meanwhile
    assert grading.read(found)[0].problem.startswith("the file cannot be read: ")
    write(tmp_path / "ada.ipynb")
    monkeypatch.setattr(submission, "LARGEST", 10)
    (large,) = grading.read([write(tmp_path / "large.ipynb")])
    assert large.problem == "the file is too large"


def test_the_cells_of_a_submission(tmp_path):
    cells = [("3.1", "def f():\n    pass"), ("3.1", 'f = check("3.1", f)'), ("3.2", "import f\ng = 1\ncheck('3.2', g)")]
    path = write(tmp_path / "ada.ipynb", cells)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] += [
        {"cell_type": "code", "source": ["import ", "torch"], "metadata": {"tags": ["setup", "hide"]}},
        {"cell_type": "markdown", "source": "setup", "metadata": {"tags": ["setup"]}},
        {"cell_type": "code", "source": "1 / 0", "metadata": {"tags": "setup"}},
    ]
    sources = ["%matplotlib inline\nimport os.path as f, sys\nfrom math import pi, sqrt as g\nh = g(2)", "import f as"]
    sources += ["(" * 9_000, "-" * 99_000 + "1"]  # too deep to be read as Python
    notebook["cells"] += [{"cell_type": "code", "source": source, "metadata": {}} for source in sources]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    (one,) = grading.read([path])
    assert [cell["source"] for cell in one.code if cell["setup"]] == ["import torch"]
    assert len(one.code) == len(notebook["cells"]) - 2  # all but texts
    assert one.cells == {"3.1": [cells[0][1], cells[1][1]], "3.2": [cells[2][1]]}
    assert one.answer("3.1") == cells[0][1]
    assert one.answer("3.2") == one.answer("3.3") == ""


def test_exercises_of_an_earlier_edition_have_the_ids_of_today(tmp_path):
    name = registry()["1.2"].solution.__name__
    answer = f"def {name}(x):\n    return x"
    path = write(tmp_path / "ada.ipynb", [("1.1", answer), ("1.1", f'{name} = check("1.1", {name})')])
    assert grading.read([path])[0].cells == {"1.2": [answer, f'{name} = check("1.2", {name})']}


# -------------------------------------------------------------------------------------------------- points and table


def test_the_chapter_that_most_files_are_of_counts_a_point_each(tmp_path):
    paths = [
        write(tmp_path / "a.ipynb", [("3.1", ""), ("3.2", ""), ("7.1", "")]),
        write(tmp_path / "b.ipynb", [("3.1", ""), ("0.1", "")]),
        write(tmp_path / "c.ipynb", [("7.1", ""), ("7.2", ""), ("x.1", "")]),
    ]
    weights = grading.weigh(grading.read(paths))
    assert weights == {id: 1 for id, one in registry().items() if id.startswith("3.") and not one.opener}
    with pytest.raises(ValueError, match="grade: none of the exercises of the course is in these files"):
        grading.weigh(grading.read([write(tmp_path / "d.ipynb", [("x.1", "")])]))


def test_a_file_says_what_counts_and_how_much(tmp_path):
    path = tmp_path / "points.json"
    path.write_text('{"6.5": 2.5, "3.1": 0}', encoding="utf-8")
    weights = grading.weigh([], path)
    assert weights == {"6.5": 2.5, "3.1": 0}
    chosen = grading.exercises(weights)  # 6.5 calls 6.1 to 6.4
    assert list(chosen) == [id for id in registry() if id[:2] in ("3.", "6.")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3.1 = 2", "is not JSON"),
        ("[1]", "must name exercises and their points"),
        ('{"3.1": true}', "must name exercises and their points"),
        ('{"3.1": -1}', "must name exercises and their points"),
        ('{"3.1": Infinity}', "must name exercises and their points"),
        ('{"3.1": 1, "3.9": 1, "x": 2}', "has points for 3.9, x, which no exercise is called"),
    ],
)
def test_a_file_of_weights_that_is_none(tmp_path, text, message):
    path = tmp_path / "points.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"grade: .*points.json {re.escape(message)}"):
        grading.weigh([], path)


def row(student, path, outcomes=(), worth=None, **fields):
    outcomes = dict(outcomes)
    return Row(student, path, outcomes, worth=worth or dict.fromkeys(outcomes, 1), **fields)


def lines_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_table_holds_no_formula_and_one_line_for_each_student(tmp_path):
    outcomes = {"3.1": "error", "3.2": "timeout"}
    found = [
        row("=HYPERLINK(1)", tmp_path / "a.ipynb", {"3.1": "passed", "3.2": "not started"}, {"3.1": 0.1, "3.2": 0.2}),
        row("bob", tmp_path / "b.ipynb", outcomes, notes={"3.1": "Bad\n\t" + "x" * 200, "9.9": "no"}, time=2),
        row("bob", tmp_path / "c.ipynb", notes={"": "no notebook"}, time=3),
    ]
    found[0].flags["3.1"] = "the same as\nours"
    terms = grading.Terms()
    grading.write(grading.lines(found, terms), terms, tmp_path / "table.csv")
    first, second = lines_of(tmp_path / "table.csv")
    assert first["student"] == "'=HYPERLINK(1)"
    assert (first["3.1"], first["3.2"], first["total"]) == ("0", "0", "0")
    assert (first["flags"], first["remark"]) == ("3.1 the same as?ours", "3.2: not started")
    cut = "3.1: Bad " + "x" * (gradebook.NOTE - 10) + "…"
    assert second["remark"].startswith("does not count: ")
    assert second["remark"].endswith(f"; no notebook; {cut}; 3.2: took too long")
    grading.write(grading.lines(found, terms), grading.Terms(flagged=1), tmp_path / "table.csv")
    assert lines_of(tmp_path / "table.csv")[0]["total"] == "0.1"


def test_the_newest_file_in_time_counts(tmp_path):
    files = [
        row("ada", tmp_path / "early.ipynb", {"3.1": "failed"}, time=1000.0),
        row("ada", tmp_path / "good.ipynb", {"3.1": "passed"}, time=2000.0),
        row("ada", tmp_path / "late.ipynb", {"3.1": "failed"}, time=2000.0 + 7200),
        row("ada", tmp_path / "other.ipynb", {"4.1": "passed"}, time=500.0),
        row("ada", tmp_path / "broken.ipynb", {"3.1": "not run"}, time=1500.0, notes={"": "no notebook"}),
    ]
    terms = grading.Terms(due=2000.0)
    (line,) = grading.lines(files, terms)
    assert line.points(terms) == {"3.1": 1, "4.1": 1}
    grading.write([line], terms, tmp_path / "table.csv")
    (written,) = lines_of(tmp_path / "table.csv")
    assert (written["late"], written["total"]) == ("2.0 h", "2")
    assert grading.lines(files, grading.Terms())[0].points(terms) == {"3.1": 0, "4.1": 1}


# ------------------------------------------------------------------------------------------------ a teacher's own file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "mine.py has no exercise"),
        ("def f(:", r"mine.py cannot be run: SyntaxError: "),
        ("1 / 0", "mine.py cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_of_exercises_that_is_none(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        grading.load(path)
    with pytest.raises(ValueError, match=r"points\.json is not a Python file"):
        grading.load(tmp_path / "points.json")


def test_arguments_that_cannot_leave_this_process_are_refused(own_registry):
    exercise = replace(registry()["3.1"], cases=lambda randn: iter([(lambda: 1,)] * 3), oracle=lambda f: f())
    with pytest.raises(ValueError, match=r"grade: the arguments of exercise 3\.1 must be tensors, numbers, strings"):
        list(grading.grade([], {"3.1": exercise}, None))


def test_an_exercise_whose_oracle_fails_is_refused(own_registry):
    exercise = replace(registry()["3.1"], oracle=lambda *arguments: 1 / 0)
    with pytest.raises(ValueError, match=r"grade: the oracle of exercise 3\.1 fails: ZeroDivisionError: division by"):
        list(grading.grade([], {"3.1": exercise}, None))


@pytest.mark.parametrize("id", registry())
def test_the_courses_own_can_be_sent(id):
    key = grader.AnswerKey(registry()[id], 1)
    assert same(wire.decoded(grader._part(key)["cases"]), key.cases)


# --------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def pretended(monkeypatch):
    """Grading without processes: everybody passes 3.1, bob's process ends; Ctrl-C is pressed at whom it is told."""
    asked, stop_at = [], set()

    def grade(submissions, exercises, box, limits, jobs, seed):
        asked.append(([one.student for one in submissions], list(exercises), limits, jobs, seed))
        for one in submissions:
            if one.student in stop_at:
                raise KeyboardInterrupt
            problem = {"": "not graded to the end: its process ended"} if one.student == "bob" else {}
            outcomes = dict.fromkeys(exercises, "failed") | {"3.1": "passed"}
            if one.problem:
                problem, outcomes = {"": one.problem}, dict.fromkeys(exercises, "not run")
            yield Row(one.student, one.path, outcomes, problem, digest=one.digest, seed=seed)

    monkeypatch.setattr(command, "grade", grade)
    monkeypatch.setattr(command, "seed_for", lambda exercises: 5)
    return asked, stop_at


@pytest.fixture
def no_sandbox(monkeypatch):
    """To make one copies and compiles the package."""
    monkeypatch.setattr(command, "opened", lambda: contextlib.nullcontext(Sandbox((), PACKAGE)))


def test_the_command_writes_the_table_and_says_how_it_went(tmp_path, pretended, no_sandbox, capsys):
    ada, bob = (write(tmp_path / f"{name}.ipynb", [("3.1", MEAN)]) for name in ("ada", "bob"))
    output = tmp_path / "table.csv"
    arguments = ["grade", "-o", str(output), "-j", "3", "--seconds", "60", "--memory", "1", str(ada)]
    assert cli.main(arguments) == 0
    limits = grading.Limits(exercise=10, notebook=60, memory=2**30)
    assert pretended[0] == [(["ada"], [id for id in registry() if id.startswith("3.")], limits, 3, 5)]
    said = capsys.readouterr()
    points = sum(not registry()[id].opener for id in pretended[0][0][1])
    assert said.out.startswith(f"1 student, on average 1 of {points} points\n  3.1  passed by 1\n")
    assert said.err.splitlines()[-1] == "[1/1] ada"
    assert output.read_text(encoding="utf-8").startswith("student,3.1,")
    assert cli.main([*arguments, str(bob)]) == 1
    said = capsys.readouterr()
    *_, problem, last, pages = said.out.splitlines()
    assert problem == f"{bob}: not graded to the end: its process ended"
    assert last == f"The table: {output}"
    assert pages == f"The class, and pages to give back: {tmp_path / 'table_pages/index.html'}"
    assert said.err.splitlines()[0] == "1 of 2 are graded already"
    assert pretended[0][-1][0] == ["bob"]


def test_what_is_not_graded_is_listed_and_what_is_the_teachers_own_is_not(tmp_path, pretended, no_sandbox, capsys):
    for name in ("ada.ipynb", "eve.ipynb"):
        write(tmp_path / name, [("3.1", MEAN)])
    for name in ("ada.pdf", "plot.png", "carl.zip", "dora.ipynb.json", "class.csv", "points.json"):
        (tmp_path / name).write_text("Vorname\nAda\nCarl\n" if name == "class.csv" else '{"3.1": 1}', encoding="utf-8")
    (tmp_path / ".DS_Store").touch()
    options = ["--roster", str(tmp_path / "class.csv"), "--weights", str(tmp_path / "points.json")]
    arguments = ["grade", str(tmp_path), "-o", str(tmp_path / "t.csv"), *options, "--name-column", "Vorname"]
    for _ in range(2):  # with what the first has written
        assert cli.main(arguments) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[2:-2] == [
            f"{tmp_path / 'carl.zip'}: an archive: unpack it",
            f"{tmp_path / 'dora.ipynb.json'}: rename it to end in .ipynb; nobody on the class list is called so",
            f"{tmp_path / 'eve.ipynb'}: nobody on the class list is called so",
            f"{tmp_path / 'ada.pdf, plot.png'}: no notebook",
        ]
    assert [line["Vorname"] for line in lines_of(tmp_path / "t.csv")] == ["Ada", "Carl", "dora", "eve"]
    assert lines_of(tmp_path / "t.csv")[1]["remark"] == "an archive: unpack it"
    assert (tmp_path / "t.import.csv").read_text(encoding="utf-8").splitlines()[:2] == ["Vorname,smalearn 03", "Ada,1"]


def test_of_files_of_one_time_the_later_download_counts(tmp_path):
    files = [
        row("ada", tmp_path / f"ada{number}.ipynb", {"3.1": "failed"}, time=5.0) for number in ("", " (2)", " (1)")
    ]
    files[1].outcomes["3.1"] = "passed"
    (line,) = grading.lines(files, grading.Terms())
    assert line.points(grading.Terms()) == {"3.1": 1}


def test_a_run_that_is_stopped_goes_on(tmp_path, pretended, no_sandbox, capsys):
    asked, stop_at = pretended
    paths = [str(write(tmp_path / f"{name}.ipynb", [("3.1", MEAN)])) for name in ("ada", "carl", "dora")]
    arguments = ["grade", "-o", str(tmp_path / "table.csv"), *paths]
    stop_at.add("dora")
    assert cli.main(arguments) == 130
    said = capsys.readouterr()
    assert said.err.endswith("[2/3] carl\n\nStopped: 2 of 3 are graded; the same command goes on from there.\n")
    assert [line["student"] for line in lines_of(tmp_path / "table.csv")] == ["ada", "carl"]
    stop_at.clear()
    write(tmp_path / "carl.ipynb", [("3.1", MEAN + "\n")])  # handed in again
    assert cli.main(arguments) == 0
    assert asked[-1][0] == ["carl", "dora"]
    assert len(lines_of(tmp_path / "table.csv")) == 3
    assert cli.main([*arguments, "--weights", str(points(tmp_path, '{"3.1": 4}'))]) == 0
    assert len(asked) == 2
    assert lines_of(tmp_path / "table.csv")[0]["total"] == "4"  # other points for what is graded


def points(folder, text):
    path = folder / "points.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_where_there_is_no_sandbox_the_command_says_so(tmp_path, pretended, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert cli.main(["grade", "-o", str(tmp_path / "t.csv"), str(write(tmp_path / "ada.ipynb", [("3.1", MEAN)]))]) == 0
    assert capsys.readouterr().err.startswith("No sandbox: bubblewrap does not work here (")


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2026-11-30", (23, 59, 59)),
        ("2026-W49-1", (23, 59, 59)),
        ("2026-11-30T18:05", (18, 5, 0)),
        ("20261130T00", (0, 0, 0)),
        ("2026-11-30 06:00", (6, 0, 0)),
    ],
)
def test_due_is_a_local_time_or_the_end_of_a_day(text, hour):
    due = cli._parser().parse_args(["grade", "x", "-o", "t", "--due", text]).due
    assert time.localtime(due)[:6] == (2026, 11, 30, *hour)


def test_the_command_refuses_before_it_takes_minutes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "grade", lambda *args: pytest.fail("it began"))
    ada = write(tmp_path / "ada.ipynb", [("3.1", MEAN)])
    assert cli.main(["grade", str(tmp_path / "nobody.ipynb"), "-o", "table.csv"]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: there is no file ")
    assert cli.main(["grade", str(ada), "-o", str(tmp_path / "nowhere/table.csv")]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: ")
    assert cli.main(["grade", str(ada), "-o", "t.csv", "--weights", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: ")
    listed = tmp_path / "class.csv"
    listed.write_text("a,b\n1,2\n", encoding="utf-8")
    assert cli.main(["grade", str(ada), "-o", "t.csv", "--roster", str(listed)]) == 1
    assert "must be CSV whose first line has a title such as Student" in capsys.readouterr().err
    for option, said in [("-j", "expected a whole number from 1, got '0'"), ("--due", "expected a time such as")]:
        with pytest.raises(SystemExit):
            cli.main(["grade", str(ada), "-o", "t.csv", option, "0"])
        assert said in capsys.readouterr().err
