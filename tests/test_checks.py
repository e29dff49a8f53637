import math
import warnings
from itertools import combinations, product

import pytest
import torch

from smalearn import ShapeError
from smalearn._checks import (
    broadcast_shapes,
    check_count,
    check_counts,
    check_dtypes,
    check_eps,
    check_finite,
    check_number,
    check_pair,
    check_shapes,
    check_tensor,
    check_values,
    seeded,
)
from smalearn.testing import assert_close, pairwise, random_tensors, relative_rms


def test_sizes_are_returned_and_leading_axes_broadcast():
    Q, K = torch.zeros(2, 1, 5, 3), torch.zeros(4, 7, 3)
    assert check_shapes("f", {"Q": (Q, "tn"), "K": (K, "sn")}) == {"t": 5, "n": 3, "s": 7}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 3), (7, 2)), "f: axis 'n' is 3 in Q but 2 in K"),
        (((3,), (7, 3)), r"f: Q needs trailing axes \(T, N\), got shape \(3,\)"),
        (((2, 5, 3), (4, 7, 3)), r"f: leading axes \(4,\) of K do not broadcast with \(2,\) before it"),
    ],
)
def test_shape_errors(shapes, message):
    Q, K = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ShapeError, match=message):
        check_shapes("f", {"Q": (Q, "tn"), "K": (K, "sn")})


def test_one_letter_twice_in_an_operand_must_agree():
    with pytest.raises(ShapeError, match="f: axis 't' is 2 in L but 3 in L"):
        check_shapes("f", {"L": (torch.zeros(2, 3), "tt")})


def test_dtype_errors():
    single, double, meta = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")
    check_dtypes("f", {"Q": single, "K": single})
    with pytest.raises(ValueError, match=r"f: K is torch.float64 but Q is torch.float32"):
        check_dtypes("f", {"Q": single, "K": double})
    with pytest.raises(ValueError, match="f: K is on meta but Q is on cpu"):
        check_dtypes("f", {"Q": single, "K": meta})
    with pytest.raises(ValueError, match=r"f: Q must have a floating dtype, got torch.int64"):
        check_dtypes("f", {"Q": single.long()})
    with pytest.raises(TypeError, match=r"f: Q must be a torch.Tensor, got list"):
        check_dtypes("f", {"Q": [1.0]})
    check_dtypes("f", {"Q": single.to(torch.complex64)})
    with pytest.raises(ValueError, match=r"f: Q must be real, got torch.complex64"):
        check_dtypes("f", {"Q": single.to(torch.complex64)}, real=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of complex32 where it is made first
        torch.empty(1, dtype=torch.complex32)
    for dtype in (torch.float8_e4m3fn, torch.complex32):
        with pytest.raises(ValueError, match=f"f: Q must have a floating dtype, got {dtype}"):
            check_dtypes("f", {"Q": torch.empty(1, dtype=dtype)})


def test_values_and_finite_numbers():
    x = torch.ones(2)
    check_values("f", "x", x)
    check_finite("f", "x", x)
    check_finite("f", "x", x.to("meta"))
    with pytest.raises(ValueError, match=r"^f: x must have values, got a tensor on meta$"):
        check_values("f", "x", x.to("meta"))
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"^f: x must be finite, got infinite numbers or NaN$"):
            check_finite("f", "x", value * x)


def test_pairs():
    assert check_pair("f", "state", [1, 2], "keys", "values") == (1, 2)
    for value, got in (
        (3, "int"),
        ("ab", "str"),
        (torch.ones(2, 2), "Tensor"),
        ((1,), "tuple of 1"),
        ([], "list of 0"),
    ):
        with pytest.raises(TypeError, match=rf"^f: state must be a pair \(keys, values\), got {got}$"):
            check_pair("f", "state", value, "keys", "values")


@pytest.mark.parametrize("value", [None, 3, "Q", [1.0], torch.ones(2, 2).numpy()], ids=repr)
def test_what_is_no_tensor_is_named(value):
    name = type(value).__name__
    for check in (lambda: check_tensor("f", "Q", value), lambda: check_shapes("f", {"Q": (value, "tn")})):
        with pytest.raises(TypeError, match=f"^f: Q must be a torch.Tensor, got {name}$"):
            check()


def strange_tensors():
    dense = torch.ones(2, 2)
    jagged, nested = (
        torch.nested.nested_tensor([dense, dense[:1]], layout=layout) for layout in (torch.jagged, torch.strided)
    )
    compressed, quantised = dense.to_sparse_csr(), torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)
    return {
        "sparse_coo": dense.to_sparse(),
        "sparse_csr": compressed,
        "nested": nested,
        "nested ": jagged,
        "quantised": quantised,
        "_mkldnn": dense.to_mkldnn(),
    }


@pytest.mark.filterwarnings("ignore")  # that to make them is new, or deprecated
def test_sparse_nested_and_quantised_tensors_are_refused():
    for kind, tensor in strange_tensors().items():
        message = f"^f: Q must be an ordinary dense tensor, got a (torch.)?{kind.strip()} one$"
        with pytest.raises(ValueError, match=message):
            check_dtypes("f", {"Q": tensor})


def test_a_missing_axis_is_named_where_there_is_one_place_for_it():
    def message(**shapes):
        axes = {"X": "tp", "B": "tn", "C": "tn", "log_a": "t"}
        with pytest.raises(ShapeError, match="do not broadcast with") as caught:
            check_shapes("f", {name: (torch.zeros(shape), axes[name]) for name, shape in shapes.items()})
        return str(caught.value).partition("; ")[2]

    assert message(X=(2, 3, 5, 4), B=(2, 5, 6)) == "give B an axis of size 1: (2, 1, T, N)"
    assert message(B=(2, 5, 6), X=(2, 3, 5, 4)) == "give B an axis of size 1: (2, 1, T, N)"
    assert message(X=(2, 3, 4, 5, 4), log_a=(2, 4, 5)) == "give log_a an axis of size 1: (2, 1, 4, T)"
    assert message(X=(2, 3, 4, 5, 4), C=(2, 5, 6)) == "give C an axis of size 1: (2, 1, 1, T, N)"
    assert not message(X=(2, 3, 2, 5, 4), C=(4, 5, 6))  # fits nowhere
    assert not message(X=(2, 3, 2, 3, 5, 4), C=(2, 1, 1, 5, 6), B=(2, 5, 6), log_a=(4, 5))
    assert not message(X=(2, 5, 4), C=(3, 5, 6))  # no axis is missing


@pytest.mark.parametrize(
    "shapes",
    [(), ((),), ((2, 1), (3,)), ((0, 1), (1, 4)), ((2, 3), (2, 3), ()), ((5, 1, 1), (1, 4, 1), (3,)), ((1,), (0,))],
)
def test_shapes_broadcast_as_those_of_tensors(shapes):
    assert broadcast_shapes(*shapes) == tuple(torch.broadcast_shapes(*shapes))


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((2, 1), (3, 1)), ((0,), (2,)), ((4, 1), (5,), (4, 2))])
def test_shapes_that_do_not_broadcast(shapes):
    with pytest.raises(RuntimeError):
        torch.broadcast_shapes(*shapes)
    with pytest.raises(ValueError, match=r"broadcast_shapes: \(.* do not broadcast"):
        broadcast_shapes(*shapes)


def test_counts_numbers_and_seeds():
    assert check_count("f", "n", 3) == 3
    assert check_counts("f", "ranks", [2, 1]) == (2, 1)
    assert check_number("f", "base", 2) == 2
    assert seeded("f", -1).initial_seed() == torch.Generator().manual_seed(-1).initial_seed()
    for value, got in (
        (True, "True"),
        (0, "0"),
        (1.0, r"1\.0"),
        (torch.ones(99, 99), "Tensor"),
        ("a" * 99, "str"),
        (None, "NoneType"),
    ):
        with pytest.raises(ValueError, match=f"^f: n must be an integer ≥ 1, got {got}$"):
            check_count("f", "n", value)
    for value, got in ((3, "int"), ("32", "str"), (torch.ones(2), "Tensor"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"^f: ranks must be a list of integers, got {got}$"):
            check_counts("f", "ranks", value)
    with pytest.raises(ValueError, match=r"^f: ranks\[1\] must be an integer ≥ 1, got 0$"):
        check_counts("f", "ranks", [2, 0])
    for value, got in (
        (True, "bool"),
        ("1", "str"),
        (torch.tensor(1.0), "Tensor"),
        (1j, "complex"),
        (None, "NoneType"),
    ):
        with pytest.raises(TypeError, match=f"^f: base must be a number, got {got}$"):
            check_number("f", "base", value)
    with pytest.raises(ValueError, match=r"^f: n must be an integer below 2\^63, got 1180591620717411303424$"):
        check_count("f", "n", 2**70)
    with pytest.raises(ValueError, match=r"^f: base must be a float where it is as large as 2\^63, got 1180591620"):
        check_number("f", "base", 2**70)
    assert check_eps("f", 0) == 0
    for value in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"^f: eps must be ≥ 0 and finite, got {value}$"):
            check_eps("f", value)
    for value, got in ((math.inf, "inf"), (True, "True"), (2**64, "18446744073709551616"), (None, "NoneType")):
        with pytest.raises(ValueError, match=f"^f: seed must be an integer of 64 bits, got {got}$"):
            seeded("f", value)


def test_metric():
    x = torch.tensor([3.0, 4.0])
    assert relative_rms(x, x) == 0
    assert relative_rms(x + torch.tensor([0.0, 5.0]), x) == pytest.approx(1)
    assert relative_rms(1j * x, x) == pytest.approx(math.sqrt(2))
    assert relative_rms(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_rms(x, 0 * x) == math.inf
    assert math.isnan(relative_rms(x * math.nan, x))
    assert math.isnan(relative_rms(x, x / 0))


def test_assertion():
    x = torch.ones(3, dtype=torch.float64)
    assert_close(x * (1 + 1e-13), x)
    assert_close(x.float() * (1 + 1e-6), x)
    assert_close(x.half() * 1.01, x, tolerance=0.1)
    with pytest.raises(AssertionError, match=r"relative RMS error 1.00e-11 exceeds 1e-12 for shape \(3,\)"):
        assert_close(x * (1 + 1e-11), x)
    with pytest.raises(AssertionError, match=r"shape: got \(1, 3\), expected \(3,\)"):
        assert_close(x[None], x)
    with pytest.raises(AssertionError, match="error nan"):
        assert_close(x * math.nan, x)


def test_pairwise_covers_every_pair_in_few_cases():
    factors = {"length": [0, 1, 5, 63, 64], "kind": "abcdef", "groups": [1, 2, 4], "seen": [False, True]}
    cases = pairwise(factors)
    for a, b in combinations(factors, 2):
        assert {(case[a], case[b]) for case in cases} == set(product(factors[a], factors[b]))
    assert len(cases) == 5 * 6


def test_random_tensors_repeat():
    a, b = random_tensors([(2, 3), (4,)], seed=1, grad=True)
    again, _ = random_tensors([(2, 3), (4,)], seed=1, dtype=torch.float32)
    assert a.requires_grad
    assert b.shape == (4,)
    assert torch.equal(a.detach().float(), again)
    assert not torch.equal(a, random_tensors([(2, 3)], seed=2)[0])
