"""The look shared by every picture, and the axes a picture is drawn in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["use_style"]

INK, GREY, PALE = "#222222", "#777777", "#d9d9d9"
# A wheel carries the assets inside the package, a checkout beside it.
STYLES = [Path(__file__).parents[up] / "assets" / "smalearn.mplstyle" for up in (2, 3)]
# Pictures are drawn on white. On a dark page light and dark change places and hues stay: one file suits both.
DARK = """<style>
body[data-jp-theme-light="false"] .jp-RenderedImage img, body.vscode-dark .output img,
body[data-theme="dark"] .cell_output img { filter: invert(0.93) hue-rotate(180deg); }
@media (prefers-color-scheme: dark) {
  body[data-theme="auto"] .cell_output img { filter: invert(0.93) hue-rotate(180deg); }
}
</style>"""


def use_style() -> None:
    """Give pictures and printed tensors the course's look: colours safe for colour-blind readers, four digits.

    Changes the settings of matplotlib and torch for the rest of the session, so that a chapter calls it once. In a
    notebook, pictures then follow a dark page, too.
    """
    import torch

    torch.set_printoptions(precision=4, sci_mode=False)
    style_pictures()
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        from IPython.display import HTML, display

        display(HTML(DARK))


def style_pictures() -> None:
    """Give matplotlib's pictures the course's look."""
    import matplotlib.style

    matplotlib.style.use(next(path for path in STYLES if path.is_file()))


def own_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new figure of that size in inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height))[1]
