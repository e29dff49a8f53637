"""From which length on a sequence is worth splitting: counted, with the exchange between ranks run in a simulation.

Three ways to get the carry-ins from each rank's step (Φ, E), for any number R of ranks:

    chain       each rank waits for the state of the one on its left: R - 1 rounds
    all-gather  all steps to all ranks, twice as many a round: ⌈log2 R⌉ rounds, R - 1 steps into a rank
    tree        pairs, pairs of pairs, ... swap the products of their steps: ⌈log2 R⌉ rounds, as many steps into a rank

`smalearn.fast.distributed` takes the all-gather: one call of `torch.distributed` that runs beside the slice's work.
"""

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["PLACES", "RULES", "WAYS", "Costs", "Exchange", "Place", "chain", "gather", "pays_from", "plan", "tree"]

Step = tuple[Any, Any]
HEADS, P, N, CHUNK_LEN = 24, 64, 128, 64
"""The sizes of the example in chapter 12."""


class Exchange:
    """The ranks' steps on their way, and what that takes; no transition or state is looked into.

    Args:
        act: H Φ from H and Φ, and Φ Φ' from two transitions.
    """

    def __init__(self, act: Callable[[Any, Any], Any]):
        self.act, self.rounds = act, []

    def begin_round(self) -> None:
        """Messages of one round do not wait for one another."""
        self.rounds.append(Counter())

    def count(self, rank: int, **more: int) -> None:
        """Add to what a rank receives, `transitions` and `states`, or does, `products` and `compositions`."""
        for kind, number in more.items():
            self.rounds[-1][rank, kind] += number

    def advance(self, rank: int, H: Any, step: Step) -> Any:
        """H Φ + E, on a rank."""
        self.count(rank, products=1)
        return self.act(H, step[0]) + step[1]

    def compose(self, rank: int, first: Step, second: Step) -> Step:
        """Two steps in one, on a rank."""
        self.count(rank, compositions=1)
        return self.act(first[0], second[0]), self.advance(rank, first[1], second)

    def busiest(self, **prices: float) -> float:
        """The highest price that a rank pays, where each thing it counts has its own."""
        every = Counter()
        for one in self.rounds:
            every.update(one)
        return self._highest(every, prices)

    def slowest(self, **prices: float) -> float:
        """The same, where each round waits for the last rank of the one before."""
        return sum(self._highest(one, prices) for one in self.rounds)

    def _highest(self, counts, prices):
        paid = Counter()
        for (rank, kind), number in counts.items():
            paid[rank] += number * prices.get(kind, 0)
        return max(paid.values(), default=0)


def chain(steps: Sequence[Step], exchange: Exchange) -> list[Any]:
    """Carry-ins of all ranks by the chain.

    Args:
        steps: (Φ, E) of each rank, of numbers or tensors.
        exchange: counts.

    Returns:
        A state for each rank.
    """
    carry_ins = [0 * steps[0][1]]
    for rank, step in enumerate(steps[:-1]):
        exchange.begin_round()
        carry_ins.append(exchange.advance(rank, carry_ins[-1], step))
        exchange.count(rank + 1, states=1)
    return carry_ins


def gather(steps: Sequence[Step], exchange: Exchange) -> list[Any]:
    """Carry-ins by the all-gather; arguments and result as in `chain`."""
    ranks, distance = len(steps), 1
    held = [{rank: step} for rank, step in enumerate(steps)]
    while distance < ranks:
        exchange.begin_round()
        before = [dict(blocks) for blocks in held]
        for rank, blocks in enumerate(held):
            new = {k: step for k, step in before[(rank + distance) % ranks].items() if k not in blocks}
            blocks.update(new)
            exchange.count(rank, transitions=len(new), states=len(new))
        distance *= 2
    carry_ins = []
    for rank, blocks in enumerate(held):
        H = 0 * steps[0][1]
        for source in range(rank):
            H = exchange.advance(rank, H, blocks[source])
        carry_ins.append(H)
    return carry_ins


def tree(steps: Sequence[Step], exchange: Exchange) -> list[Any]:
    """Carry-ins by the tree; arguments and result as in `chain`.

    In round k the partners are ranks whose numbers differ in bit k alone.
    """
    ranks, distance = len(steps), 1
    total, left = list(steps), [None] * ranks  # the products of a rank's 2^k ranks, and of those of them before it
    while distance < ranks:
        exchange.begin_round()
        before = list(total)
        for rank in range(ranks):
            partner = rank ^ distance
            if partner >= ranks:
                continue
            exchange.count(rank, transitions=1, states=1)
            if partner < rank:
                other = before[partner]
                left[rank] = other if left[rank] is None else exchange.compose(rank, other, left[rank])
            total[rank] = exchange.compose(rank, before[min(rank, partner)], before[max(rank, partner)])
        distance *= 2
    return [0 * steps[0][1] if step is None else step[1] for step in left]


WAYS = {"chain": chain, "all-gather": gather, "tree": tree}


class Costs(NamedTuple):
    """Of one head, in numbers and multiply-adds.

    Attributes:
        transition: numbers in Φ.
        composition: multiply-adds of Φ Φ'.
        product: multiply-adds of H Φ.
        token: multiply-adds of the function on one device.
        more: multiply-adds that a split adds to a token.
        hides: whether the messages travel while the function runs.
    """

    transition: int
    composition: int
    product: int
    token: int
    more: int
    hides: bool


RULES = {
    "ssd": Costs(1, 1, P * N, CHUNK_LEN * (N + P) + 2 * N * P, 2 * N * P, True),
    "delta rule": Costs(
        N * N, N**3, P * N * N, 16 * (2 * N + 2 * P) + 3 * N * P, 16 * 5 * N + 3 * N * N + N * P, False
    ),
}
"""As the docstrings of `fast` and `fast.distributed` count; the delta rule hides half of its messages at most."""


class Place(NamedTuple):
    """Devices and what is between them: assumptions, to be replaced by your own.

    Attributes:
        name: for the table.
        rate: multiply-adds a second of one device.
        bandwidth: bytes a second into one device.
        latency: seconds of a round.
    """

    name: str
    rate: float
    bandwidth: float
    latency: float


PLACES = (
    Place("CPU, 1 Gb/s", 1e11, 1.25e8, 50e-6),
    Place("GPU, 100 Gb/s", 5e13, 1.25e10, 10e-6),
    Place("GPU, 400 GB/s", 5e13, 4e11, 5e-6),
)


def pays_from(costs: Costs, exchange: Exchange, ranks: int, place: Place) -> float | None:
    """Tokens from which on the split forward pass takes less time than that of one device.

    One device takes T·token. A rank takes T/R·more, the messages or T/R·token or both, and what it makes of the steps.

    Args:
        costs: of the rule.
        exchange: after a simulation.
        ranks: R.
        place: where.

    Returns:
        T, or None if none is long enough.
    """
    numbers = {"transitions": costs.transition, "states": P * N}
    messages = exchange.slowest(**{kind: HEADS * 4 * n / place.bandwidth for kind, n in numbers.items()})
    messages += len(exchange.rounds) * place.latency
    work = {"products": costs.product, "compositions": costs.composition}
    after = exchange.slowest(**{kind: HEADS * n / place.rate for kind, n in work.items()})
    token, more = (HEADS * n / place.rate for n in (costs.token, costs.more))
    if costs.hides:
        tokens = (messages + after) / (token - more / ranks)
        if tokens * token / ranks <= messages:
            return tokens
    else:
        after += messages
    gain = token - (token + more) / ranks
    return after / gain if gain > 0 else None


def plan(ranks: Sequence[int] = (2, 8, 64, 1024)) -> str:
    """A table of what the exchange takes, and of the lengths from which on it pays.

    Args:
        ranks: to simulate.

    Returns:
        The text.
    """
    exchanges = {(count, way): _simulated(count, run) for count in ranks for way, run in WAYS.items()}
    lines = [
        f"{HEADS} heads, P = {P}, N = {N}, float32; T from which on the forward pass of a split sequence is faster"
    ]
    for name, rate, bandwidth, latency in PLACES:
        lines.append(f"{name}: {rate:.0e} multiply-adds/s, {bandwidth:.3g} bytes/s, {latency:.0e} s a round")
    for rule, costs in RULES.items():
        tokens = (P * N + costs.transition) / (P + N)
        lines += ["", f"{rule}: a step has as many numbers as the keys and values of {tokens:.0f} tokens"]
        lines.append("ranks  exchange    rounds  MB into a rank" + "".join(f"{place.name:>15}" for place in PLACES))
        for (count, way), exchange in exchanges.items():
            size = exchange.busiest(transitions=4 * HEADS * costs.transition, states=4 * HEADS * P * N)
            line = f"{count:5}  {way:10}  {len(exchange.rounds):6}  {size / 1e6:14.1f}"
            lengths = (pays_from(costs, exchange, count, place) for place in PLACES)
            lines.append(line + "".join(f"{'never' if T is None else f'{T:,.0f}':>15}" for T in lengths))
    return "\n".join(lines)


def _simulated(ranks, run):
    """The exchange of steps that are numbers."""
    exchange = Exchange(operator.mul)
    run([(0.5, 1.0)] * ranks, exchange)
    return exchange
