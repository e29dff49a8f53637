"""smalearn: sequence mixers to derive, check, implement and speed up.

The package behind the notebook course of the same name. Each module is one idea; import the module, then use its
functions (`from smalearn import sma; sma.sma_quadratic(Q, K, V, L)`). Layout is `(..., T, N)` throughout: a call with
2-D tensors is the paper's equation letter for letter, and leading axes (batch, heads) broadcast.
"""

from smalearn._checks import ShapeError

__all__ = ["ShapeError", "__version__"]
__version__ = "0.1.0"
