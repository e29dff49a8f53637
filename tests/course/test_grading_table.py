"""Grading: whose files, which exercises, how many points, and the table; no submission is run here."""

import csv
import doctest
import json
import pickle
import re

import pytest

from smalearn.course import cli, grading
from smalearn.course.exercises import Exercise, core, registry
from smalearn.course.exercises.compare import same
from smalearn.course.exercises.run import run
from smalearn.course.grading import Row, Submission, rows, submission, table
from smalearn.course.grading.submission import borrows, fingerprint


def write(path, cells=(), metadata=None):
    """A notebook with these code cells, each a source and an exercise id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [{"cell_type": "markdown", "source": "# 03", "metadata": metadata or {}}]
    made += [{"cell_type": "code", "source": source, "metadata": {"exercise": id}} for id, source in cells]
    path.write_text(json.dumps({"cells": made}), encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------- files and students


def test_a_folder_stands_for_the_notebooks_below_it(tmp_path):
    paths = [write(tmp_path / name) for name in ("ada/03.ipynb", "bob/03.ipynb", "carl.ipynb")]
    write(tmp_path / "ada/.ipynb_checkpoints/03-checkpoint.ipynb")
    write(tmp_path / ".hidden.ipynb")
    assert sorted(grading.files([str(tmp_path)])) == sorted(paths)
    assert grading.files([str(tmp_path / "*.ipynb"), str(paths[2])]) == [paths[2]]
    assert grading.files([str(paths[1]), str(paths[0])]) == [paths[1], paths[0]]


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"grade: there is no file .*nowhere.ipynb"):
        grading.files([str(tmp_path / "nowhere.ipynb")])
    with pytest.raises(ValueError, match="grade: there is no notebook in "):
        grading.files([str(tmp_path)])


def test_students_are_named_by_metadata_file_or_folder(tmp_path):
    paths = [
        write(tmp_path / "ada/03.ipynb"),
        write(tmp_path / "bob/03.ipynb"),
        write(tmp_path / "carl.ipynb"),
        write(tmp_path / "dora.ipynb", metadata={"student": "Dora D."}),
        write(tmp_path / "emil.ipynb", metadata={"student": ["no name"]}),
        write(tmp_path / "fred.ipynb", metadata={"student": " "}),
    ]
    assert [one.student for one in grading.read(paths)] == ["ada", "bob", "carl", "Dora D.", "emil", "fred"]


def test_what_cannot_be_read_has_a_problem(tmp_path, monkeypatch):
    (missing,) = grading.read([tmp_path / "gone.ipynb"])
    assert missing.problem.startswith("the file cannot be read: ")
    monkeypatch.setattr(submission, "LARGEST", 10)
    (large,) = grading.read([write(tmp_path / "large.ipynb")])
    assert large.problem == "the file is too large"


def test_the_cells_of_a_submission(tmp_path):
    cells = [("3.1", "def f():\n    pass"), ("3.1", 'f = check("3.1", f)'), ("3.2", "g = 1\ncheck('3.2', g)")]
    path = write(tmp_path / "ada.ipynb", cells)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"] += [
        {"cell_type": "code", "source": ["import ", "torch"], "metadata": {"tags": ["setup", "hide"]}},
        {"cell_type": "markdown", "source": "setup", "metadata": {"tags": ["setup"]}},
        {"cell_type": "code", "source": "1 / 0", "metadata": {"tags": "setup"}},
    ]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    (one,) = grading.read([path])
    assert one.setup == ["import torch"]
    assert one.cells == {"3.1": [cells[0][1], cells[1][1]], "3.2": [cells[2][1]]}
    assert one.answer("3.1") == cells[0][1]
    assert one.answer("3.2") == one.answer("3.3") == ""


def test_exercises_of_an_earlier_edition_have_the_ids_of_today(tmp_path):
    known = registry()["1.2"]
    name = known.solution.__name__
    cells = [("1.1", f"def {name}(x):\n    return x"), ("1.1", f'{name} = check("1.1", {name})'), ("1.4", "f = 1")]
    path = write(tmp_path / "ada.ipynb", cells)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    titles = ["# 01", f"**Exercise 1.1 · {known.title}** (5 min)", "**Exercise 1.4 · It is gone**"]
    notebook["cells"] += [{"cell_type": "code", "source": "g = 1", "metadata": {"exercise": "quiz.1"}}]
    for _ in range(2):  # and by the function, where the titles are deleted
        path.write_text(json.dumps(notebook), encoding="utf-8")
        (one,) = grading.read([path])
        assert one.cells.pop("1.2") == [cells[0][1], f'{name} = check("1.2", {name})']
        assert not one.cells.keys() & registry().keys()
        notebook["cells"][:0] = [{"cell_type": "markdown", "source": text, "metadata": {}} for text in titles]


# ------------------------------------------------------------------------------------------------------ same answers

MEAN = "def mean(V):\n    total = V.sum(0)\n    return total / len(V)"


@pytest.mark.parametrize(
    "other",
    [
        "# mine\ndef mean(x: list) -> int:\n    '''The mean.'''\n    s = x.sum(0)  # sum\n\n    return s/len(x)",
        "def one():\n    return 1\n\ndef mean(V):\n    pass\n    t: float = V.sum(0)\n    return (t / len(V))",
        "def mean(V):\n    return 0\n\ndef mean(a):\n    b = a.sum(0)\n    return b / len(a)",
    ],
)
def test_names_comments_and_layout_make_no_difference(other):
    assert fingerprint(other, "mean") == fingerprint(MEAN, "mean")


@pytest.mark.parametrize(
    "other",
    [
        MEAN.replace("sum(0)", "sum(1)"),
        MEAN.replace(".sum", ".mean"),
        MEAN.replace("total / len(V)", "len(V) / total"),
        MEAN.replace("len(V)", "len(total)"),
        MEAN.replace("sum(0)", "sum(dim=0)"),
    ],
)
def test_another_computation_is_another_answer(other):
    assert fingerprint(other, "mean") != fingerprint(MEAN, "mean")


@pytest.mark.parametrize("source", ["def mean(", "(" * 10**4, "-" * 50_000 + "1", "x" + ".a" * 40_000, "1;" * 50_001])
def test_what_is_no_answer_has_no_fingerprint(source):
    assert fingerprint(source, "mean") is None
    assert not borrows(source)


def test_an_answer_without_the_function_counts_as_a_whole():
    assert fingerprint("mean = lambda V: V.mean(0)", "mean") == fingerprint("m = lambda x: x.mean(0)  # !", "mean")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('registry()["3.1"].solution', True),
        ("import smalearn.course.exercises.ch03_forms", True),
        ("from smalearn.course.exercises import evaluate", True),
        ("from smalearn.course import exercises\nexercises.registry()", True),
        ("course.oracle(x)", True),
        ("from smalearn.course.exercises import check, hint, solution", True),
        ('hint("3.1")\nsolution("3.1")\nfrom smalearn.masks import CausalMask', False),
        ("oracle = solution = 1  # registry().solution", False),
    ],
)
def test_answers_that_name_the_courses_solutions(source, found):
    assert borrows(source) is found


def test_many_of_the_same_are_counted(tmp_path):
    names = ["ada", "bob", "carl", "dora"]
    read = grading.read([write(tmp_path / f"{name}.ipynb", [("3.1", MEAN)]) for name in names])
    found = [Row(one.student, one.path, {"3.1": "failed"}) for one in read]
    rows._mark(found, read, {"3.1": rows.AnswerKey(registry()["3.1"])})
    assert found[0].marks == {"3.1": "same as bob, carl and 1 more"}
    assert found[3].marks == {"3.1": "same as ada, bob and 1 more"}


# -------------------------------------------------------------------------------------------------- points and table


def test_the_chapter_that_most_files_are_of_counts_a_point_each(tmp_path):
    paths = [
        write(tmp_path / "a.ipynb", [("3.1", ""), ("3.2", ""), ("7.1", "")]),
        write(tmp_path / "b.ipynb", [("3.1", ""), ("0.1", "")]),
        write(tmp_path / "c.ipynb", [("7.1", ""), ("7.2", ""), ("x.1", "")]),
    ]
    weights = grading.weigh(grading.read(paths))
    assert weights == {id: 1 for id in registry() if id.startswith("3.")}
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
        ("{}", "must name exercises and their points"),
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


def test_the_table_holds_no_formula_and_one_line_for_each_row(tmp_path):
    found = [
        Row("=HYPERLINK(1)", tmp_path / "a.ipynb", {"3.1": "passed", "3.2": "timeout"}, {}, {"3.1": "same as\nbob"}),
        Row("bob", tmp_path / "b.ipynb", {"3.1": "error", "3.2": "error"}, {"3.1": "Bad\n\t" + "x" * 200, "9.9": "no"}),
        Row("bob", tmp_path / "c.ipynb", {}, {"": "no notebook"}),
    ]
    grading.write(found, {"3.1": 0.1, "3.2": 0.2}, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        first, second, third = csv.DictReader(file)
    assert first["student"] == "'=HYPERLINK(1)"
    assert (first["3.1"], first["3.2"], first["total"]) == ("0.1", "0", "0.1")
    assert first["remark"] == "3.2: took too long; 3.1 same as?bob"
    cut = "3.1: Bad " + "x" * (table.NOTE - 10) + "…"
    assert second["remark"] == f"{table._short('also handed in as ' + str(tmp_path / 'c.ipynb'))}; {cut}"
    assert third["remark"].endswith("; no notebook")


# ------------------------------------------------------------------------------------------------ a teacher's own file


@pytest.fixture
def no_traces(monkeypatch):
    monkeypatch.setattr(core, "_registry", dict(core._registry))


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


def test_arguments_that_cannot_leave_this_process_are_refused(no_traces):
    own = {field: getattr(registry()["3.1"], field) for field in Exercise.__dataclass_fields__}
    exercise = Exercise(**own | {"cases": lambda randn: iter([(lambda: 1,)] * 3), "oracle": lambda f: f()})
    with pytest.raises(ValueError, match=r"grade: the arguments of exercise 3\.1 must be tensors, numbers, strings"):
        grading.grade([], {"3.1": exercise})


def test_an_exercise_whose_oracle_fails_is_refused(no_traces):
    own = {field: getattr(registry()["3.1"], field) for field in Exercise.__dataclass_fields__}
    with pytest.raises(ValueError, match=r"grade: the oracle of exercise 3\.1 fails: ZeroDivisionError: division by"):
        grading.grade([], {"3.1": Exercise(**own | {"oracle": lambda *arguments: 1 / 0})})


@pytest.mark.parametrize("module", [submission, table])
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("id", registry())
def test_the_courses_own_can_be_sent(id):
    key = rows.AnswerKey(registry()[id], 1)
    part = rows._part(key)
    assert same(pickle.loads(part["cases"]), key.cases)
    assert pickle.loads(part["reference"]) is registry()[id].solution


def test_an_exercise_that_judges_inside_the_submission_is_to_be_read():
    key = rows.AnswerKey(registry()["4.6"], 1)
    ran = run(key.exercise.solution, key.cases, 1, 10)
    assert rows._say(key, key.judge(ran)) == (
        "passed",
        "passes, and is to be read: the submission itself called the judge",
    )


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command_writes_the_table_and_says_how_it_went(tmp_path, monkeypatch, capsys):
    asked = []

    def grade(submissions, exercises, limits, jobs):
        asked.append((list(exercises), limits, jobs))
        problem = {"": "not graded to the end: its process ended"}
        return [Row("ada", one.path, {"3.1": "passed"}, problem if one.student == "bob" else {}) for one in submissions]

    monkeypatch.setattr(grading, "grade", grade)
    ada, bob = (write(tmp_path / f"{name}.ipynb", [("3.1", MEAN)]) for name in ("ada", "bob"))
    output = tmp_path / "table.csv"
    arguments = ["grade", "-o", str(output), "-j", "3", "--seconds", "60", "--memory", "1", str(ada)]
    assert cli.main(arguments) == 0
    limits = grading.Limits(exercise=10, notebook=60, memory=2**30)
    assert asked == [([id for id in registry() if id.startswith("3.")], limits, 3)]
    assert capsys.readouterr().out.startswith("1 notebook, on average 1 of 6 points\n  3.1  passed by 1\n")
    assert output.read_text(encoding="utf-8").startswith("student,file,3.1,")
    assert cli.main([*arguments, str(bob)]) == 1
    *_, problem, last = capsys.readouterr().out.splitlines()
    assert problem == f"{bob}: not graded to the end: its process ended"
    assert last == f"The table: {output}"


def test_the_command_refuses_before_it_takes_minutes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grading, "grade", lambda *args: pytest.fail("it began"))
    ada = write(tmp_path / "ada.ipynb", [("3.1", MEAN)])
    assert cli.main(["grade", str(tmp_path / "nobody.ipynb"), "-o", "table.csv"]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: there is no file ")
    assert cli.main(["grade", str(ada), "-o", str(tmp_path / "nowhere/table.csv")]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: ")
    assert cli.main(["grade", str(ada), "-o", "t.csv", "--weights", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().err.startswith("smalearn grade: ")
    with pytest.raises(SystemExit):
        cli.main(["grade", str(ada), "-o", "t.csv", "-j", "0"])
    assert "expected a whole number from 1, got '0'" in capsys.readouterr().err


def test_a_submission_can_be_made_by_hand(tmp_path):
    assert Submission(tmp_path, "ada").answer("3.1") == ""
