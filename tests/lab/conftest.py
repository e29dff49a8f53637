"""Fixtures of the tests of the benchmarks."""

import pytest
import torch


@pytest.fixture
def two_threads():
    """PyTorch computes on two threads in this test alone: left so, two processes of tests would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
