"""The look shared by every picture, and the axes a picture is drawn in."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from smalearn._files import FILES

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.image import AxesImage

__all__ = ["use_style"]

INK, GREY, PALE, PAPER = "#222222", "#777777", "#d9d9d9", "#ffffff"
# Of numbers, from small to large: those of the explorers on a light page.
POSITIVE, NEGATIVE = ["#9ecae8", "#0072b2"], ["#f8c491", "#b34e00"]
LEAST = 5  # points of a cell in which a stroke can be seen
DOTS = {"hatch": "..", "edgecolor": "#b8b8b8", "linewidth": 0}
# Pictures are drawn on white. On a dark page light and dark change places and hues stay: one file suits both. The last
# rule: an output that is nothing but a style leaves no blank strip in JupyterLab.
DARK = """<style>
body[data-jp-theme-light="false"] .jp-RenderedImage img, body.vscode-dark .output img,
body[data-theme="dark"] .cell_output img { filter: invert(0.93) hue-rotate(180deg); }
@media (prefers-color-scheme: dark) {
  body[data-theme="auto"] .cell_output img { filter: invert(0.93) hue-rotate(180deg); }
}
.jp-OutputArea-child:has(> .jp-RenderedHTML > style:only-child) { display: none; }
</style>"""


def use_style() -> None:
    """Give pictures and printed tensors the course's look: colours safe for colour-blind readers, four digits.

    Changes the settings of matplotlib and torch for the rest of the session, so that a chapter calls it once. In a
    notebook, pictures then follow a dark page, too. In one that is open in JupyterLab they have four pixels for one, to
    be sharp on a dense screen; where a chapter is run to be stored they would take 2.2 times the bytes.
    """
    import torch

    torch.set_printoptions(precision=4, sci_mode=False)
    style_pictures()
    if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()):
        from IPython.display import HTML, display

        display(HTML(DARK))
        if "JPY_SESSION_NAME" in os.environ:
            from matplotlib_inline.config import InlineBackend

            InlineBackend.instance(parent=shell).figure_formats = {"retina"}


def style_pictures() -> None:
    """Give matplotlib's pictures the course's look, and the colours of numbers the names "blue" and "orange-blue"."""
    import matplotlib.style

    matplotlib.style.use(FILES / "assets" / "smalearn.mplstyle")
    for ramp in (colours(False), colours(True)):
        if ramp.name not in matplotlib.colormaps:
            matplotlib.colormaps.register(ramp)


@cache
def colours(signed: bool) -> Colormap:
    """Return the colours of numbers: from paper to blue, or, with signs, from orange by paper to blue."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = [PAPER, *POSITIVE]
    name, stops = ("orange-blue", NEGATIVE[::-1] + stops) if signed else ("blue", stops)
    return LinearSegmentedColormap.from_list(name, stops, 257)  # an odd number has a middle


def coloured(numbers: np.ndarray) -> np.ma.MaskedArray:
    """Mask numbers that no colour stands for: those exactly zero, and those that are not finite."""
    import numpy as np

    return np.ma.masked_where(~np.isfinite(numbers) | (numbers == 0), numbers)


def show_numbers(ax: Axes, numbers: np.ndarray, scale: Normalize | float, aspect: str = "equal") -> AxesImage:
    """Colour numbers (T, S): dots for those exactly zero; a stroke on negative ones as a sign, where there is room."""
    import numpy as np
    from matplotlib.colors import Normalize

    norm = scale if isinstance(scale, Normalize) else Normalize(-scale, scale)
    ax.patch.set(facecolor=PAPER, **DOTS)
    shown = coloured(numbers)
    image = ax.imshow(shown, colours(norm.vmin < 0), norm, aspect=aspect)
    wide = ax.bbox.width / shown.shape[1] * 72 / ax.figure.dpi  # of a cell, in points
    if wide >= LEAST:
        t, s = np.nonzero(shown.filled(0) < 0)
        ax.scatter(s, t, min(0.25 * wide, 4) ** 2, INK, marker="_", linewidths=0.9)
    return image


def own_axes(function: str, ax: Axes | None, size: tuple[float, float], title: str | None = None) -> Axes:
    """Return the given axes, or those of a new figure of that size in inches, under their title, if they have one."""
    if title is not None and not str(title).strip():
        raise ValueError(f"{function}: title, expected what one should see, or None, got {title!r}")
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=size)[1]
    if title is not None:
        ax.set_title(title)
    return ax
