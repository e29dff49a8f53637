"""What of a notebook an answer needs: the statements that run, in their order."""

import ast

import pytest

from smalearn.course.grading.needed import Notebook

# name -> the cells (count, tag, source), and what is run of them
NEEDED = {
    "the last value before the check": (
        [
            (1, None, "A = 1"),
            (2, None, "A = 2"),
            (3, "3.1", "def f(): return A"),
            (4, "3.1", "check('3.1', f)"),
            (5, None, "A = 3"),
        ],
        ["A = 2", "def f():", "check('3.1', f)"],
    ),
    "what is bound elsewhere, after a restart": (
        [
            (2, None, "A = g()"),
            (3, "3.1", "def f(): return A"),
            (4, "3.1", "check('3.1', f)"),
            (9, None, "def g(): return 1"),
        ],
        ["def g():", "A = g()", "def f():", "check('3.1', f)"],
    ),
    "no training and no picture": (
        [
            (1, None, "import torch\nplot(A)\nmodel = train(A)\ntorch.save(model, 'a')\nA = 1"),
            (2, "3.1", "def f(): return torch.ones(A)"),
        ],
        ["import torch", "A = 1", "def f():"],
    ),
    "a setting": (
        [
            (1, None, "import torch\nD = torch.float64\ntorch.set_default_dtype(D)"),
            (2, "3.1", "def f(): return torch.ones(1)"),
        ],
        ["import torch", "D = torch.float64", "torch.set_default_dtype(D)", "def f():"],
    ),
    "no attribute of the same name": (
        [(1, None, "model = train()"), (2, "3.1", "def f(x): return x.model"), (None, "3.1", "check('3.1', f)")],
        ["def f(x):", "check('3.1', f)"],
    ),
    "no local variable of the same name": (
        [(1, None, "model = train()"), (2, "3.1", "f = lambda x: [model for model in x]")],
        ["f = lambda x: [model for model in x]"],
    ),
    "the check that shows it, of a function of another name": (
        [(1, "3.1", "def f(): raise NotImplementedError"), (2, None, "def g(): return 1\ncheck('3.1', g)")],
        ["def f():", "def g():", "check('3.1', g)"],
    ),
    "what a loop edits": (
        [(1, None, "class A: pass"), (2, None, "for name in 'ab':\n    setattr(A, name, 1)"), (3, "3.1", "f = A")],
        ["class A:", "for name in 'ab':", "f = A"],
    ),
    "files in folders, and where they are looked for": (
        [
            (1, None, "import sys\nsys.path.append('src')\nsave('src/a.py')\nsave('src/b/c.py')\nsave('src/d.py')"),
            (2, "3.1", "import a\nfrom b import c\ndef f(): return a, c"),
        ],
        [
            "import sys",
            "sys.path.append('src')",
            "save('src/a.py')",
            "save('src/b/c.py')",
            "import a",
            "from b import c",
            "def f():",
        ],
    ),
    "what a function reads before it is called": (
        [
            (1, None, "def g(): return A"),
            (2, None, "A = 1"),
            (3, None, "B = g()"),
            (4, None, "A = 2"),
            (5, "3.1", "def f(x=B): return x"),
        ],
        ["def g():", "A = 1", "B = g()", "A = 2", "def f(x=B):"],
    ),
}


@pytest.mark.parametrize("name", NEEDED)
def test_of_other_cells_runs_what_an_answer_needs(name):
    cells, expected = NEEDED[name]
    names = "count", "id", "source"
    notebook = Notebook([dict(zip(names, cell, strict=True)) | {"setup": False, "right": []} for cell in cells])
    for place in range(len(cells)):
        notebook.read(place)
    assert [ast.unparse(one.node).split("\n")[0] for one in notebook.plan("3.1", "f", "run")] == expected
