"""start.py as a module, in a folder of its own."""

import importlib.util
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def loaded(tmp_path):
    """Load it from a folder with a space and an umlaut in its name."""
    folder = tmp_path / "mein kürs"
    folder.mkdir()
    for name in ("start.py", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    spec = importlib.util.spec_from_file_location("start", folder / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
