"""Where the files of the course are that are no code: a wheel carries them in the package, a checkout beside it."""

import importlib.util
from pathlib import Path

__all__ = ["FILES", "install"]

FILES = next(folder for folder in Path(__file__).parents if (folder / "assets" / "results").is_dir())


def install(extra: str) -> str:
    """Write the command that adds an extra to what is installed here, with uv where there is no pip."""
    program = "python -m pip" if importlib.util.find_spec("pip") else "uv pip"
    package = f'-e ".[{extra}]"' if (FILES / "pyproject.toml").is_file() else f'"smalearn[{extra}]"'
    return f"{program} install {package}"
