"""Orders of a contraction: that all are there, what they cost, how they are called and shown."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from test_contractions import MASKED, SIZES, drawn, networks, split

from smalearn.contractions import Order, Orders, contract, orders


def sequences(spec, sizes):
    """Every sequence of pairwise contractions by recursion, as (tree, macs, flops, peak); trees are nested sets."""
    terms, output = split(spec)

    def descend(items, macs, flops, peak):
        if len(items) == 1:
            yield items[0][0], macs, flops, peak
            return
        for i, j in combinations(range(len(items)), 2):
            rest = [item for k, item in enumerate(items) if k not in (i, j)]
            both = items[i][1] | items[j][1]
            kept = both & set(output).union(*(axes for _, axes in rest))
            count = math.prod(sizes[axis] for axis in both)
            size = math.prod(sizes[axis] for axis in kept) if rest else 0
            merged = (frozenset({items[i][0], items[j][0]}), kept)
            doubled = count if kept == both else 2 * count
            yield from descend([*rest, merged], macs + count, flops + doubled, max(peak, size))

    yield from descend([(i, set(term)) for i, term in enumerate(terms)], 0, 0, 0)


def tree(order):
    """An order's contraction tree as nested sets of operand numbers, read off its steps."""
    trees = {name: i for i, name in enumerate(order.operands)}
    for step in order.steps:
        trees[step.result] = frozenset(trees.pop(name) for name in step.operands)
    (whole,) = trees.values()
    return whole


@pytest.mark.parametrize(("count", "trees"), [(2, 1), (3, 3), (4, 15), (5, 105), (6, 945)])
def test_number_of_orders(count, trees):
    terms = [f"{a}{b}" for a, b in zip("ABCDEF", "BCDEFG", strict=True)][:count]
    paths = orders(f"{','.join(terms)} -> A", dict.fromkeys("ABCDEFG", 2))
    assert len(paths) == len({tree(order) for order in paths}) == len({order.name for order in paths}) == trees


@given(networks(largest=50))
def test_costs_agree_with_recursion_over_all_sequences(network):
    spec, sizes = network
    expected = {tree: tuple(costs) for tree, *costs in sequences(spec, sizes)}
    paths = orders(spec, sizes)
    assert {tree(order): (order.macs, order.flops, order.peak_elements) for order in paths} == expected
    assert paths[0].macs == min(macs for macs, _, _ in expected.values())
    assert [(order.macs, order.name) for order in paths] == sorted((order.macs, order.name) for order in paths)


# ------------------------------------------------------------------------------------------------ structured operands


@pytest.mark.parametrize(
    ("spec", "structured", "cost"),
    [
        ("TS, SP -> TP", "A", (14, 14)),  # S·P = 14 entries in, T·P = 6 out
        ("ST, SP -> TP", "A", (14, 14)),
        ("TS, TP -> SP", "A", (14, 14)),
        ("SP, TS -> TP", "B", (14, 14)),
        ("TS, S -> T", "A", (7, 7)),
        ("TS, SP -> T", "A", (14, 14)),  # the partner may lose axes of its own as well
        ("TS, SP -> TP", "", (42, 84)),
        ("TS, SP -> TP", "B", (21, 21)),  # the other way round the matrix meets T·S = 21 entries
        ("TS, SP -> TP", "AB", (14, 14)),  # two structured matrices: the cheaper way
        ("TS, TS -> TS", "A", (21, 21)),  # elementwise
        ("TS, SP -> TSP", "A", (42, 42)),  # nothing is summed
        ("TS, SP -> P", "A", (42, 84)),  # both of its axes are summed
        ("TS, TSP -> P", "A", (42, 84)),
        ("TS, TSP -> TP", "A", (42, 84)),  # the partner has both axes: another matrix for each t
        ("TS, P -> TP", "A", (42, 84)),  # the partner lacks the summed axis
    ],
)
def test_structured_products_cost_a_pass_over_the_tensor(spec, structured, cost):
    (order,) = orders(spec, {"T": 3, "S": 7, "P": 2}, names="AB", structured=structured)
    assert (order.macs, order.flops) == cost


# ------------------------------------------------------------------------------------------------ a peer


def cheapest_by_opt_einsum(spec, sizes):
    peer = pytest.importorskip("opt_einsum")
    shapes = [tuple(sizes[axis] for axis in term) for term in split(spec)[0]]
    _, info = peer.contract_path(spec.replace(" ", ""), *shapes, shapes=True, optimize="optimal")
    return info.opt_cost


@given(networks(largest=300))
def test_never_above_the_optimal_path_of_opt_einsum(network):
    assert min(order.flops for order in orders(*network)) <= cheapest_by_opt_einsum(*network)


def test_below_the_optimal_path_of_opt_einsum():
    # Its search remembers a pair's cost by the axes of the two factors alone. (QK)L has the axes of L, so its product
    # with V is charged as L with V, while S is still needed: half the true price. It returns the quadratic order.
    T, N = 300, 2
    sizes = {"T": T, "S": T, "N": N, "P": N}
    paths = orders(MASKED, sizes, names="QKVL")
    quadratic, linear = paths.named("((QK)L)V"), paths.named("((KV)L)Q")
    assert cheapest_by_opt_einsum(MASKED, sizes) == quadratic.flops == 9 * T * T == 810_000
    assert paths[0] == linear
    assert linear.flops == 8 * T * T + 12 * T == 723_600


# ------------------------------------------------------------------------------------------------ names and tables


def test_names_put_the_deeper_tree_first_then_the_earlier_operand():
    paths = orders(MASKED, SIZES, names="QKVL")
    assert {order.name for order in paths} == {
        *("((QK)V)L", "((QK)L)V", "((QV)K)L", "((QV)L)K", "((QL)K)V", "((QL)V)K"),
        *("((KV)Q)L", "((KV)L)Q", "((KL)Q)V", "((KL)V)Q", "((VL)Q)K", "((VL)K)Q"),
        *("(QK)(VL)", "(QV)(KL)", "(QL)(KV)"),
    }
    (both,) = (order for order in paths if order.name == "(QK)(VL)")
    assert [step.result for step in both.steps] == ["(QK)", "(VL)", "(QK)(VL)"]
    chain = orders("AB, BC, CD, DE, EF -> AF", dict.fromkeys("ABCDEF", 2), names="vwxyz")
    assert {"((xy)z)(vw)", "((vw)x)(yz)", "((vw)(xy))z", "(((xy)z)w)v"} <= {order.name for order in chain}
    assert "((TN·SN)·TS)·SP" in {order.name for order in orders(MASKED, SIZES)}
    assert "((Q·K)·mask)·V" in {order.name for order in orders(MASKED, SIZES, names=["Q", "K", "V", "mask"])}
    assert {order.name for order in orders("T, T, , ->", {"T": 2})} >= {"((T1·T2)·13)·14", "(T1·T2)·(13·14)"}
    assert orders("S, -> S", {"S": 2})[0].name == "S1"


def test_axes_of_intermediates_are_the_papers():
    steps = {step.spec for order in orders(MASKED, SIZES) for step in order.steps}
    assert steps >= {"TN, SN -> TS", "SN, SP -> SPN", "SPN, TS -> TPN", "SP, TS -> TSP", "TN, SP -> TSPN"}
    assert all(order.steps[-1].spec.endswith("-> PT") for order in orders("TN, SN, SP, TS -> PT", SIZES))


def test_a_step_is_a_contraction_of_its_own():
    for order in orders("T, T, S -> S", {"T": 3, "S": 2}):
        for step in order.steps:
            tensors = drawn(step.spec, {"T": 3, "S": 2})
            assert contract(step.spec, *tensors).numel() == step.output_elements
    (order,) = (one for one in orders("T, T, S ->", {"T": 3, "S": 2}) if one.name == "(T1·T2)·S")
    assert [step.spec for step in order.steps] == ["T, T ->", ", S ->"]


def test_text_table():
    paths = orders("TN, SN, SP -> TP", {"T": 128, "S": 128, "N": 16, "P": 16}, names="QKV")
    assert repr(paths).split("\n") == [
        "order  steps                                MACs       flops  peak elements",
        "(KV)Q  SN, SP -> PN; PN, TN -> TP         65,536     131,072            256",
        "(QK)V  TN, SN -> TS; TS, SP -> TP        524,288   1,048,576         16,384",
        "(QV)K  TN, SP -> TPNS; TPNS, SN -> TP  8,388,608  12,582,912      4,194,304",
    ]
    assert repr(paths[0]).split("\n") == [
        "result  step            MACs   flops  elements",
        "(KV)    SN, SP -> PN  32,768  65,536       256",
        "(KV)Q   PN, TN -> TP  32,768  65,536     2,048",
    ]


def test_html_table_has_no_colours():
    paths = orders("TN, SN -> TS", {"T": 1000, "S": 2, "N": 3}, names="QK")
    left, right = (f'style="text-align: {side}; white-space: nowrap"' for side in ("left", "right"))
    head = "".join(f"<th {left}>{word}</th>" for word in ("order", "steps"))
    head += "".join(f"<th {right}>{word}</th>" for word in ("MACs", "flops", "peak elements"))
    row = f"<td {left}>QK</td><td {left}>TN, SN -&gt; TS</td><td {right}>6,000</td><td {right}>12,000</td>"
    assert paths._repr_html_().split("\n") == [
        *('<div style="overflow-x: auto">', "<table>", "<thead>", f"<tr>{head}</tr>", "</thead>"),
        *("<tbody>", f"<tr>{row}<td {right}>0</td></tr>", "</tbody>", "</table>", "</div>"),
    ]
    assert f"<td {left}>QK</td><td {left}>TN, SN -&gt; TS</td><td {right}>6,000</td>" in paths[0]._repr_html_()


def test_a_slice_is_a_table_too_and_orders_are_values():
    paths, again = (orders(MASKED, SIZES, names="QKVL") for _ in range(2))
    assert isinstance(paths, list)
    assert (type(paths[:2]), type(paths[0])) == (Orders, Order)
    assert repr(paths[:2]).count("\n") == 2
    assert (paths[0], hash(paths[0])) == (again[0], hash(again[0]))
    with pytest.raises(AttributeError):
        paths[0].steps = ()
