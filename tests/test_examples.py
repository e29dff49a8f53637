"""The examples of docstrings print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_RUN = {"course/plots/flow", "course/plots/networks", "train"}  # these draw, or train for minutes
NOT_RUN |= {"course/exercises/commands"}  # whose test starts from a fresh kernel
MODULES = [
    path.relative_to(ROOT).with_suffix("")
    for path in sorted((ROOT / "smalearn").rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", [".".join(path.parts) for path in MODULES if "/".join(path.parts[1:]) not in NOT_RUN])
def test_examples(name):
    assert not doctest.testmod(importlib.import_module(name)).failed
