import math

import pytest
import torch
from comparing import all_close
from registry_functions import DIAGONAL, GENERAL, SCALAR, Form

from smalearn.ssm import (
    ScanCost,
    discretise_mamba,
    discretise_trapezoid,
    discretise_zero_order_hold,
    scan_by_doubling,
    scan_by_pairs,
    scan_cost,
    ssm_recurrent,
    ssm_states,
)
from smalearn.testing import assert_close, random_tensors

SHAPES = {"scalar": (), "diagonal": (3,), "general": (3, 3)}
each_structure = pytest.mark.parametrize("structure", SHAPES)


def as_matrix(a, state=3):
    return a if a.ndim == 2 else torch.diag(a.expand(state))


GENERATORS = {"scalar": SCALAR, "diagonal": DIAGONAL, "general": GENERAL}


@each_structure
@pytest.mark.parametrize("length", [0, 1, 7])
def test_states_are_those_on_the_way(structure, length):
    X, A, B, C, state = Form(ssm_states, GENERATORS[structure]).operands(length, (2,), "resets").values()
    states = ssm_states(X, A, B, state)
    Y, last = ssm_recurrent(X, A, B, C, state)
    assert_close((states * C[..., None, :]).sum(-1), Y)
    if length:
        assert_close(states[:, -1], last)


# ---------------------------------------------------------------- scans


class Counter:
    """Composes affine maps, counts pairs and rounds; each element knows how many combinations it had to wait for."""

    combines, rounds = 0, 0

    def __call__(self, earlier, later):
        (a, b, waits), (a_later, b_later, waits_later) = earlier, later
        self.combines, self.rounds = self.combines + a.shape[-3], self.rounds + 1
        return a_later @ a, b @ a_later.mT + b_later, torch.maximum(waits, waits_later) + 1


@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.scan_cost")
@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.scan_by_pairs")
@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.scan_by_doubling")
@pytest.mark.parametrize("length", range(34))
def test_scans_of_every_length(length):
    A, b = random_tensors([(length, 2, 2), (length, 3, 2)])
    for method, scan in {"pairs": scan_by_pairs, "doubling": scan_by_doubling}.items():
        combine = Counter()
        products, sums, waits = scan(combine, (A, b, torch.zeros(length, 1, 1)))
        a, h = torch.eye(2, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
        for t in range(length):
            a, h = A[t] @ a, h @ A[t].mT + b[t]
            assert_close(products[t], a)
            assert_close(sums[t], h)
        assert scan_cost(length, method) == (combine.combines, combine.rounds)
        if length > 1:
            assert math.ceil(math.log2(length)) <= waits.max() <= combine.rounds


def test_what_a_scan_costs():
    for length in [*range(1, 200), 1023, 1024, 1025, 10**6]:
        pairs, doubling = scan_cost(length), scan_cost(length, "doubling")
        log = math.ceil(math.log2(length))
        assert doubling.depth == log
        assert doubling.combines <= length * log
        assert pairs.combines <= 2 * length
        assert pairs.depth <= max(0, 2 * math.log2(length))
        assert length - 1 <= min(pairs.combines, doubling.combines)
    assert scan_cost(0) == scan_cost(0, "doubling") == ScanCost(0, 0)


# ---------------------------------------------------------------- discretisation


def rates(structure, length=7, seed=0):
    """dt, A and B: decays between 0 and about 3, or any matrix."""
    dt, A, B = random_tensors([(length,), (length, *SHAPES[structure]), (length, 3)], seed=seed)
    return dt.abs(), A if structure == "general" else -A.abs(), B


def integrated(dt, A, B, terms=60):
    """Powers of dt A, one by one: exp(dt A) and the integral of exp(s A) B over a step."""
    power = torch.eye(B.shape[-1], dtype=torch.float64)
    held, inputs = torch.zeros_like(power), torch.zeros_like(B)
    for k in range(1, terms):
        held, inputs = held + power, inputs + dt * power @ B / k
        power = dt * A @ power / k
    return held, inputs


@each_structure
def test_zero_order_hold_is_the_power_series_and_the_formula_with_the_inverse(structure):
    dt, A, B = rates(structure)
    A_bar, B_bar = discretise_zero_order_hold(dt, A, B)
    assert A_bar.shape == A.shape
    for t in range(7):
        held, held_input = integrated(dt[t], as_matrix(A[t]), B[t])
        assert_close(as_matrix(A_bar[t]), held)
        assert_close(B_bar[t], held_input)
        assert_close(B_bar[t], torch.linalg.solve(as_matrix(A[t]), (held - torch.eye(3)) @ B[t]))


@pytest.mark.parametrize("discretise", [discretise_zero_order_hold, discretise_mamba])
@each_structure
def test_steps_without_time_and_rates_of_zero(discretise, structure):
    dt, A, B = rates(structure)
    A_bar, B_bar = discretise(0 * dt, A, B)
    for t in range(7):
        assert torch.equal(as_matrix(A_bar[t]), torch.eye(3, dtype=torch.float64))
        assert torch.equal(B_bar[t], torch.zeros(3))
    A_bar, B_bar = discretise(dt, 0 * A, B)
    assert_close(B_bar, dt[:, None] * B)


@each_structure
def test_the_trapezoid_takes_both_ends_of_a_step(structure):
    dt, A, B = rates(structure)
    share = torch.linspace(0, 1, 7, dtype=torch.float64)
    A_bar, before, now = discretise_trapezoid(dt, A, B, share)
    for t in range(7):
        held = torch.linalg.matrix_exp(dt[t] * as_matrix(A[t]))
        assert_close(as_matrix(A_bar[t]), held)
        assert_close(before[t], (1 - share[t]) * dt[t] * held @ (B[t - 1] if t else 0 * B[0]))
        assert_close(now[t], share[t] * dt[t] * B[t])
    all_close(discretise_trapezoid(dt, A, B, torch.ones_like(dt))[::2], discretise_mamba(dt, A, B))


def test_a_singular_matrix_has_no_inverse_but_a_step():
    """Position and speed: after dt, a constant force moves the position by dt²/2."""
    A = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    dt = torch.tensor([0.3], dtype=torch.float64)
    A_bar, B_bar = discretise_zero_order_hold(dt, A[None], torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert_close(A_bar[0], torch.tensor([[1.0, 0.3], [0.0, 1.0]], dtype=torch.float64))
    assert_close(B_bar[0], torch.tensor([0.045, 0.3], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_derivatives_near_zero(dtype):
    """(e^z - 1)/z and its derivative against series with 60 terms, for z of every size and sign."""
    sizes = torch.logspace(-20, 0, 81, dtype=torch.float64)
    z = torch.cat([-30 * sizes, torch.zeros(1), sizes, torch.tensor([-0.1, 0.1, -1e4])]).to(dtype).requires_grad_()
    one = torch.ones(len(z), 1, dtype=dtype)
    _, B_bar = discretise_zero_order_hold(one[:, 0], z, one)
    (slope,) = torch.autograd.grad(B_bar.sum(), z)
    for at, value, derivative in zip(z.tolist(), B_bar.tolist(), slope.tolist(), strict=True):
        if at < -20:
            exact, exact_slope = -1 / at, 1 / at**2
        elif abs(at) > 1:
            exact, exact_slope = math.expm1(at) / at, (at * math.exp(at) - math.expm1(at)) / at**2
        else:
            exact = sum(at**k / math.factorial(k + 1) for k in range(30))
            exact_slope = sum((k + 1) * at**k / math.factorial(k + 2) for k in range(30))
        tolerance = 50 * torch.finfo(dtype).eps
        assert value[0] == pytest.approx(exact, rel=tolerance)
        assert derivative == pytest.approx(exact_slope, rel=tolerance)


def test_minus_infinity_is_a_reset():
    dt = torch.tensor([0.0, 0.5], dtype=torch.float64)[1:]
    A_bar, B_bar = discretise_zero_order_hold(dt, torch.tensor([-math.inf]).double(), torch.ones(1, 2).double())
    assert torch.equal(A_bar, torch.zeros(1).double())
    assert torch.equal(B_bar, torch.zeros(1, 2).double())


@each_structure
@pytest.mark.parametrize("leading", [(2,), (2, 4)])
def test_discretisation_of_a_batch(structure, leading):
    dt, A, B = rates(structure, 3)
    scale = random_tensors([leading], seed=5)[0].abs()
    dt_all = scale[..., None] * dt
    # A and B are shared: leading axes of size 1.
    ones = (1,) * len(leading)
    for discretise in (discretise_zero_order_hold, discretise_mamba):
        A_bar, B_bar = discretise(dt_all, A.reshape(*ones, *A.shape), B.reshape(*ones, *B.shape))
        assert A_bar.shape == (*leading, *A.shape)
        assert B_bar.shape == (*leading, 3, 3)
        index = tuple(size - 1 for size in leading)
        last = discretise(dt_all[index], A, B)
        assert_close(A_bar[index], last[0])
        assert_close(B_bar[index], last[1])


@pytest.mark.parametrize("discretise", [discretise_zero_order_hold, discretise_mamba])
@each_structure
def test_gradients_of_discretisation(discretise, structure):
    leaves = [x.requires_grad_() for x in rates(structure, 3)]
    assert torch.autograd.gradcheck(discretise, leaves)
    assert [x.shape for x in discretise(*(x[:0] for x in leaves))] == [(0, *SHAPES[structure]), (0, 3)]


# ---------------------------------------------------------------- costs and errors


def test_scan_cost_errors():
    with pytest.raises(ValueError, match="scan_cost: method must be 'pairs' or 'doubling', got 'loop'"):
        scan_cost(4, "loop")
