"""Which tests the default set leaves out, and which stay together in one process."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import selection

ROOT = Path(__file__).parents[1]

TESTS = """
import os
import pytest

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("form", ["slow", "fast"])
@pytest.mark.parametrize("dim", [4, 5])
def test_product(dim, form, size):
    assert "SMALEARN_QUICK" not in os.environ

@pytest.mark.full
def test_long():
    pass

@pytest.mark.gpu
def test_device():
    pass
"""
CHAPTER = nbformat.v4.new_notebook(
    cells=[
        nbformat.v4.new_code_cell("1 + 1", id="short"),
        nbformat.v4.new_code_cell("1 + 2", id="long", metadata={"tags": ["full"]}),
    ]
)


CONFTEST = """
import torch

pytest_plugins = ["selection"]

def pytest_collection_finish(session):
    untraced = [item for item in session.items if item.get_closest_marker("no_cover")]
    print("untraced:", *(item.callspec.id if hasattr(item, "callspec") else item.name for item in untraced))
"""


PAIRED = ["5-slow-1", "5-slow-2", "5-slow-3", "5-fast-1"]  # any pair of 5-fast-2 stands in one of these or before


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ([], ["4-slow-1", "4-slow-2", "4-slow-3", "4-fast-1", "5-slow-1"]),
        (["--full"], [f"4-{form}-{size}" for form in ("slow", "fast") for size in "123"] + PAIRED),
    ],
)
@pytest.mark.full
def test_by_default_every_value_once_and_with_full_every_pair(tmp_path, options, left):
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    nbformat.write(CHAPTER, tmp_path / "chapter.ipynb")
    markers = ["-o", "markers=full\ngpu", "-o", f"pythonpath={ROOT / 'tests'}", "-p", "no:cacheprovider"]
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-v", "--nbval-lax", *markers, *options]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8").stdout
    ran = [line.split("[")[1].split("]")[0] for line in output.splitlines() if "test_product[" in line]
    assert sorted(ran) == sorted(left), output
    assert ("test_long" in output) == ("--full" in options)
    if not selection.torch.cuda.is_available():
        assert "test_device" not in output
    cells = 1 + len(options)
    assert output.count("::Cell ") == cells
    assert f"{len(left) + len(options) + cells} passed" in output
    untraced = "4-fast-2 4-fast-3 5-slow-2 5-slow-3 5-fast-1 test_long"
    assert (untraced in output) == ("--full" in options)


def test_a_cell_that_trains_is_not_compared():
    class Cell:
        cell, options = {"metadata": {"tags": ["trains"]}}, {"check": True}

    selection._compare_no_training(Cell)
    assert Cell.options == {"check": False}


def test_chapters_and_files_with_a_fixture_of_their_own_stay_together():
    together = ["chapters/00_start_here.ipynb", "tests/browser/test_mask_explorer.py", "tests/test_data_series.py"]
    assert all(selection._stays_together(ROOT / path) for path in together)
    assert not selection._stays_together(ROOT / "tests/test_masks.py")
