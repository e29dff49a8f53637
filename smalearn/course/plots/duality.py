"""Pictures of the duality: the chunks of a semiseparable matrix, and two families of models that overlap."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from smalearn._checks import check_count
from smalearn.course.plots.matrices import heatmap, remove_key
from smalearn.course.plots.style import INK, own_axes
from smalearn.masks import decay_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["border", "four_steps", "venn"]

STEPS = ("#5b9bd5", "#7fc8ae", "#f2d34f", "#e08a3c")  # blue, green, yellow, orange: within, write, pass on, read


def border(log_a: torch.Tensor, start: int) -> Figure:
    """Picture of a decay mask cut at a border, with the two factors of the block below it along its sides.

    Above the columns before the border stands the decay of each token until there, right of the rows after it the
    decay since: an entry of the outlined block is the product of both. `log_a` has one gate per token, `start` is the
    token with which the second chunk begins.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    L = decay_matrix(log_a.double())
    grid = {"width_ratios": [4, 1], "height_ratios": [1, 4]}
    figure, ((above, corner), (mask, beside)) = plt.subplots(2, 2, figsize=(5, 5), gridspec_kw=grid)
    corner.axis("off")
    heatmap(L, mask).set_aspect("auto")
    remove_key(mask)
    above.spines[["left", "bottom"]].set_visible(False)
    beside.spines[["left", "bottom"]].set_visible(False)
    mask.add_patch(Rectangle((-0.5, start - 0.5), start, len(L) - start, fill=False, edgecolor="C1", linewidth=2.5))
    above.bar(range(start), L[start - 1, :start].tolist(), color="C1")
    beside.barh(range(start, len(L)), log_a[start:].double().cumsum(0).exp().tolist(), color="C0")
    above.set(xlim=mask.get_xlim(), ylim=(0, 1.05), xticks=[], title="decay until the border")
    beside.set(ylim=mask.get_ylim(), xlim=(0, 1.05), yticks=[])
    beside.set_title("decay since the border")
    return figure


def four_steps(chunks: int, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Map of a lower triangular matrix cut into chunks, with the factors of each block in the colours of the steps.

    A block on the diagonal is computed whole, step 1. Each block below is a product of three factors: a row of what
    its sources write, 2, one number that passes it on, 3, and a column of what its targets read, 4.
    """
    from matplotlib.patches import Patch, Rectangle

    check_count("four_steps", "chunks", chunks)
    ax, thin = own_axes("four_steps", ax, (5.6, 4.0), title), 0.22
    names = "1 within chunks", "2 write", "3 pass on", "4 read"
    for row in range(chunks):
        for column in range(row + 1):
            whole = {"1": (0.0, 0.0, 1.0, 1.0)}
            factors = {"2": (thin, 0.0, 1 - thin, thin), "3": (0.0, 0.0, thin, thin), "4": (0.0, thin, thin, 1 - thin)}
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor="#f4f4f4", edgecolor="white", linewidth=3))
            for step, (x, y, width, height) in (factors if column < row else whole).items():
                colour = STEPS[int(step) - 1]
                ax.add_patch(Rectangle((column + x, row + y), width, height, facecolor=colour, edgecolor="white"))
    ax.set(xlim=(0, chunks), ylim=(chunks, 0), aspect="equal", xlabel="chunk of sources", ylabel="chunk of targets")
    ticks = [place + 0.5 for place in range(chunks)]
    ax.set_xticks(ticks, range(chunks))
    ax.set_yticks(ticks, range(chunks))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    entries = [Patch(facecolor=colour, label=name) for colour, name in zip(STEPS, names, strict=True)]
    ax.legend(handles=entries, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
    return ax


def venn(
    left: Collection[str], right: Collection[str], titles: tuple[str, str], ax: Axes | None = None, *, both: str = ""
) -> Axes:
    """Two families as overlapping circles; a name that is in both stands in the overlap."""
    from matplotlib.patches import Circle

    ax = own_axes("venn", ax, (7.5, 4.4))
    for number, x in enumerate((-0.62, 0.62)):
        ax.add_patch(Circle((x, 0), 1.1, facecolor=f"C{number}", alpha=0.22, edgecolor="none"))
        ax.add_patch(Circle((x, 0), 1.1, fill=False, edgecolor=f"C{number}", linewidth=2))
        ax.text(x, 1.18, titles[number], ha="center", color=INK, fontweight="bold")
    ax.text(0, 0.62, both, ha="center", color=INK, fontweight="bold")
    regions = {
        -1.12: [name for name in left if name not in right],
        0.0: [name for name in left if name in right],
        1.12: [name for name in right if name not in left],
    }
    for x, names in regions.items():
        for row, name in enumerate(names):
            ax.text(x, 0.17 * ((len(names) - 1) / 2 - row), name, ha="center", va="center", color=INK, fontsize=9)
    ax.set(xlim=(-2, 2), ylim=(-1.2, 1.4), aspect="equal")
    ax.axis("off")
    return ax
