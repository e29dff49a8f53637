"""How far a long command is, on stderr: a line for each part, and on a terminal one more that counts its steps."""

import shutil
import sys

__all__ = ["part", "step"]


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
