"""Matrices over time as pictures: masks, scores, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from smalearn._checks import ShapeError
from smalearn.course.plots.style import DOTS, GREY, PAPER, coloured, own_axes, show_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["heatmap", "mask", "side_by_side"]

FEW = 4  # so many whole numbers need no colour bar


def heatmap(
    M: object,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    scale: str = "linear",
) -> Axes:
    """Picture of a matrix: row t = 0 at the top, column s = 0 at the left.

    Entries ≥ 0 run from paper (small) to blue (large), negative ones to orange, with the same limit on both sides. One
    that is exactly zero is dotted paper, because it says something about structure; one that is not finite is grey.
    `scale` is "linear" or "log"; labels replace positions.
    """
    from matplotlib.colors import ListedColormap

    values = real_matrix("heatmap", M)
    for axis, size, labels in zip("TS", values.shape, (row_labels, column_labels), strict=True):
        if labels is not None and len(labels) != size:
            raise ShapeError(f"heatmap: axis {axis} is {size} in M but there are {len(labels)} labels")
    norm = _norm(coloured(values), scale)
    ax = own_axes("heatmap", ax, (4.6, 3.8), title)
    oblong = max(values.shape) > 3 * min(values.shape)
    image = show_numbers(ax, values, norm, "auto" if oblong else "equal")
    broken = np.ma.masked_where(np.isfinite(values), np.ones_like(values))
    ax.imshow(broken, ListedColormap([GREY]), aspect=ax.get_aspect())
    ax.spines[:].set_visible(False)
    ax.set(xlabel="source s", ylabel="target t")
    _ticks(ax.yaxis, row_labels)
    _ticks(ax.xaxis, column_labels, rotation=90)
    _key(ax, image, values)
    return ax


def mask(L: object, ax: Axes | None = None, *, title: str | None = None, scale: str = "linear") -> Axes:
    """Picture of a structured matrix or of a dense one, as `heatmap` draws it."""
    structured = hasattr(L, "dense")
    M = real_matrix("mask", L.dense() if structured else L)
    return heatmap(M, ax, title=type(L).__name__ if structured and title is None else title, scale=scale)


def side_by_side(
    matrices: Mapping[str, object],
    *,
    xlabel: str,
    ylabel: str,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    numbers: bool = False,
) -> Figure:
    """Pictures of matrices with one scale of colours, so that they can be compared."""
    import matplotlib.pyplot as plt

    if not matrices:
        raise ShapeError("side_by_side: matrices, expected at least one, got none")
    count, height = len(matrices), 3.0 if numbers else 3.6
    figure, axes = plt.subplots(1, count, figsize=(height * count + 1, height), layout="constrained", squeeze=False)
    for ax, (title, M) in zip(axes[0], matrices.items(), strict=True):
        heatmap(M, ax, title=title, row_labels=row_labels, column_labels=column_labels).set(
            xlabel=xlabel, ylabel=ylabel
        )
        remove_key(ax)
    images = [ax.images[0] for ax in axes[0]]
    top = max([image.get_array().max() for image in images if image.get_array().count()], default=1.0)
    for image in images:
        image.set_clim(0, top)
    if not numbers:
        figure.colorbar(images[0], ax=axes, label="dots: exactly 0")
        return figure
    for image in images:
        for (t, s), entry in np.ndenumerate(image.get_array().filled(0)):
            colour = "white" if 4 * entry > 3 * top else "black"
            image.axes.text(s, t, f"{entry:g}", ha="center", va="center", color=colour)
    return figure


def remove_key(ax: Axes) -> None:
    """Take colour bar and legend from a heat map whose colours the text explains."""
    for key in (ax.get_legend(), *ax.child_axes):
        if key is not None:
            key.remove()


def real_matrix(function: str, M: object) -> np.ndarray:
    """A (T, S) float64 copy of M for matplotlib, or an error that names the function."""
    if isinstance(M, torch.Tensor):
        M = M.detach().to("cpu", torch.promote_types(M.dtype, torch.float64)).numpy()
    values = np.asarray(M)
    if values.ndim != 2 or not values.size:
        raise ShapeError(f"{function}: M needs axes (T, S), both at least 1, got shape {values.shape}")
    if np.iscomplexobj(values):
        raise ValueError(f"{function}: M must be real, got complex numbers; pass M.real or abs(M)")
    return values.astype(np.float64)


def _norm(shown: np.ma.MaskedArray, scale: str) -> Normalize:
    """Colour limits: symmetric about zero as soon as one entry is negative."""
    from matplotlib.colors import LogNorm, Normalize

    if scale not in ("linear", "log"):
        raise ValueError(f"heatmap: scale must be 'linear' or 'log', got {scale!r}")
    low, high = (shown.min(), shown.max()) if shown.count() else (1.0, 1.0)
    if scale == "log":
        if low < 0:
            raise ValueError(f"heatmap: scale='log' needs entries ≥ 0, got {low:.3g}; pass abs(M)")
        # matplotlib's logarithmic colour bars fail close to the smallest floats.
        low, high = max(low, 1e-300), max(high, 1e-280)
        return LogNorm(low if low < high else high / 10, high)
    limit = max(-low, high)
    return Normalize(-limit if low < 0 else 0, limit)


def _ticks(axis: Axis, labels: Sequence[str] | None, rotation: int = 0) -> None:
    """Labels at every position, or whole numbers at some."""
    from matplotlib.ticker import MaxNLocator

    if labels is None:
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    else:
        axis.set_ticks(range(len(labels)), labels=[str(label) for label in labels], rotation=rotation)


def _key(ax: Axes, image: AxesImage, values: np.ndarray) -> None:
    """A colour bar, and below it what dots and grey mean; a few whole numbers are named one by one."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    present, entries, top = image.get_array().compressed(), [], 1.0
    counts = image.norm.vmin <= 0 and (present == present.round()).all()
    distinct = np.unique(present)[::-1]
    if len(distinct) == 1 or (counts and len(distinct) <= FEW):
        entries += [Patch(facecolor=image.cmap(image.norm(value)), label=f"{value:g}") for value in distinct]
    elif present.size:
        # An inset is as tall as the picture, in a grid of pictures too.
        ticks = MaxNLocator("auto", integer=True) if counts else None
        ax.figure.colorbar(image, cax=ax.inset_axes([1.04, 0.25, 0.05, 0.75]), ticks=ticks)
        top = 0.19
    if (values == 0).any():
        entries.append(Patch(facecolor=PAPER, label="0", **DOTS | {"hatch": "...."}))
    if not np.isfinite(values).all():
        entries.append(Patch(facecolor=GREY, label="not finite"))
    if entries:
        ax.legend(
            handles=entries, loc="upper left", bbox_to_anchor=(1.04, top), borderaxespad=0, borderpad=0, handlelength=1
        )
