"""Grading: what submissions can try, each against the table; one run of all of them, because each starts a process."""

import csv
import json
import sys
import textwrap

import pytest

from smalearn.course import grading
from smalearn.course.exercises import registry
from smalearn.course.grading import grader

pytestmark = pytest.mark.full  # by default test_grading_process.py has one notebook of many outcomes

IDS = ("3.1", "3.2", "3.3")
NAMES = dict(zip(IDS, ("running_attention", "decode", "grad_keys"), strict=True))
LIMITS = grading.Limits(exercise=2, notebook=60, memory=2**30)
TOO_MANY = 2**29 if sys.platform == "linux" else 2**46  # 2 GiB; elsewhere, where nothing limits it, no address space
SETUP = "%matplotlib inline\nimport torch\nfrom smalearn.course.exercises import check, hint, solution"

RIGHT = {
    "3.1": """
        def running_attention(Q, K, V):
            states = torch.einsum("tn,tp->tnp", K, V).cumsum(0)
            return torch.einsum("tn,tnp->tp", Q, states)
        """,
    "3.2": """
        def decode(Q, K, V):
            state, rows = K.new_zeros(V.shape[1] + 1, K.shape[1]), []
            for q, k, v in zip(Q, K, V):
                state = state + torch.outer(torch.cat([v, v.new_ones(1)]), k)
                rows.append((state @ q)[:-1] / (state @ q)[-1])
            return torch.stack(rows)
        """,
    "3.3": """
        def grad_keys(Q, V, dY):
            R = (dY[:, :, None] * Q[:, None, :]).flip(0).cumsum(0).flip(0)
            return torch.einsum("spn,sp->sn", R, V)
        """,
}


def cell(source, tags=(), **metadata):
    metadata |= {"tags": list(tags)} if tags else {}
    source = textwrap.dedent(source).strip()
    return {"cell_type": "code", "metadata": metadata, "outputs": [], "execution_count": None, "source": source}


def notebook(answers, setup=SETUP, first=None, check=True):
    """A submission: answers, id -> source, each followed by its check, as in a chapter."""
    cells = [{"cell_type": "markdown", "metadata": first or {}, "source": "# 03"}, cell(setup, ["setup"])]
    cells.append(cell("raise SystemError('this cell is neither setup nor exercise')"))
    for id, source in answers.items():
        cells.append(cell(source, exercise=id))
        if check:
            cells.append(cell(f'{NAMES[id]} = check("{id}", {NAMES[id]})\n# hint("{id}")', exercise=id))
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def body(id, *lines):
    """An answer of these lines."""
    arguments = {"3.1": "Q, K, V", "3.2": "Q, K, V", "3.3": "Q, V, dY"}[id]
    return f"def {NAMES[id]}({arguments}):\n" + textwrap.indent("\n".join(lines), "    ")


def patched():
    """Everything in reach is patched, every output claims success, every answer is zero."""
    setup = f"""
        {SETUP.splitlines()[-1]}
        import builtins, json, sys, torch
        import smalearn.course.exercises as course
        from smalearn.course.exercises import commands, compare, judge
        check = course.check = commands.check = lambda id, attempt=None, seed=0: print("✓", id) or attempt
        judge.difference = compare.difference = lambda *args: None
        judge.evaluate = lambda exercise, attempt, *args: judge.Result(exercise, "passed", 0, 5, 5)
        for exercise in course.registry().values():
            object.__setattr__(exercise, "oracle", lambda *args: torch.zeros(1))
            object.__setattr__(exercise, "tolerance", 0.999)
        torch.equal = torch.allclose = builtins.all = lambda *args: True
        """
    made = notebook({id: body(id, "return torch.zeros_like(V)") for id in IDS}, setup)
    outcome = {"exercise": "3.1", "outcome": "passed", "seed": 0, "cases": 5, "passed": 5}
    for one in made["cells"][3:]:
        data = {"application/vnd.smalearn.check+json": outcome, "text/plain": "✓ 3.1: 5 cases passed"}
        one["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}}]
    return made


FORGE = """
import json
import os

def shout(**message):
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, json.dumps(message).encode() + b"\\n")
        except OSError:
            pass

"""
CLAIM = '{"answer": ["none"], "error": [], "stub": False, "modified": []}'

EQUAL = """
    class Equal:
        shape, dtype = (1,), torch.float64
        def __eq__(self, other): return True
        def __array__(self, *args, **kwargs): raise SystemExit
        def __bool__(self): return True
        def __reduce__(self): return exec, ("raise SystemExit",)
    class Same(torch.Tensor):
        def __eq__(self, other): return True
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return torch.zeros(2, 2)
    """


def submissions():
    """File name -> what is in it: a notebook, or text that is none."""
    solved = {id: textwrap.dedent(RIGHT[id]) for id in IDS}
    wait = "while True:\n    try:\n        __import__('time').sleep(60)\n    except BaseException:\n        pass"
    deep = "[" * 100_000
    return {
        "ada.ipynb": notebook(solved, first={"student": "Bob"}),
        "patched.ipynb": patched(),
        "loops.ipynb": notebook(
            {"3.1": body("3.1", "while True: pass"), "3.2": body("3.2", wait), "3.3": solved["3.3"]}
        ),
        "loud.ipynb": notebook(
            {
                "3.1": solved["3.1"] + "for _ in range(1000): print('x' * 2**20)\n",
                "3.2": solved["3.2"].replace("W =", "[print('y' * 2**20) for _ in range(100)]\n    W ="),
                "3.3": solved["3.3"].replace("return", "import os\n    os.write(1, b'z' * 2**20)\n    return"),
            },
            setup=SETUP + "\nimport nothing_of_this_name",
        ),
        "forged.ipynb": notebook(
            {
                "3.1": FORGE + body("3.1", f"shout(to=2, calls=[{CLAIM}] * 5)", "return V"),
                "3.2": FORGE + body("3.2", "shout(outcome='passed', points=1)", "return V"),
                "3.3": FORGE + body("3.3", "shout(x='x' * 10**6)", "return V"),
            }
        ),
        "huge.ipynb": notebook(
            {
                "3.1": body("3.1", f"return torch.ones({TOO_MANY})"),
                "3.2": body("3.2", "return torch.ones(6 * 2**20, dtype=torch.float64)"),
                "3.3": body("3.3", "return [10**5000, 'x' * 2**26]"),
            }
        ),
        "objects.ipynb": notebook(
            {
                "3.1": textwrap.dedent(EQUAL) + body("3.1", "return Equal()"),
                "3.2": body("3.2", "return V.as_subclass(Same)"),
                "3.3": body("3.3", "return lambda: 1"),
            }
        ),
        "copied.ipynb": notebook({id: registry()[id].code for id in IDS}, check=False),
        "looks.ipynb": notebook(
            {
                "3.1": "from smalearn.course.exercises import registry\n"
                + body("3.1", 'return registry()["3.1"].solution(Q, K, V)'),
                "3.2": body("3.2", "import importlib")
                + "\n    return importlib.import_module('smalearn.course.ch' + '03.forms').decode(Q, K, V)",
                "3.3": body(
                    "3.3",
                    "import gc",
                    "tasks = [one for one in gc.get_objects() if isinstance(one, dict) and 'cases' in one]",
                    "return tasks[0]['reference']",
                ),
            },
            check=False,
        ),
        "setup.ipynb": notebook(solved, setup="import os\nos._exit(1)"),
        "deep.ipynb": f'{{"cells": {deep}',
        "list.ipynb": json.dumps({"cells": [1, {"source": 3}], "metadata": []}),
        "other.ipynb": notebook({}),
    }


@pytest.fixture(scope="module")
def graded(tmp_path_factory, box):
    """File name -> its row and its line of the table, after one run over all."""
    folder = tmp_path_factory.mktemp("abgaben für grade")
    for name, made in submissions().items():
        (folder / name).write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")
    read = grading.read(grading.files([str(folder)]))
    weights = {"3.1": 1, "3.2": 2, "3.3": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grader, "GRACE", 3.0)
        rows = list(grading.grade(read, {id: registry()[id] for id in IDS}, box, LIMITS, jobs=2))
    for row in rows:
        row.worth = weights
    grading.write(grading.lines(rows, grading.Terms()), grading.Terms(), folder / "table.csv")
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        table = {row["files"].rpartition("/")[2].rpartition("\\")[2]: row for row in csv.DictReader(file)}
    return {row.path.name: (row, table[row.path.name]) for row in rows}


def points(graded, name):
    return [float(graded[name][1][id]) for id in IDS]


def outcomes(graded, name):
    return [graded[name][0].outcomes[id] for id in IDS]


def test_right_answers_earn_their_points(graded):
    row, line = graded["ada.ipynb"]
    assert list(line) == ["student", "3.1", "3.2", "3.3", "total", "flags", "late", "remark", "files"]
    assert points(graded, "ada.ipynb") == [1, 2, 0.5]
    assert (line["student"], line["total"]) == ("ada", "3.5")  # whatever name stands in the file
    assert not row.notes
    assert "✓" in row.cards["3.1"]


def test_what_is_patched_in_the_submission_decides_nothing(graded):
    assert outcomes(graded, "patched.ipynb") == ["failed"] * 3
    assert graded["patched.ipynb"][1]["total"] == "0"


def test_a_loop_costs_that_exercise_alone_even_if_it_cannot_be_interrupted(graded):
    assert outcomes(graded, "loops.ipynb") == ["timeout", "lost", "passed"]
    assert "3.1: took too long; 3.2: stopped after 7 s" in graded["loops.ipynb"][1]["remark"]


def test_a_gigabyte_of_output_costs_nothing(graded):
    assert outcomes(graded, "loud.ipynb") == ["passed"] * 3


def test_messages_of_its_own_earn_nothing(graded):
    assert points(graded, "forged.ipynb") == [0, 0, 0]
    assert outcomes(graded, "forged.ipynb") == ["failed", "lost", "lost"]
    notes = graded["forged.ipynb"][0].notes
    assert notes["3.1"] == "The answer is None: did you forget `return`?"  # its claim was read, and has no answers
    assert notes["3.2"] == notes["3.3"] == "it writes to the grader's channel"


def test_arrays_that_are_too_large_are_errors(graded):
    assert outcomes(graded, "huge.ipynb") == ["error"] * 3
    notes = graded["huge.ipynb"][0].notes
    assert "too large" in notes["3.2"]
    assert "cannot be sent" in notes["3.3"] or "too large" in notes["3.3"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a peer: a system that limits memory")
def test_memory_is_limited(graded):
    assert "can't allocate memory" in graded["huge.ipynb"][0].notes["3.1"]


def test_an_object_that_equals_everything_is_only_a_name_here(graded):
    assert outcomes(graded, "objects.ipynb") == ["failed"] * 3
    notes = graded["objects.ipynb"][0].notes
    assert notes["3.1"] == "Wrong type: expected a tensor, got an object of type Equal"
    assert notes["3.3"] == "Wrong type: expected a tensor, got an object of type function"


def test_nobody_can_look_a_solution_up(graded):
    assert outcomes(graded, "looks.ipynb") == ["error"] * 3
    notes = graded["looks.ipynb"][0].notes
    assert notes["3.1"] == "KeyError: '3.1'"
    assert notes["3.2"] == "ModuleNotFoundError: No module named 'smalearn.course.ch03.forms'"
    assert notes["3.3"] == "KeyError: 'reference'"


def test_a_long_answer_that_is_our_solution_is_flagged(graded):
    row, line = graded["copied.ipynb"]
    assert outcomes(graded, "copied.ipynb") == ["passed"] * 3
    assert row.flags == {"3.2": "the same as our solution"}
    assert points(graded, "copied.ipynb") == [1, 0, 0.5]
    assert row.points(grading.Terms(flagged=1)) == {"3.1": 1, "3.2": 2, "3.3": 0.5}
    assert line["flags"] == "3.2 the same as our solution"


def test_setup_cells_that_fail_are_reported_and_the_rest_is_graded(graded):
    row, line = graded["loud.ipynb"]
    assert row.notes[""] == "setup: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    assert line["remark"].startswith("setup: ")
    assert points(graded, "loud.ipynb") == [1, 2, 0.5]


def test_setup_cells_that_end_the_process_cost_the_row(graded):
    assert outcomes(graded, "setup.ipynb") == ["not run"] * 3
    assert graded["setup.ipynb"][1]["remark"] == "not graded to the end: its process ended"


@pytest.mark.parametrize("name", ["deep", "list"])
def test_what_is_no_notebook_costs_its_row(graded, name):
    row, line = graded[f"{name}.ipynb"]
    assert row.notes == {"": "no notebook"}
    assert (line["total"], line["remark"]) == ("0", "no notebook")


def test_a_notebook_without_the_exercises_is_said_to_have_none(graded):
    assert graded["other.ipynb"][1]["remark"] == "none of the exercises is in it"
