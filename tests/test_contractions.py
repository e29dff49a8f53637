import doctest
import math
import re
from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalearn import ShapeError, contractions
from smalearn.contractions import Order, Orders, Step, contract, orders
from smalearn.testing import assert_close, random_tensors

MASKED = "TN, SN, SP, TS -> TP"
SIZES = {"T": 4, "S": 3, "N": 2, "P": 5}
SPECS = [
    MASKED,
    "TS -> ST",
    "TS -> T",
    "TS ->",
    "TN, SN -> TS",
    "TS, TS -> TS",
    "T, S -> ST",
    "TN, SP -> P",
    "T, T ->",
    ", TS -> TS",
    "tn,sn,sp->tp",
    "TN, N, NP, P, T -> T",
]


def split(spec):
    """The terms of a well-formed spec, the slow obvious way."""
    left, right = spec.replace(" ", "").split("->")
    return left.split(","), right


def drawn(spec, sizes=None, seed=0, grad=False):
    sizes = SIZES | {axis.lower(): size for axis, size in SIZES.items()} if sizes is None else sizes
    return random_tensors([tuple(sizes[axis] for axis in term) for term in split(spec)[0]], seed=seed, grad=grad)


def looped(spec, tensors):
    """The definition: for every choice of every index, multiply and add."""
    terms, output = split(spec)
    sizes = {
        axis: size for term, x in zip(terms, tensors, strict=True) for axis, size in zip(term, x.shape, strict=True)
    }
    result = torch.zeros([sizes[axis] for axis in output], dtype=torch.float64)
    for choice in product(*map(range, sizes.values())):
        index = dict(zip(sizes, choice, strict=True))
        entries = [x[tuple(index[axis] for axis in term)] for term, x in zip(terms, tensors, strict=True)]
        result[tuple(index[axis] for axis in output)] += math.prod(entry.item() for entry in entries)
    return result


@st.composite
def networks(draw, largest=4):
    """A random contraction of 2 to 5 operands with sizes for its axes."""
    letters = "ABCDE"
    terms = draw(st.lists(st.lists(st.sampled_from(letters), max_size=3, unique=True), min_size=2, max_size=5))
    used = sorted({axis for term in terms for axis in term})
    output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    sizes = {axis: draw(st.integers(1, largest)) for axis in used}
    return ", ".join("".join(term) for term in terms) + " -> " + "".join(output), sizes


# ------------------------------------------------------------------------------------------------ the definition


@pytest.mark.parametrize("spec", SPECS)
def test_contract_is_the_sum_over_all_indices(spec):
    tensors = drawn(spec)
    assert_close(contract(spec, *tensors), looped(spec, tensors))


def test_leading_axes_broadcast():
    shapes = [(7, 1, 4, 2), (6, 3, 2), (1, 3, 5), (4, 3)]
    Q, K, V, L = random_tensors(shapes)
    result = contract(MASKED, Q, K, V, L)
    assert result.shape == (7, 6, 4, 5)
    for b, h in product(range(7), range(6)):
        assert_close(result[b, h], looped(MASKED, [Q[b, 0], K[h], V[0], L]))


def test_spaces_are_free_and_case_separates_axes():
    a, b = random_tensors([(2, 3), (3, 2)])
    assert_close(contract("Tt,tS->TS", a, b), a @ b)
    assert_close(contract("  T t, tS->\tT S ", a, b), a @ b)


def test_empty_axes():
    a, b = random_tensors([(2, 0), (0, 3)])
    assert torch.equal(contract("TN, NS -> TS", a, b), torch.zeros(2, 3, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("TN, SN", "contract: spec 'TN, SN', expected '->' between operands and output, got none"),
        ("TN, SN -> TSX", "output axis 'X' belongs to no operand"),
        ("TN, SN -> TST", "expected each axis once in the output, got 'T' 2 times"),
        ("TT, SN -> S", "expected each axis once in operand 1 (TT), got 'T' 2 times"),
        ("T1, S? -> TS", "expected letters, commas between operands and one '->', got 1 ?"),
        ("...T, S -> TS", "one '->', got ."),
        ("TN, SN -> TS -> T", "one '->', got - >"),
        ("TN, SN -> T,S", "one '->', got ,"),
        ("TÄ, S -> TS", "one '->', got Ä"),
    ],
)
def test_malformed_specs(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        contract(spec, *random_tensors([(2, 3), (4, 3)]))
    with pytest.raises(ValueError, match=re.escape(message.replace("contract:", "orders:"))):
        orders(spec, dict.fromkeys("TSNPX", 2))


def test_operands_are_checked():
    Q, K, V, L = drawn(MASKED)
    bound = orders(MASKED, SIZES)[0].run
    for run, start in [(lambda *tensors: contract(MASKED, *tensors), "contract"), (bound, "Order.run")]:
        with pytest.raises(ValueError, match=rf"{start}: expected 4 tensors \(TN, SN, SP, TS\), got 3"):
            run(Q, K, V)
        with pytest.raises(ValueError, match=f"{start}: expected 4 tensors .*, got 5"):
            run(Q, K, V, L, L)
        with pytest.raises(
            ShapeError, match=rf"{start}: operand 2 \(SN\) needs trailing axes \(S, N\), got shape \(2,"
        ):
            run(Q, K[0], V, L)
        message = rf"{start}: axis 'S' is 3 in operand 2 \(SN\) but 2 in operand 3 \(SP\)"
        with pytest.raises(ShapeError, match=message):
            run(Q, K, V[:2], L)
        message = rf"{start}: leading axes \(3,\) of operand 2 \(SN\) do not broadcast with \(2,\) before it"
        with pytest.raises(ShapeError, match=message):
            run(Q.expand(2, 4, 2), K.expand(3, 3, 2), V, L)
        message = rf"{start}: operand 3 \(SP\) is torch.float32 but operand 1 \(TN\) is torch.float64"
        with pytest.raises(ValueError, match=message):
            run(Q, K, V.float(), L)
        with pytest.raises(TypeError, match=rf"{start}: operand 4 \(TS\) must be a torch.Tensor, got list"):
            run(Q, K, V, L.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": {"T": 2, "S": 2}}, "orders: sizes, expected a size for axis 'N', got T, S"),
        ({"sizes": {}}, "orders: sizes, expected a size for axis 'T', got none"),
        ({"sizes": SIZES | {"P": 0}}, "orders: size of axis 'P', expected an int of at least 1, got 0"),
        ({"sizes": SIZES | {"S": 2.0}}, "orders: size of axis 'S', expected an int of at least 1, got 2.0"),
        ({"names": "QKV"}, "orders: names, expected 4, got 3"),
        ({"names": "QKVK"}, "orders: names, expected distinct words, got 'Q', 'K', 'V', 'K'"),
        ({"names": ["Q", "K", "V", "(L)"]}, "orders: names, expected distinct words, got 'Q', 'K', 'V', '(L)'"),
        ({"names": ["Q", "K", "V", ""]}, "orders: names, expected distinct words"),
        ({"names": "QKVL", "structured": ["M"]}, "orders: structured, expected some of Q, K, V, L, got 'M'"),
        ({"spec": "TN, SN, SP, bTS -> TP", "structured": ["bTS"]}, "bTS, expected a matrix of two axes, got axes"),
        ({"spec": "TN -> T"}, "orders: spec 'TN -> T', expected 2 to 7 operands, got 1"),
        ({"spec": "T, T, T, T, T, T, T, T -> T"}, "expected 2 to 7 operands, got 8"),
    ],
)
def test_orders_checks_its_arguments(arguments, message):
    defaults = {"spec": MASKED, "sizes": SIZES | {"b": 2}}
    with pytest.raises(ValueError, match=re.escape(message)):
        orders(**defaults | arguments)


def test_named_finds_an_order_or_lists_them():
    paths = orders("TN, SN, SP -> TP", SIZES, names="QKV")
    assert paths.named("(KV)Q").name == "(KV)Q"
    with pytest.raises(ValueError, match=re.escape("Orders.named: expected one of (KV)Q, (QK)V, (QV)K, got 'QKV'")):
        paths.named("QKV")


# ------------------------------------------------------------------------------------------------ all orders


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


@given(*[st.integers(1, 300)] * 4)
def test_the_two_modes_in_formulas(T, S, N, P):
    paths = orders(MASKED, {"T": T, "S": S, "N": N, "P": P}, names="QKVL", structured="L")
    quadratic, linear = paths.named("((QK)L)V"), paths.named("((KV)L)Q")
    assert quadratic.steps == (
        Step("TN, SN -> TS", ("Q", "K"), "(QK)", T * S * N, 2 * T * S * N, T * S),
        Step("TS, TS -> TS", ("(QK)", "L"), "((QK)L)", T * S, T * S, T * S),
        Step("TS, SP -> TP", ("((QK)L)", "V"), "((QK)L)V", T * S * P, 2 * T * S * P, T * P),
    )
    assert (quadratic.macs, quadratic.peak_elements) == (T * S * (N + P + 1), T * S)
    additions = max(T, S) * N * P
    assert linear.steps == (
        Step("SN, SP -> SPN", ("K", "V"), "(KV)", S * N * P, S * N * P, S * N * P),
        Step("SPN, TS -> TPN", ("(KV)", "L"), "((KV)L)", additions, additions, T * N * P),
        Step("TPN, TN -> TP", ("((KV)L)", "Q"), "((KV)L)Q", T * N * P, 2 * T * N * P, T * P),
    )
    assert linear.peak_elements == max(S, T) * N * P
    if T == S:
        assert linear.macs == 3 * T * N * P
        assert (linear.macs < quadratic.macs) == (3 * N * P < T * (N + P + 1))


@given(st.integers(64, 400), st.integers(1, 12), st.integers(1, 12))
@pytest.mark.full
def test_a_dense_mask_hardly_ever_favours_the_linear_order(T, N, P):
    paths = orders(MASKED, {"T": T, "S": T, "N": N, "P": P}, names="QKVL")
    if paths.named("((KV)L)Q").macs < paths.named("((QK)L)V").macs:
        assert (N - 1) * (P - 1) < 2


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


def test_structure_of_a_mask_pays_in_the_linear_order_alone():
    sizes = {"T": 128, "S": 128, "N": 16, "P": 16}
    dense, fast = (orders(MASKED, sizes, names="QKVL", structured=chosen) for chosen in ("", "L"))
    assert fast[0].name == "((KV)L)Q"
    assert {o.name for o in fast if o.macs != dense.named(o.name).macs} == {"((KV)L)Q"}
    assert all(o.peak_elements == dense.named(o.name).peak_elements for o in fast)


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


# ------------------------------------------------------------------------------------------------ running


def gradients(result, tensors):
    weights = torch.arange(1, result.numel() + 1, dtype=torch.float64).reshape(result.shape)
    return torch.autograd.grad((result * weights).sum(), tensors)


def assert_all_orders_agree(spec, sizes, tensors):
    result = contract(spec, *tensors)
    expected = gradients(result, tensors)
    for order in orders(spec, sizes):
        actual = order.run(*tensors)
        assert_close(actual, result)
        for ours, theirs in zip(gradients(actual, tensors), expected, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("leading", [[()] * 4, [(2,)] * 4, [(2, 1), (4,), (1, 1), ()]])
def test_every_order_of_masked_attention_gives_one_result(leading):
    shapes = [(*lead, *(SIZES[axis] for axis in term)) for lead, term in zip(leading, split(MASKED)[0], strict=True)]
    assert_all_orders_agree(MASKED, SIZES, random_tensors(shapes, grad=True))


@given(networks())
def test_every_order_of_any_contraction_gives_one_result(network):
    assert_all_orders_agree(*network, drawn(*network, grad=True))


def test_run_takes_other_sizes_than_were_priced():
    order = orders(MASKED, dict.fromkeys("TSNP", 1), names="QKVL").named("((KV)L)Q")
    assert_close(order.run(*drawn(MASKED)), contract(MASKED, *drawn(MASKED)))


def test_run_gradcheck():
    for name in ("((QK)L)V", "((KV)L)Q"):
        order = orders(MASKED, SIZES, names="QKVL").named(name)
        assert torch.autograd.gradcheck(order.run, drawn(MASKED, grad=True))


def test_run_contracts_two_at_a_time_what_its_steps_say(monkeypatch):
    calls = []
    einsum = torch.einsum

    def recorded(equation, *tensors):
        result = einsum(equation, *tensors)
        calls.append((equation, len(tensors), result.numel()))
        return result

    monkeypatch.setattr(torch, "einsum", recorded)
    order = orders(MASKED, SIZES, names="QKVL").named("((KV)L)Q")
    order.run(*drawn(MASKED))
    assert [count for _, count, _ in calls] == [2, 2, 2]
    assert [size for *_, size in calls] == [step.output_elements for step in order.steps]
    assert [equation for equation, *_ in calls] == [
        "...SN,...SP->...SPN",
        "...SPN,...TS->...TPN",
        "...TPN,...TN->...TP",
    ]


# ------------------------------------------------------------------------------------------------ names and tables


def test_names_put_the_deeper_tree_first_then_the_earlier_operand():
    paths = orders(MASKED, SIZES, names="QKVL")
    assert {order.name for order in paths} == {
        *("((QK)V)L", "((QK)L)V", "((QV)K)L", "((QV)L)K", "((QL)K)V", "((QL)V)K"),
        *("((KV)Q)L", "((KV)L)Q", "((KL)Q)V", "((KL)V)Q", "((VL)Q)K", "((VL)K)Q"),
        *("(QK)(VL)", "(QV)(KL)", "(QL)(KV)"),
    }
    chain = orders("AB, BC, CD, DE, EF -> AF", dict.fromkeys("ABCDEF", 2), names="vwxyz")
    assert {"((xy)z)(vw)", "((vw)x)(yz)", "((vw)(xy))z", "(((xy)z)w)v"} <= {order.name for order in chain}
    assert "((TN·SN)·TS)·SP" in {order.name for order in orders(MASKED, SIZES)}
    assert "((Q·K)·mask)·V" in {order.name for order in orders(MASKED, SIZES, names=["Q", "K", "V", "mask"])}
    assert {order.name for order in orders("T, T, , ->", {"T": 2})} >= {"((T1·T2)·13)·14", "(T1·T2)·(13·14)"}
    assert orders("S, -> S", {"S": 2})[0].name == "S1"


def test_steps_follow_the_name():
    steps = orders(MASKED, SIZES, names="QKVL").named("(QK)(VL)").steps
    assert [step.result for step in steps] == ["(QK)", "(VL)", "(QK)(VL)"]


def test_axes_of_intermediates_are_the_papers():
    steps = {step.spec for order in orders(MASKED, SIZES) for step in order.steps}
    assert steps >= {"TN, SN -> TS", "SN, SP -> SPN", "SPN, TS -> TPN", "SP, TS -> TSP", "TN, SP -> TSPN"}
    assert all(order.steps[-1].spec.endswith("-> PT") for order in orders("TN, SN, SP, TS -> PT", SIZES))


def test_a_step_is_a_contraction_of_its_own():
    for order in orders("T, T, S -> S", {"T": 3, "S": 2}):
        for step in order.steps:
            tensors = drawn(step.spec, {"T": 3, "S": 2})
            assert contract(step.spec, *tensors).numel() == step.output_elements
    assert {step.spec for step in orders("T, T, S ->", {"T": 3, "S": 2}).named("(T1·T2)·S").steps} == {
        "T, T ->",
        ", S ->",
    }


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
    assert paths._repr_html_().split("\n") == [
        '<div style="overflow-x: auto">',
        "<table>",
        "<thead>",
        f"<tr><th {left}>order</th><th {left}>steps</th><th {right}>MACs</th><th {right}>flops</th>"
        f"<th {right}>peak elements</th></tr>",
        "</thead>",
        "<tbody>",
        f"<tr><td {left}>QK</td><td {left}>TN, SN -&gt; TS</td><td {right}>6,000</td><td {right}>12,000</td>"
        f"<td {right}>0</td></tr>",
        "</tbody>",
        "</table>",
        "</div>",
    ]
    assert f"<td {left}>QK</td><td {left}>TN, SN -&gt; TS</td><td {right}>6,000</td>" in paths[0]._repr_html_()


def test_a_slice_is_a_table_too():
    paths = orders(MASKED, SIZES, names="QKVL")
    assert isinstance(paths, list)
    assert isinstance(paths[0], Order)
    assert type(paths[:2]) is Orders
    assert repr(paths[:2]).count("\n") == 2


def test_orders_are_values():
    first, second = (orders(MASKED, SIZES, names="QKVL")[0] for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(AttributeError):
        first.steps = ()


def test_examples_in_docstrings():
    assert doctest.testmod(contractions).attempted == 2
    assert doctest.testmod(contractions).failed == 0
