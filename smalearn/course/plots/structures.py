"""Structured masked attention as a picture: what each mask does in quadratic and in linear mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from smalearn._checks import ShapeError
from smalearn.course.plots.matrices import real_matrix
from smalearn.course.plots.style import show_numbers
from smalearn.masks import Mask
from smalearn.sma import check_sma

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["structured_attention"]

ROWS = ("mask\nL", "quadratic mode\nM = L ∘ QKᵀ", "linear mode\nH = L Z")


def structured_attention(
    masks: Mapping[str, Mask],
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    axes: Sequence[Sequence[Axes]] | None = None,
    *,
    captions: Sequence[str] | None = None,
) -> np.ndarray:
    """Column for each mask: L, the M of the quadratic mode, the H of the linear mode (Mamba-2 paper, Figure 3).

    M = L ∘ Q K^T is what (13b) forms, H = L Z with Z[s, (p, n)] = V[s, p] K[s, n] what (15b) forms, by the mask's own
    fast product. Positive entries are blue, negative ones orange, each panel on its own scale; an entry that is exactly
    zero is dotted. Of complex matrices the real part is drawn.
    """
    count = len(masks)
    if not count:
        raise ValueError("structured_attention: masks, expected at least one, got none")
    if captions is not None and len(captions) != count:
        raise ShapeError(f"structured_attention: captions, expected {count}, one for each mask, got {len(captions)}")
    for L in masks.values():
        check_sma("structured_attention", Q, K, V, L)
    grid = _grid(count) if axes is None else np.asarray(axes, dtype=object)
    if grid.shape != (3, count):
        raise ShapeError(f"structured_attention: axes, expected shape {(3, count)}, got {grid.shape}")
    for column, (label, L) in zip(grid.T, masks.items(), strict=True):
        for ax, matrix in zip(column, _matrices(L, Q, K, V), strict=True):
            _panel(ax, matrix)
        column[0].set_title(label, fontsize=10, loc="center")
    for ax, name in zip(grid[:, 0], ROWS, strict=True):
        ax.set_ylabel(name, fontsize=10)
    for ax, caption in zip(grid[2], captions or [""] * count, strict=True):
        ax.set_xlabel(caption, fontsize=9)
    return grid


def _grid(count):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, count, figsize=(1.3 + 1.6 * count, 5.6), squeeze=False, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04)
    return axes


def _matrices(L, Q, K, V):
    """The real parts of L, M and H, the last with (P, N) as columns."""
    dtype = Q.dtype.to_complex() if L.is_complex else Q.dtype
    dense = L.dense(dtype, Q.device)
    Z = (V[:, :, None] * K[:, None, :]).flatten(1).to(dtype)
    return tuple(x.real if x.is_complex() else x for x in (dense, dense * (Q @ K.mT), L.matmul(Z)))


def _panel(ax, matrix):
    """Draw a matrix without ticks: orange, paper, blue about zero; exact zeros are dots."""
    values = real_matrix("structured_attention", matrix)
    limit = np.abs(values).max() or 1
    show_numbers(ax, values, limit, "auto")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
