"""Fewer cases than a product of two factors has, where the first falls into families that run the same lines.

`smalearn.testing.pairwise` needs three factors to be smaller than their product.
"""

from collections.abc import Callable, Hashable, Iterable


def with_each(values: Iterable, cases: Iterable, family: Callable[[object], Hashable]) -> list[tuple]:
    """Choose pairs of a case and a value: every case, every value, and every family of cases with every value.

    Within a family cases and values come in turn, as often as the longer list asks.
    """
    values, families = list(values), {}
    for case in cases:
        families.setdefault(family(case), []).append(case)
    return [
        (members[i % len(members)], values[i % len(values)])
        for members in families.values()
        for i in range(max(len(members), len(values)))
    ]
