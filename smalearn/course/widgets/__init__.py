"""Interactive pictures: each is computed in the browser at every move, and its state is shared with Python.

Show one by ending a cell with it; read and set its traits from other cells. Without a kernel, as on GitHub, there is a
still picture: of the state that the cell makes, if a chapter shows it, or else of the state at first; it says which.
"""

from smalearn.course.widgets.block_explorer import BlockExplorer
from smalearn.course.widgets.chunk_explorer import ChunkExplorer
from smalearn.course.widgets.contraction_map import ContractionMap
from smalearn.course.widgets.duality_explorer import DualityExplorer
from smalearn.course.widgets.feature_explorer import FeatureExplorer
from smalearn.course.widgets.kernel_tracer import KernelTracer
from smalearn.course.widgets.mask_explorer import MaskExplorer
from smalearn.course.widgets.score_explorer import ScoreExplorer
from smalearn.course.widgets.state_explorer import StateExplorer
from smalearn.course.widgets.weight_explorer import WeightExplorer

__all__ = [
    "BlockExplorer",
    "ChunkExplorer",
    "ContractionMap",
    "DualityExplorer",
    "FeatureExplorer",
    "KernelTracer",
    "MaskExplorer",
    "ScoreExplorer",
    "StateExplorer",
    "WeightExplorer",
]
