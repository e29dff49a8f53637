"""Static pictures: arrays, masks or contraction orders in, matplotlib axes out. Nothing is shown; a notebook does that.

Every picture takes `ax`, the axes to draw in (a new figure if None), and returns the axes; one of several panels takes
and returns an array of them. Call `use_style()` once first.
"""

from smalearn.course.plots.blocks import decades, outlined, spectra
from smalearn.course.plots.curves import costs
from smalearn.course.plots.duality import border, four_steps, venn
from smalearn.course.plots.features import three_maps
from smalearn.course.plots.matrices import heatmap, mask
from smalearn.course.plots.networks import contraction, filmstrip
from smalearn.course.plots.passages import attends, words
from smalearn.course.plots.structures import structured_attention
from smalearn.course.plots.style import use_style

__all__ = [
    "attends",
    "border",
    "contraction",
    "costs",
    "decades",
    "filmstrip",
    "four_steps",
    "heatmap",
    "mask",
    "outlined",
    "spectra",
    "structured_attention",
    "three_maps",
    "use_style",
    "venn",
    "words",
]
