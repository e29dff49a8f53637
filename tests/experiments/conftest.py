"""A smoke run of each experiment, made once."""

import contextlib
import functools
import importlib
import io
import json
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """By the name of an experiment: its module, its file, the result in there, and what the command printed."""

    @functools.cache
    def made(name):
        module, path = importlib.import_module(f"experiments.{name}"), tmp_path_factory.mktemp(name) / "out put.json"
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert module.main(["-o", str(path), "--smoke", "--workers", "0"]) == 0
        result = json.loads(path.read_text(encoding="utf-8"))
        return SimpleNamespace(module=module, path=path, result=result, out=out.getvalue(), err=err.getvalue())

    return made
