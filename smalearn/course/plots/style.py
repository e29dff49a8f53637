"""The look shared by every picture, and the axes a picture is drawn in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["use_style"]

INK, GREY, PALE = "#222222", "#777777", "#d9d9d9"
# A wheel carries the assets inside the package, a checkout beside it.
STYLES = [Path(__file__).parents[up] / "assets" / "smalearn.mplstyle" for up in (2, 3)]


def use_style() -> None:
    """Give pictures and printed tensors the course's look: colours safe for colour-blind readers, four digits.

    Changes the settings of matplotlib and torch for the rest of the session, so that a chapter calls it once.

    Example:
        >>> use_style()
    """
    import matplotlib.style
    import torch

    torch.set_printoptions(precision=4, sci_mode=False)
    matplotlib.style.use(next(path for path in STYLES if path.is_file()))


def own_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new figure of that size in inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height))[1]
