"""Static pictures: arrays, masks or contraction orders in, matplotlib axes out. Nothing is shown; a notebook does that.

Every picture takes `ax`, the axes to draw in (a new figure if None), and returns the axes. Call `use_style()` once
first.
"""

from smalearn.plots.curves import costs, order_costs
from smalearn.plots.matrices import heatmap, mask
from smalearn.plots.networks import contraction, order_tree
from smalearn.plots.passages import attends, words
from smalearn.plots.style import use_style

__all__ = [
    "attends",
    "contraction",
    "costs",
    "heatmap",
    "mask",
    "order_costs",
    "order_tree",
    "use_style",
    "words",
]
