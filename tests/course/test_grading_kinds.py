"""Ways in which students write a right answer: what shows ✓ in the notebook has its point, or the row says why not.

Every notebook is run by IPython first, all of them in one process, so that its outputs and counts are real.
"""

import json
import subprocess
import sys

import pytest

from smalearn.course import grading
from smalearn.course.exercises import registry
from smalearn.course.grading.grader import SHOWN
from smalearn.course.grading.sandbox import PACKAGE, Sandbox

LIMITS = grading.Limits(exercise=4, notebook=90, memory=2**30)

RUN = """
import asyncio, contextlib, io, json, os, sys
from pathlib import Path
os.chdir(sys.argv[2])
sys.path.insert(0, "")
sys.dont_write_bytecode = True
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell = InteractiveShell.instance()
for path in sorted(Path(sys.argv[1]).glob("*.ipynb")):
    made = json.loads(path.read_text(encoding="utf-8"))
    shell.reset()
    sys.modules.pop("helpers", None)
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    for place in made["metadata"]["order"]:
        cell = cells[place]
        with capture_output() as captured, contextlib.redirect_stdout(io.StringIO()):
            cell["execution_count"] = shell.execution_count
            shell.run_cell(cell["source"], store_history=True)
        cell["outputs"] = [
            {"output_type": "display_data", "data": dict(output.data), "metadata": {}} for output in captured.outputs
        ]
    path.write_text(json.dumps(made), encoding="utf-8")
"""

SETUP = "import torch\n\nfrom smalearn.course import case, check, hint, solution"
STUB = "def running_attention(Q, K, V):\n    raise NotImplementedError"
CHECK = 'running_attention = check("3.1", running_attention)'
STATES = 'torch.einsum("tn,tp->tnp", K, V).cumsum(0)'
READ = 'torch.einsum("tn,tnp->tp", Q, states)'


def answer(states=STATES, head="def running_attention(Q, K, V):", read=READ):
    return f"{head}\n    states = {states}\n    return {read}"


RIGHT = answer()
BY_AXIS = RIGHT.replace("cumsum(0)", "cumsum(AXIS)")
HELPER = f"def all_states(K, V):\n    return {STATES}"
USES = answer("all_states(K, V)")
SLOW = "import time\nfor second in range(60):\n    torch.ones(700, 700).matrix_power(2**62)\nlosses = [1.0]"
BROKEN = "raise ValueError('an experiment')"


def own(*sources):
    """Cells with the exercise's tag."""
    return [("3.1", source) for source in sources]


def others(*sources):
    """Cells without a tag."""
    return [("", source) for source in sources]


ANSWER = own(RIGHT, CHECK)

# name -> the cells after the setup: (tag, source). Those that begin with a place run in that order.
KINDS = {
    # what IPython accepts and Python does not
    "as it should be": ANSWER,
    "timed line": own(
        f"{RIGHT}\nQ = torch.ones(3, 2)\n%time Y = running_attention(Q, Q, Q)\n%timeit -n 1 -r 1 Y", CHECK
    ),
    "captured cell": own(f"%%capture printed\nprint(1)\n{RIGHT}", "printed.show()", CHECK),
    "repeated cell": own(RIGHT, "%%timeit -n 1 -r 1\n" + CHECK.partition(" = ")[2]),
    "shell output": own(f"files = !echo 1\nhere = %pwd\n{RIGHT}", CHECK),
    "display": own(
        f"display(torch.ones(2))\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))\n{RIGHT}", CHECK
    ),
    "get_ipython imported": own(
        f"from IPython import get_ipython\nget_ipython().run_line_magic('pwd', '')\n{RIGHT}", CHECK
    ),
    "last but one": others("2.0", "3.0") + own(RIGHT.replace("return ", "return half * "), "half = __ / 2", CHECK),
    "output by number": others("'tn,tnp->tp'")
    + own(answer(read="torch.einsum(spec, Q, states)"), "spec = Out[2]", CHECK),
    "input by number": others(RIGHT) + own("exec(In[2])", CHECK),
    "awaited helper": others("async def spec():\n    return 'tn,tnp->tp'")
    + own("text = await spec()", answer(read="torch.einsum(text, Q, states)"), CHECK),
    "file that is run": others(f"%%writefile helpers.py\nimport torch\n\n\n{HELPER}", "%run helpers.py")
    + own(USES, CHECK),
    "file that is written again": others(
        "import os\nos.mkdir('src')",
        "%%writefile src/again.py\nAXIS = 1",
        "import sys\nsys.path.append('src')\nimport importlib, again",
        "%%writefile src/again.py\nAXIS = 0",
        "importlib.reload(again)",
    )
    + own(RIGHT.replace("cumsum(0)", "cumsum(again.AXIS)"), CHECK),
    "file that is loaded again by itself": others(
        "%load_ext autoreload\n%autoreload 2",
        f"%%writefile itself.py\nimport torch\n\n\n{HELPER.replace('(0)', '(1)')}",
        "from itself import all_states",
        f"%%writefile itself.py\nimport torch\n\n\n{HELPER}",
    )
    + own(USES, CHECK),
    "file by the name of a variable": others(
        "name = 'below/beside.py'\n!mkdir below", "%%writefile $name\nAXIS = 0", "%cd below", "import beside", "%cd .."
    )
    + own(RIGHT.replace("cumsum(0)", "cumsum(beside.AXIS)"), CHECK),
    "environment": others("%env AXIS=0")
    + own("import os", RIGHT.replace("cumsum(0)", "cumsum(int(os.environ['AXIS']))"), CHECK),
    # names from other cells
    "helper": others(HELPER) + own(USES, CHECK),
    "star": others("from torch import *") + own(RIGHT.replace("torch.", ""), CHECK),
    "import that is tried": others(
        "try:\n    from opt_einsum_x import einsum\nexcept ImportError:\n    from torch import einsum"
    )
    + own(RIGHT.replace("torch.einsum", "einsum"), CHECK),
    "future annotation": others("from __future__ import annotations")
    + own(answer(head="def running_attention(Q: Rows, K: Rows, V: Rows) -> Rows:"), CHECK),
    "registry": others("PARTS = {}", "def part(f):\n    PARTS[f.__name__] = f\n    return f", f"@part\n{HELPER}")
    + own(answer("PARTS['all_states'](K, V)"), CHECK),
    "executed text": others(f"source = {HELPER!r}", "exec(source)") + own(USES, CHECK),
    "set by its name": others("import sys\nsetattr(sys.modules['__main__'], 'AXIS', 0)") + own(BY_AXIS, CHECK),
    # other things than a plain def
    "another name elsewhere": others(answer(head="def mine(Q, K, V):"))
    + own(STUB, 'result = check("3.1", attempt=mine)'),
    "check in a loop": own(RIGHT)
    + others('for id, function in {"3.1": running_attention}.items():\n    check(id, function)'),
    # cells that went another way
    "new cells": own(STUB, CHECK) + others(RIGHT, CHECK),
    "new cell below": [(2, "3.1", STUB), (4, "3.1", CHECK), (3, "", RIGHT)],
    "split": own("def inner(Q, states):\n    return " + READ)
    + others(HELPER)
    + own("def running_attention(Q, K, V):\n    return inner(Q, all_states(K, V))")
    + others(CHECK),
    "merged": own(f"{RIGHT}\n\n{CHECK}\n\nprint(1)"),
    "merged with the setup": [("setup", f"{SETUP}\n{RIGHT}\n\n{CHECK}")],
    "copied below": [(2, "3.1", RIGHT), (4, "3.1", CHECK), (3, "", RIGHT)],
    "changed below": ANSWER + others(RIGHT.replace("cumsum(0)", "cumsum(1)"), "running_attention = None"),
    "tried first": others(RIGHT.replace("cumsum(0)", "cumsum(1)"), CHECK) + own(RIGHT, CHECK),
    "wrong check elsewhere": ANSWER + others('check("3.1", lambda Q, K, V: V)'),
    # cells that must not cost anything
    "broken cells": others(BROKEN, "1 +", "def f(:") + ANSWER,
    "broken cell that edits": others("PARTS = {'axis': 0}", "PARTS.update(1)")
    + own(RIGHT.replace("cumsum(0)", "cumsum(PARTS['axis'])"), CHECK),
    "stops after its answer": own(f"{RIGHT}\nprint(nothing)", CHECK),
}
SLOWLY = {  # cells that do not end here, and did not run when the notebook was saved
    "slow cell of the same names": others(f"AXIS = 0\n{SLOW}\nmodel = AXIS", "print(losses)") + own(BY_AXIS, CHECK),
}
NO_FILE = "it needs a file that is not in the notebook: 'axis.txt'"
REASONS = {  # what cannot have its point, and why
    "needs a file": (own("with open('axis.txt') as file:\n    AXIS = int(file.read())", BY_AXIS, CHECK), NO_FILE),
    "needs a file in its function": (own(RIGHT.replace("(0)", "(int(open('axis.txt').read()))"), CHECK), NO_FILE),
    "needs a shell": (
        own("AXIS = !echo 0", BY_AXIS, CHECK),
        "shell commands do not run here: !echo 0; NameError: name 'AXIS' is not defined",
    ),
    "needs an answer": (
        own("AXIS = int(input())", BY_AXIS, CHECK),
        "it asks with input(), and nobody answers here; NameError: name 'AXIS' is not defined",
    ),
    "needs what was installed": (
        others("!echo pip install special") + own("from special import AXIS", BY_AXIS, CHECK),
        "ModuleNotFoundError: No module named 'special'; NameError: name 'AXIS' is not defined; "
        "not run here: !echo pip install special",
    ),
    "is another function": (own(RIGHT.replace("cumsum(0)", "cumsum(1)"), CHECK), "your running sum goes along axis 2"),
}


COPIED = [
    ("", registry()["3.2"].code.replace("def decode(", "def helper(")),
    *own(RIGHT, CHECK),
    ("3.2", "decode = helper"),
]


def write(path, cells, right=False):
    """Write a notebook, and in which order its cells run; with `right`, its checks show ✓ whatever they do."""
    made, order = [], []
    cells = [(1, "setup", SETUP), *(cell if len(cell) == 3 else (None, *cell) for cell in cells)]
    ordered = any(place for place, *_ in cells[1:])
    for place, tag, source in cells:
        metadata = {"tags": ["setup"]} if tag == "setup" else {"exercise": tag} if tag else {}
        one = {"cell_type": "code", "metadata": metadata, "outputs": [], "execution_count": None, "source": source}
        if right and "check(" in source:
            data = {"application/vnd.smalearn.check+json": {"exercise": "3.1", "outcome": "passed"}}
            data["text/plain"] = f"✓ 3.1 {registry()['3.1'].title}: 5 cases passed (seed 0)"
            one["outputs"] = [{"output_type": "display_data", "data": data, "metadata": {}}]
        made.append(one)
        order += [(place or 1, len(made) - 1)] if place or not ordered else []
    order = [number for _, number in sorted(order)]
    text = {"cells": made, "metadata": {"order": order}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text), encoding="utf-8")


def shows(path):
    """Whether any cell of a notebook shows ✓."""
    outputs = [out for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] for out in cell["outputs"]]
    return any(str(out["data"].get("text/plain")).startswith("✓ 3.1") for out in outputs)


def graded(folder, box, ids=("3.1", "3.2")):
    exercises = {id: registry()[id] for id in ids}
    rows = grading.grade(grading.read(sorted(folder.glob("*.ipynb"))), exercises, box, LIMITS, jobs=2)
    return {row.path.stem: row for row in rows}


@pytest.fixture(scope="module")
def rows(tmp_path_factory, box):
    """The rows of all kinds, after IPython has run them."""
    folder, place = tmp_path_factory.mktemp("kinds"), tmp_path_factory.mktemp("place")
    for name in KINDS:
        write(folder / f"{name}.ipynb", KINDS[name])
    subprocess.run([sys.executable, "-c", RUN, folder, place], check=True, capture_output=True)
    for name in [*SLOWLY, *REASONS]:
        write(folder / f"{name}.ipynb", SLOWLY.get(name) or REASONS[name][0], right=True)
    write(folder / "copied.ipynb", COPIED, right=True)
    shown = {path.stem: shows(path) for path in folder.glob("*.ipynb")}
    return shown, graded(folder, box)


def test_a_helper_in_another_cell_costs_no_point(tmp_path):
    write(tmp_path / "helper.ipynb", KINDS["helper"], right=True)
    assert graded(tmp_path, Sandbox((), PACKAGE.parent), ["3.1"])["helper"].outcomes == {"3.1": "passed"}


@pytest.mark.full
def test_what_shows_right_has_its_point(rows):
    shown, found = rows
    assert all(shown.values()), [name for name, right in shown.items() if not right]
    wrong = {name: row.notes for name, row in found.items() if row.outcomes["3.1"] != "passed" and name not in REASONS}
    assert not wrong


@pytest.mark.full
def test_our_solution_is_found_in_another_cell_too(rows):
    assert rows[1]["copied"].outcomes == {"3.1": "passed", "3.2": "passed"}
    assert rows[1]["copied"].flags == {"3.2": "the same as our solution"}


@pytest.mark.full
@pytest.mark.parametrize("name", REASONS)
def test_else_the_row_says_why_not(rows, name):
    assert rows[1][name].outcomes["3.1"] in ("error", "failed")
    assert rows[1][name].notes["3.1"].startswith(f"{SHOWN} {REASONS[name][1]}")
