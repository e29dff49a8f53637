"""From which length on a sequence is worth splitting between R ranks, all of which need the steps (Φ, E) before them.

`smalearn.fast.distributed` does it by an all-gather, beside the slice's work: R - 1 steps come into a rank in ⌈log2 R⌉
rounds. In a tree, pairs, pairs of pairs, ... swap products of their steps: as many rounds, but a single step in each.
"""

import math
from typing import NamedTuple

HEADS, P, N = 24, 64, 128  # the example of chapter 12


class Rule(NamedTuple):
    """One head: numbers in Φ; multiply-adds of H Φ, of Φ Φ', of a token, and of what a split adds to a token."""

    transition: int
    product: int
    composition: int
    token: int
    more: int
    hides: bool  # whether the messages travel while the function runs; the delta rule hides half of them at most


_DELTA = 16 * (2 * N + 2 * P) + 3 * N * P, 16 * 5 * N + 3 * N * N + N * P
RULES = {
    "ssd": Rule(1, P * N, 1, 64 * (N + P) + 2 * N * P, 2 * N * P, True),
    "delta rule": Rule(N * N, P * N * N, N**3, *_DELTA, False),
}  # as the docstrings of `fast` and `fast.distributed` count
PLACES = {
    "CPU, 1 Gb/s": (1e11, 1.25e8, 50e-6),
    "GPU, 100 Gb/s": (5e13, 1.25e10, 10e-6),
    "GPU, 400 GB/s": (5e13, 4e11, 5e-6),
}
"""Multiply-adds and incoming bytes a second of a device, seconds of a round: assumptions, to be replaced by yours."""


def pays_from(rule: Rule, tree: bool, ranks: int, place: tuple[float, float, float]) -> float | None:
    """Return T from which on one device takes longer, T·token against T/R·more + the slice + work with the steps.

    The slice is T/R·token and the messages, or the larger of the two; None if no T is long enough.
    """
    rate, bandwidth, latency = place
    rounds = math.ceil(math.log2(ranks))
    steps = rounds if tree else ranks - 1
    travel = rounds * latency + steps * HEADS * 4 * (P * N + rule.transition) / bandwidth
    products = 2 * rounds - 1 if tree else ranks - 1  # a tree passes products on, and adds up what lies on the left
    after = HEADS * products * (rule.product + tree * rule.composition) / rate
    token, more = HEADS * rule.token / rate, HEADS * rule.more / rate
    if rule.hides:
        tokens = (travel + after) / (token - more / ranks)
        if tokens * token / ranks <= travel:
            return tokens
    else:
        after += travel
    gain = token - (token + more) / ranks
    return after / gain if gain > 0 else None


def plan() -> str:
    """Return the lengths as a table."""
    lines = [f"{HEADS} heads, P = {P}, N = {N}, float32: T from which on a split sequence's forward pass is faster"]
    for name, (rate, bandwidth, latency) in PLACES.items():
        lines.append(f"{name}: {rate:.0e} multiply-adds/s, {bandwidth:.3g} bytes/s, {latency:.0e} s a round")
    for title, rule in RULES.items():
        tokens = (P * N + rule.transition) / (P + N)
        lines += ["", f"{title}: a step has as many numbers as the keys and values of {tokens:.0f} tokens"]
        lines.append("ranks  exchange  " + "".join(f"{name:>15}" for name in PLACES))
        for ranks in (2, 8, 64, 1024):
            for way in ("all-gather", "tree"):
                lengths = (pays_from(rule, way == "tree", ranks, place) for place in PLACES.values())
                shown = "".join(f"{'never' if T is None else f'{T:,.0f}':>15}" for T in lengths)
                lines.append(f"{ranks:5}  {way:10}{shown}")
    return "\n".join(lines)
