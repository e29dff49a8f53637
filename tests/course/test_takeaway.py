"""What a learner takes home: one file of their functions, right without smalearn; or a sentence that says why not."""

import pytest
import torch
from cells import run_cell

from smalearn.course.exercises import check
from smalearn.course.takeaway import take_home
from smalearn.masks import decay_matrix
from smalearn.masks.decay import split_chunks

X = torch.arange(6.0).double().view(3, 2)


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Runs a cell as a kernel does and returns all that is defined; files go into a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    space = {"__name__": "__main__", "torch": torch, "check": check, "split_chunks": split_chunks}

    def run(cell):
        run_cell(cell, space)
        return space

    return run


@pytest.fixture
def trusted(monkeypatch):
    """No process of its own asks whether a file is right: the other tests do."""
    monkeypatch.setattr("smalearn.course.takeaway._error", lambda *_: "")


def twice(folder):
    """Run the file once more, by itself."""
    space = {}
    exec((folder / "mine.py").read_text(encoding="utf-8"), space)
    return space["last"](X)


def test_all_that_functions_use_comes_along(notebook, tmp_path, capsys):
    (tmp_path / "earlier_file.py").write_text("import math\n\n\ndef half(x):\n    return math.sqrt(0.25) * x\n")
    notebook("import torch.nn.functional as F\nfrom einops import einsum as product, rearrange")
    notebook("from earlier_file import half\nTWICE = 2\nrelu = states = 3")  # the latter are attributes below, no names
    notebook("def helper(x):\n    return F.relu(x)\n\n\ndef unused(x):\n    return x")
    notebook("@torch.no_grad()\ndef first(x, factor=TWICE):\n    return factor * rearrange([x], 'a b c -> (a b) c')")
    notebook("def mine(x):\n    return helper(x)\n\n\nsecond = mine")  # as after check("1.1", mine)
    notebook("def whole(x):\n    return split_chunks(half(second(first(x))), 9)[0]")
    space = notebook("def last(x):\n    return product(whole(x), 'a b -> a b')")
    functions = [split_chunks, space["first"], space["second"], space["last"]]
    take_home("mine.py", functions, (X,), X, "Mine.\n\nAll of it.")
    assert capsys.readouterr().out.startswith("✓ mine.py")
    text = (tmp_path / "mine.py").read_text(encoding="utf-8")
    imports = ["import math", "import torch", "import torch.nn.functional as F", "from einops import einsum as product"]
    assert text.startswith("\n".join(['"""Mine.', "", 'All of it."""', "", *imports]))
    assert not [word for word in ("smalearn", "unused", "states", "relu =") if word in text]
    order = ["split_chunks", "first", "helper", "mine", "half", "whole", "last"]
    places = [text.index(f"def {name}(") for name in order]
    assert places == sorted(places)
    assert torch.equal(twice(tmp_path), X)


def test_a_name_comes_from_where_a_learner_finds_it(notebook, trusted, tmp_path):
    notebook("from torch import einsum\nfrom torch.nn.functional import silu, softplus")  # the latter is built in
    space = notebook("def last(x):\n    return softplus(silu(einsum('ab->ab', x)))")
    take_home("mine.py", [space["last"]], (X,), space["last"](X), "Mine.")
    imports = "from torch import einsum\nfrom torch.nn.functional import silu\nfrom torch.nn.functional import softplus"
    assert imports in (tmp_path / "mine.py").read_text(encoding="utf-8")
    assert torch.equal(twice(tmp_path), space["last"](X))


def test_says_which_exercises_are_missing(notebook, tmp_path, capsys):
    space = notebook("def first(x):\n    return x")
    ours = check("1.1", lambda Q, K, V: V)  # wrong: our solution comes back
    take_home("mine.py", [space["first"], ours], (X,), X, "Mine.")
    assert "waits for exercise 1.1." in capsys.readouterr().out.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("decay_matrix(x)", "decay_matrix, which"),
        ("x + given", "given, which"),
        ("x + 1e-9", "Tensor-likes are not close"),
        ("x[None]", "shape"),
        ("(lambda: __import__('smalearn'))()", "halted"),
    ],
)
def test_what_is_not_right_alone_is_not_written(notebook, tmp_path, capsys, body, said):
    space = notebook(f"def last(x):\n    return {body}")
    space |= {"decay_matrix": decay_matrix, "given": X}
    take_home("mine.py", [space["last"]], (X,), X, "Mine.")
    out = capsys.readouterr().out
    assert out.startswith("✗ mine.py")
    assert said in out
    assert not list(tmp_path.iterdir())


def test_no_file_of_the_learner_is_lost(notebook, trusted, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("theirs")
    (tmp_path / "mine.1.py").write_text("older")
    for body in ("x", "x", "1 * x"):
        take_home("mine.py", [notebook(f"def last(x):\n    return {body}")["last"]], (X,), X, "Mine.")
    files = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert sorted(files) == ["mine.1.py", "mine.2.py", "mine.3.py", "mine.py"]  # the same text twice is one file
    assert [files[f"mine.{number}.py"].split()[-1] for number in (1, 2, 3)] == ["older", "theirs", "x"]
    assert "mine.3.py" in capsys.readouterr().out
    assert torch.equal(twice(tmp_path), X)


def test_a_file_that_is_written_again_is_read_again(notebook, trusted, tmp_path):
    """Its functions go into another file as they are now, wherever their lines stand."""
    space = notebook("def last(x):\n    return x")
    take_home("mine.py", [space["last"]], (X,), X, "Mine.")
    notebook("from mine import last as kept")
    space = notebook("def helper(x):\n    return 1 * x\n\n\ndef last(x):\n    # a comment\n    return helper(x)")
    take_home("mine.py", [space["last"]], (X,), X, "Mine.")
    space = notebook("from mine import last as kept\n\n\ndef whole(x):\n    return kept(x)")
    take_home("whole.py", [space["kept"], space["whole"]], (X,), X, "Whole.")
    assert "def helper" in (tmp_path / "whole.py").read_text(encoding="utf-8")
