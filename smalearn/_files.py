"""Where the files of the course are that are no code: a wheel carries them in the package, a checkout beside it."""

from importlib.metadata import distributions
from pathlib import Path

FILES = next(folder for folder in Path(__file__).parents if (folder / "assets" / "results").is_dir())


def install(extra: str) -> str:
    """Write the command that adds an extra to what is installed here, with uv where there is no pip."""
    # Its files are looked for: to ask for the module's place takes setuptools' distutils away, and torch.compile fails.
    program = "python -m pip" if any(distributions(name="pip")) else "uv pip"
    package = f'-e ".[{extra}]"' if (FILES / "pyproject.toml").is_file() else f'"smalearn[{extra}]"'
    return f"{program} install {package}"
