"""What of a notebook an answer needs: the statements that run, in their order."""

import ast

import pytest

from smalearn.course.grading.needed import Notebook


def own(source, ran=True):
    """A cell of exercise 3.1; the others, of no exercise, are texts."""
    return source, "3.1", ran


# name -> the cells in the order in which they ran, and what is run of them
NEEDED = {
    "the last value before the check": (
        ["A = 1", "A = 2", own("def f(): return A"), own("check('3.1', f)"), "A = 3"],
        ["A = 2", "def f():", "check('3.1', f)"],
    ),
    "what is bound elsewhere, after a restart": (
        ["A = g()", own("def f(): return A"), own("check('3.1', f)"), "def g(): return 1"],
        ["def g():", "A = g()", "def f():", "check('3.1', f)"],
    ),
    "no training and no picture": (
        [
            "import torch\nplot(A)\nmodel = train(A)\ntorch.save(model, 'a')\nA = 1",
            own("def f(): return torch.ones(A)"),
        ],
        ["import torch", "A = 1", "def f():"],
    ),
    "a setting": (
        ["import torch\nD = torch.float64\ntorch.set_default_dtype(D)", own("def f(): return torch.ones(1)")],
        ["import torch", "D = torch.float64", "torch.set_default_dtype(D)", "def f():"],
    ),
    "no attribute of the same name": (
        ["model = train()", own("def f(x): return x.model"), own("check('3.1', f)", ran=False)],
        ["def f(x):", "check('3.1', f)"],
    ),
    "no local variable of the same name": (
        ["model = train()", own("f = lambda x: [model for model in x]")],
        ["f = lambda x: [model for model in x]"],
    ),
    "the check that shows it, of a function of another name": (
        [own("def f(): raise NotImplementedError"), "def g(): return 1\ncheck('3.1', g)"],
        ["def f():", "def g():", "check('3.1', g)"],
    ),
    "what a loop edits": (
        ["class A: pass", "for name in 'ab':\n    setattr(A, name, 1)", own("f = A")],
        ["class A:", "for name in 'ab':", "f = A"],
    ),
    "files in folders, and where they are looked for": (
        [
            "import sys\nsys.path.append('s')\nput('s/a.py')\nput('s/b/c.py')\nput('s/d.py')",
            own("import a\nfrom b import c\ndef f(): return a, c"),
        ],
        [
            "import sys",
            "sys.path.append('s')",
            "put('s/a.py')",
            "put('s/b/c.py')",
            "import a",
            "from b import c",
            "def f():",
        ],
    ),
    "what a function reads before it is called": (
        ["def g(): return A", "A = 1", "B = g()", "A = 2", own("def f(x=B): return x")],
        ["def g():", "A = 1", "B = g()", "A = 2", "def f(x=B):"],
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_of_other_cells_runs_what_an_answer_needs(name):
    cells, expected = NEEDED[name]
    cells = [cell if isinstance(cell, tuple) else (cell, None, True) for cell in cells]
    cells = [
        {"source": source, "id": id, "count": number if ran else None, "setup": False, "right": []}
        for number, (source, id, ran) in enumerate(cells, start=1)
    ]
    notebook = Notebook(cells)
    for place in range(len(cells)):
        notebook.read(place)
    assert [ast.unparse(one.node).split("\n")[0] for one in notebook.plan("3.1", "f", "run")] == expected
