import math
import re
from functools import partial
from itertools import product

import pytest
import torch
from comparing import same_function
from hypothesis import given
from hypothesis import strategies as st

from smalearn import ShapeError
from smalearn.contractions import contract, orders
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


Q, K, V, L = drawn(MASKED)


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


@pytest.mark.parametrize(
    ("operands", "error", "message"),
    [
        ([Q, K, V], ValueError, r"expected 4 tensors \(TN, SN, SP, TS\), got 3"),
        ([Q, K, V, L, L], ValueError, "expected 4 tensors .*, got 5"),
        ([Q, K[0], V, L], ShapeError, r"operand 2 \(SN\) needs trailing axes \(S, N\), got shape \(2,"),
        ([Q, K, V[:2], L], ShapeError, r"axis 'S' is 3 in operand 2 \(SN\) but 2 in operand 3 \(SP\)"),
        ([Q.expand(2, 4, 2), K.expand(3, 3, 2), V, L], ShapeError, r"leading axes \(3,\) of operand 2 \(SN\) do not"),
        ([Q, K, V.float(), L], ValueError, r"operand 3 \(SP\) is torch.float32 but operand 1 \(TN\) is torch.float64"),
        ([Q, K, V, L.tolist()], TypeError, r"operand 4 \(TS\) "),
    ],
)
def test_operands_are_checked(operands, error, message):
    for run, start in ((partial(contract, MASKED), "contract"), (orders(MASKED, SIZES)[0].run, "Order.run")):
        with pytest.raises(error, match=f"{start}: {message}"):
            run(*operands)


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


# ------------------------------------------------------------------------------------------------ running


def assert_all_orders_agree(spec, sizes, tensors):
    result = contract(spec, *tensors)
    for order in orders(spec, sizes):
        same_function(order.run(*tensors), result, tensors)


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
    spec = ["...SN,...SP->...SPN", "...SPN,...TS->...TPN", "...TPN,...TN->...TP"]
    assert [equation for equation, *_ in calls] == spec
