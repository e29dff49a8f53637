"""Fixtures of the tests of the benchmarks."""

from contextlib import nullcontext

import pytest
import torch

from benchmarks import device, implementation, multilevel, ssd
from benchmarks.implementation import Run


@pytest.fixture
def two_threads():
    """PyTorch computes on two threads in this test alone: left so, two processes of tests would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(monkeypatch):
    """All runs in this process, with small products, and nothing compiled."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(implementation, "processes", lambda names: nullcontext(dict.fromkeys(names, Run)))
    monkeypatch.setattr(implementation, "alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(ssd, "GEMM", 32)
    monkeypatch.setattr(multilevel, "LOOPS", {130: 3})


@pytest.fixture
def judged_anew():
    """No verdict of another test counts."""
    device.forget()
