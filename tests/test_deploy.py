"""Recipes for a hub and for grading elsewhere: what they name is there, and a user's server starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILES = sorted(ROOT.glob("deploy/*/Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_recipe_names_what_is_there(path):
    text = path.read_text(encoding="utf-8")
    for line in re.findall(r"(?m)^COPY (.*) \S+$", text):
        assert all((ROOT / name).exists() for name in line.split())
    for name in re.findall(r"/(deploy/[\w./]+)", text):
        assert (ROOT / name).is_file()
    assert f"docker build -f {path.relative_to(ROOT).as_posix()} " in text
    assert "tests" in path.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name == "nt", reason="needs a peer: a system on which hubs run")
@pytest.mark.parametrize("pulled", [False, True])
def test_a_server_starts_with_the_chapters_copied(tmp_path, pulled):
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    server = programs / "jupyterhub-singleuser"
    server.write_text("#!/bin/sh\necho served $* with $JUPYTER_CONFIG_PATH\n", encoding="utf-8")
    server.chmod(0o755)
    if pulled:
        (home / "course/chapters").mkdir(parents=True)
        (home / "course/chapters/01_only.ipynb").write_text('{"cells": [], "metadata": {}}', encoding="utf-8")
    environment = os.environ | {
        "HOME": str(home),
        "COURSE": str(ROOT),
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_PATH": "theirs",
    }
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    start = [sys.executable, ROOT / "deploy/jupyterhub/start.py", "--port=1"]
    done = subprocess.run(start, env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines()[-1] == f"served --port=1 with {ROOT / '.jupyter'}:theirs"
    names = sorted(path.name for path in (home / "work").glob("*.ipynb"))
    assert names == ["01_only.ipynb"] if pulled else len(names) > 10
