"""Map of the 15 orders of masked attention: the cheapest one, over the sizes of its axes."""

from __future__ import annotations

from functools import cache

import traitlets

from smalearn.contractions import Orders
from smalearn.course.widgets.base import Explorer, Size, module
from smalearn.sma import LINEAR, QUADRATIC, sma_orders

__all__ = ["ContractionMap", "formulas"]

LIMITS = {"T": 65536, "S": 65536, "N": 512, "P": 512}
MODES = {QUADRATIC: "quadratic (13)", LINEAR: "linear (15)"}
PRIMES = ({"T": 2, "S": 3, "P": 5, "N": 7}, {"T": 3, "S": 2, "P": 5, "N": 7})


@cache
def formulas() -> list[dict]:
    """List every order with its costs as axes, from which a script or an array can compute them at any sizes.

    Nothing is derived a second time: at sizes that are distinct primes, the factors of a cost name its axes. A step
    with a structured mask costs the larger of two products, one for T < S and one for T > S. The modes (13) and (15)
    come first; `dense` and `scan` have, for each step, the products whose largest is its macs, `peak` those whose
    largest is its peak_elements.

    Example:
        >>> formulas()[0]["dense"]
        [['TSN'], ['TS'], ['TSP']]
    """
    dense, scan = ([sma_orders(*(sizes[axis] for axis in "TSNP"), scan) for sizes in PRIMES] for scan in (False, True))
    names = [order.name for order in dense[0]]
    return [
        {
            "name": name,
            "mode": MODES.get(name, ""),
            "dense": _products(dense, name, "macs"),
            "scan": _products(scan, name, "macs"),
            "peak": [axes for step in _products(dense, name, "output_elements")[:-1] for axes in step],
        }
        for name in sorted(names, key=lambda name: ([*MODES, name].index(name), name))
    ]


def _products(tables: list[Orders], name: str, cost: str) -> list[list[str]]:
    """Name the axes in one cost of each step of an order, by the tables made for `PRIMES`."""
    steps = zip(*(table.named(name).steps for table in tables), strict=True)
    return [
        list(dict.fromkeys(_axes(getattr(step, cost), sizes) for step, sizes in zip(twins, PRIMES, strict=True)))
        for twins in steps
    ]


def _axes(number: int, sizes: dict[str, int]) -> str:
    """Name the axes whose sizes, distinct primes, multiply to the number."""
    return "".join(axis for axis, size in sizes.items() if number % size == 0)


class ContractionMap(Explorer):
    """Map of the cheapest order of "TN, SN, SP, TS -> TP", Eq. (12), and the costs of all 15 at one point of it.

    The map spans T and N; P, and S where it is not tied to T, are set by sliders. The point is dragged, or moved by
    arrow keys or sliders. All of it can be read and set from Python too.

    Args:
        target: length T, up to 65536.
        source: length S, up to 65536; as long as the target if None.
        features: size N, up to 512.
        head_dim: size P, up to 512.
        scan: count a product by L as a running sum, one addition per entry, instead of a dense product.

    Raises:
        ValueError: a size is not an int from 1 to its limit.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 4.2.1, Eq. (13) and (15).

    Example:
        >>> ContractionMap(target=1024, scan=True).orders[0].name
        '((KV)L)Q'
    """

    _esm = module("contraction_map.js")
    _orders = traitlets.List().tag(sync=True)
    _limits = traitlets.Dict(LIMITS).tag(sync=True)
    target = Size(1024, LIMITS["T"]).tag(sync=True)
    source = Size(None, LIMITS["S"], allow_none=True).tag(sync=True)
    features = Size(64, LIMITS["N"]).tag(sync=True)
    head_dim = Size(64, LIMITS["P"]).tag(sync=True)
    scan = traitlets.Bool(True).tag(sync=True)

    @traitlets.default("_orders")
    def _formulas(self) -> list[dict]:
        return formulas()

    @property
    def orders(self) -> Orders:
        """The costs at the current point: what `sma_orders` returns for its sizes."""
        source = self.target if self.source is None else self.source
        return sma_orders(self.target, source, self.features, self.head_dim, scan=self.scan)
