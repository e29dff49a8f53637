"""Tensor contractions, and every way to compute one two operands at a time, with its cost.

A contraction says which numbers are multiplied and which axes are summed; it does not say in which order. Orders of one
contraction give the same result at very different prices.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, product
from string import ascii_letters
from typing import NamedTuple

import torch

from smalearn._checks import brief, check_dtypes, check_shapes, check_type
from smalearn._structured import Table

__all__ = ["Order", "Orders", "Step", "contract", "orders", "parse_spec"]

MAX_OPERANDS = 7  # of which there are 10,395 orders; of one more, 135,135


def contract(spec: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Contract tensors in the papers' notation, as in Eq. (12): "TN, SN, SP, TS -> TP".

    result[output axes] = sum over all other axes of tensors[0][its axes] · tensors[1][its axes] · ...

    This is the definition of the result. In which order it is computed, and so what it costs, is left to torch; an
    `Order` fixes both.

    Args:
        spec: the axes of each operand, one letter an axis, then `->` and the axes of the result; spaces are free. No
            term has a letter twice; a term without letters is a scalar.
        *tensors: one for each operand, `(..., *axes)`. Leading axes broadcast.

    Returns:
        `(..., *output axes)`, in the operands' dtype.

    Raises:
        ValueError: the spec is malformed, the number of tensors is wrong, or dtypes differ.
        ShapeError: an operand has too few axes, or two operands disagree about the size of an axis.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 4.1.4, Eq. (12).

    Example:
        >>> contract("TN, SN -> TS", torch.ones(2, 3), torch.ones(4, 3))
        tensor([[3., 3., 3., 3.],
                [3., 3., 3., 3.]])
    """
    terms, output = parse_spec("contract", spec)
    _check_operands("contract", terms, tensors)
    inputs = ",".join(f"...{term}" for term in terms)
    return torch.einsum(f"{inputs}->...{output}", *tensors)


@dataclass(frozen=True)
class Step:
    """One contraction of two operands.

    Attributes:
        spec: what `contract` needs to do it, such as "TN, SN -> TS".
        operands: names of the two factors; an earlier result is named by its factors, as in "(QK)".
        result: name of the result.
        macs: multiply-accumulates: the product of the sizes of all axes of the two factors; less for a product by a
            structured matrix, see `orders`.
        flops: 2 · macs where an axis is summed, else macs (nothing is added).
        output_elements: entries that the step writes.
    """

    spec: str
    operands: tuple[str, str]
    result: str
    macs: int
    flops: int
    output_elements: int


@dataclass(frozen=True, repr=False)
class Order(Table):
    """One way to contract operands, two at a time; prints as a table of its steps.

    Attributes:
        spec: the whole contraction.
        operands: the operands' names, in the spec's order.
        steps: what is done first comes first.
    """

    spec: str
    operands: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """The operands in parentheses, such as "((QK)L)V"; see `orders`."""
        return self.steps[-1].result

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all steps."""
        return sum(step.macs for step in self.steps)

    @property
    def flops(self) -> int:
        """Floating point operations of all steps."""
        return sum(step.flops for step in self.steps)

    @property
    def peak_elements(self) -> int:
        """Entries of the largest intermediate that a step writes; the final result does not count."""
        return max((step.output_elements for step in self.steps[:-1]), default=0)

    def run(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Contract tensors in this order, exactly two at a time.

        Args:
            *tensors: one for each operand, `(..., *axes)`, of any sizes that agree. Leading axes broadcast.

        Returns:
            What `contract(spec, *tensors)` returns, up to rounding.

        Raises:
            ValueError: the number of tensors is wrong, or dtypes differ.
            ShapeError: an operand has too few axes, or two operands disagree about the size of an axis.

        Cost: `flops` and `peak_elements` for the sizes given to `orders`, times the number of leading entries.
        """
        _check_operands("Order.run", parse_spec("Order.run", self.spec)[0], tensors)
        values = dict(zip(self.operands, tensors, strict=True))
        for step in self.steps:
            # pop: an intermediate is freed as soon as it has been used (without gradients)
            left, right = (values.pop(name) for name in step.operands)
            values[step.result] = contract(step.spec, left, right)
        return values[self.name]

    def _rows(self):
        rows = [("result", "step", "MACs", "flops", "elements")]
        for step in self.steps:
            rows.append((step.result, step.spec, f"{step.macs:,}", f"{step.flops:,}", f"{step.output_elements:,}"))
        return rows


class Orders(Table, list[Order]):
    """A list of orders, cheapest first as `orders` returns it, that prints as a table; so does a slice of it."""

    def named(self, name: str) -> Order:
        """The order of this name.

        Raises:
            ValueError: no order has the name; the message lists those there are.
        """
        check_type("Orders.named", "name", name, str)
        for order in self:
            if order.name == name:
                return order
        raise ValueError(f"Orders.named: expected one of {', '.join(order.name for order in self)}, got {name!r}")

    def __getitem__(self, index):
        selected = super().__getitem__(index)
        return Orders(selected) if isinstance(index, slice) else selected

    def _rows(self):
        rows = [("order", "steps", "MACs", "flops", "peak elements")]
        for order in self:
            steps = "; ".join(step.spec for step in order.steps)
            rows.append((order.name, steps, f"{order.macs:,}", f"{order.flops:,}", f"{order.peak_elements:,}"))
        return rows


def orders(
    spec: str, sizes: Mapping[str, int], names: Sequence[str] | None = None, structured: Collection[str] = ()
) -> Orders:
    """All orders in which n operands can be contracted two at a time: (2n−3)!! of them, 15 for masked attention.

    An axis is summed as soon as neither the output nor an operand not yet used has it. A name lists the two factors of
    each step in parentheses, the deeper tree first, and of two equally deep ones that with the earlier operand:
    "((QK)L)V", "((KV)L)Q", "(QK)(VL)". An intermediate's axes are sorted by how many terms of the spec have them,
    output included, the most first; ties in the order in which the output, then the operands, name them.

    Args:
        spec: the contraction, as in `contract`, of 2 to 7 operands.
        sizes: the size of each axis letter. Further letters are ignored.
        names: the operands' names; by default the spec's terms ("1" for a scalar), repeated ones numbered by operand.
        structured: names of operands that are structured matrices: they multiply a tensor along one of their two axes
            in time linear in the tensor, as a running sum does for the causal mask. A step that is such a product (the
            one axis shared with the partner is summed, the other stays) costs as many macs, and as many flops, as the
            partner or the result has entries, whichever has more. Other steps cost the same as without structure.

    Returns:
        The orders, sorted by macs, then by name.

    Raises:
        ValueError: the spec is malformed or has too few or too many operands, an axis has no size or one below 1,
            names are not distinct words, or a structured operand is unknown or no matrix.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 4.2.1, Eq. (13) and (15); Definition 4.2 for structure.

    Example:
        >>> orders("TS, SU, UP -> TP", dict(T=4, S=4, U=4, P=1), names="ABx")
        order  steps                           MACs  flops  peak elements
        (Bx)A  SU, UP -> PS; PS, TS -> TP        32     64              4
        (AB)x  TS, SU -> TU; TU, UP -> TP        80    160             16
        (Ax)B  TS, UP -> TPSU; TPSU, SU -> TP   128    192             64
    """
    terms, output = parse_spec("orders", spec)
    if not 2 <= len(terms) <= MAX_OPERANDS:
        raise ValueError(f"orders: spec {spec!r}, expected 2 to {MAX_OPERANDS} operands, got {len(terms)}")
    _check_sizes(terms, sizes)
    check_type("orders", "structured", structured, Sequence, Set)  # no tensor, which is a Collection too
    if names is not None:
        check_type("orders", "names", names, Sequence)
    names = _default_names(terms) if names is None else tuple(names)
    _check_names(terms, names, structured)
    planner = _Planner(terms, output, sizes, names, frozenset(structured))
    trees = planner.trees(tuple(range(len(terms))))
    found = [Order(spec, names, tree.steps) for tree in trees]
    return Orders(sorted(found, key=lambda order: (order.macs, order.name)))


class _Tree(NamedTuple):
    """A contraction tree over some operands, which are numbered: its name and axes, and the steps that compute it."""

    name: str
    axes: str
    operands: tuple[int, ...]
    depth: int
    steps: tuple[Step, ...]


class _Planner(NamedTuple):
    """Builds all trees of one contraction."""

    terms: tuple[str, ...]
    output: str
    sizes: Mapping[str, int]
    names: tuple[str, ...]
    structured: frozenset[str]

    def trees(self, operands: tuple[int, ...]) -> list[_Tree]:
        """All trees over the operands, each once: for every split in two, a tree over each part, joined."""
        if len(operands) == 1:
            (only,) = operands
            return [_Tree(self.names[only], self.terms[only], operands, 0, ())]
        joined = []
        for part, rest in _splits(operands):
            pairs = product(self.trees(part), self.trees(rest))
            joined += [self.join(a, b) for a, b in pairs]
        return joined

    def join(self, a: _Tree, b: _Tree) -> _Tree:
        """The tree that contracts the results of two trees."""
        a, b = sorted((a, b), key=lambda tree: (-tree.depth, tree.operands))
        operands = tuple(sorted(a.operands + b.operands))
        between = "·" if max(map(len, self.names)) > 1 else ""
        if len(operands) == len(self.terms):
            axes = self.output
            name = f"{a.name}{between}{b.name}"
        else:
            axes = self.kept(a, b, operands)
            name = f"({a.name}{between}{b.name})"
        macs, flops = self.cost(a, b, axes)
        spec = " ".join(f"{a.axes}, {b.axes} -> {axes}".split())  # one space, also where a scalar has no axes
        step = Step(spec, (a.name, b.name), name, macs, flops, self.elements(axes))
        return _Tree(name, axes, operands, a.depth + 1, (*a.steps, *b.steps, step))

    def kept(self, a: _Tree, b: _Tree, operands: tuple[int, ...]) -> str:
        """The axes that the output or an operand outside still needs, those of most terms first."""
        outside = [term for i, term in enumerate(self.terms) if i not in operands]
        axes = {*a.axes, *b.axes} & {*self.output, *"".join(outside)}
        letters = self.output + "".join(self.terms)
        return "".join(sorted(axes, key=lambda axis: (-letters.count(axis), letters.index(axis))))

    def cost(self, a: _Tree, b: _Tree, axes: str) -> tuple[int, int]:
        """The macs and flops of the step that makes a result with these axes of two trees."""
        fast = [
            max(self.elements(partner.axes), self.elements(axes))
            for matrix, partner in ((a, b), (b, a))
            if self.multiplies(matrix, partner, axes)
        ]
        if fast:
            return min(fast), min(fast)
        joint = {*a.axes, *b.axes}
        macs = self.elements(joint)
        summed = joint - {*axes}
        return macs, 2 * macs if summed else macs

    def multiplies(self, matrix: _Tree, partner: _Tree, axes: str) -> bool:
        """Whether it is a product by a structured matrix: the one axis shared is summed, and its other one stays."""
        shared = {*matrix.axes} & {*partner.axes}
        summed = {*matrix.axes} - {*axes}
        return matrix.name in self.structured and len(shared) == 1 and shared == summed

    def elements(self, axes: Iterable[str]) -> int:
        """The number of entries of a tensor with these axes."""
        return math.prod(self.sizes[axis] for axis in axes)


def _splits(operands: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All splits into two non-empty parts; the first operand's part comes first, so that none comes twice."""
    first, *rest = operands
    for count in range(len(rest)):
        for chosen in combinations(rest, count):
            yield (first, *chosen), tuple(i for i in rest if i not in chosen)


def parse_spec(function: str, spec: str) -> tuple[tuple[str, ...], str]:
    """The axes of a well-formed spec, such as (("TN", "SN"), "TS") for "TN, SN -> TS".

    Args:
        function: name that opens the message of an error.
        spec: the contraction, as in `contract`.

    Returns:
        The operands' axes and the output's.

    Raises:
        TypeError: the spec is not a string.
        ValueError: no arrow, a character that is not a letter, an axis twice in a term, an output axis without operand.
    """
    check_type("parse_spec", "function", function, str)
    check_type(function, "spec", spec, str)
    inputs, arrow, output = "".join(spec.split()).partition("->")
    start = f"{function}: spec {spec!r}"
    if not arrow:
        raise ValueError(f"{start}, expected '->' between operands and output, got none")
    strange = sorted(set(inputs) - set(ascii_letters + ",") | set(output) - set(ascii_letters))
    if strange:
        raise ValueError(f"{start}, expected letters, commas between operands and one '->', got {' '.join(strange)}")
    terms = tuple(inputs.split(","))
    places = [*_labels(terms), "the output"]
    for place, term in zip(places, [*terms, output], strict=True):
        if len(set(term)) < len(term):
            axis = next(axis for axis in term if term.count(axis) > 1)
            raise ValueError(f"{start}, expected each axis once in {place}, got '{axis}' {term.count(axis)} times")
    for axis in output:
        if axis not in inputs:
            raise ValueError(f"{start}, output axis '{axis}' belongs to no operand")
    return terms, output


def _check_operands(function: str, terms: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Check tensors against their terms."""
    if len(tensors) != len(terms):
        raise ValueError(f"{function}: expected {len(terms)} tensors ({', '.join(terms)}), got {len(tensors)}")
    labels = _labels(terms)
    check_dtypes(function, dict(zip(labels, tensors, strict=True)))
    check_shapes(function, dict(zip(labels, zip(tensors, terms, strict=True), strict=True)))


def _labels(terms: Sequence[str]) -> list[str]:
    """What messages call the operands."""
    return [f"operand {i} ({term})" for i, term in enumerate(terms, 1)]


def _check_sizes(terms: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Check that every axis has a size."""
    check_type("orders", "sizes", sizes, Mapping)
    for axis in "".join(terms):
        if axis not in sizes:
            raise ValueError(f"orders: sizes, expected a size for axis '{axis}', got {', '.join(sizes) or 'none'}")
        if isinstance(sizes[axis], bool) or not isinstance(sizes[axis], int) or sizes[axis] < 1:
            got = brief(sizes[axis])
            raise ValueError(f"orders: size of axis '{axis}', expected an int of at least 1, got {got}")


def _default_names(terms: Sequence[str]) -> tuple[str, ...]:
    """The terms, made distinct."""
    named = [term or "1" for term in terms]
    return tuple(f"{name}{i}" if named.count(name) > 1 else name for i, name in enumerate(named, 1))


def _check_names(terms: Sequence[str], names: Sequence[str], structured: Collection[str]) -> None:
    """Check that names are usable and that structured operands are matrices."""
    if len(names) != len(terms):
        raise ValueError(f"orders: names, expected {len(terms)}, got {len(names)}")
    words = all(isinstance(name, str) and re.fullmatch(r"\w+", name) for name in names)
    if not words or len(set(names)) < len(names):
        raise ValueError(f"orders: names, expected distinct words, got {', '.join(map(brief, names))}")
    for name in structured:
        if name not in names:
            raise ValueError(f"orders: structured, expected some of {', '.join(names)}, got {name!r}")
        if len(term := terms[names.index(name)]) != 2:
            raise ValueError(f"orders: structured operand {name}, expected a matrix of two axes, got axes '{term}'")
