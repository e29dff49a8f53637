"""How far a long command is, on stderr: a line for each part, and on a terminal one more that counts its steps.

And whether its result can be kept, which it asks before it begins.
"""

import shutil
import sys
import tempfile
from pathlib import Path

__all__ = ["part", "step", "try_to_write"]


def part(what: str) -> None:
    """Begin a part.

    Args:
        what: its name, which stays to be read.
    """
    step("")
    print(what, file=sys.stderr, flush=True)


def step(what: str) -> None:
    """Redraw the line that counts, on a terminal alone.

    Args:
        what: where the part is; "" takes the line away.
    """
    if sys.stderr.isatty():
        room = shutil.get_terminal_size().columns - 1
        print(f"\r{what[:room]:{room}}\r", end="", file=sys.stderr, flush=True)


def try_to_write(folder: Path) -> None:
    """Write to a folder that exists, and leave nothing there; an OSError names it where that cannot be done."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(f"nothing can be written to {folder} ({error.strerror})") from error
