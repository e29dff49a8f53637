import math

import oracles_mixing as oracles
import pytest
import torch
from counting import counted

from smalearn import ShapeError
from smalearn.ssm import (
    Semiseparable,
    bidiagonal_inverse,
    block_factors,
    block_ranks,
    from_dense,
    product_generators,
    tril_factors,
)
from smalearn.testing import assert_close, pairwise, random_tensors, relative_rms

INF = float("inf")
SHAPES = {"scalar": (), "diagonal": (3,), "general": (3, 3)}
LENGTHS = [0, 1, 2, 7, 33]
each_structure = pytest.mark.parametrize("structure", SHAPES)


def transitions(structure, kind, shape, seed=3):
    """A of a shape: of size about 1/2, with exact zeros, with singular matrices, or with 1e-200 among them."""
    A, where = random_tensors([shape, shape[: len(shape) - len(SHAPES[structure])]], seed=seed)
    A = 0.5 * A
    where = where.reshape(*where.shape, *(1,) * len(SHAPES[structure]))
    if kind == "resets":
        return torch.where(where > 0.5, 0.0, A)
    if kind == "singular":  # rank one, or one component forgotten
        return A[..., :1, :] * A[..., :1] if structure == "general" else A * torch.tensor([1.0, 0.0, 1.0])
    return torch.where(where > 1, 1e-200, A) if kind == "tiny" else A


def generators(length, structure, kind="mild", leading=(), seed=0):
    B, C = random_tensors([(*leading, length, 3), (*leading, length, 3)], seed=seed)
    return transitions(structure, kind, (*leading, length, *SHAPES[structure]), seed + 3), B, C


CASES = [(s, kind) for s in SHAPES for kind in ("mild", "resets", "tiny")]
CASES += [("diagonal", "singular"), ("general", "singular")]


def entries(A, B, C):
    """The definition, entry by entry: M[t, s] = C_t^T A_t ... A_(s+1) B_s; A, B and C have the same leading axes."""
    *leading, length, _ = B.shape
    if not (leading and B.numel()):
        return oracles.entries(A, B, C) if B.numel() else B.new_zeros(*leading, length, length)
    return torch.stack([entries(*one) for one in zip(A, B, C, strict=True)])


def check(M, expected, x, diagonal, tolerance=None):
    """All products, and the solve with a diagonal."""
    assert M.shape == expected.shape
    assert_close(M.dense(), expected, tolerance)
    assert_close(M.matmul(x), expected @ x.double(), tolerance)
    assert_close(M.transpose_matmul(x), expected.mT @ x.double(), tolerance)
    assert_close(M.flipped().dense(), expected.mT.flip(-1, -2), tolerance)
    shifted = expected + torch.diag_embed(diagonal.double())
    assert_close(M.solve(x, diagonal), torch.linalg.solve(shifted, x.double()), tolerance)


@pytest.mark.parametrize(("structure", "kind"), CASES)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_method_against_the_entries(structure, kind, length):
    A, B, C = generators(length, structure, kind)
    x, diagonal = random_tensors([(length, 2), (length,)], seed=8)
    pivots = 4 * diagonal.sign() - (B * C).sum(-1)  # ±4
    check(Semiseparable(A, B, C), entries(A, B, C), x, pivots)
    single = [y.float() for y in (A, B, C, x, diagonal + 20)]
    check(Semiseparable(*single[:3]), entries(*(y.double() for y in single[:3])), *single[3:])


@each_structure
@pytest.mark.parametrize("leading", [(2,), (2, 4), (0,)])
def test_leading_axes(structure, leading):
    A, B, C = generators(5, structure, leading=leading)
    x, diagonal = random_tensors([(*leading, 5, 2), (*leading, 5)], seed=8)
    check(Semiseparable(A, B, C), entries(A, B, C), x, diagonal + 30)


@each_structure
def test_leading_axes_broadcast(structure):
    A, B, C = generators(5, structure, leading=(2, 3))
    shared = A[:, :1], B[:1, :1], C[:1]
    expected = entries(*(x.expand(2, 3, *x.shape[2:]) for x in shared))
    x, diagonal = random_tensors([(4, 1, 1, 5, 2), (3, 5)], seed=8)
    check(Semiseparable(*shared), expected, x, diagonal + 30)


@pytest.mark.parametrize(("structure", "kind"), CASES)
def test_gradients_of_all_methods(structure, kind):
    A, B, C = generators(5, structure, kind)
    x, diagonal = random_tensors([(5, 2), (5,)], seed=8)
    leaves = [y.clone().requires_grad_() for y in (A, B, C, x, diagonal + 9)]

    def products(A, B, C, x, diagonal):
        M = Semiseparable(A, B, C)
        return M.matmul(x), M.transpose_matmul(x), M.solve(x, diagonal), M.dense()

    assert torch.autograd.gradcheck(products, leaves, fast_mode=True)


def test_half_precision_runs_in_single():
    A, B, C = generators(33, "scalar")
    assert Semiseparable(A.float(), B.float(), C.float()).dense(torch.float64).dtype == torch.float64
    assert Semiseparable(A, B, C).dense(device="meta").device.type == "meta"
    x = torch.ones(33, 1, dtype=torch.float16)
    half = Semiseparable(A.float(), B.half(), C.half())
    Y = half.matmul(x)
    assert Y.dtype == torch.float16
    exact = entries(A.float().double(), B.half().double(), C.half().double()) @ x.double()
    assert relative_rms(Y, exact) <= 1.01 * relative_rms(exact.half(), exact)
    assert half.solve(x, 9 * x[:, 0]).dtype == torch.float16


def test_complex_generators_are_not_conjugated():
    A, B, C = generators(7, "diagonal")
    A, B, C = (torch.complex(y, y.flip(0)) for y in (A, B, C))
    M, expected = Semiseparable(A, B, C), entries(A, B, C)
    x = torch.ones(7, 1, dtype=A.dtype)
    assert_close(M.dense(), expected)
    assert_close(M.transpose_matmul(x), expected.mT @ x)
    assert_close(from_dense(expected).dense(), expected)


@each_structure
@pytest.mark.parametrize("leading", [(), (2, 4)])
def test_cost_counts_the_multiplications(structure, leading):
    M = Semiseparable(*generators(7, structure, leading=leading))
    counter, _ = counted(M.matmul, random_tensors([(*leading, 7, 5)])[0])
    each = 6 + {"scalar": 3, "diagonal": 3, "general": 9}[structure]
    assert M.cost(5) * math.prod(leading) == counter.macs == 7 * 5 * math.prod(leading) * each


# ---------------------------------------------------------------- ranks and the way back


@pytest.mark.parametrize(("structure", "kind"), CASES)
def test_blocks_have_at_most_the_rank_of_the_state(structure, kind):
    M = entries(*generators(12, structure, kind))
    for k, rank in enumerate(block_ranks(M, 1e-13).tolist()):
        block = M[k:, : k + 1]
        assert rank == torch.linalg.matrix_rank(block, atol=1e-13 * M.norm().item(), rtol=0)
        assert rank <= 3
    assert block_ranks(M, diagonal=-1)[0] == 0
    assert (block_ranks(M, diagonal=-1) <= block_ranks(M)).all()


def test_ranks_of_a_random_triangle_are_full():
    M = random_tensors([(2, 9, 9)])[0].tril()
    full = torch.tensor([1, 2, 3, 4, 5, 4, 3, 2, 1]).expand(2, 9)
    assert torch.equal(block_ranks(M), full)
    assert torch.equal(block_ranks(M, diagonal=-1), torch.tensor([0, 1, 2, 3, 4, 4, 3, 2, 1]).expand(2, 9))
    assert from_dense(M).state == 5
    assert_close(from_dense(M).dense(), M)


@pytest.mark.parametrize(("structure", "kind"), CASES)
@pytest.mark.parametrize("length", [0, 1, 2, 13, 33])
def test_from_dense_finds_generators_of_the_same_order(structure, kind, length):
    M = entries(*generators(length, structure, kind))
    results = from_dense(M)
    assert_close(results.dense(), M)
    assert results.state == max(block_ranks(M).tolist(), default=0) <= 3
    assert results.structure == "general"


@pytest.mark.parametrize("leading", [(2,), (2, 4), (0,)])
def test_from_dense_of_a_batch(leading):
    M = Semiseparable(*generators(9, "general", "resets", leading=leading)).dense()
    assert_close(from_dense(M).dense(), M)
    assert from_dense(M.float()).A.dtype == torch.float32
    assert_close(from_dense(M.float()).dense(), M)


def test_from_dense_never_grows():
    """The cumulative products of these generators stay below 1, where those of the original over- and underflow."""
    A, B, C = generators(33, "general")
    results = from_dense(entries(8 * A, B, C))
    assert torch.linalg.matrix_norm(results.A, 2).max() <= 1 + 1e-12
    assert relative_rms(results.dense(), entries(8 * A, B, C)) < 1e-12


def test_from_dense_drops_what_is_below_the_tolerance():
    A, B, C = generators(33, "diagonal")
    noise = random_tensors([(33, 33)], seed=4)[0].tril()
    M = entries(A, B, C)
    M = M + 1e-8 * noise * M.norm() / noise.norm()
    orders = []
    for tolerance in (0.3, 1e-2, 1e-6, 1e-12):
        results = from_dense(M, tolerance)
        orders.append(results.state)
        assert (results.dense() - M).norm() <= 33 * tolerance * M.norm()
    assert orders == sorted(orders)
    assert orders[0] < orders[2] == 3 < 10 < orders[3]


def test_nothing_needs_no_state():
    results = from_dense(torch.zeros(4, 4))
    assert results.state == 0
    assert torch.equal(results.dense(), torch.zeros(4, 4))
    assert torch.equal(results.matmul(torch.ones(4, 2)), torch.zeros(4, 2))


# ---------------------------------------------------------------- factorisations


@pytest.mark.parametrize(
    ("case", "length", "order"),
    [case.values() for case in pairwise({"case": CASES, "length": [0, 1, 2, 7], "order": ["time", "state"]})],
)
def test_three_factors(case, length, order):
    structure, kind = case
    A, B, C = generators(length, structure, kind)
    M = Semiseparable(A, B, C)
    left, bidiagonal, right = block_factors(M, order)
    inverse = bidiagonal_inverse(M, order)
    assert_close(inverse, torch.linalg.inv(bidiagonal))
    assert_close(left @ inverse @ right, entries(A, B, C))
    assert torch.equal(bidiagonal.diag(), torch.ones(3 * length, dtype=torch.float64))


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("leading", [(2,), (2, 4)])
@each_structure
def test_factors_of_a_batch(structure, leading, length):
    M = Semiseparable(*generators(length, structure, leading=leading))
    for order in ("time", "state"):
        left, _, right = block_factors(M, order)
        assert_close(left @ bidiagonal_inverse(M, order) @ right, M.dense())
    U, V = tril_factors(M)
    assert_close((U @ V.mT).tril(), M.dense())


# ---------------------------------------------------------------- a peer


@pytest.mark.parametrize("structure", [pytest.param("scalar", marks=pytest.mark.full), "diagonal"])
def test_celerite2_at_length_5000(structure):
    """celerite2 has exp(-c (t_i - t_j)) per state: the strictly lower part of ours."""
    driver = pytest.importorskip("celerite2.driver", reason="needs a peer: celerite2")
    length = 5000
    B, C, x = random_tensors([(length, 3), (length, 3), (length, 2)])
    steps = (64 * random_tensors([(length,)], seed=7)[0].abs()).ceil() / 64  # exact differences of times
    time, rates = steps.cumsum(0), torch.tensor([1.0, 1.0, 1.0] if structure == "scalar" else [0.1, 1.0, 3.0]).double()
    log_a = -steps if structure == "scalar" else -steps[:, None] * rates
    M = Semiseparable(log_a.exp(), B, C)
    diagonal = (B * C).sum(-1)
    arrays = [y.numpy() for y in (time, rates, C, B)]
    theirs = driver.matmul_lower(*arrays, x.numpy(), torch.zeros_like(x).numpy())
    assert_close(M.matmul(x) - diagonal[:, None] * x, torch.from_numpy(theirs))
    theirs = driver.matmul_upper(*arrays, x.numpy(), torch.zeros_like(x).numpy())
    assert_close(M.transpose_matmul(x) - diagonal[:, None] * x, torch.from_numpy(theirs))
    small = Semiseparable(M.A, 0.2 * B, 0.2 * C)
    arrays = [y.numpy() for y in (time, rates, small.C, small.B)]
    theirs = driver.solve_lower(*arrays, x.numpy(), torch.zeros_like(x).numpy())
    assert_close(small.solve(x, 1 - 0.04 * diagonal), torch.from_numpy(theirs))


# ---------------------------------------------------------------- errors


@each_structure
def test_other_devices_are_not_asked_for_values(structure):
    """A check of values would wait for the device; `meta` has none to wait for."""
    M = Semiseparable(*(x.to("meta") for x in generators(4, structure, "resets")))
    assert [x.shape for x in product_generators(M)] == [M.A.shape] * 2
    assert M.solve(torch.ones(4, 2, dtype=torch.float64, device="meta")).shape == (4, 2)


def test_repr_names_the_parameters():
    assert repr(Semiseparable(*generators(4, "general", leading=(2,)))) == (
        "Semiseparable(2, 4, 4, state=3, structure='general')"
    )


def test_errors():
    A, B, C = generators(4, "scalar")
    message = r"Semiseparable: A has 4 axes, expected 1 for \(..., T\), 2 for \(..., T, N\), 3 for \(..., T, N, N\)"
    with pytest.raises(ShapeError, match=message):
        Semiseparable(A.expand(1, 3, 3, 4).mT, B, C)
    diagonal = torch.ones(4).double()
    diagonal[2] = -(B * C).sum(-1)[2]
    with pytest.raises(ValueError, match=r"Semiseparable.solve: the matrix is singular, entry 2 of its diagonal is 0"):
        Semiseparable(A, B, C).solve(B, diagonal)


@pytest.mark.parametrize(("structure", "kind"), [(s, k) for s, k in CASES if k in ("resets", "singular")])
def test_a_singular_transition_has_no_generators_but_a_matrix(structure, kind):
    A, B, C = generators(9, structure, kind)
    flat = A.reshape(9, -1) if structure != "general" else torch.linalg.det(A)[:, None]
    if kind == "singular" and structure == "general":
        A[4] = 0  # rank one up to rounding: a matrix of zeros is singular whatever the pivots
        flat[1:] = 1
        flat[4] = 0
        A[1:4], A[5:] = A[1:4] + torch.eye(3), A[5:] + torch.eye(3)
    first = next(t for t in range(1, 9) if (flat[t] == 0).any())
    for function in (product_generators, tril_factors):
        with pytest.raises(ValueError, match=f"product_generators: A must be invertible, but A_{first} is singular"):
            function(Semiseparable(A, B, C))
    assert_close(Semiseparable(A, B, C).dense(), entries(A, B, C))


@pytest.mark.parametrize("function", [block_factors, bidiagonal_inverse])
def test_order_errors(function):
    with pytest.raises(ValueError, match=f"{function.__name__}: order must be 'time' or 'state', got 'space'"):
        function(Semiseparable(*generators(3, "scalar")), "space")


@pytest.mark.parametrize("function", [block_ranks, from_dense])
def test_matrix_errors(function):
    name = function.__name__
    with pytest.raises(ShapeError, match=rf"{name}: M must be square, got shape \(3, 4\)"):
        function(torch.zeros(3, 4))
    for tolerance in (-1e-3, 1.0, INF):
        with pytest.raises(ValueError, match=rf"{name}: tolerance must be in \[0, 1\), got {tolerance}"):
            function(torch.zeros(3, 3), tolerance)


def test_from_dense_needs_a_lower_triangle():
    with pytest.raises(ValueError, match=r"from_dense: M must be 0 above the diagonal; decompose M.triu\(1\).mT by"):
        from_dense(torch.ones(3, 3))
