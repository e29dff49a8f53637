"""The exponential of a product, from features: series, cosines, positive features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from smalearn.course.plots.style import GREY, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["three_maps"]


def three_maps(q: float = 1.5, draws: int = 32, seed: int = 0) -> Figure:
    """Picture of e^(qk) over k, exact and by three kinds of features: a power series, random cosines, positive ones.

    Thin lines are single terms added up, or single draws; the thick line is their sum, or the mean of the draws; the
    exact curve is dashed.
    """
    import matplotlib.pyplot as plt

    k = torch.linspace(-2.5, 2.5, 201, dtype=torch.float64)
    w = torch.randn(draws, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    norms = (q**2 + k**2) / 2
    series = torch.stack([(q * k) ** j / math.factorial(j) for j in range(7)]).cumsum(0)
    panels = {
        "Taylor, degree 1 to 6": (series[1:], series[-1]),
        f"cosines, {draws} directions": ((w * (q - k)).cos() * norms.exp(), None),
        f"positive features, {draws} directions": ((w * (q + k) - norms).exp(), None),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True)
    for ax, (title, (curves, total)) in zip(axes, panels.items(), strict=True):
        ax.plot(k, curves.mT, color=GREY, linewidth=0.5, alpha=0.6)
        ax.plot(k, curves.mean(0) if total is None else total, color="C0")
        ax.plot(k, (q * k).exp(), "--", color=INK, linewidth=1.2)
        ax.set(title=title, xlabel="k", ylim=(-12, 36))
    axes[0].set_ylabel("$e^{qk}$")
    return figure
