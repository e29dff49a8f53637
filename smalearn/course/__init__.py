"""Workshop that runs the course: exercises, explorers, pictures, learners' copies, grading, site, command line.

A chapter's first line is `from smalearn.course import case, check, hint, solution`. They are fetched at first use, so
that `smalearn doctor` works where torch is missing.
"""

from importlib import import_module

__all__ = ["case", "check", "follow", "hint", "solution"]


def __getattr__(name: str) -> object:
    """Import a command of a chapter at its first use."""
    if name in __all__:
        return getattr(import_module("smalearn.course.exercises"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
