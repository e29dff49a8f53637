"""Marks of tests that need Triton, or a GPU for which it compiles."""

import pytest
import torch

from smalearn.fast.triton import launch

needs_triton = pytest.mark.skipif(
    not launch.has_triton() or not launch.interprets(), reason="needs Triton, and that its interpreter is on"
)


def needs_gpu(test):
    """Mark a test as one of `pytest -m gpu`; it is skipped where there is none."""
    absent = not torch.cuda.is_available() or not launch.has_triton() or launch.interprets()
    return pytest.mark.gpu(pytest.mark.skipif(absent, reason="needs a GPU, and Triton that compiles for it")(test))
