"""What `--break-claims` and `--record-claims` do: a wrong result of each kind, a broken function, what they report."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from claims_plugin import broken, perturbed

from smalearn.contractions import Order, Orders, Step, orders


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_perturbed_tensors(dtype):
    x = torch.tensor([[1.0, -1.0, 0.0], [2.0, -2.0, 1.0]], dtype=dtype, requires_grad=True)
    y = perturbed(x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    change = (y - x).abs()
    assert (change > 1e-5).all()
    assert (change < 4e-3).all()
    assert len(set((y / x)[x != 0].tolist())) == 5  # no common factor
    assert torch.equal(perturbed(x), y)
    y.sum().abs().backward()
    assert ((x.grad.abs() - 1).abs() < 2e-3).all()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_perturbed_zeros_move_and_infinities_stay(shape):
    assert (perturbed(torch.zeros(shape)) != 0).all()
    assert (perturbed(torch.full(shape, -torch.inf)) == -torch.inf).all()
    assert perturbed(torch.zeros(0, 3)).shape == (0, 3)


@dataclass(frozen=True)
class Cost:
    name: str
    macs: int


class Pair(NamedTuple):
    Y: float
    state: object


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (True, False),
        (0, 1),
        (7, 8),
        (-540_672, -540_131),
        (2.0, 2.002),
        (0.0, 1e-3),
        ("((QK)L)V", "((QK)L)V?"),
        (None, None),
        ((1, "label"), (2, "label")),
        ([1, [2]], [2, [3]]),
        ({"a": 1, "b": "label"}, {"a": 2, "b": "label"}),
        (Cost("scan", 5000), Cost("scan", 5005)),
        (Pair(4.0, None), Pair(4.004, None)),
    ],
    ids=repr,
)
def test_perturbed_values(value, wrong):
    assert perturbed(value) == (pytest.approx(wrong) if isinstance(value, float) else wrong)
    assert type(perturbed(value)) is type(value)


def test_perturbed_integer_and_boolean_tensors():
    assert perturbed(torch.tensor([0, -3, 9000])).tolist() == [1, -2, 9009]
    assert perturbed(torch.tensor([True, False])).tolist() == [False, True]


def test_perturbed_tables_of_orders():
    table = orders("TN, SN -> TS", {"T": 5, "S": 7, "N": 3})
    wrong = perturbed(table)
    assert (type(wrong), type(wrong[0]), type(wrong[0].steps[0])) == (Orders, Order, Step)
    assert (wrong[0].name, wrong[0].spec, wrong[0].macs) == (table[0].name, table[0].spec, 106)


@pytest.fixture
def toy(monkeypatch):
    """A module with a function and a class, and a second one that took the function's name from it."""
    first, second = ModuleType("toy"), ModuleType("toy_user")
    monkeypatch.setitem(sys.modules, "toy", first)
    monkeypatch.setitem(sys.modules, "toy_user", second)
    code = "def three(): return 3\ndef six(): return 2 * three()\nclass Box:\n    def size(self): return 3\n"
    exec(code, first.__dict__)
    second.alias = first.three
    return first, second


def test_a_broken_function_is_broken_for_all_and_mended(toy, monkeypatch):
    first, second = toy
    three = first.three
    with broken("toy.three"):
        assert (first.three(), second.alias(), first.six()) == (4, 4, 8)
        late = ModuleType("toy_late")
        monkeypatch.setitem(sys.modules, "toy_late", late)
        exec("from toy import three", late.__dict__)
        monkeypatch.setitem(sys.modules, "toy_none", None)
    assert first.three is second.alias is late.three is three
    assert (three(), first.six()) == (3, 6)


def test_a_broken_method_is_mended_after_an_exception(toy):
    first, _ = toy
    box, size = first.Box(), first.Box.size

    def fail():
        with broken("toy.Box.size"):
            assert box.size() == 4
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert box.size() == 3
    assert first.Box.size is size


TOY = """
import warnings
import pytest
from toy import double

claim = pytest.mark.claim("000:eq1", "toy.double")

@claim
def test_values():
    assert double(3) == 6

@claim
@pytest.mark.parametrize("x", [1, 2])
def test_one_case_notices(x):
    assert x == 1 or double(x) == 4

@pytest.fixture
def doubled():
    return double(3)

@claim
@pytest.mark.claim("000:eq2", "toy.half")
def test_fixture(doubled):
    assert doubled == 6

@claim
@pytest.mark.filterwarnings("ignore")
def test_type_alone():
    warnings.warn("not to be taken for a failed claim")
    assert isinstance(double(3), int)

@claim
def test_device():
    pytest.skip("needs a GPU")

@claim
def test_left_out():
    pass

def test_unmarked():
    pass
"""


def in_a_folder(folder, files, *options):
    """A run of pytest with the plugin alone, in a folder with these files."""
    for name, text in files.items():
        folder.joinpath(name).write_text(text, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "PYTHONUTF8": "1",
        "COLUMNS": "200",
    }
    command = [sys.executable, "-m", "pytest", "-p", "claims_plugin", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8")


INI = "[pytest]\nfilterwarnings = error\nmarkers = claim(id, function): of the toy\n"


@pytest.mark.full
def test_break_claims_reports_survivors(tmp_path):
    double = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
    files = {"toy.py": double, "test_toy.py": TOY, "pytest.ini": INI}
    done = in_a_folder(tmp_path, files, "--break-claims", "-rA", "-k", "not left_out")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    where = "test_toy.py::test_"
    assert [line for line in lines if line.startswith(("PASSED", "FAILED"))] == [
        f"PASSED {where}values[000:eq1 toy.double]",
        f"PASSED {where}one_case_notices[000:eq1 toy.double]",
        f"PASSED {where}fixture[000:eq1 toy.double]",
        f"FAILED {where}fixture[000:eq2 toy.half] - Failed: claim 000:eq2 survives a broken toy.half",
        f"FAILED {where}type_alone[000:eq1 toy.double] - Failed: claim 000:eq1 survives a broken toy.double",
    ]
    assert [line.endswith(": needs a GPU") for line in lines if line.startswith("SKIPPED")] == [True]
    assert "test_one_case_notices[2] failed: test_toy.py:15: AssertionError" in lines
    assert "2 failed, 3 passed, 1 skipped, 2 deselected" in lines[-1]


@pytest.mark.full
def test_record_claims_keeps_the_largest_error_of_each(tmp_path):
    toy = """import pytest, torch
from smalearn.testing import assert_close
@pytest.mark.claim("000:eq1", "toy.double")
@pytest.mark.parametrize("error", [1e-14, 1e-13, 0])
def test_close(error):
    assert_close(torch.ones(1).double() * (1 + error), torch.ones(1).double())
@pytest.mark.claim("000:eq2", "toy.half")
def test_counts():
    assert 1 + 1 == 2
"""
    in_a_folder(tmp_path, {"test_toy.py": toy, "pytest.ini": INI}, "--record-claims", "found.json").check_returncode()
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["residuals"] == {"000:eq1": pytest.approx(1e-13, rel=0.1)}
    assert found["machine"]["date"]
