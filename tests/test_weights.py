"""What all structured weights promise, over the registry."""

import functools
import math

import pytest
import torch
from comparing import all_close
from covering import with_each
from registry_weights import CASES, factors

from smalearn import ShapeError, weights
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import Weight, as_mlbtc

every_case = pytest.mark.parametrize("case", CASES, ids=repr)


def every_family_with(name, values):
    """Every case, and every value of another parameter for every family."""
    return pytest.mark.parametrize(("case", name), with_each(values, CASES, lambda case: case.family), ids=repr)


def drawn(case):
    """A random instance and its matrix by definition."""
    return case.random(1, torch.float64), definition(case)


@functools.cache
def definition(case):
    return case.oracle(factors(case.random(1, torch.float64)))


def complex_factors(case):
    return [torch.complex(x, y) for x, y in zip(*(factors(case.random(s, torch.float64)) for s in (1, 2)), strict=True)]


def test_registry_has_every_weight():
    public = {getattr(weights, name) for name in weights.__all__}
    families = {c for c in public if isinstance(c, type) and issubclass(c, Weight) and c is not Weight}
    assert {case.family for case in CASES} == families


@every_case
def test_dense_is_the_definition(case):
    weight, M = drawn(case)
    assert weight.shape == case.shape
    assert_close(weight.dense(), M)


@every_family_with("leading", [(2, 4), (), (2,), (0,), (3, 0)])
def test_forward_is_the_dense_product(case, leading):
    weight, M = drawn(case)
    (x,) = random_tensors([(*leading, case.shape[1])])
    y = weight(x)
    assert_close(y, x @ M.mT)
    assert y.is_contiguous()


@every_case
def test_float32_stays_near_float64(case):
    weight, M = drawn(case)
    m, n = case.shape
    x, y = random_tensors([(33, m), (33, n)])
    weight = weight.float()
    assert weight(y.float()).dtype == weight.bilinear(x.float(), y.float()).dtype == torch.float32
    assert_close(weight(y.float()), y @ M.mT)
    assert_close(weight.bilinear(x.float(), y.float()), (x @ M * y).sum(-1))


@every_case
def test_any_strides_come_in_and_rows_come_out(case):
    weight, M = drawn(case)
    (x,) = random_tensors([(case.shape[1], 5, 3)])
    x = x.permute(2, 1, 0)
    assert_close(weight(x), x @ M.mT)
    y = weight(x[:1, :1])
    y += 1  # the result is nobody's view
    assert_close(y, x[:1, :1] @ M.mT + 1)


@every_family_with("leading", [((2, 1), (4,)), ((), ()), ((2,), ()), ((), (2, 4))])
def test_bilinear_is_the_dense_form(case, leading):
    weight, M = drawn(case)
    m, n = case.shape
    x, y = random_tensors([(*leading[0], m), (*leading[1], n)])
    expected = (x[..., None, :] @ M @ y[..., None])[..., 0, 0]
    assert_close(weight.bilinear(x, y), expected)


@pytest.mark.claim("003:structured-layers", "smalearn.weights.base.Weight.forward")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.full) if math.prod(case.shape) > 300 else case for case in CASES],
    ids=repr,
)
def test_gradients(case):
    """Of the fast product, by differences, twice; and of all three methods against the definition."""
    weight = case.random(1, torch.float64)
    m, n = case.shape
    leaves = [x.requires_grad_() for x in factors(weight)]
    x, y, G = random_tensors([(2, n), (2, m), (m, n)])

    def run(x, *values):
        return torch.func.functional_call(weight, dict(zip(names, values, strict=True)), (x,))

    names = [name for name, _ in weight.named_parameters()]
    if sum(leaf.numel() for leaf in leaves) < 100:
        assert torch.autograd.gradcheck(run, [x.requires_grad_(), *leaves], fast_mode=True)
        assert torch.autograd.gradgradcheck(run, [x, *leaves], fast_mode=True)
    M = case.oracle(leaves)
    for ours, theirs in (
        ((weight(x) * y).sum(), (x @ M.mT * y).sum()),
        ((weight.dense() * G).sum(), (M * G).sum()),
        (weight.bilinear(y, x).sum(), (y @ M * x).sum()),
    ):
        grads = torch.autograd.grad(ours, list(weight.parameters()), materialize_grads=True)
        expected = torch.autograd.grad(theirs, leaves, retain_graph=True, materialize_grads=True)
        all_close(grads, expected)


@every_case
def test_complex_factors(case):
    values = complex_factors(case)
    weight, M = case.build(*values), case.oracle(values)
    m, n = case.shape
    x, y, u, v = random_tensors([(3, n), (3, n), (3, m), (3, m)])
    x, y = torch.complex(x, y), torch.complex(u, v)
    assert_close(weight.dense(), M)
    assert_close(weight(x), x @ M.mT)
    assert_close(weight.bilinear(y, x), torch.einsum("zm,mn,zn->z", y, M, x))


@every_case
def test_a_random_matrix_has_the_rank_of_the_bound(case):
    weight, M = drawn(case)
    assert weight.rank_bound == torch.linalg.matrix_rank(M).item() == case.rank


# Making and showing


@every_case
def test_random_is_seeded_and_rounds_one_draw(case):
    first, again, other = (case.random(seed, torch.float64) for seed in (3, 3, 4))
    for x, y, z in zip(factors(first), factors(again), factors(other), strict=True):
        assert torch.equal(x, y)
        assert not torch.equal(x, z)
    for x, y in zip(factors(first), factors(case.random(3, torch.float32)), strict=True):
        assert torch.equal(x.float(), y)
    assert {x.dtype for x in case.random(3, None).parameters()} == {torch.get_default_dtype()}


@every_case
def test_a_weight_is_a_module(case):
    weight = case.random(1, torch.float64)
    other = case.random(2, torch.float64)
    other.load_state_dict(weight.state_dict())
    assert torch.equal(other.dense(), weight.dense())
    assert all(isinstance(x, torch.nn.Parameter) and x.requires_grad for x in weight.parameters())
    transposed = case.build(*(x.mT.contiguous().mT for x in factors(weight)))
    assert all(x.is_contiguous() for x in transposed.parameters())
    assert_close(transposed.dense(), weight.dense())


@every_case
def test_a_weight_moves_to_another_device(case):
    """There is no second device in a test; the one without numbers knows where each tensor should be."""
    weight = case.random(1, torch.float64).to("meta")
    m, n = case.shape
    x, y = torch.ones(2, n, dtype=torch.float64, device="meta"), torch.ones(2, m, dtype=torch.float64, device="meta")
    for one in (weight, as_mlbtc(weight)):
        assert {t.device.type for t in (*one.parameters(), *one.buffers())} == {"meta"}
        assert [t.device.type for t in (one.dense(), one(x), one.bilinear(y, x))] == ["meta"] * 3
        assert one(x).shape == (2, m)


@every_case
def test_tables(case):
    weight = case.random(1, None)
    m, n = case.shape
    assert repr(weight).startswith(f"{type(weight).__name__}({m}, {n}, ")
    table = weight._repr_html_()
    rows = (
        type(weight).__name__,
        f"{m} × {n}",
        f"{case.numbers:,} (dense: {m * n:,})",
        f"{case.macs:,} (dense: {m * n:,})",
        f"{case.rank} (dense: {min(m, n)})",
    )
    for cell in rows:
        assert f">{cell}</td>" in table
    assert all(f"{name}: {tuple(x.shape)}" in table for name, x in weight.named_parameters())


# Errors


@every_case
def test_bad_operands(case):
    weight = case.random(1, torch.float64)
    name, (m, n) = type(weight).__name__, case.shape
    x, y = torch.ones(2, m).double(), torch.ones(2, n).double()
    for wrong in (torch.ones(2, n + 1).double(), torch.tensor(1.0).double()):
        with pytest.raises(ShapeError, match=rf"^{name}.forward: x needs axes \(\.\.\., n\) with n = {n}, got"):
            weight(wrong)
    for left, right, argument in ((x[:, :-1], y, "x"), (x, y[:, :-1], "y"), (x, y[:1].repeat(3, 1), "y")):
        with pytest.raises(ShapeError, match=rf"^{name}.bilinear: .*\b{argument}\b"):
            weight.bilinear(left, right)
    with pytest.raises(ValueError, match=f"^{name}.forward: x "):
        weight(y.float())
