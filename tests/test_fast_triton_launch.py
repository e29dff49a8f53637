"""Whose assembler Triton calls for a GPU."""

import os
import stat

import pytest
import torch
from triton_marks import needs_triton

from smalearn.fast.triton import launch

PTXAS = "TRITON_PTXAS_PATH"
SCRIPT = """#!/bin/sh
echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
echo "Cuda compilation tools, release 13.1, V13.1.12"
"""


@pytest.fixture
def torch_with_assembler(tmp_path, monkeypatch):
    """A PyTorch that brings an assembler along, as those for CUDA do; gives its path."""
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv(PTXAS, "")
    monkeypatch.delenv(PTXAS)
    file = tmp_path / "bin" / "ptxas"
    file.parent.mkdir()
    file.write_text(SCRIPT)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@needs_triton
def test_the_assembler_is_that_of_torch(torch_with_assembler):
    assert launch.assembler() == (13, 1)
    assert os.environ[PTXAS] == str(torch_with_assembler)


@needs_triton
def test_it_is_chosen_before_anything_is_compiled(torch_with_assembler):
    launch.for_triton.__wrapped__(lambda: None, called=True)
    assert os.environ[PTXAS] == str(torch_with_assembler)


@needs_triton
def test_that_of_the_user_comes_first(torch_with_assembler, monkeypatch):
    monkeypatch.setenv(PTXAS, "mine")
    launch._take_the_assembler_of_torch()
    assert os.environ[PTXAS] == "mine"


@needs_triton
def test_without_one_it_is_tritons(torch_with_assembler):
    torch_with_assembler.unlink()
    assert (12, 0) < launch.assembler() < (14, 0)
    assert PTXAS not in os.environ
