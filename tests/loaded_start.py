"""start.py as a module."""

import importlib.util
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def module(folder):
    """Load it from a folder."""
    spec = importlib.util.spec_from_file_location("start", folder / "start.py")
    start = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(start)
    return start


def loaded(tmp_path):
    """Load it from a folder of its own, with a space and an umlaut in its name."""
    folder = tmp_path / "mein kürs"
    folder.mkdir()
    for name in ("start.py", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return module(folder)
